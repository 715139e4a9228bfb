//! What is remembered of the evidence itself: which signals of an engine were contradicted lately, and what a variant's engines
//! did when everything they showed could be true. With that, an engine that lacks a signal is estimated: by sizes that change
//! slowly, and by the other signals that follow from the same requests.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use smol_str::{SmolStr, format_smolstr};

use super::coverage::VariantCoverage;
use super::derived_metrics::MetricRanges;
use super::load::EngineLoad;
use super::sample_window::Span;
use crate::name_map::NameMap;
use crate::snapshot::{Phase, Replica, Rows, Signal, SignalSet, VariantState};
use crate::units::Seconds;

#[cfg(test)]
mod honest;
#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;

/// What was contradicted stays unbelieved for this long after it was last seen so, and what it shows in that time tells whether
/// it still is: the minute of rates and peaks, and a scrape.
const DOUBT: Seconds = Seconds::whole(75);

/// And what it showed until then is not read as long as any window reaches back to it.
const FORGIVEN: Seconds = Seconds::whole(300);

/// What was shown so long after that scrape is not read either: a signal that comes right does so between two looks.
const CAUTION: SignedDuration = SignedDuration::from_secs(30);

/// What is believed is at least this old before an estimate rests on it: a contradiction shows within a minute and two scrapes.
const SETTLED: Seconds = Seconds::whole(120);

/// Engines that contradict what is usual for this long do so because that has changed.
const OTHERWISE: Seconds = Seconds::whole(1200);

/// What is remembered of the evidence of one model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SignalHistory {
    /// By engine: the pod's name, and the engine's where it has several.
    #[serde(skip_serializing_if = "NameMap::is_empty")]
    doubts: NameMap<Contradictions>,
    /// By variant.
    #[serde(skip_serializing_if = "NameMap::is_empty")]
    believed: NameMap<BaselineHistory>,
}

/// What of one engine was contradicted lately: signals, and the newest scrape at which they were. The newest last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Contradictions([Option<(SignalSet, Timestamp)>; KEPT]);

/// Where these are not believed, nothing of an engine is.
const EXPORTER: SignalSet = SignalSet::of(&[Signal::Waiting, Signal::Running, Signal::GenerationTokens]);

/// Of more, the oldest two become one that lasts as long as the newer.
const KEPT: usize = 3;

/// What a variant's engines did when all of them were measured.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
struct BaselineHistory {
    /// Old enough to rest on.
    #[serde(skip_serializing_if = "Option::is_none")]
    settled: Option<(Timestamp, Baseline)>,
    /// Waits until it is: a lie shows some time after it has begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<(Timestamp, Baseline)>,
    /// What is collected since that.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<(Timestamp, Baseline)>,
}

/// Means of the engines of a variant. What was not measured is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Baseline {
    /// Prompt of a finished request, else of one that has begun, tokens.
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
    /// Share of the KV cache that a running request holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kv_a_request: Option<f64>,
    /// In which range its engines have shown what belongs together. Not `ranges`: of these an earlier version reads just nine.
    #[serde(rename = "shown", skip_serializing_if = "MetricRanges::is_empty")]
    pub(super) ranges: MetricRanges,
}

/// How one engine is read that does not show everything, or lately has not.
#[derive(Debug, Clone, Copy)]
pub(super) struct Substitution<'a> {
    /// Missing or contradicted now: estimated.
    pub(super) lacking: SignalSet,
    /// Contradicted lately: read from after this scrape on.
    pub(super) doubt: Option<Contradictions>,
    pub(super) usual: Option<&'a Baseline>,
    /// Requests that the engine runs at once at most: by its arguments, else estimated.
    pub(super) sequences: Option<f64>,
    /// Its arguments say that.
    pub(super) is_argument: bool,
}

impl SignalHistory {
    /// Nothing is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.doubts.is_empty() && self.believed.is_empty()
    }

    /// Something in it is later than `latest`: the clock was set back, and no age in it is one.
    pub(crate) fn is_after(&self, latest: Timestamp) -> bool {
        let mut doubts = self.doubts.values().filter_map(Contradictions::newest);
        let mut believed =
            self.believed.values().flat_map(|known| [known.settled, known.waiting, known.next]).flatten();
        doubts.any(|until| until > latest) || believed.any(|(at, _)| at > latest)
    }

    /// Of `seen`, engines of `variant`, something that is in `reads` is contradicted and was not `before`. Pods that serve since
    /// `young` only bring what the others show.
    pub(crate) fn is_worse(
        before: Option<&Self>,
        (variant, seen): (&VariantState, &VariantCoverage<'_>),
        reads: SignalSet,
        young: Option<Timestamp>,
        now: Timestamp,
    ) -> bool {
        let known = |engine: &SmolStr| {
            let doubt = before.and_then(|before| before.doubts.get(engine));
            doubt.map_or(SignalSet::NONE, |doubt| doubt.still(now))
        };
        let is_young = |engine: &SmolStr| {
            let pods =
                || variant.replicas.iter().filter(|replica| young.is_some_and(|at| replica.born() >= at));
            pods().any(|replica| replica.engines.iter().any(|(own, _)| engine_of(replica, own) == *engine))
        };
        let worse = |(engine, doubt): &&(SmolStr, Contradictions)| {
            !doubt.still(now).without(known(engine)).and(reads).is_empty()
        };
        seen.doubts.iter().filter(worse).any(|(engine, _)| !is_young(engine))
    }

    /// Something that an engine showed lately is not believed.
    #[must_use]
    pub fn has_doubts(&self) -> bool {
        !self.doubts.is_empty()
    }

    /// What of `engine` was contradicted lately.
    pub(super) fn doubt(&self, engine: &str, now: Timestamp) -> Option<Contradictions> {
        self.doubts
            .get(engine)
            .map(|doubt| doubt.lately(now))
            .filter(|doubt| *doubt != Contradictions::default())
    }

    /// The signals in which half of the engines of `variant` that serve since before `at`, two at least, are not believed, each
    /// with the last scrape at which one of them was contradicted.
    pub(super) fn by_most(
        &self,
        variant: &VariantState,
        at: Timestamp,
        now: Timestamp,
    ) -> Option<Contradictions> {
        let serving = variant.replicas.iter().filter(|replica| replica.phase == Phase::Ready);
        let older = serving.filter(|replica| replica.born() < at);
        let doubts: Vec<Contradictions> = older
            .flat_map(|replica| replica.engines.iter().map(|(engine, _)| engine_of(replica, engine)))
            .map(|engine| self.doubts.get(&engine).copied().unwrap_or_default())
            // An exporter that stands still says nothing of another one.
            .map(|doubt| if doubt.still(now).contains(EXPORTER) { Contradictions::default() } else { doubt })
            .collect();
        let many = |signal: &Signal| {
            let doubted = doubts.iter().filter(|doubt| doubt.still(now).has(*signal)).count();
            doubted >= 2 && 2 * doubted >= doubts.len()
        };
        let newest = |signal: Signal| {
            let signal = SignalSet::of(&[signal]);
            Some((doubts.iter().filter_map(|doubt| doubt.until(signal)).max()?, signal))
        };
        let mut most: Vec<_> = Signal::ALL.into_iter().filter(many).filter_map(newest).collect();
        most.sort_by_key(|(until, _)| *until);
        let joined =
            |doubt: Contradictions, (until, signal): &(Timestamp, SignalSet)| doubt.at_least(*signal, *until);
        (!most.is_empty()).then(|| most.iter().fold(Contradictions::default(), joined))
    }

    /// What is usual of `variant`, and since when that is known.
    pub(super) fn usual(&self, variant: &str) -> Option<(Timestamp, &Baseline)> {
        self.believed.get(variant)?.settled.as_ref().map(|(at, usual)| (*at, usual))
    }

    /// Takes in what was seen of `variants`, all that the model has, by an analyzer that reads `reads`.
    #[must_use]
    pub fn after<'s>(
        &self,
        variants: impl Iterator<Item = (&'s VariantState, &'s VariantCoverage<'s>)> + Clone,
        reads: SignalSet,
        now: Timestamp,
    ) -> Self {
        let mut after = Self::default();
        for (state, seen) in variants {
            seen.doubts.iter().for_each(|(engine, doubt)| after.doubts.insert(engine.clone(), *doubt));
            let name = &state.variant.id.name;
            let before = self.believed.get_shared(name);
            if let Some(believed) = BaselineHistory::after(before, seen, reads, now) {
                after.believed.insert(name.clone(), believed);
            }
        }
        after
    }
}

impl BaselineHistory {
    fn after(
        before: Option<&Self>,
        seen: &VariantCoverage<'_>,
        reads: SignalSet,
        now: Timestamp,
    ) -> Option<Self> {
        let known = before.cloned().unwrap_or_default();
        if !seen.doubts.is_empty() {
            // What has been otherwise for so long is so.
            let settled = known.settled.filter(|(at, _)| Seconds::between(*at, now) < OTHERWISE);
            return settled.map(|_| Self { settled, ..Self::default() });
        }
        if seen.loads.is_empty() || seen.unmeasured() > 0 {
            return before.cloned();
        }
        if let Some((at, mut next)) = known.next.filter(|(at, _)| Seconds::between(*at, now) < SETTLED) {
            next.ranges = next.ranges.with(&seen.ranges);
            return Some(Self { next: Some((at, next)), ..known });
        }
        let mut next = Baseline::of(&seen.loads, reads);
        next.ranges = seen.ranges;
        let settled = known.waiting.map(|(at, usual)| {
            let older =
                known.settled.map_or(usual.ranges, |(_, older)| older.ranges.narrowed().with(&usual.ranges));
            (at, Baseline { ranges: older, ..usual })
        });
        let settled = settled.or(known.settled);
        // What has no requests to be measured by is as it was.
        let newest = known.next.or(settled).map_or(next, |(_, before)| next.or(before));
        Some(Self { settled, waiting: known.next, next: Some((now, newest)) })
    }
}

impl Baseline {
    fn of(loads: &[EngineLoad<'_, ()>], reads: SignalSet) -> Self {
        let mean = |of: &dyn Fn(&EngineLoad<'_, ()>) -> Option<f64>| {
            let (mut sum, mut count) = (0.0, 0.0);
            for value in loads.iter().filter_map(of) {
                (sum, count) = (sum + value, count + 1.0);
            }
            (count > 0.0).then(|| sum / count)
        };
        let ratio = |sum: Signal, count: Signal| {
            if reads.contains(SignalSet::of(&[sum, count])) {
                mean(&|load| load.size(sum, count))
            } else {
                None
            }
        };
        let newest = |signal: Signal| {
            if reads.has(signal) { mean(&|load| load.newest(signal)) } else { None }
        };
        let gauge = |signal: Signal| mean(&|load| Span::new(&load.lately(), reads).mean(signal));
        let running = gauge(Signal::Running).filter(|running| *running >= 1.0);
        Self {
            prompt: ratio(Signal::RequestPromptTokensSum, Signal::RequestPromptTokensCount)
                .or_else(|| ratio(Signal::PromptTokens, Signal::TimeToFirstTokenCount)),
            generated: ratio(Signal::RequestGenerationTokensSum, Signal::RequestGenerationTokensCount),
            hits: ratio(Signal::PrefixCacheHits, Signal::PrefixCacheQueries),
            capacity: newest(Signal::KvCapacity),
            kv_a_request: gauge(Signal::KvUsage).zip(running).map(|(usage, running)| usage / running),
            ranges: MetricRanges::default(),
        }
    }

    fn or(self, before: Self) -> Self {
        Self {
            prompt: self.prompt.or(before.prompt),
            generated: self.generated.or(before.generated),
            hits: self.hits.or(before.hits),
            capacity: self.capacity.or(before.capacity),
            kv_a_request: self.kv_a_request.or(before.kv_a_request),
            ranges: self.ranges,
        }
    }
}

impl Contradictions {
    fn iter(&self) -> impl Iterator<Item = (SignalSet, Timestamp)> {
        self.0.iter().copied().flatten()
    }

    fn of(all: impl IntoIterator<Item = (SignalSet, Timestamp)>) -> Self {
        let mut all: Vec<_> = all.into_iter().filter(|(signals, _)| !signals.is_empty()).collect();
        while all.len() > KEPT {
            let (oldest, _) = all.remove(0);
            all[0].0 = all[0].0.with(oldest);
        }
        let mut own = Self::default();
        own.0.iter_mut().zip(all).for_each(|(place, one)| *place = Some(one));
        own
    }

    /// Without what no window reaches back to.
    fn lately(&self, now: Timestamp) -> Self {
        Self::of(self.iter().filter(|(_, until)| Seconds::between(*until, now) < FORGIVEN))
    }

    /// With `signals` contradicted at `newest`.
    pub(super) fn with(&self, signals: SignalSet, newest: Timestamp) -> Self {
        let others = self.iter().map(|(own, until)| (own.without(signals), until));
        Self::of(others.chain([(signals, newest)]))
    }

    /// With `signals` contradicted at `until`, and with what else was then.
    fn at_least(&self, signals: SignalSet, until: Timestamp) -> Self {
        let same = self.iter().filter(|(_, own)| *own == until);
        self.with(same.fold(signals, |all, (own, _)| all.with(own)), until)
    }

    /// With what `others` has that is later.
    pub(super) fn joining(&self, others: &Self) -> Self {
        let later =
            others.iter().filter(|(signals, until)| self.until(*signals).is_none_or(|own| own < *until));
        later.fold(*self, |own, (signals, until)| own.with(signals, until))
    }

    /// The signals that are still not believed.
    pub(super) fn still(&self, now: Timestamp) -> SignalSet {
        let still = self.iter().filter(|(_, until)| Seconds::between(*until, now) < DOUBT);
        still.fold(SignalSet::NONE, |all, (signals, _)| all.with(signals))
    }

    /// The last scrape at which anything was contradicted.
    pub(super) fn newest(&self) -> Option<Timestamp> {
        self.iter().map(|(_, until)| until).max()
    }

    /// The last scrape at which one of `signals` was contradicted.
    fn until(&self, signals: SignalSet) -> Option<Timestamp> {
        let own = self.iter().filter(|(own, _)| !own.and(signals).is_empty());
        own.map(|(_, until)| until).max()
    }
}

impl<'a> Substitution<'a> {
    /// The scrapes in which `signals` are to be read.
    pub(super) fn rows(&self, rows: Rows<'a>, signals: SignalSet) -> Rows<'a> {
        let until = self.doubt.and_then(|doubt| doubt.until(signals));
        let later = until.and_then(|until| until.checked_add(CAUTION).ok());
        later.map_or(rows, |from| rows.since(from))
    }

    /// What is needed and lacking can be estimated by what is there.
    pub(super) fn is_enough(&self, needed: SignalSet) -> bool {
        use Signal::{
            KvCapacity, KvUsage, RequestGenerationTokensCount, RequestGenerationTokensSum,
            RequestPromptTokensCount, RequestPromptTokensSum, Running, TimeToFirstTokenCount, Waiting,
        };
        let lacking = self.lacking.and(needed);
        let lacks = |signals: &[Signal]| !lacking.and(SignalSet::of(signals)).is_empty();
        let shows = |signal: Signal| !self.lacking.has(signal);
        let usual = self.usual.copied().unwrap_or_default();
        let holds = usual.kv_a_request.is_some_and(|each| each > 0.0);
        let begins = [TimeToFirstTokenCount, RequestGenerationTokensCount, RequestPromptTokensCount];
        !(lacks(&[RequestPromptTokensSum, RequestPromptTokensCount]) && usual.prompt.is_none()
            || lacks(&[RequestGenerationTokensSum, RequestGenerationTokensCount])
                && usual.generated.is_none()
            || lacks(&[KvCapacity]) && usual.capacity.is_none()
            || lacks(&[KvUsage]) && !(holds && shows(Running))
            || lacks(&[Running]) && !(holds && shows(KvUsage))
            || lacks(&[Waiting]) && !(self.sequences.is_some() && shows(Running))
            || needed.has(TimeToFirstTokenCount)
                && !begins.into_iter().any(|signal| needed.has(signal) && shows(signal)))
    }
}

/// The name of an engine of `replica` among those of its model.
pub(super) fn engine_of(replica: &Replica, engine: &SmolStr) -> SmolStr {
    let several = replica.engines.len() > 1;
    if several { format_smolstr!("{}:{engine}", replica.pod) } else { replica.pod.clone() }
}
