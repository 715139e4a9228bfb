//! Runs V1 for one role, and turns its finding into a step of one variant. Follows upstream's rules of v0.9
//! (`upstream::saturation_percent::targets`) with four corrections: a removal in progress does not forbid an addition; a change may take
//! 5 min, and not any time; a variant that is at its bound passes the step on to the next one; and a step is large enough to exceed an
//! HPA's tolerance, which ignores a change of one replica in ten or more.

use super::input::{RoleInput, analysis, blocker, no_removal_caveat};
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
    Analysis, AnalysisStep, Basis, Caveat, Detail, Direction, Finding, Quantity, Side, Step, Threshold, Value,
};
use crate::units::{Replicas, count, figure};
use jiff::Timestamp;

/// A variant that may take the step.
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
    /// Fewer replicas would suffice, but the coverage allows no removal.
    DownDenied,
    Steady,
}

/// What becomes of the step, with the index of the variant that it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepChoice {
    /// The variant takes the step.
    Taken(usize),
    /// The variant would lose replicas, but the smallest step is too large to be safe.
    Unsafe(usize),
    /// No variant can take a step, or none is needed.
    None,
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
    let choice = match direction {
        StepDirection::Up => choose_to_grow(&candidates).map_or(StepChoice::None, StepChoice::Taken),
        StepDirection::Down => choose_to_shrink(&candidates)
            .map_or(StepChoice::None, |index| check_step(index, &variants[index], &removal, context)),
        StepDirection::DownDenied | StepDirection::Steady => StepChoice::None,
    };
    let analysis = &analysis;
    let decision = StepDecision { context, state, allowed_moves, direction, choice, analysis, evidence };
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
    let busiest = observations().max_by(|left, right| load(left).total_cmp(&load(right)));
    let engines = variants.iter().map(|variant| variant.coverage.engines_per_pod.max(1)).max().unwrap_or(1);
    let copies = usize::try_from(unmeasured.saturating_mul(engines)).unwrap_or(usize::MAX);
    analyze(observations().chain(busiest.into_iter().cycle().take(copies)), policy)
}

/// The analyzer's numbers, and the spare capacities at which it would decide otherwise.
fn analysis_step(found: &PercentAnalysis, policy: &SaturationPolicy, analysis: Analysis) -> Step {
    let (kv, queue) = (found.avg_spare_kv, found.avg_spare_queue);
    let threshold = |to, is, quantity, at, now| Threshold { to, is, quantity, at, now };
    let (least_kv, least_queue) = found.spare_of_one_fewer(policy);
    let mut thresholds = Vec::with_capacity(4);
    if !found.scale_up {
        thresholds.push(threshold(
            Direction::More,
            Side::Below,
            Quantity::SpareKvCache,
            policy.kv_spare_trigger,
            kv,
        ));
        let trigger = policy.queue_spare_trigger;
        thresholds.push(threshold(Direction::More, Side::Below, Quantity::SpareQueue, trigger, queue));
    }
    if !found.scale_down_safe && found.non_saturated > 1 {
        thresholds.push(threshold(Direction::Fewer, Side::Above, Quantity::SpareKvCache, least_kv, kv));
        thresholds.push(threshold(Direction::Fewer, Side::Above, Quantity::SpareQueue, least_queue, queue));
    }
    let values = vec![
        Value::new(Quantity::Replicas, f64::from(found.total)),
        Value::new(Quantity::NonSaturatedReplicas, f64::from(found.non_saturated)),
        Value::new(Quantity::SpareKvCache, kv),
        Value::new(Quantity::SpareQueue, queue),
    ];
    Step::of_group(Detail::Analysis(AnalysisStep { analysis, values, thresholds }))
}

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

/// The variant whose last change all others wait for. A removal in progress does not delay an addition: it may have been a mistake.
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

/// The variant to add replicas to: the cheapest measured one that can grow; or else the cheapest at zero; or else the cheapest whose last
/// change is overdue. A variant whose pods fit on no node gets none.
fn choose_to_grow(candidates: &[StepCandidate<'_, '_>]) -> Option<usize> {
    let can_grow = |candidate: &&StepCandidate<'_, '_>| {
        candidate.variant.allows(candidate.variant.scale.base().plus_one())
    };
    let is_on_time = |candidate: &&StepCandidate<'_, '_>| {
        !matches!(candidate.movement, Movement::Overdue | Movement::Unschedulable)
    };
    let running = || candidates.iter().filter(|candidate| candidate.is_measured).filter(can_grow);
    let at_zero = || candidates.iter().filter(|candidate| !candidate.variant.is_active()).filter(can_grow);
    let overdue = || running().filter(|candidate| candidate.movement == Movement::Overdue);
    cheapest(running().filter(is_on_time)).or_else(|| cheapest(at_zero())).or_else(|| cheapest(overdue()))
}

fn cheapest<'r>(candidates: impl Iterator<Item = &'r StepCandidate<'r, 'r>>) -> Option<usize> {
    candidates.min_by(|left, right| left.variant.by_cost(right.variant)).map(|candidate| candidate.index)
}

/// The variant to remove replicas from: the most expensive that has more than one and more than its minimum; of equals the one whose name
/// sorts last.
fn choose_to_shrink(candidates: &[StepCandidate<'_, '_>]) -> Option<usize> {
    let can_shrink = |candidate: &&StepCandidate<'_, '_>| {
        let base = candidate.variant.scale.base();
        candidate.is_measured && base > Replicas::ONE && base > candidate.variant.bounds().min
    };
    let removable = candidates.iter().filter(can_shrink);
    removable.max_by(|left, right| left.variant.by_cost(right.variant)).map(|candidate| candidate.index)
}

/// Takes the step of `variant`, which is at `index`, if the remaining engines can carry the load. The analyzer's own test is about one engine
/// fewer, and a step may be several pods of several engines.
fn check_step(
    index: usize,
    variant: &VariantContext<'_>,
    analysis: &PercentAnalysis,
    context: ModelContext<'_>,
) -> StepChoice {
    let (base, fewer) = (variant.scale.base(), fewer(variant));
    let engines = |pods: Replicas| pods.get().saturating_mul(variant.coverage.engines_per_pod);
    // Surge pods of a rolling update are measured too, and go as well.
    let observed = count(variant.coverage.observations.len());
    let removed = observed.saturating_sub(engines(fewer)).max(engines(base.saturating_sub(fewer)));
    if analysis.safe_without(removed, &context.policy.saturation) {
        StepChoice::Taken(index)
    } else {
        StepChoice::Unsafe(index)
    }
}

/// The next higher number that an HPA acts on, or the maximum if that comes first.
fn more(variant: &VariantContext<'_>) -> Replicas {
    let next = next_above(variant.scale.base());
    variant.bounds().max.map_or(next, |max| next.min(max))
}

/// The next lower number that an HPA acts on, or the minimum if that comes first.
fn fewer(variant: &VariantContext<'_>) -> Replicas {
    next_below(variant.scale.base()).max(variant.bounds().min)
}

/// The published number, which stands while the last change of the `blocking` variant is in progress.
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
    choice: StepChoice,
    analysis: &'l Analysis,
    evidence: Timestamp,
}

impl StepDecision<'_, '_> {
    fn proposal(&self, candidate: &StepCandidate<'_, '_>) -> Proposal {
        let variant = candidate.variant;
        if self.choice == StepChoice::Taken(candidate.index) {
            return self.step(variant);
        }
        if !variant.is_active() {
            return holds::at_zero(self.context, variant);
        }
        if !candidate.is_measured {
            return holds::unmeasured_among_measured(self.context, self.evidence, variant);
        }
        let number = self.hold_if_unmeasured(variant, variant.scale.base());
        let (reason, caveat) = self.why_not(candidate);
        self.analyzed(variant, number, reason, caveat)
    }

    fn step(&self, variant: &VariantContext<'_>) -> Proposal {
        let is_incomplete = self.state.is_incomplete();
        let (number, reason) = match self.direction {
            StepDirection::Down => (fewer(variant), Reason::ScaleDown),
            _ if is_incomplete => (more(variant), Reason::Partial),
            _ => (more(variant), Reason::ScaleUp),
        };
        let number = self.hold_if_unmeasured(variant, number);
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

    /// `number`, or the published number where that is higher and the coverage allows no removal. What remains of a withdrawn order does
    /// not rise again to what runs.
    fn hold_if_unmeasured(&self, variant: &VariantContext<'_>, number: Replicas) -> Replicas {
        let published = variant.committed().unwrap_or(number);
        if self.allowed_moves.down {
            number
        } else if number == variant.scale.base() && variant.is_withdrawn() {
            published
        } else {
            number.max(published)
        }
    }

    /// Why the variant does not take the step.
    fn why_not(&self, candidate: &StepCandidate<'_, '_>) -> (Reason, Option<Caveat>) {
        let variant = candidate.variant;
        let is_partial = self.state == CoverageState::Partial;
        match self.direction {
            StepDirection::Up if self.choice == StepChoice::None => {
                (Reason::Bounded, Some(Caveat::Blocked { by: blocker(variant) }))
            }
            StepDirection::Down if self.choice == StepChoice::Unsafe(candidate.index) => {
                (Reason::Steady, Some(Caveat::StepTooLarge { to: fewer(variant) }))
            }
            StepDirection::DownDenied if !is_partial => (Reason::Stale, Some(Caveat::NotFresh)),
            _ if is_partial => (Reason::Partial, Some(no_removal_caveat(&self.context.group.source))),
            _ if self.state == CoverageState::Estimated => (Reason::Partial, Some(Caveat::EstimatedPods)),
            _ => (Reason::Steady, None),
        }
    }
}
