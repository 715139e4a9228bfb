//! `decisions.wva.llmd.ai`: why each variant has its number, as a read-only resource.

use std::sync::Arc;

use serde_json::Value;
use wva::engine::{ClusterView, Origin, Published};
use wva_core::VariantId;
use wva_core::decision::{GapCause, SignalGap};
use wva_core::model::InvalidVariant;

use super::client::Answer;
use super::golden::golden;
use super::pki::Authority;
use super::test_server::{TestServer, led_by, sample};

const ROOT: &str = "/apis/decisions.wva.llmd.ai/v1alpha1";
const TABLE: &str = "Accept: application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const ALICE: &str = "X-Remote-User: alice";
const ANYONE: &str = "X-Remote-Group: system:authenticated";

fn path(namespace: &str, name: &str) -> String {
    format!("{ROOT}/namespaces/{namespace}/explanations/{name}")
}

async fn read(server: &TestServer, path: &str, accept: &str) -> Answer {
    server.send(Some(&server.proxy), &format!("GET {path}"), &[ALICE, ANYONE, accept]).await
}

fn json(answer: &Answer) -> Value {
    serde_json::from_str(&answer.body).expect(&answer.body)
}

fn states(list: &Value) -> Vec<(&str, &str, &str)> {
    let items = list["items"].as_array().unwrap();
    items
        .iter()
        .map(|item| {
            let text = |pointer: &str| item.pointer(pointer).unwrap().as_str().unwrap();
            (text("/metadata/name"), text("/state"), text("/reason"))
        })
        .collect()
}

#[tokio::test]
async fn explanations_are_these_bytes() {
    let server = TestServer::new().await;
    for (name, path, accept) in [
        ("explanation", path("llm", "llama-a100"), "Accept: application/json"),
        ("explanation-yaml", path("gone", "gone"), "Accept: application/yaml"),
        ("explanation-table", path("old", "old"), TABLE),
        ("explanation-unknown", path("llm", "nope"), "Accept: application/json"),
        ("explanation-protobuf", path("llm", "llama-a100"), "Accept: application/vnd.kubernetes.protobuf"),
        (
            "explanations-list",
            format!("{ROOT}/namespaces/pair/explanations?limit=500"),
            "Accept: application/json",
        ),
        ("explanations-table", format!("{ROOT}/explanations?limit=500"), TABLE),
        ("explanations-watch", format!("{ROOT}/explanations?watch=true"), "Accept: application/json"),
    ] {
        let audit = "Audit-Id: 8d0f1a52-golden";
        let answer =
            server.send(Some(&server.proxy), &format!("GET {path}"), &[ALICE, ANYONE, accept, audit]).await;
        golden(name, &answer);
    }
}

#[tokio::test]
async fn every_variant_is_listed_and_what_is_not_decided_yet_is_no_error() {
    let server = TestServer::new().await;
    let id = VariantId::new("llm", "fresh");
    let invalid = InvalidVariant { id, problem: "x".into(), is_model_unknown: true };
    *server.reads.view.lock() = Arc::new(ClusterView { invalid: vec![invalid], ..ClusterView::default() });
    let list = json(&read(&server, &format!("{ROOT}/namespaces/llm/explanations"), "Accept: */*").await);
    assert_eq!(
        states(&list),
        [("fresh", "NotDecidedYet", "NotDecidedYet"), ("llama-a100", "Decided", "SourceDown")]
    );
    let answer = read(&server, &path("llm", "fresh"), "Accept: */*").await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let explanation = json(&answer);
    assert_eq!(explanation["state"], "NotDecidedYet");
    assert!(explanation["text"].as_str().unwrap().starts_with("llm/fresh: not decided yet"));
    // By field, as kubectl asks for one name.
    let selected = format!("{ROOT}/explanations?fieldSelector=metadata.name%3Dold");
    let list = json(&read(&server, &selected, "Accept: */*").await);
    assert_eq!(states(&list), [("old", "TooOld", "SourceDown")]);
    let list = json(&read(&server, &format!("{ROOT}/explanations?labelSelector=a%3Db"), "Accept: */*").await);
    assert!(states(&list).is_empty());
}

#[tokio::test]
async fn before_the_first_listing_it_is_not_known_which_variants_exist() {
    let server = TestServer::with(|options| options.has_synced = false).await;
    server.publish(Published::empty());
    for path in [format!("{ROOT}/explanations"), path("llm", "llama-a100")] {
        assert_eq!(read(&server, &path, "Accept: */*").await.status, 503, "{path}");
    }
    server.synced.send_replace(true);
    assert_eq!(
        json(&read(&server, &format!("{ROOT}/explanations"), "Accept: */*").await)["items"],
        serde_json::json!([])
    );
}

#[tokio::test]
async fn reading_needs_the_right_to_get_one_or_to_list_all() {
    let server = TestServer::new().await;
    let mallory = async |path: &str, method: &str| {
        let lines = ["X-Remote-User: mallory", ANYONE];
        server.send(Some(&server.proxy), &format!("{method} {path}"), &lines).await
    };
    let refused = mallory(&path("llm", "llama-a100"), "GET").await;
    assert_eq!(refused.status, 403);
    let expected = "explanations.decisions.wva.llmd.ai \"llama-a100\" is forbidden: User \"mallory\" cannot get resource \
                    \"explanations\" in API group \"decisions.wva.llmd.ai\" in the namespace \"llm\"";
    assert_eq!(refused.message(), expected);
    let refused = mallory(&format!("{ROOT}/explanations"), "GET").await;
    let expected = "explanations.decisions.wva.llmd.ai is forbidden: User \"mallory\" cannot list resource \
                    \"explanations\" in API group \"decisions.wva.llmd.ai\" at the cluster scope";
    assert_eq!(refused.message(), expected);
    assert_eq!(mallory(&path("llm", "llama-a100"), "DELETE").await.status, 403);
    let delete = format!("DELETE {}", path("llm", "llama-a100"));
    let deleted = server.send(Some(&server.proxy), &delete, &[ALICE, ANYONE]).await;
    assert_eq!(deleted.status, 405, "nothing can be written");
}

#[tokio::test]
async fn every_instance_returns_the_leaders_explanation_and_without_it_the_last_state() {
    let shared_ca = Arc::new(Authority::new("wva"));
    let leader = TestServer::with(|options| options.shared_ca = shared_ca.clone()).await;
    let follower = TestServer::with(|options| options.shared_ca = shared_ca).await;
    let mut stored = sample();
    stored.origin = Origin::Restored;
    stored.decisions.retain(|id, _| &*id.namespace == "llm");
    follower.publish(stored);
    follower.leadership.send_replace(led_by(Some(format!("https://{}", leader.address))));
    let paths =
        [path("llm", "llama-a100"), path("pair", "two"), path("llm", "nope"), format!("{ROOT}/explanations")];
    for (path, accept) in paths.iter().flat_map(|path| {
        [
            "Accept: application/json",
            "Accept: application/yaml",
            TABLE,
            "Accept: application/vnd.kubernetes.protobuf, */*",
        ]
        .map(|accept| (path, accept))
    }) {
        let (direct, forwarded) = (read(&leader, path, accept).await, read(&follower, path, accept).await);
        assert_eq!(forwarded.status, direct.status, "{path} {accept}");
        if direct.status != 200 && accept.contains("protobuf") {
            // The leader is asked for a representation that explanations have.
            assert_eq!(forwarded.header("content-type"), Some("application/json"), "{path} {accept}");
            continue;
        }
        assert_eq!(forwarded.body, direct.body, "{path} {accept}");
        assert_eq!(forwarded.header("content-type"), direct.header("content-type"), "{path} {accept}");
    }
    follower.leadership.send_replace(led_by(None));
    let last = read(&follower, &path("llm", "llama-a100"), "Accept: */*").await;
    assert!(last.header("warning").is_some_and(|warning| warning.contains("last state")), "{}", last.head);
    let text = json(&last)["text"].as_str().unwrap().to_owned();
    assert!(text.contains("the last state that was stored") && text.contains("not kept"), "{text}");
}

#[tokio::test]
async fn why_a_number_is_not_another_one_names_what_is_missing() {
    let server = TestServer::new().await;
    let mut published = sample();
    let decision = published.decisions.get_mut(&VariantId::new("llm", "llama-a100")).unwrap();
    decision.gap = Some(SignalGap {
        cause: GapCause::NotScraped,
        pods: 1,
        serving: 2,
        missing: Vec::new(),
        contradicted: Vec::new(),
        fallback: None,
        warning: None,
    });
    server.publish(published);
    let explanation = json(&read(&server, &path("llm", "llama-a100"), "Accept: */*").await);
    let lower = explanation["whyNot"]["lower"].as_array().unwrap();
    assert_eq!(lower[0]["kind"], "MissingSignal", "{lower:?}");
    let text = explanation["whyNot"]["text"].as_str().unwrap();
    assert!(text.starts_with("llm/llama-a100: 5 (SourceDown), 2 now. It is not higher ("), "{text}");
    assert!(text.contains("It is not lower (MissingSignal: NotScraped"), "{text}");
    let old = json(&read(&server, &path("old", "old"), "Accept: */*").await);
    assert_eq!(old["whyNot"]["higher"][0]["kind"], "MissingSignal");
    assert!(old["whyNot"]["text"].as_str().unwrap().contains("is not answered any more"));
    let gone = json(&read(&server, &path("gone", "gone"), "Accept: */*").await);
    assert!(gone["whyNot"]["text"].as_str().unwrap().contains("no number (TargetNotFound)"), "{gone}");
}
