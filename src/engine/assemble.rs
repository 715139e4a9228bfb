//! Joins the answer of the metric source with the state of the cluster into one snapshot. Pure.
//!
//! A series of a pod that no longer exists is a ghost: the join with the pod list drops it.

mod join;

use std::collections::BTreeMap;

use jiff::Timestamp;
use smol_str::SmolStr;
use wva_core::model::GroupId;
use wva_core::quality::mark_sleepers;
use wva_core::snapshot::{ModelGroup, Signals, SourceHealth};
use wva_core::units::Seconds;
use wva_core::{Snapshot, normalize};

use super::join_failure::JoinFailure;
use super::ports::{ClusterView, Collected, SourceError};

/// The snapshot of one evaluation, and the failures while it was joined.
#[derive(Debug)]
pub struct Assembled {
    /// The snapshot.
    pub snapshot: Snapshot,
    /// Pods and models whose series could not be joined. Their models count as measured incompletely.
    pub failures: Vec<JoinFailure>,
    /// By namespace of the variants: pods that belong to no variant, with a sample of a model server within the last 30 s.
    pub unattributed: BTreeMap<SmolStr, u64>,
}

/// A node that joins has GPUs before they are labelled: some drivers take ten minutes to install. Until then its GPUs are not
/// counted, and the limit holds without them.
const NODE_JOIN_WINDOW: Seconds = Seconds::whole(15 * 60);

/// The snapshot of one evaluation.
#[must_use]
pub fn assemble(view: &ClusterView, answer: Result<Collected, SourceError>, now: Timestamp) -> Assembled {
    let mut groups = groups_of(view, &answer);
    let mut failures = Vec::new();
    let mut unattributed = groups.keys().map(|id| (id.namespace.clone(), 0)).collect();
    if let Ok(collected) = answer {
        failures = collected.failures;
        failures.extend(join::join(&mut groups, collected.series, &mut unattributed, now));
    }
    let variants = groups.values_mut().flat_map(|group| &mut group.variants);
    variants.for_each(|variant| mark_sleepers(variant, now));
    let ClusterView { invalid, inventory, elsewhere, unlabelled, .. } = view;
    let unlabelled =
        unlabelled.as_ref().filter(|node| Seconds::between(node.joined, now) >= NODE_JOIN_WINDOW);
    let unlabelled = unlabelled.map(|node| node.name.clone());
    let mut snapshot = Snapshot {
        now,
        groups,
        invalid: invalid.clone(),
        inventory: inventory.clone(),
        elsewhere: elsewhere.clone(),
        unlabelled,
    };
    normalize(&mut snapshot);
    Assembled { snapshot, failures, unattributed }
}

fn groups_of(view: &ClusterView, answer: &Result<Collected, SourceError>) -> BTreeMap<GroupId, ModelGroup> {
    let mut groups: BTreeMap<GroupId, ModelGroup> = BTreeMap::new();
    for state in &view.variants {
        let id = state.variant.group();
        let group = groups.entry(id).or_insert_with_key(|id| ModelGroup {
            source: health(answer, &id.namespace),
            variants: Vec::new(),
            scheduler: Signals::default(),
        });
        group.variants.push(state.clone());
    }
    groups.values_mut().for_each(ModelGroup::sort);
    groups
}

fn health(answer: &Result<Collected, SourceError>, namespace: &str) -> SourceHealth {
    match answer {
        Err(error) => SourceHealth::Down { cause: error.message.clone() },
        Ok(collected) => {
            let concerns = |gap_namespace: Option<&str>| gap_namespace.is_none_or(|name| name == namespace);
            let gaps = collected.gaps.iter().filter(|gap| concerns(gap.namespace.as_deref()));
            let warnings: Vec<_> = gaps.map(|gap| gap.reason.clone()).collect();
            if warnings.is_empty() { SourceHealth::Complete } else { SourceHealth::Partial { warnings } }
        }
    }
}

#[cfg(test)]
mod tests;
