//! `GET /apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{metric}`.

use std::slice;

use axum::response::Response;
use http::request::Parts;
use serde::Deserialize;

use super::answer::answer;
use super::context::{MetricQuery, ReadContext};
use super::query::{ListOptions, is_watch};
use super::variant_selector::VariantSelector;
use crate::engine::Published;
use crate::serve::auth::{Attributes, attributes_verb};
use crate::serve::data_read::{ReadState, Source, add_warning};
use crate::serve::encoding::Status;
use crate::serve::encoding::negotiation::Representation;
use crate::serve::encoding::response::{representation, respond};
use crate::serve::middleware::AuditId;
use crate::serve::paths::{EXTERNAL_GROUP, EXTERNAL_VERSION};
use crate::serve::ports::AmbiguousSelector;

/// The path parameters of a read.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct MetricPath {
    namespace: String,
    metric: String,
}

impl MetricPath {
    /// What is authorised: reading an external metric is `list`.
    pub(crate) fn attributes(&self, request: &Parts) -> Attributes {
        Attributes::Resource {
            verb: attributes_verb(&request.method, false, is_watch(&request.uri)),
            group: EXTERNAL_GROUP,
            version: EXTERNAL_VERSION,
            resource: self.metric.clone(),
            subresource: String::new(),
            namespace: self.namespace.clone(),
            name: String::new(),
        }
    }
}

/// Answers an authorised client.
pub(crate) async fn get(
    state: &ReadState,
    path: &MetricPath,
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
    path: &MetricPath,
    request: &Parts,
) -> Result<Response, Status> {
    let read = Read::parse(request, path);
    state.answer_instance(read, |read, published| read.render(state, published)).await
}

/// A valid read.
struct Read<'a> {
    representation: Representation,
    path: &'a MetricPath,
    options: ListOptions,
}

impl<'a> Read<'a> {
    fn parse(request: &Parts, path: &'a MetricPath) -> Result<Self, Status> {
        let representation = representation(&request.headers)?;
        let options = ListOptions::parse(EXTERNAL_GROUP, &request.uri)?;
        Ok(Self { representation, path, options })
    }

    fn render(&self, state: &ReadState, published: &Published) -> Result<Response, Status> {
        let MetricPath { namespace, metric } = self.path;
        let query = MetricQuery {
            group: EXTERNAL_GROUP,
            namespace,
            metric,
            selector: VariantSelector {
                labels: slice::from_ref(&self.options.labels),
                fields: &self.options.fields,
            },
            context: &ReadContext::new(state),
        };
        let list = answer(published, &query)?;
        let mut response = respond(self.representation, &list)?;
        state.evidence_age.observe_external(list.ages());
        if let Some(warning) = list.warning() {
            add_warning(response.headers_mut(), &warning);
            let selector = query.selector.to_string();
            let variants = list.variants();
            let read = AmbiguousSelector { namespace, metric, selector: &selector, variants: &variants };
            state.events.ambiguous_selector(&read);
        }
        Ok(response)
    }
}
