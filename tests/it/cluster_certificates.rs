//! The shared certificates and the `caBundle`, as several instances keep them together.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::Method;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use wva::cluster::pki::certificates::{ROTATE_ANNOTATION, ROTATED_ANNOTATION};
use wva::cluster::pki::{apiservice, certificates};
use wva::cluster::{ApiServiceWatch, Bundle, CaBundle, Certificates, ClusterWatch, Events};
use wva::engine::{Clock, SystemClock};
use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;

use crate::cluster_store::{SECRET, SERVICES, Store};
use crate::serve::client::Captured;

const SETTLE: Duration = Duration::from_secs(60);
/// No more than the steps' settling times and some seconds: nothing else may delay a rotation.
pub(crate) const SOON: Duration = Duration::from_secs(150);

fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    #[expect(clippy::disallowed_methods, reason = "app spawns it; here the test is the app")]
    tokio::spawn(task);
}

pub(crate) fn ours() -> apiservice::Settings {
    apiservice::Settings { namespace: "wva".into(), service: "wva".into() }
}

pub(crate) fn events(client: &kube::Client, registry: &mut Registry) -> Events {
    let (_, cluster) = ClusterWatch::new(client.clone(), wva::cluster::watch::Settings::default());
    let (events, writer) = Events::new(client.clone(), cluster, "a".into(), registry);
    spawn(writer.run(CancellationToken::new()));
    events
}

fn settings() -> certificates::Settings {
    settings_of("wva")
}

fn settings_of(service: &str) -> certificates::Settings {
    certificates::Settings {
        namespace: "wva".into(),
        secret: "wva-tls".into(),
        service: service.into(),
        settle: SETTLE,
    }
}

/// An instance, as the composition root puts it together; it ends with the token.
pub(crate) fn instance(store: &Store) -> (watch::Receiver<Option<Bundle>>, CancellationToken) {
    instance_of("wva", store, Arc::new(SystemClock))
}

/// One that is reached by Service `service`.
fn instance_of(
    service: &str,
    store: &Store,
    clock: Arc<dyn Clock>,
) -> (watch::Receiver<Option<Bundle>>, CancellationToken) {
    let (client, stop, settings) = (store.client(), CancellationToken::new(), settings_of(service));
    let ours = apiservice::Settings { service: service.into(), ..ours() };
    let (watching, known) = ApiServiceWatch::new(client.clone(), ours.clone());
    let (publish, bundles) = watch::channel(None);
    let certificates = Certificates::new(client.clone(), settings, clock.clone(), Some(known.clone()));
    let events = events(&client, &mut Registry::default());
    let keeper = CaBundle::new(client, ours, bundles.clone(), known, events, clock);
    spawn(watching.run(stop.clone()));
    spawn(certificates.run(publish, stop.clone()));
    spawn(keeper.run(stop.clone()));
    (bundles, stop)
}

pub(crate) async fn first(bundles: &mut watch::Receiver<Option<Bundle>>) -> Bundle {
    timeout(SOON, bundles.wait_for(Option::is_some)).await.unwrap().unwrap().clone().unwrap()
}

pub(crate) fn text(object: &Value, field: &str) -> String {
    let bytes: ByteString = serde_json::from_value(object[field].clone()).unwrap();
    String::from_utf8(bytes.0).unwrap()
}

pub(crate) fn carried(store: &Store) -> Option<String> {
    let service = store.get(&format!("{SERVICES}/{}", apiservice::NAME))?;
    let spec = &service["spec"];
    (!spec["caBundle"].is_null()).then(|| text(spec, "caBundle"))
}

pub(crate) fn authorities(bundle: &str) -> usize {
    bundle.matches("BEGIN CERTIFICATE").count()
}

/// What was written to the Secret: how many CAs are trusted, whether one is being announced, and the leaf.
fn steps(store: &Store) -> Vec<(usize, bool, String)> {
    let one = |data: &Value| {
        let announcing = !data["next-ca.key"].is_null();
        (authorities(&text(data, "ca.crt")), announcing, text(data, "tls.crt"))
    };
    let puts = store.writes(SECRET).into_iter().filter(|write| write.method == Method::PUT);
    puts.map(|write| one(&write.body["data"])).collect()
}

pub(crate) fn ask(store: &Store, value: &str) {
    store.change(SECRET, |secret| secret["metadata"]["annotations"][ROTATE_ANNOTATION] = json!(value));
}

#[tokio::test(start_paused = true)]
async fn the_ca_bundle_is_the_only_field_that_is_written_and_the_first_instance_makes_the_secret() {
    let store = Store::installed();
    let (_bundles, _stop) = instance(&store);
    store.until(SOON, carried).await;
    let made = store.writes("/api/v1/namespaces/wva/secrets").remove(0);
    assert_eq!(made.method, Method::POST);
    let data = made.body["data"].as_object().unwrap();
    assert_eq!(data.keys().collect::<Vec<_>>(), ["ca.crt", "ca.key", "tls.crt", "tls.key"]);
    let applied = store.writes(SERVICES).remove(0);
    assert_eq!(applied.method, Method::PATCH);
    assert!(applied.query.split('&').any(|part| part == "fieldManager=wva-ca"), "{}", applied.query);
    assert_eq!(applied.body["spec"].as_object().unwrap().keys().collect::<Vec<_>>(), ["caBundle"]);
    assert_eq!(applied.body["spec"]["caBundle"], data["ca.crt"]);
    assert_eq!(applied.body["metadata"]["uid"], "uid-v1beta1", "never made anew");
}

#[tokio::test(start_paused = true)]
async fn an_api_service_of_somebody_else_is_never_touched() {
    let store = Store::new().with_service(apiservice::NAME, "keda");
    let (mut bundles, _stop) = instance(&store);
    first(&mut bundles).await;
    sleep(SOON).await;
    assert!(store.writes(SERVICES).is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_custom_metrics_apis_get_the_same_bundle_where_they_are_ours() {
    let [external, first, second] = apiservice::NAMES;
    let store = Store::installed().with_service(first, "wva").with_service(second, "prometheus-adapter");
    let (_bundles, _stop) = instance(&store);
    store.until(SOON, |store| (store.writes(SERVICES).len() == 2).then_some(())).await;
    sleep(SOON).await;
    let mut written: Vec<_> = store.writes(SERVICES).into_iter().map(|write| write.path).collect();
    written.sort();
    assert_eq!(written, [format!("{SERVICES}/{first}"), format!("{SERVICES}/{external}")]);
}

#[tokio::test(start_paused = true)]
async fn two_instances_that_disagree_do_not_write_the_ca_bundle_back_and_forth() {
    let store = Store::installed();
    let (_bundles, _stop) = instance(&store);
    let started = Instant::now();
    // Whatever is written, another instance has overwritten it when one looks.
    while started.elapsed() < Duration::from_secs(21) {
        sleep(Duration::from_millis(100)).await;
        if carried(&store).is_some_and(|bundle| bundle != "other") {
            let path = format!("{SERVICES}/{}", apiservice::NAME);
            store.change(&path, |service| service["spec"]["caBundle"] = json!("b3RoZXI="));
        }
    }
    let writes = store.writes(SERVICES).len();
    assert!((2..=5).contains(&writes), "{writes} writes in 21 s");
}

#[tokio::test(start_paused = true)]
async fn asked_for_a_new_ca_two_instances_announce_it_serve_with_it_and_drop_the_old_one() {
    let store = Store::installed();
    let ((mut one, _stop), (mut other, _other)) = (instance(&store), instance(&store));
    let old = first(&mut one).await;
    assert_eq!(old, first(&mut other).await, "the second adopts what the first made");
    let before = store.until(SOON, carried).await;
    assert_eq!((before.clone(), authorities(&before)), (old.trust(), 1));

    ask(&store, "please");
    let started = Instant::now();
    store.until(SOON, |store| carried(store).filter(|bundle| authorities(bundle) == 2)).await;
    assert!(started.elapsed() < Duration::from_secs(7), "announced at once");
    assert_eq!(one.borrow().as_ref().unwrap().cert, old.cert, "the old leaf meanwhile");
    sleep(SETTLE - Duration::from_secs(1)).await;
    assert_eq!(one.borrow().as_ref().unwrap().cert, old.cert, "until everybody has had time to see it");
    store.until(SOON, |store| (!carried(store)?.starts_with(&before)).then_some(())).await;
    store.until(SOON, |store| carried(store).filter(|bundle| authorities(bundle) == 1)).await;
    assert!(started.elapsed() >= 2 * SETTLE, "{:?}", started.elapsed());

    let steps = steps(&store);
    let shape: Vec<_> =
        steps.iter().map(|(trusted, announcing, leaf)| (*trusted, *announcing, *leaf == old.cert)).collect();
    assert_eq!(shape, [(2, true, true), (2, false, false), (1, false, false)], "each step once");
    for bundles in [&mut one, &mut other] {
        let settled = |bundle: &Option<Bundle>| {
            bundle.as_ref().is_some_and(|b| authorities(&b.trust()) == 1 && b.cert != old.cert)
        };
        timeout(SOON, bundles.wait_for(settled)).await.unwrap().unwrap();
    }
    let secret = store.get(SECRET).unwrap();
    assert_eq!(secret["metadata"]["annotations"][ROTATED_ANNOTATION], "please");
    let writes = store.writes(SECRET).len();
    sleep(SOON * 2).await;
    assert_eq!(store.writes(SECRET).len(), writes, "a wish is heeded once");
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_dies_in_the_middle_leaves_a_rotation_that_any_other_ends() {
    let store = Store::installed();
    let (mut one, stop) = instance(&store);
    let old = first(&mut one).await;
    ask(&store, "1");
    store.until(SOON, |store| carried(store).filter(|bundle| authorities(bundle) == 2)).await;
    stop.cancel();
    sleep(SOON).await;
    assert_eq!(steps(&store).len(), 1, "nobody is there");

    let (mut other, stop) = instance(&store);
    let announced = first(&mut other).await;
    assert_eq!((announced.cert.clone(), authorities(&announced.trust())), (old.cert.clone(), 2));
    sleep(SETTLE - Duration::from_secs(1)).await;
    assert_eq!(steps(&store).len(), 1, "it waits anew: it has seen nothing itself");
    store.until(SOON, |store| (steps(store).len() == 2).then_some(())).await;
    stop.cancel();

    let (_third, _stop) = instance(&store);
    store.until(SOON, |store| (steps(store).len() == 3).then_some(())).await;
    store.until(SOON, |store| carried(store).filter(|bundle| authorities(bundle) == 1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_ca_that_cannot_be_announced_never_serves() {
    let store = Store::installed();
    let (mut bundles, _stop) = instance(&store);
    let old = first(&mut bundles).await;
    store.until(SOON, carried).await;
    store.forbid(SERVICES);
    ask(&store, "1");
    sleep(SOON * 10).await;
    let now = bundles.borrow().clone().unwrap();
    assert_eq!(steps(&store).len(), 1, "announced among the instances only");
    assert_eq!(now.cert, old.cert);
}

#[tokio::test(start_paused = true)]
async fn a_ca_bundle_that_was_broken_in_the_middle_starts_the_wait_anew() {
    let store = Store::installed();
    let (mut bundles, _stop) = instance(&store);
    first(&mut bundles).await;
    store.until(SOON, carried).await;
    ask(&store, "1");
    store.until(SOON, |store| carried(store).filter(|bundle| authorities(bundle) == 2)).await;
    sleep(SETTLE / 2).await;
    let path = format!("{SERVICES}/{}", apiservice::NAME);
    store.change(&path, |service| service["spec"]["caBundle"] = json!("b3RoZXI="));
    store.until(SOON, |store| carried(store).filter(|bundle| authorities(bundle) == 2)).await;
    sleep(SETTLE - Duration::from_secs(1)).await;
    assert_eq!(steps(&store).len(), 1);
    store.until(SOON, |store| (steps(store).len() == 2).then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_is_deleted_is_made_anew_without_a_break() {
    let store = Store::installed();
    let (mut bundles, _stop) = instance(&store);
    let old = first(&mut bundles).await;
    store.until(SOON, carried).await;
    store.delete(SECRET);
    let anew = store.until(SOON, |store| store.get(SECRET)).await;
    assert_eq!(text(&anew["data"], "tls.crt"), old.cert, "still the leaf that everybody verifies");
    assert_eq!(authorities(&text(&anew["data"], "ca.crt")), 2, "and on the way to a new CA");
}

/// What an earlier version left: one CA without a time in its name.
fn early(names: &[String]) -> Value {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "wva-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let ca = params.self_signed(&key).unwrap();
    let leaf_key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(names).unwrap();
    let leaf = leaf.signed_by(&leaf_key, &Issuer::from_params(&params, &key)).unwrap();
    let encoded = |pem: String| serde_json::to_value(ByteString(pem.into_bytes())).unwrap();
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": { "name": "wva-tls", "namespace": "wva" },
        "data": {
            "ca.crt": encoded(ca.pem()), "ca.key": encoded(key.serialize_pem()),
            "tls.crt": encoded(leaf.pem()), "tls.key": encoded(leaf_key.serialize_pem()),
        }
    })
}

#[tokio::test(start_paused = true)]
async fn a_secret_of_an_earlier_version_is_adopted_as_it_is_and_can_be_rotated() {
    let store = Store::installed();
    store.put(SECRET, early(&settings().names()));
    let before = store.get(SECRET).unwrap();
    let (mut bundles, _stop) = instance(&store);
    let adopted = first(&mut bundles).await;
    assert_eq!(adopted.cert, text(&before["data"], "tls.crt"));
    let bundle = store.until(SOON, carried).await;
    assert_eq!(bundle.trim_end(), text(&before["data"], "ca.crt").trim_end());
    assert!(store.writes(SECRET).is_empty());
    ask(&store, "1");
    store.until(SOON * 2, |store| (steps(store).len() == 3).then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn a_leaf_that_lacks_a_name_is_renewed_by_the_same_ca_at_once() {
    let store = Store::installed();
    store.put(SECRET, early(&["wva.wva.svc".to_owned()]));
    let ca = text(&store.get(SECRET).unwrap()["data"], "ca.crt");
    let (mut bundles, _stop) = instance(&store);
    let renewed = first(&mut bundles).await;
    assert_eq!(renewed.trust().trim_end(), ca.trim_end());
    assert_eq!(steps(&store).len(), 1);
}

/// A clock that is moved by hand.
struct Moved(Mutex<Timestamp>);

impl Clock for Moved {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(sleep(duration))
    }
}

#[tokio::test(start_paused = true)]
async fn a_running_instance_renews_its_leaf_a_month_before_the_end_and_nobody_notices() {
    let store = Store::installed();
    let began: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
    let clock = Arc::new(Moved(Mutex::new(began)));
    let day = |days: i64| began + SignedDuration::from_hours(24 * days);
    let (mut bundles, _stop) = instance_of("wva", &store, clock.clone());
    let old = first(&mut bundles).await;
    let carried_before = store.until(SOON, carried).await;
    let an_hour = Duration::from_secs(3601);
    *clock.0.lock() = day(334);
    sleep(an_hour).await;
    assert!(steps(&store).is_empty(), "not before it is due");
    *clock.0.lock() = day(336);
    sleep(an_hour).await;
    assert_eq!(steps(&store).len(), 1);
    let new = bundles.borrow().clone().unwrap();
    assert_ne!(new.cert, old.cert, "what is shown from now on");
    let (_, pem) = parse_x509_pem(new.cert.as_bytes()).unwrap();
    let ends = pem.parse_x509().unwrap().validity().not_after.timestamp();
    assert!(ends > day(336 + 360).as_second(), "for another year");
    assert_eq!(carried(&store), Some(carried_before), "by the same authority");
}

fn names(cert: &str) -> Vec<String> {
    let (_, pem) = parse_x509_pem(cert.as_bytes()).unwrap();
    let cert = pem.parse_x509().unwrap();
    let san = cert.subject_alternative_name().unwrap().unwrap();
    let dns = san.value.general_names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        _ => None,
    });
    dns.collect()
}

#[tokio::test(start_paused = true)]
async fn instances_of_before_and_after_a_renaming_agree_on_one_leaf_with_the_names_of_both() {
    let store = Store::installed();
    let (mut before, _before) = instance_of("wva", &store, Arc::new(SystemClock));
    first(&mut before).await;
    let (mut after, _after) = instance_of("renamed", &store, Arc::new(SystemClock));
    first(&mut after).await;
    sleep(SOON * 4).await;
    assert_eq!(steps(&store).len(), 1, "renewed once, not against each other");
    let shown = [&before, &after].map(|bundles| bundles.borrow().clone().unwrap().cert);
    assert_eq!(shown[0], shown[1]);
    for name in settings().names().iter().chain(&settings_of("renamed").names()) {
        assert!(names(&shown[0]).contains(name), "{name}: {:?}", names(&shown[0]));
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_keeps_writing_another_leaf_is_answered_once_a_minute_at_most() {
    let store = Store::installed();
    let theirs = early(&["other.wva.svc".to_owned()]);
    store.put(SECRET, theirs.clone());
    let (_bundles, _stop) = instance(&store);
    for _ in 0..130 {
        sleep(Duration::from_secs(1)).await;
        store.put(SECRET, theirs.clone());
    }
    let renewals = steps(&store).len();
    assert!((2..=3).contains(&renewals), "{renewals} in 130 s");
}

#[tokio::test(start_paused = true)]
async fn a_step_that_cannot_be_taken_is_told_once_and_taken_when_it_can_be() {
    let (log, _guard) = Captured::log(tracing::Level::INFO);
    let store = Store::installed();
    let (mut bundles, _stop) = instance(&store);
    first(&mut bundles).await;
    store.until(SOON, carried).await;
    ask(&store, "1");
    store.until(SOON, |store| carried(store).filter(|bundle| authorities(bundle) == 2)).await;
    store.forbid(SECRET);
    sleep(SETTLE + Duration::from_secs(120)).await;
    assert_eq!(steps(&store).len(), 1);
    let lines = log.lines("the serving certificate stays as it is");
    assert_eq!(lines.len(), 1, "{} lines", lines.len());
    store.permit();
    store.until(SOON * 2, |store| (steps(store).len() == 3).then_some(())).await;
    assert_eq!(log.lines("is kept again").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn external_metrics_of_another_program_are_ordinary_beside_custom_metrics_of_ours() {
    let [external, first, second] = apiservice::NAMES;
    let keda = || Store::new().with_service(external, "keda");
    for (store, lines) in [(keda(), 1), (keda().with_service(first, "wva").with_service(second, "wva"), 0)] {
        let (log, _guard) = Captured::log(tracing::Level::WARN);
        let (_bundles, stop) = instance(&store);
        sleep(SOON).await;
        stop.cancel();
        let told = log.lines("only one metrics server can have it");
        assert_eq!(told.len(), lines, "{told:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn with_certificates_of_the_user_s_the_instances_rotate_their_own_and_no_bundle_is_written() {
    let store = Store::installed();
    let (publish, mut bundles) = watch::channel(None);
    let certificates = Certificates::new(store.client(), settings(), Arc::new(SystemClock), None);
    spawn(certificates.run(publish, CancellationToken::new()));
    first(&mut bundles).await;
    ask(&store, "1");
    store.until(SOON, |store| (steps(store).len() == 3).then_some(())).await;
    assert!(store.writes(SERVICES).is_empty());
}
