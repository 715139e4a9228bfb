//! The variants of one role: which row of the observation table they are in, and what follows.

use jiff::Timestamp;

use super::analyze::{rate, saturation_percent, score};
use super::context::{ModelContext, Proposal, VariantContext};
use super::{START_UP_ALLOWANCE, messages, zero};
use crate::decision::Reason;
use crate::memory::Learned;
use crate::model::{Analyzer, Role};
use crate::quality::{AssessedVariant, CoverageState, coverage_state};
use crate::report::Step;
use crate::snapshot::SourceHealth;
use crate::units::Seconds;

/// The proposals of a role's variants, in their order.
pub(super) struct Decided {
    pub(super) proposals: Vec<Proposal>,
    pub(super) steps: Vec<Step>,
    /// The analyzer has taken its look.
    pub(super) looked: bool,
    /// It has, and has found nothing: it does not know what a replica carries, or what arrives.
    pub(super) silent: bool,
    /// What the observations are worth to analyzers of capacity, which look at all roles together.
    pub(super) open: Option<CoverageState>,
}

/// Decides about `variants`, which are all of one role.
pub(super) fn decide(
    context: ModelContext<'_>,
    role: Role,
    variants: &[VariantContext<'_>],
    learned: &mut Learned,
) -> Decided {
    let active = variants.iter().filter(|variant| variant.active());
    let seen: Vec<AssessedVariant<'_>> = active.map(|variant| (variant.state, &variant.coverage)).collect();
    let state = coverage_state(&context.group.source, &seen, context.now);
    // Who stands in for another decides about additions only.
    let state =
        if context.is_stand_in() && state > CoverageState::Partial { CoverageState::Partial } else { state };
    // How good it is, what is found, and what becomes of each.
    let mut steps = Vec::with_capacity(2 + variants.len());
    steps.push(messages::quality_step(role, state, &seen));
    let (mut looked, mut silent, mut open) = (false, false, None);
    let own_clock = context.analyzer == Analyzer::Rate;
    let mut proposals = match state {
        CoverageState::Down => all(variants, |variant| hold_down(context, variant)),
        CoverageState::Zero => zero::at_zero(context, variants, learned, &mut steps),
        CoverageState::Starting => start(context, variants),
        CoverageState::Missing | CoverageState::Stale => {
            all(variants, |variant| hold_unseen(context, state, variant))
        }
        CoverageState::Partial | CoverageState::Aging | CoverageState::Estimated | CoverageState::Fresh
            if context.due || own_clock =>
        {
            looked = true;
            match context.analyzer {
                Analyzer::Rate => {
                    let proposals =
                        rate::look_and_move(context, (role, state), variants, learned, &mut steps);
                    silent = proposals.is_none();
                    proposals
                        .unwrap_or_else(|| all(variants, |variant| rate::unknown(context, state, variant)))
                }
                Analyzer::SaturationPercent => {
                    saturation_percent::look_and_step(context, state, variants, &mut steps)
                }
                Analyzer::Threshold | Analyzer::Weighted => {
                    score::look_and_step(context, state, variants, &mut learned.bests, &mut steps)
                }
                Analyzer::Saturation | Analyzer::Throughput | Analyzer::QueueingModel | Analyzer::Inferno => {
                    open = Some(state);
                    between(context, variants)
                }
            }
        }
        CoverageState::Partial | CoverageState::Aging | CoverageState::Estimated | CoverageState::Fresh => {
            between(context, variants)
        }
    };
    if own_clock && matches!(state, CoverageState::Zero | CoverageState::Starting) {
        rate::raise(context, (role, state), variants, learned, (&mut proposals, &mut steps));
    }
    Decided { proposals, steps, looked, silent, open }
}

fn all(variants: &[VariantContext<'_>], proposal: impl Fn(&VariantContext<'_>) -> Proposal) -> Vec<Proposal> {
    variants.iter().map(proposal).collect()
}

fn hold_down(context: ModelContext<'_>, variant: &VariantContext<'_>) -> Proposal {
    let cause = match &context.group.source {
        SourceHealth::Down { cause } => cause.as_str(),
        SourceHealth::Complete | SourceHealth::Partial { .. } => "",
    };
    variant.hold(Reason::SourceDown, messages::source_down(variant, cause), context.now)
}

/// Ready pods and nothing usable of any of them.
fn hold_unseen(context: ModelContext<'_>, state: CoverageState, variant: &VariantContext<'_>) -> Proposal {
    if !variant.active() {
        return zero::asleep(context, variant);
    }
    let (reason, message) = match &context.group.source {
        _ if state == CoverageState::Stale => (Reason::Stale, messages::stale(variant)),
        SourceHealth::Partial { warnings } => (Reason::Partial, messages::partial(variant, warnings)),
        SourceHealth::Complete | SourceHealth::Down { .. } => {
            (Reason::MetricsMissing, messages::missing(variant))
        }
    };
    variant.hold(reason, message, context.now)
}

/// Nothing is ready, so nothing can be measured and nothing is missing: the pods themselves are the evidence, as long
/// as the newest of them (or the direction for one) is younger than [`START_UP_ALLOWANCE`]. When a pod becomes ready, the
/// clock runs from there.
fn start(context: ModelContext<'_>, variants: &[VariantContext<'_>]) -> Vec<Proposal> {
    let begun = |variant: &VariantContext<'_>| {
        variant.coverage.started_last.max(variant.coverage.ready_last).or(variant.memory.target_since)
    };
    let newest = variants.iter().filter(|variant| variant.active()).filter_map(begun).max();
    let alive = newest.is_none_or(|at| Seconds::between(at, context.now) <= START_UP_ALLOWANCE);
    all(variants, |variant| {
        if !variant.active() {
            return zero::asleep(context, variant);
        }
        let held = variant.hold(Reason::Starting, messages::starting(variant), context.now);
        if alive { Proposal { evidence: context.now, blind: false, ..held } } else { held }
    })
}

/// The newest sample a measured decision rests on.
pub(super) fn newest(variants: &[VariantContext<'_>], now: Timestamp) -> Timestamp {
    let active = variants.iter().filter(|variant| variant.active());
    active.filter_map(|variant| variant.coverage.newest).max().unwrap_or(now)
}

fn between(context: ModelContext<'_>, variants: &[VariantContext<'_>]) -> Vec<Proposal> {
    let evidence = newest(variants, context.now);
    all(variants, |variant| between_looks(context, evidence, variant))
}

/// A read never moves a number: between two looks of the analyzer the committed target stands.
fn between_looks(context: ModelContext<'_>, evidence: Timestamp, variant: &VariantContext<'_>) -> Proposal {
    if !variant.active() {
        return zero::asleep(context, variant);
    }
    if variant.coverage.observations.is_empty() {
        return unseen_among_seen(context, evidence, variant);
    }
    // A variant that has joined since the last look, measured: it starts from what runs.
    let number = Some(variant.committed().unwrap_or(variant.scale.base()));
    // The last look's words stand too; what was said while the variant was not seen does not.
    let said = variant.memory.reason.zip(variant.memory.message.clone());
    let said = said.filter(|(reason, _)| !matches!(reason, Reason::Starting | Reason::MetricsMissing));
    let (reason, message) = said.unwrap_or_else(|| (Reason::Steady, messages::until_next_look(variant)));
    Proposal { number, reason, message, evidence, blind: false, look: None }
}

/// A variant without a usable sample, in a role where others have some: its own number stands, the decision about the
/// role rests on the others' samples.
pub(super) fn unseen_among_seen(
    context: ModelContext<'_>,
    evidence: Timestamp,
    variant: &VariantContext<'_>,
) -> Proposal {
    let (reason, message) = if variant.coverage.ready == 0 {
        (Reason::Starting, messages::starting(variant))
    } else if variant.coverage.stale > 0 {
        (Reason::Stale, messages::stale(variant))
    } else {
        (Reason::MetricsMissing, messages::missing(variant))
    };
    Proposal { evidence, blind: false, ..variant.hold(reason, message, context.now) }
}
