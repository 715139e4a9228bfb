//! Wire goldens: every kind of answer, byte for byte, in `tests/it/golden/serve/`. Set `WVA_UPDATE_GOLDEN=1` to write
//! them again, and review the difference.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;

use flate2::read::GzDecoder;
use wva::engine::ClusterView;
use wva_core::VariantId;

use super::client::Answer;
use super::test_server::{NOW, TestServer, led_by, sample, target};
use super::{READ, path};

const V2: &str = "Accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                  application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
const PROTOBUF: &str = "Accept: application/vnd.kubernetes.protobuf";
const KUBECTL: &str = "Accept: application/json;as=Table;v=v1;g=meta.k8s.io,\
                       application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
const ANY: &str = "Accept: */*";
const JSON: &str = "Accept: application/json";
const YAML: &str = "Accept: application/yaml";
const XML: &str = "Accept: application/xml";
const HPA_ACCEPT: &str = "Accept: application/vnd.kubernetes.protobuf, */*";
const UNKNOWN_AGGREGATED: &str =
    "Accept: application/json;g=apidiscovery.k8s.io;v=v9;as=APIGroupDiscoveryList";
const OPENAPI_PROTOBUF: &str = "Accept: application/com.github.proto-openapi.spec.v2.v1+protobuf";
const EXTERNAL: &str = "/apis/external.metrics.k8s.io";
const EXTERNAL_V1BETA1: &str = "/apis/external.metrics.k8s.io/v1beta1";
const EXPLANATIONS: &str = "/apis/decisions.wva.llmd.ai";
const EXPLANATIONS_V1ALPHA1: &str = "/apis/decisions.wva.llmd.ai/v1alpha1";
const V2BETA1: &str = "Accept: application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

pub(crate) fn golden(name: &str, answer: &Answer) {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/it/golden/serve/{name}.http"));
    let head: Vec<_> = answer.head.lines().filter(|line| !line.starts_with("date: ")).collect();
    let got = format!("{}\n\n{}\n", head.join("\n"), readable(answer).trim_end_matches('\n'));
    if must_update() {
        std::fs::write(&file, &got).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(got, expected, "{} differs", file.display());
}

/// Text unchanged, protobuf as a hex dump, and a placeholder for a compressed body.
fn readable(answer: &Answer) -> String {
    if answer.header("content-encoding").is_some() {
        return "(compressed)".into();
    }
    if answer.header("content-type") != Some("application/vnd.kubernetes.protobuf") {
        return answer.body.clone();
    }
    let lines = answer.bytes.chunks(16).map(|bytes| {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x} ")).collect();
        let letter = |byte: &u8| if byte.is_ascii_graphic() { char::from(*byte) } else { '.' };
        format!("{hex:<48} {}\n", bytes.iter().map(letter).collect::<String>())
    });
    lines.collect()
}

#[expect(clippy::disallowed_methods, reason = "a switch for the person who runs the tests")]
pub(crate) fn must_update() -> bool {
    std::env::var("WVA_UPDATE_GOLDEN").is_ok()
}

#[tokio::test]
async fn discovery_is_these_bytes() {
    let server = TestServer::new().await;
    for (name, path, accept) in [
        ("apis-v2", "/apis", V2),
        ("apis-v2beta1", "/apis", V2BETA1),
        ("apis-legacy", "/apis", JSON),
        ("apis-not-acceptable", "/apis", XML),
        ("apis-yaml", "/apis", YAML),
        ("apis-protobuf", "/apis", HPA_ACCEPT),
        ("apis-unknown-aggregated", "/apis", UNKNOWN_AGGREGATED),
        ("group", EXTERNAL, ANY),
        ("group-explanations", EXPLANATIONS, ANY),
        ("group-version-explanations", EXPLANATIONS_V1ALPHA1, JSON),
        ("openapi-v3-explanations", "/openapi/v3/apis/decisions.wva.llmd.ai/v1alpha1", JSON),
        ("group-protobuf", EXTERNAL, PROTOBUF),
        ("group-version-yaml", EXTERNAL_V1BETA1, YAML),
        ("group-version-protobuf", EXTERNAL_V1BETA1, PROTOBUF),
        ("group-version-not-acceptable", EXTERNAL_V1BETA1, XML),
        ("custom-group", "/apis/custom.metrics.k8s.io", JSON),
        ("custom-v1beta1", "/apis/custom.metrics.k8s.io/v1beta1", JSON),
        ("custom-v1beta2", "/apis/custom.metrics.k8s.io/v1beta2", JSON),
        ("openapi-v3-custom-v1beta1", "/openapi/v3/apis/custom.metrics.k8s.io/v1beta1", ANY),
        ("openapi-v3-custom-v1beta2", "/openapi/v3/apis/custom.metrics.k8s.io/v1beta2", ANY),
        ("openapi-v2-protobuf", "/openapi/v2", OPENAPI_PROTOBUF),
        ("openapi-v2-any", "/openapi/v2", &format!("{OPENAPI_PROTOBUF}, */*")),
        ("group-version", EXTERNAL_V1BETA1, ANY),
        ("root", "/", ANY),
        ("openapi-v2", "/openapi/v2", JSON),
        ("openapi-v3", "/openapi/v3", ANY),
        ("openapi-v3-group", "/openapi/v3/apis/external.metrics.k8s.io/v1beta1?hash=X", ANY),
        ("unknown-version", "/apis/external.metrics.k8s.io/v1", ANY),
        ("unknown-path", "/nothing", ANY),
    ] {
        golden(&format!("discovery-{name}"), &server.read_as_hpa(path, &[accept]).await);
    }
}

#[tokio::test]
async fn a_representation_is_not_modified_only_for_its_own_etag() {
    let server = TestServer::new().await;
    let get = |accept: &'static str, etag: Option<String>| {
        let server = &server;
        let line = etag.map(|etag| format!("If-None-Match: {etag}"));
        async move {
            let lines: Vec<_> = line.as_deref().into_iter().chain([accept]).collect();
            server.read_as_hpa("/apis", &lines).await
        }
    };
    let first = get(V2, None).await;
    let etag = first.header("etag").unwrap().to_owned();
    let again = get(V2, Some(etag.clone())).await;
    assert_eq!((again.status, again.body.as_str()), (304, ""));
    assert_eq!(again.header("etag"), Some(etag.as_str()));
    for accept in [V2BETA1, JSON, YAML, PROTOBUF] {
        let answer = get(accept, Some(etag.clone())).await;
        assert_eq!(answer.status, 200, "{accept}");
        let own_etag = answer.header("etag").map(str::to_owned);
        assert_eq!(get(accept, own_etag).await.status, 304, "{accept}");
    }
}

#[tokio::test]
async fn every_answer_to_a_read_is_these_bytes() {
    let server = TestServer::with(|options| options.controller_instance = Some("blue".into())).await;
    let read = |namespace: &str, metric: &str, query: &str| format!("{}{query}", path(namespace, metric));
    let desired = |namespace: &str, query: &str| read(namespace, "wva_desired_replicas", query);
    for (name, path) in [
        ("one", desired("llm", "?labelSelector=variant_name%3Dllama-a100%2Cexported_namespace%3Dllm")),
        (
            "every-label",
            desired(
                "llm",
                "?labelSelector=variant=llama-a100,namespace=llm,accelerator_type+in+(A100,H100),controller_instance",
            ),
        ),
        ("no-selector", desired("llm", "")),
        ("current", read("llm", "wva_current_replicas", "")),
        ("ratio", read("llm", "wva_desired_ratio", "")),
        ("inferno", read("llm", "inferno_desired_replicas", "")),
        ("two", desired("pair", "")),
        ("two-ratio", read("pair", "wva_desired_ratio", "?labelSelector=variant_name=two")),
        ("named-twice", desired("pair", "?labelSelector=variant_name+in+(one,two),variant=two")),
        ("no-accelerator", desired("bare", "")),
        ("no-current", read("bare", "wva_current_replicas", "")),
        ("unknown-metric", read("llm", "requests_per_second", "")),
        ("unknown-variant", desired("llm", "?labelSelector=variant_name%3Dnope")),
        ("unknown-label", desired("llm", "?labelSelector=pod%3Dx,variant_name%3Dllama-a100")),
        ("unknown-namespace", desired("empty", "")),
        ("absent-label-unknown-variant", desired("llm", "?labelSelector=!foo,variant_name%3Dnope")),
        ("absent-label", desired("pair", "?labelSelector=!foo,!variant")),
        ("other-value", desired("llm", "?labelSelector=accelerator_type%3DH100,variant_name%3Dllama-a100")),
        ("field-name", desired("pair", "?fieldSelector=metadata.name%3Dtwo")),
        ("field-not-name", desired("pair", "?fieldSelector=metadata.name!=two,metadata.namespace==pair")),
        ("field-other-namespace", desired("pair", "?fieldSelector=metadata.namespace%3Dllm")),
        ("field-no-operator", desired("pair", "?fieldSelector=metadata.name")),
        ("unknown-label-no-accelerator", desired("bare", "?labelSelector=accelerator_type,model_name")),
        ("nothing-known", desired("half", "?labelSelector=variant_name=new")),
        ("one-of-two-unknown", desired("half", "")),
        ("too-old", desired("old", "")),
        ("invalid-variant", desired("bad", "")),
        ("target-not-found", desired("gone", "")),
        ("bad-selector", desired("llm", "?labelSelector=a%3Db%3Dc")),
        ("bad-selector-value", desired("llm", "?labelSelector=model%3Dmeta-llama%2FLlama-3.1-8B")),
        ("bad-limit", desired("llm", "?limit=x")),
        ("bad-field", desired("llm", "?fieldSelector=spec.x%3D1")),
        ("watch", desired("llm", "?watch=1")),
        ("extra-segment", desired("llm", "/llama-a100")),
        ("forbidden", desired("llm", "?labelSelector=a")),
    ] {
        let user = if name == "forbidden" { "mallory" } else { "hpa" };
        golden(&format!("data-{name}"), &server.proxied(user, &path).await);
    }
}

#[tokio::test]
async fn a_variant_is_one_item_under_each_of_its_names() {
    let server = TestServer::new().await;
    // The name `two` is that of an object, which takes precedence.
    let aliases = ["deployment", "two"].map(|name| (VariantId::new("pair", name), "one".into()));
    let aliases = BTreeMap::from(aliases);
    *server.reads.view.lock() = Arc::new(ClusterView { synced: true, aliases, ..ClusterView::default() });
    let pair = path("pair", "wva_desired_replicas");
    for (name, query) in [
        ("own-name", "labelSelector=variant_name%3Done"),
        ("target-name", "labelSelector=variant_name%3Ddeployment%2Cexported_namespace%3Dpair"),
        ("both-names", "labelSelector=variant_name+in+(deployment,one)"),
        ("own-name-of-another", "labelSelector=variant_name%3Dtwo"),
        ("target-name-mismatch", "labelSelector=variant_name%3Ddeployment%2Caccelerator_type%3DH100"),
    ] {
        golden(&format!("alias-{name}"), &server.read_as_hpa(&format!("{pair}?{query}"), &[]).await);
    }
    let object = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/pair/variantautoscalings.llmd.ai/deployment";
    let answer = server.read_as_hpa(&format!("{object}/wva_desired_replicas"), &[]).await;
    assert_eq!(answer.status, 404, "metrics of objects have the names of objects only");
}

#[tokio::test]
async fn an_annotated_hpa_was_answered_as_a_variant_autoscaling() {
    let server = TestServer::new().await;
    let annotated = [VariantId::new("pair", "one")].into();
    *server.reads.view.lock() = Arc::new(ClusterView { synced: true, annotated, ..ClusterView::default() });
    let objects = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/pair/variantautoscalings.llmd.ai";
    for (name, status) in [("one", 404), ("two", 200), ("%2A", 200)] {
        let answer = server.read_as_hpa(&format!("{objects}/{name}/wva_desired_replicas"), &[]).await;
        assert_eq!(answer.status, status, "{name}: {}", answer.body);
        assert!(status == 404 || !answer.body.contains("\"one\""), "{name}: {}", answer.body);
    }
    let external = format!("{}?labelSelector=variant_name%3Done", path("pair", "wva_desired_replicas"));
    assert_eq!(server.read_as_hpa(&external, &[]).await.status, 200);
}

#[tokio::test]
async fn method_and_media_type_errors_are_these_bytes() {
    let server = TestServer::new().await;
    let user = "X-Remote-User: hpa";
    for (name, request, accept) in [
        ("post", format!("POST {READ}"), ANY),
        ("delete", format!("DELETE {READ}"), ANY),
        ("head", format!("HEAD {READ}"), ANY),
        ("post-discovery", "POST /apis".into(), ANY),
        ("xml", format!("GET {READ}"), XML),
        ("hpa-accept", format!("GET {READ}"), HPA_ACCEPT),
    ] {
        golden(&format!("data-{name}"), &server.send(Some(&server.proxy), &request, &[user, accept]).await);
    }
}

#[tokio::test]
async fn every_representation_is_these_bytes() {
    let server = TestServer::new().await;
    let pair = path("pair", "wva_desired_replicas");
    let unknown = path("llm", "requests_per_second");
    for (name, path, accept) in [
        ("yaml", pair.as_str(), YAML),
        ("protobuf", &pair, PROTOBUF),
        ("table-v1", &format!("{pair}?limit=500"), KUBECTL),
        ("table-v1beta1", &pair, "Accept: application/json;as=Table;v=v1beta1;g=meta.k8s.io"),
        ("table-not-acceptable", &pair, "Accept: application/json;as=Table;v=v2;g=meta.k8s.io"),
        ("wanted-most", &pair, "Accept: application/json;q=0.1, application/yaml;q=0.9, text/html"),
        ("status-yaml", &unknown, YAML),
        ("status-protobuf", &unknown, PROTOBUF),
        ("status-table", &unknown, KUBECTL),
    ] {
        golden(&format!("shown-{name}"), &server.read_as_hpa(path, &[accept]).await);
    }
    let request = format!("GET {READ}");
    let lines = ["X-Remote-User: mallory", PROTOBUF];
    golden("shown-forbidden-protobuf", &server.send(Some(&server.proxy), &request, &lines).await);
}

#[tokio::test]
async fn a_large_list_is_compressed_on_request_and_always_has_its_length() {
    let server = TestServer::new().await;
    let mut many = sample();
    let variant = |index| (VariantId::new("many", format!("variant-{index:04}")), target(1, Some(1), NOW));
    many.decisions.extend((0..1000).map(variant));
    server.publish(many);
    let path = path("many", "wva_desired_replicas");
    let plain = server.read_as_hpa(&path, &[]).await;
    let small = server.read_as_hpa(&path, &["Accept-Encoding: gzip"]).await;
    golden("shown-gzip", &small);
    let mut unpacked = Vec::new();
    GzDecoder::new(&small.bytes[..]).read_to_end(&mut unpacked).unwrap();
    assert!(unpacked == plain.bytes, "the same list");
    for answer in [plain, small] {
        assert_eq!(answer.header("content-length"), Some(answer.bytes.len().to_string().as_str()));
        assert_eq!(answer.head.matches("vary: Accept-Encoding").count(), 1);
    }
}

#[tokio::test]
async fn only_an_ambiguous_read_is_reported() {
    let server = TestServer::new().await;
    let one_of_two = path("pair", "wva_desired_replicas") + "?labelSelector=variant_name=one";
    for path in [READ, &one_of_two, &path("half", "wva_desired_replicas")] {
        server.proxied("hpa", path).await;
    }
    assert!(server.events.0.lock().is_empty());
    server.proxied("hpa", &format!("{}?labelSelector=namespace", path("pair", "wva_desired_ratio"))).await;
    assert_eq!(*server.events.0.lock(), ["pair wva_desired_ratio \"namespace\": pair/one, pair/two"]);
}

#[tokio::test]
async fn before_the_first_result_an_error_names_the_variant_and_the_cause() {
    let server = TestServer::with(|options| options.has_synced = false).await;
    server.publish(wva::engine::Published::empty());
    *server.reads.now.lock() = "2026-11-21T10:00:25Z".parse().unwrap();
    let one_variant = format!("{READ}?labelSelector=variant_name%3Dllama-a100%2Cexported_namespace%3Dllm");
    let two_variants = format!("{READ}?labelSelector=variant+in+(a,b),variant_name!%3Dc");
    golden("data-nothing-yet-not-listed", &server.proxied("hpa", &one_variant).await);
    server.synced.send_replace(true);
    golden("data-nothing-yet", &server.proxied("hpa", &one_variant).await);
    golden("data-nothing-yet-two", &server.proxied("hpa", &two_variants).await);
    golden("data-nothing-yet-any", &server.proxied("hpa", READ).await);
    server.leadership.send_replace(led_by(None));
    golden("data-nothing-yet-not-holder", &server.proxied("hpa", &one_variant).await);
    server.leadership.send_replace(wva::engine::Leadership::default());
    golden("data-nothing-yet-no-holder", &server.proxied("hpa", &one_variant).await);
}

#[tokio::test]
async fn a_number_becomes_an_error_when_its_evidence_grows_too_old() {
    let server = TestServer::new().await;
    assert_eq!(server.proxied("hpa", READ).await.value(), "5");
    *server.reads.now.lock() = "2026-11-21T10:05:05Z".parse().unwrap();
    assert_eq!(server.proxied("hpa", READ).await.value(), "5");
    *server.reads.now.lock() = "2026-11-21T10:05:06Z".parse().unwrap();
    let answer = server.proxied("hpa", READ).await;
    assert_eq!(answer.status, 503);
    assert!(answer.message().contains("llm/llama-a100 is withheld: its newest evidence is 300s old"));
}

#[tokio::test]
async fn a_panic_fails_only_its_own_request_with_a_status() {
    let server = TestServer::new().await;
    *server.reads.panics.lock() = true;
    golden("data-bug", &server.proxied("hpa", READ).await);
    *server.reads.panics.lock() = false;
    assert_eq!(server.proxied("hpa", READ).await.value(), "5");
}
