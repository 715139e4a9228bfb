//! The two guards above every analyzer, for every snapshot, memory and policy, however odd: what has no room left is not
//! shrunk and grows, and what runs fits into what a removal leaves.

use crate::support::cases;
use crate::support::strategies::{NOW, anyones_policy, memory, snapshot};
use jiff::SignedDuration;
use proptest::prelude::*;
use wva_core::decision::Verdict;
use wva_core::memory::Memory;
use wva_core::model::Role;
use wva_core::report::Relief;
use wva_core::snapshot::{Phase, Sample, Scale, Signal, SourceHealth, VariantState};
use wva_core::units::Replicas;
use wva_core::{Outcome, Policy, Snapshot, decide, observe};

fn evaluate(snapshot: &Snapshot, memory: &Memory, policy: &Policy) -> Outcome {
    decide(snapshot, &observe(snapshot, memory.clone()), policy)
}

fn promised(state: &VariantState, memory: &Memory) -> Option<Replicas> {
    let remembered = memory.groups.values().find_map(|group| group.variants.get(&state.variant.id.name));
    remembered.and_then(|one| one.target).or(state.last_status.filter(|last| *last > Replicas::ZERO))
}

fn states(snapshot: &Snapshot) -> impl Iterator<Item = &VariantState> {
    snapshot.groups.values().flat_map(|group| &group.variants)
}

fn number(outcome: &Outcome, state: &VariantState) -> Option<Replicas> {
    match &outcome.decisions[&state.variant.id].verdict {
        Verdict::Target(target) => Some(target.desired),
        Verdict::Unknown(_) => None,
    }
}

/// In each scrape of the last minute so many wait in every engine of the pods that serve, and the KV cache is so full.
fn pressed(snapshot: &Snapshot, waiting: f64, kv: f64) -> Snapshot {
    let mut snapshot = snapshot.clone();
    let samples =
        |value| (0..6).map(move |back| Sample { at: NOW - SignedDuration::from_secs(1 + 14 * back), value });
    for group in snapshot.groups.values_mut() {
        if matches!(group.source, SourceHealth::Down { .. }) {
            group.source = SourceHealth::Complete;
        }
        for state in &mut group.variants {
            let ready = state.replicas.iter_mut().filter(|one| one.phase == Phase::Ready);
            for replica in ready {
                let mut engine = wva_core::snapshot::Signals::default();
                let others = replica.engines.values_mut().next();
                for (signal, series) in others.iter().flat_map(|signals| signals.iter()) {
                    if !matches!(signal, Signal::Waiting | Signal::KvUsage) {
                        engine.add(signal, series.iter());
                    }
                }
                engine.add(Signal::Waiting, samples(waiting));
                engine.add(Signal::KvUsage, samples(kv));
                replica.engines = [("0".into(), engine)].into();
            }
            // Else not every pod that the scale object counts would be there.
            let ready = state.replicas.iter().filter(|one| one.phase == Phase::Ready).count();
            state.scale = state
                .scale
                .map(|scale| Scale { ready: Replicas::new(u32::try_from(ready).unwrap()), ..scale });
        }
    }
    snapshot
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
            let ready = state.replicas.iter().filter(|one| one.phase == Phase::Ready).count();
            let ready = u32::try_from(ready).unwrap();
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
    remains.iter().filter(|one| one.ready > 0.0).try_fold([0.0, 0.0], |[all, left], one| {
        let of_a_pod = of(one)?;
        Some([all + one.ready * of_a_pod, left + one.stay * of_a_pod])
    })
}

fn sequences(state: &VariantState, running: f64) -> Option<f64> {
    state.template.sequences().map(|argument| running.max(f64::from(argument)))
}

fn cache(state: &VariantState) -> Option<f64> {
    let ready = state.replicas.iter().filter(|one| one.phase == Phase::Ready);
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
        let outcome = evaluate(&snapshot, &memory, &policy);
        prop_assert_eq!(&outcome.report.violations, &vec![]);
        let limits = &policy.limits;
        let limited = limits.inventory || !limits.quotas.is_empty() || limits.power.is_some() || limits.spend.is_some();
        for states in roles(&snapshot) {
            if states.iter().all(|state| state.replicas.iter().all(|one| one.phase != Phase::Ready)) {
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
        let outcome = evaluate(&snapshot, &memory, &policy);
        let said: Vec<Relief> =
            outcome.report.groups.values().flat_map(|group| &group.steps).filter_map(|step| step.relief()).collect();
        for states in roles(&snapshot) {
            let ready = states.iter().flat_map(|state| &state.replicas).filter(|one| one.phase == Phase::Ready);
            let running: u32 = states.iter().map(|state| state.scale.unwrap().base().get()).sum();
            if ready.count() == 0 || running == 0 {
                continue;
            }
            let told: u32 = states.iter().filter_map(|state| number(&outcome, state)).map(Replicas::get).sum();
            let grown = told >= running + running.div_ceil(2);
            // What is unknown or too old is no number, and what is promised already needs no words.
            let unknown = states.iter().any(|state| number(&outcome, state).is_none());
            let ahead = states.iter().any(|state| number(&outcome, state).is_some_and(|number| number > state.scale.unwrap().base()));
            prop_assert!(grown || unknown || ahead || !said.is_empty(), "{told} of {running}: {said:?}");
        }
    }

    #[test]
    fn the_net_grows_by_half_at_most(
        snapshot in snapshot(), memory in memory(), policy in anyones_policy(),
    ) {
        // Held by the rate policy, which knows nothing: what is added is the net's.
        let mut policy = policy;
        policy.global.default.analyzer = wva_core::model::Analyzer::Rate;
        policy.global.default.beside = Vec::new();
        let snapshot = pressed(&snapshot, 9.0, 0.5);
        let mut bare = snapshot.clone();
        for state in bare.groups.values_mut().flat_map(|group| &mut group.variants) {
            for signals in state.replicas.iter_mut().flat_map(|replica| replica.engines.values_mut()) {
                let mut kept = wva_core::snapshot::Signals::default();
                kept.add(Signal::Waiting, signals.get(Signal::Waiting).iter());
                *signals = kept;
            }
        }
        let outcome = evaluate(&bare, &memory, &policy);
        for states in roles(&bare) {
            let running: u32 = states.iter().map(|state| state.scale.unwrap().base().get()).sum();
            for state in states {
                let Some(number) = number(&outcome, state) else { continue };
                let (scale, bounds) = (state.scale.unwrap(), state.variant.bounds);
                let promised = promised(state, &memory).unwrap_or(Replicas::ZERO);
                let base = scale.base().get();
                let most = promised.get().max(scale.spec.get()).max(base * 11 / 10 + 1) + running.div_ceil(2).max(1);
                prop_assert!(number <= bounds.clamp(Replicas::new(most)), "{number} of {promised}, {base} of {running} running");
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
        let samples = || (0..6).map(|back| Sample { at: NOW - SignedDuration::from_secs(1 + 14 * back), value: running });
        for state in snapshot.groups.values_mut().flat_map(|group| &mut group.variants) {
            for engine in state.replicas.iter_mut().flat_map(|replica| replica.engines.values_mut()) {
                let mut own = wva_core::snapshot::Signals::default();
                let others = engine.iter().filter(|(signal, _)| *signal != Signal::Running);
                others.for_each(|(signal, series)| own.add(signal, series.iter()));
                own.add(Signal::Running, samples());
                *engine = own;
            }
        }
        let outcome = evaluate(&snapshot, &memory, &policy);
        prop_assert_eq!(&outcome.report.violations, &vec![]);
        let limits = &policy.limits;
        let limited = limits.inventory || !limits.quotas.is_empty() || limits.power.is_some() || limits.spend.is_some();
        for states in roles(&snapshot) {
            let Some(remains) = Remains::of(&states, &outcome, &memory, limited) else { continue };
            if let Some([_, there]) = have(&remains, |one| sequences(one.state, running)) {
                let serving: f64 = remains.iter().map(|one| one.ready).sum();
                let inside = serving * (running + f64::from(waiting));
                prop_assert!(inside <= 0.9 * there + 1e-6, "{inside} in {there} sequences");
            }
            let alike = || have(&remains, |_| (remains.len() == 1).then_some(1.0));
            if let Some([all, there]) = have(&remains, |one| cache(one.state)).or_else(alike) {
                let inside = kv * all;
                prop_assert!(inside <= 0.9 * there * (1.0 + 1e-6), "{inside} tokens in {there}");
            }
        }
    }
}
