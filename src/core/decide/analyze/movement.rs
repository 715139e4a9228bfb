//! Whether a variant's last change has happened yet.

use jiff::Timestamp;

use crate::decide::context::VariantContext;
use crate::units::Replicas;

/// The open part of a variant's last change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Movement {
    Settled,
    /// Replicas are on their way.
    Growing,
    /// Replicas are about to go.
    Shrinking,
    /// Replicas should have come by now and have not.
    Overdue,
    /// Replicas wait for a node, or two orders never became ready: more of them would wait too.
    Unschedulable,
}

pub(crate) fn movement(variant: &VariantContext<'_>, now: Timestamp) -> Movement {
    let base = variant.scale.base();
    // A committed 0 that still runs was taken back or never meant: like upstream's, it is no number to wait for.
    // What the bounds have taken from a published number will not come.
    let bounds = variant.state.variant.bounds;
    let target =
        variant.committed().map(|target| bounds.clamp(target)).filter(|target| *target > Replicas::ZERO);
    let target = target.unwrap_or(base);
    let pending = variant.scale.pending();
    let credited = variant.credited(now);
    if !variant.is_active() {
        Movement::Settled
    } else if credited > Replicas::ZERO || (target > base && variant.is_waiting(now)) {
        Movement::Growing
    } else if variant.is_growth_futile(now) {
        Movement::Unschedulable
    } else if target > base || pending > Replicas::ZERO {
        Movement::Overdue
    } else if target < base && variant.is_waiting(now) {
        Movement::Shrinking
    } else {
        Movement::Settled
    }
}
