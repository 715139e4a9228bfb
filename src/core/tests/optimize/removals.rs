//! Removals: which variant loses replicas first, how many, and which findings count.

use super::fleet::{self, FindingSpec, V, by_role, finding, planned_alone, request, v};
use wva_core::model::Compat;
use wva_core::model::Role::{Decode, Prefill};
use wva_core::optimize::OptimizerStep;

fn alone(variants: &[V], findings: &[FindingSpec]) -> Vec<u32> {
    fleet::alone(&request("m", 1.0, variants, findings), Compat::Corrected)
}

#[test]
fn the_dearest_goes_first_then_the_one_that_carries_less_then_the_first_by_name() {
    let pair = |a: V, b: V| alone(&[a, b], &[finding(0.0, 1500.0)]);
    assert_eq!(pair(v("a", 5.0, 1000.0, 2), v("b", 6.0, 1000.0, 2)), [2, 1]);
    assert_eq!(pair(v("a", 5.0, 1500.0, 2), v("b", 5.0, 1000.0, 2)), [2, 1]);
    assert_eq!(pair(v("b", 5.0, 1000.0, 2), v("a", 5.0, 1000.0, 2)), [2, 1]);
}

#[test]
fn what_a_variant_carries_is_weighed_by_the_scores() {
    let carries = |name, carries: [f64; 2]| V { carries: carries.to_vec(), ..v(name, 5.0, 0.0, 2) };
    let variants = [carries("a", [1000.0, 900.0]), carries("b", [1100.0, 500.0])];
    let removed = |score| {
        let second = FindingSpec { score, ..finding(0.0, 1000.0) };
        alone(&variants, &[finding(0.0, 1100.0), second])
    };
    assert_eq!(removed(0.1), [1, 2], "1090 is less than 1150");
    assert_eq!(removed(1.0), [2, 1], "1600 is less than 1900");
}

#[test]
fn whole_replicas_go_that_every_live_finding_can_spare() {
    let variant = |min| V { carries: vec![1000.0, 100.0], min, ..v("v", 5.0, 0.0, 6) };
    let removed = |spare: [f64; 2], min| alone(&[variant(min)], &spare.map(|spare| finding(0.0, spare)));
    assert_eq!(removed([3999.0, 900.0], 0), [3]);
    assert_eq!(removed([3999.0, 200.0], 0), [4]);
    assert_eq!(removed([3999.0, 0.0], 0), [6], "one that has nothing to spare stops it");
    assert_eq!(removed([9000.0, 900.0], 4), [4]);
    assert_eq!(removed([9000.0, 900.0], 0), [1], "the last one stays");
}

#[test]
fn what_one_variant_gives_up_the_next_one_cannot() {
    let variants = [v("dear", 9.0, 1000.0, 1), v("cheap", 5.0, 1000.0, 3)];
    assert_eq!(alone(&variants, &[finding(0.0, 2500.0)]), [0, 2]);
    let plan = &planned_alone(&[request("m", 1.0, &variants, &[finding(0.0, 2500.0)])], Compat::Corrected)[0];
    let removed = plan.steps.iter().filter_map(|step| match step {
        OptimizerStep::Removed { variant, allowed, removed } => Some((variant.as_str(), *allowed, *removed)),
        _ => None,
    });
    assert_eq!(removed.collect::<Vec<_>>(), [("dear", 2, 1), ("cheap", 1, 1)]);
}

#[test]
fn a_variant_of_unknown_capacity_keeps_what_it_has() {
    let variants = [v("unknown", 9.0, 0.0, 3), v("known", 5.0, 1000.0, 3)];
    assert_eq!(alone(&variants, &[finding(0.0, 2000.0)]), [3, 1]);
    let second = |name, cost, first| V { carries: vec![first, 1000.0], ..v(name, cost, 0.0, 3) };
    let variants = [second("unknown", 9.0, 0.0), second("known", 5.0, 1000.0)];
    assert_eq!(
        alone(&variants, &[finding(0.0, 2000.0), finding(0.0, 2000.0)]),
        [3, 1],
        "to the first finding"
    );
}

#[test]
fn what_is_spare_in_all_is_shared_out_by_what_supply_exceeds_demand() {
    let both = |name, role| V { carries: vec![1000.0, 100.0], ..v(name, 5.0, 0.0, 4) }.role(role);
    let variants = [both("prefill", Prefill), both("decode", Decode)];
    let roles = by_role(&[(Prefill, 0.0, 4000.0), (Decode, 0.0, 4000.0)]);
    let mut request = request("m", 1.0, &variants, &[roles, finding(0.0, 400.0)]);
    // Each supplies 400: prefill has 100 more than its demand, decode 300.
    request.findings[1].variants[0].demand = 300.0;
    request.findings[1].variants[1].demand = 100.0;
    assert_eq!(fleet::alone(&request, Compat::Corrected), [3, 1]);
    request.findings[1].variants.iter_mut().for_each(|variant| variant.demand = 400.0);
    assert_eq!(fleet::alone(&request, Compat::Corrected), [2, 2], "equally where neither is known");
}

#[test]
fn without_findings_nothing_moves() {
    assert_eq!(alone(&[v("v", 5.0, 1000.0, 4)], &[]), [4]);
}

#[test]
fn of_equally_cheap_capacity_the_first_by_name_grows() {
    let grown =
        |variants: &[V], compat| fleet::alone(&request("m", 1.0, variants, &[finding(1000.0, 0.0)]), compat);
    let pair = [v("b", 5.0, 1000.0, 1), v("a", 5.0, 1000.0, 1)];
    assert_eq!(grown(&pair, Compat::Corrected), [1, 2]);
    assert_eq!(grown(&pair, Compat::Upstream), [2, 1], "as given");
    let cheaper = [v("b", 8.0, 2000.0, 1), v("a", 5.0, 1000.0, 1)];
    assert_eq!(grown(&cheaper, Compat::Upstream), [2, 1], "4 for a thousand is cheaper than 5");
}

#[test]
fn what_maxima_allow_of_one_role_is_what_the_other_one_gets() {
    let prefill = V { max: Some(3), ..v("prefill", 5.0, 1000.0, 1) }.role(Prefill);
    let variants = [prefill, v("decode", 5.0, 1000.0, 1).role(Decode)];
    let roles = by_role(&[(Prefill, 4000.0, 0.0), (Decode, 8000.0, 0.0)]);
    // Half of what prefill needs, and so half of what decode needs.
    assert_eq!(alone(&variants, &[roles]), [3, 5]);
}
