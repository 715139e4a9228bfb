//! Lists of metrics of objects, in both versions and in every representation.

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use wva_core::units::Seconds;

use super::answer::{Item, List};
use super::object_path::Version;
use crate::serve::encoding::protobuf::custom::{ObjectReference, v1beta1, v1beta2};
use crate::serve::encoding::protobuf::{self, ListMeta, Time};
use crate::serve::encoding::table::{Column, Row, Table};
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

impl List<'_> {
    fn v1beta1(&self) -> v1beta1::MetricValueList {
        let items = self.items.iter().map(|item| v1beta1::MetricValue {
            described_object: Some(described_object(item)),
            metric_name: item.value.metric_name.to_owned(),
            timestamp: Some(Time::from_timestamp(item.value.timestamp)),
            // No value is an average over a window.
            window: None,
            value: Some(quantity(item)),
            selector: item.selector.cloned(),
        });
        v1beta1::MetricValueList { metadata: Some(ListMeta {}), items: items.collect() }
    }

    fn v1beta2(&self) -> v1beta2::MetricValueList {
        let items = self.items.iter().map(|item| {
            let name = item.value.metric_name.to_owned();
            let metric = v1beta2::MetricIdentifier { name, selector: item.selector.cloned() };
            v1beta2::MetricValue {
                described_object: Some(described_object(item)),
                metric: Some(metric),
                timestamp: Some(Time::from_timestamp(item.value.timestamp)),
                window_seconds: None,
                value: Some(quantity(item)),
            }
        });
        v1beta2::MetricValueList { metadata: Some(ListMeta {}), items: items.collect() }
    }
}

fn described_object(item: &Item<'_>) -> ObjectReference {
    ObjectReference {
        kind: item.resource.kind().to_owned(),
        namespace: item.value.id.namespace.to_string(),
        name: item.name.clone(),
        api_version: item.resource.api_version().to_owned(),
        ..ObjectReference::default()
    }
}

fn quantity(item: &Item<'_>) -> protobuf::Quantity {
    protobuf::Quantity { string: item.value.value.to_string() }
}

impl Serialize for List<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (api_version, kind) = self.type_meta();
        match self.version {
            Version::V1Beta1 => TypedMessage::new(api_version, kind, self.v1beta1()).serialize(serializer),
            Version::V1Beta2 => TypedMessage::new(api_version, kind, self.v1beta2()).serialize(serializer),
        }
    }
}

impl Object for List<'_> {
    fn type_meta(&self) -> (&'static str, &'static str) {
        (self.version.api_version(), "MetricValueList")
    }

    fn protobuf(&self, to: &mut Vec<u8>) {
        match self.version {
            Version::V1Beta1 => protobuf::append_fields(&self.v1beta1(), to),
            Version::V1Beta2 => protobuf::append_fields(&self.v1beta2(), to),
        }
    }

    fn table(&self) -> Option<Table> {
        let rows = self.items.iter().map(|item| row(item, self.now)).collect();
        Some(Table { columns: COLUMNS, rows })
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
        value.target.explanation.to_string(),
    ];
    let labels = value.metric_labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
    let namespace = value.id.namespace.to_string();
    Row { cells, name: item.name.clone(), namespace, labels: labels.collect() }
}
