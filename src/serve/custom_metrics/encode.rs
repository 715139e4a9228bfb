//! Lists of metrics of objects, in both versions and in every representation.

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use wva_core::units::Seconds;

use super::answer::{Item, List};
use super::label_selector::LabelSelector;
use super::object_path::Version;
use crate::serve::encoding::protobuf::custom::{self as message, v1beta1, v1beta2};
use crate::serve::encoding::protobuf::{self, Entry, ListMeta, Time};
use crate::serve::encoding::table::{Column, Row, Table};
use crate::serve::encoding::{Empty, Object};
use crate::serve::external_metrics::quantity::Quantity;
use crate::serve::external_metrics::whole_seconds;

/// The kind of a list, in both versions.
const KIND: &str = "MetricValueList";

/// The columns that `kubectl get` prints.
const COLUMNS: &[Column] = &[
    Column::name("Object", "The object that the number is of."),
    Column::text("Value", "The number, as a quantity."),
    Column::text("Age", "How old the newest measurement is that the number rests on."),
    Column::text("Reason", "Why the number is what it is."),
    Column::text("Variant", "The VariantAutoscaling that the number is decided for.").wide(),
    Column::text("Message", "The decision in words.").wide(),
];

/// A list in JSON and YAML.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MetricValueList<V> {
    kind: &'static str,
    api_version: &'static str,
    metadata: Empty,
    items: Vec<V>,
}

/// An item of v1beta1. It has no `window`, nor has v1beta2 a `windowSeconds`: the value is not an average over a window.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct V1Beta1<'a> {
    described_object: ObjectReference<'a>,
    metric_name: &'static str,
    #[serde(serialize_with = "whole_seconds")]
    timestamp: Timestamp,
    value: Quantity,
    selector: Option<&'a LabelSelector>,
}

/// An item of v1beta2.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct V1Beta2<'a> {
    described_object: ObjectReference<'a>,
    metric: MetricIdentifier<'a>,
    #[serde(serialize_with = "whole_seconds")]
    timestamp: Timestamp,
    value: Quantity,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ObjectReference<'a> {
    kind: &'static str,
    namespace: &'a str,
    name: &'a str,
    api_version: &'static str,
}

#[derive(Serialize)]
struct MetricIdentifier<'a> {
    name: &'static str,
    selector: Option<&'a LabelSelector>,
}

impl<'a> V1Beta1<'a> {
    fn new(item: &'a Item<'_>) -> Self {
        Self {
            described_object: ObjectReference::new(item),
            metric_name: item.value.metric_name,
            timestamp: item.value.timestamp,
            value: item.value.value,
            selector: item.selector,
        }
    }
}

impl<'a> V1Beta2<'a> {
    fn new(item: &'a Item<'_>) -> Self {
        Self {
            described_object: ObjectReference::new(item),
            metric: MetricIdentifier { name: item.value.metric_name, selector: item.selector },
            timestamp: item.value.timestamp,
            value: item.value.value,
        }
    }
}

impl<'a> ObjectReference<'a> {
    fn new(item: &'a Item<'_>) -> Self {
        Self {
            kind: item.resource.kind(),
            namespace: &item.value.id.namespace,
            name: &item.name,
            api_version: item.resource.api_version(),
        }
    }
}

impl Serialize for List<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (api_version, kind) = self.type_meta();
        let metadata = Empty {};
        match self.version {
            Version::V1Beta1 => {
                let items = self.items.iter().map(V1Beta1::new).collect();
                MetricValueList { kind, api_version, metadata, items }.serialize(serializer)
            }
            Version::V1Beta2 => {
                let items = self.items.iter().map(V1Beta2::new).collect();
                MetricValueList { kind, api_version, metadata, items }.serialize(serializer)
            }
        }
    }
}

impl Object for List<'_> {
    fn type_meta(&self) -> (&'static str, &'static str) {
        (self.version.api_version(), KIND)
    }

    fn protobuf(&self, to: &mut Vec<u8>) {
        let metadata = Some(ListMeta {});
        match self.version {
            Version::V1Beta1 => {
                let items = self.items.iter().map(v1beta1_message).collect();
                protobuf::append_fields(&v1beta1::MetricValueList { metadata, items }, to);
            }
            Version::V1Beta2 => {
                let items = self.items.iter().map(v1beta2_message).collect();
                protobuf::append_fields(&v1beta2::MetricValueList { metadata, items }, to);
            }
        }
    }

    fn table(&self) -> Option<Table> {
        let rows = self.items.iter().map(|item| row(item, self.now)).collect();
        Some(Table { columns: COLUMNS, rows })
    }
}

fn v1beta1_message(item: &Item<'_>) -> v1beta1::MetricValue {
    v1beta1::MetricValue {
        described_object: Some(reference(item)),
        metric_name: item.value.metric_name.to_owned(),
        timestamp: Some(Time::from_timestamp(item.value.timestamp)),
        window: None,
        value: Some(quantity(item)),
        selector: item.selector.map(label_selector),
    }
}

fn v1beta2_message(item: &Item<'_>) -> v1beta2::MetricValue {
    let name = item.value.metric_name.to_owned();
    let selector = item.selector.map(label_selector);
    v1beta2::MetricValue {
        described_object: Some(reference(item)),
        metric: Some(v1beta2::MetricIdentifier { name, selector }),
        timestamp: Some(Time::from_timestamp(item.value.timestamp)),
        window_seconds: None,
        value: Some(quantity(item)),
    }
}

fn reference(item: &Item<'_>) -> message::ObjectReference {
    message::ObjectReference {
        kind: item.resource.kind().to_owned(),
        namespace: item.value.id.namespace.to_string(),
        name: item.name.clone(),
        api_version: item.resource.api_version().to_owned(),
        ..message::ObjectReference::default()
    }
}

fn quantity(item: &Item<'_>) -> protobuf::Quantity {
    protobuf::Quantity { string: item.value.value.to_string() }
}

fn label_selector(selector: &LabelSelector) -> message::LabelSelector {
    let labels = selector.match_labels.iter();
    let expressions = selector.match_expressions.iter();
    message::LabelSelector {
        match_labels: labels.map(|(key, value)| Entry { key: key.clone(), value: value.clone() }).collect(),
        match_expressions: expressions
            .map(|expression| message::Requirement {
                key: expression.key.clone(),
                operator: expression.operator.to_owned(),
                values: expression.values.clone(),
            })
            .collect(),
    }
}

fn row(item: &Item<'_>, now: Timestamp) -> Row {
    let value = &item.value;
    let cells = vec![
        item.name.clone(),
        value.value.to_string(),
        Seconds::between(value.timestamp, now).to_string(),
        value.target.reason.as_str().to_owned(),
        value.id.name.to_string(),
        value.target.message.to_string(),
    ];
    let labels = value.metric_labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
    let namespace = value.id.namespace.to_string();
    Row { cells, name: item.name.clone(), namespace, labels: labels.collect() }
}
