//! `external.metrics.k8s.io/v1beta1`: what the HPA controller asks. Renders what was published; computes nothing.

mod answer;
mod beginning;
mod lexer;
pub(crate) mod metric;
mod quantity;
pub(crate) mod query;
mod selector;

use axum::extract::{Extension, Path, Request, State};
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, WARNING};
use http::{HeaderMap, HeaderValue, Uri};

use self::answer::{Question, answer};
pub(crate) use self::beginning::{Beginning, WaitsFor};
use self::selector::Selector;
use super::accept;
use super::discovery::not_acceptable;
use super::observe::AuditId;
use super::state::AppState;
use super::status::{JSON, Status};
use crate::engine::Published;

/// `GET /apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{metric}`: computed by the holder, forwarded to
/// it by the others; the last state that is known here when it doesn't answer.
pub(crate) async fn get(
    State(state): State<AppState>,
    Path((namespace, metric)): Path<(String, String)>,
    Extension(audit): Extension<AuditId>,
    request: Request,
) -> Response {
    let selector = match understood(request.headers(), request.uri()) {
        Ok(selector) => selector,
        Err(refusal) => return refusal.into_response(),
    };
    if state.decides() {
        let published = state.current().await;
        return render(&state, &published, &namespace, &metric, &selector).into_response();
    }
    match state.forward(request.uri(), &audit).await {
        Ok(answer) => answer,
        Err(error) => {
            tracing::debug!(%error, "answering from the last published state");
            match render(&state, &state.newest(), &namespace, &metric, &selector) {
                Err(status) => status.with_note(&error).into_response(),
                Ok(mut answer) => {
                    warn(answer.headers_mut(), &format!("{error}; this is the last state it published"));
                    answer
                }
            }
        }
    }
}

/// The selector of a request that can be answered, else the refusal.
pub(crate) fn understood(headers: &HeaderMap, uri: &Uri) -> Result<Selector, Status> {
    if !accept::takes_json(headers) {
        return Err(not_acceptable());
    }
    query::selector(uri)
}

/// The answer from `published`, as bytes.
pub(crate) fn render(
    state: &AppState,
    published: &Published,
    namespace: &str,
    metric: &str,
    selector: &Selector,
) -> Result<Response, Status> {
    let beginning = state.beginning();
    let question = Question {
        namespace,
        metric,
        selector,
        controller_instance: state.controller_instance(),
        now: state.now(),
        max_stale: state.max_stale(),
        beginning: &beginning,
    };
    let list = answer(published, &question)?;
    let body = serde_json::to_vec(&list).map_err(|error| super::internal_error(&error))?;
    let mut response = ([(CONTENT_TYPE, JSON)], body).into_response();
    if let Some(warning) = list.warning() {
        warn(response.headers_mut(), &warning);
    }
    Ok(response)
}

/// Adds a `Warning`, which kubectl prints and the HPA ignores.
fn warn(headers: &mut HeaderMap, text: &str) {
    let plain: String = text.chars().filter(|c| matches!(c, ' '..='~') && !matches!(c, '"' | '\\')).collect();
    if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{plain}\"")) {
        headers.append(WARNING, value);
    }
}
