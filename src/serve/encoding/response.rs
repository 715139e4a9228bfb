//! Answers as they are sent: an object in the representation that the client accepts, and, as the last step, an error in its
//! encoding and a large body compressed for a client that accepts gzip.

use std::fmt;
use std::io::{BufWriter, IntoInnerError, Write as _};

use axum::body::{Body, Bytes, HttpBody as _};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, VARY};
use http::{HeaderMap, HeaderValue};
use http_body_util::BodyExt;

use super::negotiation::{self, Encoding, Representation, TableVersion};
use super::object::{Object, encode, encode_text};
use super::status::{Reason, Status, internal_error};

/// The representations of data: the object itself first, then tables.
const AVAILABLE: [&str; 5] = [
    Encoding::Json.media_type(),
    Encoding::Yaml.media_type(),
    Encoding::Protobuf.media_type(),
    Representation { encoding: Encoding::Json, table: Some(TableVersion::V1) }.media_range(),
    Representation { encoding: Encoding::Json, table: Some(TableVersion::V1Beta1) }.media_range(),
];

/// The representation for the client of a data read; 406 for one that accepts none that is available.
pub(crate) fn representation(headers: &HeaderMap) -> Result<Representation, Status> {
    negotiation::representation(headers).ok_or_else(|| not_acceptable(&AVAILABLE))
}

/// The error for a client that accepts none of the `available` media types.
pub(crate) fn not_acceptable(available: &[&str]) -> Status {
    let available = available.join(", ");
    let message = format!("only the following media types are accepted: {available}");
    Status::new(Reason::NotAcceptable, message)
}

/// Answers with `object`; 406 for a client that wants a table when the object has none.
pub(crate) fn respond(representation: Representation, object: &impl Object) -> Result<Response, Status> {
    let encoding = representation.encoding;
    let body = match representation.table {
        None => encode(encoding, object),
        Some(version) => {
            let table =
                object.table().ok_or_else(|| not_acceptable(&Encoding::ALL.map(Encoding::media_type)))?;
            encode_text(encoding, &table.versioned(version))
        }
    };
    let body = body.map_err(|error| internal_error(&error))?;
    let media_type = HeaderValue::from_static(encoding.media_type());
    Ok(([(CONTENT_TYPE, media_type), (VARY, HeaderValue::from_static("Accept"))], body).into_response())
}

/// The smallest body that is compressed, in bytes, as in the API servers written in Go: below this, compressing takes
/// longer than sending.
pub(crate) const MIN_COMPRESSED_BYTES: u64 = 128 * 1024;

/// Bytes that are compressed before other tasks get a turn. They take well below a millisecond.
const YIELD_BYTES: usize = 64 * 1024;

/// `Accept` and `Accept-Encoding` of a request. Parsed only for an error or a large answer.
#[derive(Debug)]
pub(crate) struct ResponseFormat {
    headers: HeaderMap,
}

impl ResponseFormat {
    pub(crate) fn from_request(request: &HeaderMap) -> Self {
        let mut headers = HeaderMap::with_capacity(2);
        for name in [ACCEPT, ACCEPT_ENCODING] {
            for value in request.get_all(&name) {
                headers.append(&name, value.clone());
            }
        }
        Self { headers }
    }

    /// The answer as it is sent.
    pub(crate) async fn apply(self, mut answer: Response) -> Response {
        if let Some(status) = answer.extensions_mut().remove::<Status>() {
            return reencode(&status, negotiation::error_encoding(&self.headers), answer);
        }
        if answer.body().size_hint().exact().is_none_or(|size| size < MIN_COMPRESSED_BYTES) {
            return answer;
        }
        vary_by_encoding(answer.headers_mut());
        if negotiation::accepts_gzip(&self.headers) && !answer.headers().contains_key(CONTENT_ENCODING) {
            compress(answer).await
        } else {
            answer
        }
    }
}

/// `Vary` of an answer that depends on `Accept-Encoding`.
pub(crate) const BY_ENCODING: HeaderValue = HeaderValue::from_static("Accept-Encoding");

/// Adds `Vary: Accept-Encoding`. A forwarded answer has it already.
fn vary_by_encoding(headers: &mut HeaderMap) {
    if !headers.get_all(VARY).into_iter().any(|value| *value == BY_ENCODING) {
        headers.append(VARY, BY_ENCODING);
    }
}

/// The error in `encoding`, with the other headers of the `json` answer.
fn reencode(status: &Status, encoding: Encoding, json: Response) -> Response {
    let mut answer = match encoding {
        Encoding::Json => json,
        Encoding::Yaml | Encoding::Protobuf => {
            let mut answer = status.encoded(encoding);
            for (name, value) in json.headers() {
                if name != CONTENT_LENGTH && !answer.headers().contains_key(name) {
                    answer.headers_mut().append(name.clone(), value.clone());
                }
            }
            answer
        }
    };
    answer.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    answer
}

/// Compresses in memory, so that the length is known.
async fn compress(answer: Response) -> Response {
    let (mut head, body) = answer.into_parts();
    // The size is known, so the body is in memory and neither waits nor fails.
    let plain = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let body = match gzip(&plain).await {
        Ok(compressed) => {
            head.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            head.headers.remove(CONTENT_LENGTH);
            Bytes::from(compressed)
        }
        Err(error) => {
            tracing::error!(%error, "an answer could not be compressed; this is a bug");
            plain
        }
    };
    Response::from_parts(head, Body::from(body))
}

/// Compresses at the fast level and yields to other tasks in between.
pub(crate) async fn gzip(plain: &[u8]) -> std::io::Result<Vec<u8>> {
    // Lists of metrics shrink to a tenth or less.
    let mut encoder = GzEncoder::new(Vec::with_capacity(plain.len() / 8), Compression::fast());
    for chunk in plain.chunks(YIELD_BYTES) {
        encoder.write_all(chunk)?;
        tokio::task::yield_now().await;
    }
    encoder.finish()
}

/// A text that is compressed while it is written, so that it is never in memory as a whole.
#[derive(Debug)]
pub(crate) struct GzipText(BufWriter<GzEncoder<Vec<u8>>>);

impl Default for GzipText {
    fn default() -> Self {
        Self(BufWriter::new(GzEncoder::new(Vec::new(), Compression::fast())))
    }
}

impl fmt::Write for GzipText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write_all(text.as_bytes()).map_err(|_| fmt::Error)
    }
}

impl GzipText {
    /// The answer with what was written.
    pub(crate) fn into_response(self, content_type: HeaderValue) -> std::io::Result<Response> {
        let compressed = self.0.into_inner().map_err(IntoInnerError::into_error)?.finish()?;
        let encoding = HeaderValue::from_static("gzip");
        let headers = [(CONTENT_TYPE, content_type), (CONTENT_ENCODING, encoding), (VARY, BY_ENCODING)];
        Ok((headers, compressed).into_response())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use axum::response::IntoResponse;
    use flate2::read::GzDecoder;

    use super::*;

    async fn finished(size: usize, gzip: bool) -> (HeaderMap, Bytes) {
        let body: Vec<u8> = (0..size).map(|at| b'a' + u8::try_from(at % 26).unwrap()).collect();
        let mut headers = HeaderMap::new();
        if gzip {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        }
        let format = ResponseFormat::from_request(&headers);
        let (head, body) = format.apply(body.into_response()).await.into_parts();
        (head.headers, body.collect().await.unwrap().to_bytes())
    }

    #[tokio::test]
    async fn only_a_large_body_is_compressed_and_only_when_asked() {
        let large = usize::try_from(MIN_COMPRESSED_BYTES).unwrap();
        for (size, gzip, compressed) in [(large - 1, true, false), (large, true, true), (large, false, false)]
        {
            let (headers, body) = finished(size, gzip).await;
            assert_eq!(headers.contains_key(CONTENT_ENCODING), compressed, "{size} {gzip}");
            assert_eq!(headers.contains_key(VARY), size >= large, "a cache must know either way");
            let mut plain = Vec::new();
            if compressed {
                GzDecoder::new(&body[..]).read_to_end(&mut plain).unwrap();
            } else {
                plain.extend_from_slice(&body);
            }
            assert_eq!((plain.len(), plain.get(27)), (size, Some(&b'b')));
        }
    }
}
