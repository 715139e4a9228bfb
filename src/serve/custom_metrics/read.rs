//! `GET /apis/custom.metrics.k8s.io/{version}/namespaces/{namespace}/{resource}/{name}/{metric}`.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::response::{IntoResponse, Response};
use http::request::Parts;

use super::answer::{ObjectQuery, answer, field_rules};
use super::label_selector::label_selector;
use super::object_path::{ObjectPath, Resource, Version, not_found_message};
use crate::engine::Published;
use crate::serve::data_read::{ReadState, Source};
use crate::serve::encoding::negotiation::Representation;
use crate::serve::encoding::response::{representation, respond};
use crate::serve::encoding::{Reason, Status};
use crate::serve::external_metrics::ReadContext;
use crate::serve::external_metrics::query::{ListOptions, metric_label_selector};
use crate::serve::middleware::AuditId;
use crate::serve::paths::{CUSTOM_GROUP, CUSTOM_OBJECT, CUSTOM_PREFIX, MAX_NAME_BYTES};

/// Answers an authorised client.
pub(crate) async fn get(
    state: &ReadState,
    path: &ObjectPath,
    request: &Parts,
    audit: &AuditId,
) -> Result<Response, Status> {
    let read = Read::parse(request, path)?;
    match state.source(request, audit).await? {
        Source::Forwarded(answer) => Ok(answer),
        Source::Published(evidence) => evidence.complete(read.render(state, &evidence.published)),
    }
}

/// Answers another instance, which has authorised its client.
pub(crate) async fn get_for_instance(
    state: &ReadState,
    path: &ObjectPath,
    request: &Parts,
) -> Result<Response, Status> {
    let read = Read::parse(request, path);
    state.answer_instance(read, |read, published| read.render(state, published)).await
}

/// A valid read.
struct Read<'a> {
    representation: Representation,
    query: ObjectQuery<'a>,
}

impl<'a> Read<'a> {
    fn parse(request: &Parts, path: &'a ObjectPath) -> Result<Self, Status> {
        let representation = representation(&request.headers)?;
        let version = path.version()?;
        let ListOptions { labels, fields } = ListOptions::parse(CUSTOM_GROUP, &request.uri)?;
        let series = metric_label_selector(&request.uri)?;
        let resource = Resource::find(&path.resource)
            .ok_or_else(|| not_served(&path.metric, &path.resource, &path.name))?;
        let series_object = Some(&series).filter(|series| !series.is_empty());
        let series_object = series_object.and_then(label_selector);
        // The label selector selects among all objects; a named object is selected by its name.
        let selectors = if path.is_all() { vec![labels, series] } else { vec![series] };
        let query = ObjectQuery { path, version, resource, selectors, fields, series_object };
        Ok(Self { representation, query })
    }

    fn render(&self, state: &ReadState, published: &Published) -> Result<Response, Status> {
        let context = ReadContext::new(state);
        let fields = field_rules(&self.query, &context)?;
        let list = answer(published, &self.query, &fields, &context)?;
        let response = respond(self.representation, &list)?;
        state.evidence_age.observe_custom(list.ages());
        Ok(response)
    }
}

/// Answers any other path below a version: one that is too short, or one of objects without metrics.
pub(crate) async fn unknown_path(path: Result<Path<(String, String)>, PathRejection>) -> Response {
    let Ok(Path((version, rest))) = path else { return Status::invalid_path().into_response() };
    let parts: Vec<_> = rest.split('/').collect();
    let is_valid = Version::find(&version).is_some() && parts.iter().all(|part| part.len() <= MAX_NAME_BYTES);
    let error = match parts[..] {
        ["namespaces", namespace, "metrics", metric] if is_valid => {
            not_served(metric, "namespaces", namespace)
        }
        ["namespaces", _, _] | ["namespaces", _, _, _] if is_valid => {
            let message =
                format!("invalid request path: the served paths are {CUSTOM_PREFIX}{CUSTOM_OBJECT}");
            Status::new(Reason::BadRequest, message)
        }
        [resource, name, metric] if is_valid => not_served(metric, resource, name),
        _ => Status::no_such_resource(),
    };
    error.into_response()
}

/// The error for an object that has no metrics.
fn not_served(metric: &str, resource: &str, name: &str) -> Status {
    let not_found = not_found_message(metric, resource, name);
    let message = format!("{not_found}: only namespaced {} have metrics here", Resource::SERVED);
    Status::new(Reason::NotFound, message).about(CUSTOM_GROUP, metric, name)
}
