//! Latency targets, and the largest rate that meets them. Source: WVA 526ce85 (2026-06), `pkg/analyzer/queueanalyzer.go` and
//! `internal/engines/analyzers/queueingmodel/analyzer.go`.

use std::cmp::Ordering;

use super::model::{Model, Performance, RequestLengths, Service, Unsolvable};
use crate::units::{OutOfRange, at_least_zero, to_f32};

/// Targets of latency and throughput; 0 is no target.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Targets {
    /// Time to first token, ms.
    pub ttft: f32,
    /// Time between tokens, ms.
    pub itl: f32,
    /// Tokens/s. Its value does not matter: any target keeps the rate a tenth below the maximum (as upstream).
    pub tps: f32,
}

impl Targets {
    /// Targets of latency, in ms.
    pub(crate) fn latency(ttft: f32, itl: f32) -> Result<Self, OutOfRange> {
        Self { ttft, itl, tps: 0.0 }.validated()
    }

    /// Fails for the first target that is negative or not finite.
    pub(crate) fn validated(self) -> Result<Self, OutOfRange> {
        at_least_zero("target TTFT", self.ttft.into())?;
        at_least_zero("target ITL", self.itl.into())?;
        at_least_zero("target TPS", self.tps.into())?;
        Ok(self)
    }
}

/// m if the user sets none, or one that is not above 1.
pub(crate) const DEFAULT_MULTIPLIER: f64 = 3.0;
const LATENCY_HEADROOM: f64 = 1.5;
/// The largest TTFT target that follows from an observation, ms.
const MAX_TTFT: f64 = 10_000.0;
/// The largest ITL target that follows from an observation, ms.
const MAX_ITL: f64 = 500.0;

/// Means over the requests of a model or a variant; 0 is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Means {
    /// Tokens of a prompt.
    pub input: f64,
    /// Generated tokens of a request.
    pub output: f64,
    /// Time to first token, s.
    pub ttft: f64,
    /// Time between tokens, s.
    pub itl: f64,
}

impl Means {
    /// The mean request; `None` if it cannot be one.
    pub(crate) fn lengths(&self) -> Option<RequestLengths> {
        RequestLengths::new(to_f32(self.input), to_f32(self.output)).ok()
    }
}

/// The latencies of a replica whose iterations are `multiplier` times as long as an empty one's, which is meant to express a
/// utilisation of 1 − 1/m; a multiplier not above 1 is the default. `None` if a parameter is 0 or no finite targets follow.
pub(crate) fn inferred(service: Service, means: &Means, multiplier: f64) -> Option<Targets> {
    if ![service.alpha, service.beta, service.gamma].iter().all(|parameter| *parameter > 0.0) {
        return None;
    }
    let multiplier = if multiplier > 1.0 { multiplier } else { DEFAULT_MULTIPLIER };
    let beta = f64::from(service.beta);
    let gamma = f64::from(service.gamma);
    let iteration = multiplier * f64::from(service.alpha);
    let ttft = iteration + (beta + gamma) * means.input;
    let itl = iteration + (beta + gamma * (means.input + (means.output + 1.0) / 2.0));
    positive(ttft, itl)
}

/// The measured latencies, with headroom and within limits. `None` if one is unknown.
pub(crate) fn fallback(means: &Means) -> Option<Targets> {
    let ttft = (means.ttft * 1000.0 * LATENCY_HEADROOM).clamp(0.0, MAX_TTFT);
    let itl = (means.itl * 1000.0 * LATENCY_HEADROOM).clamp(0.0, MAX_ITL);
    positive(ttft, itl)
}

pub(super) fn larger(left: Targets, right: Targets) -> Targets {
    Targets { ttft: left.ttft.max(right.ttft), itl: left.itl.max(right.itl), tps: left.tps.max(right.tps) }
}

fn positive(ttft: f64, itl: f64) -> Option<Targets> {
    let targets = Targets::latency(to_f32(ttft), to_f32(itl)).ok()?;
    (targets.ttft > 0.0 && targets.itl > 0.0).then_some(targets)
}

/// The largest rate for each target, requests/s, and the latencies at the smallest of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Size {
    pub rate_ttft: f32,
    pub rate_itl: f32,
    pub rate_tps: f32,
    /// At the smallest of the three. Its throughput is the capacity μ*.
    pub at: Performance,
}

/// Share of the maximum rate that is kept free if there is a target for tokens/s.
const STABILITY_MARGIN: f32 = 0.1;
const MAX_HALVINGS: u32 = 100;
/// A value this near its target, relatively, is the target.
const TOLERANCE: f32 = 1e-6;

impl Model {
    /// The largest rate that meets `targets`. Fails if a target is out of range, or missed even at the smallest load.
    pub(crate) fn size(&mut self, targets: Targets) -> Result<Size, Unsolvable> {
        let targets = targets.validated()?;
        let low = self.min_rate / 1000.0;
        let high = self.max_rate / 1000.0;
        let mut ttft = Search::new("TTFT", low, high, targets.ttft);
        let mut itl = Search::new("ITL", low, high, targets.itl);
        while !(ttft.is_done() && itl.is_done()) {
            let [at_ttft, at_itl] = self.solve_both([ttft.at, itl.at]);
            if !ttft.is_done() {
                ttft.narrow(at_ttft?.ttft)?;
            }
            if !itl.is_done() {
                itl.narrow(at_itl?.itl)?;
            }
        }
        let tps = if targets.tps > 0.0 { high * (1.0 - STABILITY_MARGIN) } else { high };
        // Dividing λ_max by 1000 and multiplying it again gives λ_max back to the bit, so it is not above the maximum.
        let at = self.analyze(ttft.at.min(itl.at).min(tps) * 1000.0)?;
        Ok(Size { rate_ttft: ttft.at * 1000.0, rate_itl: itl.at * 1000.0, rate_tps: tps * 1000.0, at })
    }
}

/// A bisection for the λ of a range, per ms, at which a latency meets its target; the upper end if it is less everywhere.
struct Search {
    name: &'static str,
    target: f32,
    low: f32,
    high: f32,
    /// The λ to be tried next; the result when done.
    at: f32,
    phase: Phase,
}

#[derive(Clone, Copy)]
enum Phase {
    Low,
    High { at_low: f32 },
    Middle { rises: bool, halvings: u32 },
    Done,
}

impl Search {
    fn new(name: &'static str, low: f32, high: f32, target: f32) -> Self {
        let (at, phase) = if target > 0.0 { (low, Phase::Low) } else { (high, Phase::Done) };
        Self { name, target, low, high, at, phase }
    }

    const fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Done)
    }

    /// Narrows the range by the latency at the λ that was tried.
    fn narrow(&mut self, latency: f32) -> Result<(), Unsolvable> {
        let target = self.target;
        if is_near(latency, target) {
            self.phase = Phase::Done;
            return Ok(());
        }
        match self.phase {
            Phase::Low => {
                self.at = self.high;
                self.phase = Phase::High { at_low: latency };
            }
            Phase::High { at_low } => {
                let rises = at_low < latency;
                if is_before(rises, target, at_low) {
                    return Err(Unsolvable::Unreachable(self.name));
                }
                if is_before(rises, latency, target) {
                    self.phase = Phase::Done;
                } else {
                    self.at = f32::midpoint(self.low, self.high);
                    self.phase = Phase::Middle { rises, halvings: 1 };
                }
            }
            Phase::Middle { rises, halvings } => {
                let end = if is_before(rises, target, latency) { &mut self.high } else { &mut self.low };
                *end = self.at;
                let next = f32::midpoint(self.low, self.high);
                // The bounds are neighbouring floats, so that nothing moves any more.
                if halvings == MAX_HALVINGS || is_equal(next, self.at) {
                    self.phase = Phase::Done;
                } else {
                    self.at = next;
                    self.phase = Phase::Middle { rises, halvings: halvings + 1 };
                }
            }
            Phase::Done => {}
        }
        Ok(())
    }
}

/// The latency `left` belongs to a smaller λ than `right`, where the latency `rises` with λ or falls.
fn is_before(rises: bool, left: f32, right: f32) -> bool {
    if rises { left < right } else { left > right }
}

/// Within the relative tolerance.
fn is_near(value: f32, target: f32) -> bool {
    is_equal(value, target) || ((value - target) / target).abs() <= TOLERANCE
}

fn is_equal(left: f32, right: f32) -> bool {
    left.partial_cmp(&right) == Some(Ordering::Equal)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where between 1 and 9 the latency is `target`.
    fn found(latency: impl Fn(f32) -> f32, target: f32) -> Result<f32, Unsolvable> {
        let mut search = Search::new("TTFT", 1.0, 9.0, target);
        while !search.is_done() {
            search.narrow(latency(search.at))?;
        }
        Ok(search.at)
    }

    #[test]
    fn the_rate_for_a_rising_or_falling_latency_is_found_within_its_range() {
        let (rising, falling) = (|at: f32| 2.0 * at, |at: f32| 20.0 - 2.0 * at);
        let near = |found: Result<f32, Unsolvable>, expected: f32| (found.unwrap() - expected).abs() < 1e-3;
        assert!(near(found(rising, 6.0), 3.0) && near(found(falling, 6.0), 7.0));
        assert!(near(found(rising, 15.0), 7.5) && near(found(falling, 15.0), 2.5));
        assert!(near(found(rising, 100.0), 9.0) && near(found(falling, 1.0), 9.0), "the upper end");
        let unreachable = |found| matches!(found, Err(Unsolvable::Unreachable("TTFT")));
        assert!(unreachable(found(rising, 1.0)) && unreachable(found(falling, 100.0)));
        assert!(near(found(rising, 0.0), 9.0), "no target");
    }
}
