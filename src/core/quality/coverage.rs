//! A set of variants that are decided together (one role of a model): what is seen of them, and what that allows.

use jiff::Timestamp;

use smol_str::SmolStr;

use super::STALE_AT_LEAST;
use super::derived_metrics::MetricRanges;
use super::engine_assessment::{EngineAssessment, EngineAssessor};
use super::freshness::{EngineReading, Freshness, judged_engines, read_engine};
use super::load::EngineLoad;
use super::pods::lost_and_failing;
use super::signal_history::{Contradictions, SignalHistory};
use crate::quality::analyzer_signals::Declared;
use crate::snapshot::{Phase, Replica, Signal, SignalSet, Signals, SourceHealth, VariantState};
use crate::units::{Cost, Replicas, Seconds, count, whole};

/// What kind of sight it is. One row of the observation table each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CoverageState {
    /// The source does not answer.
    Down,
    /// Nothing runs, and nothing is asked to run.
    Zero,
    /// Nothing is ready, and something should be.
    Starting,
    /// Ready pods, and no series of any of them.
    Missing,
    /// Ready pods, and only series that are too old.
    Stale,
    /// Some ready pods are seen and most are not, or the source says that its answer is not whole.
    Partial,
    /// All ready pods are seen, some of them not lately.
    Aging,
    /// At least half of the ready pods are seen, all of these fresh: the others count as loaded like the busiest that is seen.
    Estimated,
    /// All ready pods are seen, all of them fresh.
    Fresh,
}

/// Which way a number may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllowedMoves {
    /// More.
    pub up: bool,
    /// Fewer.
    pub down: bool,
    /// None at all, if the idle clock allows.
    pub zero: bool,
}

impl CoverageState {
    /// Some ready pods are not measured.
    #[must_use]
    pub fn is_incomplete(self) -> bool {
        matches!(self, Self::Partial | Self::Estimated)
    }

    /// Which way a number may go.
    #[must_use]
    pub fn allowed_moves(self) -> AllowedMoves {
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
    pub replica: &'a str,
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

/// What is seen of one variant.
#[derive(Debug, Clone, Default)]
pub struct VariantCoverage<'a> {
    /// Pods that serve.
    pub ready: u32,
    /// Of these, the ones all of whose engines are fresh.
    pub fresh: u32,
    /// Of these, the ones with an engine between fresh and stale, and none worse.
    pub aging: u32,
    /// Of these, the ones with an engine whose samples are too old.
    pub stale: u32,
    /// Of these, the ones without any series.
    pub absent: u32,
    /// Of these, the ones that show cache and queue and lack something else that the analyzer needs.
    pub lacking: u32,
    /// What pods that have served long enough to be scraped do not show of it.
    pub missing: SignalSet,
    /// What they show that another signal of theirs contradicts.
    pub contradicted: SignalSet,
    /// Pods of which the last two are told.
    pub incomplete: u32,
    /// Pods that sleep.
    pub asleep: u32,
    /// Pods that exist and do not serve yet.
    pub starting: u32,
    /// Of these, the ones no node has room for.
    pub unschedulable: u32,
    /// The newest creation of a pod that does not serve yet.
    pub started_last: Option<Timestamp>,
    /// Since when the newest serving pod serves.
    pub ready_last: Option<Timestamp>,
    /// The newest sample that is not stale.
    pub newest: Option<Timestamp>,
    /// The newest sample of all.
    pub newest_of_all: Option<Timestamp>,
    /// The most engines of one serving pod: several with data parallelism.
    pub engines_a_pod: u32,
    /// V1's input: one an engine that is not stale.
    pub observations: Vec<EnginePeaks<'a>>,
    /// What engines were doing of which the analyzer is shown all that it needs, or of which it can be estimated.
    pub loads: Vec<EngineLoad<'a, ()>>,
    /// Of the pods that are not measured, those that are estimated by what they do show.
    pub estimated: u32,
    /// Pods whose queue is not believed, with whether they are full by the rest of what they show, where that is known.
    pub queue_doubted: Vec<(&'a str, Option<bool>)>,
    /// In which range they show what belongs together.
    pub(super) ranges: MetricRanges,
    /// What of which engines was contradicted lately.
    pub(super) doubts: Vec<(SmolStr, Contradictions)>,
}

/// What is seen of a set of variants.
#[derive(Debug, Clone)]
pub struct Coverage<'a> {
    /// What kind it is.
    pub state: CoverageState,
    /// In the order given.
    pub variants: Vec<VariantCoverage<'a>>,
}

/// A variant, and what is seen of it.
pub(crate) type AssessedVariant<'a> = (&'a VariantState, &'a VariantCoverage<'a>);

/// Looks at `variants` at `now`.
#[must_use]
pub fn look<'a>(
    source: &SourceHealth,
    variants: &[&'a VariantState],
    declared: Declared,
    now: Timestamp,
) -> Coverage<'a> {
    let sights: Vec<VariantCoverage<'_>> =
        variants.iter().map(|variant| assess_variant(variant, declared, None, now)).collect();
    let seen: Vec<AssessedVariant<'_>> = variants.iter().copied().zip(&sights).collect();
    Coverage { state: coverage_state(source, &seen, now), variants: sights }
}

/// Nobody asks for a replica of it, and none serves.
#[must_use]
fn at_zero(variant: &VariantState, seen: &VariantCoverage<'_>) -> bool {
    variant.scale.is_some_and(|scale| scale.spec == Replicas::ZERO) && seen.ready == 0
}

/// What kind of sight the variants are together.
pub(crate) fn coverage_state(
    source: &SourceHealth,
    seen: &[AssessedVariant<'_>],
    now: Timestamp,
) -> CoverageState {
    if matches!(source, SourceHealth::Down { .. }) {
        return CoverageState::Down;
    }
    let sum = |part: fn(&VariantCoverage<'_>) -> u32| {
        seen.iter().map(|(_, one)| part(one)).fold(0, u32::saturating_add)
    };
    let ready = sum(|one| one.ready);
    if ready == 0 {
        let nothing = seen.iter().all(|(variant, seen)| at_zero(variant, seen));
        return if nothing { CoverageState::Zero } else { CoverageState::Starting };
    }
    let observed = seen.iter().any(|(_, one)| !one.observations.is_empty());
    let complete = matches!(source, SourceHealth::Complete);
    if !observed {
        return unobserved(complete, sum(|one| one.stale), seen, now);
    }
    // A ready pod that the target counts and the pod list does not have may carry any load.
    let promised = seen.iter().filter_map(|(variant, _)| variant.scale).map(|scale| scale.ready.get());
    let unlisted = promised.fold(0, u32::saturating_add) > ready;
    let unmeasured = sum(|one| one.unmeasured());
    if !complete || unlisted {
        CoverageState::Partial
    } else if unmeasured > 0 {
        let rest = ready.saturating_sub(unmeasured);
        if rest >= unmeasured && sum(|one| one.fresh) == rest {
            CoverageState::Estimated
        } else {
            CoverageState::Partial
        }
    } else if sum(|one| one.fresh) < ready {
        CoverageState::Aging
    } else {
        CoverageState::Fresh
    }
}

/// Ready pods of which nothing usable is known.
fn unobserved(complete: bool, stale: u32, seen: &[AssessedVariant<'_>], now: Timestamp) -> CoverageState {
    if stale > 0 {
        return CoverageState::Stale;
    }
    // A pod that has just become ready is scraped within the next few intervals: too early to call it broken.
    let just_ready = |(_, one): &AssessedVariant<'_>| {
        one.ready == 0 || one.ready_last.is_some_and(|at| Seconds::between(at, now) <= STALE_AT_LEAST)
    };
    if complete && seen.iter().all(just_ready) { CoverageState::Starting } else { CoverageState::Missing }
}

/// Looks at one variant for an analyzer that reads what is `declared`, with what is remembered of the `evidence` of its model.
pub(crate) fn assess_variant<'a>(
    variant: &'a VariantState,
    declared: Declared,
    evidence: Option<&'a SignalHistory>,
    now: Timestamp,
) -> VariantCoverage<'a> {
    let mut seen = VariantCoverage::default();
    let judge = EngineAssessor::new(variant, declared, evidence, now);
    for replica in &variant.replicas {
        match replica.phase {
            Phase::Terminating => {}
            Phase::Asleep => seen.asleep += 1,
            Phase::Ready => judge.see_ready(&mut seen, replica),
            Phase::Pending | Phase::Starting | Phase::Unschedulable => {
                seen.starting += 1;
                seen.unschedulable += u32::from(replica.phase == Phase::Unschedulable);
                seen.started_last = seen.started_last.max(Some(replica.created));
            }
        }
    }
    seen
}

/// What one pod shows.
struct PodCoverage {
    worst: Freshness,
    missing: SignalSet,
    contradicted: SignalSet,
    /// All that it lacks can be estimated.
    estimable: bool,
}

impl<'a> EngineAssessor<'a> {
    fn see_ready(&self, seen: &mut VariantCoverage<'a>, replica: &'a Replica) {
        seen.ready += 1;
        let ready_since = replica.born();
        seen.ready_last = seen.ready_last.max(Some(ready_since));
        let engines = judged_engines(replica).count();
        seen.engines_a_pod = seen.engines_a_pod.max(count(engines));
        let (measured, observed) = (seen.loads.len(), seen.observations.len());
        let worst = if replica.engines.is_empty() { Freshness::Absent } else { Freshness::Fresh };
        let none = SignalSet::NONE;
        let mut pod = PodCoverage { worst, missing: none, contradicted: none, estimable: true };
        for (engine, signals) in judged_engines(replica) {
            let reading = read_engine(signals, ready_since, self.now);
            pod.worst = pod.worst.max(reading.freshness);
            seen.newest_of_all = seen.newest_of_all.max(reading.newest);
            if reading.freshness <= Freshness::Aging {
                seen.newest = seen.newest.max(reading.newest);
                self.see_engine(seen, &mut pod, (replica, engine, engines > 1), (signals, reading));
            }
        }
        let PodCoverage { worst, mut missing, contradicted, estimable } = pod;
        let lacks = !missing.without(TOLD_BY_FRESHNESS).is_empty() || !contradicted.is_empty();
        match worst {
            Freshness::Stale => seen.stale += 1,
            Freshness::Absent => seen.absent += 1,
            Freshness::Fresh | Freshness::Aging if lacks => seen.lacking += 1,
            Freshness::Fresh => seen.fresh += 1,
            Freshness::Aging => seen.aging += 1,
        }
        let unmeasured = lacks || worst >= Freshness::Stale;
        if unmeasured && worst < Freshness::Stale && estimable {
            seen.estimated += 1;
        } else if unmeasured {
            seen.loads.truncate(measured);
            if !contradicted.and(TOLD_BY_FRESHNESS).is_empty() {
                seen.observations.truncate(observed);
            }
        }
        if worst >= Freshness::Stale {
            missing = self.declared.required();
        }
        // A pod that has just become ready is scraped within the next few intervals, and shows histograms with its first requests.
        if (unmeasured || !missing.is_empty()) && Seconds::between(ready_since, self.now) > STALE_AT_LEAST {
            seen.missing = seen.missing.with(missing);
            seen.contradicted = seen.contradicted.with(contradicted);
            seen.incomplete += 1;
        }
    }

    fn see_engine(
        &self,
        seen: &mut VariantCoverage<'a>,
        pod: &mut PodCoverage,
        (replica, engine, several): (&'a Replica, &'a SmolStr, bool),
        (signals, reading): (&'a Signals, EngineReading<'a>),
    ) {
        let EngineAssessment { coverage, doubt, instead } = self.judge(replica, engine, signals);
        seen.doubts.extend(doubt);
        seen.ranges = seen.ranges.with(&coverage.figures.into());
        pod.missing = pod.missing.with(coverage.missing);
        pod.contradicted = pod.contradicted.with(coverage.contradicted.and(self.declared.required()));
        pod.worst = pod.worst.max(coverage.freshness.min(Freshness::Aging));
        pod.estimable &= instead.is_none_or(|instead| instead.is_enough(self.declared.needed));
        let load = EngineLoad::seen(signals, reading.recent, self.now).with(instead);
        let (mut kv, mut queue) = (reading.kv, reading.queue);
        if let Some(instead) = instead {
            let waits = load.waits();
            // A queue that is shown and should not be there still keeps a fleet from being shrunk.
            let hides = instead.lacking.has(Signal::Waiting) && (queue == 0 || waits != Some(0.0));
            kv = load.usage(|signal| load.peak(signal)).unwrap_or(kv);
            queue = waits.map_or(queue, whole);
            if hides {
                // Whether an engine is full nobody knows whose limit is only estimated.
                let waits = waits.filter(|_| instead.is_argument);
                seen.queue_doubted.push((replica.pod.as_str(), waits.map(|waits| waits > 0.0)));
            }
        }
        seen.loads.push(load);
        let engine = several.then_some(engine.as_str());
        let variant = &self.variant().variant;
        let (replica, name, cost) = (replica.pod.as_str(), variant.id.name.as_str(), variant.cost);
        seen.observations.push(EnginePeaks { replica, engine, variant: name, cost, kv, queue });
    }
}

/// Of these one that is missing makes the other an aging one, which says enough: see [`read_engine`].
const TOLD_BY_FRESHNESS: SignalSet = SignalSet::of(&[Signal::KvUsage, Signal::Waiting]);

/// Half and more of the engines of Ready pods are not believed in `signal`.
pub(crate) fn most_contradict<'s>(
    seen: impl Iterator<Item = &'s VariantCoverage<'s>>,
    signal: Signal,
    now: Timestamp,
) -> bool {
    let (mut doubted, mut engines) = (0_u32, 0_u32);
    for one in seen {
        doubted = doubted.saturating_add(one.contradicted_engines(SignalSet::of(&[signal]), now));
        engines = engines.saturating_add(one.ready.saturating_mul(one.engines_a_pod));
    }
    doubted > 0 && doubted >= engines.saturating_sub(doubted)
}

impl VariantCoverage<'_> {
    /// Ready pods of which the analyzer is not shown all that it needs.
    #[must_use]
    pub fn unmeasured(&self) -> u32 {
        self.absent.saturating_add(self.stale).saturating_add(self.lacking)
    }

    /// Engines of which something that is in `reads` is not believed.
    pub(crate) fn contradicted_engines(&self, reads: SignalSet, now: Timestamp) -> u32 {
        let doubted = self.doubts.iter().filter(|(_, doubt)| !doubt.still(now).and(reads).is_empty());
        count(doubted.count())
    }

    /// Takes over what `sight`, a look for another analyzer, has measured; what the first one lacked stays told.
    pub(crate) fn measured_by(&mut self, sight: Self) {
        let Self { missing, contradicted, incomplete, .. } = *self;
        *self = Self { missing, contradicted, incomplete, ..sight };
    }

    /// Pods that the target counts as on their way, without those that will not come: no node has room for them, they were
    /// created more than `patience` ago, or they sleep. Those that were ready and have failed may come back, but for the `replaced` ones.
    #[must_use]
    pub fn credited(
        &self,
        variant: &VariantState,
        patience: Seconds,
        replaced: u32,
        now: Timestamp,
    ) -> Replicas {
        let pending = variant.scale.map_or(Replicas::ZERO, |scale| scale.pending());
        if self.starting == 0 && self.asleep == 0 {
            return pending;
        }
        let (lost, failing) = lost_and_failing(variant, patience, now);
        pending.above(Replicas::new(lost.saturating_add(replaced.min(failing))))
    }
}
