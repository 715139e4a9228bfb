//! Numbers that no analyzer decides: the published number stands, because nothing new is known or because nothing runs.

use jiff::Timestamp;

use super::context::{ModelContext, VariantContext};
use super::proposal::Proposal;
use crate::decision::Reason;
use crate::quality::CoverageState;
use crate::report::Basis;
use crate::snapshot::SourceHealth;
use crate::units::{Replicas, Seconds};

/// How long pods may take to start before their not being Ready stops counting as evidence. The weights of the largest models load
/// within 10 to 15 min; twice that. Younger pods keep a number alive although nothing can be measured.
const START_UP_ALLOWANCE: Seconds = Seconds::whole(1800);

pub(super) fn source_down(context: ModelContext<'_>, variant: &VariantContext<'_>) -> Proposal {
    let cause = match &context.group.source {
        SourceHealth::Down { cause } => cause.as_str(),
        SourceHealth::Complete | SourceHealth::Partial { .. } => "",
    };
    let basis = Basis::SourceDown { cause: cause.into() };
    Proposal::held(variant, Reason::SourceDown, basis, context.now)
}

/// Ready pods, and nothing usable of any of them.
pub(super) fn unmeasured(
    context: ModelContext<'_>,
    state: CoverageState,
    variant: &VariantContext<'_>,
) -> Proposal {
    if !variant.is_active() {
        return at_zero(context, variant);
    }
    let ready = variant.coverage.ready;
    let (reason, basis) = match &context.group.source {
        _ if state == CoverageState::Stale => (Reason::Stale, Basis::StaleSamples { ready }),
        SourceHealth::Partial { warnings } => {
            let warnings = warnings.join("; ").into();
            (Reason::Partial, Basis::IncompleteAnswer { warnings, ready })
        }
        SourceHealth::Complete | SourceHealth::Down { .. } => {
            (Reason::MetricsMissing, Basis::NoSeries { ready })
        }
    };
    Proposal::held(variant, reason, basis, context.now)
}

/// No pod is Ready, so nothing can be measured and nothing is missing. The pods themselves are the evidence, as long as the newest
/// of them (or the order for one) is younger than [`START_UP_ALLOWANCE`]. When a pod becomes Ready, the clock starts there.
pub(super) fn starting(context: ModelContext<'_>, variants: &[VariantContext<'_>]) -> Vec<Proposal> {
    let started = |variant: &VariantContext<'_>| {
        let coverage = &variant.coverage;
        coverage.started_last.max(coverage.ready_last).or(variant.memory.target_since)
    };
    let newest = variants.iter().filter(|variant| variant.is_active()).filter_map(started).max();
    let is_evidence = newest.is_none_or(|at| Seconds::between(at, context.now) <= START_UP_ALLOWANCE);
    let proposal = |variant: &VariantContext<'_>| {
        if !variant.is_active() {
            return at_zero(context, variant);
        }
        let held = Proposal::held(variant, Reason::Starting, not_ready(variant), context.now);
        if is_evidence { Proposal { evidence: context.now, is_blind: false, ..held } } else { held }
    };
    variants.iter().map(proposal).collect()
}

/// Why a variant has no pod that could be measured.
fn not_ready(variant: &VariantContext<'_>) -> Basis {
    let coverage = &variant.coverage;
    let (starting, ready) = (coverage.starting, coverage.ready);
    if coverage.unschedulable > 0 {
        return Basis::PodsUnschedulable { unschedulable: coverage.unschedulable, starting };
    }
    if ready == 0 && coverage.asleep > 0 {
        return Basis::PodsAsleep { asleep: coverage.asleep };
    }
    match starting {
        0 if ready > 0 => Basis::NotMeasuredYet,
        0 => Basis::NoPods {
            requested: variant.scale.spec,
            target: variant.state.variant.target.to_string().into(),
        },
        starting => Basis::PodsStarting { starting },
    }
}

/// A read never moves a number: between two cycles of the analyzer the published targets stand.
pub(super) fn between_cycles(
    context: ModelContext<'_>,
    evidence: Timestamp,
    variant: &VariantContext<'_>,
) -> Proposal {
    if !variant.is_active() {
        return at_zero(context, variant);
    }
    if variant.coverage.observations.is_empty() {
        return unmeasured_among_measured(context, evidence, variant);
    }
    // A variant that has joined since the last cycle, measured: it starts from what runs.
    let number = Some(variant.committed().unwrap_or(variant.scale.base()));
    // The last cycle's reasons stand too; those of when the variant was not measured do not.
    let last = variant.memory.reason.zip(variant.memory.explanation.clone());
    let last = last.filter(|(reason, _)| !matches!(reason, Reason::Starting | Reason::MetricsMissing));
    let standing = Proposal::standing(variant, number, Reason::Steady, Basis::BetweenCycles, evidence);
    match last {
        Some((reason, explanation)) => Proposal { reason, explanation, ..standing },
        None => standing,
    }
}

/// A variant without a usable sample, in a role where others have some: its own number stands, and the decision about the role
/// rests on the others' samples.
pub(super) fn unmeasured_among_measured(
    context: ModelContext<'_>,
    evidence: Timestamp,
    variant: &VariantContext<'_>,
) -> Proposal {
    let ready = variant.coverage.ready;
    let (reason, basis) = if ready == 0 {
        (Reason::Starting, not_ready(variant))
    } else if variant.coverage.stale > 0 {
        (Reason::Stale, Basis::StaleSamples { ready })
    } else {
        (Reason::MetricsMissing, Basis::NoSeries { ready })
    };
    Proposal { evidence, is_blind: false, ..Proposal::held(variant, reason, basis, context.now) }
}

/// A variant of which no replica is requested. When the source answers completely, that is a measured zero.
pub(super) fn at_zero(context: ModelContext<'_>, variant: &VariantContext<'_>) -> Proposal {
    if !matches!(context.group.source, SourceHealth::Complete) {
        return Proposal::held(variant, Reason::Partial, Basis::IdleUnconfirmed, context.now);
    }
    let ordered =
        variant.memory.target.filter(|target| *target > Replicas::ZERO && variant.is_waking(context.now));
    let (number, reason, basis) = match ordered {
        Some(desired) => {
            let running = variant.scale.base();
            (desired, Reason::Transition, Basis::AwaitingReplicas { variant: None, desired, running })
        }
        None => (Replicas::ZERO, Reason::Steady, Basis::Idle),
    };
    Proposal::standing(variant, Some(number), reason, basis, context.now)
}
