//! Metrics of an engine that are derived from several signals of the same requests, and the range in which the engines of a variant
//! have shown each. How far they scatter depends on the workload and the scrape interval, so it is learned and not a constant.

use serde::{Deserialize, Serialize};

use super::sample_window::{MIN_RUNNING, Span};
use crate::snapshot::Signal;

/// Stored by position: a new one is added at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DerivedMetric {
    /// Share of the KV cache for each running request.
    UsagePerRequest,
    /// Tokens of a step for each running request.
    StepTokensPerRequest,
    /// Seconds of inter-token latency per second, for each running request.
    LatencyPerRequest,
    /// Seconds of inter-token latency per second, for each token of a step: about 1 while anything runs.
    LatencyPerStepToken,
    /// Tokens generated for each inter-token gap or first token.
    TokensPerGap,
    /// Inter-token latency, seconds.
    InterTokenLatency,
    /// Prompt tokens for each generated token.
    PromptShare,
    /// Tokens that a finished request generated.
    AnswerTokens,
    /// Share of prompt tokens that were not found in the prefix cache.
    CacheMisses,
    /// Prompt tokens computed for each request that starts.
    PromptTokens,
    /// Finished requests counted with their answers, for each counted with its prompt.
    FinishedRatio,
}

const COUNT: usize = 11;

impl DerivedMetric {
    const fn index(self) -> usize {
        // The cast of a fieldless enum is its position.
        self as usize
    }
}

/// What one engine shows now. What it does not show is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct DerivedMetrics([Option<f64>; COUNT]);

/// Minimum and maximum of each metric that engines have shown.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(from = "Vec<Option<[f64; 2]>>", into = "Vec<Option<[f64; 2]>>")]
pub(super) struct MetricRanges([Option<[f64; 2]>; COUNT]);

impl From<Vec<Option<[f64; 2]>>> for MetricRanges {
    /// Another version may know more metrics, or fewer.
    fn from(stored: Vec<Option<[f64; 2]>>) -> Self {
        let mut ranges = Self::default();
        ranges.0.iter_mut().zip(stored).for_each(|(range, stored)| *range = stored);
        ranges
    }
}

impl From<MetricRanges> for Vec<Option<[f64; 2]>> {
    fn from(ranges: MetricRanges) -> Self {
        ranges.0.to_vec()
    }
}

/// Values below this, and above its inverse, are dropped, so that bounds of ranges and their products stay finite.
const MIN_VALUE: f64 = 1e-30;

/// Share of a range's width, in orders of magnitude, that is left each time it is [`narrowed`](MetricRanges::narrowed).
const NARROWING: f64 = 0.9;

impl DerivedMetrics {
    /// The metrics of `span`; none where few requests run, because these scatter too much.
    pub(super) fn from_span(span: &Span<'_>) -> Self {
        let Some(running) = span.mean(Signal::Running).filter(|running| *running >= MIN_RUNNING / 2.0) else {
            return Self::default();
        };
        let per_request = |total: Option<f64>| total.map(|total| total / running);
        // In the order of `DerivedMetric`.
        let values = [
            per_request(span.mean(Signal::KvUsage)),
            per_request(span.tokens_per_step()),
            per_request(span.gap_seconds_per_second()),
            span.busiest_pair().map(|(_, latency)| latency),
            span.tokens_per_gap(),
            span.inter_token_latency(),
            span.prompt_share(),
            span.answer_tokens(),
            span.cache_hits().map(|hits| 1.0 - hits),
            span.prompt_tokens(),
            span.finished_counts().map(|[answers, prompts]| answers / prompts),
        ];
        Self(values.map(|value| value.filter(|value| (MIN_VALUE..=1.0 / MIN_VALUE).contains(value))))
    }

    pub(super) const fn get(&self, metric: DerivedMetric) -> Option<f64> {
        self.0[metric.index()]
    }
}

impl From<DerivedMetrics> for MetricRanges {
    fn from(metrics: DerivedMetrics) -> Self {
        Self(metrics.0.map(|value| value.map(|value| [value; 2])))
    }
}

impl MetricRanges {
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    #[must_use]
    pub(super) fn with(mut self, other: &Self) -> Self {
        for (range, other) in self.0.iter_mut().zip(other.0) {
            *range = match (*range, other) {
                (Some([min, max]), Some([other_min, other_max])) => {
                    Some([min.min(other_min), max.max(other_max)])
                }
                (range, other) => range.or(other),
            };
        }
        self
    }

    /// Each range a little narrower around its geometric middle: what was shown once is forgotten in the end.
    #[must_use]
    pub(super) fn narrowed(self) -> Self {
        Self(self.0.map(|range| {
            let [min, max] = range?;
            let middle = (min * max).sqrt();
            let half_width = (max / min).sqrt().powf(NARROWING);
            Some([middle / half_width, middle * half_width])
        }))
    }

    pub(super) fn max(&self, metric: DerivedMetric) -> Option<f64> {
        self.0[metric.index()].map(|[_, max]| max)
    }

    /// Engines have only shown values within the factor `factor` of 1.
    pub(super) fn is_near_one(&self, metric: DerivedMetric, factor: f64) -> bool {
        self.0[metric.index()].is_some_and(|[min, max]| min >= 1.0 / factor && max <= factor)
    }

    /// The natural logarithm of `value` over the middle of the range.
    pub(super) fn log_above_middle(&self, metric: DerivedMetric, value: Option<f64>) -> Option<f64> {
        let ([min, max], value) = (self.0[metric.index()]?, value?);
        Some((value / (min * max).sqrt()).ln())
    }

    /// On which side of the middle of the range `value` is, by more than the factor `factor`: 1 above, -1 below, 0 neither.
    pub(super) fn side_of_middle(
        &self,
        metric: DerivedMetric,
        value: Option<f64>,
        factor: f64,
    ) -> Option<i8> {
        let ([min, max], value) = (self.0[metric.index()]?, value?);
        let middle = (min * max).sqrt();
        Some(i8::from(value > middle * factor) - i8::from(value < middle / factor))
    }

    /// On which side of the range `value` is outside, by more than the factor `factor`: 1 above, -1 below, 0 neither; `None` when
    /// nothing is known.
    pub(super) fn side_of_range(&self, metric: DerivedMetric, value: Option<f64>, factor: f64) -> Option<i8> {
        let ([min, max], value) = (self.0[metric.index()]?, value?);
        Some(i8::from(value > max * factor) - i8::from(value < min / factor))
    }

    /// The same with a factor of at least half the width of the range, which is known less well the wider it is; 0 when nothing
    /// is known.
    pub(super) fn deviation(&self, metric: DerivedMetric, value: Option<f64>, factor: f64) -> i8 {
        let half_width = self.0[metric.index()].map_or(1.0, |[min, max]| (max / min).sqrt());
        self.side_of_range(metric, value, factor.max(half_width)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRIC: DerivedMetric = DerivedMetric::InterTokenLatency;

    fn shown(value: f64) -> MetricRanges {
        let mut metrics = DerivedMetrics::default();
        metrics.0[METRIC.index()] = Some(value);
        metrics.into()
    }

    #[test]
    fn ranges_of_a_version_with_other_metrics_are_read() {
        let stored = |count: usize| serde_json::to_string(&vec![Some([1.0, 2.0]); count]).unwrap();
        for count in [0, COUNT - 1, COUNT, COUNT + 3] {
            let ranges: MetricRanges = serde_json::from_str(&stored(count)).unwrap();
            assert_eq!(ranges.0.iter().flatten().count(), count.min(COUNT));
        }
    }

    #[test]
    fn a_metric_deviates_outside_its_range_and_the_range_is_forgotten_slowly() {
        let mut ranges = shown(2.0).with(&shown(8.0));
        let deviation = |ranges: &MetricRanges, value| ranges.deviation(METRIC, Some(value), 1.5);
        assert_eq!([0.9, 1.1, 5.0, 15.0, 17.0].map(|value| deviation(&ranges, value)), [-1, 0, 0, 0, 1]);
        let unknown = ranges.deviation(DerivedMetric::PromptShare, Some(99.0), 1.5);
        assert_eq!(unknown, 0, "nothing is known of it");
        for _ in 0..100 {
            ranges = ranges.narrowed();
        }
        assert_eq!([2.0, 4.0, 8.0].map(|value| deviation(&ranges, value)), [-1, 0, 1]);
        assert!(!ranges.is_empty() && MetricRanges::default().narrowed().is_empty());
    }
}
