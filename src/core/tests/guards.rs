//! The two guards above every analyzer, for every snapshot, memory and policy, however odd: what has no room left is not
//! shrunk and grows, and what runs fits into what a removal leaves.

use crate::support::cases;
use crate::support::prelude::*;
use crate::support::strategies::{NOW, anyones_policy, memory, snapshot};
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

/// In each scrape of the last minute so many wait in every engine of the pods that serve, and the KV cache is so full.
fn pressed(snapshot: &Snapshot, waiting: f64, kv: f64) -> Snapshot {
    let mut snapshot = snapshot.clone();
    for group in snapshot.groups.values_mut() {
        if matches!(group.source, SourceHealth::Down { .. }) {
            group.source = SourceHealth::Complete;
        }
        for state in &mut group.variants {
            for replica in state.pods.iter_mut().filter(|pod| pod.phase == Phase::Ready) {
                let mut engine = replica.engines.values().next().cloned().unwrap_or_default();
                retain(&mut engine, |signal| !matches!(signal, Signal::Waiting | Signal::KvUsage));
                engine.add(Signal::Waiting, of_a_minute(waiting));
                engine.add(Signal::KvUsage, of_a_minute(kv));
                replica.engines = [("0".into(), engine)].into();
            }
            // Else not every pod that the scale object counts would be there.
            count_ready(state);
        }
    }
    snapshot
}

fn is_limited(policy: &Policy) -> bool {
    let limits = &policy.limits;
    limits.inventory || !limits.quotas.is_empty() || limits.power.is_some() || limits.spend.is_some()
}

fn roles(snapshot: &Snapshot) -> Vec<Vec<&VariantState>> {
    let of =
        |role| states(snapshot).filter(|state| state.variant.role == role && state.scale.is_some()).collect();
    [Role::Both, Role::Decode, Role::Prefill].map(of).into()
}

/// A variant from whose role something is removed.
struct Remains<'a> {
    state: &'a VariantState,
    ready: f64,
    /// Of these, those that stay.
    stay: f64,
}

impl<'a> Remains<'a> {
    /// All of a role; `None` where no analyzer has removed anything of it.
    fn of(
        states: &[&'a VariantState],
        outcome: &Outcome,
        memory: &Memory,
        limited: bool,
    ) -> Option<Vec<Self>> {
        let (mut remains, mut fewer, mut decided, mut before) = (Vec::new(), false, 0, 0);
        for state in states {
            let (number, scale) = (number(outcome, state), state.scale.unwrap());
            let ready = count(state.pods.iter().filter(is_ready).count());
            // What has no number stays.
            let own = number.map_or(u32::MAX, Replicas::get);
            let promised = promised(state, memory).unwrap_or(scale.base());
            let from = state.variant.bounds.clamp(promised).get();
            let from = if limited { from.min(state.variant.bounds.clamp(scale.base()).get()) } else { from };
            // A measured zero is exempt, and what sleeps is nothing that is removed.
            let rests = scale.spec == Replicas::ZERO || own == 0;
            let least = if rests || number.is_none() { own } else { from };
            // What a limit takes of a promise is held against no other variant's removal.
            let stay = if limited && own >= least {
                own.max(state.variant.bounds.clamp(promised).get())
            } else {
                own
            };
            fewer |= own < least.min(ready);
            (decided, before) = (decided + u64::from(own), before + u64::from(least));
            remains.push(Self { state, ready: f64::from(ready), stay: f64::from(stay.min(ready)) });
        }
        (fewer || decided < before).then_some(remains)
    }
}

/// What Ready pods of all variants have, and what those that stay have; `None` where that is not known of one that serves.
fn have(remains: &[Remains<'_>], of: impl Fn(&Remains<'_>) -> Option<f64>) -> Option<[f64; 2]> {
    remains.iter().filter(|variant| variant.ready > 0.0).try_fold([0.0, 0.0], |[all, left], variant| {
        let of_a_pod = of(variant)?;
        Some([all + variant.ready * of_a_pod, left + variant.stay * of_a_pod])
    })
}

fn sequences(state: &VariantState, running: f64) -> Option<f64> {
    state.template.sequences().map(|argument| running.max(f64::from(argument)))
}

fn cache(state: &VariantState) -> Option<f64> {
    let ready = state.pods.iter().filter(is_ready);
    let engines = ready.flat_map(|replica| replica.engines.values());
    let sizes = engines.filter_map(|engine| engine.newest(Signal::KvCapacity)).map(|sample| sample.value);
    // What one pod shows says nothing of the others.
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
        let limited = is_limited(&policy);
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
                let least = if limited { scale.base() } else { promised.max(scale.base()) };
                prop_assert!(number >= state.variant.bounds.clamp(least), "{number} of {promised}, {} running", scale.base());
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
            // What is unknown or too old is no number, and what is promised already needs no words.
            let unknown = states.iter().any(|state| number(&outcome, state).is_none());
            let ahead = states.iter().any(|state| number(&outcome, state).is_some_and(|number| number > state.scale.unwrap().base()));
            prop_assert!(grown || unknown || ahead || !reliefs.is_empty(), "{desired} of {running}: {reliefs:?}");
        }
    }

    #[test]
    fn the_net_grows_by_half_at_most(
        snapshot in snapshot(), memory in memory(), policy in anyones_policy(),
    ) {
        // Held by the rate policy, which knows nothing: what is added is the net's.
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
        let limited = is_limited(&policy);
        for states in roles(&snapshot) {
            let Some(remains) = Remains::of(&states, &outcome, &memory, limited) else { continue };
            if let Some([_, there]) = have(&remains, |variant| sequences(variant.state, running)) {
                let serving: f64 = remains.iter().map(|variant| variant.ready).sum();
                let inside = serving * (running + f64::from(waiting));
                prop_assert!(inside <= 0.9 * there + 1e-6, "{inside} in {there} sequences");
            }
            let alike = || have(&remains, |_| (remains.len() == 1).then_some(1.0));
            if let Some([all, there]) = have(&remains, |variant| cache(variant.state)).or_else(alike) {
                let inside = kv * all;
                prop_assert!(inside <= 0.9 * there * (1.0 + 1e-6), "{inside} tokens in {there}");
            }
        }
    }
}
