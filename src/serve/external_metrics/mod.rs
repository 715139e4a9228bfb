//! `external.metrics.k8s.io/v1beta1`: what the HPA controller asks. Renders what was published; computes nothing.

mod answer;
mod beginning;
mod lexer;
pub(crate) mod metric;
mod quantity;
pub(crate) mod query;
pub(crate) mod selector;
mod show;

use axum::extract::{Extension, Path, Request, State};
use axum::response::{IntoResponse, Response};
use http::header::WARNING;
use http::{HeaderMap, HeaderValue, Uri};

use self::answer::{Question, answer};
pub(crate) use self::beginning::{Beginning, WaitsFor};
use self::selector::Selector;
use super::accept::Representation;
use super::observe::AuditId;
use super::represent;
use super::state::{AddsUp, AppState};
use super::status::Status;
use crate::engine::Published;

/// `GET /apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{metric}`: computed by the holder, forwarded to
/// it by the others; the last state that is known here when it doesn't answer.
pub(crate) async fn get(
    State(state): State<AppState>,
    Path((namespace, metric)): Path<(String, String)>,
    Extension(audit): Extension<AuditId>,
    request: Request,
) -> Response {
    let read = match Read::of(request.headers(), request.uri(), &namespace, &metric) {
        Ok(read) => read,
        Err(refusal) => return refusal.into_response(),
    };
    if state.decides() {
        let published = state.current().await;
        return render(&state, &published, &read).into_response();
    }
    match state.forward(request.uri(), request.headers(), &audit).await {
        Ok(answer) => answer,
        Err(error) => {
            tracing::debug!(%error, "answering from the last published state");
            match render(&state, &state.newest(), &read) {
                Err(status) => status.with_note(&error).into_response(),
                Ok(mut answer) => {
                    warn(answer.headers_mut(), &format!("{error}; this is the last state it published"));
                    answer
                }
            }
        }
    }
}

/// A read that can be answered.
pub(crate) struct Read<'a> {
    representation: Representation,
    selector: Selector,
    namespace: &'a str,
    metric: &'a str,
}

impl<'a> Read<'a> {
    /// Understands a request, or says why not.
    pub(crate) fn of(
        headers: &HeaderMap,
        uri: &Uri,
        namespace: &'a str,
        metric: &'a str,
    ) -> Result<Self, Status> {
        let representation = represent::asked(headers)?;
        Ok(Self { representation, selector: query::selector(uri)?, namespace, metric })
    }
}

/// The answer from `published`, as bytes.
pub(crate) fn render(state: &AppState, published: &Published, read: &Read<'_>) -> Result<Response, Status> {
    let &Read { representation, ref selector, namespace, metric } = read;
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
    let mut response = represent::show(representation, &list)?;
    state.freshness().observe(metric::GROUP, list.ages());
    if let Some(warning) = list.warning() {
        warn(response.headers_mut(), &warning);
        let (selector, variants) = (selector.to_string(), list.variants());
        state.notices().adds_up(&AddsUp { namespace, metric, selector: &selector, variants: &variants });
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
