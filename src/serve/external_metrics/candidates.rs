//! The decisions that a read may select.

use wva_core::{Decision, VariantId};

use super::context::MetricQuery;
use super::metric::Labels;
use crate::engine::Published;

/// The decisions about the variants that the selector names, as that of an HPA does, else about all of the namespace. A read of
/// one variant therefore costs the same with one variant as with ten thousand, and so does an error.
pub(super) fn candidates<'a>(
    published: &'a Published,
    query: &MetricQuery<'a>,
) -> Vec<(&'a VariantId, &'a Decision)> {
    let names = query.selector.names();
    if names.is_empty() {
        return in_namespace(published, query.namespace).collect();
    }
    let ids = names.into_iter().map(|name| VariantId::new(query.namespace, name));
    ids.filter_map(|id| published.decisions.get_key_value(&id)).collect()
}

/// The decisions about all variants of a namespace.
pub(super) fn in_namespace<'a>(
    published: &'a Published,
    namespace: &'a str,
) -> impl Iterator<Item = (&'a VariantId, &'a Decision)> {
    published
        .decisions
        .range(VariantId::new(namespace, "")..)
        .take_while(move |(id, _)| id.namespace == namespace)
}

/// The labels of a variant's item.
pub(super) fn labels<'a>(id: &'a VariantId, decision: &'a Decision, query: &MetricQuery<'a>) -> Labels<'a> {
    Labels::new(id, decision.accelerator.as_deref(), query.context.controller_instance)
}
