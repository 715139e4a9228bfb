//! Quantiles in bounded memory: bins that grow by a constant factor, so that every quantile has the same relative error
//! whatever its size.

use super::recorder::TokenGaps;

/// The upper end of a bin divided by its lower end. A quantile is the geometric middle of its bin: within 0.25 %.
const FACTOR: f64 = 1.005;
/// Lower end of the first bin, seconds. Smaller values count in it.
const MIN_S: f64 = 1e-4;
/// Bins: ten decades, up to 11 days, in 37 kB. Larger values count in the last one.
const BINS: usize = 4617;

/// Counts of values, seconds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Quantiles {
    bins: Vec<f64>,
    count: f64,
    /// 1 / ln(factor).
    per_log: f64,
}

impl Default for Quantiles {
    fn default() -> Self {
        Self { bins: vec![0.0; BINS], count: 0.0, per_log: 1.0 / FACTOR.ln() }
    }
}

impl Quantiles {
    fn bin(&self, value: f64) -> usize {
        let bin = (value.max(MIN_S) / MIN_S).ln() * self.per_log;
        (bin as usize).min(BINS - 1)
    }

    /// Adds `value`, `times` times.
    pub(super) fn add(&mut self, value: f64, times: f64) {
        let bin = self.bin(value);
        self.bins[bin] += times;
        self.count += times;
    }

    /// Adds gaps that grow by the same amount each step: each bin gets the steps that end below its upper end.
    pub(super) fn add_gaps(&mut self, gaps: TokenGaps) {
        let first = self.bin(gaps.first_s);
        let last = self.bin(gaps.last_s());
        self.count += gaps.count();
        let mut counted = 0;
        for bin in first..last {
            let end_s = MIN_S * ((bin + 1) as f64 / self.per_log).exp();
            let below = ((end_s - gaps.first_s) / gaps.growth_s).ceil() as u64;
            let inside = below.min(gaps.steps).saturating_sub(counted);
            self.bins[bin] += inside as f64 * gaps.requests;
            counted += inside;
        }
        self.bins[last] += (gaps.steps - counted) as f64 * gaps.requests;
    }

    /// The quantile of `share`, 0 to 1, in seconds; `None` without values.
    pub(super) fn quantile(&self, share: f64) -> Option<f64> {
        if self.count <= 0.0 {
            return None;
        }
        let mut below = 0.0;
        let reached = self.bins.iter().position(|count| {
            below += count;
            below > 0.0 && below >= share * self.count
        });
        let bin = reached.unwrap_or(BINS - 1);
        Some(MIN_S * ((bin as f64 + 0.5) / self.per_log).exp())
    }

    /// Removes all values.
    pub(super) fn clear(&mut self) {
        self.bins.fill(0.0);
        self.count = 0.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_half_a_bin_over_ten_decades() {
        let mut quantiles = Quantiles::default();
        assert_eq!(quantiles.quantile(0.5), None);
        for i in 1..=10_000_u32 {
            quantiles.add(f64::from(i) * 1e-3, 1.0);
        }
        for (share, exact) in [(0.5, 5.0), (0.95, 9.5), (0.99, 9.9), (1.0, 10.0)] {
            let found = quantiles.quantile(share).unwrap();
            assert!((found / exact - 1.0).abs() < 0.003, "{share}: {found}");
        }
        quantiles.clear();
        quantiles.add(0.0, 1.0);
        quantiles.add(1e9, 1.0);
        assert!(quantiles.quantile(0.5).unwrap() < 2e-4 && quantiles.quantile(1.0).unwrap() > 9e5);
    }

    #[test]
    fn gaps_of_many_steps_are_counted_as_if_one_by_one() {
        let gaps = TokenGaps { first_s: 0.0071, growth_s: 1.3e-5, steps: 733, requests: 3.0 };
        let mut at_once = Quantiles::default();
        let mut singly = Quantiles::default();
        at_once.add_gaps(gaps);
        (0..gaps.steps)
            .for_each(|step| singly.add(gaps.first_s + gaps.growth_s * step as f64, gaps.requests));
        assert!((at_once.count - singly.count).abs() < 1e-9);
        let apart: f64 = at_once.bins.iter().zip(&singly.bins).map(|(a, b)| (a - b).abs()).sum();
        assert!(apart <= 6.0, "at most one step on the other side of a border: {apart}");
    }
}
