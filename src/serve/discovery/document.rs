//! Static answers: bytes, media type and digest, made once.

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::Value;

use crate::serve::encoding::negotiation::{self, Encoding};
use crate::serve::encoding::object::{Object, encode};
use crate::serve::encoding::response::not_acceptable;

/// A static answer in one encoding.
#[derive(Debug, Clone)]
pub(super) struct Document {
    body: Bytes,
    media_type: &'static str,
    /// Digest of media type and body: two representations of one path never share it.
    digest: String,
}

impl Document {
    /// A document that exists only in JSON.
    pub(super) fn json(media_type: &'static str, content: &Value) -> Self {
        Self::new(media_type, content.to_string().into_bytes())
    }

    fn new(media_type: &'static str, body: Vec<u8>) -> Self {
        let mut hasher = DefaultHasher::new();
        (media_type, &body).hash(&mut hasher);
        Self { body: body.into(), media_type, digest: format!("{:016X}", hasher.finish()) }
    }

    pub(super) fn digest(&self) -> &str {
        &self.digest
    }

    /// The document, or 304 for a client that has it.
    pub(super) fn answer(&self, headers: &HeaderMap) -> Response {
        let etag = format!("\"{}\"", self.digest);
        let known = headers.get_all(IF_NONE_MATCH).into_iter().filter_map(|value| value.to_str().ok());
        let mut known =
            known.flat_map(|value| value.split(',')).map(|tag| tag.trim().trim_start_matches("W/"));
        let mut answer = if known.any(|tag| tag == etag || tag == "*") {
            StatusCode::NOT_MODIFIED.into_response()
        } else {
            let media_type = HeaderValue::from_static(self.media_type);
            ([(CONTENT_TYPE, media_type)], self.body.clone()).into_response()
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

/// A static object in every encoding, in the order of [`Encoding::ALL`].
#[derive(Debug, Clone)]
pub(super) struct EncodedObject([Document; 3]);

impl EncodedObject {
    /// The objects contain only strings, which always encode; a test encodes all of them.
    pub(super) fn new(object: &impl Object) -> Self {
        Self(Encoding::ALL.map(|encoding| {
            Document::new(encoding.media_type(), encode(encoding, object).unwrap_or_default())
        }))
    }

    #[cfg(test)]
    pub(super) fn bodies(&self) -> [&[u8]; 3] {
        self.0.each_ref().map(|document| &document.body[..])
    }

    /// The document in `encoding`, or 304.
    pub(super) fn answer_in(&self, encoding: Encoding, headers: &HeaderMap) -> Response {
        let [json, yaml, protobuf] = &self.0;
        match encoding {
            Encoding::Json => json.answer(headers),
            Encoding::Yaml => yaml.answer(headers),
            Encoding::Protobuf => protobuf.answer(headers),
        }
    }
}

/// What is served at one path.
#[derive(Debug, Clone)]
pub(super) enum Resource {
    /// JSON, whatever the client accepts.
    AnyAccept(Document),
    /// JSON, only for clients that accept it.
    Json(Document),
    /// An object in the encoding that the client prefers.
    Object(EncodedObject),
}

impl Resource {
    pub(super) fn answer(&self, headers: &HeaderMap) -> Response {
        match self {
            Self::AnyAccept(document) => document.answer(headers),
            Self::Json(document) if negotiation::accepts_json(headers) => document.answer(headers),
            Self::Json(_) => not_acceptable(&[Encoding::Json.media_type()]).into_response(),
            Self::Object(object) => match negotiation::encoding(headers) {
                Some(encoding) => object.answer_in(encoding, headers),
                None => not_acceptable(&Encoding::ALL.map(Encoding::media_type)).into_response(),
            },
        }
    }
}
