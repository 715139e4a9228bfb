//! `custom.metrics.k8s.io`: the metrics of `external_metrics` as metrics of the objects that they are decided for. For HPAs of
//! type Object, where another server owns the external metrics. Beside them, the metrics of objects that rules make.

mod answer;
mod by_rule;
mod encode;
mod label_selector;
mod object_path;

use axum::response::Response;
use http::request::Parts;

use self::answer::{MetricValueList, ObjectQuery, answer, field_requirements};
pub(crate) use self::by_rule::RootRead;
use self::encode::Encoded;
use self::label_selector::label_selector;
pub(crate) use self::object_path::ObjectPath;
use self::object_path::{Resource, Version, not_found_message};
use super::auth::{Attributes, attributes_verb};
use super::data_read::ReadState;
use super::encoding::negotiation::Representation;
use super::encoding::response::{representation, respond};
use super::encoding::{Reason, Status};
use super::external_metrics::query::{FieldRequirement, ListOptions, metric_label_selector};
use super::external_metrics::{
    ForwardedValue, ForwardedValues, Metric, MetricRead, ReadContext, ReadScope, VariantSelector,
};
use super::middleware::AuditId;
use super::paths::{CUSTOM_GROUP, CUSTOM_OBJECT, CUSTOM_PREFIX, DESCRIBED_RESOURCES, MAX_NAME_BYTES};
use super::request_metrics::observe_ages;
use crate::engine::Published;

/// A valid read.
pub(crate) struct Read {
    representation: Representation,
    query: ObjectQuery,
}

impl Read {
    fn respond(&self, state: &ReadState, list: &MetricValueList<'_>) -> Result<Response, Status> {
        let response = respond(self.representation, &Encoded(list))?;
        observe_ages(&state.evidence_age.custom, list.evidence(), list.now);
        Ok(response)
    }
}

impl MetricRead for Read {
    type Path = ObjectPath;

    /// The metric is a subresource of the object. 404 for an unknown version.
    fn attributes(path: &ObjectPath, request: &Parts) -> Result<Attributes, Status> {
        Ok(Attributes::Resource {
            verb: attributes_verb(&request.method, true, false),
            group: CUSTOM_GROUP,
            version: path.version()?.as_str(),
            resource: path.resource.clone(),
            subresource: path.metric.clone(),
            namespace: path.namespace.clone(),
            name: path.name.clone(),
        })
    }

    async fn beside_variants(
        (request, _): (&Parts, &AuditId),
        path: &ObjectPath,
        state: &ReadState,
    ) -> Option<Result<Response, Status>> {
        let rules = state.rules.as_ref().filter(|_| Metric::find(&path.metric).is_none())?;
        Some(by_rule::answer(request, path, rules, state.reader.now()).await)
    }

    fn parse(request: &Parts, path: ObjectPath) -> Result<Self, Status> {
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

    fn render(&self, state: &ReadState, published: &Published) -> Result<Response, Status> {
        let context = ReadContext::new(state);
        let fields = field_requirements(&self.query, &context)?;
        let list = answer(published, &self.query, &fields, &context)?;
        self.respond(state, &list)
    }

    fn render_values(&self, state: &ReadState, published: &Published) -> Result<Response, Status> {
        let context = ReadContext::new(state);
        let fields = field_requirements(&self.query, &context)?;
        let list = answer(published, &self.query, &fields, &context)?;
        let values = list.items.iter().map(|item| ForwardedValue::new(&item.value, Some(&item.name)));
        Ok(ForwardedValues { values: values.collect() }.into_response())
    }

    fn render_merged(&self, state: &ReadState, values: &[ForwardedValue]) -> Result<Response, Status> {
        self.respond(state, &MetricValueList::from_forwarded(&self.query, values, state.reader.now())?)
    }

    fn scope(&self, state: &ReadState) -> ReadScope<'_> {
        let ObjectPath { namespace, name, .. } = &self.query.path;
        let mut selector = VariantSelector { labels: &self.query.selectors, fields: &[] };
        if self.query.path.is_all() {
            if self.query.resource == Resource::VariantAutoscaling {
                selector.fields = &self.query.fields;
            }
            return ReadScope::of_selector(state, namespace, selector);
        }
        ReadScope::of_object(state, namespace, selector, |known| match self.query.resource.target(name) {
            None => known.is_ours(name),
            Some(target) => !known.view.claims_on(namespace, &target).is_empty(),
        })
    }

    fn mismatch(&self, value: &ForwardedValue) -> Option<&'static str> {
        let selector = VariantSelector { labels: &self.query.selectors, fields: &[] };
        let path = &self.query.path;
        let is_described = value.object.as_ref().is_some_and(|object| {
            let holds = |field: &FieldRequirement| field.holds(object, &path.namespace);
            let is_selected =
                if path.is_all() { self.query.fields.iter().all(holds) } else { *object == path.name };
            is_selected
                && (self.query.resource != Resource::VariantAutoscaling || *object == value.variant.name)
        });
        if !is_described {
            return Some("it has an object that was not requested");
        }
        (!selector.matches(value.labels())).then_some("it has a variant that the selector does not select")
    }

    /// A named object belongs to one installation, and there is no sum.
    fn selects_nothing(&self, error: &Status) -> bool {
        error.reason() == Reason::NotFound && (error.name().is_empty() || !self.query.path.is_all())
    }

    fn error(&self, reason: Reason, cause: &str) -> Status {
        let ObjectPath { namespace, resource, name, metric, .. } = &self.query.path;
        let message =
            format!("{metric} of {resource} {name} in namespace {namespace} cannot be read: {cause}");
        Status::new(reason, message).about(CUSTOM_GROUP, metric.as_str(), name.as_str())
    }
}

/// Answers any other path below a version: one that is too short, or one of objects without metrics.
pub(crate) fn unknown_path(version: &str, rest: &str) -> Status {
    let parts: Vec<_> = rest.split('/').collect();
    let is_valid = Version::find(version).is_some() && parts.iter().all(|part| part.len() <= MAX_NAME_BYTES);
    match parts[..] {
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
    }
}

/// The error for an object that has no metrics.
fn not_served(metric: &str, resource: &str, name: &str) -> Status {
    let not_found = not_found_message(metric, resource, name);
    let [served @ .., last] = DESCRIBED_RESOURCES;
    let served = served.join(", ");
    let message = format!("{not_found}: only namespaced {served} and {last} have metrics here");
    Status::new(Reason::NotFound, message).about(CUSTOM_GROUP, metric, name)
}
