//! The input of an optimizer, and its result.

use smol_str::SmolStr;

use super::OptimizerStep;
use crate::analyze::finding::Finding;
use crate::limit::{Binding, Footprint};
use crate::model::{Bounds, GroupId, Role};
use crate::units::{Cost, Replicas, Watts};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Request {
    pub id: GroupId,
    pub priority: f64,
    pub candidates: Vec<Candidate>,
    /// The findings of the analyzers. Variants are chosen by the capacities of the first one.
    pub findings: Vec<Finding>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Candidate {
    /// The variant's name, unique in its namespace.
    pub name: SmolStr,
    pub role: Role,
    pub cost: Cost,
    pub accelerator: Option<SmolStr>,
    /// GPUs of a replica, of which 0 counts as 1; `None` if their number is not known.
    pub gpus: Option<u32>,
    /// Power of a replica, if it is known.
    pub watts: Option<Watts>,
    pub current: Replicas,
    pub bounds: Bounds,
}

impl Candidate {
    pub(crate) fn footprint<'a>(&'a self, namespace: &'a str) -> Footprint<'a> {
        Footprint {
            namespace,
            variant: &self.name,
            accelerator: self.accelerator.as_deref(),
            gpus: self.gpus,
            watts: self.watts,
            cost: self.cost,
        }
    }

    /// GPUs of one replica, at least 1. Where their number is not known, no limit on them lets a replica be added.
    pub(crate) fn gpus(&self) -> i64 {
        i64::from(self.gpus.unwrap_or(1).max(1))
    }

    /// How many more than `target` its maximum allows, and a count can hold.
    pub(crate) fn headroom(&self, target: i64) -> i64 {
        let max = self.bounds.max.map_or(u32::MAX, Replicas::get);
        i64::from(max).saturating_sub(target).max(0)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub id: GroupId,
    pub targets: Vec<VariantTarget>,
    pub steps: Vec<OptimizerStep>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct VariantTarget {
    pub name: SmolStr,
    pub current: Replicas,
    pub target: Replicas,
    /// The limit that held it back last.
    pub binding: Option<Binding>,
}
