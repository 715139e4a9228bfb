//! The numbers of variants become metrics of objects. Which variant an object belongs to is looked up; the number, and
//! why there may be none, is what `external_metrics` says of that variant. Pure. Computes no number.

use std::collections::BTreeSet;

use jiff::Timestamp;
use wva_core::units::Seconds;

use super::label_selector::LabelSelector;
use super::resource::{ALL, ObjectPath, Resource, Version};
use super::{GROUP, could_not_find};
use crate::engine::{ClusterView, Published};
use crate::serve::external_metrics::fields::{Field, Term};
use crate::serve::external_metrics::metric::Metric;
use crate::serve::external_metrics::selector::{Rule, Selector};
use crate::serve::external_metrics::show::WholeSeconds;
use crate::serve::external_metrics::{
    self as external, Beginning, Question, WaitsFor, numbers, unknown_metric,
};
use crate::serve::status::{Reason, Status};

/// Which objects are asked for, and how the answer is to be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) path: &'a ObjectPath,
    pub(crate) version: Version,
    pub(crate) resource: Resource,
    /// Which objects, when all are asked for.
    pub(crate) objects: &'a Selector,
    /// The same by their fields.
    pub(crate) fields: &'a [Term],
    /// Which series of them. A variant's labels are those of its objects and of its series alike.
    pub(crate) series: &'a Selector,
    /// The same, to be told back.
    pub(crate) echo: Option<&'a LabelSelector>,
}

/// The list of items. How it is written: `show`.
#[derive(Debug, Clone)]
pub(crate) struct List<'a> {
    pub(super) version: Version,
    pub(super) items: Vec<Item<'a>>,
    pub(super) now: Timestamp,
}

/// The number of one object.
#[derive(Debug, Clone)]
pub(crate) struct Item<'a> {
    pub(super) resource: Resource,
    /// The object's name.
    pub(super) name: String,
    pub(super) selector: Option<&'a LabelSelector>,
    pub(super) number: external::Item<'a>,
}

impl List<'_> {
    /// How old the evidence of each item is.
    pub(crate) fn ages(&self) -> impl Iterator<Item = Seconds> {
        self.items.iter().map(|item| Seconds::between(item.number.timestamp, self.now))
    }
}

/// The answer to `question` about the objects `asked` for, whose selector is their [`selection`]: exactly one item for a
/// named object.
///
/// # Errors
/// When a metric or object is unknown, or a selected variant has no number.
pub(crate) fn answer<'a>(
    published: &'a Published,
    view: &ClusterView,
    question: &Question<'a>,
    asked: &Asked<'a>,
) -> Result<List<'a>, Status> {
    let numbers = numbers(published, question).map_err(|refusal| in_words_of_the_group(refusal, asked))?;
    let items: Vec<_> = numbers.into_iter().filter_map(|number| described(number, view, asked)).collect();
    if items.is_empty() {
        return Err(none_left(asked));
    }
    Ok(List { version: asked.version, items, now: question.now })
}

/// What selects the variants of the objects.
///
/// # Errors
/// When there is no such metric; when a Deployment has no variant, or two, or nobody knows yet.
pub(crate) fn selection(
    view: &ClusterView,
    beginning: &Beginning,
    now: Timestamp,
    asked: &Asked<'_>,
) -> Result<Selector, Status> {
    let Asked { path, resource, objects, series, fields, .. } = asked;
    if Metric::named(&path.metric).is_none() {
        return Err(in_words_of_the_group(unknown_metric(GROUP, &path.metric), asked));
    }
    let variant = match resource {
        _ if path.name == ALL => {
            let fields = fields.iter().map(|term| by_field(view, asked, term));
            return Ok(fields.fold((*objects).clone().and(series), |all, field| all.and(&field)));
        }
        Resource::VariantAutoscaling => path.name.as_str(),
        Resource::Deployment => variant_of(view, beginning, now, path)?,
    };
    Ok(Selector::requiring("variant_name", Rule::Equals(variant.into())).and(series))
}

/// The variants of the objects that have the field: a Deployment's name is not that of its variant.
fn by_field(view: &ClusterView, asked: &Asked<'_>, term: &Term) -> Selector {
    match (asked.resource, term.field) {
        (Resource::Deployment, Field::Name) => {
            let claims = view.claims_on(&asked.path.namespace, &term.value).iter();
            let variants: BTreeSet<_> = claims.map(|claim| claim.variant.name.to_string()).collect();
            let rule = if term.has { Rule::In(variants) } else { Rule::NotIn(variants) };
            Selector::requiring("variant_name", rule)
        }
        _ => term.of_variants(),
    }
}

/// The variant that has the Deployment as its scale target.
fn variant_of<'v>(
    view: &'v ClusterView,
    beginning: &Beginning,
    now: Timestamp,
    path: &ObjectPath,
) -> Result<&'v str, Status> {
    let ObjectPath { namespace, resource, name, metric, .. } = path;
    let (reason, message) = match view.claims_on(namespace, name) {
        [one] => return Ok(&one.variant.name),
        [] if view.synced => (
            Reason::NotFound,
            format!(
                "{}: it is the spec.scaleTargetRef of no VariantAutoscaling of this installation in namespace \
                 {namespace}; create one, or compare the name with `kubectl get variantautoscalings -n {namespace}`",
                could_not_find(metric, resource, name)
            ),
        ),
        [] => {
            let age = Seconds::between(beginning.since, now);
            let (since, why) = (WholeSeconds(beginning.since), WaitsFor::Listing);
            (
                Reason::ServiceUnavailable,
                format!(
                    "{metric} of Deployment {namespace}/{name} is not known yet (for {age}, since {since}): {why}"
                ),
            )
        }
        claims => {
            let claimants: Vec<_> = claims.iter().map(|claim| claim.variant.to_string()).collect();
            (
                Reason::Invalid,
                format!(
                    "{metric} of Deployment {namespace}/{name} is not known: it is the spec.scaleTargetRef of {}, and \
                     each would be scaled by the other's number; keep one of them",
                    claimants.join(" and ")
                ),
            )
        }
    };
    Err(Status::new(reason, message).about(GROUP, metric.as_str(), name.as_str()))
}

/// The object that a number is of; `None` for the Deployment of a variant that is not there any more.
fn described<'a>(number: external::Item<'a>, view: &ClusterView, asked: &Asked<'a>) -> Option<Item<'a>> {
    let name = match asked.resource {
        Resource::VariantAutoscaling => number.id.name.to_string(),
        Resource::Deployment if asked.path.name == ALL => {
            view.variant(number.id)?.variant.target.name.to_string()
        }
        Resource::Deployment => asked.path.name.clone(),
    };
    Some(Item { resource: asked.resource, name, selector: asked.echo, number })
}

/// A 404 begins as every server of this group begins it; any refusal about a Deployment names it beside its variant.
fn in_words_of_the_group(refusal: Status, asked: &Asked<'_>) -> Status {
    match (refusal.reason(), asked.resource) {
        (Reason::NotFound, _) => refusal.with_beginning(&not_found(asked)),
        (_, Resource::Deployment) if asked.path.name != ALL => {
            let ObjectPath { namespace, name, .. } = asked.path;
            refusal.with_note(&format!("asked for Deployment {namespace}/{name}, its scale target"))
        }
        _ => refusal,
    }
}

fn none_left(asked: &Asked<'_>) -> Status {
    let message = format!("{}: the variants that match have just lost their Deployments", not_found(asked));
    Status::new(Reason::NotFound, message).about(GROUP, asked.path.metric.as_str(), "")
}

fn not_found(asked: &Asked<'_>) -> String {
    let ObjectPath { resource, name, metric, .. } = asked.path;
    let selector = if name == ALL { asked.objects.clone().and(asked.series) } else { asked.series.clone() };
    let found = could_not_find(metric, resource, name);
    if selector.is_empty() { found } else { format!("{found} with selector {selector}") }
}
