//! Encoded objects decode to the same: protobuf with its envelope, and YAML like JSON.

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use prost::Message;
use serde_json::Value;

use super::{any_text, damaged, fuzz, text};
use crate::serve::encoding::object::yaml;
use crate::serve::encoding::protobuf::external::{ExternalMetricValue, ExternalMetricValueList};
use crate::serve::encoding::protobuf::{
    Entry, ListMeta, MAGIC, Quantity, Time, Unknown, append_fields, envelope,
};

fn item() -> impl Strategy<Value = ExternalMetricValue> {
    let labels = btree_map(text("[a-z_./]{0,9}"), any_text(), 0..4);
    let labels =
        labels.prop_map(|labels| labels.into_iter().map(|(key, value)| Entry { key, value }).collect());
    let time = option::of((any::<i64>(), any::<i32>()).prop_map(|(seconds, nanos)| Time { seconds, nanos }));
    let value = option::of(any_text().prop_map(|string| Quantity { string }));
    (any_text(), labels, time, option::of(any::<i64>()), value).prop_map(
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
    fuzz("protobuf", (list(), any_text(), any_text()), |(list, api_version, kind)| {
        let body = envelope(Vec::new(), (&api_version, &kind), |to| append_fields(&list, to));
        let envelope = body.strip_prefix(&MAGIC).ok_or_else(|| TestCaseError::fail("no magic bytes"))?;
        let envelope = Unknown::decode(envelope).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let meta = envelope.type_meta.unwrap_or_default();
        prop_assert_eq!((meta.api_version, meta.kind), (api_version, kind));
        prop_assert_eq!((envelope.content_encoding, envelope.content_type), Default::default());
        prop_assert_eq!(ExternalMetricValueList::decode(&envelope.raw[..]).ok(), Some(list));
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
            timestamp: Some(Time { seconds: 1_800_000_000, nanos: 0 }),
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
