//! The `Table` of `meta.k8s.io`: what `kubectl get` prints.

use std::collections::BTreeMap;

use serde::Serialize;

use super::negotiation::TableVersion;

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

/// One object: a cell for each column, and the metadata that `--show-labels` and selectors read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Row {
    /// In the order of the columns.
    pub(crate) cells: Vec<String>,
    pub(crate) name: String,
    /// Empty for an object without a namespace.
    pub(crate) namespace: String,
    pub(crate) labels: BTreeMap<String, String>,
}

/// A table, independent of its API version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) columns: &'static [Column],
    pub(crate) rows: Vec<Row>,
}

impl Table {
    /// The table in one version of `meta.k8s.io`.
    pub(super) fn versioned(self, version: TableVersion) -> VersionedTable {
        let api_version = match version {
            TableVersion::V1 => "meta.k8s.io/v1",
            TableVersion::V1Beta1 => "meta.k8s.io/v1beta1",
        };
        let rows = self.rows.into_iter().map(|row| VersionedRow::new(row, api_version)).collect();
        VersionedTable {
            kind: "Table",
            api_version,
            metadata: Empty {},
            column_definitions: self.columns,
            rows,
        }
    }
}

/// The serialized table.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct VersionedTable {
    kind: &'static str,
    api_version: &'static str,
    metadata: Empty,
    column_definitions: &'static [Column],
    rows: Vec<VersionedRow>,
}

#[derive(Debug, Clone, Serialize)]
struct VersionedRow {
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
struct Metadata {
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    /// Always `null`: the listed objects are computed, not created.
    creation_timestamp: (),
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
}

impl VersionedRow {
    fn new(row: Row, api_version: &'static str) -> Self {
        let Row { cells, name, namespace, labels } = row;
        let metadata = Metadata { name, namespace, creation_timestamp: (), labels };
        Self { cells, object: PartialObjectMetadata { kind: "PartialObjectMetadata", api_version, metadata } }
    }
}
