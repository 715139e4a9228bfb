//! What the routes for operators need, and `/metrics`.

use std::error::Error;
use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use http::header::{CONTENT_TYPE, VARY};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use crate::record::Recent;
use crate::serve::data_read::ReadState;
use crate::serve::encoding::internal_error;
use crate::serve::encoding::response::{BY_ENCODING, GzipText};
use crate::serve::tls::Permits;

/// Concurrent reads of `/metrics`: a few scrapers and people. Each answer is a text with every variant.
const MAX_METRICS_READS: usize = 16;

/// Concurrent reads of `/debug/snapshots`. Each may occupy a thread that writes tens of MiB.
const MAX_SNAPSHOT_READS: usize = 2;

/// The content type of what `prometheus-client` writes.
const OPENMETRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// The state of the routes for operators.
pub(crate) struct AdminState {
    pub(super) recent: Arc<Recent>,
    pub(super) reads: Arc<ReadState>,
    registry: Registry,
    /// For `/metrics`, separate from those of reads of metrics: whoever wants to see why reads hang needs one.
    pub(crate) metrics_permits: Permits,
    pub(crate) snapshot_permits: Permits,
}

impl AdminState {
    pub(crate) fn new(registry: Registry, recent: Arc<Recent>, reads: Arc<ReadState>) -> Self {
        Self {
            recent,
            reads,
            registry,
            metrics_permits: Permits::new(MAX_METRICS_READS),
            snapshot_permits: Permits::new(MAX_SNAPSHOT_READS),
        }
    }
}

/// `/metrics`. Where the client accepts gzip, it is compressed while it is written: the text of 10,000 variants is 27 MB.
pub(crate) fn metrics(state: &AdminState, gzip: bool) -> Response {
    let answer = if gzip { compressed_metrics(&state.registry) } else { plain_metrics(&state.registry) };
    answer.unwrap_or_else(|error| internal_error(&*error).into_response())
}

fn plain_metrics(registry: &Registry) -> Result<Response, Box<dyn Error>> {
    let mut text = String::new();
    encode(&mut text, registry)?;
    Ok(([(CONTENT_TYPE, OPENMETRICS), (VARY, BY_ENCODING)], text).into_response())
}

fn compressed_metrics(registry: &Registry) -> Result<Response, Box<dyn Error>> {
    let mut text = GzipText::default();
    encode(&mut text, registry)?;
    Ok(text.into_response(OPENMETRICS)?)
}
