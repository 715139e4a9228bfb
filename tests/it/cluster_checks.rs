//! What people are told: the check of the `caBundle` against what is really shown, and events.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use wva::cluster::pki::apiservice;
use wva::cluster::pki::self_check::{CONDITION, CaMetrics, Parts};
use wva::cluster::{ApiServiceWatch, Events, SelfCheck};
use wva::engine::SystemClock;
use wva_core::VariantId;

use crate::cluster::cluster;
use crate::cluster_certificates::{events, ours};
use crate::cluster_store::{SERVICES, Store, Write};
use crate::serve::client::Captured;
use crate::serve::pki::{Authority, Leaf, Subject};

/// How long a check on loopback may take.
const SOON: Duration = Duration::from_secs(5);
const CONFIRM: Duration = Duration::from_millis(200);

fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    #[expect(clippy::disallowed_methods, reason = "app spawns it; here the test is the app")]
    tokio::spawn(task);
}

/// A server that shows `leaf`, and nothing else.
async fn showing(leaf: &Leaf) -> SocketAddr {
    showing_at("127.0.0.1:0".parse().unwrap(), leaf).await
}

async fn showing_at(address: SocketAddr, leaf: &Leaf) -> SocketAddr {
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

/// The check of what `address` shows; its metrics.
fn check(store: &Store, address: SocketAddr, own_files: bool) -> Arc<Registry> {
    let mut registry = Registry::default();
    let events = events(&store.client(), &mut registry);
    check_with(store, address, own_files, events, registry)
}

fn check_with(
    store: &Store,
    address: SocketAddr,
    own_files: bool,
    events: Events,
    mut registry: Registry,
) -> Arc<Registry> {
    let client = store.client();
    let (watching, known) = ApiServiceWatch::new(client.clone(), ours());
    spawn(watching.run(CancellationToken::new()));
    let (publish, certificates) = watch::channel(None);
    let parts = Parts {
        settings: ours(),
        address,
        own_files,
        known,
        certificates,
        events,
        metrics: CaMetrics::register(&mut registry),
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

fn service() -> String {
    format!("{SERVICES}/{}", apiservice::NAME)
}

fn bundle(store: &Store, pem: &str) {
    let bundle = serde_json::to_value(ByteString(pem.as_bytes().to_vec())).unwrap();
    store.change(&service(), |service| service["spec"]["caBundle"] = bundle);
}

fn condition(store: &Store) -> Option<Value> {
    let service = store.get(&service())?;
    let conditions = service["status"]["conditions"].as_array()?.clone();
    conditions.into_iter().find(|condition| condition["type"] == CONDITION)
}

fn says(store: &Store, status: &str) -> Option<Value> {
    condition(store).filter(|condition| condition["status"] == status)
}

fn told(store: &Store) -> Vec<Write> {
    store.writes("/apis/events.k8s.io/v1")
}

fn shown(registry: &Registry) -> String {
    let mut text = String::new();
    encode(&mut text, registry).unwrap();
    text
}

fn valid(registry: &Registry, value: u8) -> bool {
    shown(registry)
        .contains(&format!("wva_apiservice_ca_bundle_valid{{apiservice=\"{}\"}} {value}\n", apiservice::NAME))
}

fn leaf(authority: &Authority, name: &str) -> Leaf {
    authority.issue(&Subject { names: &[name], ..Subject::default() })
}

#[tokio::test]
async fn a_wrong_bundle_is_a_condition_an_event_and_a_metric_and_so_is_its_repair() {
    let (right, wrong) = (Authority::new("right"), Authority::new("wrong"));
    let store = Store::installed();
    store.change(&service(), |service| {
        service["status"]["conditions"] = json!([{ "type": "Available", "status": "True" }]);
    });
    bundle(&store, &wrong.pem());
    let registry = check(&store, showing(&leaf(&right, "wva.wva.svc")).await, true);
    let condition = store.until(SOON, |store| says(store, "False")).await;
    assert_eq!(condition["reason"], "UnknownAuthority");
    let message = condition["message"].as_str().unwrap();
    let probe =
        "tls: failed to verify certificate: x509: certificate signed by unknown authority; put the CA";
    assert!(message.starts_with(probe), "{message}");
    assert!(valid(&registry, 0), "{}", shown(&registry));
    let event = store.until(SOON, |store| told(store).pop()).await;
    assert_eq!(
        event.path, "/apis/events.k8s.io/v1/namespaces/default/events",
        "where cluster objects have theirs"
    );
    assert_eq!(
        (&event.body["type"], &event.body["reason"]),
        (&json!("Warning"), &json!("CABundleNotVerified"))
    );
    assert_eq!(event.body["regarding"]["uid"], "uid-v1beta1");

    bundle(&store, &format!("{}{}", wrong.pem(), right.pem()));
    let condition = store.until(SOON, |store| says(store, "True")).await;
    assert_eq!(condition["reason"], "Verified");
    assert!(valid(&registry, 1));
    let event = store.until(SOON, |store| told(store).into_iter().nth(1)).await;
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
async fn a_certificate_for_another_name_says_which_names_it_has() {
    let right = Authority::new("right");
    let store = Store::installed();
    bundle(&store, &right.pem());
    check(&store, showing(&leaf(&right, "localhost")).await, true);
    let condition = store.until(SOON, |store| says(store, "False")).await;
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
    check(&store, showing(&leaf(&Authority::new("right"), "wva.wva.svc")).await, true);
    let condition = store.until(SOON, |store| says(store, "False")).await;
    let message = condition["message"].as_str().unwrap();
    assert!(message.starts_with("spec.caBundle is empty, so"), "{message}");
}

#[tokio::test]
async fn no_verification_at_all_is_said_and_is_no_failure() {
    let store = Store::installed();
    store.change(&service(), |service| service["spec"]["insecureSkipTLSVerify"] = json!(true));
    let registry = check(&store, showing(&leaf(&Authority::new("right"), "wva.wva.svc")).await, true);
    let condition = store.until(SOON, |store| says(store, "Unknown")).await;
    assert_eq!(condition["reason"], "InsecureSkipTLSVerify");
    assert!(valid(&registry, 1));
}

#[tokio::test]
async fn what_is_repaired_at_once_is_not_told() {
    let (right, wrong) = (Authority::new("right"), Authority::new("wrong"));
    let store = Store::installed();
    bundle(&store, &wrong.pem());
    let registry = check(&store, showing(&leaf(&right, "wva.wva.svc")).await, false);
    let broken = async {
        while !valid(&registry, 0) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, broken).await.unwrap();
    bundle(&store, &right.pem());
    store.until(SOON, |store| says(store, "True")).await;
    sleep(2 * CONFIRM).await;
    assert!(told(&store).is_empty(), "{:?}", told(&store));
}

#[tokio::test]
async fn an_api_service_of_somebody_else_is_not_judged() {
    let store = Store::new().with_service(apiservice::NAME, "keda");
    let registry = check(&store, showing(&leaf(&Authority::new("right"), "wva.wva.svc")).await, true);
    sleep(3 * CONFIRM).await;
    assert!(store.writes("").is_empty());
    assert!(!shown(&registry).contains("wva_apiservice_ca_bundle_valid{"));
}

#[tokio::test]
async fn what_listens_on_every_address_is_looked_at_by_ipv4_where_there_is_no_ipv6() {
    let right = Authority::new("right");
    let store = Store::installed();
    bundle(&store, &right.pem());
    // Listens as such a machine has it: nobody is at `::1`.
    let port = showing(&leaf(&right, "wva.wva.svc")).await.port();
    check(&store, SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port), true);
    store.until(SOON, |store| says(store, "True")).await;
}

#[tokio::test]
async fn who_cannot_look_for_long_says_so_once_and_claims_nothing() {
    let (log, _guard) = Captured::log(tracing::Level::INFO);
    let right = Authority::new("right");
    let store = Store::installed();
    bundle(&store, &right.pem());
    // A port that nobody listens on.
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let registry = check(&store, address, true);
    let condition = store.until(SOON, |store| says(store, "Unknown")).await;
    assert_eq!(condition["reason"], "CannotLook");
    let message = condition["message"].as_str().unwrap();
    assert!(message.contains("cannot be looked at") && message.contains("refused"), "{message}");
    assert!(!shown(&registry).contains("wva_apiservice_ca_bundle_valid{"), "{}", shown(&registry));
    sleep(4 * CONFIRM).await;
    assert_eq!(log.lines("cannot be looked at").len(), 1, "{:?}", log.lines("APIService"));
    assert_eq!(store.writes(&service()).len(), 1);
    assert!(told(&store).is_empty(), "nothing is wrong with the bundle that anybody knows of");

    showing_at(address, &leaf(&right, "wva.wva.svc")).await;
    store.until(SOON, |store| says(store, "True")).await;
    assert!(valid(&registry, 1));
}

#[tokio::test]
async fn what_was_said_of_an_api_service_is_taken_back_once_when_it_goes_to_another_program() {
    let (right, wrong) = (Authority::new("right"), Authority::new("wrong"));
    let store = Store::installed();
    bundle(&store, &wrong.pem());
    let registry = check(&store, showing(&leaf(&right, "wva.wva.svc")).await, true);
    store.until(SOON, |store| says(store, "False")).await;
    store.change(&service(), |service| service["spec"]["service"]["name"] = json!("keda"));
    let taken_back = |store: &Store| {
        let writes = store.writes(&service());
        writes.into_iter().filter(|write| write.body["status"]["conditions"] == json!([])).collect::<Vec<_>>()
    };
    let write = store.until(SOON, |store| taken_back(store).pop()).await;
    assert!(write.path.ends_with("/status"), "{}", write.path);
    assert!(write.query.split('&').any(|part| part == "fieldManager=wva-ca-check"), "{}", write.query);
    assert_eq!(write.body["metadata"]["uid"], "uid-v1beta1");
    // Whoever has it now may be another installation of ours, with a condition of its own.
    store.change(&service(), |service| service["metadata"]["labels"] = json!({ "a": "b" }));
    sleep(3 * CONFIRM).await;
    assert_eq!(taken_back(&store).len(), 1);
    assert!(!shown(&registry).contains("wva_apiservice_ca_bundle_valid{"));
}

#[tokio::test]
async fn only_when_nothing_points_to_us_is_the_missing_api_service_told() {
    let [_, first, second] = apiservice::NAMES;
    let address = showing(&leaf(&Authority::new("right"), "wva.wva.svc")).await;
    for (store, lines) in [
        (Store::new(), 1),
        (Store::new().with_service(first, "wva").with_service(second, "wva"), 0),
        (Store::new().with_service(first, "keda"), 1),
    ] {
        let (log, _guard) = Captured::log(tracing::Level::WARN);
        check(&store, address, true);
        sleep(CONFIRM).await;
        let told = log.lines("does not exist: install the chart");
        assert_eq!(told.len(), lines, "{told:?}");
    }
}

// ---- events

#[tokio::test]
async fn what_readers_cause_keeps_no_event_about_certificates_out() {
    let (_client, _writes, reader, _stop) = cluster().await;
    let (store, mut registry) = (Store::installed(), Registry::default());
    let (events, writer) = Events::new(store.client(), reader, "a".into(), &mut registry);
    let (chat, b) = (VariantId::new("llm", "chat"), VariantId::new("llm", "b"));
    for n in 0..1000 {
        events.adds_up(&format!("m{n}"), "model=m", &[&chat, &b]);
    }
    let address = showing(&leaf(&Authority::new("right"), "localhost")).await;
    check_with(&store, address, true, events, registry);
    store.until(SOON, |store| says(store, "False")).await;
    spawn(writer.run(CancellationToken::new()));
    let first = store.until(SOON, |store| told(store).into_iter().next()).await;
    assert_eq!(first.body["reason"], "CABundleNotVerified", "and it goes first");
}

#[tokio::test]
async fn an_event_for_which_there_was_no_room_is_tried_again_and_the_log_is_not_repeated() {
    let (log, _guard) = Captured::log(tracing::Level::WARN);
    let (_client, _writes, reader, _stop) = cluster().await;
    let (store, mut registry) = (Store::installed(), Registry::default());
    let (events, writer) = Events::new(store.client(), reader, "a".into(), &mut registry);
    drop(writer); // nothing is taken any more
    let address = showing(&leaf(&Authority::new("right"), "localhost")).await;
    let registry = check_with(&store, address, true, events, registry);
    store.until(SOON, |store| says(store, "False")).await;
    // A change of whatever kind is a reason to look again; our own condition was the first.
    store.change(&service(), |service| service["metadata"]["labels"] = json!({ "a": "b" }));
    let tried = async {
        while ["0", "1"].iter().any(|n| shown(&registry).contains(&format!("wva_events_lost_total {n}\n"))) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, tried).await.expect("tried again");
    assert_eq!(log.lines("failed to verify certificate").len(), 1);
}

/// What tells events about the variant `llm/chat`, and what is written of them.
async fn teller(registry: &mut Registry) -> (Events, tokio::sync::mpsc::Receiver<crate::cluster::Asked>) {
    let (client, writes, reader, _stop) = cluster().await;
    let (events, writer) = Events::new(client, reader, "a".into(), registry);
    spawn(writer.run(CancellationToken::new()));
    (events, writes)
}

#[tokio::test]
async fn an_hpa_that_would_add_up_is_told_of_once_a_metric_however_many_selectors_are_tried() {
    let mut registry = Registry::default();
    let (events, mut writes) = teller(&mut registry).await;
    let ids: Vec<_> = (0..10)
        .map(|n| VariantId::new("llm", &if n == 0 { "chat".to_owned() } else { format!("chat-{n}") }))
        .collect();
    let variants: Vec<_> = ids.iter().collect();
    for _ in 0..3 {
        events.adds_up("wva_desired_replicas", "model=m", &variants);
    }
    let event = crate::cluster::next(&mut writes).await;
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
         chat-3, chat-4, chat-5, chat-6, chat-7 and 2 more): an HPA adds their numbers up. Select one with \
         variant_name=NAME"
    );
    for n in 0..1000 {
        events.adds_up("wva_desired_replicas", &format!("a!={n}"), &variants);
    }
    events.adds_up("wva_current_replicas", "model=m", &variants);
    let other = crate::cluster::next(&mut writes).await;
    assert!(other.body["note"].as_str().unwrap().starts_with("wva_current_replicas"), "{}", other.body);
    crate::cluster::silence(&mut writes).await;
    events.adds_up("wva_desired_replicas", "model=m", &[&VariantId::new("llm", "unknown")]);
    crate::cluster::silence(&mut writes).await;
}

#[tokio::test]
async fn an_event_that_is_refused_is_counted_and_nothing_else() {
    let store = Store::installed();
    store.forbid("/apis/events.k8s.io");
    let registry = check(&store, showing(&leaf(&Authority::new("right"), "localhost")).await, true);
    store.until(SOON, |store| says(store, "False")).await;
    let counted = async {
        while !shown(&registry).contains("wva_events_lost_total 1\n") {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, counted).await.unwrap();
}

#[tokio::test]
async fn telling_more_than_can_be_written_waits_for_nobody() {
    let mut registry = Registry::default();
    let (client, _writes, reader, _stop) = cluster().await;
    // Nobody writes.
    let (events, _writer) = Events::new(client, reader, "a".into(), &mut registry);
    for n in 0..1000 {
        let (chat, b) = (VariantId::new("llm", "chat"), VariantId::new("llm", "b"));
        events.adds_up(&format!("m{n}"), "model=m", &[&chat, &b]);
    }
    assert!(shown(&registry).contains("wva_events_lost_total 872\n"), "{}", shown(&registry));
}
