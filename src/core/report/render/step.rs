//! The text of the steps of a report.

use std::fmt::{self, Display, Formatter};

use smol_str::{SmolStr, ToSmolStr};

use super::{counted, percent, replicas, role_name};
use crate::quality::{CoverageState, Shortfall};
use crate::report::{
    Addition, AdjustmentReason, Analysis, AnalysisStep, Basis, Breach, CoverageStep, Detail, Direction,
    Failed, Finding, LimitGap, ModelFailure, OptimizerStep, OrdersWithdrawn, Side, Step, Threshold,
    Violation, Vote,
};

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.detail {
            Detail::Coverage(step) => step.fmt(f),
            Detail::Analysis(step) => step.analysis.fmt(f),
            Detail::Optimization(step) => step.fmt(f),
            Detail::Target(step) => step.explanation.fmt(f),
            Detail::Adjustment(step) => step.adjustment.fmt(f),
            Detail::Replacement(explanation) => explanation.fmt(f),
            Detail::LimitNotEnforced(gap) => gap.fmt(f),
            Detail::TargetNotFound(target) => write!(f, "{target} does not exist"),
            Detail::TargetUnknown(target) => write!(f, "it is not known whether {target} exists"),
            Detail::OrdersWithdrawn(OrdersWithdrawn { ordered, restored }) => write!(
                f,
                "{} were ordered on signals that are now contradicted → {}, as before the order",
                replicas(*ordered),
                replicas(*restored)
            ),
            Detail::DecisionFailed(Failed { cause, retry_at, .. }) => {
                Basis::DecisionFailed { cause: cause.clone(), retry_at: *retry_at }.fmt(f)
            }
            Detail::RuleBroken(violation) => violation.fmt(f),
        }
    }
}

impl Step {
    /// What kept the number from being another one.
    #[must_use]
    pub fn binding(&self) -> Option<SmolStr> {
        match &self.detail {
            Detail::Analysis(AnalysisStep {
                analysis: Analysis { finding: Finding::Rate(rate), .. },
                ..
            }) => Some(rate.constraint().to_smolstr()),
            Detail::Target(step) => step.binding.as_ref().map(ToSmolStr::to_smolstr),
            Detail::Adjustment(step) => match &step.adjustment.why {
                why @ (AdjustmentReason::Stability { .. }
                | AdjustmentReason::Bounds { .. }
                | AdjustmentReason::Limit { .. }) => Some(why.to_smolstr()),
                _ => None,
            },
            _ => None,
        }
    }
}

impl Display for CoverageStep {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            CoverageState::Down => "the metric source is down",
            CoverageState::Zero => "no replica runs",
            CoverageState::Starting => "starting",
            CoverageState::Missing => "no series",
            CoverageState::Stale => "stale",
            CoverageState::Partial => "partial",
            CoverageState::Aging => "aging",
            CoverageState::Estimated => "fresh, some pods estimated",
            CoverageState::Fresh => "fresh and complete",
        };
        let ready = [
            (self.fresh, "fresh"),
            (self.aging, "aging"),
            (self.stale, "stale"),
            (self.absent, "without series"),
            (self.lacking, "lacking a series"),
        ];
        write!(f, "role {}: {state}: {} Ready{}", role_name(self.role), self.ready, Counts(&ready))?;
        write!(f, ", {} starting{}", self.starting, Counts(&[(self.unschedulable, "unschedulable")]))?;
        Counts(&[(self.asleep, "asleep")]).fmt(f)
    }
}

/// Counts in brackets, without those of 0.
struct Counts<'a>(&'a [(u32, &'a str)]);

impl Display for Counts<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut before = " (";
        for (count, what) in self.0.iter().filter(|(count, _)| *count > 0) {
            write!(f, "{before}{count} {what}")?;
            before = ", ";
        }
        f.write_str(if before == ", " { ")" } else { "" })
    }
}

impl Display for ModelFailure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Failed { count, retry_at, cause, .. } = &self.failed;
        let times = counted(*count, "time");
        write!(f, "{}: the decision failed {times} in a row ({cause:?}); retried at {retry_at}", self.group)
    }
}

impl Display for Violation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}: {}", self.variant, self.rule, self.detail)
    }
}

impl Display for Breach {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDecision => f.write_str("it has no decision"),
            Self::NotInSnapshot => f.write_str("it is not in the snapshot"),
            Self::OutOfBounds { decided, nearest } => {
                write!(f, "{decided} is outside the bounds; {nearest} is the nearest inside")
            }
            Self::BlindDecrease { decided, promised } => {
                write!(f, "{decided} after {promised}, with less than half of the serving pods measured")
            }
            Self::UnearnedZero { min, running } => {
                write!(f, "0 with a minimum of {min} and {running} running")
            }
            Self::Steps { decided, promised, running, moved } => {
                let promised =
                    promised.map_or_else(|| "nothing".to_smolstr(), |promised| promised.to_smolstr());
                let moved = moved.join(", ");
                write!(f, "{decided} after {promised} with {running} running; moved at once: {moved}")
            }
            Self::Overfull { limit: Shortfall::Sequences { used, remaining } } => write!(
                f,
                "running + waiting requests peaked at {used:.0} of the {remaining:.0} sequences that remain"
            ),
            Self::Overfull { limit: Shortfall::KvCache { used, remaining } } => {
                write!(f, "KV caches held {used:.0} tokens at their peaks, of the {remaining:.0} that remain")
            }
            Self::OverfullCaches { used, remaining } => {
                write!(
                    f,
                    "KV caches were filled {used:.2} times at their peaks, of the {remaining:.0} that remain"
                )
            }
            Self::Recorded(text) => f.write_str(text),
        }
    }
}

impl Display for LimitGap {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("the GPU limit is not in force, because ")?;
        match self {
            Self::NoInventory => f.write_str(
                "no GPU of any node is known: allow listing nodes (limits.inventory of the chart) and label them with their accelerator, or set failClosed so that nothing is added meanwhile",
            ),
            Self::UnlabelledNode { node } => write!(
                f,
                "the node {node} has GPUs and no accelerator label: label it, or set failClosed to count labelled nodes only"
            ),
            Self::NotInInventory { accelerator } => write!(
                f,
                "no node is labelled with the accelerator {accelerator}: label the nodes that have it, correct the variant's accelerator, or set failClosed so that nothing is added meanwhile"
            ),
        }
    }
}

impl Display for Threshold {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let to = match self.to {
            Direction::More => "more",
            Direction::Fewer => "fewer",
        };
        let is = match self.is {
            Side::Below => "below",
            Side::Above => "above",
        };
        write!(f, "{to} when {} is {is} {:.4}, now {:.4}", self.quantity, self.at, self.now)
    }
}

impl Display for OptimizerStep {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Votes { role, votes } => {
                write!(f, "role {}:", role_name(*role))?;
                votes.iter().enumerate().try_for_each(|(index, vote)| {
                    let comma = if index == 0 { "" } else { "," };
                    let Vote { analyzer, missing, spare } = vote;
                    let name = analyzer.as_str();
                    write!(f, "{comma} {name} needs {missing:.1} more and has {spare:.1} spare")
                })
            }
            Self::Covered { role, share, added, cost, is_cheapest } => {
                let how = if *is_cheapest { "" } else { ", not proven to be the cheapest" };
                let (role, share) = (role_name(*role), percent(*share));
                write!(
                    f,
                    "role {role}: {} cover {share} of the need at a cost of {cost:.2}{how}",
                    Listed(added)
                )
            }
            Self::Round { remaining, mean, target } => {
                write!(f, "may fill {target:.1} of {remaining:.1} (mean of all models {mean:.1})")
            }
            Self::Added { share, added } => {
                write!(f, "{} cover {} of the need of every role", Listed(added), percent(*share))
            }
            Self::Limited { variant, proposed, fit, binding } => {
                write!(f, "{variant}: {fit} of {proposed} more fit: {binding}")
            }
            Self::Blocked { role } => {
                write!(f, "role {}: no variant can take a replica, so none is added", role_name(*role))
            }
            Self::Kept { role } => write!(
                f,
                "role {}: no replica is removed, because not every analyzer has capacity to spare",
                role_name(*role)
            ),
            Self::Removed { variant, allowed, removed } => {
                write!(f, "{variant}: {removed} fewer, where spare capacity allows {allowed}")
            }
            Self::Rescaled { budget, demand, floor, cap, gpus, is_over_budget } => {
                let over = if *is_over_budget { ", although the minima alone exceed that" } else { "" };
                write!(f, "rescaled to {gpus} of {budget} GPUs{over}")?;
                write!(f, " (between {floor} and {cap}, for a demand of {demand:.1})")
            }
        }
    }
}

struct Listed<'a>(&'a [Addition]);

impl Display for Listed<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("0 replicas");
        }
        self.0.iter().enumerate().try_for_each(|(index, added)| {
            let and = if index == 0 { "" } else { " and " };
            write!(f, "{and}{} of {}", added.replicas, added.variant)
        })
    }
}
