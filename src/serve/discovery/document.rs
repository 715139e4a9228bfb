//! One static answer: bytes, type and digest, made once.

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::Value;

/// A static answer.
#[derive(Debug, Clone)]
pub(crate) struct Document {
    body: Bytes,
    media: &'static str,
    /// Digest of type and body: two representations of one path never share it.
    digest: String,
}

impl Document {
    pub(crate) fn new(media: &'static str, content: &Value) -> Self {
        let body = content.to_string();
        let mut hasher = DefaultHasher::new();
        (media, &body).hash(&mut hasher);
        Self { body: body.into(), media, digest: format!("{:016X}", hasher.finish()) }
    }

    pub(crate) fn digest(&self) -> &str {
        &self.digest
    }

    /// The document, or 304 to a client that has it.
    pub(crate) fn answer(&self, headers: &HeaderMap) -> Response {
        let etag = format!("\"{}\"", self.digest);
        let has = headers.get_all(IF_NONE_MATCH).into_iter().filter_map(|value| value.to_str().ok());
        let mut tags = has.flat_map(|value| value.split(',')).map(|tag| tag.trim().trim_start_matches("W/"));
        let known = tags.any(|tag| tag == etag || tag == "*");
        let mut answer = if known {
            StatusCode::NOT_MODIFIED.into_response()
        } else {
            ([(CONTENT_TYPE, HeaderValue::from_static(self.media))], self.body.clone()).into_response()
        };
        let headers = answer.headers_mut();
        if let Ok(etag) = HeaderValue::from_str(&etag) {
            headers.insert(ETAG, etag);
        }
        headers.insert(VARY, HeaderValue::from_static("Accept"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
        answer
    }
}
