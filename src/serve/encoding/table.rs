//! `meta.k8s.io` Table: what `kubectl get` prints.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::serve::accept::TableVersion;
use crate::serve::status::Empty;

/// A column. The first of a table is the name of its rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Column {
    /// The heading.
    pub(crate) name: &'static str,
    /// `string`, `integer`…
    #[serde(rename = "type")]
    pub(crate) of: &'static str,
    /// `name` for the name, else empty.
    pub(crate) format: &'static str,
    /// What the column says.
    pub(crate) description: &'static str,
    /// 0 is always shown, 1 with `-o wide`.
    pub(crate) priority: u8,
}

impl Column {
    /// A column of text that is always shown.
    pub(crate) const fn text(name: &'static str, description: &'static str) -> Self {
        Self { name, of: "string", format: "", description, priority: 0 }
    }

    /// The column with the name of the row.
    pub(crate) const fn name(name: &'static str, description: &'static str) -> Self {
        Self { format: "name", ..Self::text(name, description) }
    }

    /// Shown with `-o wide` only.
    pub(crate) const fn wide(mut self) -> Self {
        self.priority = 1;
        self
    }
}

/// One object: a cell for each column, and what selectors and `--show-labels` look at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Row {
    /// In the order of the columns.
    pub(crate) cells: Vec<String>,
    /// The name of the object.
    pub(crate) name: String,
    /// Its namespace; empty when it has none.
    pub(crate) namespace: String,
    /// Its labels.
    pub(crate) labels: BTreeMap<String, String>,
}

/// A table, not yet of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    /// The columns.
    pub(crate) columns: &'static [Column],
    /// The rows.
    pub(crate) rows: Vec<Row>,
}

impl Table {
    /// The table as it is written in `version`.
    pub(super) fn versioned(self, version: TableVersion) -> Versioned {
        let api_version = match version {
            TableVersion::V1 => "meta.k8s.io/v1",
            TableVersion::V1Beta1 => "meta.k8s.io/v1beta1",
        };
        let rows = self.rows.into_iter().map(|row| WrittenRow::of(row, api_version)).collect();
        Versioned { kind: "Table", api_version, metadata: Empty {}, column_definitions: self.columns, rows }
    }
}

/// The table of the wire.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Versioned {
    kind: &'static str,
    api_version: &'static str,
    metadata: Empty,
    column_definitions: &'static [Column],
    rows: Vec<WrittenRow>,
}

#[derive(Debug, Clone, Serialize)]
struct WrittenRow {
    cells: Vec<String>,
    object: Partial,
}

/// `PartialObjectMetadata`
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Partial {
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
    /// `null`: the objects behind numbers were never created here.
    creation_timestamp: (),
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
}

impl WrittenRow {
    fn of(row: Row, api_version: &'static str) -> Self {
        let Row { cells, name, namespace, labels } = row;
        let metadata = Metadata { name, namespace, creation_timestamp: (), labels };
        Self { cells, object: Partial { kind: "PartialObjectMetadata", api_version, metadata } }
    }
}
