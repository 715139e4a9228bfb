//! Which scheduler may speak about which models: those of the variants of its pools. Pure.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use smol_str::SmolStr;
use wva_core::model::VariantId;
use wva_core::{GroupId, Variant};

use super::ports::{ClusterView, Endpoint, Scheduler};

/// The schedulers of all pools, each with the models of `variants` in its pools.
pub(super) fn schedulers(view: &ClusterView, variants: &[Cow<'_, Variant>]) -> Vec<Scheduler> {
    // Both are in the order of the variants.
    let name = |id: &VariantId| {
        let at = variants.binary_search_by(|variant| variant.id.cmp(id)).ok()?;
        variants.get(at).filter(|variant| variant.names_model()).map(|variant| variant.model.clone())
    };
    schedulers_of(view, name, |_| true)
}

/// The schedulers of all pools, each with the models that `name` gives for the variants of its pools and `is_read` chooses; without
/// those that have none.
pub(super) fn schedulers_of(
    view: &ClusterView,
    name: impl Fn(&VariantId) -> Option<SmolStr>,
    is_read: impl Fn(&GroupId) -> bool,
) -> Vec<Scheduler> {
    // `None` is a variant whose model is not known.
    let mut by_endpoint: BTreeMap<&Endpoint, BTreeSet<Option<SmolStr>>> = BTreeMap::new();
    for pool in &view.pools {
        let mut models: BTreeSet<_> = pool.variants.iter().map(&name).collect();
        models.extend(pool.has_others.then_some(None));
        for endpoint in &pool.schedulers {
            by_endpoint.entry(endpoint).or_default().extend(models.iter().cloned());
        }
    }
    let schedulers = by_endpoint.into_iter().map(|(endpoint, models)| {
        let has_one_model = models.len() == 1;
        let groups =
            models.into_iter().flatten().map(|model| GroupId::new(endpoint.namespace.as_str(), model));
        let models = groups.filter(&is_read).map(|group| group.model).collect();
        Scheduler { endpoint: endpoint.clone(), models, has_one_model }
    });
    schedulers.filter(|scheduler| !scheduler.models.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::engine::ports::Pool;

    #[test]
    fn a_scheduler_has_one_model_only_if_no_other_one_is_in_its_pools() {
        let ip = Ipv4Addr::LOCALHOST.into();
        let epp = Endpoint { namespace: "llm".into(), pod: "epp".into(), ip, port: None, path: None };
        let pool = |variants: &[&str]| Pool {
            namespace: "llm".into(),
            name: "pool".into(),
            variants: variants.iter().map(|name| VariantId::new("llm", *name)).collect(),
            has_others: false,
            schedulers: vec![epp.clone()],
        };
        let name = |id: &VariantId| match id.name.as_str() {
            "unnamed" => None,
            name => Some(SmolStr::from(&name[..1])),
        };
        let found = |variants: &[&str], read: &str| {
            let view = ClusterView { pools: vec![pool(variants)], ..ClusterView::default() };
            let schedulers = schedulers_of(&view, name, |group| read.contains(&*group.model));
            schedulers.first().map(|scheduler| (scheduler.models.len(), scheduler.has_one_model))
        };
        assert_eq!(found(&["a-1", "a-2"], "ab"), Some((1, true)));
        assert_eq!(found(&["a-1", "b-1"], "ab"), Some((2, false)));
        assert_eq!(found(&["a-1", "b-1"], "a"), Some((1, false)), "the other one is not read");
        assert_eq!(found(&["a-1", "unnamed"], "a"), Some((1, false)), "it may be another one");
        assert_eq!(found(&["a-1"], ""), None);
        let pools = vec![Pool { has_others: true, ..pool(&["a-1"]) }];
        let schedulers = schedulers_of(&ClusterView { pools, ..ClusterView::default() }, name, |_| true);
        assert_eq!(schedulers[0].only_model(), None, "pods of no variant may serve another one");
    }
}
