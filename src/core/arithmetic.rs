//! Chooses between the default algorithms and upstream's, which keep its defects. Each function makes that choice once, so that the
//! algorithms need not.

use std::collections::BTreeMap;

use jiff::Timestamp;
use smol_str::SmolStr;

use crate::analyze::inferno::allocation::Allocation;
use crate::analyze::inferno::{ServerProposal, System};
use crate::analyze::input_rules::{self, InputRules};
use crate::analyze::queueing::sizing::Means;
use crate::analyze::queueing::{
    LatencyObservation, LearnedParameters, QueueingAnalysis, QueueingSettings, VariantLoad,
};
use crate::analyze::saturation_token::{Knowledge, TokenAnalysis, TokenInput, TokenPolicy};
use crate::analyze::scale_from_zero::{self, WakeCandidate};
use crate::analyze::throughput::{ThroughputAnalysis, ThroughputInput, ThroughputMemory};
use crate::analyze::{queueing, saturation_token, throughput};
use crate::limit::{self, Grant, GrantRequest, Inventory, KnownGpus, Limit};
use crate::model::Compat;
use crate::optimize::by_score::SharedPlans;
use crate::optimize::rescale::Rescale;
use crate::optimize::{Plan, Request, by_score, cost_aware};
use crate::units::Requests;
use crate::upstream::{self, Tree};

pub(crate) fn input_rules(compat: Compat) -> &'static InputRules {
    match Tree::from_compat(compat) {
        None => &input_rules::CORRECTED,
        Some(_) => &upstream::inputs::UPSTREAM,
    }
}

pub(crate) fn analyze_tokens<'a>(
    input: &TokenInput<'a>,
    knowledge: &mut Knowledge,
    policy: &TokenPolicy,
    compat: Compat,
    now: Timestamp,
) -> TokenAnalysis<'a> {
    match Tree::from_compat(compat) {
        None => saturation_token::analyze(input, knowledge, policy, now),
        Some(tree) => upstream::saturation_token::analyze(input, knowledge, policy, tree, now),
    }
}

pub(crate) fn analyze_throughput(
    input: &ThroughputInput,
    memory: &mut ThroughputMemory,
    compat: Compat,
) -> ThroughputAnalysis {
    match Tree::from_compat(compat) {
        None => throughput::analyze(input, memory),
        Some(_) => upstream::throughput::analyze(input, memory),
    }
}

/// The queueing model. Upstream leaves out the requests `queued` in the scheduler.
pub(crate) fn analyze_queueing(
    loads: &[VariantLoad],
    queued: Requests,
    known: &LearnedParameters,
    settings: &QueueingSettings,
    compat: Compat,
) -> QueueingAnalysis {
    match Tree::from_compat(compat) {
        None => queueing::analyze(loads, queued, known, settings),
        Some(_) => upstream::queueing::analyze(loads, known, settings),
    }
}

/// The mean request of a variant's engines; `None` if they show none.
pub(crate) fn mean_request(observations: &[LatencyObservation], compat: Compat) -> Option<Means> {
    match Tree::from_compat(compat) {
        None => queueing::capacity::means(observations),
        Some(_) => upstream::queueing::means(observations),
    }
}

pub(crate) fn server_proposals(
    system: &System,
    allocations: &BTreeMap<SmolStr, Allocation>,
    compat: Compat,
) -> BTreeMap<SmolStr, ServerProposal> {
    match Tree::from_compat(compat) {
        None => system.proposals(allocations),
        Some(_) => upstream::inferno::proposals(system, allocations),
    }
}

pub(crate) fn woken(candidates: &[WakeCandidate], compat: Compat) -> Vec<usize> {
    match Tree::from_compat(compat) {
        None => scale_from_zero::woken(candidates),
        Some(_) => upstream::scale_from_zero::woken(candidates),
    }
}

pub(crate) fn optimize_alone(request: &Request, compat: Compat) -> Plan {
    match Tree::from_compat(compat) {
        None => cost_aware::optimize(request),
        Some(tree) => upstream::cost_aware::optimize(request, tree),
    }
}

pub(crate) fn optimize_together(
    requests: &[Request],
    limits: &[Limit],
    rescale: &Rescale,
    compat: Compat,
) -> SharedPlans {
    match Tree::from_compat(compat) {
        None => by_score::optimize(requests, limits, rescale),
        Some(tree) => upstream::by_score::optimize(requests, limits, rescale, tree),
    }
}

/// What limits leave of proposed numbers.
pub(crate) fn grant(requests: &[GrantRequest], limits: &[Limit], compat: Compat) -> Vec<Grant> {
    match Tree::from_compat(compat) {
        None => limit::grant(requests, limits),
        Some(_) => upstream::limiter::grant(requests, limits),
    }
}

/// The cluster's GPUs as a limit; `open` limits let additions through where they are not known.
pub(crate) fn inventory(known: KnownGpus<'_>, open: bool, compat: Compat) -> Inventory<'_> {
    match Tree::from_compat(compat) {
        None => limit::inventory(known, open),
        Some(_) => upstream::limiter::inventory(known),
    }
}
