//! The text of what a number follows from before adjustments.

use std::fmt::{self, Display, Formatter};

use smol_str::SmolStr;

use super::{Text, counted, replicas};
use crate::report::{Basis, Blocker, Caveat, Rule};
use crate::units::{Replicas, truncated_u32};

impl Basis {
    /// The last number is held, and that is said.
    pub(super) const fn is_hold(&self) -> bool {
        matches!(
            self,
            Self::SourceDown { .. }
                | Self::NoSeries { .. }
                | Self::StaleSamples { .. }
                | Self::IncompleteAnswer { .. }
                | Self::PodsStarting { .. }
                | Self::PodsUnschedulable { .. }
                | Self::PodsAsleep { .. }
                | Self::NotMeasuredYet
                | Self::NoPods { .. }
                | Self::Learning
                | Self::NoWakeUpSignal
                | Self::IdleUnconfirmed
                | Self::DecisionFailed { .. }
                | Self::RuleBroken { .. }
        )
    }

    /// The text has the number already.
    pub(super) const fn names_number(&self) -> bool {
        matches!(self, Self::AwaitingReplicas { .. } | Self::AwaitingReady { .. })
    }
}

/// ` of NAME` where there is one.
fn of_variant(variant: Option<&SmolStr>) -> impl Display {
    Text(move |f: &mut Formatter<'_>| variant.map_or(Ok(()), |variant| write!(f, " of {variant}")))
}

impl Display for Basis {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recorded { text } => f.write_str(text),
            Self::Analyzed { .. } => f.write_str("decided by the analyzer"),
            Self::SafetyNet => f.write_str("decided by the safety net"),
            Self::BetweenCycles => f.write_str("unchanged until the analyzer's next cycle"),
            Self::AwaitingReplicas { variant, desired, running } => {
                let (desired, variant) = (replicas(*desired), of_variant(variant.as_ref()));
                write!(f, "waiting for {desired}{variant}, {running} running")
            }
            Self::AwaitingReady { variant, pending, running } => {
                let (running, variant) = (replicas(*running), of_variant(variant.as_ref()));
                write!(f, "waiting for {pending} of {running}{variant} to become Ready")
            }
            Self::Learning => f.write_str("demand or the capacity of a replica is not known yet"),
            Self::RequestsWaiting { requests } => {
                let count = truncated_u32(requests.round());
                let are = if count == 1 { "is" } else { "are" };
                write!(f, "no replica runs and {} {are} waiting at the scheduler", counted(count, "request"))
            }
            Self::CounterpartRuns => {
                f.write_str("no replica runs, and the other one of prefill and decode does")
            }
            Self::IdleFor { seconds } => write!(f, "no request for {seconds:.0} s"),
            Self::NotIdle => f.write_str("not known to be idle any more"),
            Self::LastReplicaKept => {
                f.write_str("scale to zero is off, so the cheapest variant keeps one replica")
            }
            Self::Idle => f.write_str("no replica runs and no request is waiting"),
            basis => basis.write_pods(f),
        }
    }
}

impl Basis {
    /// What pods lack that a decision could rest on.
    fn write_pods(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let ready_pods = |ready: u32| counted(ready, "Ready pod");
        match self {
            Self::NoSeries { ready } => write!(
                f,
                "no series from {}: check that they serve /metrics and that the source scrapes them",
                ready_pods(*ready)
            ),
            Self::StaleSamples { ready } => write!(
                f,
                "the newest samples of {} are too old: check the scrapes of these pods",
                ready_pods(*ready)
            ),
            Self::IncompleteAnswer { warnings, ready } => write!(
                f,
                "the metric source's answer is incomplete ({warnings}) and has no series from {}",
                ready_pods(*ready)
            ),
            Self::PodsStarting { starting } => {
                let are = if *starting == 1 { "is" } else { "are" };
                let pods = counted(*starting, "pod");
                write!(f, "{pods} {are} starting and none is Ready; if this lasts, check their events")
            }
            Self::PodsUnschedulable { unschedulable, starting } => write!(
                f,
                "no pod is Ready, and no node has room for {unschedulable} of {}: check their events",
                counted(*starting, "pod")
            ),
            Self::PodsAsleep { asleep } => write!(
                f,
                "the engines of {} sleep and no pod is awake: wake one through its engine's API, or restart it",
                counted(*asleep, "pod")
            ),
            Self::NoPods { requested, target } => write!(
                f,
                "{} requested and no pod exists; if this lasts, check the events of {target}",
                replicas(*requested)
            ),
            Self::NotMeasuredYet => f.write_str("pods are Ready and not measured yet"),
            basis => basis.write_problem(f),
        }
    }

    /// What a person has to mend, or to wait for.
    fn write_problem(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::SourceDown { cause } => write!(f, "the metric source is down: {cause}"),
            Self::NoWakeUpSignal => f.write_str(
                "no replica runs and nothing can wake one, because the metric source has no fresh queue size of the scheduler: check that the scheduler's queue metrics are scraped, set the annotation wva.llmd.ai/woken-by where something else starts it, or scale the target up",
            ),
            Self::TargetNotFound { target, namespace } => write!(
                f,
                "{target} does not exist in namespace {namespace}: create it or correct spec.scaleTargetRef"
            ),
            Self::TargetUnknown { target, cause } => {
                write!(f, "it is not known whether {target} exists: {cause}")
            }
            Self::InvalidVariant { problem } => write!(f, "{problem}; correct the object"),
            Self::ModelUnknown { cause } => write!(f, "the model is not known: {cause}"),
            Self::DecisionFailed { cause, retry_at } => write!(
                f,
                "the decision about this model failed ({cause:?}) and is retried at {retry_at}; please report this"
            ),
            Self::RuleBroken { rule: Rule::FitsRemaining, detail } => {
                write!(f, "with fewer replicas, {detail}, and at most 90 % may be used")
            }
            Self::RuleBroken { rule, detail } => {
                write!(f, "the new number broke the rule {rule:?} ({detail}); please report this")
            }
            _ => f.write_str("no replica runs, and the metric source's answer is incomplete"),
        }
    }
}

impl Caveat {
    pub(in crate::report) fn write(&self, f: &mut Formatter<'_>, running: Replicas) -> fmt::Result {
        match self {
            Self::IncompleteAnswer { warnings } => {
                write!(f, "the metric source's answer is incomplete ({warnings}), so no replica is removed")
            }
            Self::UnmeasuredPods => {
                f.write_str("some Ready pods have no fresh metrics, so no replica is removed")
            }
            Self::PartiallyMeasured => f.write_str("some Ready pods have no fresh metrics"),
            Self::EstimatedPods => {
                f.write_str("pods without fresh metrics count as the busiest measured pod")
            }
            Self::NotFresh => {
                f.write_str("one replica fewer would suffice, but the newest samples are not fresh")
            }
            Self::StepTooLarge { to } => write!(
                f,
                "one replica fewer would suffice, but the next step is {running} to {}, which would not",
                replicas(*to)
            ),
            Self::Blocked { by } => write!(f, "more replicas are needed, but {by}"),
            Self::AwaitingReplicas { desired } => {
                write!(f, "waiting for {}, {running} running", replicas(*desired))
            }
            Self::Exchange { from } => {
                write!(f, "to replace replicas of {from}, which cost more for the same demand")
            }
        }
    }
}

impl Display for Blocker {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNode { pods } => write!(f, "no node has room for {}", counted(*pods, "pod")),
            Self::Maximum { max } => write!(f, "the maximum is {max}"),
            Self::NotReady { pods } => {
                write!(f, "{} not Ready in time: check their events", counted(*pods, "pod"))
            }
            Self::Unknown => f.write_str("no variant can grow"),
        }
    }
}
