//! The election over one Lease.

use http::Method;
use tokio::sync::Notify;
use tokio::time::sleep;
use wva::cluster::leadership::lease::ADDRESS_ANNOTATION;
use wva::cluster::{Election, ElectionSettings};
use wva::config::{LEASE_NAME, LeaseTimes};

use super::*;
use crate::api_server::{ApiServer, Write};

const ADDRESS: &str = "https://10.0.0.1:6443";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/wva/leases";

fn lease_path() -> String {
    format!("{LEASES}/{LEASE_NAME}")
}

/// An API server with a lease that `holder` has.
fn with_lease(holder: &str, transitions: i32) -> ApiServer {
    let api = ApiServer::new();
    put_lease(&api, holder, transitions, 1);
    api
}

fn put_lease(api: &ApiServer, holder: &str, transitions: i32, seconds: i32) {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": LEASE_NAME, "namespace": "wva", "uid": "l-1" },
        "spec": {
            "holderIdentity": holder, "leaseDurationSeconds": seconds, "leaseTransitions": transitions,
            // A clock that is a century ahead must not matter.
            "renewTime": "2126-01-01T00:00:00.000000Z"
        }
    });
    api.put(&lease_path(), lease);
}

fn lease(api: &ApiServer) -> Value {
    api.get(&lease_path()).unwrap()
}

/// The write `index` of those that match.
async fn write(api: &ApiServer, index: usize, matches: impl Fn(&Write) -> bool) -> Write {
    api.until(WRITE_TIMEOUT, |api| api.writes(LEASES).into_iter().filter(&matches).nth(index)).await
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
        let times = LeaseTimes {
            duration: Duration::from_secs(1),
            renew_deadline: Duration::from_millis(700),
            retry_period: Duration::from_millis(50),
        };
        let settings =
            ElectionSettings::new("wva", LEASE_NAME, "a", Some(ADDRESS.to_owned())).with_times(times);
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
        timeout(WRITE_TIMEOUT, self.leadership.wait_for(condition))
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

#[tokio::test]
async fn the_first_instance_creates_the_lease_with_its_address_and_renews_it() {
    let api = ApiServer::new();
    let mut running = Running::new(api.client());
    let created = write(&api, 0, |_| true).await;
    assert_eq!((created.method, created.path.as_str()), (Method::POST, LEASES));
    assert_eq!(created.body["spec"]["holderIdentity"], "a");
    assert_eq!(created.body["spec"]["leaseTransitions"], 1);
    assert_eq!(created.body["metadata"]["annotations"][ADDRESS_ANNOTATION], ADDRESS);
    let version = lease(&api)["metadata"]["resourceVersion"].clone();
    running.until(Leadership::is_mine).await;
    let renewed = write(&api, 1, |_| true).await;
    assert_eq!((renewed.method, &renewed.body["metadata"]["resourceVersion"]), (Method::PUT, &version));
    assert_eq!(renewed.body["spec"]["leaseTransitions"], 1, "the same epoch");
    assert_eq!(renewed.body["spec"]["acquireTime"], created.body["spec"]["acquireTime"]);
}

#[tokio::test]
async fn a_lease_expires_by_our_own_clock_and_not_by_its_renew_time() {
    let api = with_lease("b", 4);
    let version = lease(&api)["metadata"]["resourceVersion"].clone();
    let mut running = Running::new(api.client());
    running.until(|leadership| holder(leadership) == Some("b")).await;
    sleep(QUIET_WINDOW).await;
    assert!(api.writes("").is_empty());
    let taken = write(&api, 0, |_| true).await;
    assert_eq!((taken.method, &taken.body["metadata"]["resourceVersion"]), (Method::PUT, &version));
    assert_eq!(taken.body["spec"]["leaseTransitions"], 5, "a new epoch");
}

#[tokio::test]
async fn an_instance_that_ends_releases_the_lease() {
    let api = ApiServer::new();
    let mut running = Running::new(api.client());
    running.until(Leadership::is_mine).await;
    running.campaign.cancel();
    let released = write(&api, 0, |write| write.body["spec"]["holderIdentity"].is_null()).await;
    assert_eq!(released.body["spec"]["leaseTransitions"], 1, "the next holder counts on from here");
    assert!(released.body["metadata"]["annotations"].get(ADDRESS_ANNOTATION).is_none());
}

#[tokio::test]
async fn an_instance_that_released_the_lease_observes_the_next_holder_and_writes_nothing() {
    let api = ApiServer::new();
    let mut running = Running::new(api.client());
    running.until(Leadership::is_mine).await;
    running.campaign.cancel();
    running.until(|now| now.holder.is_none()).await;
    sleep(Duration::from_millis(200)).await; // several reads of a free lease
    let released = lease(&api);
    assert!(released["spec"]["holderIdentity"].is_null(), "not taken again: {released}");

    let writes = api.writes("").len();
    put_lease(&api, "b", 2, 1);
    api.change(&lease_path(), |lease| {
        lease["metadata"]["annotations"] = json!({ ADDRESS_ANNOTATION: "https://10.0.0.2:6443" });
    });
    let address = |now: &Leadership| now.holder.as_ref().and_then(|holder| holder.address.clone());
    let now = running.until(|now| address(now).is_some()).await;
    let holder = now.holder.unwrap();
    assert_eq!((holder.identity.as_str(), holder.address.as_deref()), ("b", Some("https://10.0.0.2:6443")));
    assert_eq!((holder.lease.as_str(), holder.epoch, now.mine_until), ("l-1", 2, None));

    running.observe.cancel();
    timeout(WRITE_TIMEOUT, running.ended.notified()).await.expect("it ends");
    assert_eq!(api.writes("").len(), writes, "an observer writes nothing");
}

#[tokio::test]
async fn a_lease_that_is_deleted_under_its_holder_is_another_lease() {
    let api = ApiServer::new();
    let mut running = Running::new(api.client());
    let before = running.until(Leadership::is_mine).await.holder.unwrap();
    api.delete(&lease_path());
    let created = write(&api, 1, |write| write.method == Method::POST).await;
    assert_eq!(created.body["spec"]["leaseTransitions"], 1, "a new count, not the middle of one");
    let has_another_lease =
        |now: &Leadership| now.holder.as_ref().is_some_and(|holder| holder.lease != before.lease);
    assert!(running.until(has_another_lease).await.is_mine());
}

#[tokio::test]
async fn a_deleted_lease_makes_no_second_holder_before_it_would_have_expired() {
    let api = with_lease("b", 2);
    let began = Instant::now();
    let mut running = Running::new(api.client());
    running.until(|now| now.holder.is_some()).await;
    api.delete(&lease_path());
    sleep(Duration::from_millis(300)).await; // several reads of no lease
    assert_eq!(holder(&running.leadership.borrow()), Some("b"), "it may go on deciding");
    let created = write(&api, 0, |_| true).await;
    assert_eq!(created.method, Method::POST, "nobody has created it anew");
    assert!(began.elapsed() >= Duration::from_secs(1), "after its duration: {:?}", began.elapsed());
}

#[tokio::test]
async fn a_holder_whose_lease_expired_does_not_name_itself_as_the_holder() {
    let api = ApiServer::new();
    put_lease(&api, "a", 1, 60);
    let mut running = Running::new(api.client());
    let held = running.until(Leadership::is_mine).await;
    assert_eq!(holder(&held), Some("a"));
    api.forbid("");
    let lapsed = running.until(|now| now.holder.is_none()).await;
    assert_eq!(lapsed.mine_until, None, "though the object names it for a minute more");
}
