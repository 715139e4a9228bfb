//! The check of the `caBundle` against the served certificate, and events.

use std::net::{Ipv6Addr, SocketAddr};

use k8s_openapi::ByteString;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use wva::cluster::pki::apiservice;
use wva::cluster::pki::self_check::{CONDITION, CaBundleMetrics};
use wva::cluster::{ApiServiceWatch, EventRecorder, SelfCheck, SelfCheckParts};

use super::certificates::{events, ours};
use super::store::{SERVICES, Store, Write};
use super::*;
use crate::serve::client::Captured;
use crate::serve::pki::{Authority, Leaf, Subject};

/// How long a bad result must last.
const CONFIRM: Duration = Duration::from_millis(200);

/// The address of a server with the certificate `leaf` and nothing else.
async fn serving(leaf: &Leaf) -> SocketAddr {
    serving_at("127.0.0.1:0".parse().unwrap(), leaf).await
}

async fn serving_at(address: SocketAddr, leaf: &Leaf) -> SocketAddr {
    let chain =
        CertificateDer::pem_slice_iter(leaf.certificate.as_bytes()).collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let _ = acceptor.accept(tcp).await;
        }
    });
    address
}

/// Checks what is served at `address`; returns the metrics.
fn check(store: &Store, address: SocketAddr, has_own_files: bool) -> Arc<Registry> {
    let mut registry = Registry::default();
    let events = events(&store.client(), &mut registry);
    check_with(store, address, has_own_files, events, registry)
}

fn check_with(
    store: &Store,
    address: SocketAddr,
    has_own_files: bool,
    events: EventRecorder,
    mut registry: Registry,
) -> Arc<Registry> {
    let client = store.client();
    let (watching, known) = ApiServiceWatch::new(client.clone(), ours());
    spawn(watching.run(CancellationToken::new()));
    let (publish, certificates) = watch::channel(None);
    let parts = SelfCheckParts {
        service: ours(),
        address,
        has_own_files,
        apiservices: known,
        certificates,
        events,
        metrics: CaBundleMetrics::register(&mut registry),
        clock: Arc::new(SystemClock),
        confirm: CONFIRM,
        client,
    };
    spawn(async move {
        SelfCheck::new(parts).run(CancellationToken::new()).await;
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
    timeout(SOON, waiting).await.expect("in time");
}

fn service() -> String {
    format!("{SERVICES}/{}", apiservice::NAME)
}

fn set_bundle(store: &Store, pem: &str) {
    let bundle = serde_json::to_value(ByteString(pem.as_bytes().to_vec())).unwrap();
    store.change(&service(), |service| service["spec"]["caBundle"] = bundle);
}

fn condition(store: &Store) -> Option<Value> {
    let service = store.get(&service())?;
    let conditions = service["status"]["conditions"].as_array()?.clone();
    conditions.into_iter().find(|condition| condition["type"] == CONDITION)
}

fn condition_with(store: &Store, status: &str) -> Option<Value> {
    condition(store).filter(|condition| condition["status"] == status)
}

fn written_events(store: &Store) -> Vec<Write> {
    store.writes("/apis/events.k8s.io/v1")
}

fn is_valid(registry: &Registry, value: u8) -> bool {
    metrics(registry)
        .contains(&format!("wva_apiservice_ca_bundle_valid{{apiservice=\"{}\"}} {value}\n", apiservice::NAME))
}

fn leaf(authority: &Authority, name: &str) -> Leaf {
    authority.issue(&Subject { names: &[name], ..Subject::default() })
}

#[tokio::test]
async fn a_wrong_ca_bundle_is_a_condition_an_event_and_a_metric_and_so_is_its_repair() {
    let right = Authority::new("right");
    let wrong = Authority::new("wrong");
    let store = Store::installed();
    store.change(&service(), |service| {
        service["status"]["conditions"] = json!([{ "type": "Available", "status": "True" }]);
    });
    set_bundle(&store, &wrong.pem());
    let registry = check(&store, serving(&leaf(&right, "wva.wva.svc")).await, true);
    let condition = store.until(SOON, |store| condition_with(store, "False")).await;
    assert_eq!(condition["reason"], "UnknownAuthority");
    let message = condition["message"].as_str().unwrap();
    let probe =
        "tls: failed to verify certificate: x509: certificate signed by unknown authority; put the CA";
    assert!(message.starts_with(probe), "{message}");
    assert!(is_valid(&registry, 0), "{}", metrics(&registry));
    let event = store.until(SOON, |store| written_events(store).pop()).await;
    assert_eq!(
        event.path, "/apis/events.k8s.io/v1/namespaces/default/events",
        "where cluster objects have theirs"
    );
    assert_eq!(
        (&event.body["type"], &event.body["reason"]),
        (&json!("Warning"), &json!("CABundleNotVerified"))
    );
    assert_eq!(event.body["regarding"]["uid"], "uid-v1beta1");

    set_bundle(&store, &format!("{}{}", wrong.pem(), right.pem()));
    let condition = store.until(SOON, |store| condition_with(store, "True")).await;
    assert_eq!(condition["reason"], "Verified");
    assert!(is_valid(&registry, 1));
    let event = store.until(SOON, |store| written_events(store).into_iter().nth(1)).await;
    assert_eq!((&event.body["type"], &event.body["reason"]), (&json!("Normal"), &json!(CONDITION)));
    let writes = store.writes(&service());
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
    let types = store.get(&service()).unwrap()["status"]["conditions"].as_array().unwrap().len();
    assert_eq!(types, 2);
}

#[tokio::test]
async fn a_certificate_for_another_name_is_reported_with_its_names() {
    let right = Authority::new("right");
    let store = Store::installed();
    set_bundle(&store, &right.pem());
    check(&store, serving(&leaf(&right, "localhost")).await, true);
    let condition = store.until(SOON, |store| condition_with(store, "False")).await;
    assert_eq!(condition["reason"], "WrongName");
    let message = condition["message"].as_str().unwrap();
    assert!(
        message.contains("x509: certificate is valid for localhost, not wva.wva.svc; have the"),
        "{message}"
    );
}

#[tokio::test]
async fn an_empty_bundle_is_judged_by_the_authorities_of_the_machine() {
    let store = Store::installed();
    check(&store, serving(&leaf(&Authority::new("right"), "wva.wva.svc")).await, true);
    let condition = store.until(SOON, |store| condition_with(store, "False")).await;
    let message = condition["message"].as_str().unwrap();
    assert!(message.starts_with("spec.caBundle is empty, so"), "{message}");
}

#[tokio::test]
async fn an_empty_ca_bundle_is_accepted_when_the_api_server_says_that_it_is() {
    let store = Store::installed();
    let available = json!([{ "type": "Available", "status": "True" }]);
    store.change(&service(), |service| service["status"]["conditions"] = available);
    let registry = check(&store, serving(&leaf(&Authority::new("public"), "wva.wva.svc")).await, true);
    store.until(SOON, |store| condition_with(store, "True")).await;
    assert!(is_valid(&registry, 1));
}

#[tokio::test]
async fn insecure_skip_tls_verify_is_reported_and_is_no_failure() {
    let store = Store::installed();
    store.change(&service(), |service| service["spec"]["insecureSkipTLSVerify"] = json!(true));
    let registry = check(&store, serving(&leaf(&Authority::new("right"), "wva.wva.svc")).await, true);
    let condition = store.until(SOON, |store| condition_with(store, "Unknown")).await;
    assert_eq!(condition["reason"], "InsecureSkipTLSVerify");
    assert!(is_valid(&registry, 1));
}

#[tokio::test]
async fn a_ca_bundle_that_is_repaired_at_once_is_not_reported() {
    let right = Authority::new("right");
    let wrong = Authority::new("wrong");
    let store = Store::installed();
    set_bundle(&store, &wrong.pem());
    let registry = check(&store, serving(&leaf(&right, "wva.wva.svc")).await, false);
    until(|| is_valid(&registry, 0)).await;
    set_bundle(&store, &right.pem());
    store.until(SOON, |store| condition_with(store, "True")).await;
    sleep(2 * CONFIRM).await;
    assert!(written_events(&store).is_empty(), "{:?}", written_events(&store));
}

#[tokio::test]
async fn an_apiservice_of_another_service_is_not_checked() {
    let store = Store::new().with_service(apiservice::NAME, "keda");
    let registry = check(&store, serving(&leaf(&Authority::new("right"), "wva.wva.svc")).await, true);
    sleep(3 * CONFIRM).await;
    assert!(store.writes("").is_empty());
    assert!(!metrics(&registry).contains("wva_apiservice_ca_bundle_valid{"));
}

#[tokio::test]
async fn a_listener_on_every_address_is_reached_by_ipv4_without_ipv6() {
    let right = Authority::new("right");
    let store = Store::installed();
    set_bundle(&store, &right.pem());
    // As on a machine without IPv6: nothing listens at `::1`.
    let port = serving(&leaf(&right, "wva.wva.svc")).await.port();
    check(&store, SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port), true);
    store.until(SOON, |store| condition_with(store, "True")).await;
}

#[tokio::test]
async fn a_check_that_cannot_be_done_is_reported_once_without_a_result() {
    let (log, _guard) = Captured::log(tracing::Level::INFO);
    let right = Authority::new("right");
    let store = Store::installed();
    set_bundle(&store, &right.pem());
    // A port without a listener.
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let registry = check(&store, address, true);
    let condition = store.until(SOON, |store| condition_with(store, "Unknown")).await;
    assert_eq!(condition["reason"], "CannotLook");
    let message = condition["message"].as_str().unwrap();
    assert!(message.contains("cannot be looked at") && message.contains("refused"), "{message}");
    assert!(!metrics(&registry).contains("wva_apiservice_ca_bundle_valid{"), "{}", metrics(&registry));
    sleep(4 * CONFIRM).await;
    assert_eq!(log.lines("cannot be looked at").len(), 1, "{:?}", log.lines("APIService"));
    assert_eq!(store.writes(&service()).len(), 1);
    assert!(written_events(&store).is_empty(), "nothing is known to be wrong with the bundle");

    serving_at(address, &leaf(&right, "wva.wva.svc")).await;
    store.until(SOON, |store| condition_with(store, "True")).await;
    assert!(is_valid(&registry, 1));
}

#[tokio::test]
async fn a_condition_is_retracted_once_when_the_apiservice_goes_to_another_service() {
    let right = Authority::new("right");
    let wrong = Authority::new("wrong");
    let store = Store::installed();
    set_bundle(&store, &wrong.pem());
    let registry = check(&store, serving(&leaf(&right, "wva.wva.svc")).await, true);
    store.until(SOON, |store| condition_with(store, "False")).await;
    store.change(&service(), |service| service["spec"]["service"]["name"] = json!("keda"));
    let retracted = |store: &Store| {
        let writes = store.writes(&service());
        writes.into_iter().filter(|write| write.body["status"]["conditions"] == json!([])).collect::<Vec<_>>()
    };
    let write = store.until(SOON, |store| retracted(store).pop()).await;
    assert!(write.path.ends_with("/status"), "{}", write.path);
    assert!(write.query.split('&').any(|part| part == "fieldManager=wva-ca-check"), "{}", write.query);
    assert_eq!(write.body["metadata"]["uid"], "uid-v1beta1");
    // The new owner may be another installation of wva, with a condition of its own.
    store.change(&service(), |service| service["metadata"]["labels"] = json!({ "a": "b" }));
    sleep(3 * CONFIRM).await;
    assert_eq!(retracted(&store).len(), 1);
    assert!(!metrics(&registry).contains("wva_apiservice_ca_bundle_valid{"));
}

#[tokio::test]
async fn a_missing_apiservice_is_logged_only_when_none_points_to_us() {
    let [_, first, second] = apiservice::NAMES;
    let address = serving(&leaf(&Authority::new("right"), "wva.wva.svc")).await;
    for (store, lines) in [
        (Store::new(), 1),
        (Store::new().with_service(first, "wva").with_service(second, "wva"), 0),
        (Store::new().with_service(first, "keda"), 1),
    ] {
        let (log, _guard) = Captured::log(tracing::Level::WARN);
        check(&store, address, true);
        sleep(CONFIRM).await;
        let logged = log.lines("does not exist: install the chart");
        assert_eq!(logged.len(), lines, "{logged:?}");
    }
}

// ---- events

#[tokio::test]
async fn events_of_reads_do_not_displace_events_about_certificates() {
    let (_client, _writes, reader, _stop) = cluster().await;
    let store = Store::installed();
    let mut registry = Registry::default();
    let (events, writer) = EventRecorder::new(store.client(), reader, "a".into(), &mut registry);
    let chat = VariantId::new("llm", "chat");
    let b = VariantId::new("llm", "b");
    for n in 0..1000 {
        events.record_ambiguous_selector(&format!("m{n}"), "model=m", &[&chat, &b]);
    }
    let address = serving(&leaf(&Authority::new("right"), "localhost")).await;
    check_with(&store, address, true, events, registry);
    store.until(SOON, |store| condition_with(store, "False")).await;
    spawn(writer.run(CancellationToken::new()));
    let first = store.until(SOON, |store| written_events(store).into_iter().next()).await;
    assert_eq!(first.body["reason"], "CABundleNotVerified", "and it goes first");
}

#[tokio::test]
async fn an_event_without_room_is_retried_and_the_log_line_is_not_repeated() {
    let (log, _guard) = Captured::log(tracing::Level::WARN);
    let (_client, _writes, reader, _stop) = cluster().await;
    let store = Store::installed();
    let mut registry = Registry::default();
    let (events, writer) = EventRecorder::new(store.client(), reader, "a".into(), &mut registry);
    drop(writer); // the queue is closed
    let right = Authority::new("right");
    set_bundle(&store, &right.pem());
    let address = serving(&leaf(&right, "localhost")).await;
    let registry = check_with(&store, address, true, events, registry);
    store.until(SOON, |store| condition_with(store, "False")).await;
    // Any change is a reason to check again; our own condition was the first.
    store.change(&service(), |service| service["metadata"]["labels"] = json!({ "a": "b" }));
    let lost_at_most_once =
        || ["0", "1"].iter().any(|n| metrics(&registry).contains(&format!("wva_events_lost_total {n}\n")));
    until(|| !lost_at_most_once()).await;
    assert_eq!(log.lines("failed to verify certificate").len(), 1);
}

/// A recorder of events about the variant `llm/chat`, and their writes.
async fn recorder(registry: &mut Registry) -> (EventRecorder, Writes) {
    let (client, writes, reader, _stop) = cluster().await;
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
    let store = Store::installed();
    store.forbid("/apis/events.k8s.io");
    let registry = check(&store, serving(&leaf(&Authority::new("right"), "localhost")).await, true);
    store.until(SOON, |store| condition_with(store, "False")).await;
    until(|| metrics(&registry).contains("wva_events_lost_total 1\n")).await;
}

#[tokio::test]
async fn recording_more_than_can_be_written_does_not_wait() {
    let mut registry = Registry::default();
    let (client, _writes, reader, _stop) = cluster().await;
    // Nothing is written.
    let (events, _writer) = EventRecorder::new(client, reader, "a".into(), &mut registry);
    for n in 0..1000 {
        let chat = VariantId::new("llm", "chat");
        let b = VariantId::new("llm", "b");
        events.record_ambiguous_selector(&format!("m{n}"), "model=m", &[&chat, &b]);
    }
    assert!(metrics(&registry).contains("wva_events_lost_total 872\n"), "{}", metrics(&registry));
}
