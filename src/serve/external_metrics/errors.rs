//! Why there is no number: of which variant, the cause, its age, and what to do next. Pure.

use std::collections::BTreeSet;

use wva_core::VariantId;
use wva_core::decision::{Cause, Target, Unknown};
use wva_core::units::Seconds;

use super::answer::{NAMES, Question, candidates, in_namespace, labels};
use super::metric::{Labels, Metric};
use super::quantity::Unfit;
use super::selector::Selector;
use super::show::WholeSeconds;
use crate::engine::{ClusterView, Published};
use crate::serve::status::{Reason, Status};

fn about(reason: Reason, question: &Question<'_>, message: String, id: &VariantId) -> Status {
    Status::new(reason, message).about(question.group, question.metric, id.name.as_str())
}

/// The refusal of a metric that `group` does not have.
pub(crate) fn unknown_metric(group: &'static str, metric: &str) -> Status {
    let served: Vec<_> = Metric::NAMES.iter().map(|(name, _)| *name).collect();
    let message = format!("no metric {metric:?} is served here; there are {}", served.join(", "));
    Status::new(Reason::NotFound, message).about(group, metric, "")
}

/// The refusal of a selector that matches no decision.
pub(super) fn no_variant(published: &Published, question: &Question<'_>) -> Status {
    let view = (question.view)();
    if let Some(id) = unseen(published, &view, question) {
        return not_evaluated(&id, published, question);
    }
    let Question { group, namespace, metric, selector, .. } = question;
    let asked =
        if selector.is_empty() { "any variant".into() } else { format!("{:?}", selector.to_string()) };
    let why = mismatch(published, &view, question);
    let message = format!("{metric} in namespace {namespace} does not exist for {asked}: {why}");
    Status::new(Reason::NotFound, message).about(group, *metric, "")
}

/// A variant that the watches know and the selector means, and that nobody has decided about: it is too young. One that
/// is named is told of whatever else the selector asks of it, for that may be true in a moment.
fn unseen(published: &Published, view: &ClusterView, question: &Question<'_>) -> Option<VariantId> {
    let Question { namespace, selector, controller_instance, .. } = *question;
    let is_decided = |id: &VariantId| published.decisions.contains_key(id);
    let is_known =
        |id: &VariantId| view.variant(id).is_some() || view.invalid.iter().any(|invalid| invalid.id == *id);
    let named = selector.required(&NAMES);
    if !named.is_empty() {
        let mut named = named.into_iter().map(|name| VariantId::new(namespace, name));
        return named.find(|id| !is_decided(id) && is_known(id));
    }
    let mut known = view.variants.iter().map(|state| &state.variant);
    let unseen = known.find(|variant| {
        let labels = Labels::of(&variant.id, variant.accelerator.as_deref(), controller_instance);
        variant.id.namespace == namespace
            && !is_decided(&variant.id)
            && selector.matches(|key| labels.get(key))
    });
    unseen.map(|variant| variant.id.clone())
}

fn not_evaluated(id: &VariantId, published: &Published, question: &Question<'_>) -> Status {
    let age = Seconds::between(published.at, question.now);
    let message = format!(
        "{} of variant {id} is not known yet: the variant exists and has not been evaluated; the last evaluation that is \
         known here was {age} ago (at {}), and the next comes within seconds: ask again, and see this server's log if it \
         stays",
        question.metric,
        WholeSeconds(published.at)
    );
    about(Reason::ServiceUnavailable, question, message, id)
}

/// Why nothing matches, and where to look.
fn mismatch(published: &Published, view: &ClusterView, question: &Question<'_>) -> String {
    let Question { namespace, selector, .. } = *question;
    let compare = format!("compare the selector with `kubectl get variantautoscalings -n {namespace}`");
    if in_namespace(published, namespace).next().is_none() {
        if view.excluded.contains(namespace) {
            return format!("namespace {namespace} is left alone, by its annotation wva.llmd.ai/exclude");
        }
        if view.variants.iter().any(|state| state.variant.id.namespace == namespace) {
            return format!("none of its variants, which have not been evaluated yet, matches; {compare}");
        }
        return format!(
            "no VariantAutoscaling of this installation is in namespace {namespace}; create one or ask another"
        );
    }
    let (named, meant) = (selector.required(&NAMES), candidates(published, question));
    let who = match named[..] {
        _ if meant.is_empty() => {
            return format!("this installation has no variant {} there; {compare}", named.join(" or "));
        }
        [] => format!("none of its {} variants matches", meant.len()),
        [one] => format!("variant {one} does not match"),
        _ => "none of these variants matches".into(),
    };
    let labels: Vec<_> = meant.into_iter().map(|(id, decision)| labels(id, decision, question)).collect();
    format!("{who}: {}; {compare}", unmet(selector, &labels))
}

/// What of `selector` is met by none of the variants with the labels `all`.
fn unmet(selector: &Selector, all: &[Labels<'_>]) -> String {
    let unmet =
        selector.requirements().filter(|own| !all.iter().any(|labels| own.rule.holds(labels.get(&own.key))));
    let is_missing = |key: &str| all.iter().all(|labels| labels.get(key).is_none());
    let (missing, other): (Vec<_>, Vec<_>) =
        unmet.partition(|own| own.rule.wants_label() && is_missing(&own.key));
    let mut causes = Vec::new();
    if !missing.is_empty() {
        let missing: BTreeSet<_> = missing.iter().map(|own| own.key.as_str()).collect();
        let there: BTreeSet<_> = all.iter().flat_map(|labels| labels.iter()).map(|(key, _)| key).collect();
        causes.push(format!("there is no label {} (labels are {})", joined(missing), joined(there)));
    }
    if !other.is_empty() {
        let other: Vec<_> = other.iter().map(|own| format!("\"{own}\"")).collect();
        causes.push(format!("nothing meets {}", other.join(", ")));
    }
    if causes.is_empty() {
        causes.push("each requirement is met by one of them, and all by none".into());
    }
    causes.join("; ")
}

fn joined(keys: BTreeSet<&str>) -> String {
    keys.into_iter().collect::<Vec<_>>().join(", ")
}

/// The refusal of a variant that was evaluated, without a number.
pub(super) fn not_known(id: &VariantId, unknown: &Unknown, question: &Question<'_>) -> Status {
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

/// The refusal of a number whose evidence is too old now.
pub(super) fn too_old(id: &VariantId, target: &Target, question: &Question<'_>) -> Status {
    let message = format!(
        "{} of variant {id} is withheld: its newest evidence is {}, more than max-stale {}; the last number was {} ({:?}: \
         {}); check that the metric source answers and that an instance of wva holds the lease",
        question.metric,
        age(target, question),
        question.max_stale,
        target.desired,
        target.reason,
        target.message
    );
    about(Reason::ServiceUnavailable, question, message, id)
}

/// The refusal of a metric that counts what runs, of a variant of which nobody knows what runs.
pub(super) fn no_current(id: &VariantId, target: &Target, question: &Question<'_>) -> Status {
    let message = format!(
        "{} of variant {id} is not known: its scale target has no current count; its newest evidence is {}; check that the \
         target exists: {}",
        question.metric,
        age(target, question),
        shown(id)
    );
    about(Reason::NotFound, question, message, id)
}

/// The refusal of a number that an HPA would read as another one.
pub(super) fn unfit(id: &VariantId, target: &Target, error: Unfit, question: &Question<'_>) -> Status {
    let message = format!(
        "{} of variant {id} is withheld: {error}; its newest evidence is {}; this is a bug of this server: report it with \
         the variant, {}",
        question.metric,
        age(target, question),
        shown(id)
    );
    about(Reason::InternalError, question, message, id)
}

fn age(target: &Target, question: &Question<'_>) -> String {
    let age = Seconds::between(target.evidence, question.now);
    format!("{age} old (from {})", WholeSeconds(target.evidence))
}

fn shown(VariantId { namespace, name }: &VariantId) -> String {
    format!("`kubectl get variantautoscaling {name} -n {namespace} -o yaml`")
}
