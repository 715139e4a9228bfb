//! What is learned from samples whose truth is known.

use proptest::collection::vec;
use proptest::prelude::*;

use super::change_point::MIN_LOG_RATIO;
use super::knowledge::LimitedReadings;
use super::*;
use crate::fixture::variant_state;
use crate::model::Role;
use crate::moment::Moment;
use crate::snapshot::{Signal, SignalSet};
use wva_sim::Rng;

/// Arrivals of a Poisson process of `mean` arrivals.
fn poisson(rng: &mut Rng, mean: f64) -> f64 {
    let (mut passed, mut arrivals) = (rng.exponential(), 0.0);
    while passed < mean {
        passed += rng.exponential();
        arrivals += 1.0;
    }
    arrivals
}

fn counts(arrivals: &[f64]) -> Vec<ArrivalCount> {
    arrivals.iter().map(|arrivals| ArrivalCount { seconds: 5.0, arrivals: *arrivals }).collect()
}

/// The same, each a little longer than the one before: no two cuts are worth the same.
fn uneven(arrivals: &[u32]) -> Vec<ArrivalCount> {
    let count = |(at, arrivals): (usize, &u32)| ArrivalCount {
        seconds: 4.0 + 0.07 * at as f64,
        arrivals: f64::from(*arrivals),
    };
    arrivals.iter().enumerate().map(count).collect()
}

/// The ratio for one cut, written out.
fn nats(counts: &[ArrivalCount], at: usize) -> f64 {
    let part = |counts: &[ArrivalCount]| {
        let (c, t): (f64, f64) =
            (counts.iter().map(|count| count.arrivals).sum(), counts.iter().map(|count| count.seconds).sum());
        if c > 0.0 { c * (c / t).ln() } else { 0.0 }
    };
    part(&counts[..at]) + part(&counts[at..]) - part(counts)
}

/// The level by looking at every cut of every rest, for counts too short to show a trend; `cut` when one was found before.
fn brute_force(counts: &[ArrivalCount], dispersion: f64, cut: bool) -> ArrivalLevel {
    let best = (1..counts.len()).max_by(|left, right| nats(counts, *left).total_cmp(&nats(counts, *right)));
    match best.filter(|at| nats(counts, *at) > MIN_LOG_RATIO * dispersion) {
        Some(at) => brute_force(&counts[at..], dispersion, true),
        None => {
            let rate = |counts: &[ArrivalCount]| {
                let seconds: f64 = counts.iter().map(|count| count.seconds).sum();
                (counts.iter().map(|count| count.arrivals).sum::<f64>() / seconds, seconds)
            };
            let (all, seconds) = rate(counts);
            let young = cut && seconds < 60.0 && counts.len() > 1;
            let rate = if young { all.max(rate(&counts[1..]).0) } else { all };
            ArrivalLevel { rate, slope: 0.0, seconds }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_level_is_what_every_cut_says(
        arrivals in vec(prop_oneof![Just(0_u32), 1..20_u32, 1..200_u32], 1..23), dispersion in 1.0_f64..3.0,
    ) {
        let counts = uneven(&arrivals);
        let (found, expected) = (current_level(&counts, dispersion), brute_force(&counts, dispersion, false));
        prop_assert!((found.rate - expected.rate).abs() < 1e-9, "{found:?} is not {expected:?}");
        prop_assert!((found.seconds - expected.seconds).abs() < 1e-9);
    }

    #[test]
    fn a_level_is_never_negative_and_never_odd(
        arrivals in vec(-50.0_f64..200.0, 0..150), dispersion in 1.0_f64..50.0,
    ) {
        let found = current_level(&counts(&arrivals), dispersion);
        prop_assert!(found.rate >= 0.0 && found.rate.is_finite() && found.slope.is_finite());
    }
}

#[test]
fn a_step_is_seen_within_one_stretch_of_the_formula() {
    for (before, after) in [(2.0_f64, 4.0_f64), (16.0, 20.0), (2.0, 10.0)] {
        let (mut late, runs) = (0.0, 200_u32);
        for seed in 0..runs {
            let mut rng = Rng::new(u64::from(seed) + 1);
            let mut arrivals: Vec<f64> = (0..120).map(|_| poisson(&mut rng, before * 5.0)).collect();
            let noticed = (1..60).find(|_| {
                arrivals.push(poisson(&mut rng, after * 5.0));
                current_level(&counts(&arrivals), 1.0).rate > f64::midpoint(before, after)
            });
            late += 5.0 * f64::from(noticed.unwrap_or(60)) / f64::from(runs);
        }
        let formula = MIN_LOG_RATIO / (after * (after / before).ln() - (after - before));
        assert!(late <= formula + 5.0, "{before} to {after}: {late} s, by the formula {formula} s");
    }
}

#[test]
fn a_surge_that_begins_within_a_stretch_is_as_high_as_what_follows() {
    let mut arrivals = vec![10.0; 60];
    arrivals.extend([30.0, 50.0, 50.0]);
    let found = current_level(&counts(&arrivals), 1.0);
    assert!((found.rate - 10.0).abs() < 1e-9 && (found.seconds - 15.0).abs() < 1e-9, "{found:?}");
    arrivals.extend([50.0; 9]);
    let settled = current_level(&counts(&arrivals), 1.0);
    assert!((settled.rate - 580.0 / 60.0).abs() < 1e-9, "after a minute all of it counts: {settled:?}");
}

#[test]
fn constant_load_is_seldom_taken_for_a_change() {
    // 1,000 times two hours of looks every 5 s; levels that change are those cut to less than half of what there is.
    let mut alarms = 0;
    for seed in 0..1000 {
        let mut rng = Rng::new(seed);
        let rate = 0.5 + 10.0 * rng.unit();
        let arrivals: Vec<f64> = (0..1440).map(|_| poisson(&mut rng, rate * 5.0)).collect();
        let all = counts(&arrivals);
        // A cut stays visible for minutes, so a look every half a minute misses few.
        let cut = (120..1440).step_by(6).any(|end| current_level(&all[end - 120..end], 1.0).seconds < 599.0);
        alarms += u32::from(cut);
    }
    assert!(alarms < 20, "{alarms} of 1000");
}

#[test]
fn a_ramp_is_a_slope_and_a_staircase_is_none() {
    let mut rng = Rng::new(3);
    let ramp: Vec<f64> = (0..120).map(|at| poisson(&mut rng, 5.0 * (1.0 + 0.1 * f64::from(at)))).collect();
    let found = current_level(&counts(&ramp), 1.0);
    assert!((found.slope - 0.02).abs() < 0.004 && (found.rate - 13.0).abs() < 1.5, "{found:?}");
    let stairs: Vec<f64> = (0..120).map(|at| poisson(&mut rng, if at < 60 { 10.0 } else { 60.0 })).collect();
    let found = current_level(&counts(&stairs), 1.0);
    assert!(found.slope.abs() < 1e-9 && (found.rate - 12.0).abs() < 1.5, "{found:?}");
}

/// Bins of 5 s, completely read, with these arrivals.
fn bins(arrivals: &[f64]) -> Vec<ArrivalBin> {
    let end = |at: usize| Moment::from(jiff::Timestamp::UNIX_EPOCH).plus(5.0 * (at as f64 + 1.0));
    let bin = |(at, known): (usize, &f64)| ArrivalBin {
        end: end(at),
        seconds: 5.0,
        known: *known,
        read: 1.0,
        expected: 1.0,
        per_unread: 0.0,
        refused: 0.0,
    };
    arrivals.iter().enumerate().map(bin).collect()
}

#[test]
fn dispersion_tells_batches_from_single_requests_and_a_step_from_both() {
    let factor = |arrivals: &[f64]| {
        let mut dispersion = Dispersion::default();
        dispersion.add(&bins(arrivals));
        dispersion.factor()
    };
    let mut rng = Rng::new(5);
    let single: Vec<f64> = (0..400).map(|_| poisson(&mut rng, 20.0)).collect();
    let batches: Vec<f64> = (0..400).map(|_| 8.0 * poisson(&mut rng, 2.5)).collect();
    let step: Vec<f64> = (0..400).map(|at| poisson(&mut rng, if at < 200 { 10.0 } else { 50.0 })).collect();
    assert!((1.0..1.3).contains(&factor(&single)), "{}", factor(&single));
    assert!((6.0..10.0).contains(&factor(&batches)), "{}", factor(&batches));
    assert!(factor(&step) < 2.0, "{}", factor(&step));
}

#[test]
fn terms_that_vary_together_were_left_where_a_descent_stopped() {
    // Under any ordinary load, sequences, prompt tokens and the cache grow together.
    let sample = |running: f64| {
        let (prompt, usage) = (0.5 * running, running / 200.0);
        let step = 0.02 + 0.0002 * prompt + 0.0002 * running + 0.01 * usage;
        StepSample { step, prompt, running, usage }
    };
    let mut fit = StepTimeFit::default();
    let at = |seconds: f64| Moment::from(jiff::Timestamp::UNIX_EPOCH).plus(seconds);
    for scrape in 0..360_i32 {
        fit.learn(at(5.0 * f64::from(scrape)), &sample(30.0 + 9.0 * (f64::from(scrape) / 20.0).sin()));
    }
    for fit in [fit, fit.compacted()] {
        let StepTime { base, prompt_token, sequence, full_cache } = fit.solve(None).unwrap();
        let StepSample { step, prompt, running, usage } = sample(90.0);
        let found = base + prompt_token * prompt + sequence * running + full_cache * usage;
        assert!((found / step - 1.0).abs() < 0.05, "{found} s for {step} s");
        let error = fit.error(None).unwrap().of([1.0, prompt, running, usage]);
        assert!(error > 0.0 && error < 0.2 * step, "{error} s of {step} s");
    }
}

#[test]
fn sums_that_were_rounded_to_nothing_do_not_count_as_certain() {
    // Constant load has one state, and rounding may leave no curvature in any other direction.
    for digits in 0..40_i32 {
        let running = 30.0 + 0.37 * f64::from(digits);
        let sample = StepSample { step: 0.031, prompt: 0.5 * running, running, usage: running / 200.0 };
        let mut fit = StepTimeFit::default();
        let at = |seconds: f64| Moment::from(jiff::Timestamp::UNIX_EPOCH).plus(seconds);
        (0..5_000_i32).for_each(|scrape| fit.learn(at(5.0 * f64::from(scrape)), &sample));
        let error = fit.compacted().error(None).unwrap();
        assert!(error.of([1.0, 200.0, 10.0, 0.9]) > 0.0, "{running}");
    }
}

#[test]
fn step_times_come_out_of_what_is_seen_far_below_saturation() {
    // Loads between 2 sequences and a quarter of the most, requests of 4000 and 1000 tokens in a cache of 480,000.
    let truth = StepTime { base: 5.5e-3, prompt_token: 24e-6, sequence: 1e-5, full_cache: 18.24e-3 };
    let mut fit = StepTimeFit::default();
    let at = Moment::from(jiff::Timestamp::UNIX_EPOCH);
    let (per_request, fixed) = (0.277, 5.5);
    for look in 0..200 {
        let running = 2.0 + 22.0 * f64::from(look % 20) / 19.0;
        let rate = running / (fixed + running * per_request);
        let usage = running * 4500.0 / 480_000.0;
        let step = (fixed + running * per_request) / 1000.0;
        let sample = StepSample { step, prompt: rate * 4000.0 * step, running, usage };
        fit.learn(at.plus(5.0 * f64::from(look)), &sample);
    }
    let found = fit.solve(Some(3e-5)).unwrap();
    let capacity = |step: StepTime| {
        let per_request =
            step.prompt_token * 4000.0 + 1000.0 * (step.sequence + step.full_cache * 4500.0 / 480_000.0);
        96.0 / (1000.0 * step.base + 96.0 * per_request)
    };
    let off = (capacity(found) / capacity(truth) - 1.0).abs();
    assert!(off < 0.05, "{} is not {}", capacity(found), capacity(truth));
    let work = [1000.0 / 96.0, 4000.0, 1000.0, 1000.0 * 4500.0 / 480_000.0];
    let error = fit.error(Some(3e-5)).unwrap().of(work) * capacity(found);
    assert!((off..0.05).contains(&error), "{error} is claimed, and {off} is true");
    let mut first = StepTimeFit::default();
    first.learn(at, &StepSample { step: 8e-3, prompt: 40.0, running: 10.0, usage: 0.1 });
    let error = first.error(None).unwrap().of(work) * capacity(first.solve(None).unwrap());
    assert!(error > 0.3, "{error} after a single sample");
}

#[test]
fn highs_are_those_of_the_window_and_few() {
    let at = |seconds: i32| Moment::from(jiff::Timestamp::UNIX_EPOCH).plus(f64::from(seconds));
    let mut highs = WindowMaximum::default();
    for second in 0..1000 {
        highs.push(at(second), f64::from(second % 100), 300.0);
        let newest = highs.highest(at(second), 300.0).unwrap();
        let truth = (second - 295..=second)
            .filter(|count| *count >= 0)
            .map(|count| f64::from(count % 100))
            .fold(0.0, f64::max);
        assert!(newest >= truth, "{newest} at {second}");
    }
    assert!(highs.reach(at(999)) >= 999.0);
    let kept = highs.compacted(3);
    assert!(serde_json::to_string(&kept).unwrap().len() < 120);
    assert!(kept.highest(at(999), 300.0) >= highs.highest(at(999), 300.0).map(|high| high * 0.99999));
    highs.push(at(1100), 1.0, 300.0);
    assert!(highs.reach(at(1100)) < 1.0, "a hole of more than a minute");
}

#[test]
fn a_surge_is_learned_as_a_share_and_half_forgotten_in_an_hour() {
    let at = |seconds: f64| Moment::from(jiff::Timestamp::UNIX_EPOCH).plus(seconds);
    let mut surges = Surges::default();
    for look in 0..20 {
        surges.learn(at(5.0 * f64::from(look)), 150.0, 4.0, 4.0, true);
    }
    assert!(surges.largest() < 1e-9);
    surges.learn(at(100.0), 150.0, 7.2, 6.8, true);
    assert!((surges.largest() - 0.7).abs() < 1e-9, "2.8 of 4 replicas are sure to be a surge");
    let kept: Surges = serde_json::from_str(&serde_json::to_string(&surges.compacted()).unwrap()).unwrap();
    assert!((kept.largest() - surges.largest()).abs() < 1e-5);
    surges.learn(at(3700.0), 150.0, 4.0, 4.0, true);
    assert!((surges.largest() - 0.35).abs() < 1e-3);
    (0..10).for_each(|look| surges.learn(at(3705.0 + 5.0 * f64::from(look)), 150.0, 4.0, 4.0, true));
    surges.learn(at(3755.0), 150.0, 40.0, 40.0, true);
    assert!((surges.largest() - 1.0).abs() < 1e-9, "no more than a doubling");
}

#[test]
fn the_longest_of_the_last_starts_counts_and_becoming_ready_again_is_no_start() {
    let at = |seconds: f64| Moment::from(jiff::Timestamp::UNIX_EPOCH).plus(seconds);
    let expected = |starts: &StartUpTimes, pods: &[(Moment, Moment)]| {
        starts.longest().unwrap_or_else(|| median_start(pods, 120.0))
    };
    let mut starts = StartUpTimes::default();
    let old = (at(0.0), at(200.0));
    starts.learn(at(1000.0), &[old], |_| true);
    assert!((expected(&starts, &[old]) - 200.0).abs() < 1e-9, "the median, before a start was seen");
    assert!((expected(&starts, &[(at(0.0), at(5000.0))]) - 600.0).abs() < 1e-9);
    assert!((expected(&starts, &[]) - 120.0).abs() < 1e-9);
    let again = (at(0.0), at(1010.0));
    starts.learn(at(1010.0), &[again, (at(1005.0), at(1100.0))], |at| at == 0);
    assert!((expected(&starts, &[again]) - 95.0).abs() < 1e-9);
    for (index, took) in [150.0, 90.0, 91.0, 92.0, 93.0, 94.0].into_iter().enumerate() {
        let created = 2000.0 + 200.0 * index as f64;
        starts.learn(at(created + took), &[(at(created), at(created + took))], |_| false);
    }
    assert!((expected(&starts, &[]) - 94.0).abs() < 1e-9, "the one of 150 s is six starts ago");
}

/// What a limit is learned as while so many are seen running, one scrape after the other, with others waiting.
fn limits(running: &[f64]) -> Vec<Option<f64>> {
    let at = |second: usize| Moment::from(jiff::Timestamp::UNIX_EPOCH).plus(second as f64 * 5.0);
    let gauges = |running| Gauges { waiting: 9.0, running, usage: 0.4 };
    let mut known = VariantKnowledge::default();
    let mut limited = LimitedReadings::default();
    let steps = running.windows(2).enumerate().map(|(second, pair)| {
        let counted = Counters::default();
        let (before, after) = (gauges(pair[0]), gauges(pair[1]));
        let growth = Growth { from: at(second), to: at(second + 1), counted, before, after, refused: None };
        limited = known.learn(Role::Both, &growth, limited);
        known.limit
    });
    steps.collect()
}

#[test]
fn a_limit_of_32_does_not_flicker_when_a_scrape_falls_between_two_requests() {
    let found = limits(&[31.0, 30.0, 31.0, 31.0, 32.0, 31.0, 30.0, 25.0, 30.0, 30.0, 31.0, 30.0]);
    assert_eq!(found[1], None, "two are no row");
    assert_eq!((found[2], found[3]), (Some(31.0), Some(32.0)));
    assert!(found[3..].iter().all(|limit| *limit == Some(32.0)), "{found:?}");
    let lowered = limits(&[32.0, 32.0, 32.0, 32.0, 9.0, 16.0, 16.0, 15.0, 16.0]);
    assert_eq!(lowered.last(), Some(&Some(16.0)), "another limit is learned");
}

#[test]
fn what_was_learned_in_the_last_minute_and_a_half_is_taken_back() {
    let mut past = Rollback::default();
    let at = |second: i64| Moment::from(jiff::Timestamp::from_second(1_800_000_000 + second).unwrap());
    assert_eq!(past.restore(), None, "nothing is remembered yet");
    (0..=40).for_each(|look| past.checkpoint(at(look * 5), || look * 5));
    assert_eq!(past.restore(), Some((at(90), 90)), "what was known at 180 s is not settled at 200 s");
    past.checkpoint(at(205), || 205);
    assert_eq!(past.restore(), Some((at(90), 90)), "taken back twice it is the same");
}

#[test]
fn arrivals_are_counted_by_what_is_believed() {
    let counted = Counters { firsts: 40.0, finished: 12.0, ..Counters::default() };
    let [before, after] =
        [(3.0, 10.0), (8.0, 14.0)].map(|(waiting, running)| Gauges { waiting, running, usage: 0.5 });
    let at = Moment::from(jiff::Timestamp::UNIX_EPOCH);
    let growth = Growth { from: at, to: at.plus(10.0), counted, before, after, refused: None };
    let arrivals = |lacking: &[Signal]| growth.arrivals(SignalSet::new(lacking));
    assert_eq!(arrivals(&[]), Some(45.0), "those that began and those that joined the queue");
    assert_eq!(
        arrivals(&[Signal::TimeToFirstTokenCount]),
        Some(21.0),
        "finished, and joined those that run or wait"
    );
    assert_eq!(arrivals(&[Signal::Waiting]), Some(40.0));
    assert_eq!(arrivals(&[Signal::TimeToFirstTokenCount, Signal::Running]), None);
}

#[test]
fn an_engine_without_counters_is_read_by_its_gauges() {
    let at = |seconds: f64| Moment::from(jiff::Timestamp::UNIX_EPOCH).plus(seconds);
    let (prompt, output, cache) = (4000.0, 1000.0, 480_000.0);
    let mut known = VariantKnowledge::default();
    let mut shape = TokenShape::default();
    // The tokens of n sequences, in steps of 5.5 ms and 0.277 ms a sequence.
    let step = |running: f64| (5.5 + 0.277 * running) / 1000.0;
    let rate = |running: f64| running / (output * step(running));
    for scrape in 0..200_i32 {
        let running = 2.0 + 22.0 * f64::from(scrape % 20) / 19.0;
        let sample = StepSample {
            step: step(running),
            prompt: rate(running) * prompt * step(running),
            running,
            usage: running * 4500.0 / cache,
        };
        known.fit.learn(at(5.0 * f64::from(scrape)), &sample);
    }
    let gauges = |waiting: f64, running: f64| Gauges { waiting, running, usage: running * 4500.0 / cache };
    let growth = |seconds: f64, before: Gauges, after: Gauges| Growth {
        from: at(0.0),
        to: at(seconds),
        counted: Counters::default(),
        before,
        after,
        refused: None,
    };
    let steady = |running: f64| growth(10.0, gauges(4.0, running), gauges(4.0, running));
    assert_eq!(
        steady(20.0).arrivals_by_gauges(Role::Both, &known, &shape),
        None,
        "no request has finished yet"
    );
    let ten = RequestSizes { prompt: 10.0 * prompt, firsts: 10.0, output: 10.0 * output, finished: 10.0 };
    shape.learn(at(0.0), &ten);
    let arrived = |growth: Growth| growth.arrivals_by_gauges(Role::Both, &known, &shape);
    for running in [5.0, 20.0, 60.0] {
        let found = arrived(steady(running)).unwrap();
        assert!((found / (10.0 * rate(running)) - 1.0).abs() < 0.05, "{found} with {running}");
        let joined = arrived(growth(10.0, gauges(1.0, running), gauges(4.0, running))).unwrap();
        assert!((joined - found - 3.0).abs() < 1e-9, "three joined the queue");
    }
    assert_eq!(arrived(steady(0.0)), Some(0.0));
    let restarted = arrived(growth(10.0, gauges(200.0, 60.0), gauges(1.0, 2.0)));
    assert_eq!(restarted, Some(3.0), "a restart takes nothing back");
    // A decoding engine gets its prompts computed, and finishes more.
    let decoded = steady(60.0).arrivals_by_gauges(Role::Decode, &known, &shape).unwrap();
    assert!(decoded > 1.2 * arrived(steady(60.0)).unwrap(), "{decoded}");
}

#[test]
fn estimates_are_forgotten_when_arrivals_are_counted_again() {
    let at = |second: i64| Moment::from(jiff::Timestamp::from_second(1_800_000_000 + second).unwrap());
    // Twenty engines are scraped every 15 s, a third of them at a time.
    let read = |role: &mut RoleKnowledge, seconds: std::ops::Range<i64>| {
        for second in seconds.step_by(5) {
            for _ in (0..20).filter(|engine| (second / 5 + engine) % 3 == 0) {
                role.arrivals.add(at(second - 15), at(second), EngineArrivals::admitted(1.0));
            }
            role.arrivals.close(at(second), None, None, |from, to| 20.0 * from.until(to));
        }
    };
    let mut role = RoleKnowledge::default();
    read(&mut role, 0..600);
    assert!(!role.reads_gauges(at(600), 120.0), "everything was counted");
    role.gauged_at = Some(at(595));
    assert!(role.reads_gauges(at(600), 120.0), "the newest bin is never complete");
    assert!(!role.reads_gauges(at(700), 120.0), "nothing has been read for 100 s");
    role.forget_gauged();
    assert!(role.gauged_at.is_some() && !role.arrivals.bins().is_empty(), "nothing has been counted yet");
    read(&mut role, 600..630);
    role.forget_gauged();
    assert_eq!((role.gauged_at, role.level), (None, None));
    let bins = role.arrivals.bins();
    assert!(!bins.is_empty() && bins.iter().all(|bin| bin.end >= at(600)), "{bins:?}");
}

#[test]
fn unmeasured_pods_once_kept_their_old_arrivals_while_the_others_got_twice_as_many() {
    let at = |second: i64| Moment::from(jiff::Timestamp::from_second(1_800_000_000 + second).unwrap());
    let mut arrivals = Arrivals::default();
    // Of two pods one is read every five seconds.
    let mut newest = |from: i64, until: i64, arrived: f64| {
        for second in (from..until).step_by(5) {
            arrivals.begin(at(second));
            arrivals.add(at(second), at(second + 5), EngineArrivals::admitted(arrived));
            arrivals.close(at(second + 5), None, None, |from, to| 2.0 * from.until(to));
        }
        arrivals.counts().last().unwrap().arrivals
    };
    assert!((newest(0, 300, 10.0) - 20.0).abs() < 1e-9);
    assert!(newest(300, 600, 20.0) > 39.5, "twice as much for both");
    // Nobody is read for half an hour.
    assert!(newest(2400, 2410, 1.0) < 2.1, "what was there before the hole counts no more");
}

#[test]
fn a_start_is_learned_of_a_pod_that_was_seen_before_it_served_and_of_no_other() {
    let pod = |pod: &str, phase, created: i64, ready: Option<i64>| crate::snapshot::Pod {
        name: pod.into(),
        phase,
        created: jiff::Timestamp::from_second(created).unwrap(),
        ready_since: ready.map(|ready| jiff::Timestamp::from_second(ready).unwrap()),
        engines: crate::name_map::NameMap::default(),
    };
    let (starting, ready) = (crate::snapshot::Phase::Starting, crate::snapshot::Phase::Ready);
    let first = ObservedStarts::default()
        .after(&variant_state(vec![pod("old", ready, 0, Some(900)), pod("new", starting, 1000, None)]));
    let first = first.unwrap();
    assert_eq!(first.longest(), None);
    let same = first.after(&variant_state(vec![pod("new", starting, 1000, None)]));
    assert_eq!(same, None, "nothing has changed");
    // The old one fails and comes back, and was never seen starting.
    let second = first
        .after(&variant_state(vec![pod("old", ready, 0, Some(1090)), pod("new", ready, 1000, Some(1095))]));
    let second = second.unwrap();
    assert_eq!(second.longest().map(|seconds| seconds as i64), Some(95));
    assert_eq!(
        second.after(&variant_state(vec![pod("new", starting, 1000, Some(1095))])),
        None,
        "it fails, and does not start"
    );
}
