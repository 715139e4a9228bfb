//! The check of the `caBundle` against the served certificate, and events.

use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::ByteString;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::time::sleep;
use wva::cluster::pki::apiservice;
use wva::cluster::pki::self_check::{CONDITION, CaBundleMetrics, ServedChain};
use wva::cluster::{ApiServiceWatch, EventRecorder, SelfCheck};

use super::certificates::{events, ours};
use super::*;
use crate::api_server::{ApiServer, SERVICES, Write};
use crate::serve::client::Captured;
use crate::serve::pki::{Authority, Subject};

/// How long a bad result must last.
const CONFIRM: Duration = Duration::from_millis(200);

/// A served chain: a leaf of `authority` for `name`.
fn leaf(authority: &Authority, name: &str) -> ServedChain {
    let leaf = authority.issue(&Subject { names: &[name], ..Subject::default() });
    let chain = vec![CertificateDer::from_pem_slice(leaf.certificate.as_bytes()).unwrap()];
    Arc::new(move || chain.clone())
}

/// Checks what is served; returns the metrics.
fn check(api: &ApiServer, served: ServedChain, has_own_files: bool) -> Arc<Registry> {
    let mut registry = Registry::default();
    let events = events(&api.client(), &mut registry);
    check_with(api, served, has_own_files, events, registry)
}

fn check_with(
    api: &ApiServer,
    served: ServedChain,
    has_own_files: bool,
    events: EventRecorder,
    mut registry: Registry,
) -> Arc<Registry> {
    let client = api.client();
    let (watching, apiservices) = ApiServiceWatch::new(client.clone(), ours());
    spawn(watching.run(CancellationToken::new()));
    let (publish, certificates) = watch::channel(None);
    let check = SelfCheck {
        service: ours(),
        served,
        has_own_files,
        apiservices,
        certificates,
        events,
        metrics: CaBundleMetrics::register(&mut registry),
        clock: Arc::new(SystemClock),
        confirm: CONFIRM,
        client,
    };
    spawn(async move {
        check.run(CancellationToken::new()).await;
        drop(publish);
    });
    Arc::new(registry)
}

async fn until(condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(WRITE_TIMEOUT, waiting).await.expect("in time");
}

fn service() -> String {
    format!("{SERVICES}/{}", apiservice::NAME)
}

fn set_bundle(api: &ApiServer, pem: &str) {
    let bundle = serde_json::to_value(ByteString(pem.as_bytes().to_vec())).unwrap();
    api.change(&service(), |service| service["spec"]["caBundle"] = bundle);
}

fn condition(api: &ApiServer) -> Option<Value> {
    let service = api.get(&service())?;
    let conditions = service["status"]["conditions"].as_array()?.clone();
    conditions.into_iter().find(|condition| condition["type"] == CONDITION)
}

fn condition_with(api: &ApiServer, status: &str) -> Option<Value> {
    condition(api).filter(|condition| condition["status"] == status)
}

fn written_events(api: &ApiServer) -> Vec<Write> {
    api.writes("/apis/events.k8s.io/v1")
}

fn is_valid(registry: &Registry, value: u8) -> bool {
    metrics(registry)
        .contains(&format!("wva_apiservice_ca_bundle_valid{{apiservice=\"{}\"}} {value}\n", apiservice::NAME))
}

#[tokio::test]
async fn a_wrong_ca_bundle_is_a_condition_an_event_and_a_metric_and_so_is_its_repair() {
    let right = Authority::new("right");
    let wrong = Authority::new("wrong");
    let api = ApiServer::installed();
    api.change(&service(), |service| {
        service["status"]["conditions"] = json!([{ "type": "Available", "status": "True" }]);
    });
    set_bundle(&api, &wrong.pem());
    let registry = check(&api, leaf(&right, "wva.wva.svc"), true);
    let condition = api.until(WRITE_TIMEOUT, |api| condition_with(api, "False")).await;
    assert_eq!(condition["reason"], "UnknownAuthority");
    let message = condition["message"].as_str().unwrap();
    let probe =
        "tls: failed to verify certificate: x509: certificate signed by unknown authority; put the CA";
    assert!(message.starts_with(probe), "{message}");
    assert!(is_valid(&registry, 0), "{}", metrics(&registry));
    let event = api.until(WRITE_TIMEOUT, |api| written_events(api).pop()).await;
    assert_eq!(
        event.path, "/apis/events.k8s.io/v1/namespaces/default/events",
        "where cluster objects have theirs"
    );
    assert_eq!(
        (&event.body["type"], &event.body["reason"]),
        (&json!("Warning"), &json!("CABundleNotVerified"))
    );
    assert_eq!(event.body["regarding"]["uid"], "uid-v1beta1");

    set_bundle(&api, &format!("{}{}", wrong.pem(), right.pem()));
    let condition = api.until(WRITE_TIMEOUT, |api| condition_with(api, "True")).await;
    assert_eq!(condition["reason"], "Verified");
    assert!(is_valid(&registry, 1));
    let event = api.until(WRITE_TIMEOUT, |api| written_events(api).into_iter().nth(1)).await;
    assert_eq!((&event.body["type"], &event.body["reason"]), (&json!("Normal"), &json!(CONDITION)));
    let writes = api.writes(&service());
    assert_eq!(writes.len(), 2, "one write each, nothing while nothing changes: {writes:?}");
    for write in writes {
        assert!(
            write.path.ends_with("/status")
                && write.query.split('&').any(|part| part == "fieldManager=wva-ca-check")
        );
        assert_eq!(
            write.body["status"]["conditions"].as_array().unwrap().len(),
            1,
            "nobody else's condition"
        );
    }
    let types = api.get(&service()).unwrap()["status"]["conditions"].as_array().unwrap().len();
    assert_eq!(types, 2);
}

#[tokio::test]
async fn a_result_has_its_reason_the_next_step_and_where_it_counts_the_api_servers_answer() {
    let right = Authority::new("right");
    let bundle = serde_json::to_value(ByteString(right.pem().into_bytes())).unwrap();
    let available = |status: &str| json!([{ "type": "Available", "status": status, "message": "x509: why" }]);
    for (case, name, spec, conditions, expected, messages) in [
        (
            "another name",
            "localhost",
            json!({ "caBundle": bundle }),
            available("True"),
            ("False", "WrongName", 0),
            ["certificate not valid for name \"wva.wva.svc\"", "DnsName(\"localhost\"); have the"],
        ),
        (
            "an empty bundle: the CAs of the API server's system",
            "wva.wva.svc",
            json!({}),
            json!([]),
            ("False", "NoAuthority", 0),
            ["spec.caBundle is empty, so", "; put the CA"],
        ),
        (
            "an empty bundle, and the API server says why it fails",
            "wva.wva.svc",
            json!({}),
            available("False"),
            ("False", "NoAuthority", 0),
            ["spec.caBundle is empty, so", ", and it says: x509: why; put the CA"],
        ),
        (
            "an empty bundle that the API server accepts",
            "wva.wva.svc",
            json!({}),
            available("True"),
            ("True", "Verified", 1),
            ["the API server accepts", "Available is True"],
        ),
        (
            "no verification is no failure",
            "wva.wva.svc",
            json!({ "insecureSkipTLSVerify": true }),
            json!([]),
            ("Unknown", "InsecureSkipTLSVerify", 1),
            ["spec.insecureSkipTLSVerify is true", "remove it"],
        ),
    ] {
        let api = ApiServer::installed();
        api.change(&service(), |service| {
            for (field, value) in spec.as_object().unwrap() {
                service["spec"][field] = value.clone();
            }
            service["status"]["conditions"] = conditions;
        });
        let registry = check(&api, leaf(&right, name), true);
        let (status, reason, valid) = expected;
        let condition = api.until(WRITE_TIMEOUT, |api| condition_with(api, status)).await;
        assert_eq!(condition["reason"], reason, "{case}");
        let message = condition["message"].as_str().unwrap();
        assert!(messages.iter().all(|part| message.contains(part)), "{case}: {message}");
        assert!(is_valid(&registry, valid), "{case}: {}", metrics(&registry));
    }
}

#[tokio::test]
async fn a_ca_bundle_that_is_repaired_at_once_is_not_reported() {
    let right = Authority::new("right");
    let wrong = Authority::new("wrong");
    let api = ApiServer::installed();
    set_bundle(&api, &wrong.pem());
    let registry = check(&api, leaf(&right, "wva.wva.svc"), false);
    until(|| is_valid(&registry, 0)).await;
    set_bundle(&api, &right.pem());
    api.until(WRITE_TIMEOUT, |api| condition_with(api, "True")).await;
    sleep(2 * CONFIRM).await;
    assert!(written_events(&api).is_empty(), "{:?}", written_events(&api));
}

#[tokio::test]
async fn an_apiservice_of_another_service_is_not_checked() {
    let api = ApiServer::new().with_service(apiservice::NAME, "keda");
    let registry = check(&api, leaf(&Authority::new("right"), "wva.wva.svc"), true);
    sleep(3 * CONFIRM).await;
    assert!(api.writes("").is_empty());
    assert!(!metrics(&registry).contains("wva_apiservice_ca_bundle_valid{"));
}

#[tokio::test]
async fn a_check_that_cannot_be_done_is_reported_once_without_a_result() {
    let (log, _guard) = Captured::log(tracing::Level::INFO);
    let right = Authority::new("right");
    let api = ApiServer::installed();
    set_bundle(&api, &right.pem());
    let is_loaded = Arc::new(AtomicBool::new(false));
    let (loaded, chain) = (is_loaded.clone(), leaf(&right, "wva.wva.svc"));
    let served = move || if loaded.load(Ordering::Relaxed) { chain() } else { Vec::new() };
    let registry = check(&api, Arc::new(served), true);
    let condition = api.until(WRITE_TIMEOUT, |api| condition_with(api, "Unknown")).await;
    assert_eq!(condition["reason"], "CannotLook");
    let message = condition["message"].as_str().unwrap();
    assert!(message.contains("no certificate to serve yet: look into"), "{message}");
    assert!(!metrics(&registry).contains("wva_apiservice_ca_bundle_valid{"), "{}", metrics(&registry));
    sleep(4 * CONFIRM).await;
    assert_eq!(log.lines("no certificate to serve yet").len(), 1, "{:?}", log.lines("APIService"));
    assert_eq!(api.writes(&service()).len(), 1);
    assert!(written_events(&api).is_empty(), "nothing is known to be wrong with the bundle");

    is_loaded.store(true, Ordering::Relaxed);
    api.until(WRITE_TIMEOUT, |api| condition_with(api, "True")).await;
    assert!(is_valid(&registry, 1));
}

#[tokio::test]
async fn a_condition_is_retracted_once_when_the_apiservice_goes_to_another_service() {
    let right = Authority::new("right");
    let wrong = Authority::new("wrong");
    let api = ApiServer::installed();
    set_bundle(&api, &wrong.pem());
    let registry = check(&api, leaf(&right, "wva.wva.svc"), true);
    api.until(WRITE_TIMEOUT, |api| condition_with(api, "False")).await;
    api.change(&service(), |service| service["spec"]["service"]["name"] = json!("keda"));
    let retracted = |api: &ApiServer| {
        let writes = api.writes(&service());
        writes.into_iter().filter(|write| write.body["status"]["conditions"] == json!([])).collect::<Vec<_>>()
    };
    let write = api.until(WRITE_TIMEOUT, |api| retracted(api).pop()).await;
    assert!(write.path.ends_with("/status"), "{}", write.path);
    assert!(write.query.split('&').any(|part| part == "fieldManager=wva-ca-check"), "{}", write.query);
    assert_eq!(write.body["metadata"]["uid"], "uid-v1beta1");
    // The new owner may be another installation of wva, with a condition of its own.
    api.change(&service(), |service| service["metadata"]["labels"] = json!({ "a": "b" }));
    sleep(3 * CONFIRM).await;
    assert_eq!(retracted(&api).len(), 1);
    assert!(!metrics(&registry).contains("wva_apiservice_ca_bundle_valid{"));
}

#[tokio::test]
async fn a_missing_apiservice_is_logged_only_when_none_points_to_us() {
    let [_, first, second] = apiservice::METRICS_NAMES;
    let served = leaf(&Authority::new("right"), "wva.wva.svc");
    for (api, lines) in [
        (ApiServer::new(), 1),
        (ApiServer::new().with_service(first, "wva").with_service(second, "wva"), 0),
        (ApiServer::new().with_service(first, "keda"), 1),
    ] {
        let (log, _guard) = Captured::log(tracing::Level::WARN);
        check(&api, served.clone(), true);
        sleep(CONFIRM).await;
        let logged = log.lines("does not exist: install the chart");
        assert_eq!(logged.len(), lines, "{logged:?}");
    }
}

// ---- events

#[tokio::test]
async fn events_of_reads_do_not_displace_events_about_certificates() {
    let (_client, _writes, reader) = cluster().await;
    let api = ApiServer::installed();
    let mut registry = Registry::default();
    let (events, writer) = EventRecorder::new(api.client(), reader, "a".into(), &mut registry);
    let chat = VariantId::new("llm", "chat");
    let b = VariantId::new("llm", "b");
    for n in 0..1000 {
        events.record_ambiguous_selector(&format!("m{n}"), "model=m", &[&chat, &b]);
    }
    let served = leaf(&Authority::new("right"), "localhost");
    check_with(&api, served, true, events, registry);
    api.until(WRITE_TIMEOUT, |api| condition_with(api, "False")).await;
    spawn(writer.run(CancellationToken::new()));
    let first = api.until(WRITE_TIMEOUT, |api| written_events(api).into_iter().next()).await;
    assert_eq!(first.body["reason"], "CABundleNotVerified", "and it goes first");
}

#[tokio::test]
async fn an_event_without_room_is_retried_and_the_log_line_is_not_repeated() {
    let (log, _guard) = Captured::log(tracing::Level::WARN);
    let (_client, _writes, reader) = cluster().await;
    let api = ApiServer::installed();
    let mut registry = Registry::default();
    let (events, writer) = EventRecorder::new(api.client(), reader, "a".into(), &mut registry);
    drop(writer); // the queue is closed
    let right = Authority::new("right");
    set_bundle(&api, &right.pem());
    let served = leaf(&right, "localhost");
    let registry = check_with(&api, served, true, events, registry);
    api.until(WRITE_TIMEOUT, |api| condition_with(api, "False")).await;
    // Any change is a reason to check again; our own condition was the first.
    api.change(&service(), |service| service["metadata"]["labels"] = json!({ "a": "b" }));
    let lost_at_most_once =
        || ["0", "1"].iter().any(|n| metrics(&registry).contains(&format!("wva_events_lost_total {n}\n")));
    until(|| !lost_at_most_once()).await;
    assert_eq!(log.lines("failed to verify certificate").len(), 1);
}

/// A recorder of events about the variant `llm/chat`, and their writes.
async fn recorder(registry: &mut Registry) -> (EventRecorder, Writes) {
    let (client, writes, reader) = cluster().await;
    let (events, writer) = EventRecorder::new(client, reader, "a".into(), registry);
    spawn(writer.run(CancellationToken::new()));
    (events, writes)
}

#[tokio::test]
async fn an_ambiguous_selector_is_one_event_a_metric_however_many_selectors_are_tried() {
    let mut registry = Registry::default();
    let (events, mut writes) = recorder(&mut registry).await;
    let ids: Vec<_> = (0..10)
        .map(|n| VariantId::new("llm", &if n == 0 { "chat".to_owned() } else { format!("chat-{n}") }))
        .collect();
    let variants: Vec<_> = ids.iter().collect();
    for _ in 0..3 {
        events.record_ambiguous_selector("wva_desired_replicas", "model=m", &variants);
    }
    let event = next(&mut writes).await;
    assert_eq!(event.path, "/apis/events.k8s.io/v1/namespaces/llm/events");
    assert_eq!(
        (&event.body["regarding"]["name"], &event.body["regarding"]["uid"]),
        (&json!("chat"), &json!("u-1"))
    );
    assert_eq!(
        (&event.body["type"], &event.body["reason"]),
        (&json!("Warning"), &json!("SelectorMatchesSeveral"))
    );
    assert_eq!(
        event.body["note"],
        "wva_desired_replicas was read with selector \"model=m\", which matches 10 variants (chat, chat-1, chat-2, \
         chat-3, chat-4, chat-5, chat-6, chat-7 and 2 more): an HPA adds up their values. Select one variant \
         with variant_name=NAME"
    );
    for n in 0..1000 {
        events.record_ambiguous_selector("wva_desired_replicas", &format!("a!={n}"), &variants);
    }
    events.record_ambiguous_selector("wva_current_replicas", "model=m", &variants);
    let other = next(&mut writes).await;
    assert!(other.body["note"].as_str().unwrap().starts_with("wva_current_replicas"), "{}", other.body);
    silence(&mut writes).await;
    events.record_ambiguous_selector("wva_desired_replicas", "model=m", &[&VariantId::new("llm", "unknown")]);
    silence(&mut writes).await;
}

#[tokio::test]
async fn a_refused_event_is_counted() {
    let api = ApiServer::installed();
    api.forbid("/apis/events.k8s.io");
    let registry = check(&api, leaf(&Authority::new("right"), "localhost"), true);
    api.until(WRITE_TIMEOUT, |api| condition_with(api, "False")).await;
    until(|| metrics(&registry).contains("wva_events_lost_total 1\n")).await;
}

#[tokio::test]
async fn recording_more_than_can_be_written_does_not_wait() {
    let mut registry = Registry::default();
    let (client, _writes, reader) = cluster().await;
    // Nothing is written.
    let (events, _writer) = EventRecorder::new(client, reader, "a".into(), &mut registry);
    for n in 0..1000 {
        let chat = VariantId::new("llm", "chat");
        let b = VariantId::new("llm", "b");
        events.record_ambiguous_selector(&format!("m{n}"), "model=m", &[&chat, &b]);
    }
    assert!(metrics(&registry).contains("wva_events_lost_total 872\n"), "{}", metrics(&registry));
}
