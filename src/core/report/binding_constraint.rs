//! What keeps a number from being higher or lower: the binding constraints of a decision, each with its kind.

use std::fmt::Display;

use serde::{Deserialize, Serialize};
use smol_str::{SmolStr, ToSmolStr};

use super::capacity_constraint::{CapacityConstraint, Cause};
use super::render::Text;
use super::{Adjustment, AdjustmentReason, Basis, Blocker, Caveat, Direction, Reasoning, Relief};
use crate::bound::stability::StabilityRule;

/// One constraint, in a direction that the caller knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindingConstraint {
    /// Which kind.
    pub kind: ConstraintKind,
    /// The constraint with its figures, for people.
    pub text: SmolStr,
}

/// The kinds of binding constraints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub enum ConstraintKind {
    /// A shared limit: GPUs, a quota, power, money.
    Limit,
    /// No node has room.
    NoNode,
    /// The variant's maximum.
    Maximum,
    /// The variant's minimum, or the last replica of a model that may not go to zero.
    Minimum,
    /// A stabilization window, a cooldown, or the largest step.
    Stability,
    /// Replicas that were ordered do not serve yet.
    AwaitedReplicas,
    /// Signals are missing, old, incomplete or contradicted.
    MissingSignal,
    /// The capacity of a replica is not known yet.
    Learning,
    /// The number is what the demand needs.
    Demand,
    /// Running requests would not fit into what remains.
    RunningRequests,
    /// The fleet is saturated, so nothing is removed.
    Saturated,
    /// An HPA takes the difference for none.
    HpaTolerance,
    /// A model without requests, or one that wakes up.
    Idleness,
    /// The object of the variant, or its scale target, cannot be used.
    InvalidObject,
    /// The decision broke a rule or failed, and was withheld.
    Withheld,
    /// The data was not kept: the text is all there is.
    Recorded,
}

impl ConstraintKind {
    /// The name that programs read.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Limit => "Limit",
            Self::NoNode => "NoNode",
            Self::Maximum => "Maximum",
            Self::Minimum => "Minimum",
            Self::Stability => "Stability",
            Self::AwaitedReplicas => "AwaitedReplicas",
            Self::MissingSignal => "MissingSignal",
            Self::Learning => "Learning",
            Self::Demand => "Demand",
            Self::RunningRequests => "RunningRequests",
            Self::Saturated => "Saturated",
            Self::HpaTolerance => "HpaTolerance",
            Self::Idleness => "Idleness",
            Self::InvalidObject => "InvalidObject",
            Self::Withheld => "Withheld",
            Self::Recorded => "Recorded",
        }
    }

    fn with(self, text: impl Display) -> BindingConstraint {
        BindingConstraint { kind: self, text: text.to_smolstr() }
    }
}

/// The directions in which a constraint binds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Binds {
    More,
    Fewer,
    Both,
}

impl Binds {
    const fn includes(self, direction: Direction) -> bool {
        matches!(
            (self, direction),
            (Self::Both, _) | (Self::More, Direction::More) | (Self::Fewer, Direction::Fewer)
        )
    }
}

impl Reasoning {
    /// What keeps the number from being higher (`More`) or lower (`Fewer`), the strongest first; never empty. Where nothing
    /// holds the number, it is the demand.
    #[must_use]
    pub fn binding_constraints(&self, direction: Direction) -> Vec<BindingConstraint> {
        let mut found = Vec::new();
        if let Some(withheld) = &self.withheld {
            found.push(ConstraintKind::MissingSignal.with(withheld));
        }
        if direction == Direction::More {
            let constraints = self.capacity_constraint().into_iter().chain(self.limit_besides());
            found.extend(constraints.map(|constraint| constraint.kind().with(constraint)));
        }
        let adjustments = self.adjustments.iter().rev().filter(|adjustment| !adjustment.is_limit());
        for adjustment in adjustments {
            let binding = adjustment.binds(direction).filter(|(_, binds)| binds.includes(direction));
            found.extend(binding.map(|(kind, _)| kind.with(adjustment)));
        }
        if let Some((kind, _)) = self.basis.binds().filter(|(_, binds)| binds.includes(direction)) {
            let running = self.running.unwrap_or_default();
            found.push(match &self.basis {
                Basis::Analyzed { caveat: Some(caveat) } => {
                    kind.with(Text(|f: &mut std::fmt::Formatter<'_>| caveat.write(f, running)))
                }
                basis => kind.with(basis),
            });
        }
        let removal_limit = self.analysis.as_ref().and_then(|analysis| analysis.removal_limit.as_ref());
        if let Some(limit) = removal_limit.filter(|_| direction == Direction::Fewer) {
            found.push(ConstraintKind::RunningRequests.with(limit));
        }
        if found.is_empty() {
            found.push(self.demand());
        }
        found
    }

    /// The number is what the demand needs.
    fn demand(&self) -> BindingConstraint {
        match &self.analysis {
            Some(analysis) => ConstraintKind::Demand.with(&analysis.finding),
            None => ConstraintKind::Demand.with(self.reasons()),
        }
    }
}

impl CapacityConstraint<'_> {
    const fn kind(&self) -> ConstraintKind {
        match self.0 {
            Cause::NoNode { .. } => ConstraintKind::NoNode,
            Cause::Limit(_) | Cause::LimitBefore => ConstraintKind::Limit,
        }
    }
}

impl Adjustment {
    const fn is_limit(&self) -> bool {
        matches!(self.why, AdjustmentReason::Limit { .. })
    }

    /// The kind of the constraint that it is in a direction, and where it binds.
    fn binds(&self, direction: Direction) -> Option<(ConstraintKind, Binds)> {
        let lowered = self.from.is_some_and(|from| from > self.to);
        let raised = self.from.is_some_and(|from| from < self.to);
        let by_change = match (lowered, raised) {
            (true, _) => Binds::More,
            (_, true) => Binds::Fewer,
            _ => Binds::Both,
        };
        Some(match &self.why {
            AdjustmentReason::Limit { .. } => return None,
            AdjustmentReason::NoRoomToExchange { .. } => (ConstraintKind::Limit, Binds::More),
            AdjustmentReason::Stability { rule } => {
                let binds = match rule {
                    StabilityRule::Window { .. } => by_change,
                    StabilityRule::UpStep { .. } => Binds::More,
                    StabilityRule::Dwell { .. } | StabilityRule::DownStep { .. } => Binds::Fewer,
                };
                (ConstraintKind::Stability, binds)
            }
            AdjustmentReason::Bounds { max, .. } => {
                let is_maximum = lowered || (!raised && *max == Some(self.to));
                if is_maximum {
                    (ConstraintKind::Maximum, Binds::More)
                } else {
                    (ConstraintKind::Minimum, Binds::Fewer)
                }
            }
            AdjustmentReason::OrderWithdrawn { .. } => (ConstraintKind::MissingSignal, Binds::More),
            AdjustmentReason::MustFit { .. } => (ConstraintKind::RunningRequests, Binds::Fewer),
            AdjustmentReason::HpaTolerance { .. } => (ConstraintKind::HpaTolerance, by_change),
            AdjustmentReason::Saturated { .. } if direction == Direction::Fewer => {
                (ConstraintKind::Saturated, Binds::Fewer)
            }
            AdjustmentReason::Saturated { state } => match state.relief {
                Relief::Growing => return None,
                Relief::Ordered | Relief::Starting | Relief::NotComing => {
                    (ConstraintKind::AwaitedReplicas, Binds::More)
                }
                Relief::AtMaximum => (ConstraintKind::Maximum, Binds::More),
                Relief::AtLimit => (ConstraintKind::Limit, Binds::More),
                Relief::NoNode => (ConstraintKind::NoNode, Binds::More),
            },
        })
    }
}

impl Basis {
    /// The kind of the constraint, and where it binds; `None` where the basis is what was found.
    const fn binds(&self) -> Option<(ConstraintKind, Binds)> {
        use ConstraintKind as Kind;
        Some(match self {
            Self::Analyzed { caveat: None } | Self::SafetyNet => return None,
            Self::Analyzed { caveat: Some(caveat) } => return caveat.binds(),
            Self::Recorded { .. } => (Kind::Recorded, Binds::Both),
            Self::SourceDown { .. }
            | Self::NoSeries { .. }
            | Self::StaleSamples { .. }
            | Self::IncompleteAnswer { .. }
            | Self::PodsAsleep { .. }
            | Self::NotMeasuredYet => (Kind::MissingSignal, Binds::Both),
            Self::PodsUnschedulable { .. } => (Kind::NoNode, Binds::Both),
            Self::PodsStarting { .. }
            | Self::NoPods { .. }
            | Self::AwaitingReplicas { .. }
            | Self::AwaitingReady { .. } => (Kind::AwaitedReplicas, Binds::Both),
            Self::BetweenCycles => (Kind::Stability, Binds::Both),
            Self::Learning => (Kind::Learning, Binds::Both),
            Self::Idle | Self::IdleFor { .. } => (Kind::Idleness, Binds::More),
            Self::NoWakeUpSignal
            | Self::IdleUnconfirmed
            | Self::RequestsWaiting { .. }
            | Self::CounterpartRuns
            | Self::NotIdle => (Kind::Idleness, Binds::Fewer),
            Self::LastReplicaKept => (Kind::Minimum, Binds::Fewer),
            Self::TargetNotFound { .. }
            | Self::TargetUnknown { .. }
            | Self::InvalidVariant { .. }
            | Self::ModelUnknown { .. } => (Kind::InvalidObject, Binds::Both),
            Self::DecisionFailed { .. } | Self::RuleBroken { .. } => (Kind::Withheld, Binds::Both),
        })
    }
}

impl Caveat {
    const fn binds(&self) -> Option<(ConstraintKind, Binds)> {
        use ConstraintKind as Kind;
        Some(match self {
            Self::PartiallyMeasured | Self::EstimatedPods | Self::Exchange { .. } => return None,
            Self::IncompleteAnswer { .. } | Self::UnmeasuredPods | Self::NotFresh => {
                (Kind::MissingSignal, Binds::Fewer)
            }
            Self::StepTooLarge { .. } => (Kind::Stability, Binds::Fewer),
            Self::AwaitingReplicas { .. } => (Kind::AwaitedReplicas, Binds::Both),
            Self::Blocked { by } => {
                let kind = match by {
                    Blocker::NoNode { .. } => Kind::NoNode,
                    Blocker::Maximum { .. } => Kind::Maximum,
                    Blocker::NotReady { .. } => Kind::AwaitedReplicas,
                    Blocker::Unknown => Kind::Limit,
                };
                (kind, Binds::More)
            }
        })
    }
}
