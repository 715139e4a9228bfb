//! Which scheduler may speak about which models: those of the variants of its pools. Pure.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use smol_str::SmolStr;
use wva_core::Variant;
use wva_core::model::VariantId;

use super::ports::{ClusterView, Endpoint, Scheduler};

/// The schedulers of all pools, each with the models of `variants` in its pools.
pub(super) fn schedulers(view: &ClusterView, variants: &[Cow<'_, Variant>]) -> Vec<Scheduler> {
    // Both are in the order of the variants.
    let model = |id: &VariantId| {
        let at = variants.binary_search_by(|variant| variant.id.cmp(id)).ok()?;
        variants.get(at).filter(|variant| variant.names_model()).map(|variant| variant.model.clone())
    };
    schedulers_of(view, model)
}

/// The schedulers of all pools, each with the models that `model` gives for the variants of its pools; without those that have none.
pub(super) fn schedulers_of(
    view: &ClusterView,
    model: impl Fn(&VariantId) -> Option<SmolStr>,
) -> Vec<Scheduler> {
    let mut by_endpoint: BTreeMap<&Endpoint, BTreeSet<SmolStr>> = BTreeMap::new();
    for pool in &view.pools {
        let models: BTreeSet<SmolStr> = pool.variants.iter().filter_map(&model).collect();
        for endpoint in &pool.schedulers {
            by_endpoint.entry(endpoint).or_default().extend(models.iter().cloned());
        }
    }
    let with_models = by_endpoint.into_iter().filter(|(_, models)| !models.is_empty());
    with_models.map(|(endpoint, models)| Scheduler { endpoint: endpoint.clone(), models }).collect()
}
