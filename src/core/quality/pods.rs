//! What to expect of pods that do not serve: that they will, that they may again, or that they will not.

use jiff::Timestamp;

use super::freshness::stale_limit;
use crate::snapshot::{Phase, Pod, Signal, Signals, VariantState};
use crate::units::{Replicas, Seconds};

/// A pod that takes this many times as long to start as the longest of the last starts is no longer expected to serve. Starts of one variant vary: on
/// a node that lacks the image or the weights they take two to three times as long as on a node that has served the model. Giving up a pod too
/// early orders one too many; giving it up late delays its replacement.
pub(crate) const OVERDUE_FACTOR: f64 = 3.0;

/// What can be expected of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PodOutlook {
    Ready,
    /// It has not been ready yet, and is young enough to become so.
    Starting,
    /// It was ready and is not: it may come back, above all if it failed because it was overloaded.
    Failing,
    /// It has never been ready and should have been long ago.
    Broken,
    Unschedulable,
    Terminating,
    /// Its engines sleep: it serves once they are woken.
    Asleep,
}

impl PodOutlook {
    /// The outlook of `pod` at `now`, when a start takes at most `start_limit`.
    pub(crate) fn assess(pod: &Pod, start_limit: Seconds, now: Timestamp) -> Self {
        match pod.phase {
            Phase::Ready => Self::Ready,
            Phase::Terminating => Self::Terminating,
            Phase::Asleep => Self::Asleep,
            Phase::Unschedulable => Self::Unschedulable,
            Phase::Pending | Phase::Starting => {
                if pod.ready_since.is_some() {
                    Self::Failing
                } else if Seconds::between(pod.created, now) > start_limit {
                    Self::Broken
                } else {
                    Self::Starting
                }
            }
        }
    }

    /// It was ordered and will not serve.
    pub(crate) const fn is_lost(self) -> bool {
        matches!(self, Self::Broken | Self::Unschedulable | Self::Asleep)
    }
}

/// Marks the ready pods of `variant` all of whose engines say that they sleep, and no longer counts them as ready. A pod with an engine
/// that says nothing may be awake, and so is an engine that did some work between two scrapes at which it said that it sleeps.
pub fn mark_sleepers(variant: &mut VariantState, now: Timestamp) {
    let is_asleep = |signals: &Signals| {
        let limit = stale_limit(signals.interval());
        let mut asleep = signals.get(Signal::Asleep).iter().rev().take_while(|sample| sample.value > 0.0);
        let newest = asleep.next().filter(|newest| Seconds::between(newest.at, now) <= limit);
        newest.is_some() && !asleep.next().is_some_and(|before| has_worked_since(signals, before.at))
    };
    let mut sleepers = 0;
    for pod in variant.pods.iter_mut().filter(|pod| pod.phase == Phase::Ready) {
        let mut engines = pod.engines.values().peekable();
        if engines.peek().is_some() && engines.all(is_asleep) {
            pod.phase = Phase::Asleep;
            sleepers += 1;
        }
    }
    if let Some(scale) = variant.scale.as_mut().filter(|_| sleepers > 0) {
        scale.ready = scale.ready.saturating_sub(Replicas::new(sleepers));
    }
}

/// Engine steps or generated tokens grew between the newest two scrapes, the earlier of which is not before `from`.
fn has_worked_since(signals: &Signals, from: Timestamp) -> bool {
    [Signal::EngineSteps, Signal::GenerationTokens].into_iter().any(|counter| {
        let mut newest = signals.get(counter).iter().rev();
        let pair = newest.next().zip(newest.next());
        pair.is_some_and(|(last, before)| before.at >= from && last.value > before.value)
    })
}

/// How many pods of `variant` will not serve, and how many were ready and have failed.
pub(crate) fn count_lost_and_failing(
    variant: &VariantState,
    start_limit: Seconds,
    now: Timestamp,
) -> (u32, u32) {
    let outlooks = variant.pods.iter().map(|pod| PodOutlook::assess(pod, start_limit, now));
    outlooks.fold((0, 0), |(lost, failing), outlook| {
        (lost + u32::from(outlook.is_lost()), failing + u32::from(outlook == PodOutlook::Failing))
    })
}

/// More pods of `variant` would not serve either: no node has room for those that exist, or two orders, at least one start-up time
/// `start` apart, never became ready, and nothing that was ordered since did.
///
/// One broken pod says nothing about the next one: a node may be bad, or a GPU may hang. An image that cannot be pulled breaks all.
pub(crate) fn is_growth_futile(
    variant: &VariantState,
    start: Seconds,
    start_limit: Seconds,
    now: Timestamp,
) -> bool {
    let outlooks = || variant.pods.iter().map(|pod| (pod, PodOutlook::assess(pod, start_limit, now)));
    let mut last_served = None;
    for (pod, outlook) in outlooks() {
        match outlook {
            PodOutlook::Unschedulable => return true,
            PodOutlook::Ready | PodOutlook::Failing | PodOutlook::Asleep => {
                last_served = last_served.max(Some(pod.created));
            }
            PodOutlook::Starting | PodOutlook::Broken | PodOutlook::Terminating => {}
        }
    }
    let broken = outlooks().filter(|(_, outlook)| *outlook == PodOutlook::Broken);
    let created = broken.map(|(pod, _)| pod.created);
    let orders: Vec<Timestamp> = created.filter(|at| last_served.is_none_or(|served| *at > served)).collect();
    let span = orders.iter().min().zip(orders.iter().max());
    span.is_some_and(|(first, last)| first < last && Seconds::between(*first, *last) >= start)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::fixture::variant_state;
    use crate::name_map::NameMap;

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);
    const START: Seconds = Seconds::whole(100);
    const START_LIMIT: Seconds = Seconds::whole(300);

    fn pod(phase: Phase, age: i64, was_ready: bool) -> Pod {
        let created = NOW - SignedDuration::from_secs(age);
        let ready_since = was_ready.then_some(created);
        Pod { name: "p".into(), phase, created, ready_since, engines: NameMap::default() }
    }

    #[test]
    fn a_pod_that_was_ready_is_not_taken_for_one_that_never_was() {
        let outlook =
            |phase, age, was_ready| PodOutlook::assess(&pod(phase, age, was_ready), START_LIMIT, NOW);
        assert_eq!(outlook(Phase::Starting, 300, false), PodOutlook::Starting);
        assert_eq!(outlook(Phase::Pending, 301, false), PodOutlook::Broken);
        assert_eq!(outlook(Phase::Starting, 100_000, true), PodOutlook::Failing);
        assert_eq!(outlook(Phase::Unschedulable, 1, false), PodOutlook::Unschedulable);
        let pods = [(Phase::Ready, 900, true), (Phase::Starting, 900, true), (Phase::Starting, 10, false)];
        let all = pods.map(|(phase, age, was_ready)| pod(phase, age, was_ready)).to_vec();
        assert_eq!(count_lost_and_failing(&variant_state(all), START_LIMIT, NOW), (0, 1));
    }

    #[test]
    fn one_pod_that_never_becomes_ready_is_replaced_and_its_replacement_is_not() {
        let is_futile = |pods: &[(Phase, i64, bool)]| {
            let pods = pods.iter().map(|(phase, age, was_ready)| pod(*phase, *age, *was_ready));
            is_growth_futile(&variant_state(pods.collect()), START, START_LIMIT, NOW)
        };
        let (ready, broken) = ((Phase::Ready, 5000, true), (Phase::Starting, 900, false));
        assert!(!is_futile(&[ready]) && !is_futile(&[ready, broken]) && !is_futile(&[]));
        assert!(is_futile(&[ready, broken, (Phase::Starting, 800, false)]), "two orders did not come");
        assert!(!is_futile(&[ready, broken, (Phase::Starting, 801, false)]), "one order of two");
        assert!(!is_futile(&[ready, broken, (Phase::Starting, 800, false), (Phase::Ready, 700, true)]));
        assert!(
            !is_futile(&[broken, (Phase::Starting, 800, false), (Phase::Starting, 700, true)]),
            "the last one came"
        );
        assert!(is_futile(&[ready, (Phase::Unschedulable, 1, false)]));
    }
}
