//! What keeps a variant from the replicas that it needs, where that is not its own maximum.

use super::{Adjustment, AdjustmentReason, Basis, Hindrance, Reasoning};

/// Why a variant has fewer replicas than it needs: a shared limit grants no more, or no node has room for them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CapacityConstraint<'a>(pub(super) Cause<'a>);

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Cause<'a> {
    NoNode { pods: u32, message: Option<&'a str> },
    Limit(&'a Adjustment),
    LimitBefore,
}

impl CapacityConstraint<'_> {
    /// The kind, as conditions and events name it.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self.0 {
            Cause::Limit(_) | Cause::LimitBefore => "LimitReached",
            Cause::NoNode { .. } => "NoNodeHasRoom",
        }
    }

    /// Whether an earlier evaluation found it. That one knew which limit it is; this one does not.
    #[must_use]
    pub const fn is_earlier(&self) -> bool {
        matches!(self.0, Cause::LimitBefore)
    }
}

impl Reasoning {
    /// What holds the number below what is needed. The maximum of a variant is none: its owner chose it. Where there is none,
    /// [`Self::rests_on_finding`] says whether that is known.
    #[must_use]
    pub fn capacity_constraint(&self) -> Option<CapacityConstraint<'_>> {
        // Pods without a node come first: they are there in every evaluation, while a limit is asked only now and then.
        let cause = match (&self.hindrance, self.limited()) {
            (Some(Hindrance::NoNode { pods, message }), _) => {
                Cause::NoNode { pods: *pods, message: message.as_deref() }
            }
            (_, Some(adjustment)) => Cause::Limit(adjustment),
            (Some(Hindrance::Denied), None) => Cause::LimitBefore,
            (None, None) => return None,
        };
        Some(CapacityConstraint(cause))
    }

    /// The limit that grants fewer replicas than were proposed, where pods without a node come first.
    pub(super) fn limit_besides(&self) -> Option<CapacityConstraint<'_>> {
        let is_second = matches!(self.hindrance, Some(Hindrance::NoNode { .. }));
        self.limited().filter(|_| is_second).map(|adjustment| CapacityConstraint(Cause::Limit(adjustment)))
    }

    /// The name of the limit that grants fewer replicas than were proposed, if one does.
    #[must_use]
    pub fn limit(&self) -> Option<&str> {
        self.limited().map(|adjustment| match &adjustment.why {
            AdjustmentReason::Limit { binding: Some(binding) } => &*binding.limit,
            // The pools of upstream's arithmetic have no names.
            _ => "free GPUs",
        })
    }

    fn limited(&self) -> Option<&Adjustment> {
        let is_limit = |adjustment: &&Adjustment| matches!(adjustment.why, AdjustmentReason::Limit { .. });
        self.adjustments.iter().rev().find(is_limit)
    }

    /// Whether it is known what is needed: an analyzer has found it, or there is no demand. A number that is only held says
    /// nothing about it.
    #[must_use]
    pub const fn rests_on_finding(&self) -> bool {
        matches!(self.basis, Basis::Analyzed { .. } | Basis::Idle)
    }
}
