//! `NodeMetrics` and `PodMetrics` of `k8s.io/metrics`, one or a list, in every representation.

use std::time::Duration as StdDuration;

use jiff::Timestamp;
use prost::Message;
use serde::{Serialize, Serializer};

use super::quantity;
use crate::serve::encoding::Object;
use crate::serve::encoding::object::{Column, Metadata, Row, Table};
use crate::serve::encoding::protobuf::{self, Entry, ListMeta, Quantity, Time, serialize_map};
use crate::serve::ports::{ContainerUsage, ObjectUsage, UsageOf};

const API_VERSION: &str = "metrics.k8s.io/v1beta1";
/// What a table shows for what is not known, as `kubectl` does.
const UNKNOWN: &str = "<unknown>";

/// The columns that `kubectl get` prints.
const COLUMNS: &[Column] = &[
    Column::name("Name", "The pod or node."),
    Column::text("cpu", "Processor time in cores; of a pod, the sum of its containers."),
    Column::text("memory", "Memory in bytes."),
    Column::text("Window", "Over which time processor time was measured."),
];

/// `k8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta`
#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct ObjectMeta {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    #[prost(message, optional, tag = "8")]
    creation_timestamp: Option<Time>,
    #[prost(message, repeated, tag = "11")]
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "serialize_map")]
    labels: Vec<Entry>,
}

/// `k8s.io.apimachinery.pkg.apis.meta.v1.Duration`
#[derive(Clone, PartialEq, Message)]
struct Duration {
    #[prost(int64, tag = "1")]
    nanoseconds: i64,
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let nanoseconds = u64::try_from(self.nanoseconds).unwrap_or_default();
        serializer.serialize_str(&quantity::duration(StdDuration::from_nanos(nanoseconds)))
    }
}

/// An entry of a `map<string, Quantity>`.
#[derive(Clone, PartialEq, Message)]
struct Usage {
    #[prost(string, tag = "1")]
    resource: String,
    #[prost(message, optional, tag = "2")]
    quantity: Option<Quantity>,
}

fn serialize_usage<S: Serializer>(usage: &[Usage], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(usage.iter().map(|own| (&own.resource, &own.quantity)))
}

/// `ContainerMetrics`
#[derive(Clone, PartialEq, Message, Serialize)]
struct ContainerMetrics {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    #[serde(serialize_with = "serialize_usage")]
    usage: Vec<Usage>,
}

/// The fields of `NodeMetrics`.
#[derive(Clone, PartialEq, Message, Serialize)]
struct NodeMetrics {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    timestamp: Option<Time>,
    #[prost(message, optional, tag = "3")]
    window: Option<Duration>,
    #[prost(message, repeated, tag = "4")]
    #[serde(serialize_with = "serialize_usage")]
    usage: Vec<Usage>,
}

/// The fields of `PodMetrics`.
#[derive(Clone, PartialEq, Message, Serialize)]
struct PodMetrics {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    timestamp: Option<Time>,
    #[prost(message, optional, tag = "3")]
    window: Option<Duration>,
    #[prost(message, repeated, tag = "4")]
    containers: Vec<ContainerMetrics>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Fields {
    Pod(PodMetrics),
    Node(NodeMetrics),
}

/// The usage of a pod or node.
pub(super) struct UsageItem<'a> {
    of: UsageOf,
    fields: Fields,
    item: &'a ObjectUsage,
    window: StdDuration,
}

impl<'a> UsageItem<'a> {
    pub(super) fn new(of: UsageOf, item: &'a ObjectUsage, window: StdDuration, now: Timestamp) -> Self {
        let entry = |(key, value): (&String, &String)| Entry { key: key.clone(), value: value.clone() };
        let metadata = Some(ObjectMeta {
            name: item.name.to_string(),
            namespace: item.namespace.to_string(),
            creation_timestamp: Some(Time::from_timestamp(now)),
            labels: item.labels.iter().map(entry).collect(),
        });
        let timestamp = Some(Time::from_timestamp(item.at));
        let nanoseconds = i64::try_from(window.as_nanos()).unwrap_or(i64::MAX);
        let own_window = Some(Duration { nanoseconds });
        let fields = match of {
            UsageOf::Pods => {
                let container =
                    |own: &ContainerUsage| ContainerMetrics { name: own.name.to_string(), usage: usage(own) };
                let containers = item.containers.iter().map(container).collect();
                Fields::Pod(PodMetrics { metadata, timestamp, window: own_window, containers })
            }
            UsageOf::Nodes => {
                let usage = item.containers.first().map(usage).unwrap_or_default();
                Fields::Node(NodeMetrics { metadata, timestamp, window: own_window, usage })
            }
        };
        Self { of, fields, item, window }
    }

    fn append(&self, to: &mut Vec<u8>) {
        match &self.fields {
            Fields::Pod(fields) => protobuf::append_fields(fields, to),
            Fields::Node(fields) => protobuf::append_fields(fields, to),
        }
    }

    fn row(&self) -> Row {
        // A part of a sum is no sum.
        let sum = |of: fn(&ContainerUsage) -> Option<i64>| {
            let containers = &self.item.containers;
            let known = containers.iter().try_fold(0_i64, |sum, own| Some(sum.saturating_add(of(own)?)));
            known.filter(|_| !containers.is_empty())
        };
        let cell = |known: Option<String>| known.unwrap_or_else(|| UNKNOWN.to_owned());
        let (cpu, memory) = (sum(|own| own.cpu), sum(|own| own.memory));
        let (name, namespace) = (self.item.name.to_string(), self.item.namespace.to_string());
        let cells = vec![
            name.clone(),
            cell(cpu.map(quantity::cores)),
            cell(memory.map(quantity::bytes)),
            quantity::duration(self.window),
        ];
        Row::new(cells, Metadata::new(name, namespace, self.item.labels.clone()))
    }
}

/// What is known of a container.
fn usage(own: &ContainerUsage) -> Vec<Usage> {
    let known = [("cpu", own.cpu.map(quantity::cores)), ("memory", own.memory.map(quantity::bytes))];
    let usage = |(resource, quantity): (&str, Option<String>)| {
        Some(Usage { resource: resource.to_owned(), quantity: Some(Quantity { string: quantity? }) })
    };
    known.into_iter().filter_map(usage).collect()
}

impl Serialize for UsageItem<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Typed<'a> {
            kind: &'static str,
            #[serde(rename = "apiVersion")]
            api_version: &'static str,
            #[serde(flatten)]
            fields: &'a Fields,
        }
        let (api_version, kind) = self.type_meta();
        Typed { kind, api_version, fields: &self.fields }.serialize(serializer)
    }
}

impl Object for UsageItem<'_> {
    fn type_meta(&self) -> (&'static str, &'static str) {
        let kind = match self.of {
            UsageOf::Pods => "PodMetrics",
            UsageOf::Nodes => "NodeMetrics",
        };
        (API_VERSION, kind)
    }

    fn protobuf(&self, to: &mut Vec<u8>) {
        self.append(to);
    }

    fn table(&self) -> Option<Table> {
        Some(Table::new(COLUMNS, vec![self.row()]))
    }
}

/// The usage of pods or nodes.
pub(super) struct UsageList<'a> {
    pub(super) of: UsageOf,
    pub(super) items: Vec<UsageItem<'a>>,
}

impl Serialize for UsageList<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Typed<'a> {
            kind: &'static str,
            #[serde(rename = "apiVersion")]
            api_version: &'static str,
            metadata: ListMeta,
            items: Vec<&'a Fields>,
        }
        let (api_version, kind) = self.type_meta();
        let items = self.items.iter().map(|item| &item.fields).collect();
        Typed { kind, api_version, metadata: ListMeta {}, items }.serialize(serializer)
    }
}

impl Object for UsageList<'_> {
    fn type_meta(&self) -> (&'static str, &'static str) {
        let kind = match self.of {
            UsageOf::Pods => "PodMetricsList",
            UsageOf::Nodes => "NodeMetricsList",
        };
        (API_VERSION, kind)
    }

    fn protobuf(&self, to: &mut Vec<u8>) {
        protobuf::append_message(1, to, |_metadata| {});
        for item in &self.items {
            protobuf::append_message(2, to, |to| item.append(to));
        }
    }

    fn table(&self) -> Option<Table> {
        Some(Table::new(COLUMNS, self.items.iter().map(UsageItem::row).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_showed_zero_or_a_part_of_the_sum_for_what_is_not_known() {
        let own = |cpu, memory| ContainerUsage { name: "main".into(), cpu, memory };
        for (containers, expected) in [
            (vec![own(Some(250), Some(1_024_000)), own(Some(1_000), Some(1_024_000))], ["1250m", "2Ki"]),
            (vec![own(Some(250), Some(1_024_000)), own(None, Some(1_024_000))], [UNKNOWN, "2Ki"]),
            (vec![own(Some(250), None)], ["250m", UNKNOWN]),
            (Vec::new(), [UNKNOWN, UNKNOWN]),
        ] {
            let item = ObjectUsage {
                namespace: "llm".into(),
                name: "web".into(),
                labels: Default::default(),
                at: Timestamp::UNIX_EPOCH,
                containers,
            };
            let item = UsageItem::new(UsageOf::Pods, &item, StdDuration::ZERO, Timestamp::UNIX_EPOCH);
            let table = serde_json::to_value(item.table().unwrap()).unwrap();
            let cells = &table["rows"][0]["cells"];
            assert_eq!([&cells[1], &cells[2]].map(|cell| cell.as_str().unwrap()), expected);
        }
    }
}
