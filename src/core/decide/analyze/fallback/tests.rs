//! What a fallback orders beyond the replicas at its start.

use std::collections::BTreeMap;

use super::*;

fn finding(demand: f64, anticipated: f64) -> Finding {
    let totals = Totals { supply: anticipated, anticipated, demand, ..Totals::default() };
    Finding {
        analyzer: Analyzer::Saturation,
        score: 1.0,
        live: true,
        total: totals.apply_thresholds(0.8, 0.5),
        roles: BTreeMap::from([(Role::Both, totals.apply_thresholds(0.8, 0.5))]),
        variants: Vec::new(),
    }
}

/// What a fallback finds missing, in all and in the role, with these demands in turn and a supply of 100.
fn missing(demands: &[f64], learned: &mut Learned) -> Vec<f64> {
    let mut missing = |demand: &f64| {
        let found = scale_demand(finding(*demand, 100.0), Utilisation { up: 0.8, down: 0.5 }, learned);
        let of_role = found.roles[&Role::Both].required;
        assert!((found.total.required - of_role).abs() < 1e-9);
        found.total.required
    };
    demands.iter().map(&mut missing).map(|missing| (missing * 1e6).round() / 1e6).collect()
}

#[test]
fn a_fallback_orders_only_what_exceeds_the_replicas_at_its_start() {
    // By its own measure a demand of 160 needs 200. The supply was enough before, so half of the demand counts, now and later.
    let mut learned = Learned::default();
    assert_eq!(missing(&[160.0, 160.0, 176.0, 120.0], &mut learned), [0.0, 0.0, 10.0, 0.0]);
    assert_eq!(learned.fallback_share, Some(0.5));
    // If it finds nothing missing at first, all demand counts.
    let mut learned = Learned::default();
    assert_eq!(missing(&[40.0, 160.0], &mut learned), [0.0, 100.0]);
    assert_eq!(missing(&[0.0], &mut Learned::default()), [0.0], "no demand at all");
}

#[test]
fn a_fallback_orders_all_it_finds_if_no_analyzer_knew_the_capacity() {
    let mut learned = Learned { fallback_share: Some(1.0), ..Learned::default() };
    assert_eq!(missing(&[160.0], &mut learned), [100.0]);
}
