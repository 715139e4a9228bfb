//! The shared certificates and the `caBundle`, as several instances keep them together.

use futures::future::BoxFuture;
use http::Method;
use k8s_openapi::ByteString;
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::time::sleep;
use wva::cluster::pki::apiservice;
use wva::cluster::pki::certificates::{ROTATE_ANNOTATION, ROTATED_ANNOTATION};
use wva::cluster::{
    ApiServiceWatch, CaBundleWriter, CertificateBundle, CertificateManager, CertificateSettings,
    EventRecorder, ServiceRef,
};
use wva::engine::Clock;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;

use super::*;
use crate::api_server::{ApiServer, SERVICES};
use crate::serve::client::Captured;

/// The path of the Secret.
pub(super) const SECRET: &str = "/api/v1/namespaces/wva/secrets/wva-tls";
const SETTLE: Duration = Duration::from_secs(60);
/// The settling times of the steps and some seconds: nothing else may delay a rotation.
pub(super) const ROTATION: Duration = Duration::from_secs(150);

pub(super) fn ours() -> ServiceRef {
    ServiceRef { namespace: "wva".into(), name: "wva".into() }
}

pub(super) fn events(client: &kube::Client, registry: &mut Registry) -> EventRecorder {
    let (_, cluster) = ClusterWatch::new(client.clone(), WatchSettings::default());
    let (events, writer) = EventRecorder::new(client.clone(), cluster, "a".into(), registry);
    spawn(writer.run(CancellationToken::new()));
    events
}

fn settings(service: &str) -> CertificateSettings {
    let service = ServiceRef { name: service.into(), ..ours() };
    CertificateSettings { secret: "wva-tls".into(), service, settle: SETTLE }
}

/// An instance, wired as in the app; it ends with the token.
pub(super) fn instance(api: &ApiServer) -> (watch::Receiver<Option<CertificateBundle>>, CancellationToken) {
    instance_of("wva", api, Arc::new(SystemClock))
}

/// An instance that is reached by Service `service`.
fn instance_of(
    service: &str,
    api: &ApiServer,
    clock: Arc<dyn Clock>,
) -> (watch::Receiver<Option<CertificateBundle>>, CancellationToken) {
    let client = api.client();
    let stop = CancellationToken::new();
    let settings = settings(service);
    let ours = settings.service.clone();
    let (watching, apiservices) = ApiServiceWatch::new(client.clone(), ours.clone());
    let (publish, bundles) = watch::channel(None);
    let certificates =
        CertificateManager::new(client.clone(), settings, clock.clone(), Some(apiservices.clone()));
    let events = events(&client, &mut Registry::default());
    let writer = CaBundleWriter::new(client, ours, bundles.clone(), apiservices, events, clock);
    spawn(watching.run(stop.clone()));
    spawn(certificates.run(publish, stop.clone()));
    spawn(writer.run(stop.clone()));
    (bundles, stop)
}

async fn first(bundles: &mut watch::Receiver<Option<CertificateBundle>>) -> CertificateBundle {
    timeout(ROTATION, bundles.wait_for(Option::is_some)).await.unwrap().unwrap().clone().unwrap()
}

pub(super) fn text(object: &Value, field: &str) -> String {
    let bytes: ByteString = serde_json::from_value(object[field].clone()).unwrap();
    String::from_utf8(bytes.0).unwrap()
}

pub(super) fn carried(api: &ApiServer) -> Option<String> {
    let service = api.get(&format!("{SERVICES}/{}", apiservice::NAME))?;
    let spec = &service["spec"];
    (!spec["caBundle"].is_null()).then(|| text(spec, "caBundle"))
}

pub(super) fn authorities(bundle: &str) -> usize {
    bundle.matches("BEGIN CERTIFICATE").count()
}

/// The writes to the Secret: how many CAs are trusted, whether one is being announced, and the leaf.
fn steps(api: &ApiServer) -> Vec<(usize, bool, String)> {
    let step = |data: &Value| {
        let announcing = !data["next-ca.key"].is_null();
        (authorities(&text(data, "ca.crt")), announcing, text(data, "tls.crt"))
    };
    let puts = api.writes(SECRET).into_iter().filter(|write| write.method == Method::PUT);
    puts.map(|write| step(&write.body["data"])).collect()
}

pub(super) fn request_rotation(api: &ApiServer, value: &str) {
    api.change(SECRET, |secret| secret["metadata"]["annotations"][ROTATE_ANNOTATION] = json!(value));
}

#[tokio::test(start_paused = true)]
async fn the_first_instance_creates_the_secret_and_writes_only_the_ca_bundle() {
    let api = ApiServer::installed();
    let (_bundles, _stop) = instance(&api);
    api.until(ROTATION, carried).await;
    let created = api.writes("/api/v1/namespaces/wva/secrets").remove(0);
    assert_eq!(created.method, Method::POST);
    let data = created.body["data"].as_object().unwrap();
    assert_eq!(data.keys().collect::<Vec<_>>(), ["ca.crt", "ca.key", "tls.crt", "tls.key"]);
    let applied = api.writes(SERVICES).remove(0);
    assert_eq!(applied.method, Method::PATCH);
    assert!(applied.query.split('&').any(|part| part == "fieldManager=wva-ca"), "{}", applied.query);
    assert_eq!(applied.body["spec"].as_object().unwrap().keys().collect::<Vec<_>>(), ["caBundle"]);
    assert_eq!(applied.body["spec"]["caBundle"], data["ca.crt"]);
    assert_eq!(applied.body["metadata"]["uid"], "uid-v1beta1", "never created anew");
}

#[tokio::test(start_paused = true)]
async fn an_apiservice_of_another_service_is_never_written() {
    let api = ApiServer::new().with_service(apiservice::NAME, "keda");
    let (mut bundles, _stop) = instance(&api);
    first(&mut bundles).await;
    sleep(ROTATION).await;
    assert!(api.writes(SERVICES).is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_custom_metrics_apis_get_the_same_bundle_where_they_are_ours() {
    let [external, first, second] = apiservice::METRICS_NAMES;
    let api = ApiServer::installed().with_service(first, "wva").with_service(second, "prometheus-adapter");
    let (_bundles, _stop) = instance(&api);
    api.until(ROTATION, |api| (api.writes(SERVICES).len() == 2).then_some(())).await;
    sleep(ROTATION).await;
    let mut written: Vec<_> = api.writes(SERVICES).into_iter().map(|write| write.path).collect();
    written.sort();
    assert_eq!(written, [format!("{SERVICES}/{first}"), format!("{SERVICES}/{external}")]);
}

#[tokio::test(start_paused = true)]
async fn the_apiservice_of_explanations_gets_the_bundle_and_takes_no_part_in_who_owns_the_metrics() {
    let (log, _guard) = Captured::log(tracing::Level::WARN);
    let api = ApiServer::new().with_service(apiservice::NAME, "keda");
    let api = api.with_service(apiservice::EXPLANATIONS_NAME, "wva");
    let (_bundles, stop) = instance(&api);
    api.until(ROTATION, |api| (!api.writes(SERVICES).is_empty()).then_some(())).await;
    sleep(ROTATION).await;
    stop.cancel();
    let mut written: Vec<_> = api.writes(SERVICES).into_iter().map(|write| write.path).collect();
    written.dedup();
    assert_eq!(written, [format!("{SERVICES}/{}", apiservice::EXPLANATIONS_NAME)]);
    assert_eq!(log.lines("only one metrics server can have it").len(), 1, "HPAs read elsewhere");
}

#[tokio::test(start_paused = true)]
async fn two_instances_that_disagree_do_not_write_the_ca_bundle_back_and_forth() {
    let api = ApiServer::installed();
    let (_bundles, _stop) = instance(&api);
    let started = Instant::now();
    // Whatever is written, another instance has overwritten it when one looks.
    while started.elapsed() < Duration::from_secs(21) {
        sleep(Duration::from_millis(100)).await;
        if carried(&api).is_some_and(|bundle| bundle != "other") {
            let path = format!("{SERVICES}/{}", apiservice::NAME);
            api.change(&path, |service| service["spec"]["caBundle"] = json!("b3RoZXI="));
        }
    }
    let writes = api.writes(SERVICES).len();
    assert!((2..=5).contains(&writes), "{writes} writes in 21 s");
}

#[tokio::test(start_paused = true)]
async fn a_requested_ca_is_announced_then_serves_then_replaces_the_old_one() {
    let api = ApiServer::installed();
    let ((mut first_bundles, _stop), (mut second_bundles, _stop_second)) = (instance(&api), instance(&api));
    let old = first(&mut first_bundles).await;
    assert_eq!(old, first(&mut second_bundles).await, "the second adopts what the first made");
    let before = api.until(ROTATION, carried).await;
    assert_eq!((before.clone(), authorities(&before)), (old.trust(), 1));

    request_rotation(&api, "please");
    let started = Instant::now();
    api.until(ROTATION, |api| carried(api).filter(|bundle| authorities(bundle) == 2)).await;
    assert!(started.elapsed() < Duration::from_secs(7), "announced at once");
    assert_eq!(first_bundles.borrow().as_ref().unwrap().cert, old.cert, "the old leaf meanwhile");
    sleep(SETTLE - Duration::from_secs(1)).await;
    assert_eq!(
        first_bundles.borrow().as_ref().unwrap().cert,
        old.cert,
        "until everybody has had time to see it"
    );
    api.until(ROTATION, |api| (!carried(api)?.starts_with(&before)).then_some(())).await;
    api.until(ROTATION, |api| carried(api).filter(|bundle| authorities(bundle) == 1)).await;
    assert!(started.elapsed() >= 2 * SETTLE, "{:?}", started.elapsed());

    let steps = steps(&api);
    let shape: Vec<_> =
        steps.iter().map(|(trusted, announcing, leaf)| (*trusted, *announcing, *leaf == old.cert)).collect();
    assert_eq!(shape, [(2, true, true), (2, false, false), (1, false, false)], "each step once");
    for bundles in [&mut first_bundles, &mut second_bundles] {
        let settled = |bundle: &Option<CertificateBundle>| {
            bundle.as_ref().is_some_and(|b| authorities(&b.trust()) == 1 && b.cert != old.cert)
        };
        timeout(ROTATION, bundles.wait_for(settled)).await.unwrap().unwrap();
    }
    let secret = api.get(SECRET).unwrap();
    assert_eq!(secret["metadata"]["annotations"][ROTATED_ANNOTATION], "please");
    let writes = api.writes(SECRET).len();
    sleep(ROTATION * 2).await;
    assert_eq!(api.writes(SECRET).len(), writes, "a request is handled once");
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_dies_in_a_rotation_leaves_it_to_any_other() {
    let api = ApiServer::installed();
    let (mut bundles, stop) = instance(&api);
    let old = first(&mut bundles).await;
    request_rotation(&api, "1");
    api.until(ROTATION, |api| carried(api).filter(|bundle| authorities(bundle) == 2)).await;
    stop.cancel();
    sleep(ROTATION).await;
    assert_eq!(steps(&api).len(), 1, "no instance runs");

    let (mut bundles, stop) = instance(&api);
    let announced = first(&mut bundles).await;
    assert_eq!((announced.cert.clone(), authorities(&announced.trust())), (old.cert.clone(), 2));
    sleep(SETTLE - Duration::from_secs(1)).await;
    assert_eq!(steps(&api).len(), 1, "it waits anew: it has seen nothing itself");
    api.until(ROTATION, |api| (steps(api).len() == 2).then_some(())).await;
    stop.cancel();

    let (_third, _stop) = instance(&api);
    api.until(ROTATION, |api| (steps(api).len() == 3).then_some(())).await;
    api.until(ROTATION, |api| carried(api).filter(|bundle| authorities(bundle) == 1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_ca_that_cannot_be_announced_never_serves() {
    let api = ApiServer::installed();
    let (mut bundles, _stop) = instance(&api);
    let old = first(&mut bundles).await;
    api.until(ROTATION, carried).await;
    api.forbid(SERVICES);
    request_rotation(&api, "1");
    sleep(ROTATION * 10).await;
    let now = bundles.borrow().clone().unwrap();
    assert_eq!(steps(&api).len(), 1, "announced among the instances only");
    assert_eq!(now.cert, old.cert);
}

#[tokio::test(start_paused = true)]
async fn a_ca_bundle_that_is_overwritten_in_a_rotation_restarts_the_settling_time() {
    let api = ApiServer::installed();
    let (mut bundles, _stop) = instance(&api);
    first(&mut bundles).await;
    api.until(ROTATION, carried).await;
    request_rotation(&api, "1");
    api.until(ROTATION, |api| carried(api).filter(|bundle| authorities(bundle) == 2)).await;
    sleep(SETTLE / 2).await;
    let path = format!("{SERVICES}/{}", apiservice::NAME);
    api.change(&path, |service| service["spec"]["caBundle"] = json!("b3RoZXI="));
    api.until(ROTATION, |api| carried(api).filter(|bundle| authorities(bundle) == 2)).await;
    sleep(SETTLE - Duration::from_secs(1)).await;
    assert_eq!(steps(&api).len(), 1);
    api.until(ROTATION, |api| (steps(api).len() == 2).then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_secret_is_restored_without_an_interruption() {
    let api = ApiServer::installed();
    let (mut bundles, _stop) = instance(&api);
    let old = first(&mut bundles).await;
    api.until(ROTATION, carried).await;
    api.delete(SECRET);
    let restored = api.until(ROTATION, |api| api.get(SECRET)).await;
    assert_eq!(text(&restored["data"], "tls.crt"), old.cert, "still the leaf that everybody verifies");
    assert_eq!(authorities(&text(&restored["data"], "ca.crt")), 2, "and on the way to a new CA");
}

/// A Secret of an earlier version: one CA without a time in its name.
fn earlier_secret(names: &[String]) -> Value {
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
async fn a_secret_of_an_earlier_version_is_adopted_and_can_be_rotated() {
    let api = ApiServer::installed();
    api.put(SECRET, earlier_secret(&settings("wva").names()));
    let before = api.get(SECRET).unwrap();
    let (mut bundles, _stop) = instance(&api);
    let adopted = first(&mut bundles).await;
    assert_eq!(adopted.cert, text(&before["data"], "tls.crt"));
    let bundle = api.until(ROTATION, carried).await;
    assert_eq!(bundle.trim_end(), text(&before["data"], "ca.crt").trim_end());
    assert!(api.writes(SECRET).is_empty());
    request_rotation(&api, "1");
    api.until(ROTATION * 2, |api| (steps(api).len() == 3).then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn a_leaf_that_lacks_a_name_is_renewed_by_the_same_ca_at_once() {
    let api = ApiServer::installed();
    api.put(SECRET, earlier_secret(&["wva.wva.svc".to_owned()]));
    let ca = text(&api.get(SECRET).unwrap()["data"], "ca.crt");
    let (mut bundles, _stop) = instance(&api);
    let renewed = first(&mut bundles).await;
    assert_eq!(renewed.trust().trim_end(), ca.trim_end());
    assert_eq!(steps(&api).len(), 1);
}

/// A clock that the test sets.
struct ManualClock(Mutex<Timestamp>);

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(sleep(duration))
    }
}

#[tokio::test(start_paused = true)]
async fn a_leaf_is_renewed_a_month_before_its_end_by_the_same_ca() {
    let api = ApiServer::installed();
    let began: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
    let clock = Arc::new(ManualClock(Mutex::new(began)));
    let day = |days: i64| began + SignedDuration::from_hours(24 * days);
    let (mut bundles, _stop) = instance_of("wva", &api, clock.clone());
    let old = first(&mut bundles).await;
    let carried_before = api.until(ROTATION, carried).await;
    let an_hour = Duration::from_secs(3601);
    *clock.0.lock() = day(334);
    sleep(an_hour).await;
    assert!(steps(&api).is_empty(), "not before it is due");
    *clock.0.lock() = day(336);
    sleep(an_hour).await;
    assert_eq!(steps(&api).len(), 1);
    let new = bundles.borrow().clone().unwrap();
    assert_ne!(new.cert, old.cert, "what is shown from now on");
    let (_, pem) = parse_x509_pem(new.cert.as_bytes()).unwrap();
    let ends = pem.parse_x509().unwrap().validity().not_after.timestamp();
    assert!(ends > day(336 + 360).as_second(), "for another year");
    assert_eq!(carried(&api), Some(carried_before), "by the same authority");
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
async fn instances_with_two_service_names_agree_on_one_leaf_with_both() {
    let api = ApiServer::installed();
    let (mut before, _before) = instance_of("wva", &api, Arc::new(SystemClock));
    first(&mut before).await;
    let (mut after, _after) = instance_of("renamed", &api, Arc::new(SystemClock));
    first(&mut after).await;
    sleep(ROTATION * 4).await;
    assert_eq!(steps(&api).len(), 1, "renewed once, not against each other");
    let shown = [&before, &after].map(|bundles| bundles.borrow().clone().unwrap().cert);
    assert_eq!(shown[0], shown[1]);
    for name in settings("wva").names().iter().chain(&settings("renamed").names()) {
        assert!(names(&shown[0]).contains(name), "{name}: {:?}", names(&shown[0]));
    }
}

#[tokio::test(start_paused = true)]
async fn another_writer_of_leaves_is_overwritten_once_a_minute_at_most() {
    let api = ApiServer::installed();
    let theirs = earlier_secret(&["other.wva.svc".to_owned()]);
    api.put(SECRET, theirs.clone());
    let (_bundles, _stop) = instance(&api);
    for _ in 0..130 {
        sleep(Duration::from_secs(1)).await;
        api.put(SECRET, theirs.clone());
    }
    let renewals = steps(&api).len();
    assert!((2..=3).contains(&renewals), "{renewals} in 130 s");
}

#[tokio::test(start_paused = true)]
async fn a_step_that_fails_is_logged_once_and_taken_when_it_can_be() {
    let (log, _guard) = Captured::log(tracing::Level::INFO);
    let api = ApiServer::installed();
    let (mut bundles, _stop) = instance(&api);
    first(&mut bundles).await;
    api.until(ROTATION, carried).await;
    request_rotation(&api, "1");
    api.until(ROTATION, |api| carried(api).filter(|bundle| authorities(bundle) == 2)).await;
    api.forbid(SECRET);
    sleep(SETTLE + Duration::from_secs(120)).await;
    assert_eq!(steps(&api).len(), 1);
    let lines = log.lines("the serving certificate stays as it is");
    assert_eq!(lines.len(), 1, "{} lines", lines.len());
    api.permit();
    api.until(ROTATION * 2, |api| (steps(api).len() == 3).then_some(())).await;
    assert_eq!(log.lines("is kept again").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn another_owner_of_the_external_metrics_is_logged_only_when_no_apiservice_is_ours() {
    let [external, first, second] = apiservice::METRICS_NAMES;
    let keda = || ApiServer::new().with_service(external, "keda");
    for (api, lines) in [(keda(), 1), (keda().with_service(first, "wva").with_service(second, "wva"), 0)] {
        let (log, _guard) = Captured::log(tracing::Level::WARN);
        let (_bundles, stop) = instance(&api);
        sleep(ROTATION).await;
        stop.cancel();
        let logged = log.lines("only one metrics server can have it");
        assert_eq!(logged.len(), lines, "{logged:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn with_user_certificates_the_instances_rotate_their_own_and_write_no_ca_bundle() {
    let api = ApiServer::installed();
    let (publish, mut bundles) = watch::channel(None);
    let certificates = CertificateManager::new(api.client(), settings("wva"), Arc::new(SystemClock), None);
    spawn(certificates.run(publish, CancellationToken::new()));
    first(&mut bundles).await;
    request_rotation(&api, "1");
    api.until(ROTATION, |api| (steps(api).len() == 3).then_some(())).await;
    assert!(api.writes(SERVICES).is_empty());
}
