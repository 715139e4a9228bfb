//! What a scorecard says of predictions whose outcome is known.

use proptest::collection::vec;
use proptest::prelude::*;

use super::forecasts::DemandForecasts;
use super::replicas::ReplicaPredictions;
use super::score::PredictionScore;
use crate::learn::arrivals::ArrivalBin;
use crate::learn::counter_snapshot::{Counters, Gauges, Growth};
use crate::model::Role;
use crate::moment::Moment;
use crate::report::{Prediction, PredictionError};

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn at(seconds: f64) -> Moment {
    Moment::from(jiff::Timestamp::UNIX_EPOCH).plus(1e9 + seconds)
}

/// Bins of 5 s with `rate` requests/s from second `from` to second `to`; those for which `lacks` is true were read in part only.
fn bins(from: i32, to: i32, rate: f64, lacks: impl Fn(i32) -> bool) -> Vec<ArrivalBin> {
    let bin = |end: i32| ArrivalBin {
        end: at(f64::from(end)),
        seconds: 5.0,
        known: 5.0 * rate,
        read: if lacks(end) { 1.0 } else { 2.0 },
        expected: 2.0,
        per_unread: 5.0 * rate,
        refused: 0.0,
    };
    (from / 5 + 1..=to / 5).map(|index| bin(5 * index)).collect()
}

fn forecast_due(rate: f64) -> DemandForecasts {
    let mut forecasts = DemandForecasts::default();
    forecasts.hold(at(0.0), rate, 125.0);
    forecasts
}

fn error_of(prediction: Prediction) -> (f64, f64) {
    let PredictionError { mean_absolute, bias } = prediction.error.unwrap();
    (mean_absolute, bias)
}

proptest! {
    #![proptest_config(config(2000))]

    #[test]
    fn a_score_is_finite_and_its_bias_is_within_its_error(
        pairs in vec((0.0_f64..1e6, prop_oneof![Just(0.0_f64), 0.0..1e6]), 1..200),
        bad in prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(-1.0), Just(1e300)],
    ) {
        let mut score = PredictionScore::default();
        for (predicted, measured) in &pairs {
            score.add(*predicted, *measured);
            let before = score;
            score.add(bad, *measured);
            score.add(*predicted, bad);
            prop_assert_eq!(score, before, "what is no measurement counts nothing");
        }
        let found = score.figures(0);
        prop_assert_eq!(found.matched as usize, pairs.len());
        if let Some(PredictionError { mean_absolute, bias }) = found.error {
            prop_assert!(mean_absolute.is_finite() && mean_absolute >= 0.0);
            prop_assert!(bias.abs() <= mean_absolute * (1.0 + 1e-3) + 1e-6, "{bias} of {mean_absolute}");
        } else {
            prop_assert!(pairs.iter().rev().take(50).all(|(_, measured)| *measured < 1e-3));
        }
        let stored: PredictionScore = serde_json::from_str(&serde_json::to_string(&score).unwrap()).unwrap();
        prop_assert_eq!(stored, score);
    }

    #[test]
    fn predictions_that_are_wrong_by_a_factor_have_that_error(
        factor in 0.0_f64..3.0, measured in vec(0.1_f64..100.0, 1..200),
    ) {
        let mut score = PredictionScore::default();
        measured.iter().for_each(|measured| score.add(factor * measured, *measured));
        let (mean_absolute, bias) = error_of(score.figures(0));
        prop_assert!((bias - (factor - 1.0)).abs() < 1e-3, "{bias} at {factor}");
        prop_assert!((mean_absolute - (factor - 1.0).abs()).abs() < 1e-3, "{mean_absolute} at {factor}");
    }

    /// Whatever the clock does and whatever is measured, each forecast is compared, dropped or still held, and few are held.
    #[test]
    fn every_forecast_is_compared_dropped_or_held(
        steps in vec((prop_oneof![8 => Just(5.0_f64), 1 => -4000.0..0.0, 1 => 100.0..4000.0], 0.0_f64..50.0, 0_u8..4), 1..300),
        horizon in 60.0_f64..700.0,
    ) {
        let (mut forecasts, mut forecast_count, mut now) = (DemandForecasts::default(), 0_usize, 0.0);
        for (step, rate, measured) in steps {
            now += step;
            forecasts.not_after(at(now));
            let second = now as i32;
            let counted = bins(second - 600, second, rate, |end| measured == 0 && end % 20 == 0);
            forecasts.match_due(if measured == 1 { &[] } else { &counted }, at(now));
            let before = forecasts.pending().len();
            forecasts.hold(at(now), rate, horizon);
            forecast_count += forecasts.pending().len() - before;
            let again = forecasts.clone();
            forecasts.hold(at(now), rate + 1.0, horizon);
            prop_assert_eq!(&again, &forecasts, "the second of one moment is none");
            let Prediction { matched, unmatched, .. } = forecasts.figures();
            prop_assert!(forecasts.pending().len() <= 4);
            prop_assert_eq!(matched as usize + unmatched as usize + forecasts.pending().len(), forecast_count);
            // Clocks that are set back by less than a second drop nothing.
            let latest = at(now).plus(horizon + 1.1);
            prop_assert!(forecasts.pending().iter().all(|(due, _)| *due <= latest), "none is for later than now and the horizon");
        }
    }

    /// No requests are counted of an engine whose queue has not lasted for a minute.
    #[test]
    fn only_a_queue_that_lasts_says_what_an_engine_carries(waiting in vec(prop_oneof![Just(0.0_f64), 1.0..9.0], 2..60)) {
        let mut predictions = ReplicaPredictions::default();
        predictions.claim(1e3, false);
        let (mut saturated_for, mut longest) = (0, 0_usize);
        for pair in waiting.windows(2) {
            saturated_for = predictions.observe(Role::Both, &growth(pair[0], pair[1], 5.0), saturated_for);
            longest = longest.max(usize::from(saturated_for));
        }
        prop_assert_eq!(predictions.capacity().matched > 0, longest > 60, "{} s", longest);
    }
}

fn growth(waiting_before: f64, waiting_after: f64, finished: f64) -> Growth {
    let gauges = |waiting| Gauges { waiting, running: 96.0, usage: 0.9 };
    let counted = Counters { finished, firsts: finished, ..Counters::default() };
    let (before, after) = (gauges(waiting_before), gauges(waiting_after));
    Growth { from: at(0.0), to: at(5.0), counted, before, after, refused: None }
}

#[test]
fn a_forecast_is_compared_with_the_minute_around_its_time_and_not_earlier() {
    let mut forecasts = forecast_due(6.0);
    let counted: Vec<ArrivalBin> = [bins(0, 95, 1.0, |_| false), bins(95, 155, 4.0, |_| false)].concat();
    let counted = [counted, bins(155, 300, 1.0, |_| false)].concat();
    forecasts.match_due(&counted, at(244.0));
    assert_eq!((forecasts.pending().len(), forecasts.figures().matched), (1, 0));
    forecasts.match_due(&counted, at(245.0));
    assert_eq!((forecasts.pending().len(), forecasts.figures().matched), (0, 1));
    let (mean_absolute, bias) = error_of(forecasts.figures());
    assert!((mean_absolute - 0.5).abs() < 1e-6 && (bias - 0.5).abs() < 1e-6, "{mean_absolute}, {bias}");
}

#[test]
fn arrivals_that_were_not_measured_are_no_zero() {
    let counted = |lacks: fn(i32) -> bool| bins(0, 300, 4.0, lacks);
    let gap: Vec<_> = counted(|_| false).into_iter().filter(|bin| bin.end != at(125.0)).collect();
    for bins in [Vec::new(), gap, counted(|end| end == 130)] {
        let mut forecasts = forecast_due(4.0);
        forecasts.match_due(&bins, at(300.0));
        let expected = Prediction { matched: 0, unmatched: 1, error: None };
        assert_eq!(forecasts.figures(), expected, "{} bins", bins.len());
    }
    let mut forecasts = forecast_due(4.0);
    forecasts.match_due(&counted(|end| end == 300), at(300.0));
    assert_eq!(forecasts.figures().matched, 1, "what lacks at another time is none of its business");
}

#[test]
fn a_measured_zero_counts_and_has_no_share() {
    let mut forecasts = forecast_due(0.0);
    forecasts.match_due(&bins(0, 300, 0.0, |_| false), at(300.0));
    assert_eq!(forecasts.figures(), Prediction { matched: 1, unmatched: 0, error: None });
}

#[test]
fn a_clock_that_is_set_back_drops_what_was_forecast_by_it() {
    let mut forecasts = forecast_due(4.0);
    forecasts.not_after(at(0.0));
    assert_eq!(forecasts.pending().len(), 1);
    forecasts.not_after(at(-30.0));
    assert_eq!((forecasts.pending().len(), forecasts.figures().unmatched), (0, 1));
}

#[test]
fn a_restart_keeps_the_score_and_not_what_is_pending() {
    let mut forecasts = forecast_due(4.0);
    forecasts.match_due(&bins(0, 300, 4.0, |_| false), at(300.0));
    forecasts.hold(at(300.0), 4.0, 125.0);
    let restored: DemandForecasts =
        serde_json::from_str(&serde_json::to_string(&forecasts.compacted()).unwrap()).unwrap();
    assert_eq!((restored.figures(), restored.pending().len()), (forecasts.figures(), 0));
}

#[test]
fn a_claim_is_the_last_one_before_the_queue_and_is_compared_once() {
    let mut predictions = ReplicaPredictions::default();
    predictions.claim(4.0, false);
    let mut saturated_for = 0;
    for _ in 0..17 {
        saturated_for = predictions.observe(Role::Both, &growth(5.0, 5.0, 10.0), saturated_for);
        predictions.claim(2.0, true);
    }
    assert_eq!(
        (saturated_for, predictions.capacity().matched),
        (85, 1),
        "a minute, and 100 requests in 25 s"
    );
    let (mean_absolute, bias) = error_of(predictions.capacity());
    assert!((mean_absolute - 1.0).abs() < 1e-6 && (bias - 1.0).abs() < 1e-6, "4 claimed and 2 finished");
    for _ in 0..10 {
        saturated_for = predictions.observe(Role::Both, &growth(5.0, 5.0, 10.0), saturated_for);
    }
    assert_eq!(predictions.capacity().matched, 2, "the claim that was made after the comparison");
    assert_eq!(predictions.observe(Role::Both, &growth(5.0, 0.0, 10.0), saturated_for), 0);
}

#[test]
fn a_start_is_compared_with_what_was_expected_and_with_nothing_before_that() {
    let mut predictions = ReplicaPredictions::default();
    predictions.started(100.0);
    assert_eq!(predictions.start_up(), Prediction::default());
    predictions.expect_start(120.0);
    predictions.started(100.0);
    let (mean_absolute, bias) = error_of(predictions.start_up());
    assert!((mean_absolute - 0.2).abs() < 1e-6 && (bias - 0.2).abs() < 1e-6);
}

#[test]
fn a_model_with_one_variant_needs_at_most_200_bytes() {
    // The list of pending forecasts is on the heap; an allocator adds up to 16 bytes.
    let pending = 4 * size_of::<(Moment, f32)>() + 16;
    let bytes = size_of::<DemandForecasts>() + pending + size_of::<ReplicaPredictions>();
    assert!(bytes <= 200, "{bytes}");
}
