//! Properties that hold for any snapshot, memory and policy.

use crate::tests::support::cases;
use crate::tests::support::prelude::*;
use crate::tests::support::strategies::{
    NOW, any_policy, anyones_policy, group, later, memory, policy, remembered_later, snapshot,
};
use proptest::prelude::*;
use wva_core::model::{LimitPolicy, Stability};

fn evaluate(snapshot: &Snapshot, memory: &Memory, policy: &Policy) -> Outcome {
    let outcome = decide(snapshot, &observe(snapshot, memory.clone()), policy);
    assert_eq!(outcome.report.failed, [], "a panic that was caught is a panic all the same");
    outcome
}

fn numbers(outcome: &Outcome) -> Vec<(&VariantId, Option<Replicas>)> {
    outcome.decisions.iter().map(|(id, decision)| (id, number_of(&decision.verdict))).collect()
}

/// A budget: its name, its size, and what a replica uses of it; `None` if that is unknown.
type BudgetOf = (String, f64, Box<dyn Fn(&VariantState) -> Option<f64>>);

/// Every budget that is in force, by kind and key.
fn budgets(limits: &LimitPolicy, snapshot: &Snapshot) -> Vec<BudgetOf> {
    // Names that differ only in case are the same.
    let upper = |gpus: &BTreeMap<SmolStr, u32>| -> BTreeMap<String, u32> {
        gpus.iter().map(|(name, gpus)| (name.to_uppercase(), *gpus)).collect()
    };
    let (inventory, elsewhere) =
        (snapshot.inventory.as_ref().map(upper).unwrap_or_default(), upper(&snapshot.elsewhere));
    let mut all: Vec<BudgetOf> = Vec::new();
    // In a cluster with one type, a replica whose type is unknown is on that one.
    let gpus = |kind: &str, of: &'static str, budget: f64, only: Option<String>| -> BudgetOf {
        let of_replica = move |state: &VariantState| {
            let on = state.variant.accelerator.as_deref().or(only.as_deref())?;
            Some(if on == of { f64::from(state.template.gpus.unwrap()) } else { 0.0 })
        };
        (format!("{kind} of {of}"), budget, Box::new(of_replica))
    };
    let only = inventory.keys().next().filter(|_| inventory.len() == 1);
    for of in ["H100", "A100"] {
        // An accelerator that no node names is not limited by the inventory, and nothing is if a node names none. The report says so.
        let known = snapshot.unlabelled.is_none() && inventory.contains_key(of);
        if limits.inventory && limits.quotas.is_empty() && (limits.fail_closed || known) {
            let [there, elsewhere] = [&inventory, &elsewhere].map(|gpus| gpus.get(of).copied().unwrap_or(0));
            all.push(gpus("inventory", of, f64::from(there) - f64::from(elsewhere), only.cloned()));
        }
        for quota in &limits.quotas {
            let list = match quota {
                Quota::Cluster { quotas, .. } => quotas,
                Quota::Namespace { namespace_quotas, .. } => &namespace_quotas["default"],
            };
            if list[of] != Quota::UNLIMITED {
                all.push(gpus("quota", of, list[of] as f64, None));
            }
        }
    }
    if let Some(power) = limits.power.clone() {
        let of_replica = move |state: &VariantState| {
            let watts = state.variant.accelerator.as_ref().and_then(|name| power.per_gpu.get(name))?;
            Some(watts * f64::from(state.template.gpus.unwrap()))
        };
        all.push(("power".into(), power.watts, Box::new(of_replica)));
    }
    if let Some(spend) = limits.spend {
        all.push(("spend".into(), spend.get(), Box::new(|state| Some(state.variant.cost.get()))));
    }
    all
}

proptest! {
    #![proptest_config(cases::quick())]

    #[test]
    fn the_checker_accepts_every_decision(snapshot in snapshot(), memory in memory(), policy in anyones_policy()) {
        let first = evaluate(&snapshot, &memory, &policy);
        prop_assert_eq!(&first.report.violations, &vec![], "{:#?}", first.decisions);
        // The same in the next cycle, with all that was learned.
        let next = later(&snapshot, SignedDuration::from_secs(15));
        let second = evaluate(&next, &first.memory, &policy);
        prop_assert_eq!(&second.report.violations, &vec![], "{:#?}", second.decisions);
    }

    #[test]
    fn every_variant_has_exactly_one_decision(snapshot in snapshot(), memory in memory(), policy in anyones_policy()) {
        let outcome = evaluate(&snapshot, &memory, &policy);
        let states = states(&snapshot).map(|state| state.variant.id.clone());
        let expected: BTreeSet<_> = states.chain([id("broken")]).collect();
        prop_assert_eq!(outcome.decisions.into_keys().collect::<BTreeSet<_>>(), expected);
    }

    #[test]
    fn numbers_stay_within_their_bounds(snapshot in snapshot(), memory in memory(), policy in anyones_policy()) {
        let outcome = evaluate(&snapshot, &memory, &policy);
        for state in states(&snapshot) {
            if let Verdict::Target(target) = &outcome.decisions[&state.variant.id].verdict {
                let Bounds { min, max } = state.variant.bounds;
                prop_assert!(target.desired >= min);
                prop_assert!(max.is_none_or(|max| target.desired <= max.max(min)));
            }
        }
    }

    #[test]
    fn without_complete_evidence_no_number_falls(snapshot in snapshot(), memory in memory(), policy in anyones_policy(), warned in any::<bool>()) {
        let mut snapshot = snapshot;
        for group in snapshot.groups.values_mut() {
            group.source = if warned {
                SourceHealth::Partial { warnings: vec!["cut".into()] }
            } else {
                SourceHealth::Down { cause: "no answer".into() }
            };
        }
        let outcome = evaluate(&snapshot, &memory, &policy);
        for state in states(&snapshot) {
            if let (Verdict::Target(target), Some(promised)) =
                (&outcome.decisions[&state.variant.id].verdict, promised(state, &memory))
            {
                prop_assert!(target.desired >= state.variant.bounds.clamp(promised));
            }
        }
    }

    #[test]
    fn a_second_read_gives_the_same_number(snapshot in snapshot(), memory in memory(), policy in any_policy()) {
        let first = evaluate(&snapshot, &memory, &policy);
        let second = evaluate(&snapshot, &first.memory, &policy);
        // An error may become a number, because a moved bound asks for pods anew; whether a model keeps a last replica depends on all of its
        // numbers. Otherwise a number never becomes another one.
        let pairs = || numbers(&first).into_iter().zip(numbers(&second));
        let was_resolved = pairs().any(|(before, after)| before.1.is_none() && after.1.is_some());
        for (before, after) in pairs() {
            let why = |outcome: &Outcome| outcome.decisions[before.0].verdict.explanation().as_text().to_owned();
            let explained = || format!("{before:?}: {} then {after:?}: {}", why(&first), why(&second));
            prop_assert!(before.1.is_none() || before == after || was_resolved, "{}", explained());
        }
    }

    #[test]
    fn the_same_input_gives_the_same_bytes(snapshot in snapshot(), memory in memory(), policy in anyones_policy()) {
        let bytes = |memory: &Memory| serde_json::to_string(&evaluate(&snapshot, memory, &policy)).unwrap();
        let restored: Memory = serde_json::from_str(&serde_json::to_string(&memory).unwrap()).unwrap();
        prop_assert_eq!(bytes(&memory), bytes(&restored));
    }

    #[test]
    fn the_order_of_variants_and_pods_is_irrelevant(snapshot in snapshot(), memory in memory(), policy in any_policy()) {
        let mut reversed = snapshot.clone();
        reversed.groups.values_mut().for_each(|group| group.variants.reverse());
        states_mut(&mut reversed).for_each(|state| state.pods.reverse());
        let (given, reversed) = (evaluate(&snapshot, &memory, &policy), evaluate(&reversed, &memory, &policy));
        prop_assert_eq!(numbers(&given), numbers(&reversed));
    }

    #[test]
    fn other_groups_are_irrelevant(own in group(), elsewhere in group(), memory in memory(), policy in policy()) {
        let mut elsewhere = elsewhere;
        for state in &mut elsewhere.variants {
            state.variant.id.namespace = "elsewhere".into();
        }
        let alone = snapshot_of(NOW, own);
        let mut both = alone.clone();
        both.groups.insert(GroupId::new("elsewhere", "m"), elsewhere);
        let (alone, both) = (evaluate(&alone, &memory, &policy), evaluate(&both, &memory, &policy));
        for (id, decision) in &alone.decisions {
            prop_assert_eq!(decision, &both.decisions[id]);
        }
    }

    #[test]
    fn a_running_zero_was_measured_or_another_variant_serves(
        snapshot in snapshot(), memory in memory(), policy in anyones_policy(),
    ) {
        let outcome = evaluate(&snapshot, &memory, &policy);
        let group = snapshot.groups.values().next().unwrap();
        let numbers = numbers(&outcome);
        let number = |state: &VariantState| numbers.iter().find(|(id, _)| **id == state.variant.id).unwrap().1;
        for state in &group.variants {
            let runs = state.scale.is_some_and(|scale| scale.spec > Replicas::ZERO);
            if number(state) != Some(Replicas::ZERO) || !runs || state.variant.bounds.max == Some(Replicas::ZERO) {
                continue;
            }
            let model = &policy.global.default;
            let of_role = group.variants.iter().filter(|own| own.variant.role == state.variant.role);
            let covered = model.analyzer.is_of_capacity()
                && of_role.into_iter().any(|own| number(own).is_some_and(|number| number > Replicas::ZERO));
            let asleep = model.scale_to_zero.is_some_and(|policy| policy.enabled)
                && group.variants.iter().all(|own| own.variant.bounds.min == Replicas::ZERO);
            // Otherwise zero was promised before, and is held without data.
            let held = promised(state, &memory) == Some(Replicas::ZERO);
            prop_assert!(covered || held || (asleep && group.source == SourceHealth::Complete), "{:?}", number(state));
        }
    }

    #[test]
    fn what_is_added_never_exceeds_a_limit(snapshot in snapshot(), memory in memory(), policy in any_policy()) {
        let outcome = evaluate(&snapshot, &memory, &policy);
        let sleeps = policy.global.default.scale_to_zero.is_some_and(|policy| policy.enabled);
        for (name, budget, of_replica) in budgets(&policy.limits, &snapshot) {
            let (mut used, mut added) = (0.0, 0.0);
            for state in states(&snapshot) {
                let Verdict::Target(target) = &outcome.decisions[&state.variant.id].verdict else { continue };
                let base = state.scale.map_or(Replicas::ZERO, Scale::base);
                let promised = promised(state, &memory).unwrap_or(Replicas::ZERO);
                // No addition: a minimum is a promise, a held number asks for nothing, a running variant keeps one replica, and so
                // does a model that may not be scaled to zero.
                let runs = !sleeps || state.scale.is_some_and(|scale| scale.spec > Replicas::ZERO);
                let due = base.max(state.variant.bounds.min).max(promised).max(Replicas::new(u32::from(runs)));
                let more = f64::from(target.desired.saturating_sub(due).get());
                match of_replica(state) {
                    Some(amount) => {
                        used += amount * f64::from(target.desired.max(base).get());
                        added += amount * more;
                    }
                    None => prop_assert!(more == 0.0, "{name}: {more} of a use that nobody knows"),
                }
            }
            prop_assert!(added == 0.0 || used <= budget + 1e-6, "{name}: {used} of {budget}");
        }
    }

    #[test]
    fn what_waits_for_a_node_is_not_ordered_again(
        snapshot in snapshot(), memory in memory(), policy in any_policy(),
    ) {
        let mut policy = policy;
        policy.global.default.stability = Stability::default();
        // The legacy solver sizes each variant anew by its load: it has no additions that could be repeated.
        if policy.global.default.analyzer == Analyzer::Inferno {
            policy.global.default.analyzer = Analyzer::Rate;
        }
        let outcome = evaluate(&snapshot, &memory, &policy);
        for state in states(&snapshot) {
            let waits = state.pods.iter().any(|pod| pod.phase == Phase::Unschedulable);
            let active = state.scale.filter(|scale| scale.spec > Replicas::ZERO);
            let (Some(scale), true) = (active, waits) else { continue };
            if let Verdict::Target(target) = &outcome.decisions[&state.variant.id].verdict {
                let promised = promised(state, &memory).unwrap_or(Replicas::ZERO);
                let limit = scale.spec.max(promised).max(state.variant.bounds.min).max(Replicas::ONE);
                prop_assert!(target.desired <= limit, "{}", target.explanation);
            }
        }
    }

    #[test]
    fn a_limit_that_nobody_can_apply_changes_no_number_unless_it_fails_closed(
        snapshot in snapshot(), memory in memory(), policy in anyones_policy(),
    ) {
        let mut snapshot = snapshot;
        snapshot.inventory = None;
        let mut limited = policy.clone();
        (limited.limits.inventory, limited.limits.fail_closed) = (true, false);
        let mut free = limited.clone();
        free.limits.inventory = false;
        let (limited, free) = (evaluate(&snapshot, &memory, &limited), evaluate(&snapshot, &memory, &free));
        prop_assert_eq!(numbers(&limited), numbers(&free));
        let gaps = limited.report.groups.values().map(|group| group.limit_gaps.len()).sum::<usize>();
        prop_assert_eq!(gaps, if policy.limits.quotas.is_empty() { states(&snapshot).count() } else { 0 });
    }

    #[test]
    fn the_unit_of_money_and_of_power_is_irrelevant(
        snapshot in snapshot(), memory in memory(), policy in any_policy(), power_of_two in 1..12,
    ) {
        // A power of two changes no digit of a float.
        let factor = f64::from(power_of_two).exp2();
        let mut snapshot = snapshot;
        // A cost of 0 counts as the default cost in the search for the cheapest: an amount, which does not scale.
        states_mut(&mut snapshot).for_each(|state| {
            state.variant.cost = Cost::new(state.variant.cost.get().max(2.5)).unwrap();
        });
        let (mut dearer, mut raised) = (snapshot.clone(), policy.clone());
        states_mut(&mut dearer).for_each(|state| {
            state.variant.cost = Cost::new(state.variant.cost.get() * factor).unwrap();
        });
        raised.limits.spend = policy.limits.spend.map(|spend| Cost::new(spend.get() * factor).unwrap());
        if let Some(power) = &mut raised.limits.power {
            power.watts *= factor;
            power.per_gpu.values_mut().for_each(|watts| *watts *= factor);
        }
        let (given, dearer) = (evaluate(&snapshot, &memory, &policy), evaluate(&dearer, &memory, &raised));
        prop_assert_eq!(numbers(&given), numbers(&dearer));
    }

    #[test]
    fn the_date_is_irrelevant(
        snapshot in snapshot(), memory in memory(), policy in anyones_policy(), days in -10_000_i64..10_000,
    ) {
        let by = SignedDuration::from_hours(24 * days);
        let today = evaluate(&snapshot, &memory, &policy);
        let then = evaluate(&later(&snapshot, by), &remembered_later(&memory, by), &policy);
        let decided = |outcome: &Outcome| -> Vec<Option<(Replicas, Reason)>> {
            let verdicts = outcome.decisions.values().map(|decision| &decision.verdict);
            let number = |verdict: &Verdict| match verdict {
                Verdict::Target(target) => Some((target.desired, target.reason)),
                Verdict::Unknown(_) => None,
            };
            verdicts.map(number).collect()
        };
        prop_assert_eq!(decided(&today), decided(&then));
    }
}
