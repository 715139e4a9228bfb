//! `/metrics/decisions`: the desired replicas of every variant as text, the same from every instance. It is for clients that reach
//! any instance through a Service, as KEDA's metrics-api trigger does with `format: prometheus`; `/metrics` exports variants on the
//! leader only.

use std::fmt::{self, Write};

use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use http::header::CONTENT_TYPE;

use super::data_read::ReadState;
use super::encoding::{Reason, Status, internal_error};
use super::external_metrics::Labels;
use crate::engine::{Origin, Published};

/// The text format of Prometheus. Not OpenMetrics, which KEDA's parser does not know.
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// The only metric.
const NAME: &str = "wva_desired_replicas";

/// What `wva_desired_replicas` is, wherever it is exported.
pub(crate) const DESIRED_HELP: &str = "Desired number of replicas for each variant";

/// Room for one line, which has about 170 bytes.
const LINE_BYTES: usize = 192;

/// One line for each variant whose target may be answered, by namespace and name, then one for each annotated object that another
/// object decides for, under its own name. A variant without a number has no line, so that
/// its autoscaler keeps what it has.
///
/// # Errors
/// 503 before the first result: an empty answer would look as if there were no variants.
pub(crate) fn render(state: &ReadState, published: &Published) -> Result<Response, Status> {
    if published.origin == Origin::Empty {
        let message = "no decision has been made yet: the variants and their metrics are still being read; retry in a few seconds";
        return Err(Status::new(Reason::ServiceUnavailable, message));
    }
    let (now, max_stale) = (state.reader.now(), state.reader.max_stale());
    let mut text = format!("# HELP {NAME} {DESIRED_HELP}\n# TYPE {NAME} gauge\n");
    text.reserve(LINE_BYTES * published.decisions.len());
    for (id, decision) in published.series(&state.reader.view()) {
        let Ok(target) = decision.fresh_target(now, max_stale) else { continue };
        let labels = Labels::new(id, decision.accelerator.as_deref(), state.controller_instance.as_deref());
        write_line(&mut text, labels, target.desired.get()).map_err(|error| internal_error(&error))?;
    }
    Ok(([(CONTENT_TYPE, TEXT)], text).into_response())
}

fn write_line(text: &mut String, labels: Labels<'_>, desired: u32) -> fmt::Result {
    write!(text, "{NAME}{{")?;
    for (index, (name, value)) in labels.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        write!(text, "{comma}{name}=\"")?;
        for letter in value.chars() {
            match letter {
                '\\' => text.push_str(r"\\"),
                '"' => text.push_str(r#"\""#),
                '\n' => text.push_str(r"\n"),
                _ => text.push(letter),
            }
        }
        text.push('"');
    }
    writeln!(text, "}} {desired}")
}
