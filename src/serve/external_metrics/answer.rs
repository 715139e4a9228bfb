//! The answer to a read: a list with exactly one item for each selected variant, or an error that says which variant has no
//! number, why, since when, and what to do. Pure: the time is part of the query. Computes no number.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use wva_core::decision::{NoTarget, Target};
use wva_core::units::{Replicas, Seconds};
use wva_core::{Decision, VariantId};

use super::context::{Candidate, MetricQuery, candidates};
use super::errors::{
    evidence_too_old, invalid_quantity, no_current_count, no_match, no_result, no_target, unknown_metric,
};
use super::metric::{Labels, Metric, Quantity};
use super::value_targets::divided;
use crate::engine::{Origin, Published};
use crate::serve::encoding::object::{Column, Metadata, Row, Table};
use crate::serve::encoding::protobuf::{Time, append_bytes, append_message, serialize_time};
use crate::serve::encoding::{Empty, Object, Status};

/// The columns that `kubectl get` prints.
const COLUMNS: &[Column] = &[
    Column::name("Variant", "The variant that the number is of."),
    Column::text("Value", "The number, as a quantity."),
    Column::text("Age", "How old the newest measurement is that the number rests on."),
    Column::text("Reason", "Why the number is what it is."),
    Column::text("Model", "The model that the variant serves.").wide(),
    Column::text("Accelerator", "What it runs on, when that is known.").wide(),
    Column::text("Message", "The decision in words.").wide(),
];

/// The version of the list.
pub(super) const API_VERSION: &str = "external.metrics.k8s.io/v1beta1";

/// Capacity for an item in protobuf, which has about 200 bytes.
const ITEM_BYTES: usize = 256;

/// The answer to a read of an external metric.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ExternalMetricValueList<'a> {
    pub(super) kind: &'static str,
    #[serde(rename = "apiVersion")]
    pub(super) api_version: &'static str,
    metadata: Empty,
    pub(super) items: Vec<ExternalMetricValue<'a>>,
    #[serde(skip)]
    pub(super) now: Timestamp,
}

/// The value of one variant.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExternalMetricValue<'a> {
    pub(crate) metric_name: &'static str,
    pub(crate) metric_labels: Labels<'a>,
    #[serde(serialize_with = "serialize_time")]
    pub(crate) timestamp: Timestamp,
    pub(crate) value: Quantity,
    #[serde(skip)]
    pub(crate) id: &'a VariantId,
    #[serde(skip)]
    pub(crate) origin: ValueOrigin<'a>,
}

/// Where a value comes from, and why it is what it is. Only tables show that.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ValueOrigin<'a> {
    /// A decision of this installation.
    Decided(&'a Decision, &'a Target),
    /// Another installation.
    Forwarded(&'a ForwardedOrigin),
}

/// What another installation says about its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ForwardedOrigin {
    pub(super) reason: String,
    pub(super) model: String,
    pub(super) message: String,
}

impl ValueOrigin<'_> {
    pub(crate) fn reason(&self) -> &str {
        match self {
            Self::Decided(_, target) => target.reason.as_str(),
            Self::Forwarded(origin) => &origin.reason,
        }
    }

    pub(crate) fn model(&self) -> &str {
        match self {
            Self::Decided(decision, _) => &decision.model,
            Self::Forwarded(origin) => &origin.model,
        }
    }

    /// The decision in words.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Decided(_, target) => target.explanation.to_string(),
            Self::Forwarded(origin) => origin.message.clone(),
        }
    }
}

impl<'a> ExternalMetricValueList<'a> {
    pub(super) fn new(items: Vec<ExternalMetricValue<'a>>, now: Timestamp) -> Self {
        Self { kind: "ExternalMetricValueList", api_version: API_VERSION, metadata: Empty {}, items, now }
    }

    /// A warning when an HPA would add several items up.
    pub(super) fn warning(&self) -> Option<String> {
        let count = self.items.len();
        (count > 1).then(|| {
            format!("{count} variants match and an HPA adds their values up; select one with variant_name")
        })
    }

    /// The time of the newest measurement behind each item.
    pub(super) fn evidence(&self) -> impl Iterator<Item = Timestamp> {
        self.items.iter().map(|item| item.timestamp)
    }

    /// The variants of the items.
    pub(super) fn variants(&self) -> Vec<&VariantId> {
        self.items.iter().map(|item| item.id).collect()
    }
}

/// Answers `query` from `published`.
pub(super) fn answer<'a>(
    published: &'a Published,
    query: &MetricQuery<'a>,
) -> Result<ExternalMetricValueList<'a>, Status> {
    Ok(ExternalMetricValueList::new(items(published, query)?, query.context.now))
}

/// The items that `query` selects, one for each variant, at least one.
///
/// # Errors
/// When the metric is unknown, no variant matches, or a selected variant has no number: a sum without it would be wrong.
pub(crate) fn items<'a>(
    published: &'a Published,
    query: &MetricQuery<'a>,
) -> Result<Vec<ExternalMetricValue<'a>>, Status> {
    items_with(published, query, Metric::thousandths)
}

/// The same with any function for the value in thousandths; tests use it to show that no invalid value passes.
fn items_with<'a>(
    published: &'a Published,
    query: &MetricQuery<'a>,
    value: impl Fn(Metric, Replicas, Option<Replicas>) -> Option<f64>,
) -> Result<Vec<ExternalMetricValue<'a>>, Status> {
    let (metric_name, metric) =
        Metric::find(query.metric).ok_or_else(|| unknown_metric(query.group, query.metric))?;
    if published.origin == Origin::Empty {
        return Err(no_result(query));
    }
    let mut ids = BTreeSet::new();
    let selected: Vec<_> = candidates(published, query)
        .into_iter()
        .filter(|candidate| query.is_about(candidate.id) && query.selector.matches(candidate.labels(query)))
        // A selector may name a variant by several of its names.
        .filter(|candidate| ids.insert(candidate.id))
        .collect();
    if selected.is_empty() {
        return Err(no_match(published, query));
    }
    selected
        .into_iter()
        .map(|candidate| {
            let Candidate { id, decision, .. } = candidate;
            let target = fresh_target(id, decision, query)?;
            let thousandths = match divided(metric, id, target, query)? {
                Some(thousandths) => thousandths,
                None => value(metric, target.desired, decision.current)
                    .ok_or_else(|| no_current_count(id, target, query))?,
            };
            let value = Quantity::from_thousandths(thousandths)
                .map_err(|error| invalid_quantity(id, target, error, query))?;
            let metric_labels = candidate.labels(query);
            Ok(ExternalMetricValue {
                metric_name,
                metric_labels,
                timestamp: target.evidence,
                value,
                id,
                origin: ValueOrigin::Decided(decision, target),
            })
        })
        .collect()
}

/// The variant's target, if there is one and its evidence is young enough now.
fn fresh_target<'a>(
    id: &VariantId,
    decision: &'a Decision,
    query: &MetricQuery<'_>,
) -> Result<&'a Target, Status> {
    decision.fresh_target(query.context.now, query.context.max_stale).map_err(|cause| match cause {
        NoTarget::Unknown(unknown) => no_target(id, unknown, query),
        NoTarget::TooOld(target) => evidence_too_old(id, target, query),
    })
}

impl Object for ExternalMetricValueList<'_> {
    fn type_meta(&self) -> (&'static str, &'static str) {
        (self.api_version, self.kind)
    }

    fn protobuf(&self, to: &mut Vec<u8>) {
        to.reserve(self.items.len() * ITEM_BYTES);
        append_message(1, to, |_metadata| {});
        for item in &self.items {
            append_message(2, to, |to| {
                let ExternalMetricValue { metric_name, metric_labels, timestamp, value, .. } = item;
                append_value(to, metric_name, metric_labels.iter(), *timestamp, &value.to_string());
            });
        }
    }

    fn table(&self) -> Option<Table> {
        let rows = self.items.iter().map(|item| row(item, self.now)).collect();
        Some(Table::new(COLUMNS, rows))
    }
}

/// Appends an `ExternalMetricValue`, without `window`.
pub(super) fn append_value<'k, 'v>(
    to: &mut Vec<u8>,
    metric: &str,
    labels: impl Iterator<Item = (&'k str, &'v str)>,
    at: impl Into<Option<Timestamp>>,
    value: &str,
) {
    append_bytes(1, metric.as_bytes(), to);
    for (key, value) in labels {
        append_message(2, to, |entry| {
            append_bytes(1, key.as_bytes(), entry);
            append_bytes(2, value.as_bytes(), entry);
        });
    }
    if let Some(at) = at.into() {
        prost::encoding::message::encode(3, &Time::from_timestamp(at), to);
    }
    append_message(5, to, |quantity| append_bytes(1, value.as_bytes(), quantity));
}

fn row(item: &ExternalMetricValue<'_>, now: Timestamp) -> Row {
    let cells = vec![
        item.id.name.to_string(),
        item.value.to_string(),
        Seconds::between(item.timestamp, now).to_string(),
        item.origin.reason().to_owned(),
        item.origin.model().to_owned(),
        item.metric_labels.get("accelerator_type").unwrap_or("<unknown>").to_owned(),
        item.origin.message(),
    ];
    let labels = item.metric_labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let VariantId { namespace, name } = item.id;
    Row::new(cells, Metadata::new(&**name, &**namespace, labels))
}

#[cfg(test)]
mod tests;
