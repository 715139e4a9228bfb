//! `custom.metrics.k8s.io`: the metrics of `external_metrics` as metrics of the objects that they are decided for. For HPAs of
//! type Object, where another server owns the external metrics.

mod answer;
mod encode;
mod label_selector;
mod object_path;

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::response::{IntoResponse, Response};
use http::request::Parts;

use self::answer::{ObjectQuery, answer, field_requirements};
use self::label_selector::label_selector;
pub(crate) use self::object_path::ObjectPath;
use self::object_path::{Resource, Version, not_found_message};
use super::data_read::ReadState;
use super::encoding::negotiation::Representation;
use super::encoding::response::{representation, respond};
use super::encoding::{Reason, Status};
use super::external_metrics::ReadContext;
use super::external_metrics::query::{ListOptions, metric_label_selector};
use super::paths::{CUSTOM_GROUP, CUSTOM_OBJECT, CUSTOM_PREFIX, DESCRIBED_RESOURCES, MAX_NAME_BYTES};
use super::request_metrics::observe_ages;
use crate::engine::Published;

/// A valid read.
pub(crate) struct Read<'a> {
    representation: Representation,
    query: ObjectQuery<'a>,
}

impl<'a> Read<'a> {
    pub(crate) fn parse(request: &Parts, path: &'a ObjectPath) -> Result<Self, Status> {
        let representation = representation(&request.headers)?;
        let version = path.version()?;
        let ListOptions { labels, fields } = ListOptions::parse(CUSTOM_GROUP, &request.uri)?;
        let series = metric_label_selector(&request.uri)?;
        let resource = Resource::find(&path.resource)
            .ok_or_else(|| not_served(&path.metric, &path.resource, &path.name))?;
        let series_selector = Some(&series).filter(|series| !series.is_empty());
        let series_selector = series_selector.and_then(label_selector);
        // The label selector selects among all objects; a named object is selected by its name.
        let selectors = if path.is_all() { vec![labels, series] } else { vec![series] };
        let query = ObjectQuery { path, version, resource, selectors, fields, series_selector };
        Ok(Self { representation, query })
    }

    pub(crate) fn render(&self, state: &ReadState, published: &Published) -> Result<Response, Status> {
        let context = ReadContext::new(state);
        let fields = field_requirements(&self.query, &context)?;
        let list = answer(published, &self.query, &fields, &context)?;
        let response = respond(self.representation, &list)?;
        observe_ages(&state.evidence_age.custom, list.evidence(), list.now);
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
    let [served @ .., last] = DESCRIBED_RESOURCES;
    let served = served.join(", ");
    let message = format!("{not_found}: only namespaced {served} and {last} have metrics here");
    Status::new(Reason::NotFound, message).about(CUSTOM_GROUP, metric, name)
}
