//! `external.metrics.k8s.io/v1beta1`: what the HPA controller reads. Renders published decisions and computes nothing.

mod answer;
mod context;
mod errors;
mod metric;
pub(crate) mod query;
pub(crate) mod selector;

use std::slice;

use axum::response::Response;
use http::request::Parts;
use serde::Deserialize;

use self::answer::answer;
pub(crate) use self::answer::{ExternalMetricValue, items};
pub(crate) use self::context::{MetricQuery, ReadContext, WaitingFor};
pub(crate) use self::errors::unknown_metric;
pub(crate) use self::metric::{Labels, Metric};
pub(crate) use self::query::VariantSelector;
use self::query::{ListOptions, is_watch};
use super::auth::{Attributes, attributes_verb};
use super::data_read::{ReadState, add_warning};
use super::encoding::Status;
use super::encoding::negotiation::Representation;
use super::encoding::response::{representation, respond};
use super::paths::{EXTERNAL_GROUP, EXTERNAL_VERSION};
use super::ports::AmbiguousSelector;
use super::request_metrics::observe_ages;
use crate::engine::Published;

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

/// A valid read.
pub(crate) struct Read<'a> {
    representation: Representation,
    path: &'a MetricPath,
    options: ListOptions,
}

impl<'a> Read<'a> {
    pub(crate) fn parse(request: &Parts, path: &'a MetricPath) -> Result<Self, Status> {
        let representation = representation(&request.headers)?;
        let options = ListOptions::parse(EXTERNAL_GROUP, &request.uri)?;
        Ok(Self { representation, path, options })
    }

    pub(crate) fn render(&self, state: &ReadState, published: &Published) -> Result<Response, Status> {
        let MetricPath { namespace, metric } = self.path;
        let query = MetricQuery {
            group: EXTERNAL_GROUP,
            namespace,
            metric,
            selector: VariantSelector {
                labels: slice::from_ref(&self.options.labels),
                fields: &self.options.fields,
            },
            target_kind: None,
            no_annotated: false,
            context: &ReadContext::new(state),
        };
        let list = answer(published, &query)?;
        let mut response = respond(self.representation, &list)?;
        observe_ages(&state.evidence_age.external, list.evidence(), list.now);
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
