//! Encoded objects decode to the same, by an independent decoder too: protobuf with its envelope, and YAML like JSON.

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use prost::Message;
use serde_json::Value;

use super::{any_text, damaged, fuzz, text};
use crate::serve::encoding::object::yaml;
use crate::serve::encoding::protobuf::{
    Entry, ListMeta, MAGIC, Quantity, Time, append_bytes, append_fields, append_message, envelope,
};

/// `k8s.io.apimachinery.pkg.runtime.Unknown`
#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(message, optional, tag = "1")]
    type_meta: Option<TypeMeta>,
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
    #[prost(string, tag = "3")]
    content_encoding: String,
    #[prost(string, tag = "4")]
    content_type: String,
}

#[derive(Clone, PartialEq, Message)]
struct TypeMeta {
    #[prost(string, tag = "1")]
    api_version: String,
    #[prost(string, tag = "2")]
    kind: String,
}

#[derive(Clone, PartialEq, Message)]
struct ExternalMetricValueList {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ListMeta>,
    #[prost(message, repeated, tag = "2")]
    items: Vec<ExternalMetricValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ExternalMetricValue {
    #[prost(string, tag = "1")]
    metric_name: String,
    #[prost(message, repeated, tag = "2")]
    metric_labels: Vec<Entry>,
    #[prost(message, optional, tag = "3")]
    timestamp: Option<Time>,
    #[prost(int64, optional, tag = "4")]
    window: Option<i64>,
    #[prost(message, optional, tag = "5")]
    value: Option<Quantity>,
}

/// A decoded field.
#[derive(Debug, PartialEq)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Decodes one varint independently of prost.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let length = bytes.iter().position(|byte| byte & 0x80 == 0)? + 1;
    let (digits, rest) = bytes.split_at(length);
    let mut digits = digits.iter().rev().map(|byte| u64::from(byte & 0x7f));
    let value = digits.try_fold(0_u64, |value, digit| value.checked_mul(128).map(|value| value + digit))?;
    Some((value, rest))
}

/// The fields of a message, in order; `None` when a length is invalid.
fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, Field<'_>)>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let (key, rest) = varint(bytes)?;
        let (value, rest) = varint(rest)?;
        let (field, rest) = match key & 7 {
            0 => (Field::Number(value), rest),
            2 => {
                let (content, rest) = rest.split_at_checked(usize::try_from(value).ok()?)?;
                (Field::Bytes(content), rest)
            }
            _ => return None,
        };
        fields.push((key >> 3, field));
        bytes = rest;
    }
    Some(fields)
}

/// Texts around the lengths at which the length itself needs one more byte.
fn long_text() -> impl Strategy<Value = String> {
    prop_oneof![any_text(), text("[a-z]{127,129}"), text("x{16380,16390}")]
}

fn item() -> impl Strategy<Value = ExternalMetricValue> {
    let labels = btree_map(text("[a-z_./]{0,9}"), any_text(), 0..4);
    let labels =
        labels.prop_map(|labels| labels.into_iter().map(|(key, value)| Entry { key, value }).collect());
    let time = option::of(any::<i64>().prop_map(|seconds| Time { seconds }));
    let value = option::of(any_text().prop_map(|string| Quantity { string }));
    (long_text(), labels, time, option::of(any::<i64>()), value).prop_map(
        |(metric_name, metric_labels, timestamp, window, value)| ExternalMetricValue {
            metric_name,
            metric_labels,
            timestamp,
            window,
            value,
        },
    )
}

fn list() -> impl Strategy<Value = ExternalMetricValueList> {
    let metadata = any::<bool>().prop_map(|some| some.then_some(ListMeta {}));
    (metadata, vec(item(), 0..4)).prop_map(|(metadata, items)| ExternalMetricValueList { metadata, items })
}

#[test]
fn what_is_encoded_decodes_to_the_same() {
    fuzz("protobuf", (list(), long_text(), long_text()), |(list, api_version, kind)| {
        let body = envelope(Vec::new(), (&api_version, &kind), |to| append_fields(&list, to));
        let envelope = body.strip_prefix(&MAGIC).ok_or_else(|| TestCaseError::fail("no magic bytes"))?;
        let [(1, Field::Bytes(type_meta)), (2, Field::Bytes(raw))] = fields(envelope).unwrap()[..] else {
            return Err(TestCaseError::fail("an envelope has a type and an object"));
        };
        let texts = [(1, Field::Bytes(api_version.as_bytes())), (2, Field::Bytes(kind.as_bytes()))];
        let texts: Vec<_> = texts.into_iter().filter(|(_, text)| *text != Field::Bytes(b"")).collect();
        prop_assert_eq!(fields(type_meta), Some(texts));
        prop_assert!(fields(raw).is_some(), "every length is right");
        let envelope = Unknown::decode(envelope).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(envelope.type_meta, Some(TypeMeta { api_version, kind }));
        prop_assert_eq!((envelope.content_encoding, envelope.content_type), Default::default());
        prop_assert_eq!(ExternalMetricValueList::decode(&envelope.raw[..]).ok(), Some(list));
        Ok(())
    });
}

#[test]
fn what_is_written_field_by_field_is_what_the_message_is() {
    fuzz("protobuf fields", item(), |item| {
        let mut written = Vec::new();
        append_bytes(1, item.metric_name.as_bytes(), &mut written);
        for entry in &item.metric_labels {
            append_message(2, &mut written, |to| {
                append_bytes(1, entry.key.as_bytes(), to);
                append_bytes(2, entry.value.as_bytes(), to);
            });
        }
        let mut whole = vec![7];
        append_message(2, &mut whole, |to| to.extend_from_slice(&written));
        let item = ExternalMetricValue { timestamp: None, window: None, value: None, ..item };
        prop_assert_eq!(&written, &item.encode_to_vec());
        let list = ExternalMetricValueList { metadata: None, items: vec![item] };
        prop_assert_eq!(&whole[1..], list.encode_to_vec());
        Ok(())
    });
}

#[test]
fn what_decodes_encodes_to_what_decodes_to_it() {
    let whole = ExternalMetricValueList {
        metadata: Some(ListMeta {}),
        items: vec![ExternalMetricValue {
            metric_name: "wva_desired_replicas".into(),
            metric_labels: vec![Entry { key: "variant_name".into(), value: "llama".into() }],
            timestamp: Some(Time { seconds: 1_800_000_000 }),
            window: Some(0),
            value: Some(Quantity { string: "5".into() }),
        }],
    };
    let raw = whole.encode_to_vec();
    let corpus = [
        envelope(Vec::new(), ("external.metrics.k8s.io/v1beta1", "ExternalMetricValueList"), |to| {
            append_fields(&whole, to)
        }),
        raw,
    ];
    fuzz("protobuf bytes", damaged(&corpus), |bytes| {
        if let Ok(envelope) = Unknown::decode(bytes.strip_prefix(&MAGIC).unwrap_or(&bytes)) {
            prop_assert_eq!(Unknown::decode(&envelope.encode_to_vec()[..]).ok(), Some(envelope));
        }
        if let Ok(list) = ExternalMetricValueList::decode(&bytes[..]) {
            prop_assert_eq!(ExternalMetricValueList::decode(&list.encode_to_vec()[..]).ok(), Some(list));
        }
        Ok(())
    });
}

fn value() -> impl Strategy<Value = Value> {
    let string = prop_oneof![any_text(), text("[-+.0-9a-zA-Z:# \n'\"&*!|>%@`~,?{}\\[\\]_]{0,8}")];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        string.prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map(text("[-a-z.:/#0-9 é]{0,6}"), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

#[test]
fn yaml_says_what_json_says() {
    fuzz("yaml", value(), |value| {
        let text = yaml(&value).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let read: Value =
            serde_saphyr::from_str(&text).map_err(|error| TestCaseError::fail(format!("{error}: {text}")))?;
        prop_assert_eq!(read, value, "{}", text);
        Ok(())
    });
}
