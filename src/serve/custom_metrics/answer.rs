//! Metrics of variants as metrics of objects. Only the object is looked up here: the value, and why there may be none, comes
//! from `external_metrics`. Pure; computes no number.

use jiff::Timestamp;
use wva_core::model::TargetRef;
use wva_core::units::Seconds;

use super::label_selector::LabelSelectorMessage;
use super::object_path::{ObjectPath, Resource, Version, not_found_message};
use crate::engine::{Claim, ClusterView, Published};
use crate::serve::encoding::protobuf::Time;
use crate::serve::encoding::{Reason, Status};
use crate::serve::external_metrics::query::{Field, FieldRequirement};
use crate::serve::external_metrics::selector::{LabelSelector, Operator};
use crate::serve::external_metrics::{
    self as external, Metric, MetricQuery, ReadContext, VariantSelector, WaitingFor,
};
use crate::serve::paths::CUSTOM_GROUP;

/// A read of the metric of objects.
#[derive(Debug, Clone)]
pub(super) struct ObjectQuery<'a> {
    pub(super) path: &'a ObjectPath,
    pub(super) version: Version,
    pub(super) resource: Resource,
    /// The selectors of objects and of series. A variant's labels are those of its objects and of its series alike.
    pub(super) selectors: Vec<LabelSelector>,
    /// The field selector; it applies to reads of all objects.
    pub(super) fields: Vec<FieldRequirement>,
    /// The selector of series, as the answer repeats it; `None` without one, or with one that has no such form.
    pub(super) series_selector: Option<LabelSelectorMessage>,
}

/// The answer to a read of the metric of objects.
#[derive(Debug, Clone)]
pub(super) struct MetricValueList<'a> {
    pub(super) version: Version,
    pub(super) items: Vec<MetricValue<'a>>,
    pub(super) now: Timestamp,
}

/// The value of one object.
#[derive(Debug, Clone)]
pub(super) struct MetricValue<'a> {
    pub(super) resource: Resource,
    /// The object's name.
    pub(super) name: String,
    pub(super) selector: Option<&'a LabelSelectorMessage>,
    /// The value of the object's variant.
    pub(super) value: external::ExternalMetricValue<'a>,
}

impl MetricValueList<'_> {
    /// The time of the newest measurement behind each item.
    pub(super) fn evidence(&self) -> impl Iterator<Item = Timestamp> {
        self.items.iter().map(|item| item.value.timestamp)
    }
}

/// Answers `query` from `published`: exactly one item for a named object. `fields` are the query's [`field_requirements`].
///
/// # Errors
/// When no object matches, or a selected variant has no number.
pub(super) fn answer<'a>(
    published: &'a Published,
    query: &'a ObjectQuery<'a>,
    fields: &'a [FieldRequirement],
    context: &'a ReadContext<'a>,
) -> Result<MetricValueList<'a>, Status> {
    let path = query.path;
    let variants = MetricQuery {
        group: CUSTOM_GROUP,
        namespace: &path.namespace,
        metric: &path.metric,
        selector: VariantSelector { labels: &query.selectors, fields },
        target_kind: query.resource.target_kind(),
        no_annotated: query.resource == Resource::VariantAutoscaling,
        context,
    };
    let values = external::items(published, &variants).map_err(|status| about_object(status, query))?;
    let items: Vec<_> =
        values.into_iter().filter_map(|value| described_object(value, query, &context.view)).collect();
    if items.is_empty() {
        let message =
            format!("{}: the variants that match have just lost their scale targets", not_found(query));
        return Err(Status::new(Reason::NotFound, message).about(CUSTOM_GROUP, path.metric.as_str(), ""));
    }
    Ok(MetricValueList { version: query.version, items, now: context.now })
}

/// The requirements that select the variants of the requested objects.
///
/// # Errors
/// When the metric is unknown, or a Deployment is the scale target of no variant.
pub(super) fn field_requirements(
    query: &ObjectQuery<'_>,
    context: &ReadContext<'_>,
) -> Result<Vec<FieldRequirement>, Status> {
    let path = query.path;
    if Metric::find(&path.metric).is_none() {
        return Err(about_object(external::unknown_metric(CUSTOM_GROUP, &path.metric), query));
    }
    let name = match query.resource {
        _ if path.is_all() => {
            return Ok(query
                .fields
                .iter()
                .map(|requirement| variant_requirement(requirement, query, &context.view))
                .collect());
        }
        Resource::VariantAutoscaling => path.name.as_str(),
        Resource::Deployment => variant_of_deployment(path, context)?,
    };
    Ok(vec![FieldRequirement { field: Field::Name, operator: Operator::Equals(name.to_owned()) }])
}

/// The requirement of variants that corresponds to one of objects: a Deployment has another name than its variant.
fn variant_requirement(
    requirement: &FieldRequirement,
    query: &ObjectQuery<'_>,
    view: &ClusterView,
) -> FieldRequirement {
    let claims = |name: &str| view.claims_on(&query.path.namespace, &TargetRef::deployment(name));
    let name = |claim: &Claim| claim.variant.name.to_string();
    let operator = match (query.resource, requirement.field, &requirement.operator) {
        (Resource::Deployment, Field::Name, Operator::Equals(deployment)) => {
            Operator::In(claims(deployment).first().map(name).into_iter().collect())
        }
        (Resource::Deployment, Field::Name, Operator::NotEquals(deployment)) => {
            Operator::NotIn(claims(deployment).iter().map(name).collect())
        }
        _ => return requirement.clone(),
    };
    FieldRequirement { field: Field::Name, operator }
}

/// The variant that decides about the Deployment.
fn variant_of_deployment<'a>(path: &ObjectPath, context: &'a ReadContext<'_>) -> Result<&'a str, Status> {
    let ObjectPath { namespace, resource, name, metric, .. } = path;
    let (reason, message) = match context.view.claims_on(namespace, &TargetRef::deployment(name.as_str())) {
        [claim, ..] => return Ok(&claim.variant.name),
        [] if context.view.synced => (
            Reason::NotFound,
            format!(
                "{}: it is not the spec.scaleTargetRef of any VariantAutoscaling of this installation in namespace \
                 {namespace}; create one, or compare the name with `kubectl get variantautoscalings -n {namespace}`",
                not_found_message(metric, resource, name)
            ),
        ),
        [] => (
            Reason::ServiceUnavailable,
            format!(
                "{metric} of Deployment {namespace}/{name} is not known yet (for {}, since {}): {}",
                Seconds::between(context.started, context.now),
                Time::from_timestamp(context.started),
                WaitingFor::Watches
            ),
        ),
    };
    Err(Status::new(reason, message).about(CUSTOM_GROUP, metric.as_str(), name.as_str()))
}

/// The object of a value; `None` for the Deployment of a variant that no longer exists.
fn described_object<'a>(
    value: external::ExternalMetricValue<'a>,
    query: &'a ObjectQuery<'_>,
    view: &ClusterView,
) -> Option<MetricValue<'a>> {
    let name = match query.resource {
        Resource::VariantAutoscaling => value.id.name.to_string(),
        Resource::Deployment if query.path.is_all() => {
            view.variant(value.id)?.variant.target.name.to_string()
        }
        Resource::Deployment => query.path.name.clone(),
    };
    Some(MetricValue { resource: query.resource, name, selector: query.series_selector.as_ref(), value })
}

/// A 404 begins as that of every server of this group; other errors about a Deployment name it beside its variant.
fn about_object(status: Status, query: &ObjectQuery<'_>) -> Status {
    match (status.reason(), query.resource) {
        (Reason::NotFound, _) => status.with_prefix(&not_found(query)),
        (_, Resource::Deployment) if !query.path.is_all() => {
            let ObjectPath { namespace, name, .. } = query.path;
            status.with_note(&format!("requested for Deployment {namespace}/{name}, its scale target"))
        }
        _ => status,
    }
}

fn not_found(query: &ObjectQuery<'_>) -> String {
    let ObjectPath { resource, name, metric, .. } = query.path;
    let message = not_found_message(metric, resource, name);
    let selector = VariantSelector { labels: &query.selectors, fields: &[] };
    if selector.is_empty() { message } else { format!("{message} with selector {selector}") }
}
