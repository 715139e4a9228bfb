//! What writes to the API server is killed between every two of its writes, once having learned of the last one and once
//! not. Whoever starts after it must find every number there was, no number that nobody decided, and get everything right.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use wva::cluster::pki::certificates::ROTATED_ANNOTATION;
use wva::cluster::{ClusterWatch, StateStore, StateWriter, StatusWriter};
use wva::engine::{Board, Holder, Leadership, Origin, Published, SystemClock, adopt};
use wva_core::decision::{Cause, Decision, Reason, Target, Unknown, Verdict};
use wva_core::memory::{GroupMemory, VariantMemory};
use wva_core::units::Replicas;
use wva_core::{GroupId, Memory, VariantId};

use crate::cluster::{SOON, held};
use crate::cluster_certificates as certificates;
use crate::cluster_store::{Crash, SECRET, Store};

/// Writes after which no sweep is still running: the largest has some dozens.
const MAX_WRITES: usize = 200;
/// Variants of the second evaluation: 1,500 lines of 330 bytes are half a megabyte, in four objects.
const VARIANTS: u32 = 1_500;
/// Variants of the first: all in one object.
const FIRST: u32 = 50;

/// Time between two evaluations: more than the state's writer leaves between two writes of anything but the memory that it writes
/// now and then.
const BETWEEN: Duration = Duration::from_secs(60);

/// Every way to die: after each number of writes, with the last one answered or not.
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

fn decision(index: u32, desired: Option<u32>) -> Decision {
    let evidence = Timestamp::from_second(1_767_225_600).unwrap();
    let verdict = match desired {
        Some(desired) => Verdict::Target(Target {
            desired: Replicas::new(desired),
            reason: Reason::Steady,
            message: "x".repeat(150).into(),
            evidence,
        }),
        None => Verdict::Unknown(Unknown {
            cause: Cause::TooOld,
            message: "nothing was measured".into(),
            since: evidence,
        }),
    };
    Decision { model: model(index).into(), accelerator: None, current: None, verdict, gap: None }
}

/// One evaluation: decisions, and the memory after it.
struct Evaluation {
    published: Published,
    memory: Memory,
    desired: BTreeMap<VariantId, u32>,
}

/// `count` variants with the number that `desired` says; every third one of `unknown` has none in its decision.
fn evaluation(sequence: u64, count: u32, desired: impl Fn(u32) -> u32, unknown: bool) -> Evaluation {
    let id = |index| VariantId::new("llm", format!("v{index}"));
    let (mut decisions, mut memory, mut numbers) = (BTreeMap::new(), Memory::default(), BTreeMap::new());
    for index in 0..count {
        let number = desired(index);
        let shown = (!(unknown && index % 3 == 0)).then_some(number);
        decisions.insert(id(index), decision(index, shown));
        numbers.insert(id(index), number);
        let variant = VariantMemory { target: Some(Replicas::new(number)), ..VariantMemory::default() };
        let variants = [(format!("v{index}").into(), variant)].into();
        let group = GroupMemory { variants, ..GroupMemory::default() };
        memory.groups.insert(GroupId::new("llm", model(index)), group);
    }
    let published = Published { sequence, origin: Origin::Computed, decisions, ..Published::empty() };
    Evaluation { published, memory, desired: numbers }
}

/// What a holder that starts now knows: the number of every variant.
async fn restored(api: &Store) -> BTreeMap<VariantId, u32> {
    let store = StateStore::new(api.client(), "wva", "wva", Arc::new(SystemClock));
    let found = tokio::time::timeout(SOON, store.load()).await.unwrap().unwrap();
    assert_eq!(found.memory.dropped, [""; 0], "nothing is damaged");
    let memory = adopt(found);
    let variants = memory.groups.iter().flat_map(|(group, memory)| {
        let targets = memory.variants.iter().filter_map(|(name, variant)| Some((name, variant.target?)));
        targets.map(|(name, target)| (VariantId::new(group.namespace.clone(), name.clone()), target.get()))
    });
    variants.collect()
}

/// Writes everything of `evaluations` in turn, in the name of `epoch`, as a holder does that then ends; or dies on the way.
async fn write_states(api: &Store, epoch: i64, evaluations: &[&Evaluation]) {
    let store = StateStore::new(api.client(), "wva", "wva", Arc::new(SystemClock));
    let leadership = watch::Sender::new(leader(epoch));
    for evaluation in evaluations {
        let (board, memory) = (Board::new(), watch::Sender::new(Arc::new(evaluation.memory.clone())));
        board.publish(evaluation.published.clone());
        let writer = StateWriter::new(
            store.clone(),
            board.subscribe(),
            memory.subscribe(),
            leadership.subscribe(),
            Duration::from_secs(300),
        );
        // Told to end before it begins, it writes everything once, the memory first.
        let stop = CancellationToken::new();
        stop.cancel();
        let dead = api.until(Duration::from_secs(60), |api| api.has_crashed().then_some(()));
        tokio::select! {
            biased;
            () = writer.run(stop) => {}
            () = dead => return,
        }
    }
}

/// Publishes `evaluations` one after the other while a writer in the name of `epoch` runs, until it has nothing to write any more
/// and is killed; or dies on the way.
async fn run_states(api: &Store, epoch: i64, evaluations: &[&Evaluation]) {
    let store = StateStore::new(api.client(), "wva", "wva", Arc::new(SystemClock));
    let mine_until = Some(tokio::time::Instant::now() + 100 * BETWEEN);
    let leadership = watch::Sender::new(Leadership { mine_until, ..leader(epoch) });
    let (board, memory) = (Board::new(), watch::Sender::new(Arc::default()));
    let writer = StateWriter::new(
        store,
        board.subscribe(),
        memory.subscribe(),
        leadership.subscribe(),
        Duration::from_secs(300),
    );
    let publishing = async {
        for evaluation in evaluations {
            memory.send_replace(Arc::new(evaluation.memory.clone()));
            board.publish(evaluation.published.clone());
            // On a paused clock this is over when nobody has anything to do.
            tokio::time::sleep(BETWEEN).await;
        }
    };
    let dead = api.until(10 * BETWEEN, |api| api.has_crashed().then_some(()));
    tokio::select! {
        biased;
        () = writer.run(CancellationToken::new()) => panic!("nobody has told it to end"),
        () = dead => {}
        () = publishing => {}
    }
}

/// Every way to die while `second` and what follows it are written by `write`: in between is a number of each variant that was
/// decided, and whoever comes next gets all right.
async fn sweep_states(
    first: &Evaluation,
    following: &[&Evaluation],
    write: impl AsyncFn(&Store, &[&Evaluation]),
) -> usize {
    let mut died = 0;
    for crash in crashes() {
        let api = Store::new();
        write_states(&api, 1, &[first]).await;
        assert_eq!(restored(&api).await, first.desired);
        api.crash(Some(crash));
        write(&api, following).await;
        let ended = !api.has_crashed();
        died += usize::from(!ended);
        api.crash(None);
        let found = restored(&api).await;
        for id in first.desired.keys() {
            assert!(found.contains_key(id), "{crash:?}: {id} has no number");
        }
        for (id, number) in &found {
            let known = [first].iter().chain(following).any(|one| one.desired.get(id) == Some(number));
            assert!(known, "{crash:?}: nobody decided {number} for {id}");
        }
        let last = following.last().copied().unwrap_or(first);
        write_states(&api, 2, &[last]).await;
        assert_eq!(restored(&api).await, last.desired, "{crash:?}");
        if ended {
            return died;
        }
    }
    panic!("the sweep does not end");
}

#[tokio::test]
async fn a_holder_that_dies_between_any_two_writes_of_its_last_state_loses_and_invents_no_number() {
    let first = evaluation(1, FIRST, |index| index + 1, false);
    let second = evaluation(2, VARIANTS, |index| index + 2, true);
    let write = async |api: &Store, following: &[&Evaluation]| write_states(api, 1, following).await;
    let died = sweep_states(&first, &[&second], write).await;
    assert!(died >= 10, "the sweep went through {died} deaths");
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_dies_between_any_two_writes_while_it_runs_loses_and_invents_no_number() {
    let first = evaluation(1, FIRST, |index| index + 1, false);
    // Objects come, then a few numbers change and are lost from the decisions, then objects go.
    let second = evaluation(2, VARIANTS, |index| index + 2, false);
    let third = evaluation(3, VARIANTS, |index| index + 2 + u32::from(index < 7), true);
    let fourth = evaluation(4, FIRST, |index| index + 4, false);
    let write = async |api: &Store, following: &[&Evaluation]| run_states(api, 1, following).await;
    let died = sweep_states(&first, &[&second, &third, &fourth], write).await;
    assert!(died >= 20, "the sweep went through {died} deaths");
}

/// An API server with the variants `llm/v0` to `llm/v3`.
fn with_variants() -> Store {
    let api = Store::new();
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

/// Writes the statuses of `evaluation` until `api` is as `wanted`, or dead.
async fn write_statuses(api: &Store, evaluation: &Evaluation) {
    let (watches, reader) = ClusterWatch::new(api.client(), wva::cluster::watch::Settings::default());
    let (board, leadership, stop) = (Board::new(), watch::Sender::new(held()), CancellationToken::new());
    let writer = StatusWriter::new(
        api.client(),
        reader.clone(),
        board.subscribe(),
        leadership.subscribe(),
        "a".into(),
    );
    let wanted = evaluation.desired.clone();
    let driving = async {
        reader.subscribe().wait_for(|observed| observed.view.synced).await.unwrap();
        board.publish(evaluation.published.clone());
        api.until(SOON, |api| (api.has_crashed() || statuses(api) == wanted).then_some(())).await;
    };
    tokio::select! {
        () = watches.run(stop.clone()) => {}
        () = writer.run(stop.clone()) => {}
        () = driving => {}
    }
}

/// The number in every status that has one.
fn statuses(api: &Store) -> BTreeMap<VariantId, u32> {
    let number = |index: u32| {
        let name = format!("v{index}");
        let object = api.get(&format!("/apis/llmd.ai/v1alpha1/namespaces/llm/variantautoscalings/{name}"))?;
        let number = object["status"]["desiredOptimizedAlloc"]["numReplicas"].as_u64()?;
        Some((VariantId::new("llm", name), u32::try_from(number).unwrap()))
    };
    (0..4).filter_map(number).collect()
}

#[tokio::test]
async fn a_holder_that_dies_between_any_two_writes_of_statuses_leaves_numbers_that_were_decided() {
    let first = evaluation(1, 4, |index| index + 1, false);
    let second = evaluation(2, 4, |index| index + 5, false);
    let mut died = 0;
    for crash in crashes() {
        let api = with_variants();
        write_statuses(&api, &first).await;
        assert_eq!(statuses(&api), first.desired);
        api.crash(Some(crash));
        write_statuses(&api, &second).await;
        let ended = !api.has_crashed();
        died += usize::from(!ended);
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
    assert!(died >= 8, "the sweep went through {died} deaths");
}

/// True when the rotation that was asked for is over, and what the API server trusts is what the Secret has.
fn is_rotated(api: &Store) -> bool {
    let Some(secret) = api.get(SECRET) else { return false };
    let trusted = certificates::text(&secret["data"], "ca.crt");
    let done = secret["metadata"]["annotations"][ROTATED_ANNOTATION] == "please";
    let carried = certificates::carried(api);
    done && certificates::authorities(&trusted) == 1 && carried.as_ref() == Some(&trusted)
}

/// Makes the certificates, and a new CA when asked, until all is done or the instance is dead.
async fn rotate(api: &Store) {
    let (bundles, stop) = certificates::instance(api);
    let over = |api: &Store| (api.has_crashed() || is_rotated(api)).then_some(());
    let begun = |api: &Store| (api.has_crashed() || certificates::carried(api).is_some()).then_some(());
    api.until(certificates::SOON, begun).await;
    if !api.has_crashed() {
        certificates::ask(api, "please");
        api.until(4 * certificates::SOON, over).await;
    }
    stop.cancel();
    drop(bundles);
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_dies_between_any_two_writes_of_certificates_leaves_a_rotation_that_the_next_ends() {
    let mut died = 0;
    for crash in crashes() {
        let api = Store::installed();
        api.crash(Some(crash));
        rotate(&api).await;
        let ended = !api.has_crashed();
        died += usize::from(!ended);
        api.crash(None);
        if let (Some(secret), Some(carried)) = (api.get(SECRET), certificates::carried(&api)) {
            let trusted = certificates::text(&secret["data"], "ca.crt");
            let shared =
                trusted.split_inclusive("-----END CERTIFICATE-----\n").any(|own| carried.contains(own));
            assert!(shared, "{crash:?}: nobody trusts what the Secret has");
        }
        rotate(&api).await;
        assert!(is_rotated(&api), "{crash:?}");
        if ended {
            break;
        }
    }
    assert!(died >= 6, "the sweep went through {died} deaths");
}
