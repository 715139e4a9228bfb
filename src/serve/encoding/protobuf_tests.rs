//! Encoded messages can be decoded, by an independent decoder too, and no bytes cause a panic.

use proptest::prelude::*;

use super::custom::{LabelSelector, ObjectReference, Requirement, v1beta1, v1beta2};
use super::external::{ExternalMetricValue, ExternalMetricValueList};
use super::*;

/// A decoded field.
#[derive(Debug, PartialEq)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Decodes one varint independently of prost.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let length = bytes.iter().position(|byte| byte & 0x80 == 0)? + 1;
    let (own, rest) = bytes.split_at(length);
    let value = own
        .iter()
        .rev()
        .try_fold(0_u64, |value, byte| value.checked_mul(128).map(|value| value + u64::from(byte & 0x7f)))?;
    Some((value, rest))
}

/// The fields of a message, in order; `None` when a length is invalid.
fn read(mut bytes: &[u8]) -> Option<Vec<(u64, Field<'_>)>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let (key, rest) = varint(bytes)?;
        let (value, rest) = varint(rest)?;
        let field = match key & 7 {
            0 => (Field::Number(value), rest),
            2 => {
                let (own, rest) = rest.split_at_checked(usize::try_from(value).ok()?)?;
                (Field::Bytes(own), rest)
            }
            _ => return None,
        };
        found.push((key >> 3, field.0));
        bytes = field.1;
    }
    Some(found)
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![".{0,200}", "[a-z]{127,129}", "x{16380,16390}"]
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    prop::collection::vec((".{0,9}", ".{0,9}").prop_map(|(key, value)| Entry { key, value }), 0..4)
}

fn time() -> impl Strategy<Value = Option<Time>> {
    prop::option::of(any::<i64>().prop_map(|seconds| Time { seconds, nanos: 0 }))
}

fn quantity() -> impl Strategy<Value = Option<Quantity>> {
    prop::option::of("[0-9]{0,19}[a-zA-Z]?".prop_map(|string| Quantity { string }))
}

fn external_item() -> impl Strategy<Value = ExternalMetricValue> {
    (text(), entries(), time(), prop::option::of(any::<i64>()), quantity()).prop_map(
        |(metric_name, metric_labels, timestamp, window, value)| ExternalMetricValue {
            metric_name,
            metric_labels,
            timestamp,
            window,
            value,
        },
    )
}

fn selector() -> impl Strategy<Value = Option<LabelSelector>> {
    let values = prop::collection::vec(".{0,9}", 0..3);
    let requirement =
        (".{0,9}", values).prop_map(|(key, values)| Requirement { key, operator: "In".into(), values });
    let requirements = prop::collection::vec(requirement, 0..3);
    let selector = (entries(), requirements)
        .prop_map(|(match_labels, match_expressions)| LabelSelector { match_labels, match_expressions });
    prop::option::of(selector)
}

fn object() -> impl Strategy<Value = Option<ObjectReference>> {
    let object = (".{0,9}", ".{0,9}", text()).prop_map(|(kind, namespace, name)| ObjectReference {
        kind,
        namespace,
        name,
        api_version: "apps/v1".into(),
        ..ObjectReference::default()
    });
    prop::option::of(object)
}

fn reads_back<M: Message + PartialEq + Default + std::fmt::Debug>(message: &M) -> Result<(), TestCaseError> {
    let bytes = message.encode_to_vec();
    prop_assert!(read(&bytes).is_some(), "every length is right");
    prop_assert_eq!(&M::decode(&bytes[..]).unwrap(), message);
    Ok(())
}

proptest! {
    #[test]
    fn an_envelope_holds_the_object_and_says_what_it_is(version in text(), kind in text(), raw: Vec<u8>) {
        let body = envelope(Vec::new(), (&version, &kind), |to| to.extend_from_slice(&raw));
        let inner = body.strip_prefix(&MAGIC[..]).unwrap();
        let mut own = read(inner).unwrap();
        prop_assert_eq!(own.pop(), Some((2, Field::Bytes(&raw))));
        let Some((1, Field::Bytes(meta))) = own.pop() else { panic!("no type") };
        let mut meta = read(meta).unwrap();
        prop_assert!(kind.is_empty() || meta.pop() == Some((2, Field::Bytes(kind.as_bytes()))));
        prop_assert!(version.is_empty() || meta.pop() == Some((1, Field::Bytes(version.as_bytes()))));
        let unknown = Unknown::decode(inner).unwrap();
        prop_assert_eq!((unknown.raw, unknown.type_meta), (raw, Some(TypeMeta { api_version: version, kind })));
    }

    #[test]
    fn what_is_written_field_by_field_is_what_the_message_is(item in external_item()) {
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
    }

    #[test]
    fn an_external_list_reads_back(items in prop::collection::vec(external_item(), 0..4)) {
        reads_back(&ExternalMetricValueList { metadata: Some(ListMeta {}), items })?;
    }

    #[test]
    fn a_custom_list_reads_back_in_both_versions(
        described_object in object(), metric_name in text(), timestamp in time(), value in quantity(),
        selector in selector()
    ) {
        let item = v1beta1::MetricValue {
            described_object: described_object.clone(),
            metric_name: metric_name.clone(),
            timestamp: timestamp.clone(),
            window: None,
            value: value.clone(),
            selector: selector.clone(),
        };
        reads_back(&v1beta1::MetricValueList { metadata: Some(ListMeta {}), items: vec![item.clone(), item] })?;
        let metric = Some(v1beta2::MetricIdentifier { name: metric_name, selector });
        let item = v1beta2::MetricValue { described_object, metric, timestamp, window_seconds: Some(60), value };
        reads_back(&v1beta2::MetricValueList { metadata: None, items: vec![item] })?;
    }

    #[test]
    fn no_bytes_harm_a_reader(bytes: Vec<u8>) {
        let _ = (Unknown::decode(&bytes[..]), ExternalMetricValueList::decode(&bytes[..]));
        let _ = (status::Status::decode(&bytes[..]), discovery::APIResourceList::decode(&bytes[..]));
    }
}
