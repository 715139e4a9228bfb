//! For operators: health, our own metrics, and what the last decisions were made from.

pub(crate) mod board_metrics;
pub(crate) mod health;
mod scaling;
pub(crate) mod snapshots;

use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use http::header::CONTENT_TYPE;

pub(crate) use scaling::Scaling;

use super::state::AppState;

/// What `prometheus-client` writes.
const OPENMETRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// `/metrics`
pub(crate) fn metrics(state: &AppState) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, state.registry()) {
        Ok(()) => ([(CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => super::internal_error(&error).into_response(),
    }
}
