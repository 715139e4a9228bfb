//! How any read of data is answered, whatever it asks for: by the holder from its own decisions, by another instance with
//! what the holder answers, and with the last state that it published when the holder does not answer.

use axum::response::Response;
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
) -> Result<Response, Status> {
    if state.decides() {
        return read.render(state, &*state.current().await);
    }
    let error = match state.forward(uri, headers, audit).await {
        Ok(answer) => return Ok(answer),
        Err(error) => error,
    };
    tracing::debug!(%error, "answering from the last published state");
    let mut answer = read.render(state, &state.newest()).map_err(|status| status.with_note(&error))?;
    warn(answer.headers_mut(), &format!("{error}; this is the last state it published"));
    Ok(answer)
}

/// Adds a `Warning`, which kubectl prints and the HPA ignores.
pub(crate) fn warn(headers: &mut HeaderMap, text: &str) {
    let plain: String = text.chars().filter(|c| matches!(c, ' '..='~') && !matches!(c, '"' | '\\')).collect();
    if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{plain}\"")) {
        headers.append(WARNING, value);
    }
}
