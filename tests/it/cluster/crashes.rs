//! The program crashes after each number of writes to the API server, with the last one answered or not. The next instance must
//! find every number, no number that nobody decided, and repair everything.

use wva::cluster::StatusWriter;
use wva::cluster::pki::certificates::ROTATED_ANNOTATION;
use wva::engine::{Revision, adopt};
use wva_core::GroupId;

use super::certificates::SECRET;
use super::*;
use crate::api_server::{ApiServer, Crash};

/// Writes after which every sweep has ended: the largest has some dozens.
const MAX_WRITES: usize = 200;
/// Variants of the second evaluation: 1,500 lines of 330 bytes are half a megabyte, in four objects.
const VARIANTS: u32 = 1_500;
/// Variants of the first: all in one object.
const FIRST: u32 = 50;

/// Time between two evaluations: more than the state writer waits for anything but its periodic write of the memory.
const BETWEEN: Duration = Duration::from_secs(60);

/// Every crash: after each number of writes, with the last one answered or not.
fn crashes() -> impl Iterator<Item = Crash> {
    (1..MAX_WRITES).flat_map(|after| [true, false].map(|answered| Crash { after, answered }))
}

fn leader(epoch: i64) -> Leadership {
    let holder = Holder { identity: format!("holder-{epoch}"), address: None, lease: "l-1".into(), epoch };
    Leadership { holder: Some(holder), ..held() }
}

fn model(index: u32) -> String {
    format!("m{index}")
}

fn verdict(desired: Option<u32>) -> Verdict {
    match desired {
        Some(desired) => target(desired, Reason::Steady, &"x".repeat(150), time(1_767_225_600)),
        None => too_old(time(1_767_225_600)),
    }
}

/// One evaluation: decisions, and the memory after it.
struct Evaluation {
    published: Published,
    memory: Memory,
    desired: BTreeMap<VariantId, u32>,
}

/// `count` variants with the number that `desired` gives; with `unknown`, every third decision has none.
fn evaluation(sequence: u64, count: u32, desired: impl Fn(u32) -> u32, unknown: bool) -> Evaluation {
    let mut decisions = BTreeMap::new();
    let mut memory = Memory::default();
    let mut numbers = BTreeMap::new();
    let mut revisions = BTreeMap::new();
    for index in 0..count {
        let number = desired(index);
        let shown = (!(unknown && index % 3 == 0)).then_some(number);
        let name = format!("v{index}");
        let id = VariantId::new("llm", name.as_str());
        decisions.insert(id.clone(), decision(&model(index), verdict(shown)));
        numbers.insert(id.clone(), number);
        revisions.insert(id, Revision { uid: format!("u-{index}").into(), generation: 1 });
        memory.groups.insert(GroupId::new("llm", model(index)), remember(&name, number));
    }
    let revisions = Arc::new(revisions);
    let published =
        Published { sequence, origin: Origin::Computed, decisions, revisions, ..Published::empty() };
    Evaluation { published, memory, desired: numbers }
}

/// The number of every variant that a new leader has.
async fn restored(api: &ApiServer) -> BTreeMap<VariantId, u32> {
    let loaded = timeout(WRITE_TIMEOUT, state_store(api.client()).load()).await.unwrap().unwrap();
    assert_eq!(loaded.memory.dropped, [""; 0], "nothing is damaged");
    let memory = adopt(loaded);
    let variants = memory.groups.iter().flat_map(|(group, memory)| {
        let targets = memory.variants.iter().filter_map(|(name, variant)| Some((name, variant.target?)));
        targets.map(|(name, target)| (VariantId::new(group.namespace.clone(), name.clone()), target.get()))
    });
    variants.collect()
}

/// Writes all of each evaluation in the name of `epoch`, as a leader does that ends then; or crashes.
async fn write_states(api: &ApiServer, epoch: i64, evaluations: &[&Evaluation]) {
    for evaluation in evaluations {
        let inputs = StateInputs::new(evaluation.memory.clone(), leader(epoch));
        inputs.board.publish(evaluation.published.clone());
        // Cancelled before it begins, it writes everything once, the memory first.
        let stop = CancellationToken::new();
        stop.cancel();
        let crashed = api.until(Duration::from_secs(60), |api| api.has_crashed().then_some(()));
        tokio::select! {
            biased;
            () = inputs.writer(api.client()).run(stop) => {}
            () = crashed => return,
        }
    }
}

/// Publishes the evaluations one after the other while a writer in the name of `epoch` runs, until it has nothing left to
/// write and is killed; or crashes.
async fn run_states(api: &ApiServer, epoch: i64, evaluations: &[&Evaluation]) {
    let inputs = StateInputs::new(Memory::default(), leader(epoch));
    let publishing = async {
        for evaluation in evaluations {
            inputs.memory.send_replace(Arc::new(evaluation.memory.clone()));
            inputs.board.publish(evaluation.published.clone());
            // On a paused clock this is over when there is nothing left to do.
            tokio::time::sleep(BETWEEN).await;
        }
    };
    let crashed = api.until(10 * BETWEEN, |api| api.has_crashed().then_some(()));
    tokio::select! {
        biased;
        () = inputs.writer(api.client()).run(CancellationToken::new()) => panic!("it was not cancelled"),
        () = crashed => {}
        () = publishing => {}
    }
}

/// Every crash while `following` is written by `write` after `first`: each variant has a number that was decided, and the next
/// leader repairs everything. Returns the number of crashes.
async fn sweep_states(
    first: &Evaluation,
    following: &[&Evaluation],
    write: impl AsyncFn(&ApiServer, &[&Evaluation]),
) -> usize {
    let mut count = 0;
    for crash in crashes() {
        let api = ApiServer::new();
        write_states(&api, 1, &[first]).await;
        assert_eq!(restored(&api).await, first.desired);
        api.crash(Some(crash));
        write(&api, following).await;
        let ended = !api.has_crashed();
        count += usize::from(!ended);
        api.crash(None);
        let numbers = restored(&api).await;
        for id in first.desired.keys() {
            assert!(numbers.contains_key(id), "{crash:?}: {id} has no number");
        }
        for (id, number) in &numbers {
            let known =
                [first].iter().chain(following).any(|evaluation| evaluation.desired.get(id) == Some(number));
            assert!(known, "{crash:?}: nobody decided {number} for {id}");
        }
        let last = following.last().copied().unwrap_or(first);
        write_states(&api, 2, &[last]).await;
        assert_eq!(restored(&api).await, last.desired, "{crash:?}");
        if ended {
            return count;
        }
    }
    panic!("the sweep does not end");
}

#[tokio::test]
async fn a_crash_between_any_two_writes_of_the_last_state_loses_and_invents_no_number() {
    let first = evaluation(1, FIRST, |index| index + 1, false);
    let second = evaluation(2, VARIANTS, |index| index + 2, true);
    let write = async |api: &ApiServer, following: &[&Evaluation]| write_states(api, 1, following).await;
    let count = sweep_states(&first, &[&second], write).await;
    assert!(count >= 10, "the sweep went through {count} crashes");
}

#[tokio::test(start_paused = true)]
async fn a_running_leader_that_crashes_between_any_two_writes_loses_and_invents_no_number() {
    let first = evaluation(1, FIRST, |index| index + 1, false);
    // Objects come, then a few numbers change and are lost from the decisions, then objects go.
    let second = evaluation(2, VARIANTS, |index| index + 2, false);
    let third = evaluation(3, VARIANTS, |index| index + 2 + u32::from(index < 7), true);
    let fourth = evaluation(4, FIRST, |index| index + 4, false);
    let write = async |api: &ApiServer, following: &[&Evaluation]| run_states(api, 1, following).await;
    let count = sweep_states(&first, &[&second, &third, &fourth], write).await;
    assert!(count >= 20, "the sweep went through {count} crashes");
}

/// An API server with the variants `llm/v0` to `llm/v3`.
fn with_variants() -> ApiServer {
    let api = ApiServer::new();
    for index in 0..4 {
        let name = format!("v{index}");
        api.put(
            &format!("/apis/llmd.ai/v1alpha1/namespaces/llm/variantautoscalings/{name}"),
            json!({
                "apiVersion": "llmd.ai/v1alpha1", "kind": "VariantAutoscaling",
                "metadata": { "namespace": "llm", "name": name, "uid": format!("u-{index}"), "generation": 1 },
                "spec": { "scaleTargetRef": { "kind": "Deployment", "name": name }, "modelID": model(index) }
            }),
        );
    }
    api
}

/// Writes the statuses of `evaluation` until `api` has them, or crashes.
async fn write_statuses(api: &ApiServer, evaluation: &Evaluation) {
    let (watches, reader) = ClusterWatch::new(api.client(), WatchSettings::default());
    let board = Board::new();
    let leadership = watch::Sender::new(held());
    let stop = CancellationToken::new();
    let writer = StatusWriter::new(
        api.client(),
        reader.clone(),
        board.subscribe(),
        leadership.subscribe(),
        "a".into(),
        |_| Vec::new(),
    );
    let desired = evaluation.desired.clone();
    let driving = async {
        reader.subscribe().wait_for(|state| state.view.synced).await.unwrap();
        board.publish(evaluation.published.clone());
        api.until(WRITE_TIMEOUT, |api| (api.has_crashed() || statuses(api) == desired).then_some(())).await;
    };
    tokio::select! {
        () = watches.run(stop.clone()) => {}
        () = writer.run(stop.clone()) => {}
        () = driving => {}
    }
}

/// The number in every status that has one.
fn statuses(api: &ApiServer) -> BTreeMap<VariantId, u32> {
    let number = |index: u32| {
        let name = format!("v{index}");
        let object = api.get(&format!("/apis/llmd.ai/v1alpha1/namespaces/llm/variantautoscalings/{name}"))?;
        let number = object["status"]["desiredOptimizedAlloc"]["numReplicas"].as_u64()?;
        Some((VariantId::new("llm", name), u32::try_from(number).unwrap()))
    };
    (0..4).filter_map(number).collect()
}

#[tokio::test]
async fn a_crash_between_any_two_writes_of_statuses_leaves_numbers_that_were_decided() {
    let first = evaluation(1, 4, |index| index + 1, false);
    let second = evaluation(2, 4, |index| index + 5, false);
    let mut count = 0;
    for crash in crashes() {
        let api = with_variants();
        write_statuses(&api, &first).await;
        assert_eq!(statuses(&api), first.desired);
        api.crash(Some(crash));
        write_statuses(&api, &second).await;
        let ended = !api.has_crashed();
        count += usize::from(!ended);
        api.crash(None);
        for (id, number) in statuses(&api) {
            assert!([first.desired[&id], second.desired[&id]].contains(&number), "{crash:?}: {id} {number}");
        }
        write_statuses(&api, &second).await;
        assert_eq!(statuses(&api), second.desired, "{crash:?}");
        if ended {
            break;
        }
    }
    assert!(count >= 8, "the sweep went through {count} crashes");
}

/// True when the requested rotation is over, and the API server trusts what the Secret has.
fn is_rotated(api: &ApiServer) -> bool {
    let Some(secret) = api.get(SECRET) else { return false };
    let trusted = certificates::text(&secret["data"], "ca.crt");
    let done = secret["metadata"]["annotations"][ROTATED_ANNOTATION] == "please";
    let carried = certificates::carried(api);
    done && certificates::authorities(&trusted) == 1 && carried.as_ref() == Some(&trusted)
}

/// Issues the certificates, and a new CA on request, until all is done or the instance crashes.
async fn rotate(api: &ApiServer) {
    let (bundles, stop) = certificates::instance(api);
    let has_ended = |api: &ApiServer| (api.has_crashed() || is_rotated(api)).then_some(());
    let has_begun =
        |api: &ApiServer| (api.has_crashed() || certificates::carried(api).is_some()).then_some(());
    api.until(certificates::ROTATION, has_begun).await;
    if !api.has_crashed() {
        certificates::request_rotation(api, "please");
        api.until(4 * certificates::ROTATION, has_ended).await;
    }
    stop.cancel();
    drop(bundles);
}

#[tokio::test(start_paused = true)]
async fn a_crash_between_any_two_writes_of_certificates_leaves_a_rotation_that_goes_on() {
    let mut count = 0;
    for crash in crashes() {
        let api = ApiServer::installed();
        api.crash(Some(crash));
        rotate(&api).await;
        let ended = !api.has_crashed();
        count += usize::from(!ended);
        api.crash(None);
        if let (Some(secret), Some(carried)) = (api.get(SECRET), certificates::carried(&api)) {
            let trusted = certificates::text(&secret["data"], "ca.crt");
            let shared =
                trusted.split_inclusive("-----END CERTIFICATE-----\n").any(|own| carried.contains(own));
            assert!(shared, "{crash:?}: the API server does not trust what the Secret has");
        }
        rotate(&api).await;
        assert!(is_rotated(&api), "{crash:?}");
        if ended {
            break;
        }
    }
    assert!(count >= 6, "the sweep went through {count} crashes");
}
