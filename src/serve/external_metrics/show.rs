//! How a list of external metrics is written in each representation.

use std::fmt;

use jiff::Timestamp;
use prost::Message;
use serde::Serializer;
use wva_core::units::Seconds;

use super::answer::{Answer, Item};
use crate::serve::represent::protobuf::external::{ExternalMetricValue, ExternalMetricValueList};
use crate::serve::represent::protobuf::{Entry, ListMeta, Quantity, Time};
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

impl Show for Answer<'_> {
    fn type_meta(&self) -> (&'static str, &'static str) {
        (self.api_version, self.kind)
    }

    fn protobuf(&self) -> Vec<u8> {
        let items = self.items.iter().map(message).collect();
        ExternalMetricValueList { metadata: Some(ListMeta {}), items }.encode_to_vec()
    }

    fn table(&self) -> Option<Table> {
        let rows = self.items.iter().map(|item| row(item, self.now)).collect();
        Some(Table { columns: COLUMNS, rows })
    }
}

fn message(item: &Item<'_>) -> ExternalMetricValue {
    let labels = item.metric_labels.iter();
    ExternalMetricValue {
        metric_name: item.metric_name.to_owned(),
        metric_labels: labels
            .map(|(key, value)| Entry { key: key.to_owned(), value: value.to_owned() })
            .collect(),
        timestamp: Some(Time::of(item.timestamp)),
        window: None,
        value: Some(Quantity { string: item.value.to_string() }),
    }
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
