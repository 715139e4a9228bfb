//! Joins what the source answered with what the cluster looks like into one snapshot. Pure.
//!
//! A series of a pod that no longer exists is a ghost: the join with the pod list drops it.

mod join;

use std::collections::BTreeMap;

use jiff::Timestamp;
use wva_core::model::GroupId;
use wva_core::quality::mark_sleepers;
use wva_core::snapshot::{ModelGroup, Signals, SourceHealth};
use wva_core::units::Seconds;
use wva_core::{Snapshot, clean_all};

use super::breaks::Broken;
use super::ports::{ClusterView, Collected, SourceError};

/// The snapshot of one evaluation, and what broke while it was put together.
#[derive(Debug)]
pub struct Assembled {
    /// The snapshot.
    pub snapshot: Snapshot,
    /// Pods and models whose series could not be put together: their models are held by a source that is not complete.
    pub broken: Vec<Broken>,
}

/// A node that joins has its GPUs before what discovers their kind has named them, and some drivers take ten minutes to install.
/// Until then its GPUs are not counted, and the others are a limit as before.
const JOINING: Seconds = Seconds::whole(15 * 60);

/// The snapshot of one evaluation.
#[must_use]
pub fn assemble(view: &ClusterView, answer: Result<Collected, SourceError>, now: Timestamp) -> Assembled {
    let mut groups = groups_of(view, &answer);
    let mut broken = Vec::new();
    if let Ok(collected) = answer {
        broken = collected.broken;
        broken.extend(join::join(&mut groups, collected.series));
    }
    let variants = groups.values_mut().flat_map(|group| &mut group.variants);
    variants.for_each(|variant| mark_sleepers(variant, now));
    let ClusterView { invalid, inventory, elsewhere, unlabelled, .. } = view;
    let (invalid, inventory) = (invalid.clone(), inventory.clone());
    let elsewhere = elsewhere.clone();
    let unlabelled = unlabelled.as_ref().filter(|node| Seconds::between(node.joined, now) >= JOINING);
    let unlabelled = unlabelled.map(|node| node.name.clone());
    let mut snapshot = Snapshot { now, groups, invalid, inventory, elsewhere, unlabelled };
    clean_all(&mut snapshot);
    Assembled { snapshot, broken }
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
