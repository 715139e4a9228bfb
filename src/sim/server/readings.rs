//! What can be read from a model server: the counters, gauges and histograms that vLLM exports.

use crate::recorder::TokenGaps;

/// Upper bounds of the time-to-first-token histogram, seconds.
const FIRST_TOKEN_BOUNDS: &[f64] = &[0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0];
/// Upper bounds of the inter-token-latency histogram, seconds.
const INTER_TOKEN_BOUNDS: &[f64] = &[0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.5, 1.0];
/// Upper bounds of the token-count histograms.
const TOKEN_BOUNDS: &[f64] =
    &[50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 50_000.0];

/// What a model server reports about itself. Counters only grow; they are f64 like all Prometheus values.
#[derive(Debug, Clone, PartialEq)]
pub struct Readings {
    /// Tokens that the KV cache holds: blocks × block size.
    pub kv_tokens: u64,
    /// Tokens of one block.
    pub block_size: u32,
    /// Share of the KV cache in use, 0 to 1.
    pub kv_usage: f64,
    /// Requests waiting.
    pub waiting: f64,
    /// Requests running.
    pub running: f64,
    /// Prompt tokens computed for the first time (counted with the first token, as vLLM does).
    pub prompt_tokens: f64,
    /// Tokens generated.
    pub generation_tokens: f64,
    /// Prompt tokens found in the prefix cache.
    pub prefix_hits: f64,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_queries: f64,
    /// Engine steps: vLLM's `iteration_tokens_total_count`.
    pub steps: f64,
    /// Sequences that gave up their memory and started again.
    pub preemptions: f64,
    /// Requests refused because it held as many as it may: vLLM's `admission_rejections`.
    pub refused: f64,
    /// Seconds from arrival to the first token.
    pub first_token: Histogram,
    /// Seconds from one token of a request to its next.
    pub inter_token: Histogram,
    /// Prompt tokens of finished requests.
    pub request_prompt: Histogram,
    /// Generated tokens of finished requests.
    pub request_generation: Histogram,
}

impl Readings {
    pub(crate) fn new(kv_tokens: u64, block_size: u32) -> Self {
        Self {
            kv_tokens,
            block_size,
            kv_usage: 0.0,
            waiting: 0.0,
            running: 0.0,
            prompt_tokens: 0.0,
            generation_tokens: 0.0,
            prefix_hits: 0.0,
            prefix_queries: 0.0,
            steps: 0.0,
            preemptions: 0.0,
            refused: 0.0,
            first_token: Histogram::new(FIRST_TOKEN_BOUNDS),
            inter_token: Histogram::new(INTER_TOKEN_BOUNDS),
            request_prompt: Histogram::new(TOKEN_BOUNDS),
            request_generation: Histogram::new(TOKEN_BOUNDS),
        }
    }

    /// Requests finished: vLLM's `request_success`.
    #[must_use]
    pub const fn finished(&self) -> f64 {
        self.request_generation.count()
    }
}

/// A cumulative histogram, as Prometheus has them.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    counts: Vec<f64>,
    sum: f64,
    count: f64,
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0.0; bounds.len()], sum: 0.0, count: 0.0 }
    }

    fn bucket(&self, value: f64) -> Option<usize> {
        self.bounds.iter().position(|bound| value <= *bound)
    }

    /// Adds `value`, `times` times.
    pub(crate) fn observe(&mut self, value: f64, times: f64) {
        if let Some(bucket) = self.bucket(value) {
            self.counts[bucket] += times;
        }
        self.sum += value * times;
        self.count += times;
    }

    /// Adds the gaps of many steps.
    pub(crate) fn observe_gaps(&mut self, gaps: TokenGaps) {
        let first = self.bucket(gaps.first_s);
        if first == self.bucket(gaps.last_s()) {
            if let Some(bucket) = first {
                self.counts[bucket] += gaps.count();
            }
            self.sum += gaps.sum_s();
            self.count += gaps.count();
        } else {
            for step in 0..gaps.steps {
                self.observe(gaps.first_s + gaps.growth_s * step as f64, gaps.requests);
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

    /// For each upper bound, how many values were at most that. The infinite bound, which is [`Self::count`], is left out.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, f64)> {
        self.bounds.iter().zip(&self.counts).scan(0.0, |below, (bound, count)| {
            *below += count;
            Some((*bound, *below))
        })
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
}
