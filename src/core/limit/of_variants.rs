//! Limits that objects of the cluster set for some variants.

use std::collections::BTreeMap;

use smol_str::SmolStr;

use super::budget::{Budget, Limit, SharedGpus};
use crate::snapshot::VariantLimit;

/// The shares of a limit that is being built, by namespace and variant.
type Shares = BTreeMap<SmolStr, BTreeMap<SmolStr, SharedGpus>>;

/// As few limits as keep all of `set`: objects of one kind that concern no variant in common become one limit with a key for each, so that a
/// replica is compared with its own alone, and not with those of a thousand namespaces.
pub(crate) fn limits_of_variants<'a>(set: impl IntoIterator<Item = &'a VariantLimit>) -> Vec<Limit> {
    let mut limits: Vec<(&SmolStr, Shares, BTreeMap<SmolStr, f64>)> = Vec::new();
    for own in set.into_iter().filter(|own| !own.variants.is_empty()) {
        let concerns = |shares: &Shares| {
            own.variants
                .iter()
                .any(|id| shares.get(&id.namespace).is_some_and(|names| names.contains_key(&id.name)))
        };
        let found = limits.iter().position(|(name, shares, _)| *name == &own.limit && !concerns(shares));
        let index = found.unwrap_or_else(|| {
            limits.push((&own.limit, Shares::new(), BTreeMap::new()));
            limits.len() - 1
        });
        let (_, shares, elsewhere) = &mut limits[index];
        for id in &own.variants {
            let share = SharedGpus { key: own.key.clone(), gpus: own.gpus };
            shares.entry(id.namespace.clone()).or_default().insert(id.name.clone(), share);
        }
        if own.elsewhere > 0 {
            elsewhere.insert(own.key.clone(), f64::from(own.elsewhere));
        }
    }
    let limit = |(name, shares, elsewhere): (&SmolStr, Shares, _)| Limit {
        elsewhere,
        ..Limit::new(name.clone(), Budget::OfVariants(shares))
    };
    limits.into_iter().map(limit).collect()
}
