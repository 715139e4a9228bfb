//! What is to be expected of pods that do not serve: that they will, that they may again, or that they will not.

use jiff::Timestamp;

use super::freshness::stale_limit;
use crate::snapshot::{Phase, Replica, Signal, Signals, VariantState};
use crate::units::{Replicas, Seconds};

/// A pod that takes so many times as long to start as the longest of the last starts is not counted on any more. Starts of one
/// variant spread: with an image or weights that a node does not have yet they take two to three times as long as with those of a
/// node that has served. To give one up too early orders one too many; to wait for it costs a fleet that needs it that time.
pub const OVERDUE: f64 = 3.0;

/// What is to be expected of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prospect {
    /// It serves.
    Ready,
    /// It has not been ready yet, and is young enough to become so.
    Starting,
    /// It was ready and is not: it may come back, above all when it failed for being asked too much.
    Failing,
    /// It has never been ready and should have been long ago.
    Broken,
    /// No node has room for it.
    Unschedulable,
    /// It is on its way out.
    Terminating,
    /// Its engines sleep: it serves when somebody wakes them.
    Asleep,
}

impl Prospect {
    /// Of `replica` at `now`, where a start takes no longer than `patience`.
    #[must_use]
    pub fn of(replica: &Replica, patience: Seconds, now: Timestamp) -> Self {
        match replica.phase {
            Phase::Ready => Self::Ready,
            Phase::Terminating => Self::Terminating,
            Phase::Asleep => Self::Asleep,
            Phase::Unschedulable => Self::Unschedulable,
            Phase::Pending | Phase::Starting if replica.ready_since.is_some() => Self::Failing,
            Phase::Pending | Phase::Starting if Seconds::between(replica.created, now) > patience => {
                Self::Broken
            }
            Phase::Pending | Phase::Starting => Self::Starting,
        }
    }

    /// It is asked for and will not come.
    #[must_use]
    pub const fn is_lost(self) -> bool {
        matches!(self, Self::Broken | Self::Unschedulable | Self::Asleep)
    }
}

/// Marks the Ready pods of `variant` all of whose engines say lately that they sleep, and counts them as ready no longer. Of a pod with an
/// engine that says nothing nobody knows that it sleeps, and one that works between two scrapes at which it says so does not.
pub fn mark_sleepers(variant: &mut VariantState, now: Timestamp) {
    let sleeps = |signals: &Signals| {
        let limit = stale_limit(signals.interval());
        let mut shown = signals.get(Signal::Asleep).iter().rev().take_while(|sample| sample.value > 0.0);
        let newest = shown.next().filter(|newest| Seconds::between(newest.at, now) <= limit);
        newest.is_some() && !shown.next().is_some_and(|before| has_worked(signals, before.at))
    };
    let mut asleep = 0;
    for replica in variant.replicas.iter_mut().filter(|replica| replica.phase == Phase::Ready) {
        let mut engines = replica.engines.values().peekable();
        if engines.peek().is_some() && engines.all(sleeps) {
            replica.phase = Phase::Asleep;
            asleep += 1;
        }
    }
    if let Some(scale) = variant.scale.as_mut().filter(|_| asleep > 0) {
        scale.ready = scale.ready.above(Replicas::new(asleep));
    }
}

/// Engine steps or generated tokens were counted between its newest two scrapes, which are not earlier than `from`.
fn has_worked(signals: &Signals, from: Timestamp) -> bool {
    [Signal::EngineSteps, Signal::GenerationTokens].into_iter().any(|counter| {
        let mut newest = signals.get(counter).iter().rev();
        let ends = newest.next().zip(newest.next());
        ends.is_some_and(|(last, before)| before.at >= from && last.value > before.value)
    })
}

/// Pods of `variant` that will not come, and those that were ready and have failed.
#[must_use]
pub fn lost_and_failing(variant: &VariantState, patience: Seconds, now: Timestamp) -> (u32, u32) {
    let prospects = variant.replicas.iter().map(|replica| Prospect::of(replica, patience, now));
    prospects.fold((0, 0), |(lost, failing), prospect| {
        (lost + u32::from(prospect.is_lost()), failing + u32::from(prospect == Prospect::Failing))
    })
}

/// More pods of `variant` would not serve either: no node has room for those there are, or what was ordered twice, a `start`
/// or more apart, never became ready, and nothing that was ordered since did.
///
/// One broken pod says nothing of the next one: a node is bad, or a GPU hangs. An image that cannot be pulled says it of all.
#[must_use]
pub fn is_full(variant: &VariantState, start: Seconds, patience: Seconds, now: Timestamp) -> bool {
    let prospects = || variant.replicas.iter().map(|replica| (replica, Prospect::of(replica, patience, now)));
    let mut came = None;
    for (replica, prospect) in prospects() {
        match prospect {
            Prospect::Unschedulable => return true,
            Prospect::Ready | Prospect::Failing | Prospect::Asleep => came = came.max(Some(replica.created)),
            Prospect::Starting | Prospect::Broken | Prospect::Terminating => {}
        }
    }
    let broken = prospects().filter(|(_, prospect)| *prospect == Prospect::Broken);
    let since = broken.map(|(replica, _)| replica.created).filter(|at| came.is_none_or(|came| *at > came));
    let orders = since.map(|at| (at, at)).reduce(|all, one| (all.0.min(one.0), all.1.max(one.1)));
    orders.is_some_and(|(first, last)| first < last && Seconds::between(first, last) >= start)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::model::{Bounds, Role, TargetRef, Variant, VariantId};
    use crate::name_map::NameMap;
    use crate::snapshot::Template;
    use crate::units::Cost;

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);
    const START: Seconds = Seconds::whole(100);
    const PATIENCE: Seconds = Seconds::whole(300);

    fn pod(phase: Phase, age: i64, was_ready: bool) -> Replica {
        let created = NOW - SignedDuration::from_secs(age);
        let ready_since = was_ready.then_some(created);
        Replica { pod: "p".into(), phase, created, ready_since, engines: NameMap::default() }
    }

    fn variant(replicas: Vec<Replica>) -> VariantState {
        let variant = Variant {
            id: VariantId::new("n", "v"),
            model: "m".into(),
            target: TargetRef { kind: "Deployment".into(), name: "v".into() },
            cost: Cost::ZERO,
            bounds: Bounds::default(),
            accelerator: None,
            role: Role::Both,
        };
        VariantState { variant, scale: None, replicas, last_status: None, template: Template::default() }
    }

    #[test]
    fn a_pod_that_was_ready_is_not_taken_for_one_that_never_was() {
        let of = |phase, age, was_ready| Prospect::of(&pod(phase, age, was_ready), PATIENCE, NOW);
        assert_eq!(of(Phase::Starting, 300, false), Prospect::Starting);
        assert_eq!(of(Phase::Pending, 301, false), Prospect::Broken);
        assert_eq!(of(Phase::Starting, 100_000, true), Prospect::Failing);
        assert_eq!(of(Phase::Unschedulable, 1, false), Prospect::Unschedulable);
        let pods = [(Phase::Ready, 900, true), (Phase::Starting, 900, true), (Phase::Starting, 10, false)];
        let all = pods.map(|(phase, age, was_ready)| pod(phase, age, was_ready)).to_vec();
        assert_eq!(lost_and_failing(&variant(all), PATIENCE, NOW), (0, 1));
    }

    #[test]
    fn one_pod_that_never_becomes_ready_is_replaced_and_its_replacement_is_not() {
        let full = |pods: &[(Phase, i64, bool)]| {
            let pods = pods.iter().map(|(phase, age, was_ready)| pod(*phase, *age, *was_ready));
            is_full(&variant(pods.collect()), START, PATIENCE, NOW)
        };
        let (ready, broken) = ((Phase::Ready, 5000, true), (Phase::Starting, 900, false));
        assert!(!full(&[ready]) && !full(&[ready, broken]) && !full(&[]));
        assert!(full(&[ready, broken, (Phase::Starting, 800, false)]), "two orders did not come");
        assert!(!full(&[ready, broken, (Phase::Starting, 801, false)]), "one order of two");
        assert!(!full(&[ready, broken, (Phase::Starting, 800, false), (Phase::Ready, 700, true)]));
        assert!(
            !full(&[broken, (Phase::Starting, 800, false), (Phase::Starting, 700, true)]),
            "the last one came"
        );
        assert!(full(&[ready, (Phase::Unschedulable, 1, false)]));
    }
}
