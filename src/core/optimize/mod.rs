//! From findings to replica counts: which variant gets how many. [`cost_aware`] looks at one model at a time,
//! [`by_score`] shares what limits leave among models, [`rescale`] moves GPUs between them by priority.
//!
//! Every optimizer returns one plan a request with exactly one target a candidate, and the steps that led there. Without
//! findings a target is what it was. Numbers that are not finite, or below 0, count as 0, which is not known.

pub mod by_score;
pub mod cost_aware;
mod cover;
pub mod rebalance;
pub mod rescale;
mod shrink;
mod step;
mod trace;
mod vote;
mod work;

use serde::{Deserialize, Serialize};

use crate::analyze::finding::Finding;
use crate::limit::{Binding, Footprint};
use crate::model::{Bounds, GroupId, Role};
use crate::units::{Cost, Replicas, Watts};
use smol_str::SmolStr;

pub use cover::{Choice, Cover, cheapest};
pub use trace::{Added, Step};

/// One model and what is known of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Namespace and model.
    pub id: GroupId,
    /// Its weight among models, at least 0.
    pub priority: f64,
    /// Its variants.
    pub candidates: Vec<Candidate>,
    /// What analyzers say. The first is the saturation analyzer's: its capacities choose between variants.
    pub findings: Vec<Finding>,
}

/// A variant that may get more or fewer replicas.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// The variant's name, unique in its namespace.
    pub name: SmolStr,
    /// Its role.
    pub role: Role,
    /// What a replica costs.
    pub cost: Cost,
    /// The accelerator's name, when one is known.
    pub accelerator: Option<SmolStr>,
    /// GPUs of a replica; 0 counts as 1.
    pub gpus: u32,
    /// Power of a replica, when it is known.
    pub watts: Option<Watts>,
    /// Replicas it has.
    pub current: Replicas,
    /// Its bounds.
    pub bounds: Bounds,
}

impl Candidate {
    /// What a replica of it takes in `namespace`.
    #[must_use]
    pub fn footprint<'a>(&'a self, namespace: &'a str) -> Footprint<'a> {
        let Self { watts, cost, .. } = *self;
        let gpus = self.gpus.max(1);
        Footprint { namespace, accelerator: self.accelerator.as_deref(), gpus, watts, cost }
    }

    /// GPUs of one replica.
    fn gpus(&self) -> i64 {
        i64::from(self.gpus.max(1))
    }

    /// How many more than `target` its maximum allows, and a count can hold.
    fn headroom(&self, target: i64) -> i64 {
        let most = self.bounds.max.map_or(u32::MAX, Replicas::get);
        i64::from(most).saturating_sub(target).max(0)
    }
}

/// What an optimizer makes of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Namespace and model.
    pub id: GroupId,
    /// One a candidate, in the same order.
    pub targets: Vec<Target>,
    /// How it came about, in order.
    pub steps: Vec<Step>,
}

/// One variant's number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// The variant's name.
    pub name: SmolStr,
    /// Replicas it has.
    pub current: Replicas,
    /// Replicas it shall have.
    pub target: Replicas,
    /// The limit that held it back last.
    pub bound: Option<Binding>,
}
