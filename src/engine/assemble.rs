//! Joins the answer of the metric source with the state of the cluster into one snapshot. Pure.
//!
//! A series of a pod that no longer exists is a ghost: the join with the pod list drops it.

mod join;

use std::collections::BTreeMap;

use jiff::Timestamp;
use smol_str::SmolStr;
use wva_core::quality::mark_sleepers;
use wva_core::snapshot::{ModelGroup, Signals, SourceHealth};
use wva_core::units::Seconds;
use wva_core::{Snapshot, normalize};

use super::join_failure::JoinFailure;
use super::model_names::NamedModels;
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

/// The snapshot of one evaluation. `models` are those of the variants that name none.
#[must_use]
pub fn assemble(
    view: &ClusterView,
    models: &NamedModels,
    answer: Result<Collected, SourceError>,
    now: Timestamp,
) -> Assembled {
    let mut snapshot = without_series(view, models, &answer, now);
    let mut failures = Vec::new();
    let mut unattributed = snapshot.groups.keys().map(|id| (id.namespace.clone(), 0)).collect();
    if let Ok(collected) = answer {
        failures = collected.failures;
        failures.extend(join::join(&mut snapshot, collected.series, &mut unattributed));
    }
    let variants = snapshot.groups.values_mut().flat_map(|group| &mut group.variants);
    variants.for_each(|variant| mark_sleepers(variant, now));
    normalize(&mut snapshot);
    Assembled { snapshot, failures, unattributed }
}

fn without_series(
    view: &ClusterView,
    models: &NamedModels,
    answer: &Result<Collected, SourceError>,
    now: Timestamp,
) -> Snapshot {
    let ClusterView { variants, invalid, inventory, elsewhere, unlabelled, limits, .. } = view;
    let unlabelled =
        unlabelled.as_ref().filter(|node| Seconds::between(node.joined, now) >= NODE_JOIN_WINDOW);
    let mut snapshot = Snapshot {
        now,
        groups: BTreeMap::new(),
        invalid: invalid.clone(),
        undecided: Vec::new(),
        inventory: inventory.clone(),
        elsewhere: elsewhere.clone(),
        unlabelled: unlabelled.map(|node| node.name.clone()),
        limits: limits.to_vec(),
        is_inventory_stale: view.is_inventory_stale,
    };
    for state in variants {
        let mut state = state.clone();
        match models.get(&state.variant.id) {
            None => {}
            Some(Ok(model)) => state.variant.model = model.clone(),
            Some(Err(problem)) => {
                snapshot.invalid.push(problem.clone());
                snapshot.undecided.push(state);
                continue;
            }
        }
        let group = snapshot.groups.entry(state.variant.group()).or_insert_with_key(|id| ModelGroup {
            source: health(answer, &id.namespace),
            variants: Vec::new(),
            scheduler: Signals::default(),
        });
        // A vector that grows by itself starts with four, and most models have one variant.
        group.variants.reserve_exact(usize::from(group.variants.is_empty()));
        group.variants.push(state);
    }
    snapshot.groups.values_mut().for_each(ModelGroup::sort);
    snapshot
}

fn health(answer: &Result<Collected, SourceError>, namespace: &str) -> SourceHealth {
    match answer {
        Err(error) => SourceHealth::Down { cause: error.message.clone() },
        Ok(collected) => {
            let gaps = collected.gaps.iter().filter(|gap| gap.concerns(namespace));
            let warnings: Vec<_> = gaps.map(|gap| gap.reason.clone()).collect();
            if warnings.is_empty() { SourceHealth::Complete } else { SourceHealth::Partial { warnings } }
        }
    }
}

#[cfg(test)]
mod tests;
