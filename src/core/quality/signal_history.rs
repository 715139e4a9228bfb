//! What is remembered about the signals themselves: which signals of an engine were contradicted recently, and what the engines of
//! a variant showed while everything was plausible (the baseline). An engine that lacks a signal is estimated from the
//! baseline, because request sizes change slowly, and from other signals that follow from the same requests.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use smol_str::{SmolStr, format_smolstr};

use super::derived_metrics::MetricRanges;
use crate::name_map::NameMap;
use crate::snapshot::{Phase, Pod, Rows, Signal, SignalSet, VariantState};
use crate::units::Seconds;

#[cfg(test)]
mod honest;
#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;

/// A contradicted signal is distrusted for this long after the last scrape that contradicted it: the minute that rates and peaks
/// cover, and one scrape of 15 s.
const DISTRUST_WINDOW: Seconds = Seconds::whole(75);

/// Samples up to a contradiction are skipped for this long: no window of an analyzer reaches further back.
const CONTRADICTION_RETENTION: Seconds = Seconds::whole(300);

/// Samples this soon after the last contradiction are skipped too: the signal became right somewhere between two scrapes.
const RECOVERY_DELAY: SignedDuration = SignedDuration::from_secs(30);

/// Contradictions kept for each engine. Of more, the oldest two are merged into one that lasts as long as the newer.
const MAX_CONTRADICTIONS: usize = 3;

/// An engine whose gauges and counters are all distrusted has a broken exporter, which says nothing about other engines.
const EXPORTER_SIGNALS: SignalSet =
    SignalSet::new(&[Signal::Waiting, Signal::Running, Signal::GenerationTokens]);

/// What is remembered about the signals of one model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SignalHistory {
    /// By engine: the pod's name, followed by the engine's where the pod has several.
    #[serde(rename = "doubts", skip_serializing_if = "NameMap::is_empty")]
    pub(super) contradictions: NameMap<Contradictions>,
    #[serde(rename = "believed", skip_serializing_if = "NameMap::is_empty")]
    pub(super) baselines: NameMap<BaselineHistory>,
}

/// Recently contradicted signals of one engine, each set with the last scrape that contradicted it; the newest last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Contradictions([Option<(SignalSet, Timestamp)>; MAX_CONTRADICTIONS]);

/// Baselines of one variant, by age. A contradiction shows only some time after it began, so a new baseline is used late. Those that
/// change no more are shared by the copies of a memory.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct BaselineHistory {
    /// Old enough to be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) settled: Option<Arc<(Timestamp, Baseline)>>,
    /// Complete, and not old enough yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) waiting: Option<Arc<(Timestamp, Baseline)>>,
    /// Being collected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<(Timestamp, Baseline)>,
}

/// Means over the engines of a variant. What was not measured is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Baseline {
    /// Prompt of a finished request, or else of one that began, tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt: Option<f64>,
    /// Generation of a finished request, tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) generated: Option<f64>,
    /// Share of prompt tokens found in the prefix cache, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hits: Option<f64>,
    /// Size of the KV cache, tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) capacity: Option<f64>,
    /// Share of the KV cache that one running request holds.
    #[serde(rename = "kv_a_request", skip_serializing_if = "Option::is_none")]
    pub(super) usage_per_request: Option<f64>,
    /// Ranges of the derived metrics. Not called `ranges` on the wire: an earlier version reads exactly nine under that name.
    #[serde(rename = "shown", skip_serializing_if = "MetricRanges::is_empty")]
    pub(super) ranges: MetricRanges,
}

/// How to read an engine some of whose signals are missing or distrusted, or were until recently.
#[derive(Debug, Clone, Copy)]
pub(super) struct Substitution<'a> {
    /// Missing or distrusted now: to be estimated.
    pub(super) lacking: SignalSet,
    /// Contradicted recently: to be read from after that scrape on.
    pub(super) contradictions: Option<Contradictions>,
    pub(super) baseline: Option<&'a Baseline>,
    /// Requests that the engine runs at once at most: the configured number, or else an estimate.
    pub(super) max_sequences: Option<f64>,
    /// `max_sequences` is an argument of the engine.
    pub(super) is_max_configured: bool,
}

impl SignalHistory {
    /// Nothing is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.contradictions.is_empty() && self.baselines.is_empty()
    }

    /// Something is dated after `latest`: the clock was set back, so no age can be computed.
    pub(crate) fn is_after(&self, latest: Timestamp) -> bool {
        let mut contradicted = self.contradictions.values().filter_map(Contradictions::newest);
        let baselines = self.baselines.values().flat_map(|known| {
            [known.settled.as_deref(), known.waiting.as_deref(), known.next.as_ref()].into_iter().flatten()
        });
        contradicted.any(|at| at > latest) || baselines.into_iter().any(|(at, _)| *at > latest)
    }

    /// Some signal of some engine was contradicted recently.
    #[must_use]
    pub fn has_contradictions(&self) -> bool {
        !self.contradictions.is_empty()
    }

    pub(super) fn contradictions_of(&self, engine: &str, now: Timestamp) -> Option<Contradictions> {
        let recent = self.contradictions.get(engine)?.recent(now);
        (recent != Contradictions::default()).then_some(recent)
    }

    /// The signals distrusted on at least half, and at least two, of the engines of `variant` that were ready before `before`;
    /// each with the last scrape that contradicted it on one of them.
    pub(super) fn majority_contradictions(
        &self,
        variant: &VariantState,
        before: Timestamp,
        now: Timestamp,
    ) -> Option<Contradictions> {
        let ready = variant.pods.iter().filter(|pod| pod.phase == Phase::Ready);
        let engines: Vec<Contradictions> = ready
            .filter(|pod| pod.ready_or_created() < before)
            .flat_map(|pod| pod.engines.iter().map(|(engine, _)| engine_key(pod, engine)))
            .map(|engine| self.contradictions.get(&engine).copied().unwrap_or_default())
            .map(|engine| {
                let is_exporter_broken = engine.distrusted(now).contains(EXPORTER_SIGNALS);
                if is_exporter_broken { Contradictions::default() } else { engine }
            })
            .collect();
        let is_majority = |signal: &Signal| {
            let distrusting = engines.iter().filter(|engine| engine.distrusted(now).has(*signal)).count();
            distrusting >= 2 && 2 * distrusting >= engines.len()
        };
        let newest = |signal: Signal| {
            let signal = SignalSet::new(&[signal]);
            Some((engines.iter().filter_map(|engine| engine.last_of(signal)).max()?, signal))
        };
        let mut common: Vec<_> = Signal::ALL.into_iter().filter(is_majority).filter_map(newest).collect();
        common.sort_by_key(|(at, _)| *at);
        let merged = common
            .iter()
            .fold(Contradictions::default(), |merged, (at, signal)| merged.with_simultaneous(*signal, *at));
        (!common.is_empty()).then_some(merged)
    }

    /// The baseline of `variant`, and when it was completed.
    pub(super) fn baseline(&self, variant: &str) -> Option<(Timestamp, &Baseline)> {
        self.baselines.get(variant)?.settled.as_deref().map(|(at, baseline)| (*at, baseline))
    }
}

impl Contradictions {
    fn iter(&self) -> impl Iterator<Item = (SignalSet, Timestamp)> {
        self.0.iter().copied().flatten()
    }

    fn from_entries(entries: impl IntoIterator<Item = (SignalSet, Timestamp)>) -> Self {
        let mut entries: Vec<_> = entries.into_iter().filter(|(signals, _)| !signals.is_empty()).collect();
        while entries.len() > MAX_CONTRADICTIONS {
            let (oldest, _) = entries.remove(0);
            entries[0].0 = entries[0].0.with(oldest);
        }
        let mut stored = Self::default();
        stored.0.iter_mut().zip(entries).for_each(|(slot, entry)| *slot = Some(entry));
        stored
    }

    /// Without those that no window reaches back to.
    fn recent(&self, now: Timestamp) -> Self {
        let is_recent =
            |(_, at): &(SignalSet, Timestamp)| Seconds::between(*at, now) < CONTRADICTION_RETENTION;
        Self::from_entries(self.iter().filter(is_recent))
    }

    /// With `signals` contradicted `at` a scrape that is not earlier than any before.
    pub(super) fn with(&self, signals: SignalSet, at: Timestamp) -> Self {
        let earlier = self.iter().map(|(other, at)| (other.without(signals), at));
        Self::from_entries(earlier.chain([(signals, at)]))
    }

    /// With `signals`, and all that was contradicted by the same scrape, contradicted `at` it.
    fn with_simultaneous(&self, signals: SignalSet, at: Timestamp) -> Self {
        let same_scrape = self.iter().filter(|(_, other)| *other == at);
        self.with(same_scrape.fold(signals, |all, (other, _)| all.with(other)), at)
    }

    /// With the entries of `other` that are later.
    pub(super) fn merge_later(&self, other: &Self) -> Self {
        let is_later =
            |(signals, at): &(SignalSet, Timestamp)| self.last_of(*signals).is_none_or(|own| own < *at);
        other.iter().filter(is_later).fold(*self, |merged, (signals, at)| merged.with(signals, at))
    }

    pub(super) fn distrusted(&self, now: Timestamp) -> SignalSet {
        let recent = self.iter().filter(|(_, at)| Seconds::between(*at, now) < DISTRUST_WINDOW);
        recent.fold(SignalSet::NONE, |all, (signals, _)| all.with(signals))
    }

    pub(super) fn newest(&self) -> Option<Timestamp> {
        self.iter().map(|(_, at)| at).max()
    }

    /// The last scrape that contradicted one of `signals`.
    fn last_of(&self, signals: SignalSet) -> Option<Timestamp> {
        self.iter().filter(|(own, _)| !own.and(signals).is_empty()).map(|(_, at)| at).max()
    }
}

impl<'a> Substitution<'a> {
    /// The scrapes in which `signals` may be read.
    pub(super) fn readable_rows(&self, rows: Rows<'a>, signals: SignalSet) -> Rows<'a> {
        let last = self.contradictions.and_then(|contradictions| contradictions.last_of(signals));
        let from = last.and_then(|last| last.checked_add(RECOVERY_DELAY).ok());
        from.map_or(rows, |from| rows.since(from))
    }

    /// Whatever of `needed` is lacking can be estimated from the baseline and from signals that are not lacking.
    pub(super) fn is_enough(&self, needed: SignalSet) -> bool {
        use Signal::{
            KvCapacity, KvUsage, RequestGenerationTokensCount, RequestGenerationTokensSum,
            RequestPromptTokensCount, RequestPromptTokensSum, Running, TimeToFirstTokenCount, Waiting,
        };
        let lacking = self.lacking.and(needed);
        let lacks = |signals: &[Signal]| !lacking.and(SignalSet::new(signals)).is_empty();
        let shows = |signal: Signal| !self.lacking.has(signal);
        let baseline = self.baseline.copied().unwrap_or_default();
        // Usage and running requests each follow from the other.
        let is_usage_known = baseline.usage_per_request.is_some_and(|usage| usage > 0.0);
        let prompt = !lacks(&[RequestPromptTokensSum, RequestPromptTokensCount]) || baseline.prompt.is_some();
        let generated = !lacks(&[RequestGenerationTokensSum, RequestGenerationTokensCount])
            || baseline.generated.is_some();
        let capacity = !lacks(&[KvCapacity]) || baseline.capacity.is_some();
        let usage = !lacks(&[KvUsage]) || is_usage_known && shows(Running);
        let running = !lacks(&[Running]) || is_usage_known && shows(KvUsage);
        let waiting = !lacks(&[Waiting]) || self.max_sequences.is_some() && shows(Running);
        // Requests that begin are about as many as finish.
        let starts = [TimeToFirstTokenCount, RequestGenerationTokensCount, RequestPromptTokensCount];
        let starts = !needed.has(TimeToFirstTokenCount)
            || starts.into_iter().any(|signal| needed.has(signal) && shows(signal));
        prompt && generated && capacity && usage && running && waiting && starts
    }
}

/// The name of an engine of `pod` among those of its model.
pub(crate) fn engine_key(pod: &Pod, engine: &SmolStr) -> SmolStr {
    let is_one_of_several = pod.engines.len() > 1;
    if is_one_of_several { format_smolstr!("{}:{engine}", pod.name) } else { pod.name.clone() }
}
