//! One static answer: bytes, type and digest, made once.

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::Value;

use crate::serve::accept::{self, Encoding};
use crate::serve::represent::{self, Show};

/// A static answer.
#[derive(Debug, Clone)]
pub(crate) struct Document {
    body: Bytes,
    media: &'static str,
    /// Digest of type and body: two representations of one path never share it.
    digest: String,
}

impl Document {
    /// A document that exists in JSON alone.
    pub(crate) fn json(media: &'static str, content: &Value) -> Self {
        Self::new(media, content.to_string().into_bytes())
    }

    fn new(media: &'static str, body: Vec<u8>) -> Self {
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

    /// The document to a client that takes JSON, else the refusal.
    pub(crate) fn answer_json(&self, headers: &HeaderMap) -> Response {
        if accept::takes_json(headers) {
            return self.answer(headers);
        }
        represent::not_acceptable(&[Encoding::Json.media()]).into_response()
    }
}

/// A static object in every encoding.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    encodings: [Document; 3],
}

impl Object {
    /// Plain strings: writing them cannot fail, and it is tested that it does not.
    pub(crate) fn new(object: &impl Show) -> Self {
        let document = |encoding: Encoding| {
            Document::new(encoding.media(), represent::encoded(encoding, object).unwrap_or_default())
        };
        Self { encodings: Encoding::ALL.map(document) }
    }

    #[cfg(test)]
    pub(crate) fn bodies(&self) -> [&[u8]; 3] {
        self.encodings.each_ref().map(|document| &document.body[..])
    }

    /// The document in `encoding`, or 304.
    pub(crate) fn answer_in(&self, encoding: Encoding, headers: &HeaderMap) -> Response {
        let [json, yaml, protobuf] = &self.encodings;
        let document = match encoding {
            Encoding::Json => json,
            Encoding::Yaml => yaml,
            Encoding::Protobuf => protobuf,
        };
        document.answer(headers)
    }

    /// The document in the encoding that the client wants most.
    pub(crate) fn answer(&self, headers: &HeaderMap) -> Response {
        match accept::encoding(headers) {
            Some(encoding) => self.answer_in(encoding, headers),
            None => represent::not_acceptable(&Encoding::ALL.map(Encoding::media)).into_response(),
        }
    }
}
