//! What once went wrong between us and the API server, each told as the promise that was broken.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use wva::cluster::leadership::lease;
use wva::cluster::pki::certificates;
use wva::cluster::{
    ApiServiceWatch, Certificates, ClusterWatch, Election, StateStore, StateWriter, TrustWatch,
};
use wva::engine::{Board, Holder, Leadership, Origin, Published, SystemClock};
use wva_core::decision::{Cause, Decision, Reason, Target, Unknown, Verdict};
use wva_core::memory::{GroupMemory, VariantMemory};
use wva_core::units::Replicas;
use wva_core::{GroupId, Memory, Report, VariantId};

use crate::cluster::{Asked, SOON, is_watch, lease_object, list, next, not_found, server, silence};

fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    #[expect(clippy::disallowed_methods, reason = "app spawns it; here the test is the app")]
    tokio::spawn(task);
}

// ---- the lease

/// A lease that several hands change: the test's and the election's.
fn shared_lease() -> (kube::Client, Arc<Mutex<Option<Value>>>, mpsc::Receiver<Asked>) {
    let lease: Arc<Mutex<Option<Value>>> = Arc::default();
    let (stored, mut version) = (lease.clone(), 10);
    let (client, writes) = server(move |asked| {
        if is_watch(asked) {
            return None;
        }
        if asked.method == "GET" && asked.query.contains("fieldSelector") {
            return list(json!([]));
        }
        let mut stored = stored.lock().unwrap();
        if asked.method != "GET" {
            version += 1;
            let mut body = asked.body.clone();
            body["metadata"]["resourceVersion"] = json!(version.to_string());
            body["metadata"]["uid"] =
                json!(format!("l-{}", if asked.method == "POST" { version } else { 11 }));
            *stored = Some(body);
        }
        stored.clone().map_or_else(not_found, |lease| Some((200, lease)))
    });
    (client, lease, writes)
}

struct Running {
    leadership: watch::Receiver<Leadership>,
    campaign: CancellationToken,
    observe: CancellationToken,
    ended: Arc<tokio::sync::Notify>,
}

fn running(client: kube::Client) -> Running {
    let settings = lease::Settings {
        duration: Duration::from_secs(1),
        renew_deadline: Duration::from_millis(700),
        retry_period: Duration::from_millis(50),
        ..lease::Settings::new("wva", "a", None)
    };
    let (election, leadership) = Election::new(client, settings, Arc::new(SystemClock));
    let (campaign, observe) = (CancellationToken::new(), CancellationToken::new());
    let ended = Arc::new(tokio::sync::Notify::new());
    let (first, second, end) = (campaign.clone(), observe.clone(), ended.clone());
    spawn(async move {
        election.run(first, second).await;
        end.notify_one();
    });
    Running { leadership, campaign, observe, ended }
}

async fn until(
    leadership: &mut watch::Receiver<Leadership>,
    is: impl FnMut(&Leadership) -> bool,
) -> Leadership {
    timeout(SOON, leadership.wait_for(is)).await.expect("in time").expect("an open channel").clone()
}

#[tokio::test]
async fn an_instance_that_gave_the_lease_up_learns_who_is_next() {
    let (client, lease, mut writes) = shared_lease();
    spawn(async move { while writes.recv().await.is_some() {} });
    let mut running = running(client);
    until(&mut running.leadership, Leadership::is_mine).await;
    running.campaign.cancel();
    until(&mut running.leadership, |now| now.holder.is_none()).await;
    sleep(Duration::from_millis(200)).await; // several looks at a free lease
    let given_up = lease.lock().unwrap().clone().unwrap();
    assert!(given_up["spec"]["holderIdentity"].is_null(), "not taken again: {given_up}");

    let mut next = lease_object("90", "b", 2);
    next["metadata"]["annotations"] = json!({ lease::ADDRESS_ANNOTATION: "https://10.0.0.2:6443" });
    *lease.lock().unwrap() = Some(next);
    let now = until(&mut running.leadership, |now| now.holder.is_some()).await;
    let holder = now.holder.unwrap();
    assert_eq!((holder.identity.as_str(), holder.address.as_deref()), ("b", Some("https://10.0.0.2:6443")));
    assert_eq!((holder.lease.as_str(), holder.epoch, now.mine_until), ("l-1", 2, None));

    running.observe.cancel();
    timeout(SOON, running.ended.notified()).await.expect("it ends");
    let left = lease.lock().unwrap().clone().unwrap();
    assert_eq!(left["metadata"]["resourceVersion"], "90", "an observer writes nothing");
}

#[tokio::test]
async fn a_lease_that_is_deleted_under_its_holder_is_another_lease() {
    let (client, lease, mut writes) = shared_lease();
    let mut running = running(client);
    assert_eq!(next(&mut writes).await.method, "POST");
    let before = until(&mut running.leadership, Leadership::is_mine).await.holder.unwrap();
    *lease.lock().unwrap() = None;
    let made = async {
        loop {
            let write = next(&mut writes).await;
            if write.method == "POST" {
                return write;
            }
        }
    };
    let made = timeout(SOON, made).await.unwrap();
    assert_eq!(made.body["spec"]["leaseTransitions"], 1, "a new count, not the middle of one");
    let other = |now: &Leadership| now.holder.as_ref().is_some_and(|holder| holder.lease != before.lease);
    assert!(until(&mut running.leadership, other).await.is_mine());
}

#[tokio::test]
async fn a_lease_that_is_deleted_makes_no_second_holder_beside_the_one_that_it_had() {
    let (client, lease, mut writes) = shared_lease();
    *lease.lock().unwrap() = Some(lease_object("90", "b", 2));
    let began = Instant::now();
    let mut running = running(client);
    until(&mut running.leadership, |now| now.holder.is_some()).await;
    *lease.lock().unwrap() = None;
    sleep(Duration::from_millis(300)).await; // several looks at no lease
    assert_eq!(running.leadership.borrow().holder.as_ref().unwrap().identity, "b", "who may go on deciding");
    assert_eq!(next(&mut writes).await.method, "POST", "nobody has made it anew");
    assert!(began.elapsed() >= Duration::from_secs(1), "after its duration: {:?}", began.elapsed());
}

#[tokio::test]
async fn a_holder_whose_lease_ran_out_does_not_name_itself_as_the_one_to_ask() {
    let (mut lease, cut) = (lease_object("10", "a", 1), Arc::new(AtomicBool::new(false)));
    lease["spec"]["leaseDurationSeconds"] = json!(60);
    let is_cut = cut.clone();
    let (client, mut writes) = server(move |asked| match asked.method.as_str() {
        "GET" if is_watch(asked) => None,
        "GET" if asked.query.contains("fieldSelector") => list(json!([])),
        _ if is_cut.load(Ordering::Relaxed) => Some((500, json!({ "kind": "Status", "code": 500 }))),
        "GET" => Some((200, lease.clone())),
        _ => Some((200, asked.body.clone())),
    });
    spawn(async move { while writes.recv().await.is_some() {} });
    let mut running = running(client);
    let held = until(&mut running.leadership, Leadership::is_mine).await;
    assert_eq!(held.holder.unwrap().identity, "a");
    cut.store(true, Ordering::Relaxed);
    let lapsed = until(&mut running.leadership, |now| now.holder.is_none()).await;
    assert_eq!(lapsed.mine_until, None, "though the object names it for a minute more");
}

// ---- watches

type Watches = Arc<Mutex<Vec<(String, String)>>>;

/// Every watch of this room against a server whose lists have `code`, and which watches and lists it saw.
fn all_watches(code: u16) -> (Watches, CancellationToken) {
    let (seen, stop) = (Watches::default(), CancellationToken::new());
    let told = seen.clone();
    let (client, mut writes) = server(move |asked| {
        let object = asked.path.rsplit('/').next().unwrap_or_default();
        if asked.method == "GET" && !object.starts_with("72dd") && object != "wva-tls" {
            told.lock().unwrap().push((asked.path.clone(), asked.query.clone()));
        }
        match asked.method.as_str() {
            "GET" if is_watch(asked) => None,
            "GET" if asked.path.contains("/leases/") || object == "wva-tls" => not_found(),
            "GET" if code == 200 => list(json!([])),
            "GET" => Some((code, json!({ "kind": "Status", "code": code, "message": "no", "reason": "x" }))),
            _ => Some((200, asked.body.clone())),
        }
    });
    spawn(async move { while writes.recv().await.is_some() {} });
    let clock = Arc::new(SystemClock);
    let (cluster, reader) = ClusterWatch::new(client.clone(), wva::cluster::watch::Settings::default());
    let (trust, trusted) = TrustWatch::new(client.clone());
    let settings = lease::Settings::new("wva", "a", None);
    let (election, leadership) = Election::new(client.clone(), settings, clock.clone());
    let store = StateStore::new(client.clone(), "wva", "wva", clock.clone());
    let settings = certificates::Settings {
        namespace: "wva".into(),
        secret: "wva-tls".into(),
        service: "wva".into(),
        settle: certificates::SETTLE,
    };
    let (services, known) = ApiServiceWatch::new(client.clone(), crate::cluster_certificates::ours());
    let certificates = Certificates::new(client, settings, clock, Some(known));
    let end = stop.clone();
    spawn(async move {
        let (publish, bundles) = watch::channel(None);
        let board = Board::new();
        tokio::join!(
            cluster.run(end.clone()),
            trust.run(end.clone()),
            election.run(end.clone(), end.clone()),
            store.follow(&board, leadership, end.clone()),
            services.run(end.clone()),
            certificates.run(publish, end.clone()),
        );
        drop((reader, trusted, bundles));
    });
    (seen, stop)
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_went_silent_is_asked_for_again() {
    let (seen, stop) = all_watches(200);
    sleep(Duration::from_secs(1)).await;
    let watches = |seen: &Watches| {
        let mut count: BTreeMap<String, u32> = BTreeMap::new();
        for (path, query) in seen.lock().unwrap().iter().filter(|(_, query)| query.contains("watch=")) {
            assert!(query.contains("timeoutSeconds=60"), "{path}?{query}");
            *count.entry(path.clone()).or_default() += 1;
        }
        count
    };
    let first = watches(&seen);
    assert_eq!(first.values().sum::<u32>(), 12, "{first:?}");
    // A request that is open and says nothing is made anew: no answer will ever come on it.
    seen.lock().unwrap().clear();
    sleep(Duration::from_secs(140)).await;
    let later = watches(&seen);
    assert_eq!(later, first.into_iter().map(|(path, count)| (path, 2 * count)).collect(), "each after 65 s");
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_list_that_keeps_failing_is_asked_for_ever_more_seldom() {
    let (seen, stop) = all_watches(500);
    sleep(Duration::from_secs(60)).await;
    stop.cancel();
    let lists = |path: &str| seen.lock().unwrap().iter().filter(|(asked, _)| asked.ends_with(path)).count();
    for (path, watches) in [("/variantautoscalings", 1), ("/pods", 1), ("/leases", 1), ("/apiservices", 3)] {
        let count = lists(path) / watches;
        assert!((3..=12).contains(&count), "{count} lists of {path} in a minute");
    }
}

// ---- state objects

/// The state objects as a server keeps them, by name.
type Maps = Arc<Mutex<BTreeMap<String, Value>>>;

struct Writing {
    maps: Maps,
    writes: mpsc::Receiver<Asked>,
    board: Board,
    memory: watch::Sender<Arc<Memory>>,
    leadership: watch::Sender<Leadership>,
    sequence: u64,
}

fn kind_of(map: &Value) -> &str {
    map["metadata"]["labels"]["wva.llmd.ai/state"].as_str().unwrap_or_default()
}

/// A holder's writer; `loses_at_list`: the lease is lost when objects are listed.
fn writing(maps: Maps, loses_at_list: bool) -> Writing {
    let holder = Holder { identity: "a".into(), address: None, lease: "l-1".into(), epoch: 3 };
    let mine_until = Some(Instant::now() + Duration::from_secs(3600));
    let leadership = watch::Sender::new(Leadership { holder: Some(holder), mine_until });
    let (kept, taken, mut version) = (maps.clone(), leadership.clone(), 100);
    let (client, writes) = server(move |asked| {
        let mut kept = kept.lock().unwrap();
        let name = asked.path.rsplit('/').next().unwrap_or_default();
        match asked.method.as_str() {
            _ if is_watch(asked) => None,
            // Whoever looks which of them are there asks for all kinds at once.
            "GET" if name == "configmaps" && !asked.query.contains("state%3D") => {
                list(kept.values().cloned().collect())
            }
            "GET" if name == "configmaps" => {
                if loses_at_list {
                    taken.send_replace(Leadership::default());
                }
                let of_kind = |map: &&Value| asked.query.contains(kind_of(map));
                list(kept.values().filter(of_kind).cloned().collect())
            }
            "GET" => kept.get(name).map_or_else(not_found, |map| Some((200, map.clone()))),
            "DELETE" => {
                let map = kept.remove(name);
                Some((200, map.unwrap_or_default()))
            }
            _ => {
                version += 1;
                let mut map = asked.body.clone();
                map["metadata"]["resourceVersion"] = json!(version.to_string());
                kept.insert(map["metadata"]["name"].as_str().unwrap().into(), map.clone());
                Some((200, map))
            }
        }
    });
    let (board, memory) = (Board::new(), watch::Sender::new(Arc::new(Memory::default())));
    let store = StateStore::new(client, "wva", "wva", Arc::new(SystemClock));
    let (published, remembered, held) = (board.subscribe(), memory.subscribe(), leadership.subscribe());
    let writer = StateWriter::new(store, published, remembered, held, Duration::from_secs(300));
    spawn(writer.run(CancellationToken::new()));
    Writing { maps, writes, board, memory, leadership, sequence: 0 }
}

fn id(index: u32) -> VariantId {
    VariantId::new("llm", format!("v{index}"))
}

fn target(desired: u32, second: i64) -> Verdict {
    let evidence = Timestamp::from_second(1_700_000_000 + second).unwrap();
    Verdict::Target(Target {
        desired: Replicas::new(desired),
        reason: Reason::Steady,
        message: "m".repeat(400).into(),
        evidence,
    })
}

impl Writing {
    fn publish(&mut self, verdicts: impl IntoIterator<Item = (VariantId, Verdict)>) {
        self.sequence += 1;
        let decision =
            |verdict| Decision { model: "m".into(), accelerator: None, current: None, verdict, gap: None };
        self.board.publish(Published {
            sequence: self.sequence,
            at: Timestamp::from_second(1_700_000_000 + i64::try_from(self.sequence).unwrap()).unwrap(),
            took: Duration::ZERO,
            origin: Origin::Computed,
            term: None,
            decisions: verdicts.into_iter().map(|(id, verdict)| (id, decision(verdict))).collect(),
            report: Report::default(),
            victims: BTreeMap::new(),
        });
    }

    /// The names of the objects that are written or deleted from now on until nothing comes any more.
    async fn names(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        while let Ok(Some(asked)) = timeout(Duration::from_secs(4), self.writes.recv()).await {
            let name = asked.body["metadata"]["name"].as_str().map(str::to_owned);
            names.push(name.unwrap_or_else(|| format!("{} {}", asked.method, asked.path)));
        }
        names
    }
}

/// Twelve hundred variants: several objects.
fn fleet(second: i64, changed: Option<u32>) -> Vec<(VariantId, Verdict)> {
    (0..1200).map(|i| (id(i), target(if changed == Some(i) { 9 } else { 2 }, second))).collect()
}

#[tokio::test(start_paused = true)]
async fn one_changed_variant_rewrites_its_own_object_only() {
    let mut writing = writing(Maps::default(), false);
    writing.publish(fleet(0, None));
    let all = writing.names().await;
    assert!(all.len() >= 4, "{all:?}");
    writing.publish(fleet(5, None));
    assert_eq!(writing.names().await, Vec::<String>::new(), "newer evidence alone waits");
    writing.publish(fleet(10, Some(7)));
    let written = writing.names().await;
    assert_eq!(written.len(), 1, "{written:?}");
    let lines = writing.maps.lock().unwrap()[&written[0]]["data"]["entries"].as_str().unwrap().to_owned();
    assert!(lines.contains(r#""desired":9"#), "{}", &lines[..300]);
    // The others become due a minute after they were written; the one that was written since, later.
    writing.publish(fleet(61, Some(7)));
    let others = writing.names().await;
    assert_eq!(others.len(), all.len() - 1, "{others:?}");
    assert!(!others.contains(&written[0]));
}

#[tokio::test(start_paused = true)]
async fn a_number_that_becomes_unknown_is_in_the_memory_before_it_leaves_the_decisions() {
    let mut writing = writing(Maps::default(), false);
    writing.publish([(id(0), target(5, 0))]);
    assert_eq!(writing.names().await, ["wva-state-decisions-0"]);
    let remember = |writing: &Writing, replicas| {
        let variant = VariantMemory { target: Some(Replicas::new(replicas)), ..VariantMemory::default() };
        let group = GroupMemory { variants: [("v0".into(), variant)].into(), ..GroupMemory::default() };
        let groups = BTreeMap::from([(GroupId::new("llm", "m"), group)]);
        writing.memory.send_replace(Arc::new(Memory { groups, ..Memory::default() }));
    };
    let unknown = || {
        let since = Timestamp::from_second(1_700_000_000).unwrap();
        Verdict::Unknown(Unknown { cause: Cause::TooOld, message: "no evidence".into(), since })
    };
    remember(&writing, 5);
    writing.publish([(id(0), unknown())]);
    assert_eq!(writing.names().await, ["wva-state-memory-0", "wva-state-decisions-0"]);

    // Back and forth within ten seconds: the memory is written once more, but not at every turn.
    writing.publish([(id(0), target(6, 5))]);
    assert_eq!(writing.names().await, ["wva-state-decisions-0"]);
    remember(&writing, 6);
    writing.publish([(id(0), unknown())]);
    assert_eq!(writing.names().await, ["wva-state-decisions-0"], "8 s after the last");
    writing.publish([(id(0), unknown())]);
    assert_eq!(writing.names().await, ["wva-state-memory-0"], "owed");
    let lines = writing.maps.lock().unwrap()["wva-state-memory-0"]["data"]["entries"].to_string();
    assert!(lines.contains(r#"\"target\":6"#), "{lines}");
}

/// An object of a larger layout, as `holder` of `epoch` left it.
fn left_behind(epoch: i64) -> Maps {
    let header = json!({ "version": 1, "holder": "b", "lease": "l-1", "epoch": epoch, "written": "2023-01-01T00:00:00Z" });
    let labels = json!({ "wva.llmd.ai/state": "decisions", "wva.llmd.ai/installation": "wva" });
    let name = "wva-state-decisions-5";
    let map = json!({
        "metadata": { "name": name, "uid": "m-5", "resourceVersion": "50", "labels": labels },
        "data": { "header": header.to_string(), "entries": "" }
    });
    Arc::new(Mutex::new(BTreeMap::from([(name.to_owned(), map)])))
}

#[tokio::test]
async fn an_object_is_removed_only_as_it_was_seen() {
    let mut writing = writing(left_behind(2), false);
    writing.publish([(id(0), target(5, 0))]);
    assert_eq!(next(&mut writing.writes).await.method, "POST");
    let removed = next(&mut writing.writes).await;
    assert_eq!(removed.method, "DELETE");
    assert!(removed.path.ends_with("/wva-state-decisions-5"));
    assert_eq!(removed.body["preconditions"], json!({ "resourceVersion": "50", "uid": "m-5" }));
}

#[tokio::test]
async fn who_lost_the_lease_removes_nothing() {
    let mut lost = writing(left_behind(2), true);
    lost.publish([(id(0), target(5, 0))]);
    assert_eq!(next(&mut lost.writes).await.method, "POST");
    silence(&mut lost.writes).await;
    assert!(!lost.leadership.borrow().is_mine());

    let mut replaced = writing(left_behind(4), false);
    replaced.publish([(id(0), target(5, 0))]);
    assert_eq!(next(&mut replaced.writes).await.method, "POST");
    silence(&mut replaced.writes).await;
}
