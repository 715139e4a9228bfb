//! `external.metrics.k8s.io/v1beta1`: what the HPA controller reads. Renders published decisions and computes nothing.

mod answer;
mod by_rule;
mod context;
mod errors;
mod forwarded;
mod metric;
mod passed_on;
pub(crate) mod query;
pub(crate) mod selector;
mod value_targets;

use std::slice;

use axum::response::Response;
use http::request::Parts;
use serde::Deserialize;

pub(crate) use self::answer::{ExternalMetricValue, items};
use self::answer::{ExternalMetricValueList, answer};
use self::by_rule::RuleRead;
pub(crate) use self::by_rule::{Signed, label_requirements};
pub(crate) use self::context::{MetricQuery, ReadContext, WaitingFor};
pub(crate) use self::errors::unknown_metric;
pub(crate) use self::forwarded::{ForwardedValue, ForwardedValues, MetricRead, Ours, ReadScope};
pub(crate) use self::metric::{Labels, Metric};
use self::passed_on::PassedOn;
pub(crate) use self::query::VariantSelector;
use self::query::{ListOptions, is_watch};
use super::auth::{Attributes, attributes_verb};
use super::data_read::{ReadState, RuleReads, add_warning};
use super::encoding::negotiation::Representation;
use super::encoding::response::{representation, respond};
use super::encoding::{Reason, Status};
use super::middleware::AuditId;
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

/// A valid read.
pub(crate) struct Read {
    representation: Representation,
    path: MetricPath,
    options: ListOptions,
}

impl Read {
    fn selector(&self) -> VariantSelector<'_> {
        VariantSelector { labels: slice::from_ref(&self.options.labels), fields: &self.options.fields }
    }

    fn query<'a>(&'a self, context: &'a ReadContext<'a>) -> MetricQuery<'a> {
        MetricQuery {
            group: EXTERNAL_GROUP,
            namespace: &self.path.namespace,
            metric: &self.path.metric,
            selector: self.selector(),
            target_kind: None,
            no_annotated: false,
            context,
        }
    }

    /// The list as the client accepts it, with a warning for an HPA that would add items up.
    fn respond(&self, state: &ReadState, list: &ExternalMetricValueList<'_>) -> Result<Response, Status> {
        let mut response = respond(self.representation, list)?;
        observe_ages(&state.evidence_age.external, list.evidence(), list.now);
        if let Some(warning) = list.warning() {
            add_warning(response.headers_mut(), &warning);
        }
        Ok(response)
    }

    /// Tells people about several variants, which an HPA would add up.
    fn report_ambiguity(&self, state: &ReadState, list: &ExternalMetricValueList<'_>) {
        if list.warning().is_some() {
            let MetricPath { namespace, metric } = &self.path;
            let selector = self.selector().to_string();
            let variants = list.variants();
            let read = AmbiguousSelector { namespace, metric, selector: &selector, variants: &variants };
            state.events.ambiguous_selector(&read);
        }
    }
}

impl MetricRead for Read {
    type Path = MetricPath;

    /// Reading an external metric is `list`.
    fn attributes(path: &MetricPath, request: &Parts) -> Result<Attributes, Status> {
        Ok(Attributes::Resource {
            verb: attributes_verb(&request.method, false, is_watch(&request.uri)),
            group: EXTERNAL_GROUP,
            version: EXTERNAL_VERSION,
            resource: path.metric.clone(),
            subresource: String::new(),
            namespace: path.namespace.clone(),
            name: String::new(),
        })
    }

    fn parse(request: &Parts, path: MetricPath) -> Result<Self, Status> {
        let representation = representation(&request.headers)?;
        let options = ListOptions::parse(EXTERNAL_GROUP, &request.uri)?;
        Ok(Self { representation, path, options })
    }

    async fn beside_variants(
        (request, audit): (&Parts, &AuditId),
        path: &MetricPath,
        state: &ReadState,
    ) -> Option<Result<Response, Status>> {
        let MetricPath { namespace, metric } = path;
        let is_served = state.rules.is_some() || state.fallback.is_some();
        if !is_served || Metric::find(metric).is_some() {
            return None;
        }
        let Self { representation, options, .. } = match Self::parse(request, path.clone()) {
            Ok(read) => read,
            Err(error) => return Some(Err(error)),
        };
        let now = state.reader.now();
        let fallback = state.fallback.as_ref();
        // While it is not known whether a rule makes the metric, nobody else is asked for a number of this name.
        let is_of_rule = |reads: &&RuleReads| {
            fallback.is_none() || reads.rules.makes(metric) || reads.rules.unlisted().is_some()
        };
        if let Some(rules) = state.rules.as_ref().filter(is_of_rule) {
            let read = RuleRead { namespace, metric, labels: &options.labels, representation, now };
            return Some(read.answer(rules).await);
        }
        let read = PassedOn { namespace, metric, representation, now };
        Some(read.answer(fallback?, request, audit).await)
    }

    fn render(&self, state: &ReadState, published: &Published) -> Result<Response, Status> {
        let context = ReadContext::new(state);
        let list = answer(published, &self.query(&context))?;
        let response = self.respond(state, &list)?;
        self.report_ambiguity(state, &list);
        Ok(response)
    }

    fn render_values(&self, state: &ReadState, published: &Published) -> Result<Response, Status> {
        let context = ReadContext::new(state);
        let list = answer(published, &self.query(&context))?;
        self.report_ambiguity(state, &list);
        let values = list.items.iter().map(|item| ForwardedValue::new(item, None)).collect();
        Ok(ForwardedValues { values }.into_response())
    }

    fn render_merged(&self, state: &ReadState, values: &[ForwardedValue]) -> Result<Response, Status> {
        let (metric_name, _) = Metric::find(&self.path.metric)
            .ok_or_else(|| unknown_metric(EXTERNAL_GROUP, &self.path.metric))?;
        let items = values.iter().map(|value| value.value(metric_name)).collect();
        self.respond(state, &ExternalMetricValueList::new(items, state.reader.now()))
    }

    fn scope(&self, state: &ReadState) -> ReadScope<'_> {
        ReadScope::of_selector(state, &self.path.namespace, self.selector())
    }

    fn mismatch(&self, value: &ForwardedValue) -> Option<&'static str> {
        if value.object.is_some() {
            return Some("it has an object, which this read does not ask for");
        }
        (!self.selector().matches(value.labels()))
            .then_some("it has a variant that the selector does not select")
    }

    /// An error about a variant that is selected names it.
    fn selects_nothing(&self, error: &Status) -> bool {
        error.reason() == Reason::NotFound && error.name().is_empty()
    }

    fn error(&self, reason: Reason, cause: &str) -> Status {
        let MetricPath { namespace, metric } = &self.path;
        let selector = self.selector();
        let selected =
            if selector.is_empty() { String::new() } else { format!(" for {:?}", selector.to_string()) };
        let message = format!("{metric} in namespace {namespace}{selected} cannot be read: {cause}");
        let names = selector.names();
        let name = if let [name] = names.as_slice() { *name } else { "" };
        Status::new(reason, message).about(EXTERNAL_GROUP, metric.as_str(), name)
    }
}
