//! State objects: when they are written and deleted, what they cannot hold, and what is not read from them.

use parking_lot::Mutex;
use wva::engine::adopt;
use wva::telemetry::StateMetrics;
use wva_core::memory::Learned;
use wva_core::{GroupId, Policy, Snapshot, decide, observe};

use super::store::Store;
use super::*;

/// Where the state objects are.
const MAPS: &str = "/api/v1/namespaces/wva/configmaps";
const DECISIONS: &str = "wva-state-decisions-0";
const MEMORY: &str = "wva-state-memory-0";

fn header(version: u32, lease: &str, epoch: i64) -> String {
    let written = "2023-01-01T00:00:00Z";
    json!({ "version": version, "holder": "b", "lease": lease, "epoch": epoch, "written": written })
        .to_string()
}

/// A state object as an earlier leader left it.
fn object(kind: &str, index: u32, header: &str, lines: &str) -> Value {
    let labels = json!({ "wva.llmd.ai/state": kind, "wva.llmd.ai/installation": "wva" });
    json!({
        "metadata": {
            "name": format!("wva-state-{kind}-{index}"), "uid": format!("m-{index}"), "resourceVersion": "50",
            "labels": labels
        },
        "data": { "header": header, "entries": lines }
    })
}

fn id(index: u32) -> VariantId {
    VariantId::new("llm", format!("v{index}"))
}

fn steady(desired: u32, seconds: i64) -> Verdict {
    target(desired, Reason::Steady, &"m".repeat(400), time(EVIDENCE + seconds))
}

// ---- the leader and those before it

/// The writes of a leader of epoch 1 of lease `l-1`, beside decisions that epoch `epoch` of `lease` left.
async fn writes_beside(lease: &str, epoch: i64) -> (Writes, CancellationToken, StateInputs) {
    let left = object("decisions", 0, &header(1, lease, epoch), "");
    let (client, writes) = server(move |request| match (request.method.as_str(), request.path.as_str()) {
        _ if request.is_watch() => None,
        ("GET", MAPS) => list(json!([])),
        ("GET", path) if path.ends_with(DECISIONS) => Some((200, left.clone())),
        ("GET", _) => not_found(),
        _ => Some((200, request.body.clone())),
    });
    let inputs = StateInputs::new(Memory::default(), held());
    let stop = CancellationToken::new();
    spawn(inputs.writer(client).run(stop.clone()));
    inputs.board.publish(published(1, 3));
    (writes, stop, inputs)
}

#[tokio::test]
async fn a_leader_writes_its_decisions_at_once_and_its_memory_when_it_ends() {
    let (mut writes, stop, _inputs) = writes_beside("l-1", 1).await;
    let decisions = next(&mut writes).await;
    let header: Value = serde_json::from_str(decisions.body["data"]["header"].as_str().unwrap()).unwrap();
    assert_eq!((&header["lease"], &header["epoch"]), (&json!("l-1"), &json!(1)));
    assert_eq!(
        (decisions.method.as_str(), &decisions.body["metadata"]["resourceVersion"]),
        ("PUT", &json!("50"))
    );
    assert!(decisions.body["data"]["entries"].as_str().unwrap().contains("llm/chat"));
    silence(&mut writes).await;
    stop.cancel();
    let memory = next(&mut writes).await;
    assert_eq!((memory.method.as_str(), &memory.body["metadata"]["name"]), ("POST", &json!(MEMORY)));
}

#[tokio::test]
async fn a_leader_that_was_replaced_overwrites_nothing() {
    let (mut writes, stop, _inputs) = writes_beside("l-1", 2).await;
    silence(&mut writes).await;
    stop.cancel();
    silence(&mut writes).await;
}

#[tokio::test]
async fn objects_of_a_deleted_lease_do_not_supersede_a_leader() {
    let (mut writes, _stop, _inputs) = writes_beside("gone", 7).await;
    assert_eq!(next(&mut writes).await.method, "PUT");
}

// ---- which objects are written

/// The state objects as a server keeps them, by name.
type Maps = Arc<Mutex<BTreeMap<String, Value>>>;

/// A leader's writer of epoch 3 beside `maps`.
struct Fixture {
    maps: Maps,
    writes: Writes,
    inputs: StateInputs,
    sequence: u64,
}

impl Fixture {
    /// `loses_at_list`: the lease is lost when objects are listed.
    fn new(maps: impl IntoIterator<Item = Value>, loses_at_list: bool) -> Self {
        let name = |map: &Value| map["metadata"]["name"].as_str().unwrap().to_owned();
        let maps: Maps = Arc::new(Mutex::new(maps.into_iter().map(|map| (name(&map), map)).collect()));
        let inputs = StateInputs::new(Memory::default(), leading(3));
        let stored = maps.clone();
        let leadership = inputs.leadership.clone();
        let mut version = 100;
        let (client, writes) = server(move |request| {
            let mut stored = stored.lock();
            let name = request.path.rsplit('/').next().unwrap_or_default();
            match request.method.as_str() {
                _ if request.is_watch() => None,
                // The watch of which objects exist lists both kinds at once.
                "GET" if name == "configmaps" && !request.query.contains("state%3D") => {
                    list(stored.values().cloned().collect())
                }
                "GET" if name == "configmaps" => {
                    if loses_at_list {
                        leadership.send_replace(Leadership::default());
                    }
                    let kind = |map: &Value| map["metadata"]["labels"]["wva.llmd.ai/state"].clone();
                    let is_wanted =
                        |map: &&Value| request.query.contains(kind(map).as_str().unwrap_or_default());
                    list(stored.values().filter(is_wanted).cloned().collect())
                }
                "GET" => stored.get(name).map_or_else(not_found, |map| Some((200, map.clone()))),
                "DELETE" => Some((200, stored.remove(name).unwrap_or_default())),
                _ => {
                    version += 1;
                    let mut map = request.body.clone();
                    map["metadata"]["resourceVersion"] = json!(version.to_string());
                    stored.insert(map["metadata"]["name"].as_str().unwrap().into(), map.clone());
                    Some((200, map))
                }
            }
        });
        spawn(inputs.writer(client).run(CancellationToken::new()));
        Self { maps, writes, inputs, sequence: 0 }
    }

    fn publish(&mut self, verdicts: impl IntoIterator<Item = (VariantId, Verdict)>) {
        self.sequence += 1;
        let decisions = verdicts.into_iter().map(|(id, verdict)| (id, decision("m", verdict)));
        self.inputs.board.publish(evaluation(self.sequence, decisions.collect()));
    }

    fn remember(&self, replicas: u32) {
        let groups = BTreeMap::from([(GroupId::new("llm", "m"), remember("v0", replicas))]);
        self.inputs.memory.send_replace(Arc::new(Memory { groups, ..Memory::default() }));
    }

    /// The names of the objects that are written, or deleted, until there is no more.
    async fn written(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        while let Ok(Some(request)) = timeout(Duration::from_secs(4), self.writes.recv()).await {
            let name = request.body["metadata"]["name"].as_str().map(str::to_owned);
            names.push(name.unwrap_or_else(|| format!("{} {}", request.method, request.path)));
        }
        names
    }

    fn lines(&self, name: &str) -> String {
        self.maps.lock()[name]["data"]["entries"].as_str().unwrap().to_owned()
    }
}

/// Twelve hundred variants: several objects.
fn fleet(seconds: i64, changed: Option<u32>) -> Vec<(VariantId, Verdict)> {
    (0..1200).map(|i| (id(i), steady(if changed == Some(i) { 9 } else { 2 }, seconds))).collect()
}

#[tokio::test(start_paused = true)]
async fn one_changed_variant_rewrites_its_own_object_only() {
    let mut fixture = Fixture::new([], false);
    fixture.publish(fleet(0, None));
    let all = fixture.written().await;
    assert!(all.len() >= 4, "{all:?}");
    fixture.publish(fleet(5, None));
    assert_eq!(fixture.written().await, Vec::<String>::new(), "newer evidence alone waits");
    fixture.publish(fleet(10, Some(7)));
    let written = fixture.written().await;
    assert_eq!(written.len(), 1, "{written:?}");
    let lines = fixture.lines(&written[0]);
    assert!(lines.contains(r#""desired":9"#), "{}", &lines[..300]);
    // The others become due a minute after they were written; the one that was written since, later.
    fixture.publish(fleet(61, Some(7)));
    let others = fixture.written().await;
    assert_eq!(others.len(), all.len() - 1, "{others:?}");
    assert!(!others.contains(&written[0]));
}

#[tokio::test(start_paused = true)]
async fn a_number_that_becomes_unknown_is_in_the_memory_before_it_leaves_the_decisions() {
    let mut fixture = Fixture::new([], false);
    let unknown = || [(id(0), too_old(time(EVIDENCE)))];
    fixture.publish([(id(0), steady(5, 0))]);
    assert_eq!(fixture.written().await, [DECISIONS]);
    fixture.remember(5);
    fixture.publish(unknown());
    assert_eq!(fixture.written().await, [MEMORY, DECISIONS]);

    // Back and forth within ten seconds: the memory is written once more, but not each time.
    fixture.publish([(id(0), steady(6, 5))]);
    assert_eq!(fixture.written().await, [DECISIONS]);
    fixture.remember(6);
    fixture.publish(unknown());
    assert_eq!(fixture.written().await, [DECISIONS], "8 s after the last");
    fixture.publish(unknown());
    assert_eq!(fixture.written().await, [MEMORY], "overdue");
    let lines = fixture.lines(MEMORY);
    assert!(lines.contains(r#""target":6"#), "{lines}");
}

/// An object of a larger layout, as the leader of `epoch` left it.
fn left_behind(epoch: i64) -> [Value; 1] {
    [object("decisions", 5, &header(1, "l-1", epoch), "")]
}

#[tokio::test]
async fn an_object_is_deleted_only_as_it_was_listed() {
    let mut fixture = Fixture::new(left_behind(2), false);
    fixture.publish([(id(0), steady(5, 0))]);
    assert_eq!(next(&mut fixture.writes).await.method, "POST");
    let deleted = next(&mut fixture.writes).await;
    assert_eq!(deleted.method, "DELETE");
    assert!(deleted.path.ends_with("/wva-state-decisions-5"));
    assert_eq!(deleted.body["preconditions"], json!({ "resourceVersion": "50", "uid": "m-5" }));
}

#[tokio::test]
async fn a_leader_that_lost_the_lease_deletes_nothing() {
    for (epoch, loses_at_list) in [(2, true), (4, false)] {
        let mut fixture = Fixture::new(left_behind(epoch), loses_at_list);
        fixture.publish([(id(0), steady(5, 0))]);
        assert_eq!(next(&mut fixture.writes).await.method, "POST");
        silence(&mut fixture.writes).await;
        assert_eq!(fixture.inputs.leadership.borrow().is_mine(), !loses_at_list);
    }
}

// ---- what they cannot hold, and what is not read

#[tokio::test]
async fn objects_of_another_version_are_dropped_and_the_first_report_says_so() {
    let (client, _writes) = server(|request| {
        let of = |kind: &str| request.query.contains(kind);
        match () {
            () if of("memory") => {
                list(json!([object("memory", 0, &header(99, "l-1", 1), "{\"another\":\"shape\"}")]))
            }
            () if of("decisions") => list(json!([object("decisions", 0, &header(1, "l-1", 1), "no line\n")])),
            () => not_found(),
        }
    });
    let memory = adopt(state_store(client).load().await.unwrap());
    let snapshot = Snapshot {
        now: Timestamp::UNIX_EPOCH,
        groups: BTreeMap::new(),
        invalid: Vec::new(),
        inventory: None,
        elsewhere: BTreeMap::new(),
        unlabelled: None,
    };
    let first = decide(&snapshot, &observe(&snapshot, memory), &Policy::default());
    let dropped = first.report.dropped.join("\n");
    assert!(dropped.contains("wva-state-memory-0 is of version 99"), "{dropped}");
    assert!(dropped.contains("1 damaged entries of the state objects for decisions"), "{dropped}");
    let second = decide(&snapshot, &first.memory, &Policy::default());
    assert_eq!(second.report.dropped, [""; 0], "once");
}

/// The state objects that version 0.1.0 wrote at its end, after ten minutes of the rate policy on a real control plane.
const EARLIER_OBJECTS: &str = include_str!("fixtures/state-objects-of-a-rate-policy.json");

#[tokio::test]
async fn numbers_reasons_and_what_was_learned_by_version_0_1_0_are_read() {
    let api = Store::new();
    let objects: Vec<Value> = serde_json::from_str(EARLIER_OBJECTS).unwrap();
    let [decision, memory] = [0, 1].map(|index| -> Value {
        serde_json::from_str(objects[index]["data"]["entries"].as_str().unwrap()).unwrap()
    });
    for object in objects {
        api.put(&format!("{MAPS}/{}", object["metadata"]["name"].as_str().unwrap()), object);
    }
    let restored = state_store(api.client()).load().await.unwrap();
    assert_eq!(restored.memory.dropped, [""; 0]);
    let read = &restored.decisions[&VariantId::new("llm", "llama")];
    let Verdict::Target(target) = &read.verdict else { panic!("no number: {read:?}") };
    assert_eq!((target.desired, target.reason), (Replicas::new(4), Reason::Steady));
    let message = "llm/llama: 6.25 requests/s of 11.94 that 4 replicas carry; a reserve of 57 % for a surge allows 7.60";
    assert_eq!(target.explanation.to_string(), message);
    let group = &restored.memory.groups[&GroupId::new("llm", "llama")];
    let variant = group.variants.get("llama").unwrap();
    assert_eq!((variant.target, variant.reason), (Some(Replicas::new(4)), Some(Reason::Steady)));
    assert!(group.learned.is_some());
    // Nothing is lost: written again, both are what they were.
    assert_eq!(serde_json::to_value(read).unwrap(), decision["value"]);
    assert_eq!(serde_json::to_value(group).unwrap(), memory["value"]);
}

/// The memory of `count` models, with a kilobyte learned of each.
fn memory(count: u32) -> Memory {
    let name = |at: u32| format!("{at}|{}", "r".repeat(110));
    let bests: serde_json::Map<_, _> = (0..8).map(|at| (name(at), json!([[50_000, 1.5]]))).collect();
    let learned = Learned { bests: serde_json::from_value(bests.into()).unwrap(), ..Learned::default() };
    let group = |index| GroupMemory { learned: Some(Box::new(learned.clone())), ..remember("v", index) };
    let groups = (0..count).map(|index| (GroupId::new("llm", format!("m{index}")), group(index)));
    Memory { groups: groups.collect(), ..Memory::default() }
}

#[tokio::test]
async fn memories_that_do_not_fit_lose_what_was_learned_and_keep_their_targets() {
    const MODELS: u32 = 5_000;
    let (client, mut writes) = server(|request| match request.method.as_str() {
        "GET" if request.is_watch() => None,
        "GET" if request.path.ends_with("/configmaps") => list(json!([])),
        "GET" => not_found(),
        _ => Some((200, request.body.clone())),
    });
    let mut registry = Registry::default();
    let inputs = StateInputs::new(memory(MODELS), held());
    let writer = inputs.writer(client).with_metrics(StateMetrics::register(&mut registry));
    inputs.board.publish(Published { sequence: 1, origin: Origin::Computed, ..Published::empty() });
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
    let text = metrics(&registry);
    let counted = format!("wva_state_entries_cut{{kind=\"memory\",lost=\"learned\"}} {without}");
    assert!(text.contains(&counted) && text.contains("lost=\"all\"} 0"), "{text}");
}

// ---- objects that somebody deletes

/// The lines of the first object of a kind.
fn lines(store: &Store, kind: &str) -> String {
    let object = store.get(&format!("{MAPS}/wva-state-{kind}-0"));
    object.map(|object| object["data"]["entries"].as_str().unwrap().to_owned()).unwrap_or_default()
}

fn is_written(kind: &'static str) -> impl Fn(&Store) -> Option<()> {
    move |api| (!lines(api, kind).is_empty()).then_some(())
}

#[tokio::test]
async fn state_objects_that_somebody_deletes_are_written_again_at_once() {
    let api = Store::new();
    let inputs = StateInputs::new(memory(3), held());
    let stop = CancellationToken::new();
    let running = async {
        api.until_watched().await;
        inputs.board.publish(published(1, 3));
        api.until(SOON, is_written("decisions")).await;
        // A number that is gone makes the memory the only place that has it.
        inputs.board.publish(unknown(2));
        api.until(SOON, is_written("memory")).await;
        api.until(SOON, |api| lines(api, "decisions").contains("TooOld").then_some(())).await;
        let before = (lines(&api, "decisions"), lines(&api, "memory"));
        for kind in ["decisions", "memory"] {
            // Nothing changes: no evaluation is published any more.
            api.delete(&format!("{MAPS}/wva-state-{kind}-0"));
            api.until(SOON, is_written(kind)).await;
        }
        assert_eq!((lines(&api, "decisions"), lines(&api, "memory")), before);
        stop.cancel();
    };
    tokio::join!(inputs.writer(api.client()).run(stop.clone()), running);
}

#[tokio::test]
async fn the_memory_of_an_earlier_leader_is_written_again_when_somebody_deletes_it() {
    for delete in [Store::delete, Store::delete_unwatched] {
        let api = Store::new();
        let path = format!("{MAPS}/{MEMORY}");
        let left = object("memory", 0, &header(1, "l-1", 1), "of the leader before\n");
        api.put(&path, left);
        let inputs = StateInputs::new(memory(3), held());
        let stop = CancellationToken::new();
        let running = async {
            api.until_watched().await;
            inputs.board.publish(published(1, 3));
            api.until(SOON, is_written("decisions")).await;
            assert_eq!(lines(&api, "memory"), "of the leader before\n", "for the first five minutes");
            delete(&api, &path);
            api.until(SOON, |api| lines(api, "memory").contains("\"target\":2").then_some(())).await;
            stop.cancel();
        };
        tokio::join!(inputs.writer(api.client()).run(stop.clone()), running);
    }
}
