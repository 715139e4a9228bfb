//! What is counted: histograms as a model server has them, and the fleet's own figures as its users feel them.

use std::collections::VecDeque;
use std::time::Duration;

use super::load::Request;
use super::{Moment, span};

/// Who is told what becomes of requests.
pub(super) trait Witness {
    /// A request began to run after `wait_s` in queues.
    fn started(&mut self, wait_s: f64);
    /// `weight` requests got their first token at `at_s`, `after_s` after they arrived.
    fn first_token(&mut self, at_s: f64, after_s: f64, weight: f64);
    /// Requests in one server got further tokens.
    fn gaps(&mut self, gaps: Gaps);
    /// A request was answered to its last token.
    fn finished(&mut self, served: Served);
}

/// Gaps between tokens, of steps that follow each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Gaps {
    /// Seconds of the first step.
    pub(super) first_s: f64,
    /// By how many seconds each is longer than the one before, at least 0.
    pub(super) growth_s: f64,
    /// How many steps, at least 1.
    pub(super) steps: u64,
    /// Requests that got a token in each.
    pub(super) each: f64,
}

impl Gaps {
    /// The gap of the last step, seconds.
    pub(super) fn last_s(self) -> f64 {
        self.first_s + self.growth_s * (self.steps - 1) as f64
    }

    /// The sum over all requests and steps, seconds.
    pub(super) fn sum_s(self) -> f64 {
        self.each * self.steps as f64 * (self.first_s + self.last_s()) / 2.0
    }

    /// How many gaps there are.
    pub(super) fn count(self) -> f64 {
        self.each * self.steps as f64
    }
}

/// A request that was answered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Served {
    /// The request.
    pub(super) request: Request,
    /// When it got its first token.
    pub(super) first_token_s: f64,
    /// When it got its last.
    pub(super) finished_s: f64,
}

/// A histogram that only grows. Counts are f64: the fluid physics finishes parts of requests.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    counts: Vec<f64>,
    sum: f64,
    count: f64,
}

impl Histogram {
    pub(super) fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0.0; bounds.len()], sum: 0.0, count: 0.0 }
    }

    /// Adds `value`, `times` times.
    pub(super) fn observe(&mut self, value: f64, times: f64) {
        if let Some(bucket) = self.bounds.iter().position(|bound| value <= *bound) {
            self.counts[bucket] += times;
        }
        self.sum += value * times;
        self.count += times;
    }

    /// Adds the gaps of many steps.
    pub(super) fn observe_gaps(&mut self, gaps: Gaps) {
        let place = |value: f64| self.bounds.iter().position(|bound| value <= *bound);
        let (first, last) = (place(gaps.first_s), place(gaps.last_s()));
        if first == last {
            if let Some(bucket) = first {
                self.counts[bucket] += gaps.count();
            }
            self.sum += gaps.sum_s();
            self.count += gaps.count();
        } else {
            for step in 0..gaps.steps {
                self.observe(gaps.first_s + gaps.growth_s * step as f64, gaps.each);
            }
        }
    }

    /// Sum of all values.
    #[must_use]
    pub const fn sum(&self) -> f64 {
        self.sum
    }

    /// Number of all values.
    #[must_use]
    pub const fn count(&self) -> f64 {
        self.count
    }

    /// For each upper bound, how many values were at most that; without the infinite one, which is [`Self::count`].
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, f64)> {
        self.bounds.iter().zip(&self.counts).scan(0.0, |below, (bound, count)| {
            *below += count;
            Some((*bound, *below))
        })
    }
}

/// How long the window of first tokens is: a minute, as people read "now".
const WINDOW: Duration = Duration::from_secs(60);
/// Samples that the window holds at most: a minute at 333 requests/s, 500 kB. More drop the oldest.
const WINDOW_SAMPLES: usize = 20_000;

#[derive(Debug, Clone, Copy, PartialEq)]
struct FirstToken {
    at: Moment,
    after_s: f64,
    weight: f64,
}

/// A fleet's figures. Requests: arrived = waiting at the gateway + waiting + running + finished + failed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Stats {
    pub(super) arrived: f64,
    pub(super) finished: f64,
    pub(super) failed: f64,
    pub(super) cost: f64,
    longest_wait_s: f64,
    first_tokens: VecDeque<FirstToken>,
}

impl Stats {
    /// Requests that came.
    #[must_use]
    pub const fn arrived(&self) -> f64 {
        self.arrived
    }

    /// Requests answered to their last token.
    #[must_use]
    pub const fn finished(&self) -> f64 {
        self.finished
    }

    /// Requests lost: refused by a full queue, too large, or cut off when their pod was killed.
    #[must_use]
    pub const fn failed(&self) -> f64 {
        self.failed
    }

    /// Sum over pods of cost an hour × hours existed.
    #[must_use]
    pub const fn cost(&self) -> f64 {
        self.cost
    }

    /// Forgets waits and first tokens; totals stay.
    pub(super) fn reset(&mut self) {
        self.longest_wait_s = 0.0;
        self.first_tokens.clear();
    }

    /// The longest time a request that has begun waited, since the reset.
    pub(super) const fn longest_wait_s(&self) -> f64 {
        self.longest_wait_s
    }

    /// Drops what has left the window.
    pub(super) fn expire(&mut self, now: Moment) {
        let from = now.saturating_sub(WINDOW);
        while self.first_tokens.front().is_some_and(|sample| sample.at < from) {
            self.first_tokens.pop_front();
        }
    }

    /// The times to first token of the last minute (since the reset, if that is later) at each of `shares` (0 to 1,
    /// ascending); `None` when there was no first token.
    #[must_use]
    pub fn first_token_quantiles<const N: usize>(&self, shares: [f64; N]) -> Option<[f64; N]> {
        let mut samples: Vec<(f64, f64)> = self.first_tokens.iter().map(|s| (s.after_s, s.weight)).collect();
        samples.sort_by(|a, b| a.0.total_cmp(&b.0));
        let last = samples.last()?.0;
        let total: f64 = samples.iter().map(|sample| sample.1).sum();
        Some(shares.map(|share| {
            let mut below = 0.0;
            let reached = samples.iter().find(|sample| {
                below += sample.1;
                below >= share * total
            });
            reached.map_or(last, |sample| sample.0)
        }))
    }
}

impl Witness for Stats {
    fn started(&mut self, wait_s: f64) {
        self.longest_wait_s = self.longest_wait_s.max(wait_s);
    }

    fn first_token(&mut self, at_s: f64, after_s: f64, weight: f64) {
        if self.first_tokens.len() >= WINDOW_SAMPLES {
            self.first_tokens.pop_front();
        }
        self.first_tokens.push_back(FirstToken { at: span(at_s), after_s, weight });
    }

    fn gaps(&mut self, _: Gaps) {}

    fn finished(&mut self, _: Served) {
        self.finished += 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_the_rest_is_beyond() {
        let mut histogram = Histogram::new(&[0.1, 1.0]);
        for value in [0.05, 0.1, 0.5, 3.0] {
            histogram.observe(value, 1.0);
        }
        assert_eq!(histogram.cumulative().collect::<Vec<_>>(), [(0.1, 2.0), (1.0, 3.0)]);
        assert!((histogram.count() - 4.0).abs() < 1e-12 && (histogram.sum() - 3.65).abs() < 1e-12);
    }

    #[test]
    fn quantiles_are_those_of_the_last_minute() {
        let mut stats = Stats::default();
        assert_eq!(stats.first_token_quantiles([0.5]), None);
        stats.first_token(1.0, 99.0, 1.0);
        for i in 1..=100_u32 {
            stats.first_token(70.0, f64::from(i), 1.0);
        }
        stats.expire(Duration::from_secs(90));
        assert_eq!(stats.first_token_quantiles([0.5, 0.95, 1.0]), Some([50.0, 95.0, 100.0]));
        stats.reset();
        assert_eq!(stats.first_token_quantiles([0.5]), None);
    }
}
