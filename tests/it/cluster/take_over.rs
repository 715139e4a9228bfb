//! The APIService of another program is taken over only where its server answers, kept against accidents and given up to whoever insists, and
//! given back as it was.

use k8s_openapi::ByteString;
use tokio::time::sleep;
use wva::cluster::pki::{
    FallbackState, PreviousOwner, TAKEN_OVER_CONDITION, TakeOver, apiservice, give_back_once,
};
use wva::cluster::{
    ApiServiceWatch, CaBundleWriter, CertificateBundle, CertificateManager, CertificateSettings, ServiceRef,
};

use super::certificates::{carried, events, ours};
use super::*;
use crate::api_server::{ApiServer, SERVICES};
use crate::serve::client::Captured;

const BEFORE: &str = "wva.llmd.ai/before-take-over";
const GIVEN_UP: &str = "wva.llmd.ai/take-over-given-up";
/// Longer than the 15 s after the start in which nothing is taken over.
const SOON: Duration = Duration::from_secs(60);
/// Longer than the 5 min after which it is taken over again.
const LATER: Duration = Duration::from_secs(400);

fn path() -> String {
    format!("{SERVICES}/{}", apiservice::NAME)
}

fn spec(api: &ApiServer) -> Value {
    api.get(&path()).unwrap()["spec"].clone()
}

fn annotation(api: &ApiServer, name: &str) -> Option<String> {
    api.get(&path()).unwrap()["metadata"]["annotations"][name].as_str().map(str::to_owned)
}

/// Status, reason and message of the condition.
fn condition(api: &ApiServer) -> Option<(String, String, String)> {
    let object = api.get(&path()).unwrap();
    let conditions = object["status"]["conditions"].as_array()?;
    let own = conditions.iter().find(|condition| condition["type"] == TAKEN_OVER_CONDITION)?;
    let text = |field: &str| own[field].as_str().unwrap().to_owned();
    Some((text("status"), text("reason"), text("message")))
}

fn reason(api: &ApiServer) -> String {
    condition(api).map(|(_, reason, _)| reason).unwrap_or_default()
}

fn points_to(api: &ApiServer, service: &str) -> Option<()> {
    (spec(api)["service"]["name"] == service).then_some(())
}

/// The APIService of Service wva/keda, with these annotations.
fn of_keda(annotations: &Value) -> ApiServer {
    let api = ApiServer::new().with_service(apiservice::NAME, "keda");
    api.change(&path(), |object| {
        object["metadata"]["annotations"] = annotations.clone();
        object["spec"]["caBundle"] = json!(ByteString(authority().into_bytes()));
    });
    api
}

fn authority() -> String {
    rcgen::generate_simple_self_signed(["keda".to_owned()]).unwrap().cert.pem()
}

struct Instance {
    state: watch::Sender<FallbackState>,
    bundles: watch::Receiver<Option<CertificateBundle>>,
    stop: CancellationToken,
}

/// A leader, wired as in the app.
fn instance(api: &ApiServer, take_over: Option<u16>) -> Instance {
    let (client, stop) = (api.client(), CancellationToken::new());
    let clock = Arc::new(SystemClock);
    let (watching, apiservices) = ApiServiceWatch::new(client.clone(), ours());
    let (publish, bundles) = watch::channel(None);
    let settings =
        CertificateSettings { secret: "wva-tls".into(), service: ours(), settle: Duration::from_secs(60) };
    let certificates =
        CertificateManager::new(client.clone(), settings, clock.clone(), Some(apiservices.clone()));
    let events = events(&client, &mut Registry::default());
    let writer = CaBundleWriter::new(
        client.clone(),
        ours(),
        bundles.clone(),
        apiservices.clone(),
        events.clone(),
        clock.clone(),
    );
    let state = watch::Sender::new(Ok(None));
    let service = ServiceRef { namespace: "wva".into(), name: "keda".into() };
    let previous = PreviousOwner { service, port: 443, take_over, state: state.subscribe() };
    let task = TakeOver {
        client,
        service: ours(),
        previous: Some(previous),
        certificates: bundles.clone(),
        apiservices,
        leadership: watch::Sender::new(leading_for_weeks()).subscribe(),
        events,
        clock,
    };
    spawn(watching.run(stop.clone()));
    spawn(certificates.run(publish, stop.clone()));
    spawn(writer.run(stop.clone()));
    spawn(task.run(stop.clone()));
    Instance { state, bundles, stop }
}

fn leading_for_weeks() -> Leadership {
    Leadership { mine_until: Some(Instant::now() + Duration::from_secs(30 * 24 * 3600)), ..held() }
}

#[tokio::test(start_paused = true)]
async fn it_is_taken_over_and_given_back_as_it_was() {
    let api = of_keda(&json!({ "meta.helm.sh/release-name": "keda" }));
    let before = spec(&api);
    let first = instance(&api, Some(443));
    api.until(SOON, |api| points_to(api, "wva")).await;
    api.until(SOON, |api| (reason(api) == TAKEN_OVER_CONDITION).then_some(())).await;
    assert_eq!(carried(&api), first.bundles.borrow().as_ref().map(CertificateBundle::trust));
    first.stop.cancel();
    let _second = instance(&api, None);
    api.until(SOON, |api| points_to(api, "keda")).await;
    assert_eq!(spec(&api), before);
    assert_eq!(
        api.get(&path()).unwrap()["metadata"]["annotations"],
        json!({ "meta.helm.sh/release-name": "keda" })
    );
}

#[tokio::test(start_paused = true)]
async fn an_apiservice_was_taken_over_from_a_server_that_did_not_answer() {
    let (log, _guard) = Captured::log(tracing::Level::WARN);
    let api = of_keda(&json!({}));
    let instance = instance(&api, Some(443));
    let _ = instance.state.send_replace(Err("it did not answer within 5 s".into()));
    sleep(LATER).await;
    assert!(points_to(&api, "keda").is_some());
    let (status, reason, message) = condition(&api).unwrap();
    assert_eq!((status.as_str(), reason.as_str()), ("False", "FallbackUnavailable"));
    assert!(message.contains("Service wva/keda") && message.contains("within 5 s"), "{message}");
    assert_eq!(log.lines("it is not taken over while").len(), 1, "once");
    let _ = instance.state.send_replace(Ok(None));
    api.until(SOON, |api| points_to(api, "wva")).await;
}

#[tokio::test(start_paused = true)]
async fn an_apiservice_whose_ca_cert_manager_injects_was_fought_over() {
    let injected = json!({ "cert-manager.io/inject-ca-from": "keda/ca" });
    let api = of_keda(&injected);
    let _instance = instance(&api, Some(443));
    sleep(SOON).await;
    assert!(points_to(&api, "keda").is_some());
    let (_, reason, message) = condition(&api).unwrap();
    assert_eq!(reason, "CABundleInjected");
    assert!(message.contains("cert-manager.io/inject-ca-from lets cert-manager write"), "{message}");
    api.change(&path(), |object| object["metadata"]["annotations"] = json!({}));
    api.until(SOON, |api| points_to(api, "wva")).await;
    // Annotated later, it is given back.
    api.change(&path(), |object| {
        object["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] = json!("keda/ca");
    });
    api.until(SOON, |api| points_to(api, "keda")).await;
    assert_eq!(api.get(&path()).unwrap()["metadata"]["annotations"], injected);
}

/// Writes what another program writes whenever it is not there, and counts how often.
fn insist(api: &ApiServer, change: fn(&mut Value)) -> watch::Receiver<u32> {
    let (sender, count) = watch::channel(0);
    let api = api.clone();
    spawn(async move {
        while !sender.is_closed() {
            let object = api.get(&path()).unwrap();
            let mut wanted = object.clone();
            change(&mut wanted);
            if wanted["spec"] != object["spec"] && object["spec"]["service"]["name"] == "wva" {
                api.change(&path(), change);
                sender.send_modify(|count| *count += 1);
            }
            sleep(Duration::from_secs(2)).await;
        }
    });
    count
}

#[tokio::test(start_paused = true)]
async fn a_program_that_writes_its_own_ca_again_and_again_is_given_way() {
    let (log, _guard) = Captured::log(tracing::Level::WARN);
    let api = of_keda(&json!({}));
    let mut newest = spec(&api);
    newest["caBundle"] = json!("Q0E=");
    let instance = instance(&api, Some(443));
    api.until(SOON, |api| points_to(api, "wva")).await;
    sleep(SOON).await;
    let count = insist(&api, |object| object["spec"]["caBundle"] = json!("Q0E="));
    api.until(SOON, |api| annotation(api, GIVEN_UP)).await;
    assert_eq!((*count.borrow(), spec(&api)), (3, newest), "corrected twice, then given back");
    sleep(LATER).await;
    assert!(points_to(&api, "keda").is_some(), "it is not taken over again");
    assert_eq!((reason(&api).as_str(), annotation(&api, BEFORE)), ("TakeOverGivenUp", None));
    assert_eq!(log.lines("has given up: another program has written it 3 times in a row").len(), 1);
    drop(count);
    // As the message says: end that, and remove the annotation.
    sleep(SOON).await;
    api.change(&path(), |object| object["metadata"]["annotations"] = json!({}));
    api.until(LATER, |api| points_to(api, "wva")).await;
    instance.stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn it_was_corrected_again_where_giving_it_up_failed_once() {
    let api = of_keda(&json!({}));
    let instance = instance(&api, Some(443));
    api.until(SOON, |api| points_to(api, "wva")).await;
    sleep(SOON).await;
    let trust = instance.bundles.borrow().as_ref().map(CertificateBundle::trust);
    for write in 1..=3 {
        if write == 3 {
            api.forbid(&path());
        }
        api.change(&path(), |object| object["spec"]["caBundle"] = json!("Q0E="));
        sleep(SOON).await;
        assert_eq!(carried(&api) == trust, write < 3, "write {write}");
    }
    let earlier = api.writes(&path()).len();
    api.permit();
    api.until(SOON, |api| annotation(api, GIVEN_UP)).await;
    let services = api
        .writes(&path())
        .split_off(earlier)
        .into_iter()
        .filter_map(|write| write.body["spec"]["service"]["name"].as_str().map(str::to_owned));
    assert_eq!(services.collect::<Vec<_>>(), ["keda"]);
}

#[tokio::test(start_paused = true)]
async fn a_program_that_lets_it_point_back_again_and_again_is_given_way() {
    let api = of_keda(&json!({}));
    let before = spec(&api);
    let _instance = instance(&api, Some(443));
    api.until(SOON, |api| points_to(api, "wva")).await;
    // It resets the Service, and leaves the CA of this program there.
    let count = insist(&api, point_back);
    api.until(SOON, |api| (*count.borrow() == 1 && reason(api) == "ChangedBack").then_some(())).await;
    assert_eq!(without_port(spec(&api)), before, "their server with their CA, at once");
    api.until(5 * LATER, |api| annotation(api, GIVEN_UP)).await;
    assert_eq!((*count.borrow(), without_port(spec(&api))), (3, before));
    sleep(2 * LATER).await;
    assert_eq!((*count.borrow(), annotation(&api, BEFORE)), (3, None), "the end of the write war");
    // Without the flag, the note goes.
    let second = instance(&api, None);
    api.until(SOON, |api| annotation(api, GIVEN_UP).is_none().then_some(())).await;
    second.stop.cancel();
}

fn point_back(object: &mut Value) {
    object["spec"]["service"]["name"] = json!("keda");
}

/// The port is what they have left of ours.
fn without_port(mut spec: Value) -> Value {
    spec["service"].as_object_mut().unwrap().remove("port");
    spec
}

#[tokio::test(start_paused = true)]
async fn their_service_with_our_ca_was_left_to_a_server_that_it_does_not_verify() {
    let api = of_keda(&json!({}));
    let before = spec(&api);
    let first = instance(&api, Some(443));
    api.until(SOON, |api| points_to(api, "wva")).await;
    first.stop.cancel();
    sleep(SOON).await;
    api.change(&path(), point_back);
    assert_ne!(without_port(spec(&api)), before);
    let done = give_back_once(&api.client(), Some("wva/wva")).await;
    assert_eq!(done, Ok(format!("APIService {} points to Service wva/keda again", apiservice::NAME)));
    assert_eq!(without_port(spec(&api)), before);
}

#[tokio::test(start_paused = true)]
async fn the_ca_of_another_fallback_server_was_given_to_the_one_that_it_was_taken_from() {
    let api = of_keda(&json!({}));
    api.change(&path(), |object| object["spec"]["service"]["port"] = json!(6443));
    let before = spec(&api);
    let first = instance(&api, Some(443));
    api.until(SOON, |api| points_to(api, "wva")).await;
    let _ = first.state.send_replace(Ok(Some(authority().into_bytes())));
    api.until(SOON, |api| (reason(api) == "TakenFromAnother").then_some(())).await;
    let (status, _, message) = condition(&api).unwrap();
    assert_eq!(status, "True");
    assert!(
        message.contains("taken from Service wva/keda:6443") && message.contains("wva/keda:443"),
        "{message}"
    );
    first.stop.cancel();
    let _second = instance(&api, None);
    api.until(SOON, |api| points_to(api, "keda")).await;
    assert_eq!(spec(&api), before);
}

#[tokio::test(start_paused = true)]
async fn it_stayed_taken_over_though_the_api_server_did_not_reach_this_program() {
    let api = of_keda(&json!({}));
    let before = spec(&api);
    let _instance = instance(&api, Some(443));
    api.until(SOON, |api| points_to(api, "wva")).await;
    let available = |api: &ApiServer, status: &'static str| {
        let message = "failing or missing response from https://10.0.0.1:443: context deadline exceeded";
        let change = move |object: &mut Value| {
            object["status"]["conditions"] =
                json!([{ "type": "Available", "status": status, "message": message }]);
        };
        api.change(&path(), change);
    };
    available(&api, "False");
    sleep(Duration::from_secs(45)).await;
    available(&api, "True");
    sleep(Duration::from_secs(30)).await;
    available(&api, "False");
    sleep(Duration::from_secs(45)).await;
    assert!(points_to(&api, "wva").is_some(), "not for 60 s without a break");
    let text = api.until(Duration::from_secs(30), |api| annotation(api, GIVEN_UP)).await;
    assert_eq!(spec(&api), before);
    assert!(
        text.starts_with("wva/wva has given up: the API server does not reach this Service: failing or"),
        "{text}"
    );
    sleep(LATER).await;
    assert!(points_to(&api, "keda").is_some(), "it is not taken over again");
}

#[tokio::test(start_paused = true)]
async fn a_minute_of_another_network_gave_it_up_for_good() {
    let api = of_keda(&json!({}));
    let _instance = instance(&api, Some(443));
    api.until(SOON, |api| points_to(api, "wva")).await;
    let available = |status: &'static str| {
        api.change(&path(), |object| {
            object["status"]["conditions"] = json!([{ "type": "Available", "status": status }]);
        });
    };
    available("True");
    sleep(LATER).await;
    available("False");
    sleep(Duration::from_secs(600)).await;
    assert!(points_to(&api, "wva").is_some(), "it was reached before");
    api.until(LATER, |api| annotation(api, GIVEN_UP)).await;
}

#[tokio::test(start_paused = true)]
async fn what_somebody_noted_against_it_was_removed_and_it_was_taken_over_again() {
    let api = of_keda(&json!({}));
    let _instance = instance(&api, Some(443));
    api.until(SOON, |api| points_to(api, "wva")).await;
    sleep(SOON).await;
    api.change(&path(), |object| object["metadata"]["annotations"][GIVEN_UP] = json!("stop"));
    api.until(SOON, |api| points_to(api, "keda")).await;
    sleep(LATER).await;
    assert_eq!((annotation(&api, GIVEN_UP).as_deref(), points_to(&api, "keda")), (Some("stop"), Some(())));
}

#[tokio::test(start_paused = true)]
async fn a_service_was_removed_to_which_it_pointed_without_a_note_of_before() {
    let api = of_keda(&json!({}));
    let first = instance(&api, Some(443));
    api.until(SOON, |api| points_to(api, "wva")).await;
    first.stop.cancel();
    api.change(&path(), |object| object["metadata"]["annotations"] = json!({}));
    let error = give_back_once(&api.client(), Some("wva/wva")).await.unwrap_err();
    assert!(error.contains("let it point to its owner by hand, or delete it"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn one_upgrade_of_the_other_program_is_no_reason_to_give_up() {
    let api = of_keda(&json!({}));
    let _instance = instance(&api, Some(443));
    for _ in 0..5 {
        api.until(LATER, |api| points_to(api, "wva")).await;
        // A day later.
        sleep(Duration::from_secs(24 * 3600)).await;
        api.change(&path(), |object| object["spec"]["service"]["name"] = json!("keda"));
        sleep(Duration::from_secs(60)).await;
        assert!(points_to(&api, "keda").is_some(), "left alone for 5 minutes");
        assert_eq!(reason(&api), "ChangedBack");
    }
    api.until(LATER, |api| points_to(api, "wva")).await;
}

#[tokio::test(start_paused = true)]
async fn the_ca_of_before_was_given_back_though_the_other_program_had_a_new_one() {
    let api = of_keda(&json!({}));
    let first = instance(&api, Some(443));
    api.until(SOON, |api| points_to(api, "wva")).await;
    let newest = authority();
    let _ = first.state.send_replace(Ok(Some(newest.clone().into_bytes())));
    sleep(SOON).await;
    first.stop.cancel();
    // With neither the server nor its CA: all of it was removed in one upgrade.
    assert_eq!(
        give_back_once(&api.client(), Some("other/wva")).await,
        Ok(format!("APIService {} was taken over by Service wva/wva: it is left alone", apiservice::NAME))
    );
    let done = give_back_once(&api.client(), Some("wva/wva")).await;
    assert_eq!(done, Ok(format!("APIService {} points to Service wva/keda again", apiservice::NAME)));
    let carried = carried(&api).unwrap();
    assert!(points_to(&api, "keda").is_some() && carried.ends_with(&newest), "{carried}");
    let done = give_back_once(&api.client(), None).await.unwrap();
    assert!(done.ends_with("was not taken over by wva: nothing to give back"), "{done}");
}

#[tokio::test(start_paused = true)]
async fn giving_back_raced_with_a_write_of_the_ca() {
    let api = of_keda(&json!({}));
    let first = instance(&api, Some(443));
    api.until(SOON, |api| points_to(api, "wva")).await;
    sleep(SOON).await;
    first.stop.cancel();
    let applied =
        api.writes(SERVICES).into_iter().filter(|write| write.query.contains("fieldManager=wva-ca&"));
    assert_eq!(applied.count(), 0, "while it is taken over, one task writes all of it");
    let patches = api.writes(SERVICES).into_iter().filter(|write| !write.path.ends_with("/status"));
    for write in patches {
        assert!(write.body["metadata"]["resourceVersion"].is_string(), "{write:?}");
    }
}
