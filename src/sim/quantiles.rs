//! Quantiles in bounded memory: counts in bins that grow by a factor, so that every quantile is known to within half a
//! bin whatever its size.

use super::stats::Gaps;

/// Each bin reaches to this many times where it begins: a quantile is within 0.25 %.
const FACTOR: f64 = 1.005;
/// Where the first bin begins: a tenth of a millisecond; what is smaller is in it.
const LOWEST_S: f64 = 1e-4;
/// Bins: ten decades, up to 11 days; what is larger is in the last. 37 kB.
const BINS: usize = 4617;

/// Counted values.
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
    fn place(&self, value: f64) -> usize {
        let bin = (value.max(LOWEST_S) / LOWEST_S).ln() * self.per_log;
        (bin as usize).min(BINS - 1)
    }

    /// Adds `value`, `times` times.
    pub(super) fn add(&mut self, value: f64, times: f64) {
        let place = self.place(value);
        self.bins[place] += times;
        self.count += times;
    }

    /// Adds gaps that rise evenly: each bin gets those that lie in it.
    pub(super) fn add_gaps(&mut self, gaps: Gaps) {
        let (first, last) = (self.place(gaps.first_s), self.place(gaps.last_s()));
        self.count += gaps.count();
        let mut given = 0;
        for place in first..last {
            let end_s = LOWEST_S * ((place + 1) as f64 / self.per_log).exp();
            let below = ((end_s - gaps.first_s) / gaps.growth_s).ceil() as u64;
            let here = below.min(gaps.steps).saturating_sub(given);
            self.bins[place] += here as f64 * gaps.each;
            given += here;
        }
        self.bins[last] += (gaps.steps - given) as f64 * gaps.each;
    }

    /// The value that `share` (0 to 1) of all are at most; `None` without values.
    pub(super) fn at(&self, share: f64) -> Option<f64> {
        if self.count <= 0.0 {
            return None;
        }
        let mut below = 0.0;
        let reached = self.bins.iter().position(|count| {
            below += count;
            below > 0.0 && below >= share * self.count
        });
        let place = reached.unwrap_or(BINS - 1);
        Some(LOWEST_S * ((place as f64 + 0.5) / self.per_log).exp())
    }

    /// Forgets everything.
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
        assert_eq!(quantiles.at(0.5), None);
        for i in 1..=10_000_u32 {
            quantiles.add(f64::from(i) * 1e-3, 1.0);
        }
        for (share, exact) in [(0.5, 5.0), (0.95, 9.5), (0.99, 9.9), (1.0, 10.0)] {
            let found = quantiles.at(share).unwrap();
            assert!((found / exact - 1.0).abs() < 0.003, "{share}: {found}");
        }
        quantiles.clear();
        quantiles.add(0.0, 1.0);
        quantiles.add(1e9, 1.0);
        assert!(quantiles.at(0.5).unwrap() < 2e-4 && quantiles.at(1.0).unwrap() > 9e5);
    }

    #[test]
    fn gaps_of_many_steps_are_counted_as_if_one_by_one() {
        let gaps = Gaps { first_s: 0.0071, growth_s: 1.3e-5, steps: 733, each: 3.0 };
        let (mut at_once, mut singly) = (Quantiles::default(), Quantiles::default());
        at_once.add_gaps(gaps);
        (0..gaps.steps).for_each(|step| singly.add(gaps.first_s + gaps.growth_s * step as f64, gaps.each));
        assert!((at_once.count - singly.count).abs() < 1e-9);
        let apart: f64 = at_once.bins.iter().zip(&singly.bins).map(|(a, b)| (a - b).abs()).sum();
        assert!(apart <= 6.0, "at most one step on the other side of a border: {apart}");
    }
}
