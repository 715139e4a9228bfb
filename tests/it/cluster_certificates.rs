//! The shared certificates and the `caBundle`, as several instances keep them together.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use k8s_openapi::ByteString;
use prometheus_client::registry::Registry;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use wva::cluster::certificates::{ROTATE_ANNOTATION, ROTATED_ANNOTATION};
use wva::cluster::{
    ApiServiceWatch, Bundle, CaBundle, Certificates, ClusterWatch, Events, apiservice, certificates,
};
use wva::engine::SystemClock;

use crate::cluster_store::{SECRET, SERVICES, Store};

const SETTLE: Duration = Duration::from_secs(60);
/// No more than the steps' settling times and some seconds: nothing else may delay a rotation.
const SOON: Duration = Duration::from_secs(150);

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
    certificates::Settings {
        namespace: "wva".into(),
        secret: "wva-tls".into(),
        service: "wva".into(),
        settle: SETTLE,
    }
}

/// An instance, as the composition root puts it together; it ends with the token.
fn instance(store: &Store) -> (watch::Receiver<Option<Bundle>>, CancellationToken) {
    let (client, stop, clock) = (store.client(), CancellationToken::new(), Arc::new(SystemClock));
    let (watching, known) = ApiServiceWatch::new(client.clone());
    let (publish, bundles) = watch::channel(None);
    let certificates = Certificates::new(client.clone(), settings(), clock.clone(), Some(known.clone()));
    let events = events(&client, &mut Registry::default());
    let keeper = CaBundle::new(client, ours(), bundles.clone(), known, events, clock);
    spawn(watching.run(stop.clone()));
    spawn(certificates.run(publish, stop.clone()));
    spawn(keeper.run(stop.clone()));
    (bundles, stop)
}

async fn first(bundles: &mut watch::Receiver<Option<Bundle>>) -> Bundle {
    timeout(SOON, bundles.wait_for(Option::is_some)).await.unwrap().unwrap().clone().unwrap()
}

fn text(object: &Value, field: &str) -> String {
    let bytes: ByteString = serde_json::from_value(object[field].clone()).unwrap();
    String::from_utf8(bytes.0).unwrap()
}

fn carried(store: &Store) -> Option<String> {
    let service = store.get(&format!("{SERVICES}/{}", apiservice::NAME))?;
    let spec = &service["spec"];
    (!spec["caBundle"].is_null()).then(|| text(spec, "caBundle"))
}

fn authorities(bundle: &str) -> usize {
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

fn ask(store: &Store, value: &str) {
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
