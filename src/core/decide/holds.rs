//! Proposals without an analyzer: the published number is held, because nothing new is known or nothing runs.

use jiff::Timestamp;

use super::context::{ModelContext, VariantContext};
use super::proposal::Proposal;
use crate::decision::Reason;
use crate::quality::CoverageState;
use crate::report::Basis;
use crate::snapshot::SourceHealth;
use crate::units::{Replicas, Seconds};

/// Pods that start are evidence for a number for this long, although nothing can be measured. The weights of the largest models load within
/// 10 to 15 min; this is twice as long.
const START_UP_ALLOWANCE: Seconds = Seconds::whole(1800);

pub(super) fn source_down(context: ModelContext<'_>, variant: &VariantContext<'_>) -> Proposal {
    let cause = match &context.group.source {
        SourceHealth::Down { cause } => cause.as_str(),
        SourceHealth::Complete | SourceHealth::Partial { .. } => "",
    };
    let basis = Basis::SourceDown { cause: cause.into() };
    Proposal::held(variant, Reason::SourceDown, basis, context.now)
}

/// There are Ready pods, and none has usable samples.
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

/// No pod is Ready, so nothing can be measured and no signal is missing. The pods are the evidence until the newest of them (or the order
/// for one) is older than [`START_UP_ALLOWANCE`], counted from when it became Ready if it did.
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

/// Between two cycles of the analyzer the published number stands, so that a read never changes it.
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
    // A variant that was created since the last cycle starts from what runs.
    let number = Some(variant.committed().unwrap_or(variant.scale.base()));
    // The explanation of the last cycle stands too, unless the variant was not measured then.
    let last = variant.memory.reason.zip(variant.memory.explanation.clone());
    let last = last.filter(|(reason, _)| !matches!(reason, Reason::Starting | Reason::MetricsMissing));
    let standing = Proposal::standing(variant, number, Reason::Steady, Basis::BetweenCycles, evidence);
    match last {
        Some((reason, explanation)) => Proposal { reason, explanation, ..standing },
        None => standing,
    }
}

/// A variant without usable samples in a role in which others have some: its number is held, with the others' samples as evidence.
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

/// A variant of which no replica is requested. If the source's answer is complete, zero is measured.
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
