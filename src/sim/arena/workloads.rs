//! The arena's 14 workloads by their formulas: when requests arrive, and how large they are.

use std::time::Duration;

use wva_core::units::truncated_u32;

use crate::load::{LoadShape, Segment};
use crate::rng::Rng;
use crate::scenario::Arrival;

/// Names of the workloads: seven synthetic ones, the beginning of a trace, and the golden six.
pub const WORKLOADS: [&str; 14] = [
    "flat",
    "staircase",
    "square",
    "flash-crowd",
    "diurnal",
    "decode-heavy",
    "shared-prefix",
    "trace-start",
    "steady-near-capacity",
    "step-and-recovery",
    "gradual-ramp",
    "repeated-cycles",
    "composition-shift",
    "random-bursts",
];
/// Those that are a share of the reference rate, and take their sizes from a trace.
pub const GOLDEN: &[&str] = WORKLOADS.split_at(8).1;
/// How long a synthetic workload lasts.
const SYNTHETIC: Duration = Duration::from_secs(180);
/// Requests of the workload that is the beginning of a trace.
const TRACE_START: usize = 1000;
/// Tokens that all prompts of a workload have in common: 8 blocks of 512.
const SHARED_PREFIX: u32 = 8 * 512;
/// Random streams: times, sizes and bursts.
const TIME_STREAM: u64 = 21;
const SIZE_STREAM: u64 = 22;
const BURST_STREAM: u64 = 23;

/// Requests and how long they come.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Workload {
    pub(super) duration: Duration,
    pub(super) arrivals: Vec<Arrival>,
}

/// What the workloads that come from a trace are made of.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// As recorded.
    trace: Vec<Arrival>,
    /// The same by their input for their output, least first.
    by_ratio: Vec<Arrival>,
}

/// The sources that a recorded trace gives.
#[must_use]
pub fn arena_sources(trace: Vec<Arrival>) -> Sources {
    let ratio = |request: &Arrival| f64::from(request.prompt) / f64::from(request.output.max(1));
    let mut by_ratio = trace.clone();
    by_ratio.sort_by(|left, right| ratio(left).total_cmp(&ratio(right)));
    Sources { trace, by_ratio }
}

/// The workload of a name of [`WORKLOADS`]; `None` for another, or where a trace is needed and has no requests.
pub(super) fn workload(name: &str, seed: u64, sources: &Sources, reference_rps: f64) -> Option<Workload> {
    if name == "trace-start" {
        return trace_start(&sources.trace);
    }
    let Some(load) = synthetic(name) else { return golden(name, seed, sources, reference_rps) };
    let medians = if name == "decode-heavy" { (200.0, 600.0) } else { (6000.0, 34.0) };
    let mut rng = Rng::stream(seed, SIZE_STREAM);
    let arrival = |at_s| {
        let prompt = log_normal(medians.0, 0.8, &mut rng);
        let output = log_normal(medians.1, 0.5, &mut rng);
        let cached = if name == "shared-prefix" { SHARED_PREFIX.min(prompt - 1) } else { 0 };
        Arrival { at_s, prompt, output, cached }
    };
    Some(Workload { duration: SYNTHETIC, arrivals: times(&load, seed).into_iter().map(arrival).collect() })
}

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn hold(rps: f64, seconds: u64) -> Segment {
    Segment::Hold { rps, lasts: s(seconds) }
}

/// The source of the formulas leaves open when the crowd comes, the length of a day, and two rates: here the third minute begins
/// with the crowd, a day is the whole workload, and the rates are that of the flat one.
fn synthetic(name: &str) -> Option<LoadShape> {
    Some(LoadShape::new(match name {
        "flat" | "decode-heavy" | "shared-prefix" => vec![hold(5.6, 180)],
        "staircase" => (1..=9).map(|step| hold(f64::from(step), 20)).collect(),
        "square" => {
            [1.0, 10.0, 1.0, 10.0].map(|rps| hold(rps, 40)).into_iter().chain([hold(1.0, 20)]).collect()
        }
        "flash-crowd" => vec![hold(3.0, 120), hold(30.0, 15), hold(3.0, 45)],
        "diurnal" => vec![Segment::Wave { mean: 5.6, swing: 4.0, period: SYNTHETIC, lasts: SYNTHETIC }],
        _ => return None,
    }))
}

fn trace_start(trace: &[Arrival]) -> Option<Workload> {
    let arrivals = trace.get(..TRACE_START)?.to_vec();
    let duration = Duration::from_secs_f64(arrivals.last()?.at_s + 1.0);
    Some(Workload { duration, arrivals })
}

fn golden(name: &str, seed: u64, sources: &Sources, reference_rps: f64) -> Option<Workload> {
    if sources.trace.is_empty() {
        return None;
    }
    let phase = |share: f64, seconds| hold(share * reference_rps, seconds);
    let ramp = |from: f64, to: f64| Segment::Ramp {
        from: from * reference_rps,
        to: to * reference_rps,
        lasts: s(900),
    };
    let load = LoadShape::new(match name {
        "steady-near-capacity" => vec![phase(0.85, 1800)],
        "step-and-recovery" => vec![phase(0.4, 900), phase(0.95, 1200), phase(0.4, 900)],
        "gradual-ramp" => vec![phase(0.3, 600), ramp(0.3, 0.95), phase(0.95, 600), ramp(0.95, 0.3)],
        "repeated-cycles" => [phase(0.35, 600), phase(0.9, 600)].repeat(3),
        "composition-shift" => vec![phase(0.7, 3600)],
        "random-bursts" => bursts(seed)
            .into_iter()
            .map(|(share, lasts)| Segment::Hold { rps: share * reference_rps, lasts })
            .collect(),
        _ => return None,
    });
    let quarter = sources.by_ratio.len() / 4;
    let (least, most) =
        (sources.by_ratio.get(..quarter)?, &sources.by_ratio[sources.by_ratio.len() - quarter..]);
    let mut rng = Rng::stream(seed, SIZE_STREAM);
    let arrival = |at_s: f64| {
        let pool = match name {
            "composition-shift" if (1200.0..2400.0).contains(&at_s) => least,
            "composition-shift" => most,
            _ => sources.trace.as_slice(),
        };
        let drawn = pool.get((rng.unit() * pool.len() as f64) as usize)?;
        Some(Arrival { at_s, cached: 0, ..*drawn })
    };
    let arrivals = times(&load, seed).into_iter().map(arrival).collect::<Option<_>>()?;
    Some(Workload { duration: load.length(), arrivals })
}

/// An hour at 0.35 with eight bursts of 20 to 90 s at 0.90 to 1.20, at least 120 s apart: shares of the reference rate.
fn bursts(seed: u64) -> Vec<(f64, Duration)> {
    let mut rng = Rng::stream(seed, BURST_STREAM);
    let bursts: [(f64, f64); 8] = std::array::from_fn(|_| (0.9 + 0.3 * rng.unit(), 20.0 + 70.0 * rng.unit()));
    let free_s = 3600.0 - 7.0 * 120.0 - bursts.iter().map(|(_, lasts_s)| lasts_s).sum::<f64>();
    let mut cuts: Vec<f64> = bursts.iter().map(|_| rng.unit() * free_s).collect();
    cuts.sort_by(f64::total_cmp);
    let mut phases = Vec::new();
    let mut before_s = 0.0;
    for (index, ((share, lasts_s), cut_s)) in bursts.into_iter().zip(cuts).enumerate() {
        let apart_s = if index == 0 { 0.0 } else { 120.0 };
        phases.push((0.35, Duration::from_secs_f64(apart_s + cut_s - before_s)));
        phases.push((share, Duration::from_secs_f64(lasts_s)));
        before_s = cut_s;
    }
    phases.push((0.35, Duration::from_secs_f64(free_s - before_s)));
    phases
}

/// Poisson arrivals by thinning.
fn times(load: &LoadShape, seed: u64) -> Vec<f64> {
    let highest = |segment: &Segment| match *segment {
        Segment::Hold { rps, .. } => rps,
        Segment::Ramp { from, to, .. } => from.max(to),
        Segment::Wave { mean, swing, .. } => mean + swing,
    };
    let most = load.segments().iter().map(highest).fold(1e-9, f64::max);
    let mut rng = Rng::stream(seed, TIME_STREAM);
    let end_s = load.length().as_secs_f64();
    let mut at_s = 0.0;
    let mut times = Vec::new();
    loop {
        at_s += rng.exponential() / most;
        if at_s >= end_s {
            return times;
        }
        if rng.unit() * most < load.rate_at(Duration::from_secs_f64(at_s)) {
            times.push(at_s);
        }
    }
}

fn log_normal(median: f64, sigma: f64, rng: &mut Rng) -> u32 {
    truncated_u32((median * (sigma * rng.normal()).exp()).round().clamp(1.0, 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources() -> Sources {
        let request = |index: u32| Arrival {
            at_s: f64::from(index),
            prompt: 100 * (index % 40 + 1),
            output: 10,
            cached: 9,
        };
        arena_sources((0..2000).map(request).collect())
    }

    fn count(workload: &Workload, from_s: f64, until_s: f64) -> f64 {
        workload.arrivals.iter().filter(|arrival| (from_s..until_s).contains(&arrival.at_s)).count() as f64
    }

    #[test]
    fn every_workload_has_as_many_requests_as_its_formula() {
        let expected = [
            1008.0, 900.0, 900.0, 945.0, 1008.0, 1008.0, 1008.0, 1000.0, 15300.0, 18600.0, 18450.0, 22500.0,
            25200.0,
        ];
        for (name, expected) in WORKLOADS.into_iter().zip(expected) {
            let got = workload(name, 7, &sources(), 10.0).unwrap().arrivals.len() as f64;
            assert!((got - expected).abs() < 4.0 * f64::sqrt(expected), "{name}: {got}, not {expected}");
        }
        assert!(workload("no-such", 7, &sources(), 10.0).is_none());
    }

    #[test]
    fn sizes_have_the_medians_of_the_formulas() {
        for (name, prompt, output) in [("flat", 6000.0, 34.0), ("decode-heavy", 200.0, 600.0)] {
            let all = workload(name, 7, &sources(), 1.0).unwrap().arrivals;
            let median = |value: fn(&Arrival) -> u32| {
                let mut values: Vec<u32> = all.iter().map(value).collect();
                values.sort_unstable();
                f64::from(values[values.len() / 2])
            };
            assert!((median(|arrival| arrival.prompt) / prompt - 1.0).abs() < 0.15, "{name}");
            assert!((median(|arrival| arrival.output) / output - 1.0).abs() < 0.1, "{name}");
        }
    }

    #[test]
    fn the_crowd_comes_for_fifteen_seconds_and_the_composition_shifts_twice() {
        let crowd = workload("flash-crowd", 7, &sources(), 1.0).unwrap();
        assert!((count(&crowd, 120.0, 135.0) - 450.0).abs() < 90.0);
        let shift = workload("composition-shift", 7, &sources(), 10.0).unwrap();
        for arrival in &shift.arrivals {
            let is_middle = (1200.0..2400.0).contains(&arrival.at_s);
            assert!(if is_middle { arrival.prompt <= 1000 } else { arrival.prompt > 3000 }, "{arrival:?}");
        }
    }

    #[test]
    fn bursts_are_eight_within_their_ranges_and_two_minutes_apart() {
        for seed in 0..200 {
            let phases = bursts(seed);
            assert_eq!(phases.len(), 17);
            let length_s: f64 = phases.iter().map(|(_, lasts)| lasts.as_secs_f64()).sum();
            assert!((length_s - 3600.0).abs() < 1e-3);
            for (share, lasts) in phases.iter().skip(1).step_by(2) {
                assert!((0.9..1.2).contains(share) && (20.0..90.001).contains(&lasts.as_secs_f64()));
            }
            assert!(phases[2..15].iter().step_by(2).all(|(_, lasts)| lasts.as_secs_f64() >= 119.999));
        }
    }

    #[test]
    fn without_a_trace_its_workloads_do_not_exist() {
        for name in GOLDEN.iter().copied().chain(["trace-start"]) {
            assert!(workload(name, 1, &Sources::default(), 5.0).is_none(), "{name}");
            assert!(workload(name, 1, &Sources::default(), 0.0).is_none(), "{name} without a rate");
        }
    }
}
