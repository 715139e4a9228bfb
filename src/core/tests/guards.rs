//! The two guards above every analyzer, for any snapshot, memory and policy: a saturated fleet is not shrunk but grows, and
//! the running requests fit into what a removal leaves.

use crate::tests::support::cases;
use crate::tests::support::prelude::*;
use crate::tests::support::strategies::{NOW, anyones_policy, memory, snapshot};
use proptest::prelude::*;
use wva_core::report::Relief;

fn decided(snapshot: &Snapshot, memory: &Memory, policy: &Policy) -> Outcome {
    decide(snapshot, &observe(snapshot, memory.clone()), policy)
}

fn number(outcome: &Outcome, state: &VariantState) -> Option<Replicas> {
    number_of(&outcome.decisions[&state.variant.id].verdict)
}

fn is_ready(pod: &&Pod) -> bool {
    pod.phase == Phase::Ready
}

/// The value in each scrape of the last minute.
fn of_a_minute(value: f64) -> impl Iterator<Item = Sample> {
    (0..6).map(move |back| Sample { at: NOW - SignedDuration::from_secs(1 + 14 * back), value })
}

/// The same snapshot, in which every engine of a Ready pod shows this queue and KV usage in each scrape of the last minute.
fn pressed(snapshot: &Snapshot, waiting: f64, kv: f64) -> Snapshot {
    let mut snapshot = snapshot.clone();
    for group in snapshot.groups.values_mut() {
        if matches!(group.source, SourceHealth::Down { .. }) {
            group.source = SourceHealth::Complete;
        }
        for state in &mut group.variants {
            for pod in state.pods.iter_mut().filter(|pod| pod.phase == Phase::Ready) {
                let mut engine = pod.engines.values().next().cloned().unwrap_or_default();
                retain(&mut engine, |signal| !matches!(signal, Signal::Waiting | Signal::KvUsage));
                engine.add(Signal::Waiting, of_a_minute(waiting));
                engine.add(Signal::KvUsage, of_a_minute(kv));
                pod.engines = [("0".into(), engine)].into();
            }
            // The scale object must count the pods that are listed, or some would be missing.
            count_ready(state);
        }
    }
    snapshot
}

fn has_shared_limit(policy: &Policy) -> bool {
    let limits = &policy.limits;
    limits.inventory || !limits.quotas.is_empty() || limits.power.is_some() || limits.spend.is_some()
}

fn roles(snapshot: &Snapshot) -> Vec<Vec<&VariantState>> {
    let of =
        |role| states(snapshot).filter(|state| state.variant.role == role && state.scale.is_some()).collect();
    [Role::Both, Role::Decode, Role::Prefill].map(of).into()
}

/// A variant of a role from which a replica is removed.
struct Remains<'a> {
    state: &'a VariantState,
    ready: f64,
    /// Ready pods that stay.
    staying: f64,
}

impl<'a> Remains<'a> {
    /// The variants of a role; `None` if no analyzer removed a replica from it.
    fn of(
        states: &[&'a VariantState],
        outcome: &Outcome,
        memory: &Memory,
        is_limited: bool,
    ) -> Option<Vec<Self>> {
        let (mut remains, mut removes, mut decided, mut before) = (Vec::new(), false, 0, 0);
        for state in states {
            let (number, scale) = (number(outcome, state), state.scale.unwrap());
            let ready = count(state.pods.iter().filter(is_ready).count());
            // A variant without a number keeps all its pods.
            let own = number.map_or(u32::MAX, Replicas::get);
            let promised = promised(state, memory).unwrap_or(scale.base());
            let from = state.variant.bounds.clamp(promised).get();
            let from =
                if is_limited { from.min(state.variant.bounds.clamp(scale.base()).get()) } else { from };
            // A measured zero is exempt from the rule, and a variant at zero has nothing to remove.
            let may_be_zero = scale.spec == Replicas::ZERO || own == 0;
            let floor = if may_be_zero || number.is_none() { own } else { from };
            // If a limit cuts a promise, the missing part does not count against another variant's removal.
            let staying = if is_limited && own >= floor {
                own.max(state.variant.bounds.clamp(promised).get())
            } else {
                own
            };
            removes |= own < floor.min(ready);
            (decided, before) = (decided + u64::from(own), before + u64::from(floor));
            remains.push(Self { state, ready: f64::from(ready), staying: f64::from(staying.min(ready)) });
        }
        (removes || decided < before).then_some(remains)
    }
}

/// The sum of `per_pod` over the Ready pods, and over those that stay; `None` if it is unknown for a variant that serves.
fn all_and_staying(
    remains: &[Remains<'_>],
    per_pod: impl Fn(&Remains<'_>) -> Option<f64>,
) -> Option<[f64; 2]> {
    remains.iter().filter(|variant| variant.ready > 0.0).try_fold([0.0, 0.0], |[all, staying], variant| {
        let value = per_pod(variant)?;
        Some([all + variant.ready * value, staying + variant.staying * value])
    })
}

fn sequences(state: &VariantState, running: f64) -> Option<f64> {
    state.template.sequences().map(|argument| running.max(f64::from(argument)))
}

fn cache(state: &VariantState) -> Option<f64> {
    let ready = state.pods.iter().filter(is_ready);
    let engines = ready.flat_map(|pod| pod.engines.values());
    let sizes = engines.filter_map(|engine| engine.newest(Signal::KvCapacity)).map(|sample| sample.value);
    // One pod's size may be an exception: the second largest counts, if there is one.
    let mut sizes: Vec<f64> = sizes.filter(|size| *size > 0.0).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.iter().nth_back(1).or_else(|| sizes.first()).copied()
}

proptest! {
    #![proptest_config(cases::quick())]

    #[test]
    fn a_saturated_fleet_is_never_shrunk(
        snapshot in snapshot(), memory in memory(), policy in anyones_policy(),
        (waiting, kv) in prop_oneof![Just((5.0, 0.1)), Just((1.0, 0.95)), Just((500.0, 1.0))],
    ) {
        let snapshot = pressed(&snapshot, waiting, kv);
        let outcome = decided(&snapshot, &memory, &policy);
        prop_assert_eq!(&outcome.report.violations, &vec![]);
        let is_limited = has_shared_limit(&policy);
        for states in roles(&snapshot) {
            if states.iter().all(|state| !state.pods.iter().any(|pod| pod.phase == Phase::Ready)) {
                continue;
            }
            for state in states {
                let Some(number) = number(&outcome, state) else { continue };
                let scale = state.scale.unwrap();
                if scale.spec == Replicas::ZERO {
                    continue;
                }
                let promised = promised(state, &memory).unwrap_or(Replicas::ZERO);
                let floor = if is_limited { scale.base() } else { promised.max(scale.base()) };
                prop_assert!(number >= state.variant.bounds.clamp(floor), "{number} of {promised}, {} running", scale.base());
            }
        }
    }

    #[test]
    fn a_saturated_fleet_grows_or_the_report_says_why_not(
        snapshot in snapshot(), memory in memory(), policy in anyones_policy(),
    ) {
        let snapshot = pressed(&snapshot, 9.0, 0.5);
        let outcome = decided(&snapshot, &memory, &policy);
        let reliefs: Vec<Relief> =
            outcome.report.groups.values().flat_map(|group| &group.steps).filter_map(|step| step.relief()).collect();
        for states in roles(&snapshot) {
            let ready = states.iter().flat_map(|state| &state.pods).filter(is_ready);
            let running: u32 = states.iter().map(|state| state.scale.unwrap().base().get()).sum();
            if ready.count() == 0 || running == 0 {
                continue;
            }
            let desired: u32 = states.iter().filter_map(|state| number(&outcome, state)).map(Replicas::get).sum();
            let grown = desired >= running + running.div_ceil(2);
            // Without a number nothing was decided, and an addition that is already promised needs no explanation.
            let unknown = states.iter().any(|state| number(&outcome, state).is_none());
            let ahead = states.iter().any(|state| number(&outcome, state).is_some_and(|number| number > state.scale.unwrap().base()));
            prop_assert!(grown || unknown || ahead || !reliefs.is_empty(), "{desired} of {running}: {reliefs:?}");
        }
    }

    #[test]
    fn the_net_grows_by_half_at_most(
        snapshot in snapshot(), memory in memory(), policy in anyones_policy(),
    ) {
        // The rate policy knows nothing here and holds, so that only the safety net adds.
        let mut policy = policy;
        policy.global.default.analyzer = Analyzer::Rate;
        policy.global.default.secondary = Vec::new();
        let snapshot = pressed(&snapshot, 9.0, 0.5);
        let mut bare = snapshot.clone();
        engines_mut(&mut bare).for_each(|engine| retain(engine, |signal| signal == Signal::Waiting));
        let outcome = decided(&bare, &memory, &policy);
        for states in roles(&bare) {
            let running: u32 = states.iter().map(|state| state.scale.unwrap().base().get()).sum();
            for state in states {
                let Some(number) = number(&outcome, state) else { continue };
                let (scale, bounds) = (state.scale.unwrap(), state.variant.bounds);
                let promised = promised(state, &memory).unwrap_or(Replicas::ZERO);
                let base = scale.base().get();
                let limit = promised.get().max(scale.spec.get()).max(base * 11 / 10 + 1) + running.div_ceil(2).max(1);
                prop_assert!(number <= bounds.clamp(Replicas::new(limit)), "{number} of {promised}, {base} of {running} running");
            }
        }
    }

    #[test]
    fn what_runs_fits_into_what_a_removal_leaves(
        snapshot in snapshot(), memory in memory(), policy in anyones_policy(),
        (running, waiting, kv) in (0_u32..20, 0_u32..4, 0.0..0.9),
    ) {
        let mut snapshot = pressed(&snapshot, f64::from(waiting), kv);
        let running = f64::from(running);
        for engine in engines_mut(&mut snapshot) {
            retain(engine, |signal| signal != Signal::Running);
            engine.add(Signal::Running, of_a_minute(running));
        }
        let outcome = decided(&snapshot, &memory, &policy);
        prop_assert_eq!(&outcome.report.violations, &vec![]);
        let is_limited = has_shared_limit(&policy);
        for states in roles(&snapshot) {
            let Some(remains) = Remains::of(&states, &outcome, &memory, is_limited) else { continue };
            if let Some([_, there]) = all_and_staying(&remains, |variant| sequences(variant.state, running)) {
                let serving: f64 = remains.iter().map(|variant| variant.ready).sum();
                let inside = serving * (running + f64::from(waiting));
                prop_assert!(inside <= 0.9 * there + 1e-6, "{inside} in {there} sequences");
            }
            let alike = || all_and_staying(&remains, |_| (remains.len() == 1).then_some(1.0));
            if let Some([all, there]) = all_and_staying(&remains, |variant| cache(variant.state)).or_else(alike) {
                let inside = kv * all;
                prop_assert!(inside <= 0.9 * there * (1.0 + 1e-6), "{inside} tokens in {there}");
            }
        }
    }
}
