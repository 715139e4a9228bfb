//! Runs the analyzers of a decision, and turns their answers into proposals.

mod capacity;
pub(super) mod fallback;
pub(super) mod input;
mod latency;
mod movement;
mod observation;
mod rate;
mod saturation_percent;
mod score;
mod sequences;

pub(super) use self::capacity::candidate;

use self::input::RoleInput;
use super::context::{ModelContext, VariantContext, newest_sample};
use super::model::{ModelDecision, OptimizerInput};
use super::proposal::Proposal;
use super::{holds, zero};
use crate::memory::Learned;
use crate::model::Analyzer;
use crate::model::Role;
use crate::quality::{AssessedVariant, CoverageState, VariantCoverage, coverage_state};
use crate::report::{CoverageStep, Detail, Step};

#[derive(Default)]
struct Pass {
    proposals: Vec<Proposal>,
    steps: Vec<Step>,
    /// One has decided for this cycle.
    has_analyzed: bool,
    /// The roles about which the model's own analyzer was asked, each with whether it found nothing.
    asked: Vec<(Role, bool)>,
    optimizer_input: Option<OptimizerInput>,
}

struct RolePass {
    proposals: Vec<Proposal>,
    has_analyzed: bool,
    /// It was, and found nothing: it does not know what a replica carries, or what arrives.
    is_silent: bool,
    /// What the observations are worth to analyzers of capacity, which are asked about all roles together.
    open: Option<CoverageState>,
}

/// Proposes a number for every variant of `model`.
pub(super) fn analyze(model: &mut ModelDecision<'_>) {
    let context = model.context;
    let mut learned = model.memory.learned.take().unwrap_or_default();
    let mut pass = run(model, &mut learned);
    let unlearned = fallback::choose_unlearned(context, &mut model.variants, &pass.asked, &mut learned);
    if unlearned.is_empty() {
        model.fallbacks.extend(fallback::between_cycles(context, &pass.asked, &learned));
    } else {
        // The model's own analyzer runs first in every cycle although it finds nothing, so that it goes on learning.
        model.fallbacks.extend(unlearned);
        // The other analyzers have learned already; of the fallbacks only the token analyzer learns.
        let mut again = learned.clone();
        pass = run(model, &mut again);
        if context.analyzer != Analyzer::Saturation {
            learned.tokens = again.tokens;
        }
        learned.fallback_share = again.fallback_share;
    }
    if pass.has_analyzed {
        model.memory.cycle_at = Some(context.now);
    }
    if context.policy.analyzer != Analyzer::Rate {
        // A model that is decided by another analyzer need not go on learning for the rate policy.
        learned.rate = None;
    }
    if model.fallbacks.is_empty() {
        learned.fallback_share = None;
    }
    learned.checkpoint(context.now);
    model.memory.learned = Some(learned).filter(|learned| **learned != Learned::default());
    model.proposals = pass.proposals;
    model.optimizer_input = pass.optimizer_input;
    if model.steps.is_empty() {
        model.steps = pass.steps;
    } else {
        model.steps.extend(pass.steps);
    }
}

/// Runs the analyzer of each role of `model`; a capacity analyzer runs once for all its roles.
fn run(model: &ModelDecision<'_>, learned: &mut Learned) -> Pass {
    let role = |variant: &VariantContext<'_>| variant.state.variant.role;
    let mut pass = Pass::default();
    let (mut open, mut open_analyzer) = (Vec::new(), model.context.analyzer);
    for variants in model.variants.chunk_by(|variant, next| role(variant) == role(next)) {
        let Some(role) = variants.first().map(role) else { continue };
        let analyzer = model.fallback(role).unwrap_or(model.context.analyzer);
        let context = ModelContext { saturated: model.is_saturated(role), analyzer, ..model.context };
        let of_role = analyze_role(context, role, variants, learned, &mut pass.steps);
        // The rate policy decides at every evaluation, and one that stands in for it in another role once a cycle.
        pass.has_analyzed |=
            of_role.has_analyzed && (analyzer != Analyzer::Rate || model.fallbacks.is_empty());
        if analyzer == Analyzer::Rate && of_role.has_analyzed {
            pass.asked.push((role, of_role.is_silent));
        }
        if let Some(state) = of_role.open {
            open.push((role, state));
            open_analyzer = analyzer;
        }
        if pass.proposals.is_empty() {
            pass.proposals = of_role.proposals;
        } else {
            pass.proposals.extend(of_role.proposals);
        }
    }
    if !open.is_empty() {
        let context = model.context.by(open_analyzer);
        let roles: Vec<Role> = open.iter().map(|(role, _)| *role).collect();
        pass.optimizer_input = capacity::ask(context, &model.variants, open, learned, &mut pass.steps);
        if !context.is_fallback() {
            let is_silent = pass.optimizer_input.as_ref().is_none_or(OptimizerInput::is_silent);
            pass.asked.extend(roles.into_iter().map(|role| (role, is_silent)));
        }
    }
    pass
}

/// The row of the observation table that the variants of one role are in, and what follows. The only dispatch over analyzers.
fn analyze_role(
    context: ModelContext<'_>,
    role: Role,
    variants: &[VariantContext<'_>],
    learned: &mut Learned,
    steps: &mut Vec<Step>,
) -> RolePass {
    let active = variants.iter().filter(|variant| variant.is_active());
    let observed: Vec<AssessedVariant<'_>> =
        active.map(|variant| (variant.state, &variant.coverage)).collect();
    let state = coverage_state(&context.group.source, &observed, context.now);
    // A fallback decides about additions only.
    let state =
        if context.is_fallback() && state > CoverageState::Partial { CoverageState::Partial } else { state };
    steps.reserve(2 + variants.len());
    steps.push(coverage_step(role, state, &observed));
    let input = RoleInput { context, role, state, variants };
    let is_rate = context.analyzer == Analyzer::Rate;
    let mut of_role = RolePass { proposals: Vec::new(), has_analyzed: false, is_silent: false, open: None };
    let all = |proposal: &dyn Fn(&VariantContext<'_>) -> Proposal| variants.iter().map(proposal).collect();
    of_role.proposals = match state {
        CoverageState::Down => all(&|variant| holds::source_down(context, variant)),
        CoverageState::Zero => zero::wake_up(context, variants, learned, steps),
        CoverageState::Starting => holds::starting(context, variants),
        CoverageState::Missing | CoverageState::Stale => {
            all(&|variant| holds::unmeasured(context, state, variant))
        }
        CoverageState::Partial | CoverageState::Aging | CoverageState::Estimated | CoverageState::Fresh
            if context.due || is_rate =>
        {
            of_role.has_analyzed = true;
            match context.analyzer {
                Analyzer::Rate => {
                    let proposals = rate::propose(&input, learned, steps);
                    of_role.is_silent = proposals.is_none();
                    proposals.unwrap_or_else(|| all(&|variant| rate::unknown(&input, variant)))
                }
                Analyzer::SaturationPercent => saturation_percent::propose(&input, steps),
                Analyzer::Threshold => score::propose(&input, None, steps),
                Analyzer::Weighted => score::propose(&input, Some(&mut learned.bests), steps),
                Analyzer::Saturation | Analyzer::Throughput | Analyzer::QueueingModel | Analyzer::Inferno => {
                    of_role.open = Some(state);
                    between_cycles(context, variants)
                }
            }
        }
        CoverageState::Partial | CoverageState::Aging | CoverageState::Estimated | CoverageState::Fresh => {
            between_cycles(context, variants)
        }
    };
    if is_rate && matches!(state, CoverageState::Zero | CoverageState::Starting) {
        rate::raise(&input, learned, &mut of_role.proposals, steps);
    }
    of_role
}

fn between_cycles(context: ModelContext<'_>, variants: &[VariantContext<'_>]) -> Vec<Proposal> {
    let evidence = newest_sample(variants, context.now);
    variants.iter().map(|variant| holds::between_cycles(context, evidence, variant)).collect()
}

fn coverage_step(role: Role, state: CoverageState, observed: &[AssessedVariant<'_>]) -> Step {
    let sum = |part: fn(&VariantCoverage<'_>) -> u32| {
        observed.iter().map(|(_, coverage)| part(coverage)).fold(0, u32::saturating_add)
    };
    Step::of_group(Detail::Coverage(CoverageStep {
        role,
        state,
        ready: sum(|coverage| coverage.ready),
        fresh: sum(|coverage| coverage.fresh),
        aging: sum(|coverage| coverage.aging),
        stale: sum(|coverage| coverage.stale),
        absent: sum(|coverage| coverage.absent),
        lacking: sum(|coverage| coverage.lacking),
        starting: sum(|coverage| coverage.starting),
        unschedulable: sum(|coverage| coverage.unschedulable),
        asleep: sum(|coverage| coverage.asleep),
    }))
}
