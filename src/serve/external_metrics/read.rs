//! `external.metrics.k8s.io/v1beta1`: what the HPA controller asks. Renders what was published; computes nothing.

mod answer;
mod beginning;
pub(crate) mod fields;
mod lexer;
pub(crate) mod metric;
pub(crate) mod quantity;
pub(crate) mod query;
mod refusal;
pub(crate) mod selector;
pub(crate) mod show;

use axum::extract::Request;
use axum::response::Response;
use http::{HeaderMap, Uri};

use self::answer::answer;
pub(crate) use self::answer::{Item, Question, numbers};
pub(crate) use self::beginning::{Beginning, WaitsFor};
use self::metric::GROUP;
pub(crate) use self::refusal::unknown_metric;
use self::selector::Selector;
use super::accept::Representation;
use super::observe::AuditId;
use super::state::{AddsUp, AppState};
use super::status::Status;
use super::{reading, represent};
use crate::engine::Published;

/// `GET /apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{metric}`: computed by the holder, forwarded to
/// it by the others; the last state that is known here when it doesn't answer.
pub(crate) async fn get(
    state: &AppState,
    (namespace, metric): &(String, String),
    audit: &AuditId,
    request: Request,
) -> Result<Response, Status> {
    let read = Read::of(request.headers(), request.uri(), namespace, metric)?;
    reading::answer(state, request.uri(), request.headers(), audit, &read).await
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
        let selector = query::options(GROUP, uri)?.of_variants();
        Ok(Self { representation, selector, namespace, metric })
    }
}

impl reading::Read for Read<'_> {
    fn render(&self, state: &AppState, published: &Published) -> Result<Response, Status> {
        let &Self { representation, ref selector, namespace, metric } = self;
        let (beginning, view) = (state.beginning(), || state.view());
        let question = Question {
            group: GROUP,
            namespace,
            metric,
            selector,
            controller_instance: state.controller_instance(),
            now: state.now(),
            max_stale: state.max_stale(),
            beginning: &beginning,
            view: &view,
        };
        let list = answer(published, &question)?;
        let mut response = represent::show(representation, &list)?;
        state.freshness().observe(GROUP, list.ages());
        if let Some(warning) = list.warning() {
            reading::warn(response.headers_mut(), &warning);
            let (selector, variants) = (selector.to_string(), list.variants());
            state.notices().adds_up(&AddsUp { namespace, metric, selector: &selector, variants: &variants });
        }
        Ok(response)
    }
}
