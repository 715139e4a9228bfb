//! How much counts of arrivals vary against a Poisson process: 1 for one, large for batches.
//!
//! An Allan variance: neighbouring blocks are compared with each other, not with a mean, so a lone step in the rate moves it
//! by less than 1. For rates R₁, R₂ of blocks of T₁, T₂ seconds with mean m, `(R₂ − R₁)² / (m (1/T₁ + 1/T₂))` has the
//! expectation F. Two lengths of blocks, since batches may be longer than a scrape; the larger one counts.

use serde::{Deserialize, Serialize};

use super::arrivals::ArrivalBin;
use super::{is_default, kept, short};
use crate::moment::Moment;

/// Blocks are at least this long, seconds: one scrape of 5 s, three of them, each a little early.
const LENGTHS: [f64; 2] = [4.0, 14.0];

/// A stretch that is not complete after this long, seconds, will not be: four scrapes.
const PATIENCE: f64 = 20.0;

/// One block says at most this much: a step of any height is one block.
const MOST_OF_ONE: f64 = 60.0;

/// What is known is forgotten with this time constant, seconds, as the step times are.
const SPAN: f64 = 1800.0;

/// Before anything is known the arrivals are Poisson, as sure as after 20 blocks.
const PRIOR: f64 = 20.0;

/// F is at most this, so that a change is always found: at 50, a doubling of 10 requests/s within two and a half minutes.
const MOST: f64 = 50.0;

/// What is known of one length of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Blocks {
    sum: f64,
    weight: f64,
    /// Arrivals and seconds of the block that is being filled.
    #[serde(skip_serializing_if = "is_default")]
    filling: (f64, f64),
    /// Rate and seconds of the block before.
    #[serde(skip_serializing_if = "is_default")]
    before: Option<(f64, f64)>,
}

impl Default for Blocks {
    fn default() -> Self {
        Self { sum: PRIOR, weight: PRIOR, filling: (0.0, 0.0), before: None }
    }
}

impl Blocks {
    fn take(&mut self, bin: &ArrivalBin, length: f64) {
        let count = bin.count();
        let filling = (self.filling.0 + count.arrivals, self.filling.1 + count.seconds);
        if filling.1 < length {
            self.filling = filling;
            return;
        }
        let (rate, seconds) = (filling.0 / filling.1, filling.1);
        self.filling = (0.0, 0.0);
        let before = self.before.replace((rate, seconds));
        let Some((earlier, earlier_seconds)) = before else { return };
        let mean = (earlier + rate) / 2.0;
        if mean > 0.0 {
            let off = rate - earlier;
            let found = off * off / (mean * (1.0 / earlier_seconds + 1.0 / seconds));
            let kept = kept(seconds, SPAN);
            self.sum = self.sum * kept + found.min(MOST_OF_ONE);
            self.weight = self.weight * kept + 1.0;
        }
    }
}

/// The dispersion of one model's arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Dispersion {
    blocks: [Blocks; 2],
    /// The end of the last stretch that was taken in.
    #[serde(skip_serializing_if = "is_default")]
    taken: Option<Moment>,
}

impl Dispersion {
    /// Takes in the stretches of `bins` that are new, in order, as far as they are complete or will not become so.
    pub fn take(&mut self, bins: &[ArrivalBin]) {
        let Some(newest) = bins.last().map(|bin| bin.end) else { return };
        let first = bins.partition_point(|bin| self.taken.is_some_and(|taken| bin.end <= taken));
        for bin in &bins[first..] {
            if !bin.is_complete() && bin.end.until(newest) < PATIENCE {
                return;
            }
            let gap = self.taken.is_some_and(|taken| taken.until(bin.end) > bin.seconds + 1.0);
            for (blocks, length) in self.blocks.iter_mut().zip(LENGTHS) {
                if gap {
                    (blocks.filling, blocks.before) = ((0.0, 0.0), None);
                }
                blocks.take(bin, length);
            }
            self.taken = Some(bin.end);
        }
    }

    /// F, 1 to 50.
    #[must_use]
    pub fn factor(&self) -> f64 {
        self.blocks.iter().map(|one| one.sum / one.weight).fold(1.0, f64::max).min(MOST)
    }

    /// What is worth keeping over a restart.
    #[must_use]
    pub fn kept(&self) -> Self {
        let kept =
            |one: Blocks| Blocks { sum: short(one.sum), weight: short(one.weight), ..Blocks::default() };
        let blocks = self.blocks.map(kept);
        Self { blocks, taken: None }
    }
}
