//! Lists of external metrics as protobuf and as tables; JSON and YAML are derived.

use jiff::Timestamp;
use wva_core::units::Seconds;

use super::answer::{Answer, Item};
use crate::serve::encoding::Object;
use crate::serve::encoding::protobuf::{Time, append_bytes, append_message};
use crate::serve::encoding::table::{Column, Row, Table};

/// The columns that `kubectl get` prints.
const COLUMNS: &[Column] = &[
    Column::name("Variant", "The variant that the number is of."),
    Column::text("Value", "The number, as a quantity."),
    Column::text("Age", "How old the newest measurement is that the number rests on."),
    Column::text("Reason", "Why the number is what it is."),
    Column::text("Model", "The model that the variant serves.").wide(),
    Column::text("Accelerator", "What it runs on, when that is known.").wide(),
    Column::text("Message", "The decision in words.").wide(),
];

/// Capacity for an item in protobuf, which has about 200 bytes.
const ITEM_BYTES: usize = 256;

impl Object for Answer<'_> {
    fn type_meta(&self) -> (&'static str, &'static str) {
        (self.api_version, self.kind)
    }

    fn protobuf(&self, to: &mut Vec<u8>) {
        to.reserve(self.items.len() * ITEM_BYTES);
        append_message(1, to, |_metadata| {});
        for item in &self.items {
            append_message(2, to, |to| append_item(item, to));
        }
    }

    fn table(&self) -> Option<Table> {
        let rows = self.items.iter().map(|item| row(item, self.now)).collect();
        Some(Table { columns: COLUMNS, rows })
    }
}

/// Appends an `ExternalMetricValue`, without `window`: the value is not an average over a window.
fn append_item(item: &Item<'_>, to: &mut Vec<u8>) {
    append_bytes(1, item.metric_name.as_bytes(), to);
    for (key, value) in item.metric_labels.iter() {
        append_message(2, to, |entry| {
            append_bytes(1, key.as_bytes(), entry);
            append_bytes(2, value.as_bytes(), entry);
        });
    }
    prost::encoding::message::encode(3, &Time::from_timestamp(item.timestamp), to);
    append_message(5, to, |quantity| append_bytes(1, item.value.to_string().as_bytes(), quantity));
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
        target.explanation.to_string(),
    ];
    let labels = item.metric_labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    Row { cells, name: item.id.name.to_string(), namespace: item.id.namespace.to_string(), labels }
}
