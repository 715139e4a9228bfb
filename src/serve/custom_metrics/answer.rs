//! Metrics of variants as metrics of objects. Only the object is looked up here: the value, and why there may be none, comes
//! from `external_metrics`. Pure; computes no number.

use jiff::Timestamp;
use wva_core::model::TargetRef;
use wva_core::units::Seconds;

use super::label_selector::LabelSelectorMessage;
use super::object_path::{ObjectPath, Resource, Version, not_found_message};
use crate::engine::{ClusterView, Published};
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
pub(super) struct ObjectQuery {
    pub(super) path: ObjectPath,
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

impl<'a> MetricValueList<'a> {
    /// The list of `values` that several installations have sent.
    ///
    /// # Errors
    /// When the metric is unknown.
    pub(super) fn from_forwarded(
        query: &'a ObjectQuery,
        values: &'a [external::ForwardedValue],
        now: Timestamp,
    ) -> Result<Self, Status> {
        let metric = &query.path.metric;
        let (metric_name, _) =
            Metric::find(metric).ok_or_else(|| external::unknown_metric(CUSTOM_GROUP, metric))?;
        let item = |value: &'a external::ForwardedValue| MetricValue {
            resource: query.resource,
            name: value.object.clone().unwrap_or_default(),
            selector: query.series_selector.as_ref(),
            value: value.value(metric_name),
        };
        Ok(Self { version: query.version, items: values.iter().map(item).collect(), now })
    }

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
    query: &'a ObjectQuery,
    fields: &'a [FieldRequirement],
    context: &'a ReadContext<'a>,
) -> Result<MetricValueList<'a>, Status> {
    let path = &query.path;
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
/// When the metric is unknown, or an object is the scale target of no variant.
pub(super) fn field_requirements(
    query: &ObjectQuery,
    context: &ReadContext<'_>,
) -> Result<Vec<FieldRequirement>, Status> {
    let path = &query.path;
    if Metric::find(&path.metric).is_none() {
        return Err(about_object(external::unknown_metric(CUSTOM_GROUP, &path.metric), query));
    }
    if path.is_all() {
        let fields = query.fields.iter();
        return Ok(fields.map(|field| variant_requirement(field, query, &context.view)).collect());
    }
    let name = match query.resource.target(&path.name) {
        None => path.name.as_str(),
        Some(target) => deciding_variant(query, &target, context)?,
    };
    Ok(vec![FieldRequirement { field: Field::Name, operator: Operator::Equals(name.to_owned()) }])
}

/// The requirement of variants that corresponds to one of objects: a scale target has another name than its variant.
fn variant_requirement(
    requirement: &FieldRequirement,
    query: &ObjectQuery,
    view: &ClusterView,
) -> FieldRequirement {
    let (Field::Name, Operator::Equals(object) | Operator::NotEquals(object)) =
        (requirement.field, &requirement.operator)
    else {
        return requirement.clone();
    };
    let Some(target) = query.resource.target(object) else { return requirement.clone() };
    let claims = view.claims_on(&query.path.namespace, &target).iter();
    let mut names = claims.map(|claim| claim.variant.name.to_string());
    let operator = match requirement.operator {
        Operator::Equals(_) => Operator::In(names.next().into_iter().collect()),
        _ => Operator::NotIn(names.collect()),
    };
    FieldRequirement { field: Field::Name, operator }
}

/// The variant that decides about the scale target.
fn deciding_variant<'a>(
    query: &ObjectQuery,
    target: &TargetRef,
    context: &'a ReadContext<'_>,
) -> Result<&'a str, Status> {
    let ObjectPath { namespace, resource, name, metric, .. } = &query.path;
    let (reason, message) = match context.view.claims_on(namespace, target) {
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
                "{metric} of {} {namespace}/{name} is not known yet (for {}, since {}): {}",
                target.kind,
                Seconds::between(context.started, context.now),
                Time::from_timestamp(context.started),
                WaitingFor::Watches
            ),
        ),
    };
    Err(Status::new(reason, message).about(CUSTOM_GROUP, metric.as_str(), name.as_str()))
}

/// The object of a value; `None` for the scale target of a variant that no longer exists.
fn described_object<'a>(
    value: external::ExternalMetricValue<'a>,
    query: &'a ObjectQuery,
    view: &ClusterView,
) -> Option<MetricValue<'a>> {
    let name = if query.resource == Resource::VariantAutoscaling {
        value.id.name.to_string()
    } else if query.path.is_all() {
        view.variant(value.id)?.variant.target.name.to_string()
    } else {
        query.path.name.clone()
    };
    Some(MetricValue { resource: query.resource, name, selector: query.series_selector.as_ref(), value })
}

/// A 404 begins as that of every server of this group; other errors about a scale target name it beside its variant.
fn about_object(status: Status, query: &ObjectQuery) -> Status {
    match (status.reason(), query.resource) {
        (Reason::NotFound, _) => status.with_prefix(&not_found(query)),
        (_, Resource::VariantAutoscaling) => status,
        _ if query.path.is_all() => status,
        (_, target) => {
            let ObjectPath { namespace, name, .. } = &query.path;
            status.with_note(&format!("requested for {} {namespace}/{name}, its scale target", target.kind()))
        }
    }
}

fn not_found(query: &ObjectQuery) -> String {
    let ObjectPath { resource, name, metric, .. } = &query.path;
    let message = not_found_message(metric, resource, name);
    let selector = VariantSelector { labels: &query.selectors, fields: &[] };
    if selector.is_empty() { message } else { format!("{message} with selector {selector}") }
}
