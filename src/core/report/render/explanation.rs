//! The text of an explanation.

use std::fmt::{self, Display, Formatter};

use super::{Clauses, Text, amount, counted, percent, replicas, role_name};
use crate::bound::stability::StabilityRule;
use crate::hpa::TOLERANCE;
use crate::model::{Analyzer, Role};
use crate::quality::Shortfall;
use crate::report::{
    Adjustment, AdjustmentReason, Analysis, Basis, CapacityFinding, CapacityTotals, Caveat, Explanation,
    Fallback, Finding, Forecast, RateConstraint, RateExplanation, Reasoning, Relief, Saturation,
    SaturationCause, Withheld,
};
use crate::units::{Replicas, truncated_u32};

impl Display for Explanation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl Display for Reasoning {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.reasons().fmt(f)?;
        match (self.number, &self.basis) {
            (None, _) | (_, Basis::Recorded { .. }) => Ok(()),
            _ if self.withheld.is_some() => Ok(()),
            (Some(number), basis) if self.adjustments.is_empty() && basis.is_hold() => {
                write!(f, "; holding {}", replicas(number))
            }
            (Some(_), basis) if self.adjustments.is_empty() && basis.names_number() => Ok(()),
            (Some(number), _) => write!(f, " → {}", replicas(number)),
        }
    }
}

impl Reasoning {
    /// A step of V1 that goes past an HPA's tolerance.
    fn is_larger_step(&self) -> bool {
        let is_step =
            matches!(self.basis, Basis::Analyzed { caveat: None | Some(Caveat::PartiallyMeasured) });
        let is_percent = self
            .analysis
            .as_ref()
            .is_some_and(|analysis| matches!(analysis.finding, Finding::SaturationPercent { .. }));
        let difference = self.number.zip(self.running).map(|(to, from)| to.get().abs_diff(from.get()));
        is_step && is_percent && self.adjustments.is_empty() && difference > Some(1)
    }

    /// The reasons without the number that they lead to.
    pub fn reasons(&self) -> impl Display {
        Text(|f: &mut Formatter<'_>| {
            let mut clauses = Clauses { f, is_first: true };
            if let Some(withheld) = &self.withheld {
                clauses.add(withheld)?;
            }
            match &self.basis {
                Basis::Analyzed { caveat } => {
                    if let Some(caveat) = caveat {
                        let running = self.running.unwrap_or_default();
                        clauses.add(Text(|f: &mut Formatter<'_>| caveat.write(f, running)))?;
                    }
                }
                Basis::SafetyNet => {}
                basis => clauses.add(basis)?,
            }
            if let Some(analysis) = &self.analysis {
                clauses.add(analysis)?;
            }
            if self.is_larger_step() {
                clauses.add(format_args!(
                    "a step of one replica would be within an HPA's tolerance of {}",
                    percent(TOLERANCE)
                ))?;
            }
            self.adjustments.iter().try_for_each(|adjustment| clauses.add(adjustment))
        })
    }
}

impl Display for Withheld {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingKnown => f.write_str("nothing has been measured and no earlier number is known"),
            Self::EvidenceTooOld { age, limit } => {
                write!(f, "the newest evidence is {age:.0} s old, more than max-stale ({limit:.0} s)")
            }
        }
    }
}

impl Display for Analysis {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(Fallback { own, analyzer }) = self.fallback {
            let (own, analyzer) = (own.as_str(), analyzer.as_str());
            write!(f, "{own} has too little data, so {analyzer} decides, about additions only: ")?;
        }
        if let Some(limit) = &self.removal_limit {
            write!(f, "no further replica is removed: {limit}; ")?;
        }
        self.finding.fmt(f)
    }
}

impl Display for Finding {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate(rate) => rate.fmt(f),
            Self::SaturationPercent {
                spare_kv,
                kv_trigger,
                spare_queue,
                queue_trigger,
                non_saturated,
                total,
            } => write!(
                f,
                "mean spare KV cache {spare_kv:.2} (trigger {kv_trigger:.2}) and queue {spare_queue:.1} (trigger {queue_trigger:.1}) across {non_saturated} of {total} replicas below saturation",
            ),
            Self::Score { mean, engines } => {
                write!(f, "mean score {mean:.2} of {}", counted(*engines, "engine"))
            }
            Self::Capacity { analyzers } => {
                let mut clauses = Clauses { f, is_first: true };
                analyzers.iter().try_for_each(|finding| clauses.add(finding))
            }
            Self::Allocation => {
                f.write_str("the cheapest allocation that keeps the latencies of the service class")
            }
        }
    }
}

impl Display for RateExplanation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.role != Role::Both {
            write!(f, "{}: ", role_name(self.role))?;
        }
        write!(f, "demand {} req/s", amount(self.demand))?;
        if let Some(refused) = self.refused {
            write!(f, ", of which {} refused", amount(refused))?;
        }
        if let Some(Forecast { rate, seconds }) = self.forecast {
            write!(f, " (forecast {} in {seconds:.0} s)", amount(rate))?;
        }
        let noun = counted(truncated_u32(self.replicas.round()), "replica");
        write!(f, "; capacity {} req/s with {noun}; {}", amount(self.capacity), self.constraint())?;
        self.removal_in.map_or(Ok(()), |seconds| write!(f, "; one replica can be removed in {seconds:.0} s"))
    }
}

impl RateExplanation {
    pub(super) fn constraint(&self) -> impl Display {
        Text(|f: &mut Formatter<'_>| {
            let supports = amount(self.supports);
            match self.constraint {
                RateConstraint::Utilisation => write!(f, "target utilisation supports {supports} req/s"),
                RateConstraint::ChanceReserve { .. } => write!(f, "chance reserve supports {supports} req/s"),
                RateConstraint::SurgeReserve { .. } => write!(f, "surge reserve supports {supports} req/s"),
                RateConstraint::Backlog { requests, seconds } => write!(
                    f,
                    "draining a backlog of {requests:.0} requests in {seconds:.0} s leaves {supports} req/s"
                ),
            }
        })
    }
}

impl Display for CapacityFinding {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let unit = match self.analyzer {
            Analyzer::Saturation => "tokens",
            Analyzer::Throughput => "tokens/s",
            _ => "req/s",
        };
        write!(f, "{}: ", self.analyzer.as_str())?;
        self.totals.iter().enumerate().try_for_each(|(index, totals)| {
            f.write_str(if index == 0 { "" } else { ", " })?;
            totals.write(f, unit)
        })
    }
}

impl CapacityTotals {
    fn write(&self, f: &mut Formatter<'_>, unit: &str) -> fmt::Result {
        if let Some(role) = self.role {
            write!(f, "{} ", role_name(role))?;
        }
        write!(f, "demand {} of capacity {} {unit}", amount(self.demand), amount(self.supply))?;
        if self.anticipated > self.supply {
            write!(f, " ({} with starting replicas)", amount(self.anticipated))?;
        }
        if self.required > 0.0 {
            write!(f, ", {} short", amount(self.required))
        } else if self.spare > 0.0 {
            write!(f, ", {} spare", amount(self.spare))
        } else {
            f.write_str(", sufficient")
        }
    }
}

impl Display for Shortfall {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Sequences { used, remaining } => write!(
                f,
                "running and waiting requests peaked at {} of the {} sequences that would remain, and at most 90 % may be used",
                truncated_u32(used.round()),
                truncated_u32(remaining.round())
            ),
            Self::KvCache { used, remaining } => {
                let share = if remaining > 0.0 { used / remaining } else { 1.0 };
                write!(
                    f,
                    "KV cache usage peaked at {} of what would remain, and at most 90 % may be used",
                    percent(share)
                )
            }
        }
    }
}

impl Display for Adjustment {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let from = self.from.filter(|from| *from != self.to);
        match (&self.why, from) {
            (AdjustmentReason::Saturated { state }, from) => {
                write!(f, "{state}")?;
                let is_held = from.is_some_and(|from| from < self.to) && state.relief != Relief::Growing;
                f.write_str(if is_held { "; no replica is removed" } else { "" })
            }
            (AdjustmentReason::HpaTolerance { tolerance }, _) => write!(
                f,
                "an HPA with a tolerance of {} takes this for no change and will not follow",
                percent(*tolerance)
            ),
            (why @ AdjustmentReason::Limit { .. }, None) => {
                write!(f, "more replicas are needed, but limited by {why}")
            }
            (why, Some(from)) => write!(f, "{} instead of {from}: {why}", self.to),
            (why, None) => why.fmt(f),
        }
    }
}

impl Display for AdjustmentReason {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stability { rule } => rule.fmt(f),
            Self::Bounds { min, max: None } => write!(f, "minimum {min}, no maximum"),
            Self::Bounds { min, max: Some(max) } => write!(f, "minimum {min}, maximum {max}"),
            Self::Limit { binding: None } => f.write_str("free GPUs"),
            Self::Limit { binding: Some(binding) } => binding.fmt(f),
            Self::NoRoomToExchange { binding: None } => {
                f.write_str("no room for cheaper replicas: free GPUs")
            }
            Self::NoRoomToExchange { binding: Some(binding) } => {
                write!(f, "no room for cheaper replicas: {binding}")
            }
            Self::OrderWithdrawn { window } => write!(
                f,
                "an order was withdrawn less than {window:.0} s ago, and its signals may be wrong again"
            ),
            Self::MustFit { limit } => limit.fmt(f),
            Self::Saturated { state } => state.fmt(f),
            Self::HpaTolerance { tolerance } => write!(f, "HPA tolerance of {}", percent(*tolerance)),
        }
    }
}

impl Display for StabilityRule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Window { seconds } => write!(f, "stabilization window of {seconds:.0} s"),
            Self::Dwell { seconds } => write!(f, "cooldown of {seconds:.0} s after the last increase"),
            Self::UpStep { max, running } => write!(f, "at most {max} in one step from {running}"),
            Self::DownStep { min, running } => write!(f, "at least {min} in one step from {running}"),
        }
    }
}

impl Display for SaturationCause {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pods { saturated, ready } => write!(
                f,
                "in every scrape of the last minute {saturated} of {} had at least 5 waiting requests, or a full KV cache with requests waiting",
                counted(*ready, "Ready pod")
            ),
            Self::Queue => f.write_str("the scheduler's queue has not been empty for a minute"),
        }
    }
}

impl Display for Saturation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "saturated: {}", self.saturated_by)?;
        match self.relief {
            Relief::Growing => Ok(()),
            Relief::Ordered => f.write_str("; enough replicas are ordered"),
            Relief::Starting if self.starting > 0 => {
                write!(f, "; waiting for {} to start", counted(self.starting, "replica"))
            }
            Relief::Starting => {
                write!(f, "; waiting one start-up time ({} s) for the last order", self.start_up)
            }
            Relief::AtMaximum => match self.max {
                Some(max) => write!(f, "; more replicas are needed, but the maximum is {max}"),
                None => f.write_str("; more replicas are needed, but no maximum allows them"),
            },
            Relief::AtLimit => f.write_str("; more replicas are needed, but a limit allows no more"),
            Relief::NoNode => write!(
                f,
                "; more replicas are needed, but no node has room for {}",
                counted(self.unschedulable, "pod")
            ),
            Relief::NotComing if self.ordered <= self.running => write!(
                f,
                "; more replicas are needed, but {} not Ready in time: check their events",
                counted(self.not_ready, "pod")
            ),
            Relief::NotComing => {
                write!(
                    f,
                    "; more replicas are needed, but {} of {} ordered replicas run: check the HPA's maximum and quotas on pods",
                    self.running, self.ordered
                )?;
                // HPA controller: autoscaling is disabled while the target's spec.replicas is 0.
                let is_zero = self.running == Replicas::ZERO;
                f.write_str(if is_zero {
                    "; an HPA never scales a target that has 0 replicas, so scale it to 1"
                } else {
                    ""
                })
            }
        }
    }
}
