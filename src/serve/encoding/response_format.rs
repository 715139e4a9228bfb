//! The last step of every answer: a refusal is written in what the client takes, and a large body is compressed for a
//! client that asks for it.

use std::io::Write as _;

use axum::body::{Body, Bytes, HttpBody as _};
use axum::response::Response;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, VARY};
use http::{HeaderMap, HeaderValue};
use http_body_util::BodyExt;

use crate::serve::accept::{self, Encoding};
use crate::serve::status::Status;

/// The smallest body that is compressed, as in the API servers written in Go: below 128 KiB the time costs more than the
/// network.
pub(crate) const LARGE: u64 = 128 * 1024;

/// How much is compressed before others get a turn: 64 KiB take well below a millisecond.
const TURN: usize = 64 * 1024;

/// What a request says about the form of its answer. Read only for a refusal or a large answer.
#[derive(Debug)]
pub(crate) struct Wire {
    accepts: HeaderMap,
}

impl Wire {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut accepts = HeaderMap::with_capacity(2);
        for name in [ACCEPT, ACCEPT_ENCODING] {
            for value in headers.get_all(&name) {
                accepts.append(&name, value.clone());
            }
        }
        Self { accepts }
    }

    /// The answer as it goes out.
    pub(crate) async fn finish(self, mut answer: Response) -> Response {
        if let Some(status) = answer.extensions_mut().remove::<Status>() {
            return rewritten(accept::encoding_of_errors(&self.accepts), &status, answer);
        }
        if answer.body().size_hint().exact().is_none_or(|size| size < LARGE) {
            return answer;
        }
        varies(answer.headers_mut());
        if accept::gzip(&self.accepts) && !answer.headers().contains_key(CONTENT_ENCODING) {
            compressed(answer).await
        } else {
            answer
        }
    }
}

/// Says that the answer depends on `Accept-Encoding`; a forwarded one says so already.
fn varies(headers: &mut HeaderMap) {
    const BY_ENCODING: HeaderValue = HeaderValue::from_static("Accept-Encoding");
    if !headers.get_all(VARY).into_iter().any(|value| *value == BY_ENCODING) {
        headers.append(VARY, BY_ENCODING);
    }
}

/// The refusal in `encoding`, with the other headers that it had.
fn rewritten(encoding: Encoding, status: &Status, json: Response) -> Response {
    let mut answer =
        if encoding == Encoding::Json { json } else { with_headers_of(json, status.encoded(encoding)) };
    answer.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    answer
}

fn with_headers_of(old: Response, mut new: Response) -> Response {
    for (name, value) in old.headers() {
        if name != CONTENT_LENGTH && !new.headers().contains_key(name) {
            new.headers_mut().append(name.clone(), value.clone());
        }
    }
    new
}

/// Compressed in memory, so that its length is known.
async fn compressed(answer: Response) -> Response {
    let (mut head, body) = answer.into_parts();
    // The size is known, so the body is in memory and neither waits nor fails.
    let plain = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let body = match gzip(&plain).await {
        Ok(small) => {
            head.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            head.headers.remove(CONTENT_LENGTH);
            Bytes::from(small)
        }
        Err(error) => {
            tracing::error!(%error, "an answer could not be compressed; this is a bug");
            plain
        }
    };
    Response::from_parts(head, Body::from(body))
}

/// At the fast level, in turns.
pub(crate) async fn gzip(plain: &[u8]) -> std::io::Result<Vec<u8>> {
    // Lists of numbers shrink to a tenth or less.
    let mut encoder = GzEncoder::new(Vec::with_capacity(plain.len() / 8), Compression::fast());
    for part in plain.chunks(TURN) {
        encoder.write_all(part)?;
        tokio::task::yield_now().await;
    }
    encoder.finish()
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
        let wire = Wire::of(&headers);
        let (head, body) = wire.finish(body.into_response()).await.into_parts();
        (head.headers, body.collect().await.unwrap().to_bytes())
    }

    #[tokio::test]
    async fn only_a_large_body_is_compressed_and_only_when_asked() {
        let large = usize::try_from(LARGE).unwrap();
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
