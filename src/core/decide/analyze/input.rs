//! The input of an analyzer about one role, and the explanations that all of them share.

use crate::decide::context::{ModelContext, VariantContext};
use crate::model::Role;
use crate::observe::scheduler_queue;
use crate::quality::CoverageState;
use crate::report::{Analysis, Blocker, Caveat, Fallback, Finding};
use crate::snapshot::{Signal, SourceHealth};

/// The variants of one role, of which at least one is measured.
#[derive(Clone, Copy)]
pub(crate) struct RoleInput<'i, 'a> {
    pub(crate) context: ModelContext<'i>,
    pub(crate) role: Role,
    pub(crate) state: CoverageState,
    pub(crate) variants: &'i [VariantContext<'a>],
}

/// The scheduler's queue was measured, and no longer is.
pub(crate) fn queue_lost(context: ModelContext<'_>) -> bool {
    let has_shown = !context.group.scheduler.get(Signal::SchedulerQueueSize).is_empty();
    has_shown && scheduler_queue(context.now, &context.group.scheduler).is_none()
}

/// An analysis of `finding` that names the analyzer, if that is a fallback.
pub(crate) fn analysis(context: ModelContext<'_>, finding: Finding) -> Analysis {
    let fallback = Fallback { own: context.policy.analyzer, analyzer: context.analyzer };
    Analysis { fallback: context.is_fallback().then_some(fallback), ..Analysis::from(finding) }
}

/// Says why nothing is removed while some Ready pods are not measured.
pub(crate) fn no_removal_caveat(source: &SourceHealth) -> Caveat {
    match source {
        SourceHealth::Partial { warnings } => {
            Caveat::IncompleteAnswer { warnings: warnings.join("; ").into() }
        }
        SourceHealth::Complete | SourceHealth::Down { .. } => Caveat::UnmeasuredPods,
    }
}

/// What keeps `variant` from growing.
pub(crate) fn blocker(variant: &VariantContext<'_>) -> Blocker {
    let (base, coverage) = (variant.scale.base(), &variant.coverage);
    let number = variant.committed().unwrap_or(base).max(base);
    if coverage.unschedulable > 0 {
        return Blocker::NoNode { pods: coverage.unschedulable };
    }
    match variant.bounds().max.filter(|max| number >= *max) {
        Some(max) => Blocker::Maximum { max },
        None if coverage.starting > 0 => Blocker::NotReady { pods: coverage.starting },
        None => Blocker::Unknown,
    }
}
