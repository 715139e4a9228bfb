//! What a state object cannot hold, and what is not read from one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use wva::cluster::{StateStore, StateWriter};
use wva::engine::{Board, Holder, Leadership, Origin, Published, SystemClock, adopt};
use wva::telemetry::StateMetrics;
use wva_core::memory::{GroupMemory, Learned, VariantMemory};
use wva_core::units::Replicas;
use wva_core::{GroupId, Memory, Policy, Snapshot, decide, observe};

use crate::cluster::{self, held, is_watch, list, next, not_found, server};
use crate::cluster_store::Store;

/// Where the state objects are.
const MAPS: &str = "/api/v1/namespaces/wva/configmaps";

/// A state object as a holder of this lease left it.
fn object(kind: &str, version: u32, lines: &str) -> Value {
    let header = json!({ "version": version, "holder": "b", "lease": "l-1", "epoch": 1, "written": "2026-01-01T00:00:00Z" });
    let labels = json!({ "wva.llmd.ai/state": kind, "wva.llmd.ai/installation": "wva" });
    json!({
        "metadata": { "name": format!("wva-state-{kind}-0"), "labels": labels },
        "data": { "header": header.to_string(), "entries": lines }
    })
}

#[tokio::test]
async fn what_another_version_kept_is_dropped_and_the_first_report_says_so() {
    let (client, _writes) = server(|asked| {
        let of = |kind: &str| asked.query.contains(kind);
        match () {
            () if of("memory") => list(json!([object("memory", 99, "{\"another\":\"shape\"}")])),
            () if of("decisions") => list(json!([object("decisions", 1, "no line\n")])),
            () => not_found(),
        }
    });
    let store = StateStore::new(client, "wva", "wva", Arc::new(SystemClock));
    let memory = adopt(store.load().await.unwrap());
    let now = Timestamp::UNIX_EPOCH;
    let snapshot = Snapshot {
        now,
        groups: BTreeMap::new(),
        invalid: Vec::new(),
        inventory: None,
        elsewhere: BTreeMap::new(),
        unlabelled: None,
    };
    let first = decide(&snapshot, &observe(&snapshot, memory), &Policy::default());
    let told = first.report.dropped.join("\n");
    assert!(told.contains("wva-state-memory-0 is of version 99"), "{told}");
    assert!(told.contains("1 damaged entries of the state objects for decisions"), "{told}");
    let second = decide(&snapshot, &first.memory, &Policy::default());
    assert_eq!(second.report.dropped, [""; 0], "once");
}

/// What is remembered of `count` models, with a kilobyte learned of each.
fn memory(count: u32) -> Memory {
    let name = |at: u32| format!("{at}|{}", "r".repeat(110));
    let bests: serde_json::Map<_, _> = (0..8).map(|at| (name(at), json!([[50_000, 1.5]]))).collect();
    let learned = Learned { bests: serde_json::from_value(bests.into()).unwrap(), ..Learned::default() };
    let group = |index: u32| {
        let variant = VariantMemory { target: Some(Replicas::new(index)), ..VariantMemory::default() };
        let variants = [("v".into(), variant)].into();
        GroupMemory { learned: Some(Box::new(learned.clone())), variants, ..GroupMemory::default() }
    };
    let groups = (0..count).map(|index| (GroupId::new("llm", format!("m{index}")), group(index)));
    Memory { groups: groups.collect(), ..Memory::default() }
}

#[tokio::test]
async fn memories_that_do_not_fit_lose_what_was_learned_keep_their_targets_and_are_counted() {
    const MODELS: u32 = 5_000;
    let (client, mut writes) = server(|asked| match asked.method.as_str() {
        "GET" if is_watch(asked) => None,
        "GET" if asked.path.ends_with("/configmaps") => list(json!([])),
        "GET" => not_found(),
        _ => Some((200, asked.body.clone())),
    });
    let mut registry = Registry::default();
    let holder = Holder { identity: "a".into(), address: None, lease: "l-1".into(), epoch: 1 };
    let mine_until = Some(Instant::now() + Duration::from_secs(3600));
    let leadership = watch::Sender::new(Leadership { holder: Some(holder), mine_until });
    let (board, memory) = (Board::new(), watch::Sender::new(Arc::new(memory(MODELS))));
    let store = StateStore::new(client, "wva", "wva", Arc::new(SystemClock));
    let (published, held) = (board.subscribe(), leadership.subscribe());
    let writer = StateWriter::new(store, published, memory.subscribe(), held, Duration::from_secs(300))
        .counted_by(StateMetrics::register(&mut registry));
    board.publish(Published { sequence: 1, origin: Origin::Computed, ..Published::empty() });
    let stop = CancellationToken::new();
    // At its end the writer writes everything.
    stop.cancel();
    let reading = async {
        let mut lines = String::new();
        for _ in 0..16 {
            lines.push_str(next(&mut writes).await.body["data"]["entries"].as_str().unwrap());
        }
        next(&mut writes).await;
        lines
    };
    let ((), lines) = tokio::join!(writer.run(stop), reading);
    assert_eq!(lines.matches("\"target\":").count(), MODELS as usize, "every target is kept");
    let without = lines.lines().filter(|line| !line.contains("learned")).count();
    assert!(without > 0 && without < MODELS as usize, "{without}");
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let counted = format!("wva_state_entries_cut{{kind=\"memory\",lost=\"learned\"}} {without}");
    assert!(text.contains(&counted) && text.contains("lost=\"all\"} 0"), "{text}");
}

/// What the objects hold, of one kind.
fn lines(store: &Store, kind: &str) -> String {
    let object = store.get(&format!("{MAPS}/wva-state-{kind}-0"));
    object.map(|object| object["data"]["entries"].as_str().unwrap().to_owned()).unwrap_or_default()
}

/// The leader's writer of what `board` publishes, and what it goes on reading from.
fn writer(
    api: &Store,
    board: &Board,
) -> (StateWriter, (watch::Sender<Leadership>, watch::Sender<Arc<Memory>>)) {
    let (leadership, memory) = (watch::Sender::new(held()), watch::Sender::new(Arc::new(memory(3))));
    let store = StateStore::new(api.client(), "wva", "wva", Arc::new(SystemClock));
    let (published, held) = (board.subscribe(), leadership.subscribe());
    let writer = StateWriter::new(store, published, memory.subscribe(), held, Duration::from_secs(300));
    (writer, (leadership, memory))
}

#[tokio::test]
async fn state_objects_that_somebody_deletes_are_written_again_at_once() {
    let api = Store::new();
    let board = Board::new();
    let (writer, _inputs) = writer(&api, &board);
    let stop = CancellationToken::new();
    let cancel = stop.clone();
    let running = async {
        api.until_watched().await;
        board.publish(cluster::published(1, 3));
        let written = |kind: &'static str| move |api: &Store| (!lines(api, kind).is_empty()).then_some(());
        api.until(cluster::SOON, written("decisions")).await;
        // A number that is gone makes the memory the only place that knows it.
        board.publish(cluster::unknown(2));
        api.until(cluster::SOON, written("memory")).await;
        api.until(cluster::SOON, |api| lines(api, "decisions").contains("TooOld").then_some(())).await;
        let before = (lines(&api, "decisions"), lines(&api, "memory"));
        for kind in ["decisions", "memory"] {
            // Nothing changes: no evaluation is published any more.
            api.delete(&format!("{MAPS}/wva-state-{kind}-0"));
            api.until(cluster::SOON, written(kind)).await;
        }
        assert_eq!((lines(&api, "decisions"), lines(&api, "memory")), before);
        stop.cancel();
    };
    tokio::join!(writer.run(cancel), running);
}

#[tokio::test]
async fn the_memory_that_an_earlier_holder_left_is_written_again_when_somebody_deletes_it() {
    memory_left_is_written_again(Store::delete).await;
}

#[tokio::test]
async fn the_memory_that_an_earlier_holder_left_is_written_again_though_nobody_saw_its_deletion() {
    memory_left_is_written_again(Store::delete_unwatched).await;
}

async fn memory_left_is_written_again(delete: impl Fn(&Store, &str)) {
    let (api, path) = (Store::new(), format!("{MAPS}/wva-state-memory-0"));
    api.put(&path, object("memory", 1, "of the holder before\n"));
    let board = Board::new();
    let (writer, _inputs) = writer(&api, &board);
    let stop = CancellationToken::new();
    let cancel = stop.clone();
    let running = async {
        api.until_watched().await;
        board.publish(cluster::published(1, 3));
        let decided = |api: &Store| (!lines(api, "decisions").is_empty()).then_some(());
        api.until(cluster::SOON, decided).await;
        assert_eq!(lines(&api, "memory"), "of the holder before\n", "for the first five minutes");
        delete(&api, &path);
        api.until(cluster::SOON, |api| lines(api, "memory").contains("\"target\":2").then_some(())).await;
        stop.cancel();
    };
    tokio::join!(writer.run(cancel), running);
}
