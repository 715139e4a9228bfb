//! Which pods of a variant go first when it shrinks: those with the least in flight, because what a pod still serves when its
//! grace period ends is cut. Not how many go: that is the decision.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;
use smol_str::SmolStr;

use crate::decision::{Decision, Verdict};
use crate::isolate::guarded;
use crate::model::VariantId;
use crate::normalize::clean;
use crate::quality::{fresh_limit, judged_engines};
use crate::snapshot::{Phase, Replica, Signal, Signals, Snapshot, VariantState};
use crate::units::{Replicas, Seconds};

/// What is looked at here, beside what decisions need.
pub const REQUIRED_SIGNALS: [Signal; 4] =
    [Signal::KvUsage, Signal::KvCapacity, Signal::Waiting, Signal::Running];

/// What a pod has in flight. What was not measured is `None`: zero is a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct InFlight {
    /// Tokens in the KV cache: its usage times its size.
    pub tokens: Option<f64>,
    /// Requests that wait or run.
    pub requests: Option<f64>,
}

impl InFlight {
    /// By the newest samples of all engines of `replica` that are fresh at `now`. An engine of which nothing is known makes the
    /// whole pod unknown.
    #[must_use]
    pub fn of(replica: &Replica, now: Timestamp) -> Self {
        let engines = || judged_engines(replica).map(|(_, signals)| signals);
        let sum = |one: fn(&Signals, Timestamp) -> Option<f64>| {
            engines().next()?;
            engines().map(|signals| one(signals, now)).sum()
        };
        Self { tokens: sum(tokens), requests: sum(requests) }
    }
}

fn tokens(signals: &Signals, now: Timestamp) -> Option<f64> {
    // The size of the cache does not age: it is that of the process.
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

/// The places of pods in the order in which they go, the one with the fewest requests in flight first; of equals, the earlier one
/// of `pods`. Where requests are not measured, tokens in the KV cache: all pods are measured alike, and left out is what is not
/// known so. Tokens come second since they mislead: of two pods with as many requests, the one with fewer tokens has those that
/// have just begun and have longest to go. In the simulator more streams are cut by tokens than among the youngest pods.
#[must_use]
pub fn order(pods: &[InFlight]) -> Vec<usize> {
    let by_requests = pods.iter().all(|pod| pod.requests.is_some() || pod.tokens.is_none());
    let load = |pod: &InFlight| if by_requests { pod.requests } else { pod.tokens };
    let mut known: Vec<(usize, f64)> =
        pods.iter().enumerate().filter_map(|(place, pod)| Some((place, load(pod)?))).collect();
    known.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    known.into_iter().map(|(place, _)| place).collect()
}

/// What is to be said of the pods of one variant. Of a pod that is in neither list: that it does not go first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeletionOrder {
    /// The ready pods that are to go, in this order.
    pub first: Vec<SmolStr>,
    /// Ready pods of which too little is known: whatever was said of them stands.
    pub unknown: Vec<SmolStr>,
}

/// The victims of every variant that has a number. Of the others nothing new is said: their replicas are held. Nor is anything of
/// a model that breaks in here: that costs no other.
#[must_use]
pub fn deletion_orders(
    snapshot: &Snapshot,
    decisions: &BTreeMap<VariantId, Decision>,
) -> BTreeMap<VariantId, DeletionOrder> {
    let one = |state: &VariantState| {
        let id = &state.variant.id;
        let Verdict::Target(target) = &decisions.get(id)?.verdict else { return None };
        Some((id.clone(), of_variant(state, target.desired, snapshot.now)))
    };
    let of_model = |(id, group)| {
        let found = guarded(id, || {
            let group = clean(group, snapshot.now);
            group.variants.iter().filter_map(one).collect::<Vec<_>>()
        });
        found.unwrap_or_default()
    };
    snapshot.groups.iter().flat_map(of_model).collect()
}

/// A ReplicaSet takes pods that are not ready first, whatever is said of them; and where all go, none goes first. Of those
/// that are ready to it, the ones that sleep serve nobody.
fn of_variant(state: &VariantState, desired: Replicas, now: Timestamp) -> DeletionOrder {
    let current = state.scale.map_or(Replicas::ZERO, |scale| scale.current);
    let of_phase = |wanted: fn(Phase) -> bool| state.replicas.iter().filter(move |pod| wanted(pod.phase));
    let mut ready: Vec<&Replica> = of_phase(|phase| phase == Phase::Ready).collect();
    let asleep: Vec<&Replica> = of_phase(|phase| phase == Phase::Asleep).collect();
    let unready =
        of_phase(|phase| !matches!(phase, Phase::Ready | Phase::Asleep | Phase::Terminating)).count();
    let many = (current.saturating_sub(desired).get() as usize).saturating_sub(unready);
    if many == 0 || many >= ready.len() + asleep.len() {
        return DeletionOrder::default();
    }
    let sleeping = asleep.iter().take(many).map(|pod| pod.pod.clone());
    let many = many.saturating_sub(asleep.len());
    // Of equals the youngest, as without a word of ours.
    ready.sort_by_key(|pod| (Reverse(pod.ready_since), Reverse(pod.created)));
    let in_flight: Vec<InFlight> = ready.iter().map(|pod| InFlight::of(pod, now)).collect();
    let mut order = order(&in_flight);
    // Among so few there is nothing to choose, and of the others nobody knows.
    if order.len() <= many {
        order.clear();
    }
    let name = |place: usize| ready[place].pod.clone();
    DeletionOrder {
        first: sleeping.chain(order.iter().take(many).map(|place| name(*place))).collect(),
        unknown: (0..ready.len()).filter(|place| !order.contains(place)).map(name).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::{Reason, Target, Unknown};
    use crate::model::{Bounds, Role, TargetRef, Variant};
    use crate::name_map::NameMap;
    use crate::snapshot::{ModelGroup, Sample, Scale, SourceHealth, Template};
    use crate::units::Cost;

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

    fn pod(name: &str, phase: Phase, ready: i64, engines: Vec<Signals>) -> Replica {
        let mut named = NameMap::default();
        for (place, engine) in engines.into_iter().enumerate() {
            named.insert(place.to_string().into(), engine);
        }
        let (pod, ready_since) = (name.into(), (phase == Phase::Ready).then(|| at(ready)));
        Replica { pod, phase, created: at(ready - 60), ready_since, engines: named }
    }

    fn serving(name: &str, requests: f64) -> Replica {
        pod(name, Phase::Ready, -900, vec![running(requests, 0)])
    }

    /// What is said of pods of which `current` are counted.
    fn said(replicas: Vec<Replica>, current: u32, verdict: Verdict) -> Option<DeletionOrder> {
        let id = VariantId::new("llm", "chat");
        let variant = Variant {
            id: id.clone(),
            model: "m".into(),
            target: TargetRef { kind: "Deployment".into(), name: "chat".into() },
            cost: Cost::ZERO,
            bounds: Bounds::default(),
            accelerator: None,
            role: Role::Both,
        };
        let current = Replicas::new(current);
        let scale = Some(Scale { spec: current, current, ready: current });
        let (group, template) = (variant.group(), Template::default());
        let variants = vec![VariantState { variant, scale, replicas, last_status: None, template }];
        let model = ModelGroup { source: SourceHealth::Complete, variants, scheduler: Signals::default() };
        let groups = BTreeMap::from([(group, model)]);
        let snapshot = Snapshot {
            now: at(0),
            groups,
            invalid: Vec::new(),
            inventory: None,
            elsewhere: BTreeMap::new(),
            unlabelled: None,
        };
        let decision =
            Decision { model: "m".into(), accelerator: None, current: Some(current), verdict, gap: None };
        deletion_orders(&snapshot, &BTreeMap::from([(id.clone(), decision)])).remove(&id)
    }

    fn desired(count: u32) -> Verdict {
        let (desired, reason) = (Replicas::new(count), Reason::ScaleDown);
        Verdict::Target(Target { desired, reason, message: "calm".into(), evidence: at(0) })
    }

    fn names(all: &[SmolStr]) -> Vec<&str> {
        all.iter().map(SmolStr::as_str).collect()
    }

    #[test]
    fn those_with_the_fewest_requests_go_first_and_of_equals_the_youngest() {
        let young = pod("d", Phase::Ready, -60, vec![running(2.0, 0)]);
        let pods = vec![serving("a", 9.0), serving("b", 2.0), serving("c", 0.0), young, serving("e", 3.0)];
        let said = said(pods, 5, desired(2)).unwrap();
        assert_eq!((names(&said.first), said.unknown.len()), (vec!["c", "d", "b"], 0));
    }

    #[test]
    fn a_pod_of_which_nothing_fresh_is_known_is_unknown_and_not_idle() {
        let stale = pod("b", Phase::Ready, -900, vec![running(0.0, -300)]);
        let half = engine(&[(Signal::Waiting, 0.0), (Signal::KvUsage, 0.0)], 0);
        let blind = pod("c", Phase::Ready, -900, vec![running(0.0, 0), half]);
        let absent = pod("d", Phase::Ready, -900, vec![]);
        let pods =
            || vec![serving("a", 9.0), stale.clone(), blind.clone(), absent.clone(), serving("e", 4.0)];
        let one = said(pods(), 5, desired(4)).unwrap();
        assert_eq!((names(&one.first), names(&one.unknown)), (vec!["e"], vec!["b", "c", "d"]));
        let two = said(pods(), 5, desired(3)).unwrap();
        assert_eq!(
            (two.first.len(), two.unknown.len()),
            (0, 5),
            "both that are known would go, and no reason for it"
        );
    }

    #[test]
    fn the_engines_of_a_pod_add_up() {
        let ranks = pod("a", Phase::Ready, -900, vec![running(3.0, 0), running(4.0, 0)]);
        assert_eq!(InFlight::of(&ranks, at(0)), InFlight { tokens: None, requests: Some(7.0) });
        let said = said(vec![ranks, serving("b", 6.0)], 2, desired(1)).unwrap();
        assert_eq!(names(&said.first), ["b"]);
    }

    #[test]
    fn where_requests_are_not_measured_tokens_count_and_the_two_are_never_compared() {
        let by_tokens = |used| {
            let signals = engine(&[(Signal::KvUsage, used), (Signal::KvCapacity, 1000.0)], 0);
            InFlight::of(&pod("x", Phase::Ready, -900, vec![signals]), at(0))
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
        assert_eq!(said(pods(), 4, desired(3)), Some(DeletionOrder::default()));
        assert_eq!(names(&said(pods(), 4, desired(2)).unwrap().first), ["b"]);
    }

    #[test]
    fn pods_that_sleep_go_before_any_that_serves() {
        let sleeping = || pod("z", Phase::Asleep, -900, vec![]);
        let pods = || vec![serving("a", 2.0), serving("b", 1.0), serving("c", 3.0), sleeping()];
        let first = |count| said(pods(), 4, desired(count)).unwrap().first;
        assert_eq!([names(&first(3)), names(&first(2))], [vec!["z"], vec!["z", "b"]]);
    }

    #[test]
    fn where_nothing_or_everything_goes_nothing_goes_first_and_without_a_number_nothing_is_said() {
        let pods = || vec![serving("a", 2.0), serving("b", 1.0)];
        for count in [0, 2, 3] {
            assert_eq!(said(pods(), 2, desired(count)), Some(DeletionOrder::default()), "{count}");
        }
        let unknown = Unknown { cause: crate::decision::Cause::TooOld, message: "old".into(), since: at(0) };
        assert_eq!(said(pods(), 2, Verdict::Unknown(unknown)), None);
    }
}
