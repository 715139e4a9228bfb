//! What the analyzer learns, and what it refuses to tell.

mod properties;

use jiff::SignedDuration;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::arithmetic::analyze_throughput as analyze;
use crate::model::Compat;
use crate::units::{Cost, Seconds};

const PAGE: &str = include_str!("../../../../docs/decisions/throughput.md");
const TRUE: LatencyLine = LatencyLine { slope: 0.073, intercept: 0.006 };

fn at(seconds: i64) -> Timestamp {
    Timestamp::constant(1_800_000_000, 0) + SignedDuration::from_secs(seconds)
}

fn replica(kv: f64) -> ThroughputObservation {
    ThroughputObservation {
        kv,
        capacity: 1_024_000,
        latency: TRUE.at(kv),
        prompt: 5000.0,
        generated: 200.0,
        hits: 0.1,
        ..ThroughputObservation::default()
    }
}

fn variant(name: &str, replicas: Vec<ThroughputObservation>) -> ThroughputVariant {
    ThroughputVariant {
        name: name.into(),
        role: Role::Both,
        accelerator: None,
        cost: Cost::ZERO,
        pending: Replicas::ZERO,
        ready: Replicas::new(count(replicas.len())),
        replicas,
    }
}

fn look(seconds: i64, arrival: Option<f64>, variants: Vec<ThroughputVariant>) -> ThroughputInput {
    let settings = ThroughputSettings { up: 0.85, down: 0.70, score: 1.0, period: Seconds::whole(15) };
    ThroughputInput { now: at(seconds), variants, arrival, queue: Requests::ZERO, settings }
}

/// One replica of `v` with ten usages, one every 15 s.
fn warmed(compat: Compat) -> ThroughputMemory {
    let mut memory = ThroughputMemory::default();
    for step in 0..10 {
        let seen = variant("v", vec![replica(0.2 + 0.05 * f64::from(step))]);
        let _ = analyze(&look(15 * i64::from(step), Some(1.0), vec![seen]), &mut memory, compat);
    }
    memory
}

fn reason(analysis: &ThroughputAnalysis) -> &str {
    analysis.finding.variants.first().map_or("none", |one| one.reason.as_str())
}

#[test]
fn the_page_says_what_the_code_computes() {
    let mut memory = warmed(Compat::Corrected);
    let seen = look(150, Some(15.0), vec![variant("v", vec![replica(0.5)])]);
    let found = analyze(&seen, &mut memory, Compat::Corrected);
    let (one, total) = (&found.finding.variants[0], found.finding.total);
    let line = found.lines["v"];
    for says in [
        format!("slope {:.3} and intercept {:.3}", line.slope, line.intercept),
        format!("latency when full {:.5} s", line.at(FULL)),
        format!("{} tokens", RequestShape { prompt: 5000.0, generated: 200.0, hits: 0.1 }.resident()),
        format!("capacity {:.1} tokens/s ({})", one.per_replica, one.reason),
        format!("demand {:.0} tokens/s", total.demand),
        format!("missing {:.1} tokens/s", total.required),
    ] {
        assert!(PAGE.contains(&says), "the page does not say {says:?}");
    }
}

#[test]
fn nothing_arriving_at_working_replicas_is_no_signal() {
    for arrival in [Some(0.0), None, Some(f64::NAN)] {
        let seen = look(150, arrival, vec![variant("v", vec![replica(0.5)])]);
        let ours = analyze(&seen, &mut warmed(Compat::Corrected), Compat::Corrected).finding;
        let theirs = analyze(&seen, &mut warmed(Compat::Upstream), Compat::Upstream).finding;
        assert_eq!((ours.total.demand, ours.total.spare), (0.0, 0.0));
        assert!(near(theirs.total.spare, theirs.total.supply));
    }
}

#[test]
fn nothing_arriving_at_idle_replicas_is_a_demand_of_zero() {
    let seen = look(150, Some(0.0), vec![variant("v", vec![replica(0.0)])]);
    let found = analyze(&seen, &mut warmed(Compat::Corrected), Compat::Corrected).finding;
    assert!(found.live && found.total.supply > 0.0);
    assert!(near(found.total.spare, found.total.supply));
}

#[test]
fn it_is_live_for_three_periods_after_it_had_something_to_say() {
    let mut memory = warmed(Compat::Corrected);
    let mut live = |seconds| {
        let seen = look(seconds, None, vec![variant("v", vec![replica(0.5)])]);
        analyze(&seen, &mut memory, Compat::Corrected).finding.live
    };
    assert_eq!([150, 180, 181].map(&mut live), [true, true, false]);
}

#[test]
fn while_the_supply_of_a_ready_replica_is_unknown_nothing_is_missing() {
    let faster = ThroughputObservation { latency: 0.001, ..replica(0.5) };
    let not_understood = variant("w", vec![faster]);
    let not_seen = ThroughputVariant { ready: Replicas::ONE, ..variant("w", Vec::new()) };
    for other in [not_understood, not_seen] {
        let seen = look(150, Some(50.0), vec![variant("v", vec![replica(0.5)]), other]);
        let required = |compat| analyze(&seen, &mut warmed(compat), compat).finding.total.required;
        assert!(required(Compat::Corrected) <= 0.0);
        assert!(required(Compat::Upstream) > 8000.0);
    }
}

#[test]
fn a_slow_drift_of_the_requests_restarts_the_window_only_without_upstreams_defect() {
    let tier = |compat| {
        let mut memory = warmed(compat);
        let (mut seconds, mut found) = (150, None);
        for percent in [110.0, 121.0, 133.0] {
            let seen = ThroughputObservation { prompt: 50.0 * percent, ..replica(0.5) };
            found =
                Some(analyze(&look(seconds, Some(1.0), vec![variant("v", vec![seen])]), &mut memory, compat));
            seconds += 15;
        }
        found.map(|one| reason(&one).to_owned()).unwrap()
    };
    assert_eq!(tier(Compat::Corrected), "T2-pinned");
    assert_eq!(tier(Compat::Upstream), "T1-ols");
}

#[test]
fn a_jump_of_the_requests_restarts_the_window_and_keeps_the_intercept() {
    let mut memory = warmed(Compat::Upstream);
    let seen = ThroughputObservation { generated: 300.0, ..replica(0.5) };
    let found = analyze(&look(150, Some(1.0), vec![variant("v", vec![seen])]), &mut memory, Compat::Upstream);
    assert_eq!(reason(&found), "T2-pinned");
    assert!((found.lines["v"].intercept - TRUE.intercept).abs() < 1e-12);
}

#[test]
fn three_wrong_rates_in_a_row_clear_the_window_for_the_look_after() {
    let mut memory = warmed(Compat::Corrected);
    let right = TRUE.at(0.5).recip() * 0.5 * 1_024_000.0 / 4600.0;
    let mut tier = |seconds, generating| {
        let seen = variant("v", vec![ThroughputObservation { generating, ..replica(0.5) }]);
        reason(&analyze(&look(seconds, Some(1.0), vec![seen]), &mut memory, Compat::Corrected)).to_owned()
    };
    let rates = [right * 2.0, right * 2.0, right * 1.1, right * 2.0, right * 2.0, right * 2.0, right];
    let tiers: Vec<String> =
        rates.iter().enumerate().map(|(step, rate)| tier(150 + 15 * step as i64, *rate)).collect();
    assert_eq!(tiers[..6], ["T1-ols"; 6]);
    assert_eq!(tiers[6], "T2-pinned");
}

#[test]
fn points_count_for_half_an_hour_and_a_variant_for_an_hour() {
    let tier = |seconds| {
        let mut memory = warmed(Compat::Corrected);
        let seen = look(seconds, Some(1.0), vec![variant("v", vec![replica(0.5)])]);
        reason(&analyze(&seen, &mut memory, Compat::Corrected)).to_owned()
    };
    let ages = [1800, 1801, 135 + 3600, 135 + 3601];
    assert_eq!(ages.map(tier), ["T1-ols", "T1-ols", "T2-pinned", "T2-default"]);
    assert_eq!(tier(1830), "T2-pinned", "two of the eleven points are too old, nine are too few");
}

#[test]
fn points_were_once_kept_for_ever_where_nothing_healthy_was_seen() {
    let mut memory = warmed(Compat::Corrected);
    // No latency is read for three quarters of an hour, in which the variant is seen all the same.
    let blind = || variant("v", vec![ThroughputObservation { latency: 0.0, ..replica(0.5) }]);
    let capacity = |seconds, memory: &mut ThroughputMemory| {
        analyze(&look(seconds, Some(1.0), vec![blind()]), memory, Compat::Corrected).finding.variants.len()
    };
    assert_eq!(
        [capacity(1000, &mut memory), capacity(1935, &mut memory), capacity(2900, &mut memory)],
        [1, 0, 0]
    );
}

#[test]
fn an_intercept_of_last_month_once_made_a_replica_carry_more_than_none() {
    let capacity = |intercept: f64, at: Option<Timestamp>| {
        let mut memory = warmed(Compat::Corrected);
        let own = memory.variants.get_mut("v").unwrap();
        let mut written = serde_json::to_value(&*own).unwrap();
        written["intercept"] = intercept.into();
        written.as_object_mut().unwrap().remove("window");
        // Without it as the previous version stored it.
        match at {
            Some(at) => written["intercept_at"] = at.to_string().into(),
            None => drop(written.as_object_mut().unwrap().remove("intercept_at")),
        }
        *own = serde_json::from_value(written).unwrap();
        let seen = look(150, Some(1.0), vec![variant("v", vec![replica(0.5)])]);
        analyze(&seen, &mut memory, Compat::Corrected).finding.variants[0].per_replica
    };
    let month = at(0) - SignedDuration::from_hours(30 * 24);
    let [recent, old, unknown] = [Some(at(0)), Some(month), None].map(|learned| capacity(0.02, learned));
    assert!(recent > 1.1 * old, "{recent} and {old}");
    assert_eq!(old.to_bits(), unknown.to_bits());
    let [recent, old, unknown] = [Some(at(0)), Some(month), None].map(|learned| capacity(0.001, learned));
    assert_eq!([recent.to_bits(), unknown.to_bits()], [old.to_bits(); 2], "it may ask for more");
}

#[test]
fn replicas_that_start_or_are_stale_teach_nothing_and_only_capacity_serves() {
    let booting = ThroughputObservation { capacity: 0, ..replica(0.0) };
    let stale = ThroughputObservation { stale: true, latency: 9.0, ..replica(0.7) };
    let seen = look(0, Some(5.0), vec![variant("v", vec![replica(0.5), booting, stale])]);
    let found = analyze(&seen, &mut ThroughputMemory::default(), Compat::Corrected);
    assert_eq!(found.finding.variants[0].replicas, Replicas::new(2));
    assert!((found.lines["v"].slope - TRUE.slope).abs() < 1e-12);
}

#[test]
fn a_replica_without_a_latency_or_beyond_its_cache_teaches_nothing() {
    let odd = [
        ThroughputObservation { latency: 0.0, ..replica(0.7) },
        ThroughputObservation { latency: f64::INFINITY, ..replica(0.7) },
        ThroughputObservation { latency: 9.0, capacity: 0, ..replica(0.7) },
        ThroughputObservation { latency: 9.0, ..replica(1.1) },
        ThroughputObservation { latency: 9.0, ..replica(-0.1) },
    ];
    for other in odd {
        let seen = look(0, Some(5.0), vec![variant("v", vec![replica(0.5), other])]);
        let found = analyze(&seen, &mut ThroughputMemory::default(), Compat::Corrected);
        assert!((found.lines["v"].slope - TRUE.slope).abs() < 1e-12, "{seen:?}");
    }
}

#[test]
fn a_replica_without_prompts_or_without_answers_teaches_nothing() {
    let silent = ThroughputObservation { generated: 1.0, latency: 9.0, ..replica(0.7) };
    let empty = ThroughputObservation { prompt: 1.0, latency: 9.0, ..replica(0.7) };
    let endless = ThroughputObservation { prompt: 2e12, latency: 9.0, ..replica(0.7) };
    for other in [silent, empty, endless] {
        let seen = look(0, Some(5.0), vec![variant("v", vec![replica(0.5), other])]);
        let found = analyze(&seen, &mut ThroughputMemory::default(), Compat::Corrected);
        assert!((found.lines["v"].slope - TRUE.slope).abs() < 1e-12);
    }
}

#[test]
fn usages_that_do_not_differ_give_no_line() {
    assert_eq!(LatencyLine::fit([(0.3, 0.01), (0.3 + 1e-8, 0.02), (0.3, 0.01)]), None);
    assert_eq!(
        LatencyLine::fit([(0.3, 0.01), (0.3 + 1e-7, 0.02)]),
        None,
        "a line that rises, from rounding alone"
    );
    assert!(LatencyLine::fit([(0.3, 0.01), (0.301, 0.02), (0.3, 0.01)]).is_some());
    assert_eq!(LatencyLine::fit([]), None);
    assert_eq!(LatencyLine::fit_from(0.006, [(0.0, 0.01), (-0.5, 0.02)]), None);
}

/// How the line is found after one replica showed these usages, a look each.
fn tier_after(usages: &[f64]) -> String {
    let mut memory = ThroughputMemory::default();
    let mut found = String::new();
    for (step, kv) in (0_i64..).zip(usages) {
        let seen = look(15 * step, Some(1.0), vec![variant("v", vec![replica(*kv)])]);
        found = reason(&analyze(&seen, &mut memory, Compat::Corrected)).to_owned();
    }
    found
}

#[test]
fn a_line_is_fitted_from_ten_points_on_that_differ_enough() {
    let spread = |count: u32, from: f64, to: f64| -> Vec<f64> {
        (0..count).map(|at| from + (to - from) * f64::from(at) / f64::from(count - 1)).collect()
    };
    assert_eq!(tier_after(&spread(9, 0.2, 0.8)), "T2-default");
    assert_eq!(tier_after(&spread(10, 0.2, 0.8)), "T1-ols");
    assert_eq!(tier_after(&spread(10, 0.25, 0.55)), "T1-ols");
    assert_eq!(tier_after(&spread(10, 0.25, 0.54)), "T2-default");
    assert_eq!(tier_after(&spread(10, 0.15, 0.85)), "T1-ols", "both ends count");
    assert_eq!(tier_after(&spread(10, 0.14, 0.85)), "T2-default");
    assert_eq!(tier_after(&spread(10, 0.15, 0.86)), "T2-default");
}

#[test]
fn a_rate_is_wrong_beyond_fifteen_per_cent_and_from_a_usage_of_thirty_on() {
    let tier = |kv: f64, part: f64| {
        let mut memory = warmed(Compat::Corrected);
        let generating = part * kv * 1_024_000.0 / 4600.0 / TRUE.at(kv);
        let mut found = String::new();
        for step in 0..4 {
            let seen = variant("v", vec![ThroughputObservation { generating, ..replica(kv) }]);
            let seen = look(150 + 15 * step, Some(1.0), vec![seen]);
            found = reason(&analyze(&seen, &mut memory, Compat::Corrected)).to_owned();
        }
        found
    };
    // A measured rate of 1/1.15 is 15 % below what is predicted.
    let (just, beyond) = (1.0 / 1.149, 1.0 / 1.151);
    assert_eq!([tier(0.3, just), tier(0.3, beyond), tier(0.29, beyond)], ["T1-ols", "T2-pinned", "T1-ols"]);
    assert_eq!([tier(0.5, 1.17), tier(0.5, 1.18)], ["T1-ols", "T2-pinned"], "1/0.85 above");
    assert_eq!(tier(0.5, 0.0), "T1-ols", "no rate is measured");
}

#[test]
fn what_is_asked_of_a_variant_is_what_it_is_given_else_what_it_finishes_else_what_runs() {
    let demand = |arriving, finished, generated, kv| {
        let one = ThroughputObservation { arriving, finished, generated, ..replica(kv) };
        let shape = RequestShape { prompt: 5000.0, generated, hits: 0.1 };
        variant_demand(&variant("v", vec![one.clone(), one]), TRUE, shape)
    };
    assert!(near(demand(3.0, 2.0, 200.0, 0.5), 1200.0));
    assert!(near(demand(0.0, 2.0, 200.0, 0.5), 800.0));
    assert!(near(demand(0.0, 0.0, 200.0, 0.5), 2.0 * 0.5 * 1_024_000.0 / 4600.0 / TRUE.at(0.5)));
    assert!(near(demand(0.0, 0.0, 200.0, 1.0), 2.0 * 1_024_000.0 / 4600.0 / TRUE.at(1.0)));
    let nothing = [demand(0.0, 0.0, 20.0, 0.5), demand(0.0, 0.0, 200.0, 0.0), demand(0.0, 0.0, 200.0, 1.1)];
    assert!(nothing.iter().all(|demand| demand.abs() <= 0.0), "{nothing:?}");
    assert!(demand(0.0, 0.0, 21.0, 0.5) > 0.0);
}

#[test]
fn starting_replicas_are_anticipated_and_supply_nothing() {
    let pending = ThroughputVariant { pending: Replicas::new(2), ..variant("v", vec![replica(0.5)]) };
    let found =
        analyze(&look(150, Some(1.0), vec![pending]), &mut warmed(Compat::Corrected), Compat::Corrected);
    let Totals { supply, anticipated, .. } = found.finding.total;
    let each = found.finding.variants[0].per_replica;
    assert!(near(supply, each) && near(anticipated, 3.0 * each), "{supply} {anticipated}");
}

#[test]
fn requests_are_others_when_a_length_moved_by_more_than_a_fifth() {
    let usual = RequestShape { prompt: 100.0, generated: 50.0, hits: 0.5 };
    let differs = |prompt, generated| RequestShape { prompt, generated, hits: 0.0 }.differs(usual);
    assert_eq!(
        [differs(120.0, 50.0), differs(80.0, 50.0), differs(100.0, 60.0), differs(100.0, 40.0)],
        [false; 4]
    );
    assert_eq!(
        [differs(121.0, 50.0), differs(79.0, 50.0), differs(100.0, 61.0), differs(100.0, 39.0)],
        [true; 4]
    );
}

#[test]
fn an_idle_variant_nobody_learned_of_is_left_out() {
    let seen = look(0, Some(5.0), vec![variant("v", vec![replica(0.0)])]);
    let found = analyze(&seen, &mut ThroughputMemory::default(), Compat::Upstream).finding;
    assert_eq!((found.variants.len(), found.total, found.live), (0, Totals::default(), false));
}

#[test]
fn what_is_remembered_of_a_variant_is_below_2_kib_and_survives_storage() {
    let mut memory = ThroughputMemory::default();
    for step in 0..40 {
        let odd = 1.0 / 3.0 + f64::from(step) / 97.0;
        let seen = ThroughputObservation {
            prompt: 1e5 * odd.sqrt(),
            latency: odd * 1e-101,
            hits: odd / 3.0,
            ..replica(odd)
        };
        let seen = look(step.into(), Some(1.0), vec![variant("v", vec![seen])]);
        let _ = analyze(&seen, &mut memory, Compat::Upstream);
    }
    let stored = serde_json::to_string(&memory).unwrap();
    assert!(stored.len() < 2048, "{} bytes: {stored}", stored.len());
    assert_eq!(serde_json::from_str::<ThroughputMemory>(&stored).unwrap(), memory);
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
}
