//! API objects as bytes: JSON, YAML, Kubernetes protobuf, or the `Table` of `meta.k8s.io` that `kubectl get` prints.

use std::collections::BTreeMap;

use prost::Message;
use serde::Serialize;

use super::negotiation::{Encoding, TableVersion};
use super::protobuf;

/// Initial capacity of a body, in bytes. A list of one item has about 400, so the usual answer never reallocates.
const BODY_CAPACITY: usize = 512;

/// An object of the API. `Serialize` writes all of it, including `kind` and `apiVersion`.
pub(crate) trait Object: Serialize {
    /// `apiVersion` and `kind`.
    fn type_meta(&self) -> (&'static str, &'static str);

    /// Appends the object's protobuf fields, without the envelope.
    fn protobuf(&self, to: &mut Vec<u8>);

    /// The table that `kubectl get` prints; `None` when the object has none.
    fn table(&self) -> Option<Table> {
        None
    }
}

/// An object whose fields are those of a protobuf message, with its type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct TypedMessage<T> {
    kind: &'static str,
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    #[serde(flatten)]
    pub(crate) message: T,
}

impl<T> TypedMessage<T> {
    pub(crate) const fn new(api_version: &'static str, kind: &'static str, message: T) -> Self {
        Self { kind, api_version, message }
    }
}

impl<T: Message + Serialize> Object for TypedMessage<T> {
    fn type_meta(&self) -> (&'static str, &'static str) {
        (self.api_version, self.kind)
    }

    fn protobuf(&self, to: &mut Vec<u8>) {
        protobuf::append_fields(&self.message, to);
    }
}

/// An object that cannot be encoded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EncodeError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Yaml(#[from] serde_saphyr::ser::Error),
}

/// Encodes an object.
pub(crate) fn encode(encoding: Encoding, object: &impl Object) -> Result<Vec<u8>, EncodeError> {
    match encoding {
        Encoding::Protobuf => {
            let body = Vec::with_capacity(BODY_CAPACITY);
            Ok(protobuf::envelope(body, object.type_meta(), |to| object.protobuf(to)))
        }
        Encoding::Json | Encoding::Yaml => encode_text(encoding, object),
    }
}

/// Encodes what has no protobuf form: as YAML, else as JSON.
pub(super) fn encode_text(encoding: Encoding, object: &impl Serialize) -> Result<Vec<u8>, EncodeError> {
    match encoding {
        Encoding::Yaml => Ok(yaml(object)?.into_bytes()),
        Encoding::Json | Encoding::Protobuf => {
            let mut body = Vec::with_capacity(BODY_CAPACITY);
            serde_json::to_writer(&mut body, object)?;
            Ok(body)
        }
    }
}

/// YAML that every reader understands alike: strings that some version of YAML reads as another type are quoted, and long
/// strings stay on one line.
pub(crate) fn yaml(object: &impl Serialize) -> Result<String, serde_saphyr::ser::Error> {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    serde_saphyr::to_string_with_options(object, options)
}

/// An empty JSON object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Empty {}

/// A column. The first column of a table names its rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// `name` for the column that names the row, else empty.
    pub(crate) format: &'static str,
    pub(crate) description: &'static str,
    /// 0 is always shown, 1 only with `-o wide`.
    pub(crate) priority: u8,
}

impl Column {
    /// A text column that is always shown.
    pub(crate) const fn text(name: &'static str, description: &'static str) -> Self {
        Self { name, kind: "string", format: "", description, priority: 0 }
    }

    /// The column that names the row.
    pub(crate) const fn name(name: &'static str, description: &'static str) -> Self {
        Self { format: "name", ..Self::text(name, description) }
    }

    /// The same column, shown only with `-o wide`.
    pub(crate) const fn wide(mut self) -> Self {
        self.priority = 1;
        self
    }
}

/// A table.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Table {
    kind: &'static str,
    api_version: &'static str,
    metadata: Empty,
    column_definitions: &'static [Column],
    rows: Vec<Row>,
}

/// One object: a cell for each column, and the metadata that `--show-labels` and selectors read.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    cells: Vec<String>,
    object: PartialObjectMetadata,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct PartialObjectMetadata {
    kind: &'static str,
    api_version: &'static str,
    metadata: Metadata,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Metadata {
    pub(crate) name: String,
    pub(crate) namespace: String,
    /// Always `null`: the listed objects are computed, not created.
    creation_timestamp: (),
    labels: BTreeMap<String, String>,
}

impl Metadata {
    pub(crate) fn new(
        name: impl Into<String>,
        namespace: impl Into<String>,
        labels: BTreeMap<String, String>,
    ) -> Self {
        Self { name: name.into(), namespace: namespace.into(), creation_timestamp: (), labels }
    }
}

impl Table {
    pub(crate) fn new(columns: &'static [Column], rows: Vec<Row>) -> Self {
        Self { kind: "Table", api_version: "", metadata: Empty {}, column_definitions: columns, rows }
    }

    /// The table in one version of `meta.k8s.io`.
    pub(super) fn versioned(mut self, version: TableVersion) -> Self {
        self.api_version = match version {
            TableVersion::V1 => "meta.k8s.io/v1",
            TableVersion::V1Beta1 => "meta.k8s.io/v1beta1",
        };
        for row in &mut self.rows {
            row.object.api_version = self.api_version;
        }
        self
    }
}

impl Row {
    /// `cells` are in the order of the columns.
    pub(crate) fn new(cells: Vec<String>, metadata: Metadata) -> Self {
        Self {
            cells,
            object: PartialObjectMetadata { kind: "PartialObjectMetadata", api_version: "", metadata },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn reads_back(text: &str) -> Result<(), TestCaseError> {
        let object = BTreeMap::from([("value", text), (text, "x")]);
        let yaml = yaml(&object).unwrap();
        let read: serde_json::Value = serde_saphyr::from_str(&yaml).unwrap();
        prop_assert_eq!(&read, &serde_json::to_value(&object).unwrap(), "{}", yaml);
        Ok(())
    }

    #[test]
    fn a_string_that_looks_like_something_else_stays_a_string() {
        let words = "3 1e1 1500m 2k -1 0x1F 0o17 017 1_000 1:30 .5 .inf NaN no Yes on y true \
             null ~ # &a *a !a | > %a @a `a ' {} [] ? << = 2026-11-21 2026-11-21T10:00:05Z --- ...";
        let texts = [
            "", " ", "- a", "a: b", "a #b", "\"", "\\", "é", "\u{85}", "\u{feff}", "a\nb", "a\tb", "\u{7f}",
            "\u{2028}",
        ];
        for text in words.split(' ').chain(texts) {
            reads_back(text).unwrap();
            let plain = format!("v: {text}\n");
            let yaml = yaml(&BTreeMap::from([("v", text)])).unwrap();
            let needs_quotes = text.contains(|c: char| c.is_ascii_digit())
                || matches!(text, "no" | "Yes" | "on" | "y" | "~");
            assert!(
                !needs_quotes || text.ends_with(['m', 'k']) || yaml != plain,
                "{text:?} must be quoted: {yaml}"
            );
        }
    }

    proptest! {
        #[test]
        fn every_string_survives_yaml(text: String) {
            reads_back(&text)?;
        }
    }
}
