//! Two installations, each with its own variants: one owns the APIService and forwards, the other answers it.

mod faults;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tempfile::TempDir;
use wva::engine::{Claim, ClusterView, Published};
use wva::serve::tls::SharedPki;
use wva::serve::{AcceptedForwarder, InstallationSettings, OtherInstallation};
use wva_core::VariantId;
use wva_core::decision::Cause;
use wva_core::model::TargetRef;

use super::client::{Answer, Captured, exchange, tls};
use super::custom_metrics::{DESIRED, deployment, object, state, variant};
use super::identity::eventually;
use super::path;
use super::pki::{Authority, INSTANCE, Leaf, SERVICE};
use super::test_server::{ServerOptions, TestServer, led_by, sample, target, unknown};

const EVIDENCE: &str = "2026-11-21T10:00:05.75Z";

/// What the other installation answers the owner, without the owner's representation.
const INNER: &str = "/installations/v1/external/blue/wva_desired_replicas?labelSelector=variant_name%3Dsky";
const INNER_OBJECT: &str =
    "/installations/v1/custom/v1beta2/namespaces/blue/variantautoscalings.llmd.ai/sky/wva_desired_replicas";

/// An installation that owns the APIService, and another one with the namespaces `blue` and `both`.
struct Pair {
    owner: TestServer,
    peer: TestServer,
    _files: TempDir,
}

/// The file of a CA.
fn ca_file(directory: &Path, name: &str, ca: &Authority) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, ca.pem()).unwrap();
    path
}

fn named(server: &TestServer, files: &Path) -> OtherInstallation {
    at_port(server.address.port(), &server.shared_ca, files)
}

/// An installation at this port, which has a certificate of `ca`.
fn at_port(port: u16, ca: &Authority, files: &Path) -> OtherInstallation {
    OtherInstallation {
        name: "blue".into(),
        host: "127.0.0.1".into(),
        port,
        server_name: SERVICE.into(),
        ca_file: ca_file(files, "blue.crt", ca),
        namespaces: ["blue", "both"].map(str::to_owned).into(),
        controller_instance: None,
    }
}

fn settings(others: Vec<OtherInstallation>, forwarder: Option<AcceptedForwarder>) -> InstallationSettings {
    InstallationSettings { others, forwarder, recheck_interval: Duration::from_millis(20) }
}

/// Accepts reads of the installation with this CA.
fn accepts(ca_file: PathBuf) -> InstallationSettings {
    settings(Vec::new(), Some(AcceptedForwarder { ca_file, name: INSTANCE.into() }))
}

/// Shows these variants, each with its number, on Deployments that are named like them.
fn has(server: &TestServer, variants: &[(&str, &str, u32)]) {
    let id = |(namespace, name, _): &(&str, &str, u32)| VariantId::new(*namespace, *name);
    let decisions: BTreeMap<_, _> =
        variants.iter().map(|variant| (id(variant), target(variant.2, Some(2), EVIDENCE))).collect();
    server.publish(Published { decisions, ..sample() });
    let mut view = ClusterView { synced: true, ..ClusterView::default() };
    view.variants = variants.iter().map(|(namespace, name, _)| state((*namespace, *name, *name))).collect();
    view.variants.sort_by(|left, right| left.variant.id.cmp(&right.variant.id));
    let claim = |(namespace, name, _): &(&str, &str, u32)| Claim {
        target: TargetRef::deployment(*name),
        variant: VariantId::new(*namespace, *name),
    };
    view.claims = variants.iter().map(claim).collect();
    view.claims.sort_by(|left, right| left.key().cmp(&right.key()));
    *server.reads.view.lock() = Arc::new(view);
}

async fn pair_with(
    change: impl FnOnce(&mut OtherInstallation),
    set_up_peer: impl FnOnce(&mut ServerOptions),
) -> Pair {
    let files = tempfile::tempdir().unwrap();
    let owners_ca = Arc::new(Authority::new("owner"));
    let accepted = accepts(ca_file(files.path(), "owner.crt", &owners_ca));
    let peer = TestServer::with(|options| {
        options.installations = accepted;
        set_up_peer(options);
    })
    .await;
    let mut listed = named(&peer, files.path());
    change(&mut listed);
    let owner = TestServer::with(|options| {
        options.shared_ca = owners_ca;
        options.installations = settings(vec![listed], None);
    })
    .await;
    has(&owner, &[("both", "first", 4), ("green", "leaf", 3)]);
    has(&peer, &[("blue", "sky", 7), ("blue", "sea", 1), ("both", "second", 6)]);
    let pair = Pair { owner, peer, _files: files };
    // Both have read the files.
    eventually(async || pair.read("blue", "sky").await.status == 200).await;
    pair
}

async fn pair() -> Pair {
    pair_with(|_| {}, |_| {}).await
}

/// The read that the HPA of a variant makes.
fn selecting(namespace: &str, selector: &str) -> String {
    format!("{}?labelSelector={selector}", path(namespace, DESIRED))
}

impl Pair {
    async fn read(&self, namespace: &str, name: &str) -> Answer {
        self.select(namespace, &format!("variant_name%3D{name}")).await
    }

    async fn select(&self, namespace: &str, selector: &str) -> Answer {
        self.owner.proxied("hpa", &selecting(namespace, selector)).await
    }

    fn reads(&self) -> [usize; 2] {
        [&self.owner, &self.peer].map(|server| server.reads.count.load(Ordering::SeqCst))
    }
}

/// Variants and values of the items, in their order.
fn items(answer: &Answer) -> Vec<(String, String)> {
    let list: serde_json::Value = serde_json::from_str(&answer.body).expect(&answer.body);
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let items = list["items"].as_array().expect(&answer.body);
    items.iter().map(|item| (text(&item["metricLabels"]["variant_name"]), text(&item["value"]))).collect()
}

#[tokio::test]
async fn the_owner_answers_what_the_other_installation_would_answer_itself() {
    let pair = pair_with(|_| {}, |options| options.controller_instance = Some("azure".into())).await;
    let paths = [
        selecting("blue", "variant_name%3Dsky"),
        selecting("blue", "variant_name+in+%28sky%2Csea%29%2Ccontroller_instance%3Dazure"),
        path("blue", "wva_desired_ratio"),
        path("blue", "inferno_desired_replicas"),
        variant("blue", "sky"),
        deployment("blue", "sea"),
        deployment("blue", "*"),
        object("v1beta1", "blue", "deployments", "sky", "wva_current_replicas"),
        variant("blue", "sky") + "?metricLabelSelector=accelerator_type%3DA100",
    ];
    let forms = [
        "Accept: */*",
        "Accept: application/vnd.kubernetes.protobuf, */*",
        "Accept: application/yaml",
        "Accept: application/json;as=Table;v=v1;g=meta.k8s.io",
    ];
    for (path, form) in paths.iter().flat_map(|path| forms.map(|form| (path, form))) {
        let forwarded = pair.owner.read_as_hpa(path, &[form]).await;
        let direct = pair.peer.read_as_hpa(path, &[form]).await;
        assert_eq!((forwarded.status, direct.status), (200, 200), "{path} {form}: {}", forwarded.body);
        assert!(forwarded.bytes == direct.bytes, "{path} {form}:\n{}\n{}", forwarded.body, direct.body);
        for name in ["content-type", "vary", "warning", "cache-control"] {
            assert_eq!(forwarded.all(name), direct.all(name), "{path} {form} {name}");
        }
    }
}

#[tokio::test]
async fn the_owner_authorises_and_the_other_installation_reviews_nobody() {
    let pair = pair_with(|_| {}, |options| options.has_trust = false).await;
    let reviews = pair.owner.reviewer.reviews.lock().len();
    let before = pair.reads();
    assert_eq!(pair.owner.proxied("mallory", &selecting("blue", "variant_name%3Dsky")).await.status, 403);
    assert_eq!(pair.owner.proxied("mallory", &variant("blue", "sky")).await.status, 403);
    assert_eq!(pair.reads(), before, "nothing is forwarded for a caller that may not read");
    assert_eq!(pair.owner.reviewer.reviews.lock().len(), reviews + 3);
    assert_eq!(pair.read("blue", "sky").await.value(), "7");
    assert!(pair.peer.reviewer.reviews.lock().is_empty());
    assert_eq!(pair.peer.proxied("hpa", &path("blue", DESIRED)).await.status, 503, "it trusts no proxy");
}

#[tokio::test]
async fn only_reads_that_may_be_about_others_are_forwarded() {
    let pair = pair().await;
    for (namespace, selector, forwards) in [
        ("green", "variant_name%3Dleaf", false),
        ("both", "variant_name%3Dfirst", false),
        ("green", "variant_name%3Dsky", false),
        ("elsewhere", "", false),
        ("both", "variant_name%3Dsecond", true),
        ("both", "", true),
        ("blue", "", true),
    ] {
        let [_, before] = pair.reads();
        let answer = pair.select(namespace, selector).await;
        assert_eq!(pair.reads()[1] > before, forwards, "{namespace} {selector}: {}", answer.body);
    }
    let [_, before] = pair.reads();
    assert_eq!(pair.owner.proxied("hpa", &deployment("both", "first")).await.value(), "4");
    assert_eq!(pair.owner.proxied("hpa", &variant("elsewhere", "sky")).await.status, 404);
    assert_eq!(pair.reads()[1], before);
    assert_eq!(pair.owner.proxied("hpa", &deployment("both", "second")).await.value(), "6");
}

#[tokio::test]
async fn a_controller_instance_alone_opened_every_namespace() {
    let by_instance = |listed: &mut OtherInstallation| {
        listed.namespaces = ["blue".to_owned()].into();
        listed.controller_instance = Some("azure".into());
    };
    let pair = pair_with(by_instance, |options| options.controller_instance = Some("azure".into())).await;
    for selector in ["", "controller_instance%3Dazure"] {
        let expected = [("sea", "1"), ("sky", "7")].map(|(name, value)| (name.into(), value.into()));
        assert_eq!(items(&pair.select("blue", selector).await), expected, "{selector}");
    }
    let [_, before] = pair.reads();
    for (namespace, selector) in [
        ("both", "variant_name%3Dsecond"),
        ("both", "controller_instance%3Dazure"),
        ("blue", "controller_instance%3Drose%2Cvariant_name%3Dsky"),
        ("blue", "variant_name%3Dsky%2C%21controller_instance"),
    ] {
        assert_eq!(pair.select(namespace, selector).await.status, 404, "{namespace} {selector}");
    }
    assert_eq!(pair.select("both", "").await.value(), "4");
    assert_eq!(pair.reads()[1], before, "not listed, or excluded by the selector");
}

#[tokio::test]
async fn a_sum_was_partial_depending_on_what_the_owner_had() {
    let by_instance = |listed: &mut OtherInstallation| listed.controller_instance = Some("azure".into());
    let pair = pair_with(by_instance, |options| options.controller_instance = Some("azure".into())).await;
    let item = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(items(&pair.select("both", "").await), [item("first", "4"), item("second", "6")]);
    has(&pair.owner, &[("green", "leaf", 3)]);
    assert_eq!(items(&pair.select("both", "").await), [item("second", "6")]);
    // A variant that has not been evaluated yet.
    has(&pair.owner, &[("both", "first", 4)]);
    pair.owner.publish(Published { decisions: BTreeMap::new(), ..sample() });
    assert_eq!(pair.select("both", "").await.status, 503);
}

#[tokio::test]
async fn many_installations_left_two_reads_for_each() {
    let pair = pair().await;
    let numbered = |number: u32| OtherInstallation {
        name: format!("blue-{number}"),
        namespaces: [if number == 0 { "blue".to_owned() } else { format!("blue-{number}") }].into(),
        ..named(&pair.peer, pair._files.path())
    };
    let owner = TestServer::with(|options| {
        options.shared_ca = pair.owner.shared_ca.clone();
        options.installations = settings((0..64).map(numbered).collect(), None);
    })
    .await;
    has(&owner, &[]);
    let path = selecting("blue", "variant_name%3Dsky");
    eventually(async || owner.proxied("hpa", &path).await.status == 200).await;
    *pair.peer.reads.delay.lock() = Duration::from_millis(400);
    let answers = futures::future::join_all((0..16).map(|_| owner.proxied("hpa", &path))).await;
    assert!(answers.iter().all(|answer| answer.status == 200), "{:?}", answers.last().map(|last| &last.body));
}

#[tokio::test]
async fn a_list_of_a_shared_namespace_has_the_variants_of_both_and_no_variant_twice() {
    let (log, _guard) = Captured::log(tracing::Level::WARN);
    let pair = pair().await;
    let list = pair.select("both", "").await;
    assert_eq!(
        items(&list),
        [("first", "4"), ("second", "6")].map(|(name, value)| (name.into(), value.into()))
    );
    let warning = "299 - \"2 variants match and an HPA adds their values up; select one with variant_name\"";
    assert_eq!(list.header("warning"), Some(warning));
    has(&pair.peer, &[("blue", "sky", 7), ("both", "first", 9), ("both", "second", 6)]);
    for _ in 0..3 {
        let list = pair.select("both", "").await;
        assert_eq!(items(&list)[0], ("first".to_owned(), "4".to_owned()), "ours wins");
        assert_eq!(items(&list).len(), 2);
    }
    let logged = log.lines("several installations have this variant");
    assert_eq!(logged.len(), 1, "{logged:?}");
    assert!(logged[0].contains("both/first") && logged[0].contains("blue"), "{logged:?}");
}

#[tokio::test]
async fn an_error_of_one_installation_is_the_answer_and_a_sum_without_it_is_not() {
    let pair = pair().await;
    let mut without_number = sample();
    without_number.decisions =
        [(VariantId::new("both", "second"), unknown(Cause::NothingKnown, "no pod has been measured yet"))]
            .into();
    pair.peer.publish(without_number);
    let answer = pair.select("both", "").await;
    assert_eq!(answer.status, 503);
    let message = answer.message();
    assert!(message.contains("variant both/second is not known: no pod has been measured yet"), "{message}");
    assert!(message.ends_with("(answered by installation blue)"), "{message}");
    assert_eq!(pair.read("both", "first").await.value(), "4", "a read of our own variant is not affected");
    let mut without_target = sample();
    let gone = unknown(Cause::TargetNotFound, "Deployment x of both/second does not exist; create it");
    without_target.decisions = [(VariantId::new("both", "second"), gone)].into();
    pair.peer.publish(without_target);
    for path in [path("both", DESIRED), deployment("both", "*"), variant("both", "second")] {
        let answer = pair.owner.proxied("hpa", &path).await;
        assert_eq!(answer.status, 404, "{path}: {}", answer.body);
        assert!(answer.message().contains("both/second does not exist"), "{path}: {}", answer.message());
    }
    let missing = pair.read("blue", "nope").await;
    assert_eq!(missing.status, 404);
    assert!(missing.message().ends_with("(answered by installation blue)"), "{}", missing.message());
    let missing = pair.select("both", "accelerator_type%3DH100").await;
    assert_eq!(missing.status, 404);
    assert!(missing.message().ends_with("(asked as well: blue)"), "{}", missing.message());
}

#[tokio::test]
async fn an_instance_that_does_not_lead_answers_like_the_leader() {
    let pair = pair().await;
    let own = TestServer::with(|options| {
        options.shared_ca = pair.owner.shared_ca.clone();
        options.installations = settings(vec![named(&pair.peer, pair._files.path())], None);
    })
    .await;
    has(&own, &[("both", "first", 2)]);
    own.leadership.send_replace(led_by(Some(format!("https://{}", pair.owner.address))));
    eventually(async || own.proxied("hpa", &selecting("blue", "variant_name%3Dsky")).await.status == 200)
        .await;
    let list = own.proxied("hpa", &path("both", DESIRED)).await;
    assert_eq!(
        items(&list),
        [("first", "4"), ("second", "6")].map(|(name, value)| (name.into(), value.into()))
    );
    // An instance of the other installation that does not lead asks its leader too.
    let follower = TestServer::with(|options| {
        options.shared_ca = pair.peer.shared_ca.clone();
        options.installations = accepts(pair._files.path().join("owner.crt"));
    })
    .await;
    has(&follower, &[("blue", "sky", 1)]);
    follower.leadership.send_replace(led_by(Some(format!("https://{}", pair.peer.address))));
    let identity = owners_identity(&pair);
    eventually(async || ask(&follower, Some(&identity), INNER).await.body.contains("\"thousandths\":7000"))
        .await;
}

/// The certificate that the owner presents.
fn owners_identity(pair: &Pair) -> Leaf {
    pair.owner.instance()
}

/// A certificate like the owner's, of this CA.
fn leaf_of(ca: &Authority) -> Leaf {
    let SharedPki { cert_pem, key_pem, .. } = ca.shared();
    Leaf { certificate: cert_pem, key: key_pem }
}

/// A read on the paths for installations.
async fn ask(server: &TestServer, leaf: Option<&Leaf>, path: &str) -> Answer {
    let stream = tls(server.address, &server.shared_ca.pem(), SERVICE, leaf, "http/1.1").await;
    let masters = ["X-Remote-User: hpa", "X-Remote-Group: system:masters"];
    exchange(stream.unwrap(), &format!("GET {path}"), &masters).await
}

#[tokio::test]
async fn only_the_owners_certificate_opens_the_paths_for_installations() {
    let pair = pair().await;
    for path in [INNER, INNER_OBJECT] {
        let answer = ask(&pair.peer, Some(&owners_identity(&pair)), path).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.header("wva-answered-by"), Some("installation"));
    }
    let owners_ca = &pair.owner.shared_ca;
    for (case, leaf) in [
        ("nobody", None),
        ("the front proxy", Some(pair.peer.proxy.clone())),
        ("an instance of the other installation", Some(pair.peer.instance())),
        ("a user with the owner's name", Some(leaf_of(&pair.peer.users))),
        ("another CA of the same name", Some(leaf_of(&Authority::new("owner")))),
        ("the name as a common name only", Some(owners_ca.client(INSTANCE, &[]))),
        (
            "another name of the owner's CA",
            Some(owners_ca.client("wva-instance.x.internal", &["system:masters"])),
        ),
    ] {
        for path in [INNER, INNER_OBJECT] {
            let answer = ask(&pair.peer, leaf.as_ref(), path).await;
            assert_eq!(answer.status, 403, "{case} {path}");
            assert_eq!(answer.header("wva-answered-by"), None, "{case}");
        }
    }
    // The certificate opens nothing else, and the owner accepts nobody.
    let owners = owners_identity(&pair);
    for path in [
        "/internal/v1/external/blue/wva_desired_replicas",
        "/internal/v1/values/external/blue/wva_desired_replicas",
    ] {
        assert_eq!(ask(&pair.peer, Some(&owners), path).await.status, 403, "{path}");
    }
    let public = selecting("blue", "variant_name%3Dsky");
    let asserted = ask(&pair.peer, Some(&owners), &public).await;
    assert!(asserted.status == 403 && asserted.message().contains("system:anonymous"), "{}", asserted.body);
    let refused = ask(&pair.owner, Some(&owners), INNER).await;
    assert!(refused.message().contains("set --forwarder-ca-file"), "{}", refused.message());
}

#[tokio::test]
async fn a_certificate_that_is_not_accepted_is_an_error_with_the_next_step() {
    let pair = pair().await;
    std::fs::write(pair._files.path().join("owner.crt"), Authority::new("next").pem()).unwrap();
    eventually(async || pair.read("blue", "sky").await.status == 503).await;
    let message = pair.read("blue", "sky").await.message();
    assert!(message.contains("installation blue at 127.0.0.1:"), "{message}");
    assert!(message.contains("answered with status 403; check that its --forwarder-ca-file"), "{message}");
    // A file that cannot be used changes nothing, and the right one is used without a restart.
    std::fs::write(pair._files.path().join("owner.crt"), "no certificate").unwrap();
    std::fs::write(pair._files.path().join("owner.crt"), pair.owner.shared_ca.pem()).unwrap();
    eventually(async || pair.read("blue", "sky").await.status == 200).await;
}

#[tokio::test]
async fn two_installations_that_list_each_other_ask_once() {
    let files = tempfile::tempdir().unwrap();
    let ca = Arc::new(Authority::new("both"));
    // The port of the second, which the first lists before it exists.
    let reserved = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let accepted = accepts(ca_file(files.path(), "owner.crt", &ca)).forwarder;
    let first = TestServer::with(|options| {
        options.shared_ca = ca.clone();
        let others = vec![at_port(reserved.port(), &ca, files.path())];
        options.installations = settings(others, accepted.clone());
    })
    .await;
    let second = TestServer::with(|options| {
        options.shared_ca = ca.clone();
        options.listen = reserved;
        let forwarder = accepted;
        options.installations = settings(vec![named(&first, files.path())], forwarder);
    })
    .await;
    has(&first, &[]);
    has(&second, &[]);
    let listed = |server: &TestServer| settings(vec![named(server, files.path())], None);
    let third = TestServer::with(|options| {
        options.shared_ca = ca.clone();
        options.installations = listed(&second);
    })
    .await;
    has(&third, &[]);
    eventually(async || third.proxied("hpa", &selecting("blue", "variant_name%3Dsky")).await.status == 404)
        .await;
    let count = |server: &TestServer| server.reads.count.load(Ordering::SeqCst);
    let before = [count(&first), count(&second)];
    let answer = third.proxied("hpa", &selecting("blue", "variant_name%3Dsky")).await;
    assert_eq!(answer.status, 404, "{}", answer.body);
    assert_eq!([count(&first), count(&second)], [before[0], before[1] + 1], "the second forwards no further");
}
