//! Figures of an engine that follow from the same requests in several of its signals, and the range in which the engines of a
//! variant have shown each: how far they scatter is the workload's and the scrape interval's, and no constant.

use serde::{Deserialize, Serialize};

use super::sample_window::{MANY_RUNNING, Span};
use crate::snapshot::Signal;

/// One signal by another: the name says which. Stored by place: a new one comes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DerivedMetric {
    /// Share of the KV cache that a running request holds.
    KvARequest,
    /// Tokens that a step generates for each running request.
    StepARequest,
    /// Seconds between tokens that are counted in a second, for each running request.
    SecondsARequest,
    /// Seconds between tokens that are counted in a second, for each token of a step: about 1 while anything runs.
    SecondsAStep,
    /// Tokens generated for each gap and first token.
    TokensAGap,
    /// Seconds between two tokens.
    Gap,
    /// Prompt tokens for each that is generated.
    Mix,
    /// Tokens that a finished request generated.
    Answer,
    /// Share of prompt tokens that were not found in the prefix cache.
    Missed,
    /// Prompt tokens that are computed for each request that begins.
    Prompt,
    /// Finished requests that are counted with their answers, for each that is counted with its prompt.
    Finished,
}

const COUNT: usize = 11;

/// What one engine shows lately. What it does not is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct DerivedMetrics([Option<f64>; COUNT]);

/// The least and the greatest of each that engines have shown.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(from = "Vec<Option<[f64; 2]>>", into = "Vec<Option<[f64; 2]>>")]
pub(super) struct MetricRanges([Option<[f64; 2]>; COUNT]);

impl From<Vec<Option<[f64; 2]>>> for MetricRanges {
    /// Another version may know more figures, or fewer.
    fn from(stored: Vec<Option<[f64; 2]>>) -> Self {
        let mut own = Self::default();
        own.0.iter_mut().zip(stored).for_each(|(own, stored)| *own = stored);
        own
    }
}

impl From<MetricRanges> for Vec<Option<[f64; 2]>> {
    fn from(own: MetricRanges) -> Self {
        own.0.to_vec()
    }
}

/// Below this, and above its inverse, a figure is none: bounds of a range and their products stay numbers.
const LEAST: f64 = 1e-30;

/// What a range keeps of its width, in orders of magnitude, each time that it is [`narrowed`](Ranges::narrowed).
const KEPT: f64 = 0.9;

impl DerivedMetrics {
    /// What `span` shows. Few running requests say little of any.
    pub(super) fn of(span: &Span<'_>) -> Self {
        let Some(running) = span.mean(Signal::Running).filter(|running| *running >= MANY_RUNNING / 2.0)
        else {
            return Self::default();
        };
        let (step, seconds) = (span.tokens_a_step(), span.gap_seconds_a_second());
        let a_request = |all: Option<f64>| all.map(|all| all / running);
        let all = [
            a_request(span.mean(Signal::KvUsage)),
            a_request(step),
            a_request(seconds),
            span.busiest().map(|(_, seconds)| seconds),
            span.tokens_a_gap(),
            span.gap(),
            span.mix(),
            span.answer(),
            span.hits().map(|hits| 1.0 - hits),
            span.prompt(),
            span.finished().map(|[answers, prompts]| answers / prompts),
        ];
        Self(all.map(|figure| figure.filter(|figure| (LEAST..=1.0 / LEAST).contains(figure))))
    }
}

impl From<DerivedMetrics> for MetricRanges {
    fn from(shown: DerivedMetrics) -> Self {
        Self(shown.0.map(|figure| figure.map(|figure| [figure; 2])))
    }
}

impl MetricRanges {
    /// Nothing was shown.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// Everything that is in either.
    #[must_use]
    pub(super) fn with(mut self, other: &Self) -> Self {
        for (own, other) in self.0.iter_mut().zip(other.0) {
            *own = match (*own, other) {
                (Some([least, most]), Some([low, high])) => Some([least.min(low), most.max(high)]),
                (own, other) => own.or(other),
            };
        }
        self
    }

    /// A little narrower: what was shown once is forgotten in the end.
    #[must_use]
    pub(super) fn narrowed(self) -> Self {
        Self(self.0.map(|range| {
            let [least, most] = range?;
            let (middle, width) = ((least * most).sqrt(), (most / least).sqrt().powf(KEPT));
            Some([middle / width, middle * width])
        }))
    }

    /// On which side of the middle of what engines have shown `shown` is, by more than the factor `by`.
    pub(super) fn leans(&self, figure: DerivedMetric, shown: &DerivedMetrics, by: f64) -> Option<i8> {
        self.leans_to(figure, shown.0[figure as usize], by)
    }

    /// The same of what was measured otherwise.
    pub(super) fn leans_to(&self, figure: DerivedMetric, shown: Option<f64>, by: f64) -> Option<i8> {
        let ([least, most], shown) = (self.0[figure as usize]?, shown?);
        let middle = (least * most).sqrt();
        Some(i8::from(shown > middle * by) - i8::from(shown < middle / by))
    }

    /// The orders of magnitude, to base e, by which `shown` is above the middle of what engines have shown.
    pub(super) fn above_middle(&self, figure: DerivedMetric, shown: &DerivedMetrics) -> Option<f64> {
        let ([least, most], shown) = (self.0[figure as usize]?, shown.0[figure as usize]?);
        Some((shown / (least * most).sqrt()).ln())
    }

    /// Engines have shown nothing that is further from 1 than by the factor `by`.
    pub(super) fn are_within(&self, figure: DerivedMetric, by: f64) -> bool {
        self.0[figure as usize].is_some_and(|[least, most]| least >= 1.0 / by && most <= by)
    }

    /// The greatest that engines have shown.
    pub(super) fn most(&self, figure: DerivedMetric) -> Option<f64> {
        self.0[figure as usize].map(|[_, most]| most)
    }

    /// How far `shown` is from what engines have shown: 1 above the greatest by more than the factor `by`, -1 below the least,
    /// 0 where it is not; `None` where nothing is known.
    pub(super) fn differs(&self, figure: DerivedMetric, shown: &DerivedMetrics, by: f64) -> Option<i8> {
        self.differs_by(figure, shown.0[figure as usize], by)
    }

    /// The same of what was measured otherwise.
    pub(super) fn differs_by(&self, figure: DerivedMetric, shown: Option<f64>, by: f64) -> Option<i8> {
        let ([least, most], shown) = (self.0[figure as usize]?, shown?);
        Some(i8::from(shown > most * by) - i8::from(shown < least / by))
    }

    /// The same, where a wide range is known less well, and so has to be left further; 0 where nothing is known.
    pub(super) fn off(&self, figure: DerivedMetric, shown: &DerivedMetrics, by: f64) -> i8 {
        let spread = self.0[figure as usize].map_or(1.0, |[least, most]| (most / least).sqrt());
        self.differs(figure, shown, by.max(spread)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(gap: f64) -> DerivedMetrics {
        let mut shown = DerivedMetrics::default();
        shown.0[DerivedMetric::Gap as usize] = Some(gap);
        shown
    }

    #[test]
    fn what_a_version_with_other_figures_has_stored_is_read() {
        let stored = |count: usize| serde_json::to_string(&vec![Some([1.0, 2.0]); count]).unwrap();
        for count in [0, COUNT - 1, COUNT, COUNT + 3] {
            let read_engine: MetricRanges = serde_json::from_str(&stored(count)).unwrap();
            assert_eq!(read_engine.0.iter().flatten().count(), count.min(COUNT));
        }
    }

    #[test]
    fn a_figure_is_off_beyond_all_that_was_shown_and_that_is_forgotten_slowly() {
        let mut ranges = MetricRanges::from(shown(2.0)).with(&shown(8.0).into());
        let off = |ranges: &MetricRanges, gap| ranges.off(DerivedMetric::Gap, &shown(gap), 1.5);
        assert_eq!([0.9, 1.1, 5.0, 15.0, 17.0].map(|gap| off(&ranges, gap)), [-1, 0, 0, 0, 1]);
        assert_eq!(ranges.off(DerivedMetric::Mix, &shown(99.0), 1.5), 0, "nothing is known of it");
        for _ in 0..100 {
            ranges = ranges.narrowed();
        }
        assert_eq!([2.0, 4.0, 8.0].map(|gap| off(&ranges, gap)), [-1, 0, 1]);
        assert!(!ranges.is_empty() && MetricRanges::default().narrowed().is_empty());
    }
}
