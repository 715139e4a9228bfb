//! Dispersion of arrivals: the variance of their counts relative to a Poisson process, F = 1 for one, more when they come in batches.
//!
//! It is estimated like an Allan variance. Neighbouring blocks are compared with each other, not with a mean, so that a single step in
//! the rate moves it by less than 1. For the rates R₁, R₂ of blocks of T₁, T₂ seconds with mean m,
//! `(R₂ − R₁)² / (m (1/T₁ + 1/T₂))` has the expectation F. Two block lengths are used, because a batch may last longer than a
//! scrape; the larger estimate counts.

use serde::{Deserialize, Serialize};

use super::arrivals::ArrivalBin;
use super::numeric::{decay, is_default, six_digits};
use crate::moment::Moment;

/// Minimum lengths of blocks, seconds: one scrape of 5 s and three of them, each a little early.
const BLOCK_SECONDS: [f64; 2] = [4.0, 14.0];

/// A bin that is not complete after this time, seconds, never will be: four scrapes of 5 s.
const COMPLETION_TIMEOUT: f64 = 20.0;

/// Maximum contribution of one pair of blocks: a step of any height in the rate is in one pair.
const MAX_PAIR: f64 = 60.0;

/// Time constant of forgetting, seconds; the same as for step times.
const TIME_CONSTANT: f64 = 1800.0;

/// Prior: Poisson arrivals, with the weight of 20 pairs of blocks.
const PRIOR_WEIGHT: f64 = 20.0;

/// Maximum of F. With 50, a rate that doubles from 10 requests/s is still found within two and a half minutes.
const MAX_FACTOR: f64 = 50.0;

/// The estimate with one block length.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Blocks {
    sum: f64,
    weight: f64,
    /// Arrivals and seconds of the current block.
    #[serde(skip_serializing_if = "is_default")]
    filling: (f64, f64),
    /// Rate and seconds of the previous block.
    #[serde(skip_serializing_if = "is_default")]
    before: Option<(f64, f64)>,
}

impl Default for Blocks {
    fn default() -> Self {
        Self { sum: PRIOR_WEIGHT, weight: PRIOR_WEIGHT, filling: (0.0, 0.0), before: None }
    }
}

impl Blocks {
    fn add(&mut self, bin: &ArrivalBin, min_seconds: f64) {
        let count = bin.count();
        let filling = (self.filling.0 + count.arrivals, self.filling.1 + count.seconds);
        if filling.1 < min_seconds {
            self.filling = filling;
            return;
        }
        let seconds = filling.1;
        let rate = filling.0 / seconds;
        self.filling = (0.0, 0.0);
        let before = self.before.replace((rate, seconds));
        let Some((earlier, earlier_seconds)) = before else { return };
        let mean = (earlier + rate) / 2.0;
        if mean > 0.0 {
            let difference = rate - earlier;
            let factor = difference * difference / (mean * (1.0 / earlier_seconds + 1.0 / seconds));
            let remaining = decay(seconds, TIME_CONSTANT);
            self.sum = self.sum * remaining + factor.min(MAX_PAIR);
            self.weight = self.weight * remaining + 1.0;
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Dispersion {
    blocks: [Blocks; 2],
    /// End of the last bin that was added.
    #[serde(rename = "taken", skip_serializing_if = "is_default")]
    added_until: Option<Moment>,
}

impl Dispersion {
    /// Adds the new bins of `bins`, in order, up to the first that may still become complete.
    pub(crate) fn add(&mut self, bins: &[ArrivalBin]) {
        let Some(newest) = bins.last().map(|bin| bin.end) else { return };
        let first = bins.partition_point(|bin| self.added_until.is_some_and(|until| bin.end <= until));
        for bin in &bins[first..] {
            if !bin.is_complete() && bin.end.until(newest) < COMPLETION_TIMEOUT {
                return;
            }
            // Blocks may not span a gap.
            let has_gap = self.added_until.is_some_and(|until| until.until(bin.end) > bin.seconds + 1.0);
            for (blocks, min_seconds) in self.blocks.iter_mut().zip(BLOCK_SECONDS) {
                if has_gap {
                    blocks.filling = (0.0, 0.0);
                    blocks.before = None;
                }
                blocks.add(bin, min_seconds);
            }
            self.added_until = Some(bin.end);
        }
    }

    pub(crate) fn factor(&self) -> f64 {
        self.blocks.iter().map(|blocks| blocks.sum / blocks.weight).fold(1.0, f64::max).min(MAX_FACTOR)
    }

    pub(crate) fn compacted(&self) -> Self {
        let compact = |blocks: Blocks| Blocks {
            sum: six_digits(blocks.sum),
            weight: six_digits(blocks.weight),
            ..Blocks::default()
        };
        Self { blocks: self.blocks.map(compact), added_until: None }
    }
}
