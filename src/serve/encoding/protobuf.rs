//! Kubernetes protobuf: the envelope around every object, and the messages that several objects contain, with the field numbers
//! of `k8s.io/apimachinery`. What also serializes to JSON and YAML derives `Serialize`. External metrics, the hot path, are
//! appended field by field, which saves the owned strings of a message.

use std::fmt;

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

/// `k8s.io.apimachinery.pkg.apis.meta.v1.ListMeta`, which is empty in everything served here.
#[derive(Clone, PartialEq, Eq, Message, Serialize)]
pub(crate) struct ListMeta {}

/// `k8s.io.apimachinery.pkg.apis.meta.v1.Time`, which has no fraction: whole seconds, rounded down so that evidence never looks
/// younger than it is.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Time {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
}

impl Time {
    pub(crate) fn from_timestamp(time: Timestamp) -> Self {
        Self { seconds: time.as_second() }
    }
}

/// RFC 3339 in UTC.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Timestamp::from_second(self.seconds).unwrap_or_default().fmt(f)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Serializes a time as [`Time`].
pub(crate) fn serialize_time<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    Time::from_timestamp(*time).serialize(serializer)
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

/// Serializes a `map<string, string>` as a map.
pub(crate) fn serialize_map<S: Serializer>(entries: &[Entry], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(entries.len()))?;
    for Entry { key, value } in entries {
        map.serialize_entry(key, value)?;
    }
    map.end()
}
