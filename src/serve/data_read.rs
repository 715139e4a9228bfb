//! How any read of data is answered, whatever it asks for: by the holder from its own decisions, by another instance with
//! what the holder answers, and with the last state that it published when the holder does not answer.

use axum::response::Response;
use http::header::WARNING;
use http::{HeaderMap, HeaderValue, Uri};

use super::observe::AuditId;
use super::state::AppState;
use super::status::{Reason, Status};
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
        let published = state.current().await;
        if state.may_answer(&published) {
            return read.render(state, &published);
        }
        if let Some(published) = state.first_of_term().await {
            return read.render(state, &published);
        }
        if state.decides() {
            let next = "it has just got the lease, and what the last holder published is being read; ask again in a second";
            return Err(not_ours(next));
        }
    }
    let error = match state.forward(uri, headers, audit).await {
        Ok(answer) => return Ok(answer),
        Err(error) => error,
    };
    tracing::debug!(%error, "answering from the last published state");
    let newest = state.newest();
    if !state.may_answer(&newest) {
        let next = "its lease ran out and who decides now is not known here; check that this server reaches the API server";
        // Others may know. The proxy of an API server keeps one connection for all its reads, to whichever instance it reached
        // first: without this it would go on asking here.
        return Err(not_ours(next).with_note(&error).closing());
    }
    let mut answer = read.render(state, &newest).map_err(|status| status.with_note(&error))?;
    warn(answer.headers_mut(), &format!("{error}; this is the last state it published"));
    Ok(answer)
}

/// The refusal to answer with a number that this instance made in an earlier term: who has decided since may say another one.
fn not_ours(next: &str) -> Status {
    let message = format!("the last number that this instance made is not answered any more: {next}");
    Status::new(Reason::ServiceUnavailable, message)
}

/// Adds a `Warning`, which kubectl prints and the HPA ignores.
pub(crate) fn warn(headers: &mut HeaderMap, text: &str) {
    let plain: String = text.chars().filter(|c| matches!(c, ' '..='~') && !matches!(c, '"' | '\\')).collect();
    if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{plain}\"")) {
        headers.append(WARNING, value);
    }
}
