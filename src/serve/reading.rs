//! How any read of data is answered, whatever it asks for: by the holder from its own decisions, by another instance with
//! what the holder answers, and with the last state that it published when the holder does not answer.

use axum::response::{IntoResponse, Response};
use http::header::WARNING;
use http::{HeaderMap, HeaderValue, Uri};

use super::observe::AuditId;
use super::state::AppState;
use super::status::Status;
use crate::engine::Published;

/// A read that was understood.
pub(crate) trait Read {
    /// The answer from `published`, as bytes.
    fn render(&self, state: &AppState, published: &Published) -> Result<Response, Status>;
}

/// The answer to `read`, which came as `uri` with `headers`.
pub(crate) async fn answer(
    state: &AppState,
    uri: &Uri,
    headers: &HeaderMap,
    audit: &AuditId,
    read: &impl Read,
) -> Response {
    if state.decides() {
        let published = state.current().await;
        return read.render(state, &published).into_response();
    }
    match state.forward(uri, headers, audit).await {
        Ok(answer) => answer,
        Err(error) => {
            tracing::debug!(%error, "answering from the last published state");
            match read.render(state, &state.newest()) {
                Err(status) => status.with_note(&error).into_response(),
                Ok(mut answer) => {
                    warn(answer.headers_mut(), &format!("{error}; this is the last state it published"));
                    answer
                }
            }
        }
    }
}

/// Adds a `Warning`, which kubectl prints and the HPA ignores.
pub(crate) fn warn(headers: &mut HeaderMap, text: &str) {
    let plain: String = text.chars().filter(|c| matches!(c, ' '..='~') && !matches!(c, '"' | '\\')).collect();
    if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{plain}\"")) {
        headers.append(WARNING, value);
    }
}
