//! What the analyzer learns, and what it refuses to conclude.

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

fn engine(kv: f64) -> ThroughputObservation {
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

fn variant(name: &str, engines: Vec<ThroughputObservation>) -> ThroughputVariant {
    ThroughputVariant {
        name: name.into(),
        role: Role::Both,
        accelerator: None,
        cost: Cost::ZERO,
        pending: Replicas::ZERO,
        ready: Replicas::new(count(engines.len())),
        engines,
    }
}

fn input(seconds: i64, arrival: Option<f64>, variants: Vec<ThroughputVariant>) -> ThroughputInput {
    let settings = ThroughputSettings { up: 0.85, down: 0.70, score: 1.0, period: Seconds::whole(15) };
    ThroughputInput { now: at(seconds), variants, arrival, queue: Requests::ZERO, settings }
}

/// One model, and what was learned of it.
struct Model {
    memory: ThroughputMemory,
    compat: Compat,
}

impl Model {
    fn new(compat: Compat) -> Self {
        Self { memory: ThroughputMemory::default(), compat }
    }

    /// One replica of `v` has shown ten usages, one every 15 s.
    fn warmed(compat: Compat) -> Self {
        let mut model = Self::new(compat);
        for step in 0..10 {
            model.tier(15 * i64::from(step), engine(0.2 + 0.05 * f64::from(step)));
        }
        model
    }

    fn analyze(
        &mut self,
        seconds: i64,
        arrival: Option<f64>,
        variants: Vec<ThroughputVariant>,
    ) -> ThroughputAnalysis {
        analyze(&input(seconds, arrival, variants), &mut self.memory, self.compat)
    }

    /// How the line is found when the only replica of `v` shows this.
    fn tier(&mut self, seconds: i64, observation: ThroughputObservation) -> String {
        let found = self.analyze(seconds, Some(1.0), vec![variant("v", vec![observation])]);
        found.finding.variants.first().map_or("none", |variant| variant.reason.as_str()).to_owned()
    }
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
}

#[test]
fn the_page_says_what_the_code_computes() {
    let variants = vec![variant("v", vec![engine(0.5)])];
    let found = Model::warmed(Compat::Corrected).analyze(150, Some(15.0), variants);
    let (capacity, total) = (&found.finding.variants[0], found.finding.total);
    let line = found.lines["v"];
    for says in [
        format!("slope {:.3} and intercept {:.3}", line.slope, line.intercept),
        format!("latency when full {:.5} s", line.at(FULL)),
        format!("{} tokens", RequestShape { prompt: 5000.0, generated: 200.0, hits: 0.1 }.resident()),
        format!("capacity {:.1} tokens/s ({})", capacity.per_replica, capacity.reason),
        format!("demand {:.0} tokens/s", total.demand),
        format!("missing {:.1} tokens/s", total.required),
    ] {
        assert!(PAGE.contains(&says), "the page does not say {says:?}");
    }
}

#[test]
fn no_arrivals_are_no_signal_at_working_replicas_and_zero_demand_at_idle_ones() {
    let found = |compat, arrival, kv| {
        Model::warmed(compat).analyze(150, arrival, vec![variant("v", vec![engine(kv)])]).finding
    };
    for arrival in [Some(0.0), None, Some(f64::NAN)] {
        let total = found(Compat::Corrected, arrival, 0.5).total;
        assert_eq!((total.demand, total.spare), (0.0, 0.0));
        let total = found(Compat::Upstream, arrival, 0.5).total;
        assert!(near(total.spare, total.supply));
    }
    let idle = found(Compat::Corrected, Some(0.0), 0.0);
    assert!(idle.live && idle.total.supply > 0.0 && near(idle.total.spare, idle.total.supply));
}

#[test]
fn it_is_live_for_three_periods_after_it_had_something_to_say() {
    let mut model = Model::warmed(Compat::Corrected);
    let live = |seconds| model.analyze(seconds, None, vec![variant("v", vec![engine(0.5)])]).finding.live;
    assert_eq!([150, 180, 181].map(live), [true, true, false]);
}

#[test]
fn while_the_supply_of_a_ready_replica_is_unknown_nothing_is_missing() {
    let not_understood = variant("w", vec![ThroughputObservation { latency: 0.001, ..engine(0.5) }]);
    let not_shown = ThroughputVariant { ready: Replicas::ONE, ..variant("w", Vec::new()) };
    for unknown in [not_understood, not_shown] {
        let variants = vec![variant("v", vec![engine(0.5)]), unknown];
        let required =
            |compat| Model::warmed(compat).analyze(150, Some(50.0), variants.clone()).finding.total.required;
        assert!(required(Compat::Corrected) <= 0.0);
        assert!(required(Compat::Upstream) > 8000.0);
    }
}

#[test]
fn a_slow_drift_of_the_requests_restarts_the_window_only_without_upstreams_defect() {
    let tier = |compat| {
        let mut model = Model::warmed(compat);
        let drift = [(150, 110.0), (165, 121.0), (180, 133.0)].map(|(seconds, percent)| {
            model.tier(seconds, ThroughputObservation { prompt: 50.0 * percent, ..engine(0.5) })
        });
        drift[2].clone()
    };
    assert_eq!([Compat::Corrected, Compat::Upstream].map(tier), ["T2-pinned", "T1-ols"]);
}

#[test]
fn a_jump_of_the_requests_restarts_the_window_and_keeps_the_intercept() {
    let mut model = Model::warmed(Compat::Upstream);
    let longer = ThroughputObservation { generated: 300.0, ..engine(0.5) };
    let found = model.analyze(150, Some(1.0), vec![variant("v", vec![longer])]);
    assert_eq!(found.finding.variants[0].reason, "T2-pinned");
    assert!((found.lines["v"].intercept - TRUE.intercept).abs() < 1e-12);
}

#[test]
fn three_wrong_rates_in_a_row_clear_the_window_for_the_next_analysis() {
    let mut model = Model::warmed(Compat::Corrected);
    let right = TRUE.at(0.5).recip() * 0.5 * 1_024_000.0 / 4600.0;
    let tiers = [(150, 2.0), (165, 2.0), (180, 1.1), (195, 2.0), (210, 2.0), (225, 2.0), (240, 1.0)].map(
        |(seconds, part)| {
            model.tier(seconds, ThroughputObservation { generating: part * right, ..engine(0.5) })
        },
    );
    assert_eq!(tiers[..6], ["T1-ols"; 6]);
    assert_eq!(tiers[6], "T2-pinned");
}

#[test]
fn points_count_for_half_an_hour_and_a_variant_for_an_hour() {
    let tier = |seconds| Model::warmed(Compat::Corrected).tier(seconds, engine(0.5));
    let ages = [1800, 1801, 135 + 3600, 135 + 3601];
    assert_eq!(ages.map(tier), ["T1-ols", "T1-ols", "T2-pinned", "T2-default"]);
    assert_eq!(tier(1830), "T2-pinned", "two of the eleven points are too old, nine are too few");
}

#[test]
fn points_were_once_kept_for_ever_where_nothing_healthy_was_seen() {
    let mut model = Model::warmed(Compat::Corrected);
    // No latency is read for three quarters of an hour, in which the variant is seen all the same.
    let tier = |seconds| model.tier(seconds, ThroughputObservation { latency: 0.0, ..engine(0.5) });
    assert_eq!([1000, 1935, 2900].map(tier), ["T1-ols", "none", "none"]);
}

#[test]
fn an_intercept_of_last_month_once_made_a_replica_carry_more_than_none() {
    let capacity = |intercept: f64, learned_at: Option<Timestamp>| {
        let mut model = Model::warmed(Compat::Corrected);
        let calibration = model.memory.variants.get_mut("v").unwrap();
        let mut written = serde_json::to_value(&*calibration).unwrap();
        written["intercept"] = intercept.into();
        written.as_object_mut().unwrap().remove("window");
        // Without it as the previous version stored it.
        match learned_at {
            Some(at) => written["intercept_at"] = serde_json::to_value(at).unwrap(),
            None => drop(written.as_object_mut().unwrap().remove("intercept_at")),
        }
        *calibration = serde_json::from_value(written).unwrap();
        let variants = vec![variant("v", vec![engine(0.5)])];
        model.analyze(150, Some(1.0), variants).finding.variants[0].per_replica
    };
    let month = at(0) - SignedDuration::from_hours(30 * 24);
    let [recent, old, unknown] = [Some(at(0)), Some(month), None].map(|learned| capacity(0.02, learned));
    assert!(recent > 1.1 * old, "{recent} and {old}");
    assert_eq!(old.to_bits(), unknown.to_bits());
    let [recent, old, unknown] = [Some(at(0)), Some(month), None].map(|learned| capacity(0.001, learned));
    assert_eq!([recent.to_bits(), unknown.to_bits()], [old.to_bits(); 2], "it may ask for more");
}

#[test]
fn replicas_whose_values_say_nothing_teach_nothing() {
    let slow = ThroughputObservation { latency: 9.0, ..engine(0.7) };
    let cases = [
        ("stale", ThroughputObservation { stale: true, ..slow.clone() }),
        ("starting", ThroughputObservation { capacity: 0, ..slow.clone() }),
        ("without a latency", ThroughputObservation { latency: 0.0, ..slow.clone() }),
        ("of endless latency", ThroughputObservation { latency: f64::INFINITY, ..slow.clone() }),
        ("beyond its cache", ThroughputObservation { kv: 1.1, ..slow.clone() }),
        ("below an empty cache", ThroughputObservation { kv: -0.1, ..slow.clone() }),
        ("without answers", ThroughputObservation { generated: 1.0, ..slow.clone() }),
        ("without prompts", ThroughputObservation { prompt: 1.0, ..slow.clone() }),
        ("with endless prompts", ThroughputObservation { prompt: 2e12, ..slow }),
    ];
    for (name, silent) in cases {
        let serving = Replicas::new(if silent.capacity > 0 { 2 } else { 1 });
        let variants = vec![variant("v", vec![engine(0.5), silent])];
        let found = Model::new(Compat::Corrected).analyze(0, Some(5.0), variants);
        assert!((found.lines["v"].slope - TRUE.slope).abs() < 1e-12, "{name}");
        assert_eq!(found.finding.variants[0].replicas, serving, "{name}: only what has a cache serves");
    }
}

#[test]
fn usages_that_do_not_differ_give_no_line() {
    assert_eq!(LatencyLine::fit([(0.3, 0.01), (0.3 + 1e-8, 0.02), (0.3, 0.01)]), None);
    let rising = LatencyLine::fit([(0.3, 0.01), (0.3 + 1e-7, 0.02)]);
    assert_eq!(rising, None, "a line that rises, from rounding alone");
    assert!(LatencyLine::fit([(0.3, 0.01), (0.301, 0.02), (0.3, 0.01)]).is_some());
    assert_eq!(LatencyLine::fit([]), None);
    assert_eq!(LatencyLine::fit_from(0.006, [(0.0, 0.01), (-0.5, 0.02)]), None);
}

#[test]
fn a_line_is_fitted_from_ten_points_on_that_differ_enough() {
    let cases = [
        (9, 0.2, 0.8, "T2-default"),
        (10, 0.2, 0.8, "T1-ols"),
        (10, 0.25, 0.55, "T1-ols"),
        (10, 0.25, 0.54, "T2-default"),
        (10, 0.15, 0.85, "T1-ols"),
        (10, 0.14, 0.85, "T2-default"),
        (10, 0.15, 0.86, "T2-default"),
    ];
    for (points, from, to, expected) in cases {
        let mut model = Model::new(Compat::Corrected);
        let usage = |step: u32| from + (to - from) * f64::from(step) / f64::from(points - 1);
        let tiers = (0..points).map(|step| model.tier(15 * i64::from(step), engine(usage(step))));
        assert_eq!(tiers.last().unwrap(), expected, "{points} from {from} to {to}");
    }
}

#[test]
fn a_rate_is_wrong_beyond_fifteen_per_cent_and_from_a_usage_of_thirty_on() {
    let tier = |kv: f64, part: f64| {
        let mut model = Model::warmed(Compat::Corrected);
        let generating = part * kv * 1_024_000.0 / 4600.0 / TRUE.at(kv);
        let step = |step| model.tier(150 + 15 * step, ThroughputObservation { generating, ..engine(kv) });
        (0_i64..4).map(step).last().unwrap()
    };
    // A measured rate of 1/1.15 is 15 % below what is predicted.
    let (just, beyond) = (1.0 / 1.149, 1.0 / 1.151);
    assert_eq!([tier(0.3, just), tier(0.3, beyond), tier(0.29, beyond)], ["T1-ols", "T2-pinned", "T1-ols"]);
    assert_eq!([tier(0.5, 1.17), tier(0.5, 1.18)], ["T1-ols", "T2-pinned"], "1/0.85 above");
    assert_eq!(tier(0.5, 0.0), "T1-ols", "no rate is measured");
}

#[test]
fn the_demand_of_a_variant_is_what_it_is_sent_else_what_it_finishes_else_what_runs() {
    let demand = |arriving, finished, generated, kv| {
        let observation = ThroughputObservation { arriving, finished, generated, ..engine(kv) };
        let shape = RequestShape { prompt: 5000.0, generated, hits: 0.1 };
        variant_demand(&variant("v", vec![observation.clone(), observation]), TRUE, shape)
    };
    let running = |kv| 2.0 * kv * 1_024_000.0 / 4600.0 / TRUE.at(kv);
    assert!(near(demand(3.0, 2.0, 200.0, 0.5), 1200.0));
    assert!(near(demand(0.0, 2.0, 200.0, 0.5), 800.0));
    assert!(near(demand(0.0, 0.0, 200.0, 0.5), running(0.5)));
    assert!(near(demand(0.0, 0.0, 200.0, 1.0), running(1.0)));
    let nothing = [demand(0.0, 0.0, 20.0, 0.5), demand(0.0, 0.0, 200.0, 0.0), demand(0.0, 0.0, 200.0, 1.1)];
    assert!(nothing.iter().all(|demand| demand.abs() <= 0.0), "{nothing:?}");
    assert!(demand(0.0, 0.0, 21.0, 0.5) > 0.0);
}

#[test]
fn starting_replicas_are_anticipated_and_supply_nothing() {
    let pending = ThroughputVariant { pending: Replicas::new(2), ..variant("v", vec![engine(0.5)]) };
    let found = Model::warmed(Compat::Corrected).analyze(150, Some(1.0), vec![pending]).finding;
    let Totals { supply, anticipated, .. } = found.total;
    let per_replica = found.variants[0].per_replica;
    assert!(near(supply, per_replica) && near(anticipated, 3.0 * per_replica), "{supply} {anticipated}");
}

#[test]
fn requests_are_others_when_a_length_moved_by_more_than_a_fifth() {
    let usual = RequestShape { prompt: 100.0, generated: 50.0, hits: 0.5 };
    let differs = |(prompt, generated)| RequestShape { prompt, generated, hits: 0.0 }.differs(usual);
    assert_eq!([(120.0, 50.0), (80.0, 50.0), (100.0, 60.0), (100.0, 40.0)].map(differs), [false; 4]);
    assert_eq!([(121.0, 50.0), (79.0, 50.0), (100.0, 61.0), (100.0, 39.0)].map(differs), [true; 4]);
}

#[test]
fn an_idle_variant_nobody_learned_of_is_left_out() {
    let idle = vec![variant("v", vec![engine(0.0)])];
    let found = Model::new(Compat::Upstream).analyze(0, Some(5.0), idle).finding;
    assert_eq!((found.variants.len(), found.total, found.live), (0, Totals::default(), false));
}

#[test]
fn what_is_remembered_of_a_variant_is_below_2_kib_and_survives_storage() {
    let mut model = Model::new(Compat::Upstream);
    for step in 0..40 {
        let odd = 1.0 / 3.0 + f64::from(step) / 97.0;
        let (prompt, latency, hits) = (1e5 * odd.sqrt(), odd * 1e-101, odd / 3.0);
        model.tier(step.into(), ThroughputObservation { prompt, latency, hits, ..engine(odd) });
    }
    let stored = serde_json::to_string(&model.memory).unwrap();
    assert!(stored.len() < 2048, "{} bytes: {stored}", stored.len());
    assert_eq!(serde_json::from_str::<ThroughputMemory>(&stored).unwrap(), model.memory);
}
