//! The analyzer's look at a role, and its one step. Starts from upstream's August rules
//! (`upstream::saturation_percent::targets`) and mends four things: a shrink on its way does not forbid growth, a
//! change has 5 min and not for ever, a step that meets a bound goes to the next variant, and
//! a step goes past an HPA's tolerance, which would swallow one replica of ten or more.

use jiff::Timestamp;
use smol_str::SmolStr;

use super::input::{RoleInput, analysis, blocker, removes_nothing};
use super::movement::{Movement, movement};
use crate::analyze::saturation_percent::{PercentAnalysis, analyze};
use crate::decide::context::{ModelContext, VariantContext, newest_sample};
use crate::decide::holds;
use crate::decide::proposal::{Analyzed, Proposal};
use crate::decision::Reason;
use crate::hpa::{next_above, next_below};
use crate::model::SaturationPolicy;
use crate::quality::{AllowedMoves, CoverageState, EnginePeaks};
use crate::report::{
    Analysis, AnalysisStep, Basis, Caveat, Detail, Direction, Finding, Side, Step, Threshold, Value,
};
use crate::units::{Replicas, count, figure};

/// A variant as the step sees it.
struct StepCandidate<'m, 'a> {
    index: usize,
    variant: &'m VariantContext<'a>,
    movement: Movement,
    is_measured: bool,
}

/// The direction of the step, as far as the coverage allows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepDirection {
    Up,
    Down,
    /// Fewer would do, but not everything is known.
    DownDenied,
    Steady,
}

pub(crate) fn propose(input: &RoleInput<'_, '_>, steps: &mut Vec<Step>) -> Vec<Proposal> {
    let RoleInput { context, state, variants, .. } = *input;
    let active = variants.iter().filter(|variant| variant.is_active());
    let observations = active.flat_map(|variant| &variant.coverage.observations);
    let mut found = analyze(observations, &context.policy.saturation);
    let removal = cautious(context, state, variants, &found);
    found.scale_down_safe &= removal.scale_down_safe;
    let analysis = analysis(context, finding(&found, &context.policy.saturation));
    steps.push(analysis_step(&found, &context.policy.saturation, analysis.clone()));
    let allowed_moves = state.allowed_moves();
    let direction = direction(&found, allowed_moves);
    let candidates = candidates(context, variants);
    let evidence = newest_sample(variants, context.now);
    if let Some(blocking) = blocking(&candidates, direction) {
        let proposals: Vec<Proposal> =
            variants.iter().map(|variant| wait(context, evidence, blocking.variant, variant)).collect();
        let explanation = proposals[blocking.index].explanation.clone();
        steps.push(Step::target(blocking.variant.name(), explanation));
        return proposals;
    }
    let (chosen, unsafe_step) = match direction {
        StepDirection::Up => (grow(&candidates), None),
        StepDirection::Down => safely(shrink(&candidates), variants, &removal, context),
        StepDirection::DownDenied | StepDirection::Steady => (None, None),
    };
    let analysis = &analysis;
    let decision =
        StepDecision { context, state, allowed_moves, direction, chosen, unsafe_step, analysis, evidence };
    let proposals: Vec<Proposal> = candidates.iter().map(|candidate| decision.proposal(candidate)).collect();
    for (variant, proposal) in variants.iter().zip(&proposals) {
        steps.push(Step::target(variant.name(), proposal.explanation.clone()));
    }
    proposals
}

fn finding(found: &PercentAnalysis, policy: &SaturationPolicy) -> Finding {
    Finding::SaturationPercent {
        spare_kv: figure(found.avg_spare_kv),
        kv_trigger: policy.kv_spare_trigger,
        spare_queue: figure(found.avg_spare_queue),
        queue_trigger: policy.queue_spare_trigger,
        non_saturated: found.non_saturated,
        total: found.total,
    }
}

/// The analysis by which a removal is judged: unmeasured pods count like the busiest measured one.
fn cautious(
    context: ModelContext<'_>,
    state: CoverageState,
    variants: &[VariantContext<'_>],
    measured: &PercentAnalysis,
) -> PercentAnalysis {
    let unmeasured: u32 = variants
        .iter()
        .filter(|variant| variant.is_active())
        .map(|variant| variant.coverage.unmeasured())
        .sum();
    if state != CoverageState::Estimated || unmeasured == 0 {
        return measured.clone();
    }
    let observations = || {
        variants
            .iter()
            .filter(|variant| variant.is_active())
            .flat_map(|variant| &variant.coverage.observations)
    };
    let policy = &context.policy.saturation;
    let load = |peaks: &EnginePeaks<'_>| {
        (peaks.kv / policy.kv_cache_threshold).max(f64::from(peaks.queue) / policy.queue_length_threshold)
    };
    let busiest = observations().max_by(|a, b| load(a).total_cmp(&load(b)));
    let engines = variants.iter().map(|variant| variant.coverage.engines_per_pod.max(1)).max().unwrap_or(1);
    let copies = usize::try_from(unmeasured.saturating_mul(engines)).unwrap_or(usize::MAX);
    analyze(observations().chain(busiest.into_iter().cycle().take(copies)), policy)
}

/// The analyzer's numbers, and the spare capacities at which it would decide otherwise.
fn analysis_step(found: &PercentAnalysis, policy: &SaturationPolicy, analysis: Analysis) -> Step {
    let (kv, queue) = (found.avg_spare_kv, found.avg_spare_queue);
    let threshold = |to, is, when, at, now| Threshold { to, is, when: SmolStr::new_static(when), at, now };
    let (least_kv, least_queue) = found.spare_of_one_fewer(policy);
    let mut thresholds = Vec::with_capacity(4);
    if !found.scale_up {
        thresholds.push(threshold(Direction::More, Side::Below, SPARE_KV, policy.kv_spare_trigger, kv));
        let trigger = policy.queue_spare_trigger;
        thresholds.push(threshold(Direction::More, Side::Below, SPARE_QUEUE, trigger, queue));
    }
    if !found.scale_down_safe && found.non_saturated > 1 {
        thresholds.push(threshold(Direction::Fewer, Side::Above, SPARE_KV, least_kv, kv));
        thresholds.push(threshold(Direction::Fewer, Side::Above, SPARE_QUEUE, least_queue, queue));
    }
    let values = vec![
        Value::new("replicas", f64::from(found.total)),
        Value::new("replicas below saturation", f64::from(found.non_saturated)),
        Value::new(SPARE_KV, kv),
        Value::new(SPARE_QUEUE, queue),
    ];
    Step::of_group(Detail::Analysis(AnalysisStep { analysis, values, thresholds }))
}

const SPARE_KV: &str = "mean spare KV cache";
const SPARE_QUEUE: &str = "mean spare queue";

fn direction(analysis: &PercentAnalysis, allowed_moves: AllowedMoves) -> StepDirection {
    match (analysis.scale_up, analysis.scale_down_safe) {
        (true, _) => StepDirection::Up,
        (false, true) if allowed_moves.down => StepDirection::Down,
        (false, true) => StepDirection::DownDenied,
        (false, false) => StepDirection::Steady,
    }
}

fn candidates<'m, 'a>(
    context: ModelContext<'_>,
    variants: &'m [VariantContext<'a>],
) -> Vec<StepCandidate<'m, 'a>> {
    let candidate = |(index, variant): (usize, &'m VariantContext<'a>)| {
        let is_measured = variant.is_active() && !variant.coverage.observations.is_empty();
        StepCandidate { index, variant, movement: movement(variant, context.now), is_measured }
    };
    variants.iter().enumerate().map(candidate).collect()
}

/// The variant everybody waits for. A shrink on its way is no reason not to grow: it may be the mistake.
fn blocking<'r, 'm, 'a>(
    candidates: &'r [StepCandidate<'m, 'a>],
    direction: StepDirection,
) -> Option<&'r StepCandidate<'m, 'a>> {
    let growing = candidates.iter().find(|candidate| candidate.movement == Movement::Growing);
    growing.or_else(|| {
        let shrinking = candidates.iter().find(|candidate| candidate.movement == Movement::Shrinking);
        shrinking.filter(|_| direction != StepDirection::Up)
    })
}

/// The variant that gets one more: the cheapest that runs and can grow, else the cheapest that sleeps, else one whose last change
/// is overdue. One whose replicas fit on no node gets none.
fn grow(candidates: &[StepCandidate<'_, '_>]) -> Option<usize> {
    let able = |candidate: &&StepCandidate<'_, '_>| {
        candidate.variant.allows(candidate.variant.scale.base().plus_one())
    };
    let settled = |candidate: &&StepCandidate<'_, '_>| {
        !matches!(candidate.movement, Movement::Overdue | Movement::Unschedulable)
    };
    let running = || candidates.iter().filter(|candidate| candidate.is_measured).filter(able);
    let asleep = || candidates.iter().filter(|candidate| !candidate.variant.is_active()).filter(able);
    let overdue = || running().filter(|candidate| candidate.movement == Movement::Overdue);
    cheapest(running().filter(settled)).or_else(|| cheapest(asleep())).or_else(|| cheapest(overdue()))
}

fn cheapest<'r>(candidates: impl Iterator<Item = &'r StepCandidate<'r, 'r>>) -> Option<usize> {
    candidates.min_by(|a, b| a.variant.by_cost(b.variant)).map(|candidate| candidate.index)
}

/// The variant that loses one: the dearest that has more than one and more than its minimum; of equals the name that sorts last.
fn shrink(candidates: &[StepCandidate<'_, '_>]) -> Option<usize> {
    let able = |candidate: &&StepCandidate<'_, '_>| {
        let base = candidate.variant.scale.base();
        candidate.is_measured && base > Replicas::ONE && base > candidate.variant.state.variant.bounds.min
    };
    let dearest = candidates.iter().filter(able).max_by(|a, b| a.variant.by_cost(b.variant));
    dearest.map(|candidate| candidate.index)
}

/// The variant to shrink if the others can carry what its whole step takes away; else `(None, that variant)`. The
/// analyzer's own test is about one engine, and a step may be several pods of several engines.
fn safely(
    chosen: Option<usize>,
    variants: &[VariantContext<'_>],
    analysis: &PercentAnalysis,
    context: ModelContext<'_>,
) -> (Option<usize>, Option<usize>) {
    let safe = |index: &usize| {
        let variant = &variants[*index];
        let (base, fewer) = (variant.scale.base(), fewer(variant));
        let engines = |pods: Replicas| pods.get().saturating_mul(variant.coverage.engines_per_pod);
        // Pods beyond the base (a rolling update's) are measured too and leave as well.
        let observed = count(variant.coverage.observations.len());
        let removed = observed.saturating_sub(engines(fewer)).max(engines(base.saturating_sub(fewer)));
        analysis.safe_without(removed, &context.policy.saturation)
    };
    match chosen {
        Some(index) if safe(&index) => (chosen, None),
        _ => (None, chosen),
    }
}

/// The next number above that an HPA acts on. A maximum on the way is as far as it goes.
fn more(variant: &VariantContext<'_>) -> Replicas {
    let wanted = next_above(variant.scale.base());
    variant.state.variant.bounds.max.map_or(wanted, |max| wanted.min(max))
}

/// The next number below that an HPA acts on. A minimum on the way is as far as it goes.
fn fewer(variant: &VariantContext<'_>) -> Replicas {
    next_below(variant.scale.base()).max(variant.state.variant.bounds.min)
}

/// In a transition everything stays as it was published; all variants of the role wait for the one that is `blocking`.
fn wait(
    context: ModelContext<'_>,
    evidence: Timestamp,
    blocking: &VariantContext<'_>,
    variant: &VariantContext<'_>,
) -> Proposal {
    if !variant.is_active() {
        return holds::at_zero(context, variant);
    }
    if variant.committed().is_none() && variant.coverage.observations.is_empty() {
        return holds::unmeasured_among_measured(context, evidence, variant);
    }
    let number = variant.committed().unwrap_or(variant.scale.base());
    let name = (blocking.name() != variant.name()).then(|| blocking.name().clone());
    let running = blocking.scale.base();
    let basis = match blocking.committed() {
        Some(desired) if desired != running => Basis::AwaitingReplicas { variant: name, desired, running },
        _ => Basis::AwaitingReady { variant: name, pending: blocking.scale.pending(), running },
    };
    Proposal::standing(variant, Some(number), Reason::Transition, basis, evidence)
}

struct StepDecision<'l, 'a> {
    context: ModelContext<'a>,
    state: CoverageState,
    allowed_moves: AllowedMoves,
    direction: StepDirection,
    chosen: Option<usize>,
    /// Would have lost replicas, but its step is too large to be safe.
    unsafe_step: Option<usize>,
    analysis: &'l Analysis,
    evidence: Timestamp,
}

impl StepDecision<'_, '_> {
    fn proposal(&self, candidate: &StepCandidate<'_, '_>) -> Proposal {
        let variant = candidate.variant;
        if self.chosen == Some(candidate.index) {
            return self.stepped(variant);
        }
        if !variant.is_active() {
            return holds::at_zero(self.context, variant);
        }
        if !candidate.is_measured {
            return holds::unmeasured_among_measured(self.context, self.evidence, variant);
        }
        let number = self.never_lower_unmeasured(variant, variant.scale.base());
        let (reason, caveat) = self.why_not(candidate);
        self.analyzed(variant, number, reason, caveat)
    }

    fn stepped(&self, variant: &VariantContext<'_>) -> Proposal {
        let is_incomplete = self.state.is_incomplete();
        let (wanted, reason) = match self.direction {
            StepDirection::Down => (fewer(variant), Reason::ScaleDown),
            _ if is_incomplete => (more(variant), Reason::Partial),
            _ => (more(variant), Reason::ScaleUp),
        };
        let number = self.never_lower_unmeasured(variant, wanted);
        self.analyzed(variant, number, reason, is_incomplete.then_some(Caveat::PartiallyMeasured))
    }

    fn analyzed(
        &self,
        variant: &VariantContext<'_>,
        number: Replicas,
        reason: Reason,
        caveat: Option<Caveat>,
    ) -> Proposal {
        let StepDecision { evidence, allowed_moves, analysis, .. } = *self;
        Proposal::analyzed(variant, Analyzed { number, reason, evidence, allowed_moves, analysis, caveat })
    }

    /// An incompletely measured variant stays at or above its published number.
    fn never_lower_unmeasured(&self, variant: &VariantContext<'_>, wanted: Replicas) -> Replicas {
        let published = variant.committed().unwrap_or(wanted);
        if self.allowed_moves.down {
            wanted
        } else if wanted == variant.scale.base() && variant.is_withdrawn() {
            published
        } else {
            wanted.max(published)
        }
    }

    /// Why a variant is not the one that takes the step.
    fn why_not(&self, candidate: &StepCandidate<'_, '_>) -> (Reason, Option<Caveat>) {
        let variant = candidate.variant;
        let is_partial = self.state == CoverageState::Partial;
        match self.direction {
            StepDirection::Up if self.chosen.is_none() => {
                (Reason::Bounded, Some(Caveat::Blocked { by: blocker(variant) }))
            }
            StepDirection::Down if self.unsafe_step == Some(candidate.index) => {
                (Reason::Steady, Some(Caveat::StepTooLarge { to: fewer(variant) }))
            }
            StepDirection::DownDenied if !is_partial => (Reason::Stale, Some(Caveat::NotFresh)),
            _ if is_partial => (Reason::Partial, Some(removes_nothing(&self.context.group.source))),
            _ if self.state == CoverageState::Estimated => (Reason::Partial, Some(Caveat::EstimatedPods)),
            _ => (Reason::Steady, None),
        }
    }
}
