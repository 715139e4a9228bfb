//! Which pods of a variant to delete first when it shrinks: those with the fewest requests in flight, because a request that is still
//! running when its pod's grace period ends is cut off. How many pods go is the decision's matter.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;
use smol_str::SmolStr;

use crate::decision::{Decision, Verdict};
use crate::isolate::guarded;
use crate::model::VariantId;
use crate::normalize::normalize_group;
use crate::quality::{fresh_limit, judged_engines};
use crate::snapshot::{Phase, Pod, Signal, Signals, Snapshot, VariantState};
use crate::units::{Replicas, Seconds};

/// Signals that are read here, beside those of decisions.
pub const REQUIRED_SIGNALS: [Signal; 4] =
    [Signal::KvUsage, Signal::KvCapacity, Signal::Waiting, Signal::Running];

/// Requests and tokens that a pod has in flight. What was not measured is `None`: zero is a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct InFlight {
    /// Tokens in the KV cache: usage times size.
    pub tokens: Option<f64>,
    /// Waiting and running requests.
    pub requests: Option<f64>,
}

impl InFlight {
    /// From the fresh samples of all engines of `pod`. An unknown engine makes the whole pod unknown.
    pub(crate) fn from_pod(pod: &Pod, now: Timestamp) -> Self {
        let engines = || judged_engines(pod).map(|(_, signals)| signals);
        let sum = |value: fn(&Signals, Timestamp) -> Option<f64>| {
            engines().next()?;
            engines().map(|signals| value(signals, now)).sum()
        };
        Self { tokens: sum(tokens), requests: sum(requests) }
    }
}

fn tokens(signals: &Signals, now: Timestamp) -> Option<f64> {
    // The cache size of an engine never changes, so its age does not matter.
    let capacity = signals.newest(Signal::KvCapacity)?.value;
    fresh(signals, Signal::KvUsage, now).map(|share| share * capacity)
}

fn requests(signals: &Signals, now: Timestamp) -> Option<f64> {
    Some(fresh(signals, Signal::Waiting, now)? + fresh(signals, Signal::Running, now)?)
}

fn fresh(signals: &Signals, signal: Signal, now: Timestamp) -> Option<f64> {
    let limit = fresh_limit(signals.interval());
    let newest = signals.newest(signal)?;
    (Seconds::between(newest.at, now) <= limit).then_some(newest.value)
}

/// Indices of `pods` in the order of deletion: fewest requests in flight first, and of equals the earlier one. If requests are not measured
/// on all pods, tokens in the KV cache are used for all; pods of which the chosen value is unknown are left out.
///
/// Requests are preferred because tokens mislead: of two pods with the same number of requests, the one with fewer tokens has requests that
/// have just started and have longest to go. In the simulator, deletion by tokens cuts off more streams than deletion of the youngest pods.
#[must_use]
pub fn order(pods: &[InFlight]) -> Vec<usize> {
    let by_requests = pods.iter().all(|pod| pod.requests.is_some() || pod.tokens.is_none());
    let load = |pod: &InFlight| if by_requests { pod.requests } else { pod.tokens };
    let mut known: Vec<(usize, f64)> =
        pods.iter().enumerate().filter_map(|(index, pod)| Some((index, load(pod)?))).collect();
    known.sort_by(|(_, left), (_, right)| left.total_cmp(right));
    known.into_iter().map(|(index, _)| index).collect()
}

/// The deletion order of one variant's pods. A pod in neither list is not to be deleted first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeletionOrder {
    /// Ready pods to delete, in this order.
    pub first: Vec<SmolStr>,
    /// Ready pods of which too little is known: an earlier mark on them stays.
    pub unknown: Vec<SmolStr>,
}

/// The deletion order of every variant that has a target. Variants without one are held, so their marks stay; so do those of a model
/// whose computation panics.
#[must_use]
pub fn deletion_orders(
    snapshot: &Snapshot,
    decisions: &BTreeMap<VariantId, Decision>,
) -> BTreeMap<VariantId, DeletionOrder> {
    let of_variant_with_target = |state: &VariantState| {
        let id = &state.variant.id;
        let Verdict::Target(target) = &decisions.get(id)?.verdict else { return None };
        Some((id.clone(), of_variant(state, target.desired, snapshot.now)))
    };
    let of_model = |(id, group)| {
        let found = guarded(id, || {
            let group = normalize_group(group, snapshot.now);
            group.variants.iter().filter_map(of_variant_with_target).collect::<Vec<_>>()
        });
        found.unwrap_or_default()
    };
    snapshot.groups.iter().flat_map(of_model).collect()
}

/// A ReplicaSet deletes pods that are not ready first, whatever their cost, and if all pods go no order is needed. Sleeping pods are ready for
/// the ReplicaSet and serve nothing.
fn of_variant(state: &VariantState, desired: Replicas, now: Timestamp) -> DeletionOrder {
    let current = state.scale.map_or(Replicas::ZERO, |scale| scale.current);
    let in_phase = |is_in: fn(Phase) -> bool| state.pods.iter().filter(move |pod| is_in(pod.phase));
    let mut ready: Vec<&Pod> = in_phase(|phase| phase == Phase::Ready).collect();
    let asleep: Vec<&Pod> = in_phase(|phase| phase == Phase::Asleep).collect();
    let unready = in_phase(Phase::is_awaited).count();
    let removed = usize::try_from(current.saturating_sub(desired).get()).unwrap_or(usize::MAX);
    let removed = removed.saturating_sub(unready);
    if removed == 0 || removed >= ready.len() + asleep.len() {
        return DeletionOrder::default();
    }
    let sleeping = asleep.iter().take(removed).map(|pod| pod.name.clone());
    let removed = removed.saturating_sub(asleep.len());
    // Of equals the youngest first, as a ReplicaSet does without marks.
    ready.sort_by_key(|pod| (Reverse(pod.ready_since), Reverse(pod.created)));
    let in_flight: Vec<InFlight> = ready.iter().map(|pod| InFlight::from_pod(pod, now)).collect();
    let mut order = order(&in_flight);
    // With so few known pods there is no choice among them, and the others are unknown.
    if order.len() <= removed {
        order.clear();
    }
    let name = |index: usize| ready[index].name.clone();
    DeletionOrder {
        first: sleeping.chain(order.iter().take(removed).map(|index| name(*index))).collect(),
        unknown: (0..ready.len()).filter(|index| !order.contains(index)).map(name).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::{Reason, Target, Unknown};
    use crate::fixture::variant_state;
    use crate::name_map::NameMap;
    use crate::snapshot::{ModelGroup, Sample, Scale, SourceHealth};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    /// A serving process that was scraped every 15 s until `newest`.
    fn engine(gauges: &[(Signal, f64)], newest: i64) -> Signals {
        let mut signals = Signals::default();
        for (signal, value) in gauges {
            let samples = [60, 45, 30, 15, 0].map(|back| Sample { at: at(newest - back), value: *value });
            signals.add(*signal, samples);
        }
        signals
    }

    /// One that runs so many requests.
    fn running(requests: f64, newest: i64) -> Signals {
        engine(&[(Signal::Waiting, 0.0), (Signal::Running, requests), (Signal::KvUsage, 0.5)], newest)
    }

    fn pod(name: &str, phase: Phase, ready: i64, engines: Vec<Signals>) -> Pod {
        let mut named = NameMap::default();
        for (place, engine) in engines.into_iter().enumerate() {
            named.insert(place.to_string().into(), engine);
        }
        let (pod, ready_since) = (name.into(), (phase == Phase::Ready).then(|| at(ready)));
        Pod { name: pod, phase, created: at(ready - 60), ready_since, engines: named }
    }

    fn serving(name: &str, requests: f64) -> Pod {
        pod(name, Phase::Ready, -900, vec![running(requests, 0)])
    }

    /// What is said of pods of which `current` are counted.
    fn order_of(pods: Vec<Pod>, current: u32, verdict: Verdict) -> Option<DeletionOrder> {
        let current = Replicas::new(current);
        let scale = Some(Scale { spec: current, current, ready: current });
        let state = VariantState { scale, ..variant_state(pods) };
        let (id, group, variants) = (state.variant.id.clone(), state.variant.group(), vec![state]);
        let model = ModelGroup { source: SourceHealth::Complete, variants, scheduler: Signals::default() };
        let groups = BTreeMap::from([(group, model)]);
        let snapshot = Snapshot::new(at(0), groups);
        let decision =
            Decision { model: "m".into(), accelerator: None, current: Some(current), verdict, gap: None };
        deletion_orders(&snapshot, &BTreeMap::from([(id.clone(), decision)])).remove(&id)
    }

    fn desired(count: u32) -> Verdict {
        let (desired, reason) = (Replicas::new(count), Reason::ScaleDown);
        Verdict::Target(Target { desired, reason, explanation: "calm".into(), evidence: at(0) })
    }

    fn names(all: &[SmolStr]) -> Vec<&str> {
        all.iter().map(SmolStr::as_str).collect()
    }

    #[test]
    fn those_with_the_fewest_requests_go_first_and_of_equals_the_youngest() {
        let young = pod("d", Phase::Ready, -60, vec![running(2.0, 0)]);
        let pods = vec![serving("a", 9.0), serving("b", 2.0), serving("c", 0.0), young, serving("e", 3.0)];
        let order = order_of(pods, 5, desired(2)).unwrap();
        assert_eq!((names(&order.first), order.unknown.len()), (vec!["c", "d", "b"], 0));
    }

    #[test]
    fn a_pod_of_which_nothing_fresh_is_known_is_unknown_and_not_idle() {
        let stale = pod("b", Phase::Ready, -900, vec![running(0.0, -300)]);
        let half = engine(&[(Signal::Waiting, 0.0), (Signal::KvUsage, 0.0)], 0);
        let blind = pod("c", Phase::Ready, -900, vec![running(0.0, 0), half]);
        let absent = pod("d", Phase::Ready, -900, vec![]);
        let pods =
            || vec![serving("a", 9.0), stale.clone(), blind.clone(), absent.clone(), serving("e", 4.0)];
        let order = order_of(pods(), 5, desired(4)).unwrap();
        assert_eq!((names(&order.first), names(&order.unknown)), (vec!["e"], vec!["b", "c", "d"]));
        let two = order_of(pods(), 5, desired(3)).unwrap();
        assert_eq!(
            (two.first.len(), two.unknown.len()),
            (0, 5),
            "both that are known would go, and no reason for it"
        );
    }

    #[test]
    fn the_engines_of_a_pod_add_up() {
        let ranks = pod("a", Phase::Ready, -900, vec![running(3.0, 0), running(4.0, 0)]);
        assert_eq!(InFlight::from_pod(&ranks, at(0)), InFlight { tokens: None, requests: Some(7.0) });
        let order = order_of(vec![ranks, serving("b", 6.0)], 2, desired(1)).unwrap();
        assert_eq!(names(&order.first), ["b"]);
    }

    #[test]
    fn where_requests_are_not_measured_tokens_count_and_the_two_are_never_compared() {
        let by_tokens = |used| {
            let signals = engine(&[(Signal::KvUsage, used), (Signal::KvCapacity, 1000.0)], 0);
            InFlight::from_pod(&pod("x", Phase::Ready, -900, vec![signals]), at(0))
        };
        assert_eq!(by_tokens(0.25), InFlight { tokens: Some(250.0), requests: None });
        let both = InFlight { tokens: Some(300.0), requests: Some(1.0) };
        let requests = InFlight { tokens: None, requests: Some(0.0) };
        assert_eq!(order(&[by_tokens(0.4), both, by_tokens(0.25), requests]), [2, 1, 0]);
        assert_eq!(order(&[both, InFlight::default(), requests]), [2, 0]);
    }

    #[test]
    fn pods_that_are_not_ready_go_before_and_need_no_word() {
        let starting = || pod("s", Phase::Starting, 0, vec![]);
        let going = pod("t", Phase::Terminating, -900, vec![running(0.0, 0)]);
        let pods =
            || vec![serving("a", 2.0), serving("b", 1.0), serving("c", 3.0), starting(), going.clone()];
        assert_eq!(order_of(pods(), 4, desired(3)), Some(DeletionOrder::default()));
        assert_eq!(names(&order_of(pods(), 4, desired(2)).unwrap().first), ["b"]);
    }

    #[test]
    fn pods_that_sleep_go_before_any_that_serves() {
        let sleeping = || pod("z", Phase::Asleep, -900, vec![]);
        let pods = || vec![serving("a", 2.0), serving("b", 1.0), serving("c", 3.0), sleeping()];
        let first = |count| order_of(pods(), 4, desired(count)).unwrap().first;
        assert_eq!([names(&first(3)), names(&first(2))], [vec!["z"], vec!["z", "b"]]);
    }

    #[test]
    fn there_is_no_deletion_order_when_no_or_every_pod_goes_or_no_number_is_known() {
        let pods = || vec![serving("a", 2.0), serving("b", 1.0)];
        for count in [0, 2, 3] {
            assert_eq!(order_of(pods(), 2, desired(count)), Some(DeletionOrder::default()), "{count}");
        }
        let unknown =
            Unknown { cause: crate::decision::Cause::TooOld, explanation: "old".into(), since: at(0) };
        assert_eq!(order_of(pods(), 2, Verdict::Unknown(unknown)), None);
    }
}
