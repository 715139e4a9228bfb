//! Runs the analyzers of a decision, and turns their findings into proposals.

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

use self::fallback::AskedRole;
use self::input::RoleInput;
use super::context::{ModelContext, VariantContext, by_role, newest_sample};
use super::model::{ModelDecision, OptimizerInput};
use super::proposal::Proposal;
use super::{holds, zero};
use crate::memory::Learned;
use crate::model::{Analyzer, Role};
use crate::quality::{AssessedVariant, CoverageState, VariantCoverage, coverage_state};
use crate::report::{CoverageStep, Detail, Step};
use crate::units::Replicas;

/// The results of one run of the analyzers over all roles of a model.
#[derive(Default)]
struct Analyses {
    proposals: Vec<Proposal>,
    steps: Vec<Step>,
    /// An analyzer has decided, so the next cycle starts now.
    is_cycle: bool,
    /// The roles about which the model's own analyzer was asked.
    asked_roles: Vec<AskedRole>,
    optimizer_input: Option<OptimizerInput>,
}

/// The result for one role.
struct RoleAnalysis {
    proposals: Vec<Proposal>,
    /// An analyzer has decided.
    has_decided: bool,
    /// It found nothing: it does not know the capacity of a replica, or the demand.
    is_silent: bool,
    /// How completely the role is measured, if a capacity analyzer decides, which runs later for all roles together.
    capacity_state: Option<CoverageState>,
}

/// Proposes a number for every variant of `model`.
pub(super) fn analyze(model: &mut ModelDecision<'_>) {
    let context = model.context;
    let mut learned = model.memory.learned.take().unwrap_or_default();
    let mut analyses = run(model, &mut learned);
    let fallbacks =
        fallback::choose_for_silent(context, &mut model.variants, &analyses.asked_roles, &mut learned);
    if fallbacks.is_empty() {
        model.fallbacks.extend(fallback::of_last_cycle(context, &analyses.asked_roles, &learned));
    } else {
        // The model's own analyzer runs first in every cycle although it finds nothing, so that it goes on learning.
        model.fallbacks.extend(fallbacks);
        // The other analyzers have learned already; of the fallbacks only the token analyzer learns.
        let mut again = learned.clone();
        analyses = run(model, &mut again);
        if context.analyzer != Analyzer::Saturation {
            learned.tokens = again.tokens;
        }
        learned.fallback_share = again.fallback_share;
    }
    if analyses.is_cycle {
        model.memory.cycle_at = Some(context.now);
    }
    if context.policy.analyzer != Analyzer::Rate {
        // Only the rate policy reads what it learns.
        learned.rate = None;
    }
    if model.fallbacks.is_empty() {
        learned.fallback_share = None;
    }
    learned.checkpoint(context.now);
    model.memory.learned = Some(learned).filter(|learned| **learned != Learned::default());
    model.proposals = analyses.proposals;
    model.optimizer_input = analyses.optimizer_input;
    if model.steps.is_empty() {
        model.steps = analyses.steps;
    } else {
        model.steps.extend(analyses.steps);
    }
}

/// Runs the analyzer of each role of `model`; a capacity analyzer runs once for all its roles.
fn run(model: &ModelDecision<'_>, learned: &mut Learned) -> Analyses {
    let mut analyses = Analyses::default();
    let (mut capacity_states, mut capacity_analyzer) = (Vec::new(), model.context.analyzer);
    for (role, variants) in by_role(&model.variants) {
        let analyzer = model.fallback(role).unwrap_or(model.context.analyzer);
        let counterpart_runs = counterpart_runs(model, role);
        let context =
            ModelContext { saturated: model.is_saturated(role), counterpart_runs, analyzer, ..model.context };
        let of_role = analyze_role(context, role, variants, learned, &mut analyses.steps);
        // The rate policy decides at every evaluation, but a fallback for it in another role only once a cycle.
        analyses.is_cycle |=
            of_role.has_decided && (analyzer != Analyzer::Rate || model.fallbacks.is_empty());
        if analyzer == Analyzer::Rate && of_role.has_decided {
            analyses.asked_roles.push(AskedRole { role, is_silent: of_role.is_silent });
        }
        if let Some(state) = of_role.capacity_state {
            capacity_states.push((role, state));
            capacity_analyzer = analyzer;
        }
        if analyses.proposals.is_empty() {
            analyses.proposals = of_role.proposals;
        } else {
            analyses.proposals.extend(of_role.proposals);
        }
    }
    if !capacity_states.is_empty() {
        let context = model.context.by(capacity_analyzer);
        let roles: Vec<Role> = capacity_states.iter().map(|(role, _)| *role).collect();
        analyses.optimizer_input =
            capacity::analyze(context, &model.variants, capacity_states, learned, &mut analyses.steps);
        if !context.is_fallback() {
            let is_silent = analyses.optimizer_input.as_ref().is_none_or(OptimizerInput::is_silent);
            analyses.asked_roles.extend(roles.into_iter().map(|role| AskedRole { role, is_silent }));
        }
    }
    analyses
}

/// Of the roles that each request needs both, the other one runs. One that is about to go to zero does not count; one whose zero no longer
/// holds does, as it keeps a replica in this evaluation.
fn counterpart_runs(model: &ModelDecision<'_>, role: Role) -> bool {
    let counterpart = match role {
        Role::Both => return false,
        Role::Decode => Role::Prefill,
        Role::Prefill => Role::Decode,
    };
    let is_idle = zero::idle_for_long(model.context, &model.memory);
    let stays = |variant: &VariantContext<'_>| {
        variant.committed() != Some(Replicas::ZERO) || (!is_idle && variant.allows(Replicas::ONE))
    };
    let mut others = model.variants.iter().filter(|variant| variant.role() == counterpart);
    model.context.scale_to_zero.enabled
        && zero::may_be_zero(model.context)
        && others.any(|variant| variant.is_active() && stays(variant))
}

/// Proposes numbers for `variants`, which are all of `role`, by how completely they are measured. Dispatches to the
/// model's analyzer; those of capacity are asked about all roles together, in `capacity`.
fn analyze_role(
    context: ModelContext<'_>,
    role: Role,
    variants: &[VariantContext<'_>],
    learned: &mut Learned,
    steps: &mut Vec<Step>,
) -> RoleAnalysis {
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
    let mut analysis =
        RoleAnalysis { proposals: Vec::new(), has_decided: false, is_silent: false, capacity_state: None };
    let all = |proposal: &dyn Fn(&VariantContext<'_>) -> Proposal| variants.iter().map(proposal).collect();
    analysis.proposals = match state {
        CoverageState::Down => all(&|variant| holds::source_down(context, variant)),
        CoverageState::Zero => zero::wake_up(context, variants, learned, steps),
        CoverageState::Starting => {
            let mut proposals = holds::starting(context, variants);
            zero::wake_beside_unschedulable(context, variants, learned, &mut proposals, steps);
            proposals
        }
        CoverageState::Missing | CoverageState::Stale => {
            all(&|variant| holds::unmeasured(context, state, variant))
        }
        CoverageState::Partial | CoverageState::Aging | CoverageState::Estimated | CoverageState::Fresh
            if context.due || is_rate =>
        {
            analysis.has_decided = true;
            match context.analyzer {
                Analyzer::Rate => {
                    let proposals = rate::propose(&input, learned, steps);
                    analysis.is_silent = proposals.is_none();
                    proposals.unwrap_or_else(|| all(&|variant| rate::unknown(&input, variant)))
                }
                Analyzer::SaturationPercent => saturation_percent::propose(&input, steps),
                Analyzer::Threshold => score::propose(&input, None, steps),
                Analyzer::Weighted => score::propose(&input, Some(&mut learned.bests), steps),
                Analyzer::Saturation | Analyzer::Throughput | Analyzer::QueueingModel | Analyzer::Inferno => {
                    analysis.capacity_state = Some(state);
                    between_cycles(context, variants)
                }
            }
        }
        CoverageState::Partial | CoverageState::Aging | CoverageState::Estimated | CoverageState::Fresh => {
            between_cycles(context, variants)
        }
    };
    if is_rate && matches!(state, CoverageState::Zero | CoverageState::Starting) {
        rate::raise(&input, learned, &mut analysis.proposals, steps);
    }
    analysis
}

/// The proposals that stand until the next cycle, or until the optimizer replaces them.
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
