//! Shares what limits leave among all models that need more, the most starved first. Source: algorithm reference §7.5.

mod fair;
mod upstream;

use serde::{Deserialize, Serialize};

use super::rescale::Rescale;
use super::{Plan, Request, cost_aware};
use crate::limit::{Footprint, Free, Limit};
use crate::model::{Compat, GroupId};

pub use upstream::optimize as upstream;

/// What sharing makes of all requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shared {
    /// One a request, in the same order.
    pub plans: Vec<Plan>,
    /// The turns of the sharing, in order.
    pub turns: Vec<Turn>,
}

/// One turn: the most starved model may fill `target`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Whose turn.
    pub id: GroupId,
    /// What is left of its weight: GPUs by priority and score, upstream's in the findings' units.
    pub left: f64,
    /// The mean of what is left, over all who still want some.
    pub mean: f64,
    /// What it may fill now.
    pub target: f64,
}

/// Turns that are taken at most; each but a model's last adds a replica.
const MOST_TURNS: usize = 10_000;

/// Without limits each model is optimised alone ([`cost_aware`]); only upstream's of 2026-06 has nothing to give then.
#[must_use]
pub fn optimize(requests: &[Request], limits: &[Limit], rescale: &Rescale, compat: Compat) -> Shared {
    if limits.is_empty() && compat != Compat::UpstreamJune {
        return Shared { plans: cost_aware::optimize(requests, compat), turns: Vec::new() };
    }
    if compat.is_upstream() {
        return upstream(requests, Free::of(limits, &running(requests), true), rescale, compat);
    }
    fair::optimize(requests, limits, rescale)
}

/// What all variants use now.
fn running<'a>(requests: impl IntoIterator<Item = &'a Request>) -> Vec<(Footprint<'a>, i64)> {
    let mut all = Vec::new();
    for request in requests {
        let of = request.candidates.iter();
        all.extend(of.map(|one| (one.footprint(&request.id.namespace), i64::from(one.current.get()))));
    }
    all
}

/// What the most starved of `active` models may fill: down to the mean of all, everything when it is alone, and its part
/// when all are equal.
fn target(left: f64, mean: f64, active: usize) -> f64 {
    let kept = match active {
        0 | 1 => 0.0,
        _ if left <= mean => mean - left / f64::from(crate::units::count(active)),
        _ => mean,
    };
    left - kept
}
