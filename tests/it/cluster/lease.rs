//! The election over one Lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::sleep;
use wva::cluster::leadership::lease::ADDRESS_ANNOTATION;
use wva::cluster::{Election, ElectionSettings};
use wva::config::LEASE_NAME;

use super::*;

const ADDRESS: &str = "https://10.0.0.1:6443";

fn lease_object(version: &str, holder: &str, transitions: i32) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": LEASE_NAME, "namespace": "wva", "resourceVersion": version, "uid": "l-1" },
        "spec": {
            "holderIdentity": holder, "leaseDurationSeconds": 1, "leaseTransitions": transitions,
            // A clock that is a century ahead must not matter.
            "renewTime": "2126-01-01T00:00:00.000000Z"
        }
    })
}

/// The lease as the server has it; the test may change it too.
type StoredLease = Arc<Mutex<Option<Value>>>;

/// A server with one lease: replaced and created as requested, with a version of its own each time, and a uid for each that
/// is created.
fn lease_server(lease: Option<Value>) -> (kube::Client, StoredLease, Writes) {
    let lease = Arc::new(Mutex::new(lease));
    let stored = lease.clone();
    let mut version = 10;
    let (client, writes) = server(move |request| {
        if request.is_watch() {
            return None;
        }
        if request.method == "GET" && request.query.contains("fieldSelector") {
            return list(json!([]));
        }
        let mut stored = stored.lock();
        if request.method != "GET" {
            version += 1;
            let mut body = request.body.clone();
            body["metadata"]["resourceVersion"] = json!(version.to_string());
            let uid = if request.method == "POST" { version } else { 11 };
            body["metadata"]["uid"] = json!(format!("l-{uid}"));
            *stored = Some(body);
        }
        stored.clone().map_or_else(not_found, |lease| Some((200, lease)))
    });
    (client, lease, writes)
}

/// An election of instance `a` with a duration of one second.
struct Running {
    leadership: watch::Receiver<Leadership>,
    campaign: CancellationToken,
    observe: CancellationToken,
    ended: Arc<Notify>,
}

impl Running {
    fn new(client: kube::Client) -> Self {
        let settings = ElectionSettings {
            duration: Duration::from_secs(1),
            renew_deadline: Duration::from_millis(700),
            retry_period: Duration::from_millis(50),
            ..ElectionSettings::new("wva", LEASE_NAME, "a", Some(ADDRESS.to_owned()))
        };
        let (election, leadership) = Election::new(client, settings, Arc::new(SystemClock));
        let campaign = CancellationToken::new();
        let observe = CancellationToken::new();
        let ended = Arc::new(Notify::new());
        let campaign_until = campaign.clone();
        let observe_until = observe.clone();
        let end = ended.clone();
        spawn(async move {
            election.run(campaign_until, observe_until).await;
            end.notify_one();
        });
        Self { leadership, campaign, observe, ended }
    }

    async fn until(&mut self, condition: impl FnMut(&Leadership) -> bool) -> Leadership {
        timeout(SOON, self.leadership.wait_for(condition))
            .await
            .expect("in time")
            .expect("an open channel")
            .clone()
    }
}

/// The identity of the holder.
fn holder(leadership: &Leadership) -> Option<&str> {
    leadership.holder.as_ref().map(|holder| holder.identity.as_str())
}

/// The next write that is as wanted.
async fn next_where(writes: &mut Writes, wanted: impl Fn(&ApiRequest) -> bool) -> ApiRequest {
    let matching = async {
        loop {
            let write = next(writes).await;
            if wanted(&write) {
                return write;
            }
        }
    };
    timeout(SOON, matching).await.unwrap()
}

#[tokio::test]
async fn the_first_instance_creates_the_lease_with_its_address_and_renews_it() {
    let (client, _, mut writes) = lease_server(None);
    let mut running = Running::new(client);
    let created = next(&mut writes).await;
    assert_eq!(created.method, "POST");
    assert_eq!(created.path, "/apis/coordination.k8s.io/v1/namespaces/wva/leases");
    assert_eq!(created.body["spec"]["holderIdentity"], "a");
    assert_eq!(created.body["spec"]["leaseTransitions"], 1);
    assert_eq!(created.body["metadata"]["annotations"][ADDRESS_ANNOTATION], ADDRESS);
    running.until(Leadership::is_mine).await;
    let renewed = next(&mut writes).await;
    assert_eq!(
        (renewed.method.as_str(), &renewed.body["metadata"]["resourceVersion"]),
        ("PUT", &json!("11"))
    );
    assert_eq!(renewed.body["spec"]["leaseTransitions"], 1, "the same epoch");
    assert_eq!(renewed.body["spec"]["acquireTime"], created.body["spec"]["acquireTime"]);
}

#[tokio::test]
async fn a_lease_expires_by_our_own_clock_and_not_by_its_renew_time() {
    let (client, _, mut writes) = lease_server(Some(lease_object("7", "b", 4)));
    let mut running = Running::new(client);
    running.until(|leadership| holder(leadership) == Some("b")).await;
    silence(&mut writes).await;
    let taken = next(&mut writes).await;
    assert_eq!((taken.method.as_str(), &taken.body["metadata"]["resourceVersion"]), ("PUT", &json!("7")));
    assert_eq!(taken.body["spec"]["leaseTransitions"], 5, "a new epoch");
}

#[tokio::test]
async fn an_instance_that_ends_releases_the_lease() {
    let (client, _, mut writes) = lease_server(None);
    let mut running = Running::new(client);
    next(&mut writes).await;
    running.until(Leadership::is_mine).await;
    running.campaign.cancel();
    let released = next_where(&mut writes, |write| write.body["spec"]["holderIdentity"].is_null()).await;
    assert_eq!(released.body["spec"]["leaseTransitions"], 1, "the next holder counts on from here");
    assert!(released.body["metadata"]["annotations"].get(ADDRESS_ANNOTATION).is_none());
}

#[tokio::test]
async fn an_instance_that_released_the_lease_observes_the_next_holder_and_writes_nothing() {
    let (client, lease, writes) = lease_server(None);
    discard(writes);
    let mut running = Running::new(client);
    running.until(Leadership::is_mine).await;
    running.campaign.cancel();
    running.until(|now| now.holder.is_none()).await;
    sleep(Duration::from_millis(200)).await; // several looks at a free lease
    let released = lease.lock().clone().unwrap();
    assert!(released["spec"]["holderIdentity"].is_null(), "not taken again: {released}");

    let mut next = lease_object("90", "b", 2);
    next["metadata"]["annotations"] = json!({ ADDRESS_ANNOTATION: "https://10.0.0.2:6443" });
    *lease.lock() = Some(next);
    let now = running.until(|now| now.holder.is_some()).await;
    let holder = now.holder.unwrap();
    assert_eq!((holder.identity.as_str(), holder.address.as_deref()), ("b", Some("https://10.0.0.2:6443")));
    assert_eq!((holder.lease.as_str(), holder.epoch, now.mine_until), ("l-1", 2, None));

    running.observe.cancel();
    timeout(SOON, running.ended.notified()).await.expect("it ends");
    let left = lease.lock().clone().unwrap();
    assert_eq!(left["metadata"]["resourceVersion"], "90", "an observer writes nothing");
}

#[tokio::test]
async fn a_lease_that_is_deleted_under_its_holder_is_another_lease() {
    let (client, lease, mut writes) = lease_server(None);
    let mut running = Running::new(client);
    assert_eq!(next(&mut writes).await.method, "POST");
    let before = running.until(Leadership::is_mine).await.holder.unwrap();
    *lease.lock() = None;
    let created = next_where(&mut writes, |write| write.method == "POST").await;
    assert_eq!(created.body["spec"]["leaseTransitions"], 1, "a new count, not the middle of one");
    let other = |now: &Leadership| now.holder.as_ref().is_some_and(|holder| holder.lease != before.lease);
    assert!(running.until(other).await.is_mine());
}

#[tokio::test]
async fn a_deleted_lease_makes_no_second_holder_before_it_would_have_expired() {
    let (client, lease, mut writes) = lease_server(Some(lease_object("90", "b", 2)));
    let began = Instant::now();
    let mut running = Running::new(client);
    running.until(|now| now.holder.is_some()).await;
    *lease.lock() = None;
    sleep(Duration::from_millis(300)).await; // several looks at no lease
    assert_eq!(holder(&running.leadership.borrow()), Some("b"), "it may go on deciding");
    assert_eq!(next(&mut writes).await.method, "POST", "nobody has created it anew");
    assert!(began.elapsed() >= Duration::from_secs(1), "after its duration: {:?}", began.elapsed());
}

#[tokio::test]
async fn a_holder_whose_lease_expired_does_not_name_itself_as_the_holder() {
    let mut lease = lease_object("10", "a", 1);
    let cut = Arc::new(AtomicBool::new(false));
    lease["spec"]["leaseDurationSeconds"] = json!(60);
    let is_cut = cut.clone();
    let (client, writes) = server(move |request| match request.method.as_str() {
        "GET" if request.is_watch() => None,
        "GET" if request.query.contains("fieldSelector") => list(json!([])),
        _ if is_cut.load(Ordering::Relaxed) => Some((500, json!({ "kind": "Status", "code": 500 }))),
        "GET" => Some((200, lease.clone())),
        _ => Some((200, request.body.clone())),
    });
    discard(writes);
    let mut running = Running::new(client);
    let held = running.until(Leadership::is_mine).await;
    assert_eq!(holder(&held), Some("a"));
    cut.store(true, Ordering::Relaxed);
    let lapsed = running.until(|now| now.holder.is_none()).await;
    assert_eq!(lapsed.mine_until, None, "though the object names it for a minute more");
}
