//! The layer around every request: its audit id and log line, panics, and the headers that every answer has.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt as _;
use http::header::CACHE_CONTROL;
use http::{HeaderMap, HeaderValue};
use tokio::time::Instant;

use super::encoding::response::ResponseFormat;
use super::encoding::{Reason, Status};
use super::paths::AUDIT_ID;
use super::request_metrics::{RequestMetrics, Route};

/// The longest `Audit-Id` that is accepted from a client, in bytes; a UUID has 36.
const MAX_AUDIT_ID_BYTES: usize = 64;

/// Identifies one request in the logs of all servers that it passes: visible ASCII.
#[derive(Debug, Clone)]
pub(crate) struct AuditId(HeaderValue);

impl AuditId {
    /// The client's id, or a new one.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Self {
        let is_valid = |id: &&HeaderValue| {
            !id.is_empty() && id.len() <= MAX_AUDIT_ID_BYTES && id.as_bytes().iter().all(u8::is_ascii_graphic)
        };
        Self(headers.get(AUDIT_ID).filter(is_valid).cloned().unwrap_or_else(random_id))
    }

    pub(crate) const fn header(&self) -> &HeaderValue {
        &self.0
    }

    fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }
}

/// A random UUID. Unique enough for logs; not a secret.
fn random_id() -> HeaderValue {
    let high = fastrand::u64(..);
    let low = fastrand::u64(..);
    let id = format!(
        "{:08x}-{:04x}-4{:03x}-a{:03x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xfff,
        low >> 48 & 0xfff,
        low & 0xffff_ffff_ffff
    );
    HeaderValue::try_from(id).unwrap_or(HeaderValue::from_static("none"))
}

/// The outermost layer.
pub(crate) async fn observe_request(
    State(metrics): State<Arc<RequestMetrics>>,
    mut request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let audit = AuditId::from_headers(request.headers());
    request.extensions_mut().insert(audit.clone());
    let route = Route(request.extensions().get::<MatchedPath>().cloned());
    let method = request.method().clone();
    let uri = request.uri().clone();
    let format = ResponseFormat::from_request(request.headers());
    let answer = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    let mut answer = format.apply(answer.unwrap_or_else(|panic| panicked(&*panic))).await;
    let headers = answer.headers_mut();
    headers.insert(AUDIT_ID, audit.0.clone());
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
    let code = answer.status().as_u16();
    let took = started.elapsed();
    metrics.observe(route, code, took);
    tracing::debug!(%method, path = uri.path(), code, took_us = took.as_micros(), audit_id = audit.as_str(), "answered");
    answer
}

/// The answer of a handler that panicked: a panic costs its own request and no other.
fn panicked(panic: &(dyn Any + Send)) -> Response {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or_default();
    tracing::error!(panic = text, "a request handler panicked; this is a bug");
    let message = "the server panicked on this request: this is a bug, and its log has the cause";
    Status::new(Reason::InternalError, message).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_keeps_its_audit_id_and_gets_one_when_it_has_none() {
        let audit_id = |id: &'static str| {
            AuditId::from_headers(&HeaderMap::from_iter([(AUDIT_ID, HeaderValue::from_static(id))])).0
        };
        assert_eq!(audit_id("8d0f1a52"), "8d0f1a52");
        let without = AuditId::from_headers(&HeaderMap::new()).0;
        let with_space = audit_id("two words");
        assert_eq!((without.len(), with_space.len()), (36, 36));
        assert_ne!(without, with_space);
    }
}
