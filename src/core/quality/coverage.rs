//! The variants of one role of a model, which are decided together: what is measured of them, and which moves that allows.

use jiff::Timestamp;
use serde::Serialize;
use smol_str::SmolStr;

use super::analyzer_signals::Declared;
use super::derived_metrics::MetricRanges;
use super::engine_assessment::{EngineAssessment, EngineAssessor};
use super::freshness::{EngineReading, Freshness, MIN_STALE_LIMIT, judged_engines, read_engine};
use super::load::EngineLoad;
use super::pods::count_lost_and_failing;
use super::signal_history::{Contradictions, SignalHistory};
use crate::snapshot::{Phase, Pod, Signal, SignalSet, Signals, SourceHealth, VariantState};
use crate::units::{Cost, Replicas, Seconds, count, truncated_u32};

/// How completely a set of variants is measured. One row of the observation table each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum CoverageState {
    /// The metric source does not answer.
    Down,
    /// Nothing runs, and nothing is asked to run.
    Zero,
    /// Nothing is ready, and something should be.
    Starting,
    /// Ready pods without any series.
    Missing,
    /// Ready pods whose series are all too old.
    Stale,
    /// Most ready pods are not measured, or the source says that its answer is incomplete.
    Partial,
    /// All ready pods are measured, some of them not recently.
    Aging,
    /// At least half of the ready pods are measured, all of these recently; the others count as loaded like the busiest measured one.
    Estimated,
    /// All ready pods are measured recently.
    Fresh,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AllowedMoves {
    pub(crate) up: bool,
    pub(crate) down: bool,
    /// No replica at all, if the idle clock allows.
    pub(crate) zero: bool,
}

impl CoverageState {
    /// Some ready pods are not measured.
    pub(crate) fn is_incomplete(self) -> bool {
        matches!(self, Self::Partial | Self::Estimated)
    }

    pub(crate) fn allowed_moves(self) -> AllowedMoves {
        match self {
            Self::Fresh => AllowedMoves { up: true, down: true, zero: true },
            Self::Estimated => AllowedMoves { up: true, down: true, zero: false },
            Self::Aging | Self::Partial => AllowedMoves { up: true, down: false, zero: false },
            Self::Stale | Self::Missing | Self::Starting | Self::Zero | Self::Down => {
                AllowedMoves { up: false, down: false, zero: false }
            }
        }
    }
}

/// Peaks of one engine over the last minute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EnginePeaks<'a> {
    /// Its pod.
    pub pod: &'a str,
    /// Its engine, where the pod has several.
    pub engine: Option<&'a str>,
    /// Its variant.
    pub variant: &'a str,
    /// What a replica of this variant costs.
    pub cost: Cost,
    /// Peak KV-cache usage, 0 to 1.
    pub kv: f64,
    /// Peak waiting requests.
    pub queue: u32,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct VariantCoverage<'a> {
    pub(crate) ready: u32,
    /// Of these, those whose engines are all fresh.
    pub(crate) fresh: u32,
    /// Of these, those with an engine between fresh and stale, and none worse.
    pub(crate) aging: u32,
    /// Of these, those with an engine whose samples are too old.
    pub(crate) stale: u32,
    pub(crate) absent: u32,
    /// Of these, those that show cache and queue and lack another signal that the analyzer requires.
    pub(crate) lacking: u32,
    /// Required signals that pods which have served long enough to be scraped do not show.
    pub(crate) missing: SignalSet,
    /// Required signals that they show and that another signal contradicts.
    pub(crate) contradicted: SignalSet,
    /// Pods that `missing` and `contradicted` are about.
    pub(crate) incomplete: u32,
    pub(crate) asleep: u32,
    /// Pods that exist and do not serve yet.
    pub(crate) starting: u32,
    /// Of these, those that no node has room for.
    pub(crate) unschedulable: u32,
    /// The newest creation of a pod that does not serve yet.
    pub(crate) started_last: Option<Timestamp>,
    /// When the newest serving pod became ready.
    pub(crate) ready_last: Option<Timestamp>,
    /// The newest sample that is not stale.
    pub(crate) newest: Option<Timestamp>,
    /// The newest sample, stale or not.
    pub(crate) newest_any: Option<Timestamp>,
    /// The most engines of one serving pod: several with data parallelism.
    pub(crate) engines_per_pod: u32,
    /// The input of the percent rule: one entry for each engine that is not stale.
    pub(crate) observations: Vec<EnginePeaks<'a>>,
    /// Loads of the engines that show all that the analyzer requires, or of which it can be estimated.
    pub(crate) loads: Vec<EngineLoad<'a, ()>>,
    /// Of the pods that are not measured, those that are estimated from what they do show.
    pub(crate) estimated: u32,
    /// Pods whose queue is distrusted, with whether the rest of their signals says that they are full, where it does.
    pub(crate) queue_distrusted: Vec<(&'a str, Option<bool>)>,
    /// Ranges of the derived metrics that the engines show.
    pub(super) ranges: MetricRanges,
    pub(super) contradictions: Vec<(SmolStr, Contradictions)>,
}

/// A variant with what is measured of it.
pub(crate) type AssessedVariant<'a> = (&'a VariantState, &'a VariantCoverage<'a>);

/// How completely `variants` are measured at `now`, without a history of their signals.
pub(crate) fn assess_coverage(
    source: &SourceHealth,
    variants: &[&VariantState],
    declared: Declared,
    now: Timestamp,
) -> CoverageState {
    let coverages: Vec<VariantCoverage<'_>> =
        variants.iter().map(|variant| assess_variant(variant, declared, None, now)).collect();
    let assessed: Vec<AssessedVariant<'_>> = variants.iter().copied().zip(&coverages).collect();
    coverage_state(source, &assessed, now)
}

/// Nothing is asked to run, and nothing serves.
fn is_at_zero(variant: &VariantState, coverage: &VariantCoverage<'_>) -> bool {
    variant.scale.is_some_and(|scale| scale.spec == Replicas::ZERO) && coverage.ready == 0
}

/// How completely `variants` are measured together.
pub(crate) fn coverage_state(
    source: &SourceHealth,
    variants: &[AssessedVariant<'_>],
    now: Timestamp,
) -> CoverageState {
    if matches!(source, SourceHealth::Down { .. }) {
        return CoverageState::Down;
    }
    let sum = |count: fn(&VariantCoverage<'_>) -> u32| {
        variants.iter().map(|(_, coverage)| count(coverage)).fold(0, u32::saturating_add)
    };
    let ready = sum(|coverage| coverage.ready);
    if ready == 0 {
        let is_at_zero = variants.iter().all(|(variant, coverage)| is_at_zero(variant, coverage));
        return if is_at_zero { CoverageState::Zero } else { CoverageState::Starting };
    }
    let is_any_measured = variants.iter().any(|(_, coverage)| !coverage.observations.is_empty());
    let is_complete = matches!(source, SourceHealth::Complete);
    if !is_any_measured {
        return unmeasured_state(is_complete, sum(|coverage| coverage.stale), variants, now);
    }
    // A ready pod that the scale target counts and the pod list lacks may carry any load.
    let counted = variants.iter().filter_map(|(variant, _)| variant.scale).map(|scale| scale.ready.get());
    let is_unlisted = counted.fold(0, u32::saturating_add) > ready;
    let unmeasured = sum(|coverage| coverage.unmeasured());
    let fresh = sum(|coverage| coverage.fresh);
    if !is_complete || is_unlisted {
        CoverageState::Partial
    } else if unmeasured > 0 {
        let measured = ready.saturating_sub(unmeasured);
        let is_estimable = measured >= unmeasured && fresh == measured;
        if is_estimable { CoverageState::Estimated } else { CoverageState::Partial }
    } else if fresh < ready {
        CoverageState::Aging
    } else {
        CoverageState::Fresh
    }
}

/// The state of ready pods of which nothing usable is known.
fn unmeasured_state(
    is_complete: bool,
    stale: u32,
    variants: &[AssessedVariant<'_>],
    now: Timestamp,
) -> CoverageState {
    if stale > 0 {
        return CoverageState::Stale;
    }
    // A pod that has just become ready is scraped within the next few intervals: it is too early to call it broken.
    let is_just_ready = |(_, coverage): &AssessedVariant<'_>| {
        let is_recent = |at| Seconds::between(at, now) <= MIN_STALE_LIMIT;
        coverage.ready == 0 || coverage.ready_last.is_some_and(is_recent)
    };
    if is_complete && variants.iter().all(is_just_ready) {
        CoverageState::Starting
    } else {
        CoverageState::Missing
    }
}

/// Assesses one variant for an analyzer that reads what is `declared`, with the signal `history` of its model.
pub(crate) fn assess_variant<'a>(
    variant: &'a VariantState,
    declared: Declared,
    history: Option<&'a SignalHistory>,
    now: Timestamp,
) -> VariantCoverage<'a> {
    let mut coverage = VariantCoverage::default();
    let assessor = EngineAssessor::new(variant, declared, history, now);
    for pod in &variant.pods {
        if pod.phase == Phase::Ready {
            assessor.add_ready_pod(&mut coverage, pod);
        } else if pod.phase.is_awaited() {
            coverage.starting += 1;
            coverage.unschedulable += u32::from(pod.phase == Phase::Unschedulable);
            coverage.started_last = coverage.started_last.max(Some(pod.created));
        }
        coverage.asleep += u32::from(pod.phase == Phase::Asleep);
    }
    coverage
}

/// What one pod shows, over all its engines.
struct PodCoverage<'a> {
    pod: &'a Pod,
    has_several_engines: bool,
    worst: Freshness,
    missing: SignalSet,
    contradicted: SignalSet,
    /// Everything that it lacks can be estimated.
    is_estimable: bool,
}

impl<'a> PodCoverage<'a> {
    fn new(pod: &'a Pod, engines: usize) -> Self {
        Self {
            pod,
            has_several_engines: engines > 1,
            worst: if pod.engines.is_empty() { Freshness::Absent } else { Freshness::Fresh },
            missing: SignalSet::NONE,
            contradicted: SignalSet::NONE,
            is_estimable: true,
        }
    }

    fn lacks_signals(&self) -> bool {
        !self.missing.without(GRADED_BY_FRESHNESS).is_empty() || !self.contradicted.is_empty()
    }
}

impl<'a> EngineAssessor<'a> {
    fn add_ready_pod(&self, coverage: &mut VariantCoverage<'a>, pod: &'a Pod) {
        let ready_since = pod.ready_or_created();
        coverage.ready += 1;
        coverage.ready_last = coverage.ready_last.max(Some(ready_since));
        let engines = judged_engines(pod).count();
        coverage.engines_per_pod = coverage.engines_per_pod.max(count(engines));
        let (loads_before, observations_before) = (coverage.loads.len(), coverage.observations.len());
        let mut pod_coverage = PodCoverage::new(pod, engines);
        for (engine, signals) in judged_engines(pod) {
            let reading = read_engine(signals, ready_since, self.now);
            pod_coverage.worst = pod_coverage.worst.max(reading.freshness);
            coverage.newest_any = coverage.newest_any.max(reading.newest);
            if reading.freshness <= Freshness::Aging {
                coverage.newest = coverage.newest.max(reading.newest);
                self.add_engine(coverage, &mut pod_coverage, engine, signals, &reading);
            }
        }
        let lacks_signals = pod_coverage.lacks_signals();
        match pod_coverage.worst {
            Freshness::Stale => coverage.stale += 1,
            Freshness::Absent => coverage.absent += 1,
            Freshness::Fresh | Freshness::Aging if lacks_signals => coverage.lacking += 1,
            Freshness::Fresh => coverage.fresh += 1,
            Freshness::Aging => coverage.aging += 1,
        }
        let is_outdated = pod_coverage.worst >= Freshness::Stale;
        let is_unmeasured = lacks_signals || is_outdated;
        if is_unmeasured && !is_outdated && pod_coverage.is_estimable {
            coverage.estimated += 1;
        } else if is_unmeasured {
            coverage.loads.truncate(loads_before);
            if !pod_coverage.contradicted.and(GRADED_BY_FRESHNESS).is_empty() {
                coverage.observations.truncate(observations_before);
            }
        }
        let missing = if is_outdated { self.declared.required() } else { pod_coverage.missing };
        // A pod that has just become ready is scraped within the next few intervals, and shows histograms only after its first
        // requests.
        let is_scraped_by_now = Seconds::between(ready_since, self.now) > MIN_STALE_LIMIT;
        if (is_unmeasured || !missing.is_empty()) && is_scraped_by_now {
            coverage.missing = coverage.missing.with(missing);
            coverage.contradicted = coverage.contradicted.with(pod_coverage.contradicted);
            coverage.incomplete += 1;
        }
    }

    fn add_engine(
        &self,
        coverage: &mut VariantCoverage<'a>,
        pod_coverage: &mut PodCoverage<'a>,
        engine: &'a SmolStr,
        signals: &'a Signals,
        reading: &EngineReading<'a>,
    ) {
        let assessment = self.assess(pod_coverage.pod, engine, signals);
        let EngineAssessment { coverage: shown, contradictions, substitution } = assessment;
        coverage.contradictions.extend(contradictions);
        coverage.ranges = coverage.ranges.with(&shown.metrics.into());
        pod_coverage.missing = pod_coverage.missing.with(shown.missing);
        pod_coverage.contradicted =
            pod_coverage.contradicted.with(shown.contradicted.and(self.declared.required()));
        pod_coverage.worst = pod_coverage.worst.max(shown.freshness.min(Freshness::Aging));
        pod_coverage.is_estimable &=
            substitution.is_none_or(|lacking| lacking.is_enough(self.declared.needed));
        let load = EngineLoad::new(signals, reading.recent, self.now).with_substitution(substitution);
        let (mut kv, mut queue) = (reading.kv, reading.queue);
        if let Some(substitution) = substitution {
            let waiting = load.peak_waiting();
            // A queue that is shown and should not be there still keeps a fleet from being shrunk.
            let is_queue_replaced =
                substitution.lacking.has(Signal::Waiting) && (queue == 0 || waiting != Some(0.0));
            kv = load.usage(|signal| load.peak(signal)).unwrap_or(kv);
            queue = waiting.map_or(queue, truncated_u32);
            if is_queue_replaced {
                // With an estimated limit nobody knows whether the engine is full.
                let is_full = waiting.filter(|_| substitution.is_max_configured).map(|waiting| waiting > 0.0);
                coverage.queue_distrusted.push((pod_coverage.pod.name.as_str(), is_full));
            }
        }
        coverage.loads.push(load);
        let variant = &self.variant().variant;
        coverage.observations.push(EnginePeaks {
            pod: pod_coverage.pod.name.as_str(),
            engine: pod_coverage.has_several_engines.then_some(engine.as_str()),
            variant: variant.id.name.as_str(),
            cost: variant.cost,
            kv,
            queue,
        });
    }
}

/// If one of these is missing, the other one is graded as aging, which says enough: see [`read_engine`].
const GRADED_BY_FRESHNESS: SignalSet = SignalSet::new(&[Signal::KvUsage, Signal::Waiting]);

/// At least half of the engines of ready pods are distrusted in `signal`.
pub(crate) fn is_distrusted_on_most_engines<'s>(
    variants: impl Iterator<Item = &'s VariantCoverage<'s>>,
    signal: Signal,
    now: Timestamp,
) -> bool {
    let (mut distrusted, mut engines) = (0_u32, 0_u32);
    for coverage in variants {
        distrusted = distrusted.saturating_add(coverage.distrusted_engines(SignalSet::new(&[signal]), now));
        engines = engines.saturating_add(coverage.ready.saturating_mul(coverage.engines_per_pod));
    }
    distrusted > 0 && distrusted >= engines.saturating_sub(distrusted)
}

impl VariantCoverage<'_> {
    /// Ready pods that do not show everything the analyzer requires.
    pub(crate) fn unmeasured(&self) -> u32 {
        self.absent.saturating_add(self.stale).saturating_add(self.lacking)
    }

    /// Engines on which a signal of `reads` is distrusted.
    pub(crate) fn distrusted_engines(&self, reads: SignalSet, now: Timestamp) -> u32 {
        let engines = self.contradictions.iter();
        count(engines.filter(|(_, own)| !own.distrusted(now).and(reads).is_empty()).count())
    }

    /// Adopts what was measured for another analyzer, and keeps the report of what the first one lacked.
    pub(crate) fn adopt_measurements(&mut self, other: Self) {
        let Self { missing, contradicted, incomplete, .. } = *self;
        *self = Self { missing, contradicted, incomplete, ..other };
    }

    /// Pods that the scale target counts as pending, without those that will not come: no node has room for them, they were
    /// created more than `start_limit` ago, or they sleep. Pods that were ready and failed may come back, except the `replaced` ones.
    pub(crate) fn expected_pending(
        &self,
        variant: &VariantState,
        start_limit: Seconds,
        replaced: u32,
        now: Timestamp,
    ) -> Replicas {
        let pending = variant.scale.map_or(Replicas::ZERO, |scale| scale.pending());
        if self.starting == 0 && self.asleep == 0 {
            return pending;
        }
        let (lost, failing) = count_lost_and_failing(variant, start_limit, now);
        pending.saturating_sub(Replicas::new(lost.saturating_add(replaced.min(failing))))
    }
}
