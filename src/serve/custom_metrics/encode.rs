//! How a list of metrics of objects is written, in both versions and in each representation.

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use wva_core::units::Seconds;

use super::answer::{Item, List};
use super::label_selector::LabelSelector;
use super::resource::Version;
use crate::serve::external_metrics::quantity::Quantity;
use crate::serve::external_metrics::show::whole_seconds;
use crate::serve::represent::protobuf::custom::{self as wire, v1beta1, v1beta2};
use crate::serve::represent::protobuf::{self, Entry, ListMeta, Time};
use crate::serve::represent::table::{Column, Row};
use crate::serve::represent::{Show, Table};
use crate::serve::status::Empty;

/// The kind of a list, in both versions.
const KIND: &str = "MetricValueList";

/// What `kubectl get` prints of each object.
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
struct Written<V> {
    kind: &'static str,
    api_version: &'static str,
    metadata: Empty,
    items: Vec<V>,
}

/// An item of v1beta1. Its `window` is not written, nor is v1beta2's `windowSeconds`: the number is no average over one.
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
    fn of(item: &'a Item<'_>) -> Self {
        Self {
            described_object: ObjectReference::of(item),
            metric_name: item.number.metric_name,
            timestamp: item.number.timestamp,
            value: item.number.value,
            selector: item.selector,
        }
    }
}

impl<'a> V1Beta2<'a> {
    fn of(item: &'a Item<'_>) -> Self {
        Self {
            described_object: ObjectReference::of(item),
            metric: MetricIdentifier { name: item.number.metric_name, selector: item.selector },
            timestamp: item.number.timestamp,
            value: item.number.value,
        }
    }
}

impl<'a> ObjectReference<'a> {
    fn of(item: &'a Item<'_>) -> Self {
        let (kind, api_version) = (item.resource.kind(), item.resource.api_version());
        Self { kind, namespace: &item.number.id.namespace, name: &item.name, api_version }
    }
}

impl Serialize for List<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (api_version, kind) = self.type_meta();
        let metadata = Empty {};
        match self.version {
            Version::V1Beta1 => {
                let items = self.items.iter().map(V1Beta1::of).collect();
                Written { kind, api_version, metadata, items }.serialize(serializer)
            }
            Version::V1Beta2 => {
                let items = self.items.iter().map(V1Beta2::of).collect();
                Written { kind, api_version, metadata, items }.serialize(serializer)
            }
        }
    }
}

impl Show for List<'_> {
    fn type_meta(&self) -> (&'static str, &'static str) {
        (self.version.api_version(), KIND)
    }

    fn protobuf(&self, to: &mut Vec<u8>) {
        let metadata = Some(ListMeta {});
        match self.version {
            Version::V1Beta1 => {
                let items = self.items.iter().map(message_of_v1beta1).collect();
                protobuf::fields(&v1beta1::MetricValueList { metadata, items }, to);
            }
            Version::V1Beta2 => {
                let items = self.items.iter().map(message_of_v1beta2).collect();
                protobuf::fields(&v1beta2::MetricValueList { metadata, items }, to);
            }
        }
    }

    fn table(&self) -> Option<Table> {
        let rows = self.items.iter().map(|item| row(item, self.now)).collect();
        Some(Table { columns: COLUMNS, rows })
    }
}

fn message_of_v1beta1(item: &Item<'_>) -> v1beta1::MetricValue {
    v1beta1::MetricValue {
        described_object: Some(reference(item)),
        metric_name: item.number.metric_name.to_owned(),
        timestamp: Some(Time::of(item.number.timestamp)),
        window: None,
        value: Some(quantity(item)),
        selector: item.selector.map(selector),
    }
}

fn message_of_v1beta2(item: &Item<'_>) -> v1beta2::MetricValue {
    let (name, selector) = (item.number.metric_name.to_owned(), item.selector.map(selector));
    v1beta2::MetricValue {
        described_object: Some(reference(item)),
        metric: Some(v1beta2::MetricIdentifier { name, selector }),
        timestamp: Some(Time::of(item.number.timestamp)),
        window_seconds: None,
        value: Some(quantity(item)),
    }
}

fn reference(item: &Item<'_>) -> wire::ObjectReference {
    wire::ObjectReference {
        kind: item.resource.kind().to_owned(),
        namespace: item.number.id.namespace.to_string(),
        name: item.name.clone(),
        api_version: item.resource.api_version().to_owned(),
        ..wire::ObjectReference::default()
    }
}

fn quantity(item: &Item<'_>) -> protobuf::Quantity {
    protobuf::Quantity { string: item.number.value.to_string() }
}

fn selector(selector: &LabelSelector) -> wire::LabelSelector {
    let labels = selector.match_labels.iter();
    let expressions = selector.match_expressions.iter();
    wire::LabelSelector {
        match_labels: labels.map(|(key, value)| Entry { key: key.clone(), value: value.clone() }).collect(),
        match_expressions: expressions
            .map(|own| wire::Requirement {
                key: own.key.clone(),
                operator: own.operator.to_owned(),
                values: own.values.clone(),
            })
            .collect(),
    }
}

fn row(item: &Item<'_>, now: Timestamp) -> Row {
    let number = &item.number;
    let cells = vec![
        item.name.clone(),
        number.value.to_string(),
        Seconds::between(number.timestamp, now).to_string(),
        number.target.reason.as_str().to_owned(),
        number.id.name.to_string(),
        number.target.message.to_string(),
    ];
    let labels = number.metric_labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
    let namespace = number.id.namespace.to_string();
    Row { cells, name: item.name.clone(), namespace, labels: labels.collect() }
}
