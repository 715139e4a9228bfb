//! `custom.metrics.k8s.io`: the value of a variant as a metric of its objects, byte for byte where people and programs
//! read it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use wva::engine::{Claim, ClusterView};
use wva_core::VariantId;
use wva_core::model::{InvalidVariant, TargetRef, Variant};
use wva_core::snapshot::VariantState;

use super::client::H2;
use super::golden::golden;
use super::path;
use super::test_server::{ServerOptions, TestServer};

pub(crate) const DESIRED: &str = "wva_desired_replicas";

/// Where a metric of an object is read.
pub(crate) fn object(version: &str, namespace: &str, resource: &str, name: &str, metric: &str) -> String {
    format!("/apis/custom.metrics.k8s.io/{version}/namespaces/{namespace}/{resource}/{name}/{metric}")
}

pub(crate) fn variant(namespace: &str, name: &str) -> String {
    object("v1beta2", namespace, "variantautoscalings.llmd.ai", name, DESIRED)
}

pub(crate) fn deployment(namespace: &str, name: &str) -> String {
    object("v1beta2", namespace, "deployments.apps", name, DESIRED)
}

/// The targets of the server's variants, a Deployment that two variants claim, and variants without a decision.
fn view() -> ClusterView {
    let variants = [
        ("fresh", "first", "first-decode"),
        ("half", "good", "good-decode"),
        ("half", "new", "new-decode"),
        ("llm", "llama-a100", "llama-decode"),
        ("llm", "young", "young-decode"),
        ("old", "old", "old-decode"),
        ("pair", "one", "pair-one"),
        ("pair", "two", "pair-two"),
        ("pair", "younger", "pair-two"),
    ];
    let claim = |(namespace, name, deployment): (&str, &str, &str)| Claim {
        target: TargetRef::deployment(deployment),
        variant: VariantId::new(namespace, name),
    };
    let first = variants.into_iter().filter(|(_, name, _)| *name != "younger");
    ClusterView {
        synced: true,
        variants: first.map(state).collect(),
        claims: variants.map(claim).to_vec(),
        invalid: vec![InvalidVariant::new(VariantId::new("llm", "broken"), "spec.modelID is empty".into())],
        ..ClusterView::default()
    }
}

pub(super) fn state((namespace, name, deployment): (&str, &str, &str)) -> VariantState {
    let id = VariantId::new(namespace, name);
    VariantState::new(Variant::new(id, "llama", TargetRef::deployment(deployment)), Vec::new())
}

pub(crate) async fn server_with(change: impl FnOnce(&mut ServerOptions)) -> TestServer {
    let server = TestServer::with(change).await;
    *server.reads.view.lock() = Arc::new(view());
    server
}

pub(crate) async fn server() -> TestServer {
    server_with(|_| {}).await
}

#[tokio::test]
async fn custom_metrics_answers_are_these_bytes() {
    let server = server_with(|options| options.controller_instance = Some("blue".into())).await;
    let v1 = |resource, name| object("v1beta1", "llm", resource, name, DESIRED);
    let of =
        |namespace, name, metric| object("v1beta2", namespace, "variantautoscalings.llmd.ai", name, metric);
    for (name, path) in [
        ("variant", variant("llm", "llama-a100")),
        ("variant-v1beta1", v1("variantautoscalings.llmd.ai", "llama-a100")),
        ("deployment", deployment("llm", "llama-decode")),
        ("deployment-v1beta1", v1("deployments.apps", "llama-decode")),
        ("deployment-without-group", v1("deployments", "llama-decode")),
        ("ratio", of("pair", "two", "wva_desired_ratio")),
        ("star", variant("pair", "*")),
        ("star-escaped", variant("pair", "%2A")),
        ("star-deployments", deployment("pair", "*")),
        ("star-selector", variant("pair", "*") + "?labelSelector=variant_name+in+%28one%2Cx%29"),
        (
            "star-both-selectors",
            variant("pair", "*") + "?labelSelector=variant&metricLabelSelector=variant%21%3Done",
        ),
        (
            "series",
            variant("llm", "llama-a100")
                + "?metricLabelSelector=accelerator_type%3DA100%2Ccontroller_instance",
        ),
        (
            "series-v1beta1",
            v1("deployments.apps", "llama-decode") + "?metricLabelSelector=accelerator_type%3DA100,x!%3D1",
        ),
        ("series-mismatch", variant("llm", "llama-a100") + "?metricLabelSelector=accelerator_type%3DH100"),
        ("series-mismatch-deployment", deployment("llm", "llama-decode") + "?metricLabelSelector=pod%3Dx"),
        ("label-selector-of-a-named-object", variant("llm", "llama-a100") + "?labelSelector=app%3Dother"),
        ("unknown-metric", of("llm", "llama-a100", "requests_per_second")),
        ("unknown-variant", variant("llm", "nope")),
        ("unknown-deployment", deployment("llm", "nope")),
        ("unknown-namespace", variant("empty", "*")),
        ("unknown-resource", object("v1beta1", "llm", "pods", "x", DESIRED)),
        ("unknown-resource-star", object("v1beta1", "llm", "daemonsets.apps", "*", DESIRED)),
        ("two-variants", deployment("pair", "pair-two")),
        ("nothing-known", variant("half", "new")),
        ("nothing-known-deployment", deployment("half", "new-decode")),
        ("one-of-two-unknown", variant("half", "*")),
        ("too-old", deployment("old", "old-decode")),
        ("invalid-variant", variant("bad", "bad")),
        ("target-not-found", variant("gone", "gone")),
        ("no-current", of("bare", "bare", "wva_current_replicas")),
        ("bad-selector", variant("pair", "*") + "?labelSelector=a%3Db%3Dc"),
        ("bad-series-selector", variant("llm", "llama-a100") + "?metricLabelSelector=a%3Db%3Dc"),
        ("watch", variant("llm", "*") + "?watch=1"),
        ("namespace-metric", format!("/apis/custom.metrics.k8s.io/v1beta2/namespaces/llm/metrics/{DESIRED}")),
        ("root-scoped", format!("/apis/custom.metrics.k8s.io/v1beta1/nodes/gpu-0/{DESIRED}")),
        ("two-parts", "/apis/custom.metrics.k8s.io/v1beta1/namespaces/llm/deployments.apps/x".into()),
        ("one-part", "/apis/custom.metrics.k8s.io/v1beta1/namespaces/llm/deployments.apps".into()),
        ("four-parts", variant("llm", "llama-a100") + "/more"),
        ("unknown-version", object("v1", "llm", "deployments.apps", "llama-decode", DESIRED)),
        ("forbidden", variant("llm", "llama-a100")),
        ("forbidden-star", deployment("llm", "*")),
    ] {
        let user = if name.starts_with("forbidden") { "mallory" } else { "hpa" };
        golden(&format!("custom-{name}"), &server.proxied(user, &path).await);
    }
}

#[tokio::test]
async fn a_scale_target_of_another_kind_is_no_deployment() {
    let server = server().await;
    let with_sets = |names: &[&str]| {
        let mut view = view();
        for state in view.variants.iter_mut().filter(|state| names.contains(&&*state.variant.id.name)) {
            state.variant.target.kind = "StatefulSet".into();
        }
        *server.reads.view.lock() = Arc::new(view);
    };
    with_sets(&["two"]);
    let answer = server.proxied("hpa", &deployment("pair", "*")).await;
    assert!(answer.body.contains("pair-one") && !answer.body.contains("pair-two"), "{}", answer.body);
    with_sets(&["one", "two"]);
    let answer = server.proxied("hpa", &deployment("pair", "*")).await;
    assert_eq!(answer.status, 404);
    let says = "none of its variants has a Deployment as its scale target";
    assert!(answer.body.contains(says), "{}", answer.body);
    let sets = object("v1beta2", "pair", "statefulsets.apps", "*", DESIRED);
    let answer = server.proxied("hpa", &sets).await;
    let described = r#""describedObject":{"kind":"StatefulSet","namespace":"pair","name":"pair-one","apiVersion":"apps/v1"}"#;
    assert!(answer.body.contains(described) && answer.body.contains("pair-two"), "{}", answer.body);
    // A variant of another kind that has no number is no reason to answer nothing about Deployments.
    with_sets(&["new"]);
    assert_eq!(server.proxied("hpa", &deployment("half", "*")).await.status, 200);
}

#[tokio::test]
async fn a_leader_worker_set_has_the_number_of_the_variant_that_decides_about_it() {
    let server = server().await;
    let mut view = view();
    let set = TargetRef {
        group: TargetRef::LEADER_WORKER_SETS.into(),
        kind: "LeaderWorkerSet".into(),
        name: "llama-decode".into(),
    };
    for claim in view.claims.iter_mut().filter(|claim| claim.target.name == set.name) {
        claim.target = set.clone();
    }
    view.claims.sort_by(|left, right| left.key().cmp(&right.key()));
    for state in view.variants.iter_mut().filter(|state| state.variant.target.name == set.name) {
        state.variant.target = set.clone();
    }
    *server.reads.view.lock() = Arc::new(view);
    let expected = server.proxied("hpa", &variant("llm", "llama-a100")).await.value();
    for resource in ["leaderworkersets.leaderworkerset.x-k8s.io", "leaderworkersets"] {
        let path = object("v1beta2", "llm", resource, "llama-decode", DESIRED);
        assert_eq!(server.proxied("hpa", &path).await.value(), expected, "{resource}");
    }
    let answer = server.proxied("hpa", &deployment("llm", "llama-decode")).await;
    assert_eq!(answer.status, 404, "{}", answer.body);
}

#[tokio::test]
async fn a_new_variant_is_reported_as_not_evaluated_yet() {
    let server = server().await;
    let named = |selector: &str| path("llm", DESIRED) + "?labelSelector=" + selector;
    for (name, path) in [
        ("data-young", named("variant_name%3Dyoung%2Cexported_namespace%3Dllm")),
        ("data-young-other-label", named("variant_name%3Dyoung%2Cpod%3Dx")),
        ("data-young-invalid", named("variant%3Dbroken")),
        ("data-young-namespace", path("fresh", DESIRED)),
        ("custom-young", variant("llm", "young")),
        ("custom-young-deployment", deployment("llm", "young-decode")),
        ("custom-young-star", variant("fresh", "*")),
        ("custom-young-star-deployment", deployment("fresh", "*")),
    ] {
        let answer = server.proxied("hpa", &path).await;
        assert_eq!(answer.status, 503, "{path}: {}", answer.body);
        golden(name, &answer);
    }
    let without_label = path("fresh", DESIRED) + "?labelSelector=pod%3Dx";
    golden("data-young-no-label", &server.proxied("hpa", &without_label).await);
}

#[tokio::test]
async fn the_metric_is_checked_before_the_object_and_fields_select() {
    let server = server().await;
    let unknown =
        |namespace, name| object("v1beta2", namespace, "deployments.apps", name, "requests_per_second");
    for (name, path) in [
        ("unknown-metric-unknown-deployment", unknown("llm", "nope")),
        ("unknown-metric-two-variants", unknown("pair", "pair-two")),
        ("series-absent", variant("llm", "llama-a100") + "?metricLabelSelector=!foo%2C!accelerator_type"),
        ("field-variant", variant("pair", "*") + "?fieldSelector=metadata.name%3Done"),
        ("field-deployment", deployment("pair", "*") + "?fieldSelector=metadata.name%3Dpair-two"),
        ("field-not-deployment", deployment("pair", "*") + "?fieldSelector=metadata.name!%3Dpair-two"),
        ("field-unknown-deployment", deployment("pair", "*") + "?fieldSelector=metadata.name%3Dnope"),
        ("field-other-namespace", variant("pair", "*") + "?fieldSelector=metadata.namespace%3Dllm"),
        ("field-no-operator", variant("pair", "*") + "?fieldSelector=metadata.name"),
    ] {
        golden(&format!("custom-{name}"), &server.proxied("hpa", &path).await);
    }
}

#[tokio::test]
async fn an_object_has_the_value_of_the_external_metric() {
    let server = server().await;
    for (namespace, name, target) in [("llm", "llama-a100", "llama-decode"), ("pair", "two", "pair-two")] {
        for metric in [DESIRED, "wva_current_replicas", "wva_desired_ratio", "inferno_desired_replicas"] {
            let external = path(namespace, metric) + &format!("?labelSelector=variant_name%3D{name}");
            let expected = server.proxied("hpa", &external).await.value();
            for (resource, name) in [("variantautoscalings.llmd.ai", name), ("deployments.apps", target)] {
                for version in ["v1beta1", "v1beta2"] {
                    let path = object(version, namespace, resource, name, metric);
                    assert_eq!(server.proxied("hpa", &path).await.value(), expected, "{path}");
                }
            }
        }
    }
}

#[tokio::test]
async fn an_object_is_encoded_as_the_client_accepts_it() {
    let server = server().await;
    let table = "Accept: application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    for (name, accept) in
        [("yaml", "Accept: application/yaml"), ("table", table), ("xml", "Accept: application/xml")]
    {
        let answer = server.read_as_hpa(&deployment("llm", "llama-decode"), &[accept]).await;
        golden(&format!("custom-{name}"), &answer);
    }
    for (name, version) in [("protobuf", "v1beta2"), ("protobuf-v1beta1", "v1beta1")] {
        let path = object(version, "llm", "deployments.apps", "llama-decode", DESIRED);
        let path = path + "?metricLabelSelector=accelerator_type%3DA100,x!%3D1";
        let accept = "Accept: application/vnd.kubernetes.protobuf, */*";
        let answer = server.read_as_hpa(&path, &[accept]).await;
        golden(&format!("custom-{name}"), &answer);
    }
}

#[tokio::test]
async fn a_metric_of_an_object_is_authorised_as_its_subresource() {
    let server = server().await;
    for (method, path, verb, resource, name) in [
        ("GET", variant("llm", "llama-a100"), "get", "variantautoscalings.llmd.ai", "llama-a100"),
        ("GET", deployment("llm", "*"), "get", "deployments.apps", "*"),
        ("GET", deployment("llm", "*") + "?watch=true", "get", "deployments.apps", "*"),
        ("POST", deployment("llm", "x"), "create", "deployments.apps", "x"),
        ("PUT", deployment("llm", "x"), "update", "deployments.apps", "x"),
        ("PATCH", deployment("llm", "x"), "patch", "deployments.apps", "x"),
        ("DELETE", deployment("llm", "x"), "delete", "deployments.apps", "x"),
    ] {
        server.reviewer.reviews.lock().clear();
        server.send(Some(&server.proxy), &format!("{method} {path}"), &["X-Remote-User: mallory"]).await;
        let reviews = server.reviewer.reviews.lock().clone();
        // The review of the same question is cached.
        let Some((_, attributes)) = reviews.last() else {
            assert!(path.ends_with("watch=true"), "{path} was not reviewed");
            continue;
        };
        let expected = format!(
            "Resource {{ verb: {verb:?}, group: \"custom.metrics.k8s.io\", version: \"v1beta2\", resource: {resource:?}, \
             subresource: {DESIRED:?}, namespace: \"llm\", name: {name:?} }}"
        );
        assert_eq!(format!("{attributes:?}"), expected, "{method} {path}");
    }
    for method in ["POST", "PUT", "PATCH", "DELETE", "HEAD"] {
        let request = format!("{method} {}", variant("llm", "llama-a100"));
        let answer = server.send(Some(&server.proxy), &request, &["X-Remote-User: hpa"]).await;
        assert_eq!(answer.status, 405, "{method}");
    }
}

#[tokio::test]
async fn before_the_first_result_an_error_names_the_object_and_the_cause() {
    let server = server_with(|options| options.has_synced = false).await;
    server.publish(wva::engine::Published::empty());
    *server.reads.now.lock() = "2026-11-21T10:00:25Z".parse().unwrap();
    golden("custom-nothing-yet", &server.proxied("hpa", &variant("llm", "llama-a100")).await);
    golden("custom-nothing-yet-deployment", &server.proxied("hpa", &deployment("llm", "llama-decode")).await);
    *server.reads.view.lock() = Arc::default();
    golden("custom-nothing-yet-not-listed", &server.proxied("hpa", &deployment("llm", "llama-decode")).await);
}

#[tokio::test]
async fn reads_of_objects_share_the_limit_of_reads() {
    let server = server().await;
    *server.reads.hangs.lock() = true;
    let mut connections = Vec::new();
    for _ in 0..3 {
        connections.push(H2::connect(&server, Some(&server.proxy)).await);
    }
    let reads = futures::future::join_all((0..600).map(|n| connections[n % 3].read()).collect::<Vec<_>>());
    let object = async {
        sleep(Duration::from_millis(200)).await;
        server.proxied("hpa", &variant("llm", "llama-a100")).await
    };
    let (_, answer) = tokio::join!(reads, object);
    assert_eq!(answer.status, 429);
    golden("custom-too-many-reads", &answer);
    assert_eq!(server.proxied("hpa", &variant("llm", "llama-a100")).await.status, 200);
}

#[tokio::test]
async fn every_discovered_resource_can_be_read() {
    let server = server().await;
    for version in ["v1beta1", "v1beta2"] {
        let discovered = server.proxied("hpa", &format!("/apis/custom.metrics.k8s.io/{version}")).await;
        let discovered: serde_json::Value = serde_json::from_str(&discovered.body).unwrap();
        let resources = discovered["resources"].as_array().unwrap();
        assert_eq!(resources.len(), 16, "four metrics of four kinds");
        for resource in resources {
            let (resource, metric) = resource["name"].as_str().unwrap().split_once('/').unwrap();
            let path = object(version, "llm", resource, "*", metric);
            let answer = server.proxied("hpa", &path).await;
            // The variants of the fixture have Deployments as their scale targets.
            let is_used = resource.starts_with("variantautoscalings") || resource.starts_with("deployments");
            let says = if is_used { "MetricValueList" } else { "as its scale target" };
            assert_eq!(answer.status, if is_used { 200 } else { 404 }, "{path}");
            assert!(answer.body.contains(says), "{path}: {}", answer.body);
        }
    }
}
