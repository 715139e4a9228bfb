//! One published result and one question become one answer: a list with exactly one item a variant, or a refusal that
//! says which variant, why, since when and what to do. Pure: the time is an argument. Computes no number.

use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;
use wva_core::decision::{Target, Verdict};
use wva_core::units::{Replicas, Seconds};
use wva_core::{Decision, VariantId};

use super::beginning::{Beginning, nothing_yet};
use super::metric::{Labels, Metric};
use super::quantity::Quantity;
use super::refusal::{no_current, no_variant, not_known, too_old, unfit, unknown_metric};
use super::selector::Selector;
use super::show;
use crate::engine::{ClusterView, Origin, Published};
use crate::serve::status::{Empty, Status};

/// The labels by which a selector names variants.
pub(super) const NAMES: [&str; 2] = ["variant_name", "variant"];

/// What is asked.
#[derive(Clone, Copy)]
pub(crate) struct Question<'a> {
    /// The API group that is asked: refusals name it.
    pub(crate) group: &'static str,
    pub(crate) namespace: &'a str,
    pub(crate) metric: &'a str,
    pub(crate) selector: &'a Selector,
    /// The label `controller_instance`, when this installation has one.
    pub(crate) controller_instance: Option<&'a str>,
    /// When it is asked: how old evidence is, is judged now and not when it was published.
    pub(crate) now: Timestamp,
    /// Evidence older than this is none.
    pub(crate) max_stale: Seconds,
    /// Why there may be nothing at all.
    pub(crate) beginning: &'a Beginning,
    /// What the watches know now. No part of a number: only a refusal looks at it.
    pub(crate) view: &'a dyn Fn() -> Arc<ClusterView>,
}

/// The list of items, and when it was made. How it is written: `show`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Answer<'a> {
    pub(super) kind: &'static str,
    #[serde(rename = "apiVersion")]
    pub(super) api_version: &'static str,
    metadata: Empty,
    pub(super) items: Vec<Item<'a>>,
    #[serde(skip)]
    pub(super) now: Timestamp,
}

/// The number of one variant.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Item<'a> {
    pub(crate) metric_name: &'static str,
    pub(crate) metric_labels: Labels<'a>,
    #[serde(serialize_with = "show::whole_seconds")]
    pub(crate) timestamp: Timestamp,
    pub(crate) value: Quantity,
    #[serde(skip)]
    pub(crate) id: &'a VariantId,
    #[serde(skip)]
    pub(crate) decision: &'a Decision,
    #[serde(skip)]
    pub(crate) target: &'a Target,
}

impl Answer<'_> {
    /// A warning for people when an HPA would add several items up.
    pub(crate) fn warning(&self) -> Option<String> {
        (self.items.len() > 1).then(|| {
            let count = self.items.len();
            format!("{count} variants match and an HPA adds their values up; select one with variant_name")
        })
    }

    /// How old the evidence of each item is.
    pub(crate) fn ages(&self) -> impl Iterator<Item = Seconds> {
        self.items.iter().map(|item| Seconds::between(item.timestamp, self.now))
    }

    /// Whose numbers these are.
    pub(crate) fn variants(&self) -> Vec<&VariantId> {
        self.items.iter().map(|item| item.id).collect()
    }
}

/// The answer to `question` from `published`.
///
/// # Errors
/// As [`numbers`].
pub(crate) fn answer<'a>(published: &'a Published, question: &Question<'a>) -> Result<Answer<'a>, Status> {
    Ok(Answer {
        kind: "ExternalMetricValueList",
        api_version: "external.metrics.k8s.io/v1beta1",
        metadata: Empty {},
        items: numbers(published, question)?,
        now: question.now,
    })
}

/// The numbers that `question` asks for: one a selected variant, and one at least.
///
/// # Errors
/// When a metric or variant is unknown, or a selected variant has no number: a sum without it would be wrong.
pub(crate) fn numbers<'a>(
    published: &'a Published,
    question: &Question<'a>,
) -> Result<Vec<Item<'a>>, Status> {
    numbers_by(published, question, Metric::thousandths)
}

/// The same with any way to make a value, in thousandths. Whatever it makes, only what an HPA reads as it is meant goes on.
fn numbers_by<'a>(
    published: &'a Published,
    question: &Question<'a>,
    value: impl Fn(Metric, Replicas, Option<Replicas>) -> Option<f64>,
) -> Result<Vec<Item<'a>>, Status> {
    let (name, metric) =
        Metric::named(question.metric).ok_or_else(|| unknown_metric(question.group, question.metric))?;
    if published.origin == Origin::Empty {
        return Err(nothing_yet(question));
    }
    let labels = |id, decision| labels(id, decision, question);
    let selected: Vec<_> = candidates(published, question)
        .into_iter()
        .filter(|&(id, decision)| question.selector.matches(|key| labels(id, decision).get(key)))
        .collect();
    if selected.is_empty() {
        return Err(no_variant(published, question));
    }
    selected
        .into_iter()
        .map(|(id, decision)| {
            let target = fresh(id, decision, question)?;
            let thousandths = value(metric, target.desired, decision.current);
            let thousandths = thousandths.ok_or_else(|| no_current(id, target, question))?;
            let value = Quantity::of(thousandths).map_err(|error| unfit(id, target, error, question))?;
            let (metric_labels, timestamp) = (labels(id, decision), target.evidence);
            Ok(Item { metric_name: name, metric_labels, timestamp, value, id, decision, target })
        })
        .collect()
}

/// The variants that the selector can match: those it names, which is what an HPA does, else all of the namespace. So a
/// read of a variant costs the same among one and among ten thousand, and so does a refusal.
pub(super) fn candidates<'a>(
    published: &'a Published,
    question: &Question<'a>,
) -> Vec<(&'a VariantId, &'a Decision)> {
    let named = question.selector.required(&NAMES);
    if named.is_empty() {
        return in_namespace(published, question.namespace).collect();
    }
    let ids = named.into_iter().map(|name| VariantId::new(question.namespace, name));
    ids.filter_map(|id| published.decisions.get_key_value(&id)).collect()
}

/// The labels that a variant's item has, or would have.
pub(super) fn labels<'a>(id: &'a VariantId, decision: &'a Decision, question: &Question<'a>) -> Labels<'a> {
    Labels::of(id, decision.accelerator.as_deref(), question.controller_instance)
}

pub(super) fn in_namespace<'a>(
    published: &'a Published,
    namespace: &'a str,
) -> impl Iterator<Item = (&'a VariantId, &'a Decision)> {
    published
        .decisions
        .range(VariantId::new(namespace, "")..)
        .take_while(move |(id, _)| id.namespace == namespace)
}

/// The variant's number, when there is one and its evidence is young enough now.
fn fresh<'a>(id: &VariantId, decision: &'a Decision, question: &Question<'_>) -> Result<&'a Target, Status> {
    let target = match &decision.verdict {
        Verdict::Target(target) => target,
        Verdict::Unknown(unknown) => return Err(not_known(id, unknown, question)),
    };
    if Seconds::between(target.evidence, question.now) > question.max_stale {
        return Err(too_old(id, target, question));
    }
    Ok(target)
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
