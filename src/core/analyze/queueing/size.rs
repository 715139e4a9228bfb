//! The largest rate that meets targets of latency, by bisection (algorithm reference §5.3).

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::model::{Model, Performance, Unsolvable};
use super::service_time::checked;
use crate::units::OutOfRange;

/// What is promised; 0 is no promise.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Targets {
    /// Time to first token, ms.
    pub ttft: f32,
    /// Time between tokens, ms.
    pub itl: f32,
    /// Tokens/s. Its value does not enter: any at all keeps the rate a tenth below the maximum.
    pub tps: f32,
}

impl Targets {
    /// Targets of latency, in ms.
    ///
    /// # Errors
    /// When one is negative or not finite.
    pub fn latency(ttft: f32, itl: f32) -> Result<Self, OutOfRange> {
        Self { ttft, itl, tps: 0.0 }.validated()
    }

    /// # Errors
    /// Names the first target that is negative or not finite.
    pub fn validated(self) -> Result<Self, OutOfRange> {
        checked("target TTFT", self.ttft, 0.0, "finite and at least 0")?;
        checked("target ITL", self.itl, 0.0, "finite and at least 0")?;
        checked("target TPS", self.tps, 0.0, "finite and at least 0")?;
        Ok(self)
    }
}

/// The largest rates for each target, requests/s, and what the smallest of them makes of the replica.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Size {
    /// For the time to first token.
    pub rate_ttft: f32,
    /// For the time between tokens.
    pub rate_itl: f32,
    /// For tokens/s.
    pub rate_tps: f32,
    /// At the smallest of the three. Its throughput is the capacity μ*.
    pub at: Performance,
}

/// Kept free below the maximum when there is a target of tokens/s.
const STABILITY: f32 = 0.1;
/// Halvings at most.
const HALVINGS: u32 = 100;
/// A value this near its target, relatively, is the target.
const TOLERANCE: f32 = 1e-6;

impl Model {
    /// The largest rate that meets `targets`.
    ///
    /// # Errors
    /// When a target is out of range or missed by the smallest load already.
    pub fn size(&mut self, targets: Targets) -> Result<Size, Unsolvable> {
        let targets = targets.validated()?;
        let range = (self.range.0 / 1000.0, self.range.1 / 1000.0);
        let mut ttft = Search::new("TTFT", range, targets.ttft);
        let mut itl = Search::new("ITL", range, targets.itl);
        while !(ttft.done() && itl.done()) {
            let [first, second] = self.solve_both([ttft.at, itl.at]);
            if !ttft.done() {
                ttft.take(first?.ttft)?;
            }
            if !itl.done() {
                itl.take(second?.itl)?;
            }
        }
        let tps = if targets.tps > 0.0 { range.1 * (1.0 - STABILITY) } else { range.1 };
        // λ_max as a product by 1000 comes back from the division and this product as it was, so it is not refused.
        let at = self.analyze(ttft.at.min(itl.at).min(tps) * 1000.0)?;
        Ok(Size { rate_ttft: ttft.at * 1000.0, rate_itl: itl.at * 1000.0, rate_tps: tps * 1000.0, at })
    }
}

/// A bisection for the λ of a range, per ms, where a latency is its target: the upper end where it is less everywhere.
struct Search {
    name: &'static str,
    target: f32,
    low: f32,
    high: f32,
    /// To be looked at next; the result when done.
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
    fn new(name: &'static str, (low, high): (f32, f32), target: f32) -> Self {
        let (at, phase) = if target > 0.0 { (low, Phase::Low) } else { (high, Phase::Done) };
        Self { name, target, low, high, at, phase }
    }

    const fn done(&self) -> bool {
        matches!(self.phase, Phase::Done)
    }

    /// The latency where it looked.
    fn take(&mut self, seen: f32) -> Result<(), Unsolvable> {
        let target = self.target;
        if near(seen, target) {
            self.phase = Phase::Done;
            return Ok(());
        }
        match self.phase {
            Phase::Low => (self.at, self.phase) = (self.high, Phase::High { at_low: seen }),
            Phase::High { at_low } => {
                let rises = at_low < seen;
                if before(rises, target, at_low) {
                    return Err(Unsolvable::Unreachable(self.name));
                }
                if before(rises, seen, target) {
                    self.phase = Phase::Done;
                } else {
                    self.at = f32::midpoint(self.low, self.high);
                    self.phase = Phase::Middle { rises, halvings: 1 };
                }
            }
            Phase::Middle { rises, halvings } => {
                let end = if before(rises, target, seen) { &mut self.high } else { &mut self.low };
                *end = self.at;
                let next = f32::midpoint(self.low, self.high);
                // Between neighbours nothing moves any more: what is left of the halvings would find the same.
                if halvings == HALVINGS || same(next, self.at) {
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

/// `a` comes before `b` on the way up the range.
fn before(rises: bool, a: f32, b: f32) -> bool {
    if rises { a < b } else { a > b }
}

/// Within the relative tolerance.
fn near(value: f32, target: f32) -> bool {
    same(value, target) || ((value - target) / target).abs() <= TOLERANCE
}

fn same(a: f32, b: f32) -> bool {
    a.partial_cmp(&b) == Some(Ordering::Equal)
}
