//! Whether a variant's last change has been carried out.

use jiff::Timestamp;

use crate::decide::context::VariantContext;
use crate::units::Replicas;

/// What is still missing of a variant's last change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Movement {
    Settled,
    /// Replicas are starting.
    Growing,
    /// Replicas are being removed.
    Shrinking,
    /// Replicas should be Ready by now and are not.
    Overdue,
    /// Pods wait for a node, or two orders never became Ready: further pods would not serve either.
    Unschedulable,
}

pub(crate) fn movement(variant: &VariantContext<'_>, now: Timestamp) -> Movement {
    let base = variant.scale.base();
    // A committed 0 whose replicas still run was taken back or never meant, so nothing waits for it (as upstream). Neither does anything wait
    // for what the bounds took from a published number.
    let bounds = variant.bounds();
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
