//! Kubernetes protobuf: messages with the field numbers of `k8s.io/metrics` and `k8s.io/apimachinery`, and the envelope
//! around every object. What also serializes to JSON and YAML derives `Serialize`. External metrics, the hot path, are
//! appended field by field, which saves the owned strings of a message.

use jiff::Timestamp;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// The first four bytes of every object in Kubernetes protobuf.
pub(crate) const MAGIC: [u8; 4] = *b"k8s\0";

/// Appends the envelope, a `runtime.Unknown`, with the object whose fields `object` appends. `type_meta` is `apiVersion`
/// and `kind`.
pub(crate) fn envelope(
    mut body: Vec<u8>,
    type_meta: (&str, &str),
    object: impl FnOnce(&mut Vec<u8>),
) -> Vec<u8> {
    let (api_version, kind) = type_meta;
    body.extend_from_slice(&MAGIC);
    append_message(1, &mut body, |type_meta| {
        append_bytes(1, api_version.as_bytes(), type_meta);
        append_bytes(2, kind.as_bytes(), type_meta);
    });
    append_message(2, &mut body, object);
    body
}

/// Appends the fields of a message.
pub(crate) fn append_fields(message: &impl Message, to: &mut Vec<u8>) {
    // A vector grows, so encoding into it cannot fail.
    let _ = message.encode(to);
}

/// Appends a field of bytes or text. An empty value is omitted, as proto3 defines.
pub(crate) fn append_bytes(tag: u32, value: &[u8], to: &mut Vec<u8>) {
    if !value.is_empty() {
        encode_key(tag, WireType::LengthDelimited, to);
        encode_varint(value.len() as u64, to);
        to.extend_from_slice(value);
    }
}

/// Appends the message that `write` appends, as one field. The length stands before the message but is known only after
/// it: one byte is reserved, which is enough below 128 bytes, and a longer length moves the message.
pub(crate) fn append_message(tag: u32, to: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    encode_key(tag, WireType::LengthDelimited, to);
    let at = to.len();
    to.push(0);
    write(to);
    let length = to.len() - at - 1;
    match u8::try_from(length) {
        Ok(short @ 0..0x80) => to[at] = short,
        _ => {
            let mut varint = Vec::new();
            encode_varint(length as u64, &mut varint);
            to.splice(at..=at, varint);
        }
    }
}

/// `k8s.io.apimachinery.pkg.runtime.Unknown`
#[cfg(test)]
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Unknown {
    #[prost(message, optional, tag = "1")]
    pub(crate) type_meta: Option<TypeMeta>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) raw: Vec<u8>,
    #[prost(string, tag = "3")]
    pub(crate) content_encoding: String,
    #[prost(string, tag = "4")]
    pub(crate) content_type: String,
}

/// `k8s.io.apimachinery.pkg.runtime.TypeMeta`
#[cfg(test)]
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TypeMeta {
    #[prost(string, tag = "1")]
    pub(crate) api_version: String,
    #[prost(string, tag = "2")]
    pub(crate) kind: String,
}

/// `k8s.io.apimachinery.pkg.apis.meta.v1.ListMeta`, which is empty in everything served here.
#[derive(Clone, PartialEq, Eq, Message, Serialize)]
pub(crate) struct ListMeta {}

/// `k8s.io.apimachinery.pkg.apis.meta.v1.Time`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Time {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

impl Time {
    /// Whole seconds, rounded down: `metav1.Time` has no fraction.
    pub(crate) fn from_timestamp(time: Timestamp) -> Self {
        Self { seconds: time.as_second(), nanos: 0 }
    }
}

/// RFC 3339 in UTC.
impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Timestamp::from_second(self.seconds).unwrap_or_default())
    }
}

/// `k8s.io.apimachinery.pkg.api.resource.Quantity`
#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(transparent)]
pub(crate) struct Quantity {
    #[prost(string, tag = "1")]
    pub(crate) string: String,
}

/// One entry of a `map<string, string>`, which protobuf encodes as a list of entries.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Entry {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

/// `k8s.io.metrics.pkg.apis.external_metrics.v1beta1`, to decode answers in tests.
#[cfg(test)]
pub(crate) mod external {
    use super::{Entry, ListMeta, Message, Quantity, Time};

    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct ExternalMetricValueList {
        #[prost(message, optional, tag = "1")]
        pub(crate) metadata: Option<ListMeta>,
        #[prost(message, repeated, tag = "2")]
        pub(crate) items: Vec<ExternalMetricValue>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct ExternalMetricValue {
        #[prost(string, tag = "1")]
        pub(crate) metric_name: String,
        #[prost(message, repeated, tag = "2")]
        pub(crate) metric_labels: Vec<Entry>,
        #[prost(message, optional, tag = "3")]
        pub(crate) timestamp: Option<Time>,
        #[prost(int64, optional, tag = "4")]
        pub(crate) window: Option<i64>,
        #[prost(message, optional, tag = "5")]
        pub(crate) value: Option<Quantity>,
    }
}

/// Serializes a `map<string, string>` as a map.
fn serialize_map<S: Serializer>(entries: &[Entry], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(entries.len()))?;
    for Entry { key, value } in entries {
        map.serialize_entry(key, value)?;
    }
    map.end()
}

/// `k8s.io.metrics.pkg.apis.custom_metrics`
pub(crate) mod custom {
    use super::{Entry, ListMeta, Message, Quantity, Serialize, Time, serialize_map};

    /// `k8s.io.api.core.v1.ObjectReference`
    #[derive(Clone, PartialEq, Message, Serialize)]
    #[serde(rename_all = "camelCase")]
    pub(crate) struct ObjectReference {
        #[prost(string, tag = "1")]
        pub(crate) kind: String,
        #[prost(string, tag = "2")]
        pub(crate) namespace: String,
        #[prost(string, tag = "3")]
        pub(crate) name: String,
        #[prost(string, tag = "4")]
        #[serde(skip)]
        pub(crate) uid: String,
        #[prost(string, tag = "5")]
        pub(crate) api_version: String,
        #[prost(string, tag = "6")]
        #[serde(skip)]
        pub(crate) resource_version: String,
        #[prost(string, tag = "7")]
        #[serde(skip)]
        pub(crate) field_path: String,
    }

    /// `k8s.io.apimachinery.pkg.apis.meta.v1.LabelSelector`
    #[derive(Clone, PartialEq, Message, Serialize)]
    #[serde(rename_all = "camelCase")]
    pub(crate) struct LabelSelector {
        #[prost(message, repeated, tag = "1")]
        #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "serialize_map")]
        pub(crate) match_labels: Vec<Entry>,
        #[prost(message, repeated, tag = "2")]
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub(crate) match_expressions: Vec<Requirement>,
    }

    /// `k8s.io.apimachinery.pkg.apis.meta.v1.LabelSelectorRequirement`
    #[derive(Clone, PartialEq, Message, Serialize)]
    pub(crate) struct Requirement {
        #[prost(string, tag = "1")]
        pub(crate) key: String,
        #[prost(string, tag = "2")]
        pub(crate) operator: String,
        #[prost(string, repeated, tag = "3")]
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub(crate) values: Vec<String>,
    }

    pub(crate) mod v1beta1 {
        use super::{LabelSelector, ListMeta, Message, ObjectReference, Quantity, Serialize, Time};

        #[derive(Clone, PartialEq, Message, Serialize)]
        pub(crate) struct MetricValueList {
            #[prost(message, optional, tag = "1")]
            pub(crate) metadata: Option<ListMeta>,
            #[prost(message, repeated, tag = "2")]
            pub(crate) items: Vec<MetricValue>,
        }

        #[derive(Clone, PartialEq, Message, Serialize)]
        #[serde(rename_all = "camelCase")]
        pub(crate) struct MetricValue {
            #[prost(message, optional, tag = "1")]
            pub(crate) described_object: Option<ObjectReference>,
            #[prost(string, tag = "2")]
            pub(crate) metric_name: String,
            #[prost(message, optional, tag = "3")]
            pub(crate) timestamp: Option<Time>,
            #[prost(int64, optional, tag = "4")]
            #[serde(skip)]
            pub(crate) window: Option<i64>,
            #[prost(message, optional, tag = "5")]
            pub(crate) value: Option<Quantity>,
            #[prost(message, optional, tag = "6")]
            pub(crate) selector: Option<LabelSelector>,
        }
    }

    pub(crate) mod v1beta2 {
        use super::{LabelSelector, ListMeta, Message, ObjectReference, Quantity, Serialize, Time};

        #[derive(Clone, PartialEq, Message, Serialize)]
        pub(crate) struct MetricValueList {
            #[prost(message, optional, tag = "1")]
            pub(crate) metadata: Option<ListMeta>,
            #[prost(message, repeated, tag = "2")]
            pub(crate) items: Vec<MetricValue>,
        }

        #[derive(Clone, PartialEq, Message, Serialize)]
        pub(crate) struct MetricIdentifier {
            #[prost(string, tag = "1")]
            pub(crate) name: String,
            #[prost(message, optional, tag = "2")]
            pub(crate) selector: Option<LabelSelector>,
        }

        #[derive(Clone, PartialEq, Message, Serialize)]
        #[serde(rename_all = "camelCase")]
        pub(crate) struct MetricValue {
            #[prost(message, optional, tag = "1")]
            pub(crate) described_object: Option<ObjectReference>,
            #[prost(message, optional, tag = "2")]
            pub(crate) metric: Option<MetricIdentifier>,
            #[prost(message, optional, tag = "3")]
            pub(crate) timestamp: Option<Time>,
            #[prost(int64, optional, tag = "4")]
            #[serde(skip)]
            pub(crate) window_seconds: Option<i64>,
            #[prost(message, optional, tag = "5")]
            pub(crate) value: Option<Quantity>,
        }
    }
}

/// `k8s.io.apimachinery.pkg.apis.meta.v1`: errors.
pub(crate) mod status {
    use super::{ListMeta, Message, Serialize};

    #[derive(Clone, PartialEq, Eq, Message, Serialize)]
    pub(crate) struct Status {
        #[prost(message, optional, tag = "1")]
        pub(crate) metadata: Option<ListMeta>,
        #[prost(string, tag = "2")]
        pub(crate) status: String,
        #[prost(string, tag = "3")]
        pub(crate) message: String,
        #[prost(string, tag = "4")]
        pub(crate) reason: String,
        #[prost(message, optional, tag = "5")]
        pub(crate) details: Option<Details>,
        #[prost(int32, tag = "6")]
        pub(crate) code: i32,
    }

    /// `StatusDetails`
    #[derive(Clone, PartialEq, Eq, Message, Serialize)]
    pub(crate) struct Details {
        #[prost(string, tag = "1")]
        #[serde(skip_serializing_if = "String::is_empty")]
        pub(crate) name: String,
        #[prost(string, tag = "2")]
        #[serde(skip_serializing_if = "String::is_empty")]
        pub(crate) group: String,
        #[prost(string, tag = "3")]
        #[serde(skip_serializing_if = "String::is_empty")]
        pub(crate) kind: String,
    }
}

/// `k8s.io.apimachinery.pkg.apis.meta.v1`: discovery.
pub(crate) mod discovery {
    use super::{Message, Serialize};

    #[derive(Clone, PartialEq, Message, Serialize)]
    pub(crate) struct APIGroupList {
        #[prost(message, repeated, tag = "1")]
        pub(crate) groups: Vec<APIGroup>,
    }

    #[derive(Clone, PartialEq, Message, Serialize)]
    #[serde(rename_all = "camelCase")]
    pub(crate) struct APIGroup {
        #[prost(string, tag = "1")]
        pub(crate) name: String,
        #[prost(message, repeated, tag = "2")]
        pub(crate) versions: Vec<GroupVersion>,
        #[prost(message, optional, tag = "3")]
        pub(crate) preferred_version: Option<GroupVersion>,
    }

    /// `GroupVersionForDiscovery`
    #[derive(Clone, PartialEq, Message, Serialize)]
    #[serde(rename_all = "camelCase")]
    pub(crate) struct GroupVersion {
        #[prost(string, tag = "1")]
        pub(crate) group_version: String,
        #[prost(string, tag = "2")]
        pub(crate) version: String,
    }

    #[derive(Clone, PartialEq, Message, Serialize)]
    #[serde(rename_all = "camelCase")]
    pub(crate) struct APIResourceList {
        #[prost(string, tag = "1")]
        pub(crate) group_version: String,
        #[prost(message, repeated, tag = "2")]
        pub(crate) resources: Vec<APIResource>,
    }

    /// The fields are in the order of Kubernetes' JSON.
    #[derive(Clone, PartialEq, Message, Serialize)]
    #[serde(rename_all = "camelCase")]
    pub(crate) struct APIResource {
        #[prost(string, tag = "1")]
        pub(crate) name: String,
        #[prost(string, tag = "6")]
        pub(crate) singular_name: String,
        #[prost(bool, tag = "2")]
        pub(crate) namespaced: bool,
        #[prost(string, tag = "3")]
        pub(crate) kind: String,
        #[prost(message, optional, tag = "4")]
        pub(crate) verbs: Option<Verbs>,
    }

    #[derive(Clone, PartialEq, Message, Serialize)]
    #[serde(transparent)]
    pub(crate) struct Verbs {
        #[prost(string, repeated, tag = "1")]
        pub(crate) items: Vec<String>,
    }
}

#[cfg(test)]
#[path = "protobuf_tests.rs"]
mod tests;
