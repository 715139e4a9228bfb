//! External metrics that rules of prometheus-adapter make. A metric of variants is never one of these.

use std::collections::BTreeMap;
use std::fmt;

use axum::response::Response;
use jiff::Timestamp;
use serde::{Serialize, Serializer};
use wva_core::units::Seconds;

use super::answer::{API_VERSION, append_value};
use super::errors::{unknown_metric, unreadable};
use super::metric::Quantity;
use super::selector::{LabelSelector, Operator, RequirementRef};
use crate::serve::data_read::RuleReads;
use crate::serve::encoding::negotiation::Representation;
use crate::serve::encoding::object::{Column, Metadata, Row, Table};
use crate::serve::encoding::protobuf::{append_message, serialize_time};
use crate::serve::encoding::response::respond;
use crate::serve::encoding::{Empty, Object, Reason, Status};
use crate::serve::paths::EXTERNAL_GROUP;
use crate::serve::ports::{LabelOperator, LabelRequirement, RuleError, RuleValue};

/// The columns that `kubectl get` prints.
const COLUMNS: &[Column] = &[
    Column::name("Metric", "The metric."),
    Column::text("Value", "The number, as a quantity."),
    Column::text("Age", "How old the value is."),
    Column::text("Labels", "The labels of the value."),
];

/// The answer to a read of a metric that is not of variants.
#[derive(Debug, Serialize)]
pub(super) struct ValueList<'a, V> {
    kind: &'static str,
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    metadata: Empty,
    items: Vec<Item<'a, V>>,
    #[serde(skip)]
    namespace: &'a str,
    #[serde(skip)]
    now: Timestamp,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Item<'a, V> {
    pub(super) metric_name: &'a str,
    pub(super) metric_labels: &'a BTreeMap<String, String>,
    #[serde(serialize_with = "serialize_optional_time")]
    pub(super) timestamp: Option<Timestamp>,
    /// Of which seconds the value is an average.
    #[serde(rename = "window", skip_serializing_if = "Option::is_none")]
    pub(super) window_seconds: Option<i64>,
    /// A quantity.
    pub(super) value: V,
}

fn serialize_optional_time<S: Serializer>(
    time: &Option<Timestamp>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => serialize_time(time, serializer),
        None => serializer.serialize_none(),
    }
}

impl<'a, V> ValueList<'a, V> {
    pub(super) fn new(items: Vec<Item<'a, V>>, namespace: &'a str, now: Timestamp) -> Self {
        Self {
            kind: "ExternalMetricValueList",
            api_version: API_VERSION,
            metadata: Empty {},
            items,
            namespace,
            now,
        }
    }
}

/// A quantity that may be below zero.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Signed {
    is_negative: bool,
    magnitude: Quantity,
}

impl Signed {
    /// # Errors
    /// When an autoscaler could not read it.
    pub(crate) fn from_thousandths(thousandths: i64) -> Result<Self, String> {
        let magnitude =
            Quantity::from_milli(thousandths.unsigned_abs()).map_err(|error| error.to_string())?;
        Ok(Self { is_negative: thousandths < 0, magnitude })
    }
}

impl fmt::Display for Signed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.is_negative { "-" } else { "" };
        write!(f, "{sign}{}", self.magnitude)
    }
}

impl Serialize for Signed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A read of an external metric.
#[derive(Clone, Copy)]
pub(super) struct RuleRead<'a> {
    pub(super) namespace: &'a str,
    pub(super) metric: &'a str,
    pub(super) labels: &'a LabelSelector,
    pub(super) representation: Representation,
    pub(super) now: Timestamp,
}

impl<'a> RuleRead<'a> {
    pub(super) async fn answer(self, reads: &'a RuleReads) -> Result<Response, Status> {
        let requirements = label_requirements(self.labels);
        let requirements = requirements.map_err(|cause| self.error(Reason::BadRequest, &cause))?;
        // Before the query is made, which takes time with a long selector.
        let Some(_permit) = reads.permits.acquire() else {
            return Err(
                self.error(Reason::TooManyRequests, "too many reads wait for Prometheus; retry later")
            );
        };
        let Some(reading) = reads.rules.read(self.metric, self.namespace, requirements) else {
            return Err(self.unknown(reads));
        };
        match reading.await {
            Ok(values) => self.respond(&values),
            Err(RuleError(cause)) => Err(self.error(Reason::InternalError, &cause)),
        }
    }

    /// The error for a metric that no rule makes.
    fn unknown(self, reads: &RuleReads) -> Status {
        if let Some(cause) = reads.rules.unlisted() {
            return self.error(Reason::ServiceUnavailable, &cause);
        }
        let count = reads.rules.names().len();
        let note = format!("rules make {count} more, which discovery lists");
        unknown_metric(EXTERNAL_GROUP, self.metric).with_note(&note)
    }

    fn respond<'v>(self, values: &'v [RuleValue]) -> Result<Response, Status> {
        let item = |value: &'v RuleValue| {
            let RuleValue { labels, at, thousandths } = value;
            let value = Signed::from_thousandths(*thousandths);
            let value = value.map_err(|cause| self.error(Reason::InternalError, &cause))?;
            let (metric_name, timestamp) = (self.metric, Some(*at));
            Ok(Item { metric_name, metric_labels: labels, timestamp, window_seconds: None, value })
        };
        let items = values.iter().map(item).collect::<Result<_, Status>>()?;
        respond(self.representation, &ValueList::new(items, self.namespace, self.now))
    }

    fn error(self, reason: Reason, cause: &str) -> Status {
        unreadable(self.metric, self.namespace, reason, cause)
    }
}

/// What a selector asks of each label.
///
/// # Errors
/// Says what a query of Prometheus cannot ask.
pub(crate) fn label_requirements(selector: &LabelSelector) -> Result<Vec<LabelRequirement<'_>>, String> {
    let requirement = |RequirementRef { key, operator }| {
        let (operator, values) = match operator {
            Operator::Exists => (LabelOperator::Exists, Vec::new()),
            Operator::DoesNotExist => (LabelOperator::DoesNotExist, Vec::new()),
            Operator::Equals(value) => (LabelOperator::Equals, vec![value.as_str()]),
            Operator::NotEquals(value) => (LabelOperator::NotEquals, vec![value.as_str()]),
            Operator::In(values) => (LabelOperator::In, values.iter().map(String::as_str).collect()),
            Operator::NotIn(values) => (LabelOperator::NotIn, values.iter().map(String::as_str).collect()),
            Operator::GreaterThan(_) | Operator::LessThan(_) => {
                return Err(format!("its selector compares {key} by < or >, which Prometheus does not"));
            }
        };
        Ok(LabelRequirement { key, operator, values })
    };
    selector.requirements().map(requirement).collect()
}

impl<V: fmt::Display + Serialize> Object for ValueList<'_, V> {
    fn type_meta(&self) -> (&'static str, &'static str) {
        (self.api_version, self.kind)
    }

    fn protobuf(&self, to: &mut Vec<u8>) {
        append_message(1, to, |_metadata| {});
        for item in &self.items {
            append_message(2, to, |to| {
                let labels = item.metric_labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
                append_value(to, item.metric_name, labels, item.timestamp, &item.value.to_string());
                if let Some(seconds) = &item.window_seconds {
                    prost::encoding::int64::encode(4, seconds, to);
                }
            });
        }
    }

    fn table(&self) -> Option<Table> {
        let row = |item: &Item<'_, V>| {
            let labels: Vec<_> =
                item.metric_labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            let age = item.timestamp.map_or_else(
                || "<unknown>".to_owned(),
                |timestamp| Seconds::between(timestamp, self.now).to_string(),
            );
            let cells = vec![item.metric_name.to_owned(), item.value.to_string(), age, labels.join(",")];
            let metadata = Metadata::new(item.metric_name, self.namespace, item.metric_labels.clone());
            Row::new(cells, metadata)
        };
        Some(Table::new(COLUMNS, self.items.iter().map(row).collect()))
    }
}
