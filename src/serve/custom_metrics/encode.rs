//! Lists of metrics of objects, in both versions and in every representation.

use jiff::Timestamp;
use prost::Message;
use serde::{Serialize, Serializer};
use wva_core::units::Seconds;

use super::answer::{MetricValue, MetricValueList};
use super::label_selector::LabelSelectorMessage;
use super::object_path::Version;
use crate::serve::encoding::object::{Column, Metadata, Row, Table};
use crate::serve::encoding::protobuf::{self, ListMeta, Quantity, Time};
use crate::serve::encoding::{Object, TypedMessage};

/// The columns that `kubectl get` prints.
const COLUMNS: &[Column] = &[
    Column::name("Object", "The object that the number is of."),
    Column::text("Value", "The number, as a quantity."),
    Column::text("Age", "How old the newest measurement is that the number rests on."),
    Column::text("Reason", "Why the number is what it is."),
    Column::text("Variant", "The VariantAutoscaling that the number is decided for.").wide(),
    Column::text("Message", "The decision in words.").wide(),
];

/// `k8s.io.api.core.v1.ObjectReference`
#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct ObjectReference {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "5")]
    api_version: String,
}

/// `k8s.io.metrics.pkg.apis.custom_metrics.v1beta1.MetricValueList`
#[derive(Clone, PartialEq, Message, Serialize)]
struct V1Beta1List {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ListMeta>,
    #[prost(message, repeated, tag = "2")]
    items: Vec<V1Beta1Value>,
}

/// Without `window`: no value is an average over a window.
#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct V1Beta1Value {
    #[prost(message, optional, tag = "1")]
    described_object: Option<ObjectReference>,
    #[prost(string, tag = "2")]
    metric_name: String,
    #[prost(message, optional, tag = "3")]
    timestamp: Option<Time>,
    #[prost(message, optional, tag = "5")]
    value: Option<Quantity>,
    #[prost(message, optional, tag = "6")]
    selector: Option<LabelSelectorMessage>,
}

/// `k8s.io.metrics.pkg.apis.custom_metrics.v1beta2.MetricValueList`
#[derive(Clone, PartialEq, Message, Serialize)]
struct V1Beta2List {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ListMeta>,
    #[prost(message, repeated, tag = "2")]
    items: Vec<V1Beta2Value>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct MetricIdentifier {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    selector: Option<LabelSelectorMessage>,
}

/// Without `windowSeconds`, as in v1beta1.
#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct V1Beta2Value {
    #[prost(message, optional, tag = "1")]
    described_object: Option<ObjectReference>,
    #[prost(message, optional, tag = "2")]
    metric: Option<MetricIdentifier>,
    #[prost(message, optional, tag = "3")]
    timestamp: Option<Time>,
    #[prost(message, optional, tag = "5")]
    value: Option<Quantity>,
}

/// An item, as both versions write it.
pub(super) struct Item<'a> {
    pub(super) kind: &'a str,
    pub(super) api_version: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) metric: &'a str,
    pub(super) at: Timestamp,
    pub(super) value: String,
    pub(super) selector: Option<&'a LabelSelectorMessage>,
}

/// A list in one of the versions.
pub(super) trait Items {
    fn version(&self) -> Version;

    fn items(&self) -> impl Iterator<Item = Item<'_>>;

    fn table(&self) -> Table;
}

/// A list as it is encoded.
pub(super) struct Encoded<'a, T>(pub(super) &'a T);

impl<T: Items> Serialize for Encoded<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (api_version, kind) = self.type_meta();
        match self.0.version() {
            Version::V1Beta1 => {
                TypedMessage::new(api_version, kind, v1beta1(self.0.items())).serialize(serializer)
            }
            Version::V1Beta2 => {
                TypedMessage::new(api_version, kind, v1beta2(self.0.items())).serialize(serializer)
            }
        }
    }
}

impl<T: Items> Object for Encoded<'_, T> {
    fn type_meta(&self) -> (&'static str, &'static str) {
        (self.0.version().api_version(), "MetricValueList")
    }

    fn protobuf(&self, to: &mut Vec<u8>) {
        match self.0.version() {
            Version::V1Beta1 => protobuf::append_fields(&v1beta1(self.0.items()), to),
            Version::V1Beta2 => protobuf::append_fields(&v1beta2(self.0.items()), to),
        }
    }

    fn table(&self) -> Option<Table> {
        Some(self.0.table())
    }
}

fn v1beta1<'a>(items: impl Iterator<Item = Item<'a>>) -> V1Beta1List {
    let items = items.map(|item| V1Beta1Value {
        described_object: Some(described_object(&item)),
        metric_name: item.metric.to_owned(),
        timestamp: Some(Time::from_timestamp(item.at)),
        selector: item.selector.cloned(),
        value: Some(Quantity { string: item.value }),
    });
    V1Beta1List { metadata: Some(ListMeta {}), items: items.collect() }
}

fn v1beta2<'a>(items: impl Iterator<Item = Item<'a>>) -> V1Beta2List {
    let items = items.map(|item| V1Beta2Value {
        described_object: Some(described_object(&item)),
        metric: Some(MetricIdentifier { name: item.metric.to_owned(), selector: item.selector.cloned() }),
        timestamp: Some(Time::from_timestamp(item.at)),
        value: Some(Quantity { string: item.value }),
    });
    V1Beta2List { metadata: Some(ListMeta {}), items: items.collect() }
}

fn described_object(item: &Item<'_>) -> ObjectReference {
    ObjectReference {
        kind: item.kind.to_owned(),
        namespace: item.namespace.to_owned(),
        name: item.name.to_owned(),
        api_version: item.api_version.to_owned(),
    }
}

impl Items for MetricValueList<'_> {
    fn version(&self) -> Version {
        self.version
    }

    fn items(&self) -> impl Iterator<Item = Item<'_>> {
        self.items.iter().map(|item| Item {
            kind: item.resource.kind(),
            api_version: item.resource.api_version(),
            namespace: &item.value.id.namespace,
            name: &item.name,
            metric: item.value.metric_name,
            at: item.value.timestamp,
            value: item.value.value.to_string(),
            selector: item.selector,
        })
    }

    fn table(&self) -> Table {
        Table::new(COLUMNS, self.items.iter().map(|item| row(item, self.now)).collect())
    }
}

fn row(item: &MetricValue<'_>, now: Timestamp) -> Row {
    let value = &item.value;
    let cells = vec![
        item.name.clone(),
        value.value.to_string(),
        Seconds::between(value.timestamp, now).to_string(),
        value.origin.reason().to_owned(),
        value.id.name.to_string(),
        value.origin.message(),
    ];
    let labels = value.metric_labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
    Row::new(cells, Metadata::new(&*item.name, &*value.id.namespace, labels.collect()))
}
