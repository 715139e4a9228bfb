//! The analyzer's look at a role, and its one step. Starts from upstream's August rules
//! (`upstream::saturation_percent::targets`) and mends four things: a shrink on its way does not forbid growth, a
//! change has [`crate::decide::TRANSITION_TIMEOUT`] and not for ever, a step that meets a bound goes to the next variant, and
//! a step goes past an HPA's tolerance, which would swallow one replica of ten or more.

use jiff::Timestamp;
use smol_str::SmolStr;

use crate::analyze::saturation_percent::{PercentAnalysis, analyze};
use crate::decide::classify::{newest, unseen_among_seen};
use crate::decide::context::{ModelContext, Proposal, VariantContext};
use crate::decide::{messages, zero};
use crate::decision::Reason;
use crate::model::SaturationPolicy;
use crate::quality::{AllowedMoves, CoverageState, EnginePeaks};
use crate::report::{Direction, Side, Stage, Step, Turn, Value};
use crate::units::{Replicas, count};

/// What of a variant's last change is still open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Movement {
    /// Nothing.
    Settled,
    /// Replicas are on their way.
    Growing,
    /// Replicas are about to go.
    Shrinking,
    /// Replicas should have come by now and have not.
    Overdue,
    /// Replicas wait for a node, or what was ordered twice never became ready: more of them would wait too.
    Unschedulable,
}

/// A variant as the step sees it.
struct StepCandidate<'m, 'a> {
    index: usize,
    variant: &'m VariantContext<'a>,
    movement: Movement,
    /// It has observations.
    is_measured: bool,
}

/// Which way the analyzer wants to go, after what the sight allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepDirection {
    Up,
    Down,
    /// Fewer would do, but not everything is known.
    DownDenied,
    Steady,
}

/// The analyzer's look at `variants`, of which at least one is seen.
pub(crate) fn look_and_step(
    context: ModelContext<'_>,
    state: CoverageState,
    variants: &[VariantContext<'_>],
    steps: &mut Vec<Step>,
) -> Vec<Proposal> {
    let active = variants.iter().filter(|variant| variant.active());
    let observations = active.flat_map(|variant| &variant.coverage.observations);
    let mut analysis = analyze(observations.clone(), &context.policy.saturation);
    let removal = cautious(context, state, variants, &analysis);
    analysis.scale_down_safe &= removal.scale_down_safe;
    let finding = messages::standing_in(&context, messages::finding(&analysis, &context.policy.saturation));
    steps.push(analyzed(&analysis, &context.policy.saturation, finding.clone()));
    let allowed_moves = state.allowed_moves();
    let direction = direction(&analysis, allowed_moves);
    let candidates = candidates(context, variants);
    let evidence = newest(variants, context.now);
    if let Some(mover) = blocking(&candidates, direction) {
        let waiting = messages::transition(mover.variant);
        steps.push(Step::new(Stage::Target, Some(mover.variant.name()), waiting.clone()));
        return variants.iter().map(|variant| wait(context, evidence, &waiting, variant)).collect();
    }
    let (chosen, unsafe_step) = match direction {
        StepDirection::Up => (grow(&candidates), None),
        StepDirection::Down => safely(shrink(&candidates), variants, &removal, context),
        StepDirection::DownDenied | StepDirection::Steady => (None, None),
    };
    let look =
        Look { context, state, allowed_moves, direction, chosen, unsafe_step, finding: &finding, evidence };
    let proposals: Vec<Proposal> = candidates.iter().map(|candidate| look.proposal(candidate)).collect();
    for (variant, proposal) in variants.iter().zip(&proposals) {
        steps.push(Step::new(Stage::Target, Some(variant.name()), proposal.message.clone()));
    }
    proposals
}

/// What a removal is judged by: pods that are not measured count as loaded like the busiest that is.
fn cautious(
    context: ModelContext<'_>,
    state: CoverageState,
    variants: &[VariantContext<'_>],
    measured: &PercentAnalysis,
) -> PercentAnalysis {
    let unmeasured: u32 =
        variants.iter().filter(|variant| variant.active()).map(|variant| variant.coverage.unmeasured()).sum();
    if state != CoverageState::Estimated || unmeasured == 0 {
        return measured.clone();
    }
    let observations = || {
        variants.iter().filter(|variant| variant.active()).flat_map(|variant| &variant.coverage.observations)
    };
    let policy = &context.policy.saturation;
    let load = |one: &EnginePeaks<'_>| {
        (one.kv / policy.kv_cache_threshold).max(f64::from(one.queue) / policy.queue_length_threshold)
    };
    let busiest = observations().max_by(|a, b| load(a).total_cmp(&load(b)));
    let engines = variants.iter().map(|variant| variant.coverage.engines_per_pod.max(1)).max().unwrap_or(1);
    let copies = usize::try_from(unmeasured.saturating_mul(engines)).unwrap_or(usize::MAX);
    analyze(observations().chain(busiest.into_iter().cycle().take(copies)), policy)
}

/// The analyzer's numbers, and the spare capacities at which it would want something else.
fn analyzed(analysis: &PercentAnalysis, policy: &SaturationPolicy, finding: SmolStr) -> Step {
    let (kv, queue) = (analysis.avg_spare_kv, analysis.avg_spare_queue);
    let turn = |to, is, when, at, now| Turn { to, is, when: SmolStr::new_static(when), at, now };
    let (least_kv, least_queue) = analysis.spare_of_one_fewer(policy);
    let mut turns = Vec::with_capacity(4);
    if !analysis.scale_up {
        turns.push(turn(Direction::More, Side::Below, SPARE_KV, policy.kv_spare_trigger, kv));
        turns.push(turn(Direction::More, Side::Below, SPARE_QUEUE, policy.queue_spare_trigger, queue));
    }
    if !analysis.scale_down_safe && analysis.non_saturated > 1 {
        turns.push(turn(Direction::Fewer, Side::Above, SPARE_KV, least_kv, kv));
        turns.push(turn(Direction::Fewer, Side::Above, SPARE_QUEUE, least_queue, queue));
    }
    let values = vec![
        Value::new("replicas", f64::from(analysis.total)),
        Value::new("replicas below saturation", f64::from(analysis.non_saturated)),
        Value::new(SPARE_KV, kv),
        Value::new(SPARE_QUEUE, queue),
    ];
    Step { values, turns, ..Step::new(Stage::Analyze, None, finding) }
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
        let is_measured = variant.active() && !variant.coverage.observations.is_empty();
        StepCandidate { index, variant, movement: movement(variant, context.now), is_measured }
    };
    variants.iter().enumerate().map(candidate).collect()
}

pub(crate) fn movement(variant: &VariantContext<'_>, now: Timestamp) -> Movement {
    let base = variant.scale.base();
    // A committed 0 that still runs was taken back or never meant: like upstream's, it is no number to wait for.
    // And what the bounds have taken from a promise will not come.
    let bounds = variant.state.variant.bounds;
    let target =
        variant.committed().map(|target| bounds.clamp(target)).filter(|target| *target > Replicas::ZERO);
    let target = target.unwrap_or(base);
    let pending = variant.scale.pending();
    let credited = variant.credited(now);
    if !variant.active() {
        Movement::Settled
    } else if credited > Replicas::ZERO || (target > base && variant.patient(now)) {
        Movement::Growing
    } else if variant.is_growth_futile(now) {
        Movement::Unschedulable
    } else if target > base || pending > Replicas::ZERO {
        Movement::Overdue
    } else if target < base && variant.patient(now) {
        Movement::Shrinking
    } else {
        Movement::Settled
    }
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

/// Who gets one more: the cheapest that runs and can grow, else the cheapest that sleeps, else one whose last change
/// is overdue. One whose replicas fit on no node gets none.
fn grow(candidates: &[StepCandidate<'_, '_>]) -> Option<usize> {
    let able = |candidate: &&StepCandidate<'_, '_>| {
        candidate.variant.allows(candidate.variant.scale.base().plus_one())
    };
    let settled = |candidate: &&StepCandidate<'_, '_>| {
        !matches!(candidate.movement, Movement::Overdue | Movement::Unschedulable)
    };
    let running = || candidates.iter().filter(|candidate| candidate.is_measured).filter(able);
    let asleep = || candidates.iter().filter(|candidate| !candidate.variant.active()).filter(able);
    let overdue = || running().filter(|candidate| candidate.movement == Movement::Overdue);
    cheapest(running().filter(settled)).or_else(|| cheapest(asleep())).or_else(|| cheapest(overdue()))
}

fn cheapest<'r>(candidates: impl Iterator<Item = &'r StepCandidate<'r, 'r>>) -> Option<usize> {
    candidates.min_by(|a, b| a.variant.by_cost(b.variant)).map(|candidate| candidate.index)
}

/// Who loses one: the dearest that has more than one and more than its minimum; of equals the name that sorts last.
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

/// The next number above: at least one more, and outside the tolerance of an HPA, which takes anything up to
/// 11 tenths of what runs for equal. A maximum on the way is as far as it goes.
fn more(variant: &VariantContext<'_>) -> Replicas {
    let base = u64::from(variant.scale.base().get());
    let beyond = (base + 1).max(base * 11 / 10 + 1);
    let wanted = Replicas::new(u32::try_from(beyond).unwrap_or(u32::MAX));
    variant.state.variant.bounds.max.map_or(wanted, |max| wanted.min(max))
}

/// The next number below: at least one fewer, and outside the tolerance of an HPA, which takes anything down to
/// 9 tenths of what runs for equal. A minimum on the way is as far as it goes.
fn fewer(variant: &VariantContext<'_>) -> Replicas {
    let base = u64::from(variant.scale.base().get());
    let beyond = (base * 9).div_ceil(10).saturating_sub(1);
    let wanted = Replicas::new(u32::try_from(beyond).unwrap_or(u32::MAX));
    wanted.max(variant.state.variant.bounds.min)
}

/// In a transition everything stays as it was committed.
fn wait(
    context: ModelContext<'_>,
    evidence: Timestamp,
    waiting: &SmolStr,
    variant: &VariantContext<'_>,
) -> Proposal {
    if !variant.active() {
        return zero::asleep(context, variant);
    }
    if variant.committed().is_none() && variant.coverage.observations.is_empty() {
        return unseen_among_seen(context, evidence, variant);
    }
    let number = Some(variant.committed().unwrap_or(variant.scale.base()));
    Proposal {
        number,
        reason: Reason::Transition,
        message: waiting.clone(),
        evidence,
        blind: false,
        look: None,
    }
}

/// A finished look, ready to be put into proposals.
struct Look<'l, 'a> {
    context: ModelContext<'a>,
    state: CoverageState,
    allowed_moves: AllowedMoves,
    direction: StepDirection,
    chosen: Option<usize>,
    /// Would have lost replicas, but its step is too large to be safe.
    unsafe_step: Option<usize>,
    finding: &'l str,
    evidence: Timestamp,
}

impl Look<'_, '_> {
    fn proposal(&self, candidate: &StepCandidate<'_, '_>) -> Proposal {
        let variant = candidate.variant;
        if self.chosen == Some(candidate.index) {
            return self.stepped(variant);
        }
        if !variant.active() {
            return zero::asleep(self.context, variant);
        }
        if !candidate.is_measured {
            return unseen_among_seen(self.context, self.evidence, variant);
        }
        let number = self.never_lower_unseen(variant, variant.scale.base());
        let (reason, message) = self.why_not(candidate);
        self.looked(number, reason, message)
    }

    fn stepped(&self, variant: &VariantContext<'_>) -> Proposal {
        let (wanted, reason) = match self.direction {
            StepDirection::Down => (fewer(variant), Reason::ScaleDown),
            _ if self.state.is_incomplete() => (more(variant), Reason::Partial),
            _ => (more(variant), Reason::ScaleUp),
        };
        let number = self.never_lower_unseen(variant, wanted);
        let message = messages::stepped(variant, number, self.finding, self.state);
        self.looked(number, reason, message)
    }

    fn looked(&self, number: Replicas, reason: Reason, message: SmolStr) -> Proposal {
        let (evidence, look) = (self.evidence, Some(self.allowed_moves));
        Proposal { number: Some(number), reason, message, evidence, blind: false, look }
    }

    /// What is not fully measured may not go below what was promised.
    fn never_lower_unseen(&self, variant: &VariantContext<'_>, wanted: Replicas) -> Replicas {
        let promised = variant.committed().unwrap_or(wanted);
        if self.allowed_moves.down {
            wanted
        } else if wanted == variant.scale.base() && variant.is_withdrawn() {
            promised
        } else {
            wanted.max(promised)
        }
    }

    fn why_not(&self, candidate: &StepCandidate<'_, '_>) -> (Reason, SmolStr) {
        let variant = candidate.variant;
        let partial = self.state == CoverageState::Partial;
        match self.direction {
            StepDirection::Up if self.chosen.is_none() => {
                (Reason::Bounded, messages::no_room(variant, self.finding))
            }
            StepDirection::Down if self.unsafe_step == Some(candidate.index) => {
                (Reason::Steady, messages::unsafe_step(variant, fewer(variant), self.finding))
            }
            StepDirection::DownDenied if !partial => (Reason::Stale, messages::denied(variant, self.finding)),
            _ if partial => {
                (Reason::Partial, messages::incomplete(variant, &self.context.group.source, self.finding))
            }
            _ if self.state == CoverageState::Estimated => {
                (Reason::Partial, messages::estimated(variant, self.finding))
            }
            _ => (Reason::Steady, messages::steady(variant, self.finding)),
        }
    }
}
