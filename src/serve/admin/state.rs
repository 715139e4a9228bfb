//! What the routes for operators need, and `/metrics`.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use prometheus_client::registry::Registry;

use crate::record::Recent;
use crate::serve::data_read::ReadState;
use crate::serve::encoding::internal_error;
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

/// `/metrics`
pub(crate) fn metrics(state: &AdminState) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &state.registry) {
        Ok(()) => ([(CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => internal_error(&error).into_response(),
    }
}
