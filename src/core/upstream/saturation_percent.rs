//! V1's choice of targets, exactly as upstream's. Source: WVA v0.9, `internal/saturation/analyzer.go`. `decide` makes this choice with four
//! corrections.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use smol_str::SmolStr;

use super::Tree;
use crate::model::Bounds;
use crate::units::{Cost, Replicas};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StepCandidate {
    pub name: SmolStr,
    /// Cost units an hour of a replica; 0 is taken literally.
    pub cost: Cost,
    /// Its observations; a variant without any takes no part.
    pub observations: u32,
    pub current: Replicas,
    /// The last published number; 0 if there is none.
    pub desired: Replicas,
    pub pending: Replicas,
    pub bounds: Bounds,
}

impl StepCandidate {
    fn is_moving(&self) -> bool {
        self.desired != Replicas::ZERO && self.desired != self.current
    }

    /// In transition: in June's tree if observations and replicas differ, in v0.9 while replicas are pending.
    fn is_unsettled(&self, tree: Tree) -> bool {
        match tree {
            Tree::June => Replicas::new(self.observations) != self.current,
            Tree::August => self.pending > Replicas::ZERO,
        }
    }

    fn base(&self, tree: Tree) -> Replicas {
        match tree {
            Tree::June => Replicas::new(self.observations),
            Tree::August => self.current,
        }
    }
}

/// Upstream's targets. Defects: they are not clamped in a transition, and a step of a variant at its maximum is lost.
pub(crate) fn targets(
    tree: Tree,
    scale_up: bool,
    scale_down_safe: bool,
    candidates: &[StepCandidate],
) -> BTreeMap<SmolStr, Replicas> {
    let observed: Vec<&StepCandidate> =
        candidates.iter().filter(|candidate| candidate.observations > 0).collect();
    if observed.iter().any(|candidate| candidate.is_moving() || candidate.is_unsettled(tree)) {
        let held = |candidate: &StepCandidate| {
            if candidate.is_moving() { candidate.desired } else { candidate.current }
        };
        return observed.iter().map(|candidate| (candidate.name.clone(), held(candidate))).collect();
    }
    let stepping = if scale_up {
        let settled = observed.iter().filter(|candidate| candidate.pending == Replicas::ZERO);
        settled.min_by(|left, right| by_cost_and_name(left, right))
    } else if scale_down_safe {
        let removable = observed.iter().filter(|candidate| candidate.base(tree) > Replicas::ONE);
        removable.max_by(|left, right| by_cost_and_name(left, right))
    } else {
        None
    };
    let target = |candidate: &StepCandidate| {
        let base = candidate.base(tree);
        if stepping.is_none_or(|stepping| stepping.name != candidate.name) {
            base
        } else if scale_up {
            base.plus_one()
        } else {
            base.minus_one()
        }
    };
    let clamped = |candidate: &StepCandidate| candidate.bounds.clamp(target(candidate));
    observed.iter().map(|candidate| (candidate.name.clone(), clamped(candidate))).collect()
}

fn by_cost_and_name(left: &StepCandidate, right: &StepCandidate) -> Ordering {
    left.cost.get().total_cmp(&right.cost.get()).then_with(|| left.name.cmp(&right.name))
}
