//! One published result and one question become one answer: a list with exactly one item a variant, or a refusal that
//! says which variant, why, since when and what to do. Pure: the time is an argument. Computes no number.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::Serialize;
use wva_core::decision::{Cause, Target, Unknown, Verdict};
use wva_core::units::Seconds;
use wva_core::{Decision, VariantId};

use super::beginning::{Beginning, nothing_yet};
use super::metric::{Labels, Metric};
use super::quantity::Quantity;
use super::selector::Selector;
use super::show::{self, WholeSeconds};
use crate::engine::{Origin, Published};
use crate::serve::status::{Empty, Reason, Status};

/// What is asked.
#[derive(Debug, Clone, Copy)]
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
    let (name, metric) = Metric::named(question.metric).ok_or_else(|| unknown_metric(question))?;
    if published.origin == Origin::Empty {
        return Err(nothing_yet(question));
    }
    let labels = |id, decision| Labels::of(id, decision, question.controller_instance);
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
            let value =
                metric.value(target.desired, decision.current).ok_or_else(|| no_current(id, question))?;
            let value =
                value.map_err(|error| about(Reason::InternalError, question, error.to_string(), id))?;
            let (metric_labels, timestamp) = (labels(id, decision), target.evidence);
            Ok(Item { metric_name: name, metric_labels, timestamp, value, id, decision, target })
        })
        .collect()
}

/// The variants that the selector can match: those it names, which is what an HPA does, else all of the namespace. So a
/// read costs the same with one variant and with ten thousand.
fn candidates<'a>(published: &'a Published, question: &Question<'a>) -> Vec<(&'a VariantId, &'a Decision)> {
    let named = question.selector.required(&["variant_name", "variant"]);
    if named.is_empty() {
        return in_namespace(published, question.namespace).collect();
    }
    let ids = named.into_iter().map(|name| VariantId::new(question.namespace, name));
    ids.filter_map(|id| published.decisions.get_key_value(&id)).collect()
}

fn in_namespace<'a>(
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

fn about(reason: Reason, question: &Question<'_>, message: String, id: &VariantId) -> Status {
    Status::new(reason, message).about(question.group, question.metric, &id.name)
}

fn unknown_metric(question: &Question<'_>) -> Status {
    let served: Vec<_> = Metric::NAMES.iter().map(|(name, _)| *name).collect();
    let message = format!("no metric {:?} is served here; there are {}", question.metric, served.join(", "));
    Status::new(Reason::NotFound, message).about(question.group, question.metric, "")
}

fn no_variant(published: &Published, question: &Question<'_>) -> Status {
    let Question { group, namespace, metric, selector, .. } = question;
    let count = in_namespace(published, namespace).count();
    let asked =
        if selector.is_empty() { "any variant".into() } else { format!("{:?}", selector.to_string()) };
    let next = if count == 0 {
        format!(
            "no VariantAutoscaling of this installation is in namespace {namespace}; create one or ask another"
        )
    } else {
        format!("none of its {count} variants matches; {}", mismatch(published, question))
    };
    let message = format!("{metric} in namespace {namespace} does not exist for {asked}: {next}");
    Status::new(Reason::NotFound, message).about(group, *metric, "")
}

/// Which keys of the selector no variant has, and which there are; else where to look.
fn mismatch(published: &Published, question: &Question<'_>) -> String {
    let variants = in_namespace(published, question.namespace);
    let labels =
        variants.flat_map(|(id, decision)| Labels::of(id, decision, question.controller_instance).iter());
    let there: BTreeSet<_> = labels.map(|(key, _)| key).collect();
    let missing: Vec<_> = question.selector.keys().into_iter().filter(|key| !there.contains(key)).collect();
    if missing.is_empty() {
        return "compare the selector with `kubectl get variantautoscalings`".into();
    }
    let there: Vec<_> = there.into_iter().collect();
    format!("none has the label {} (labels are {})", missing.join(", "), there.join(", "))
}

fn not_known(id: &VariantId, unknown: &Unknown, question: &Question<'_>) -> Status {
    let reason = match unknown.cause {
        Cause::NothingKnown | Cause::TooOld => Reason::ServiceUnavailable,
        Cause::InvalidVariant => Reason::Invalid,
        Cause::TargetNotFound => Reason::NotFound,
    };
    let age = Seconds::between(unknown.since, question.now);
    let since = WholeSeconds(unknown.since);
    let message = format!(
        "{} of variant {id} is not known: {} (for {age}, since {since})",
        question.metric, unknown.message
    );
    about(reason, question, message, id)
}

fn too_old(id: &VariantId, target: &Target, question: &Question<'_>) -> Status {
    let age = Seconds::between(target.evidence, question.now);
    let message = format!(
        "{} of variant {id} is withheld: its newest evidence is {age} old (from {}), more than max-stale {}; the last \
         number was {} ({:?}: {}); check that the metric source answers and that an instance of wva holds the lease",
        question.metric,
        WholeSeconds(target.evidence),
        question.max_stale,
        target.desired,
        target.reason,
        target.message
    );
    about(Reason::ServiceUnavailable, question, message, id)
}

fn no_current(id: &VariantId, question: &Question<'_>) -> Status {
    let message = format!(
        "{} of variant {id} is not known: its scale target has no current count; check that the target exists",
        question.metric
    );
    about(Reason::NotFound, question, message, id)
}
