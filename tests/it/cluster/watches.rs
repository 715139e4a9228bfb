//! How watches are kept, and what the first state waits for.

use parking_lot::Mutex;
use tokio::time::sleep;
use wva::cluster::{
    ApiServiceWatch, CertificateManager, CertificateSettings, Election, ElectionSettings, ServiceRef,
    TrustWatch,
};
use wva::config::LEASE_NAME;

use super::*;

/// A list that the service account may not have must not hold up the first state for more than 10 s.
#[tokio::test(start_paused = true)]
async fn the_first_state_waits_ten_seconds_for_namespaces_and_nodes_that_cannot_be_listed() {
    for (forbidden, needs_nodes) in [("/api/v1/namespaces", false), ("/api/v1/nodes", true)] {
        let (client, _writes) = server(move |request| match request.path.as_str() {
            _ if request.is_watch() => None,
            path if path == forbidden => Some(status(403, "Forbidden")),
            _ => list(json!([])),
        });
        let (_sender, needs_nodes) = watch::channel(needs_nodes);
        let (watches, reader) = ClusterWatch::new(client, WatchSettings::default());
        let began = Instant::now();
        spawn(watches.with_inventory(needs_nodes).run(CancellationToken::new()));
        let synced = until(&reader, |state| state.view.synced);
        let view = &timeout(Duration::from_secs(20), synced).await.unwrap().view;
        assert!(view.excluded.is_empty() && view.inventory.is_none(), "{forbidden}");
        assert!(began.elapsed() >= Duration::from_secs(10), "{forbidden}: {:?}", began.elapsed());
    }
}

/// Paths and queries of lists and watches.
type Reads = Arc<Mutex<Vec<(String, String)>>>;

/// Runs every watch against a server whose lists have `code`; returns what it was asked for.
fn all_watches(code: u16) -> (Reads, CancellationToken) {
    let reads = Reads::default();
    let stop = CancellationToken::new();
    let recorded = reads.clone();
    let (client, writes) = server(move |request| {
        let object = request.path.rsplit('/').next().unwrap_or_default();
        if request.method == "GET" && object != LEASE_NAME && object != "wva-tls" {
            recorded.lock().push((request.path.clone(), request.query.clone()));
        }
        match request.method.as_str() {
            "GET" if request.is_watch() => None,
            "GET" if object == LEASE_NAME || object == "wva-tls" => not_found(),
            "GET" if code == 200 => list(json!([])),
            "GET" => Some(status(code, "x")),
            _ => Some((200, request.body.clone())),
        }
    });
    discard(writes);
    let clock = Arc::new(SystemClock);
    let (cluster, reader) = ClusterWatch::new(client.clone(), WatchSettings::default());
    let (trust, trusted, _) = TrustWatch::new(client.clone());
    let settings = ElectionSettings::new("wva", LEASE_NAME, "a", None);
    let (election, leadership) = Election::new(client.clone(), settings, clock.clone());
    let store = state_store(client.clone());
    let service = ServiceRef { namespace: "wva".into(), name: "wva".into() };
    let settings = CertificateSettings {
        secret: "wva-tls".into(),
        service: service.clone(),
        settle: Duration::from_secs(300),
    };
    let (services, apiservices) = ApiServiceWatch::new(client.clone(), service);
    let certificates = CertificateManager::new(client, settings, clock, Some(apiservices));
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
    (reads, stop)
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_went_silent_is_requested_again() {
    let (reads, _stop) = all_watches(200);
    sleep(Duration::from_secs(1)).await;
    let watches = |reads: &Reads| {
        let mut count: BTreeMap<String, u32> = BTreeMap::new();
        for (path, query) in reads.lock().iter().filter(|(_, query)| query.contains("watch=")) {
            assert!(query.contains("timeoutSeconds=60"), "{path}?{query}");
            *count.entry(path.clone()).or_default() += 1;
        }
        count
    };
    let first = watches(&reads);
    assert_eq!(first.values().sum::<u32>(), 20, "{first:?}");
    // A request that is open and silent is made anew: no answer will ever come on it.
    reads.lock().clear();
    sleep(Duration::from_secs(140)).await;
    let later = watches(&reads);
    assert_eq!(later, first.into_iter().map(|(path, count)| (path, 2 * count)).collect(), "each after 65 s");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_keeps_failing_is_requested_less_and_less_often() {
    let (reads, stop) = all_watches(500);
    sleep(Duration::from_secs(60)).await;
    stop.cancel();
    let lists = |path: &str| reads.lock().iter().filter(|(list, _)| list.ends_with(path)).count();
    for (path, watches) in [("/variantautoscalings", 1), ("/pods", 1), ("/leases", 1), ("/apiservices", 5)] {
        let count = lists(path) / watches;
        assert!((3..=12).contains(&count), "{count} lists of {path} in a minute");
    }
}

#[tokio::test(start_paused = true)]
async fn only_objects_with_the_label_of_the_controller_instance_are_read() {
    let reads = Reads::default();
    let recorded = reads.clone();
    let (client, writes) = server(move |request| {
        recorded.lock().push((request.path.clone(), request.query.clone()));
        if request.is_watch() { None } else { list(json!([])) }
    });
    discard(writes);
    let settings = WatchSettings {
        controller_instance: Some("Team_A".into()),
        annotated: true,
        ..WatchSettings::default()
    };
    let reader = watch_cluster(client, settings);
    timeout(Duration::from_secs(20), until(&reader, |state| state.view.synced)).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let labelled = ["variantautoscalings", "horizontalpodautoscalers", "scaledobjects"];
    let label = "labelSelector=wva.llmd.ai%2Fcontroller-instance%3DTeam_A";
    let mut counts = BTreeMap::<&str, usize>::new();
    for (path, query) in reads.lock().iter() {
        let of_path = labelled.into_iter().find(|resource| path.ends_with(resource));
        assert_eq!(query.split('&').any(|part| part == label), of_path.is_some(), "{path}?{query}");
        *counts.entry(of_path.unwrap_or_default()).or_default() += 1;
    }
    assert!(labelled.iter().all(|resource| counts[resource] >= 2), "a list and a watch: {counts:?}");
}
