//! How a [`SignalHistory`] follows from what an evaluation measured.

use std::sync::Arc;

use jiff::Timestamp;
use smol_str::SmolStr;

use super::coverage::VariantCoverage;
use super::derived_metrics::MetricRanges;
use super::load::EngineLoad;
use super::sample_window::Span;
use super::signal_history::{Baseline, BaselineHistory, Contradictions, SignalHistory, engine_key};
use crate::snapshot::{Signal, SignalSet, VariantState};
use crate::units::Seconds;

/// A baseline is at least this old before an estimate uses it: a contradiction shows within a minute and two scrapes of 15 s, so
/// that until then it may have been computed from signals that were already wrong.
const MIN_BASELINE_AGE: Seconds = Seconds::whole(120);

/// A baseline that engines contradict for this long is dropped: the workload has changed, not the signals.
const MAX_BASELINE_CONFLICT: Seconds = Seconds::whole(1200);

impl SignalHistory {
    /// Some signal of `reads` is distrusted on an engine of `variant` and was not in `before`. Engines of pods that became ready at
    /// `young_since` or later do not count: they bring to light what older ones show too.
    pub(crate) fn has_new_contradiction(
        before: Option<&Self>,
        variant: &VariantState,
        coverage: &VariantCoverage<'_>,
        reads: SignalSet,
        young_since: Option<Timestamp>,
        now: Timestamp,
    ) -> bool {
        let known = |engine: &SmolStr| {
            let known = before.and_then(|before| before.contradictions.get(engine));
            known.map_or(SignalSet::NONE, |known| known.distrusted(now))
        };
        let is_young = |engine: &SmolStr| {
            let is_young = |at| young_since.is_some_and(|since| at >= since);
            let mut pods = variant.pods.iter().filter(|pod| is_young(pod.ready_or_created()));
            pods.any(|pod| pod.engines.iter().any(|(own, _)| engine_key(pod, own) == *engine))
        };
        let is_new = |(engine, contradictions): &&(SmolStr, Contradictions)| {
            !contradictions.distrusted(now).without(known(engine)).and(reads).is_empty()
        };
        coverage.contradictions.iter().filter(is_new).any(|(engine, _)| !is_young(engine))
    }

    /// The history after an evaluation in which an analyzer that reads `reads` measured `variants`, all that the model has.
    #[must_use]
    pub(crate) fn after<'s>(
        &self,
        variants: impl Iterator<Item = (&'s VariantState, &'s VariantCoverage<'s>)> + Clone,
        reads: SignalSet,
        now: Timestamp,
    ) -> Self {
        let mut after = Self::default();
        for (state, coverage) in variants {
            for (engine, contradictions) in &coverage.contradictions {
                after.contradictions.insert(engine.clone(), *contradictions);
            }
            let name = &state.variant.id.name;
            let before = self.baselines.get(name);
            if let Some(baselines) = BaselineHistory::after(before, coverage, reads, now) {
                after.baselines.insert(name.clone(), baselines);
            }
        }
        after
    }
}

impl BaselineHistory {
    fn after(
        before: Option<&Self>,
        coverage: &VariantCoverage<'_>,
        reads: SignalSet,
        now: Timestamp,
    ) -> Option<Self> {
        let known = before.cloned().unwrap_or_default();
        if !coverage.contradictions.is_empty() {
            let settled =
                known.settled.filter(|settled| Seconds::between(settled.0, now) < MAX_BASELINE_CONFLICT);
            return settled.is_some().then(|| Self { settled, ..Self::default() });
        }
        if coverage.loads.is_empty() || coverage.unmeasured() > 0 {
            return before.cloned();
        }
        if let Some((at, mut next)) =
            known.next.filter(|(at, _)| Seconds::between(*at, now) < MIN_BASELINE_AGE)
        {
            next.ranges = next.ranges.with(&coverage.ranges);
            return Some(Self { next: Some((at, next)), ..known });
        }
        let mut next = Baseline::from_loads(&coverage.loads, reads);
        next.ranges = coverage.ranges;
        // Older ranges are narrowed each time, so that what was shown once is forgotten in the end.
        let settled = known.waiting.map(|waiting| {
            let (at, waiting) = *waiting;
            let older = known.settled.as_ref().map(|settled| settled.1.ranges.narrowed());
            let ranges = older.map_or(waiting.ranges, |older| older.with(&waiting.ranges));
            Arc::new((at, Baseline { ranges, ..waiting }))
        });
        let settled = settled.or(known.settled);
        // Without requests nothing is measured: the earlier values stay.
        let earlier = known.next.as_ref().or(settled.as_deref());
        let newest = earlier.map_or(next, |(_, earlier)| next.or(*earlier));
        Some(Self { settled, waiting: known.next.map(Arc::new), next: Some((now, newest)) })
    }
}

impl Baseline {
    fn from_loads(loads: &[EngineLoad<'_, ()>], reads: SignalSet) -> Self {
        let mean = |value: &dyn Fn(&EngineLoad<'_, ()>) -> Option<f64>| {
            let (mut sum, mut count) = (0.0, 0.0);
            for value in loads.iter().filter_map(value) {
                sum += value;
                count += 1.0;
            }
            (count > 0.0).then(|| sum / count)
        };
        let ratio = |sum: Signal, count: Signal| {
            let is_read = reads.contains(SignalSet::new(&[sum, count]));
            if is_read { mean(&|load| load.size(sum, count)) } else { None }
        };
        let newest =
            |signal: Signal| if reads.has(signal) { mean(&|load| load.newest(signal)) } else { None };
        let gauge = |signal: Signal| mean(&|load| Span::new(&load.peak_window(), reads).mean(signal));
        let running = gauge(Signal::Running).filter(|running| *running >= 1.0);
        Self {
            prompt: ratio(Signal::RequestPromptTokensSum, Signal::RequestPromptTokensCount)
                .or_else(|| ratio(Signal::PromptTokens, Signal::TimeToFirstTokenCount)),
            generated: ratio(Signal::RequestGenerationTokensSum, Signal::RequestGenerationTokensCount),
            hits: ratio(Signal::PrefixCacheHits, Signal::PrefixCacheQueries),
            capacity: newest(Signal::KvCapacity),
            usage_per_request: gauge(Signal::KvUsage).zip(running).map(|(usage, running)| usage / running),
            ranges: MetricRanges::default(),
        }
    }

    /// What was not measured is taken from `earlier`; ranges are its own.
    fn or(self, earlier: Self) -> Self {
        Self {
            prompt: self.prompt.or(earlier.prompt),
            generated: self.generated.or(earlier.generated),
            hits: self.hits.or(earlier.hits),
            capacity: self.capacity.or(earlier.capacity),
            usage_per_request: self.usage_per_request.or(earlier.usage_per_request),
            ranges: self.ranges,
        }
    }
}
