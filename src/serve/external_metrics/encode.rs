//! How a list of external metrics is written in each representation.

use std::fmt;

use jiff::Timestamp;
use serde::Serializer;
use wva_core::units::Seconds;

use super::answer::{Answer, Item};
use crate::serve::represent::protobuf::{Time, bytes, nested};
use crate::serve::represent::table::{Column, Row};
use crate::serve::represent::{Show, Table};

/// What `kubectl get` prints of each variant.
const COLUMNS: &[Column] = &[
    Column::name("Variant", "The variant that the number is of."),
    Column::text("Value", "The number, as a quantity."),
    Column::text("Age", "How old the newest measurement is that the number rests on."),
    Column::text("Reason", "Why the number is what it is."),
    Column::text("Model", "The model that the variant serves.").wide(),
    Column::text("Accelerator", "What it runs on, when that is known.").wide(),
    Column::text("Message", "The decision in words.").wide(),
];

/// Room for an item in protobuf, which has about 200 bytes.
const ITEM: usize = 256;

impl Show for Answer<'_> {
    fn type_meta(&self) -> (&'static str, &'static str) {
        (self.api_version, self.kind)
    }

    fn protobuf(&self, to: &mut Vec<u8>) {
        to.reserve(self.items.len() * ITEM);
        nested(1, to, |_metadata| {});
        for item in &self.items {
            nested(2, to, |to| message(item, to));
        }
    }

    fn table(&self) -> Option<Table> {
        let rows = self.items.iter().map(|item| row(item, self.now)).collect();
        Some(Table { columns: COLUMNS, rows })
    }
}

/// An `ExternalMetricValue`. Its `window` is not written: the number is no average over one.
fn message(item: &Item<'_>, to: &mut Vec<u8>) {
    bytes(1, item.metric_name.as_bytes(), to);
    for (key, value) in item.metric_labels.iter() {
        nested(2, to, |entry| {
            bytes(1, key.as_bytes(), entry);
            bytes(2, value.as_bytes(), entry);
        });
    }
    prost::encoding::message::encode(3, &Time::of(item.timestamp), to);
    nested(5, to, |quantity| bytes(1, item.value.to_string().as_bytes(), quantity));
}

fn row(item: &Item<'_>, now: Timestamp) -> Row {
    let target = item.target;
    let cells = vec![
        item.id.name.to_string(),
        item.value.to_string(),
        Seconds::between(item.timestamp, now).to_string(),
        target.reason.as_str().to_owned(),
        item.decision.model.to_string(),
        item.decision.accelerator.as_deref().unwrap_or("<unknown>").to_owned(),
        target.message.to_string(),
    ];
    let labels = item.metric_labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    Row { cells, name: item.id.name.to_string(), namespace: item.id.namespace.to_string(), labels }
}

/// RFC 3339 in UTC, whole seconds, rounded down: never younger than the truth.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WholeSeconds(pub(crate) Timestamp);

impl fmt::Display for WholeSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Timestamp::from_second(self.0.as_second()).unwrap_or(self.0).fmt(f)
    }
}

/// A time as JSON and YAML have it.
pub(crate) fn whole_seconds<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&WholeSeconds(*time))
}
