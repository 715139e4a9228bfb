//! State objects: when they are written and deleted, what they cannot hold, and what is not read from them.

use http::Method;
use tokio::time::sleep;
use wva::engine::adopt;
use wva::telemetry::StateMetrics;
use wva_core::memory::Learned;
use wva_core::{GroupId, Policy, Snapshot, decide, observe};

use super::*;
use crate::api_server::{ApiServer, Write};

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

/// A writer of epoch `epoch` of lease `l-1`, beside `objects` that an earlier leader left.
struct Fixture {
    api: ApiServer,
    inputs: StateInputs,
    stop: CancellationToken,
    sequence: u64,
    /// The writes that were compared already.
    compared: usize,
}

impl Fixture {
    fn new(epoch: i64, objects: impl IntoIterator<Item = Value>) -> Self {
        let api = ApiServer::new();
        objects.into_iter().for_each(|object| put(&api, object));
        let inputs = StateInputs::new(Memory::default(), leading(epoch));
        let stop = CancellationToken::new();
        spawn(inputs.writer(api.client()).run(stop.clone()));
        Self { api, inputs, stop, sequence: 0, compared: 0 }
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

    /// The next write, in time.
    async fn next(&mut self) -> Write {
        let at = self.compared;
        self.compared += 1;
        self.api.until(WRITE_TIMEOUT, |api| api.writes(MAPS).into_iter().nth(at)).await
    }

    /// The names of the objects that are written, or deleted, within four seconds.
    async fn written(&mut self) -> Vec<String> {
        sleep(Duration::from_secs(4)).await;
        let writes = self.api.writes(MAPS).split_off(self.compared);
        self.compared += writes.len();
        let name = |write: &Write| write.body["metadata"]["name"].as_str().map(str::to_owned);
        writes
            .iter()
            .map(|write| name(write).unwrap_or_else(|| format!("{} {}", write.method, write.path)))
            .collect()
    }

    fn lines(&self, name: &str) -> String {
        let object = self.api.get(&format!("{MAPS}/{name}")).unwrap();
        object["data"]["entries"].as_str().unwrap().to_owned()
    }
}

fn put(api: &ApiServer, object: Value) {
    api.put(&format!("{MAPS}/{}", object["metadata"]["name"].as_str().unwrap()), object);
}

// ---- the leader and those before it

/// A leader of epoch 1 of lease `l-1`, beside decisions that epoch `epoch` of `lease` left.
fn beside(lease: &str, epoch: i64) -> Fixture {
    let mut fixture = Fixture::new(1, [object("decisions", 0, &header(1, lease, epoch), "")]);
    fixture.publish([(id(0), steady(3, 0))]);
    fixture
}

#[tokio::test(start_paused = true)]
async fn a_leader_writes_its_decisions_at_once_and_its_memory_when_it_ends() {
    let mut fixture = beside("l-1", 1);
    let version =
        fixture.api.get(&format!("{MAPS}/{DECISIONS}")).unwrap()["metadata"]["resourceVersion"].clone();
    let decisions = fixture.next().await;
    let header: Value = serde_json::from_str(decisions.body["data"]["header"].as_str().unwrap()).unwrap();
    assert_eq!((&header["lease"], &header["epoch"]), (&json!("l-1"), &json!(1)));
    assert_eq!((decisions.method, &decisions.body["metadata"]["resourceVersion"]), (Method::PUT, &version));
    assert!(decisions.body["data"]["entries"].as_str().unwrap().contains("llm/v0"));
    assert_eq!(fixture.written().await, [""; 0]);
    fixture.stop.cancel();
    let memory = fixture.next().await;
    assert_eq!((memory.method, &memory.body["metadata"]["name"]), (Method::POST, &json!(MEMORY)));
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_was_replaced_overwrites_nothing() {
    let mut fixture = beside("l-1", 2);
    assert_eq!(fixture.written().await, [""; 0]);
    fixture.stop.cancel();
    assert_eq!(fixture.written().await, [""; 0]);
}

#[tokio::test]
async fn objects_of_a_deleted_lease_do_not_supersede_a_leader() {
    assert_eq!(beside("gone", 7).next().await.method, Method::PUT);
}

// ---- which objects are written

/// Twelve hundred variants: several objects.
fn fleet(seconds: i64, changed: Option<u32>) -> Vec<(VariantId, Verdict)> {
    (0..1200).map(|i| (id(i), steady(if changed == Some(i) { 9 } else { 2 }, seconds))).collect()
}

#[tokio::test(start_paused = true)]
async fn one_changed_variant_rewrites_its_own_object_only() {
    let mut fixture = Fixture::new(3, []);
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
    let mut fixture = Fixture::new(3, []);
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
    let mut fixture = Fixture::new(3, left_behind(2));
    let left = fixture.api.get(&format!("{MAPS}/wva-state-decisions-5")).unwrap()["metadata"].clone();
    fixture.publish([(id(0), steady(5, 0))]);
    assert_eq!(fixture.next().await.method, Method::POST);
    let deleted = fixture.next().await;
    assert_eq!(deleted.method, Method::DELETE);
    assert!(deleted.path.ends_with("/wva-state-decisions-5"));
    let expected = json!({ "resourceVersion": left["resourceVersion"], "uid": "m-5" });
    assert_eq!(deleted.body["preconditions"], expected);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_lost_the_lease_deletes_nothing() {
    for (epoch, loses_at_list) in [(2, true), (4, false)] {
        let mut fixture = Fixture::new(3, left_behind(epoch));
        let leadership = fixture.inputs.leadership.clone();
        fixture.api.on_list(move |query| {
            // Not by the list of the watch, which is of both kinds.
            if loses_at_list && query.contains("state%3D") {
                leadership.send_replace(Leadership::default());
            }
        });
        fixture.publish([(id(0), steady(5, 0))]);
        assert_eq!(fixture.written().await, [DECISIONS]);
        assert_eq!(fixture.inputs.leadership.borrow().is_mine(), !loses_at_list);
    }
}

// ---- what they cannot hold, and what is not read

#[tokio::test]
async fn objects_of_another_version_are_dropped_and_the_first_report_says_so() {
    let api = ApiServer::new();
    put(&api, object("memory", 0, &header(99, "l-1", 1), "{\"another\":\"shape\"}"));
    put(&api, object("decisions", 0, &header(1, "l-1", 1), "no line\n"));
    let memory = adopt(state_store(api.client()).load().await.unwrap());
    let snapshot = Snapshot::new(Timestamp::UNIX_EPOCH, BTreeMap::new());
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
    let api = ApiServer::new();
    let objects: Vec<Value> = serde_json::from_str(EARLIER_OBJECTS).unwrap();
    let [decision, memory] = [0, 1].map(|index| -> Value {
        serde_json::from_str(objects[index]["data"]["entries"].as_str().unwrap()).unwrap()
    });
    objects.into_iter().for_each(|object| put(&api, object));
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
    let api = ApiServer::new();
    let mut registry = Registry::default();
    let inputs = StateInputs::new(memory(MODELS), held());
    let writer = inputs.writer(api.client()).with_metrics(StateMetrics::register(&mut registry));
    inputs.board.publish(Published { sequence: 1, origin: Origin::Computed, ..Published::empty() });
    let stop = CancellationToken::new();
    // At its end the writer writes everything.
    stop.cancel();
    writer.run(stop).await;
    let entries = |write: &Write| write.body["data"]["entries"].as_str().unwrap().to_owned();
    let lines: String = api.writes(MAPS).iter().map(entries).collect();
    assert_eq!(lines.matches("\"target\":").count(), MODELS as usize, "every target is kept");
    let without = lines.lines().filter(|line| !line.contains("learned")).count();
    assert!(without > 0 && without < MODELS as usize, "{without}");
    let text = metrics(&registry);
    let counted = format!("wva_state_entries_cut{{kind=\"memory\",lost=\"learned\"}} {without}");
    assert!(text.contains(&counted) && text.contains("lost=\"all\"} 0"), "{text}");
}

// ---- objects that somebody deletes

/// The lines of the first object of a kind.
fn lines(store: &ApiServer, kind: &str) -> String {
    let object = store.get(&format!("{MAPS}/wva-state-{kind}-0"));
    object.map(|object| object["data"]["entries"].as_str().unwrap().to_owned()).unwrap_or_default()
}

fn is_written(kind: &'static str) -> impl Fn(&ApiServer) -> Option<()> {
    move |api| (!lines(api, kind).is_empty()).then_some(())
}

#[tokio::test]
async fn state_objects_that_somebody_deletes_are_written_again_at_once() {
    let api = ApiServer::new();
    let inputs = StateInputs::new(memory(3), held());
    let stop = CancellationToken::new();
    let running = async {
        api.until_watched().await;
        inputs.board.publish(published(1, 3));
        api.until(WRITE_TIMEOUT, is_written("decisions")).await;
        // A number that is gone makes the memory the only place that has it.
        inputs.board.publish(unknown(2));
        api.until(WRITE_TIMEOUT, is_written("memory")).await;
        api.until(WRITE_TIMEOUT, |api| lines(api, "decisions").contains("TooOld").then_some(())).await;
        let before = (lines(&api, "decisions"), lines(&api, "memory"));
        for kind in ["decisions", "memory"] {
            // Nothing changes: no evaluation is published any more.
            api.delete(&format!("{MAPS}/wva-state-{kind}-0"));
            api.until(WRITE_TIMEOUT, is_written(kind)).await;
        }
        assert_eq!((lines(&api, "decisions"), lines(&api, "memory")), before);
        stop.cancel();
    };
    tokio::join!(inputs.writer(api.client()).run(stop.clone()), running);
}

#[tokio::test]
async fn the_memory_of_an_earlier_leader_is_written_again_when_somebody_deletes_it() {
    for delete in [ApiServer::delete, ApiServer::delete_unwatched] {
        let api = ApiServer::new();
        let path = format!("{MAPS}/{MEMORY}");
        let left = object("memory", 0, &header(1, "l-1", 1), "of the leader before\n");
        api.put(&path, left);
        let inputs = StateInputs::new(memory(3), held());
        let stop = CancellationToken::new();
        let running = async {
            api.until_watched().await;
            inputs.board.publish(published(1, 3));
            api.until(WRITE_TIMEOUT, is_written("decisions")).await;
            assert_eq!(lines(&api, "memory"), "of the leader before\n", "for the first five minutes");
            delete(&api, &path);
            api.until(WRITE_TIMEOUT, |api| lines(api, "memory").contains("\"target\":2").then_some(())).await;
            stop.cancel();
        };
        tokio::join!(inputs.writer(api.client()).run(stop.clone()), running);
    }
}
