//! Why there is no number: the variant, the cause, its age, and what to do next. Pure.

use std::collections::BTreeSet;

use wva_core::VariantId;
use wva_core::decision::{Cause, Target, Unknown};
use wva_core::units::Seconds;

use super::context::{MetricQuery, candidates, in_namespace};
use super::metric::{InvalidQuantity, Labels, Metric};
use super::query::VariantSelector;
use crate::engine::Published;
use crate::serve::encoding::protobuf::Time;
use crate::serve::encoding::{Reason, Status};
use crate::serve::paths::EXTERNAL_GROUP;

fn about(id: &VariantId, reason: Reason, message: String, query: &MetricQuery<'_>) -> Status {
    Status::new(reason, message).about(query.group, query.metric, id.name.as_str())
}

/// The error for a metric that `group` does not have.
pub(crate) fn unknown_metric(group: &'static str, metric: &str) -> Status {
    let served: Vec<_> = Metric::NAMES.iter().map(|(name, _)| *name).collect();
    let message = format!("there is no metric {metric:?}; the metrics are {}", served.join(", "));
    Status::new(Reason::NotFound, message).about(group, metric, "")
}

/// The error for an external metric that is not of variants.
pub(super) fn unreadable(metric: &str, namespace: &str, reason: Reason, cause: &str) -> Status {
    let message = format!("{metric} in namespace {namespace} cannot be read: {cause}");
    Status::new(reason, message).about(EXTERNAL_GROUP, metric, "")
}

/// The error before the first result, about the variants that the selector names, if it names any.
pub(super) fn no_result(query: &MetricQuery<'_>) -> Status {
    let MetricQuery { group, namespace, metric, selector, context, .. } = query;
    let names = selector.names();
    let of = match names.as_slice() {
        [] if selector.is_empty() => format!("in namespace {namespace}"),
        [] => format!("in namespace {namespace} for selector {:?}", selector.to_string()),
        [name] => format!("of variant {namespace}/{name}"),
        names => format!("of variants {} in namespace {namespace}", names.join(", ")),
    };
    let message = format!(
        "{metric} {of} is not known yet: this server has neither evaluated nor restored anything since it started (for \
         {}, since {}): {}",
        Seconds::between(context.started, context.now),
        Time::from_timestamp(context.started),
        context.waiting_for
    );
    let name = if let [name] = names.as_slice() { *name } else { "" };
    Status::new(Reason::ServiceUnavailable, message).about(group, *metric, name)
}

/// The error for a selector that matches no decision.
pub(super) fn no_match(published: &Published, query: &MetricQuery<'_>) -> Status {
    if let Some(id) = undecided_variant(published, query) {
        return not_evaluated(&id, published, query);
    }
    let MetricQuery { group, namespace, metric, selector, .. } = query;
    let selected =
        if selector.is_empty() { "any variant".into() } else { format!("{:?}", selector.to_string()) };
    let cause = mismatch(published, query);
    let message = format!("{metric} in namespace {namespace} does not exist for {selected}: {cause}");
    Status::new(Reason::NotFound, message).about(group, *metric, "")
}

/// A variant that the watches know and the selector selects, but that is too young to have a decision. For a named variant
/// the other requirements do not count, because they may hold in a moment.
fn undecided_variant(published: &Published, query: &MetricQuery<'_>) -> Option<VariantId> {
    let MetricQuery { namespace, selector, context, .. } = *query;
    let view = &context.view;
    let is_decided = |id: &VariantId| published.decisions.contains_key(id);
    let names = selector.names();
    if !names.is_empty() {
        let is_known = |id: &VariantId| {
            let is_variant =
                view.variant(id).is_some() || view.invalid.iter().any(|invalid| invalid.id == *id);
            is_variant && query.includes(id)
        };
        let own_id = |id: VariantId| if is_decided(&id) { id } else { query.aliased(&id).unwrap_or(id) };
        let mut ids = names.into_iter().map(|name| own_id(VariantId::new(namespace, name)));
        return ids.find(|id| !is_decided(id) && is_known(id));
    }
    let mut variants = view.variants.iter().map(|state| &state.variant);
    let undecided = variants.find(|variant| {
        let labels = Labels::new(&variant.id, variant.accelerator.as_deref(), context.controller_instance);
        variant.id.namespace == namespace
            && !is_decided(&variant.id)
            && query.includes(&variant.id)
            && query.is_about(&variant.id)
            && selector.matches(labels)
    });
    undecided.map(|variant| variant.id.clone())
}

fn not_evaluated(id: &VariantId, published: &Published, query: &MetricQuery<'_>) -> Status {
    let message = format!(
        "{} of variant {id} is not known yet: the variant exists and has not been evaluated; the last evaluation known \
         here was {} ago (at {}), and the next one comes within seconds: retry, and see this server's log if it stays so",
        query.metric,
        Seconds::between(published.at, query.context.now),
        Time::from_timestamp(published.at)
    );
    about(id, Reason::ServiceUnavailable, message, query)
}

/// Why nothing matches, and what to compare.
fn mismatch(published: &Published, query: &MetricQuery<'_>) -> String {
    let MetricQuery { namespace, selector, context, .. } = *query;
    let compare = format!("compare the selector with `kubectl get variantautoscalings -n {namespace}`");
    if !in_namespace(published, namespace).any(|(id, _)| query.includes(id)) {
        if context.view.excluded.contains(namespace) {
            return format!("namespace {namespace} is excluded by its annotation wva.llmd.ai/exclude");
        }
        let mut variants = context.view.variants.iter().map(|state| &state.variant.id);
        if variants.any(|id| id.namespace == namespace && query.includes(id)) {
            return format!("none of its variants, which have not been evaluated yet, matches; {compare}");
        }
        let create = if query.no_annotated {
            "VariantAutoscaling of this installation; create one"
        } else {
            "variant of this installation; create a VariantAutoscaling, annotate an HPA or ScaledObject,"
        };
        return format!("namespace {namespace} has no {create} or use another namespace");
    }
    let names = selector.names();
    let candidates = candidates(published, query);
    if let Some((_, kind)) = query.target_kind
        && !candidates.is_empty()
        && !candidates.iter().any(|candidate| query.is_about(candidate.id))
    {
        return format!("none of its variants has a {kind} as its scale target; {compare}");
    }
    let subject = match names[..] {
        _ if candidates.is_empty() => {
            return format!("this installation has no variant {} there; {compare}", names.join(" or "));
        }
        [] => format!("none of its {} variants matches", candidates.len()),
        [name] => format!("variant {name} does not match"),
        _ => "none of these variants matches".into(),
    };
    let labels: Vec<_> = candidates.iter().map(|candidate| candidate.labels(query)).collect();
    format!("{subject}: {}; {compare}", unmet(&selector, &labels))
}

/// The requirements of `selector` that none of the variants with these labels meets.
fn unmet(selector: &VariantSelector<'_>, variants: &[Labels<'_>]) -> String {
    let requirements = selector.requirements().into_iter();
    let unmet = requirements.filter(|requirement| {
        !variants.iter().any(|labels| requirement.operator.holds(labels.get(requirement.key)))
    });
    let is_missing = |key: &str| variants.iter().all(|labels| labels.get(key).is_none());
    let (missing, failed): (Vec<_>, Vec<_>) =
        unmet.partition(|requirement| requirement.operator.needs_label() && is_missing(requirement.key));
    let mut causes = Vec::new();
    if !missing.is_empty() {
        let missing: BTreeSet<_> = missing.iter().map(|requirement| requirement.key).collect();
        let existing: BTreeSet<_> =
            variants.iter().flat_map(|labels| labels.iter()).map(|(key, _)| key).collect();
        causes.push(format!("there is no label {} (labels are {})", join(missing), join(existing)));
    }
    if !failed.is_empty() {
        let failed: Vec<_> = failed.iter().map(|requirement| format!("\"{requirement}\"")).collect();
        causes.push(format!("nothing meets {}", failed.join(", ")));
    }
    if causes.is_empty() {
        causes.push("each requirement is met by some of them, but none meets all".into());
    }
    causes.join("; ")
}

fn join(keys: BTreeSet<&str>) -> String {
    keys.into_iter().collect::<Vec<_>>().join(", ")
}

/// The error for a variant that was evaluated and has no target.
pub(super) fn no_target(id: &VariantId, unknown: &Unknown, query: &MetricQuery<'_>) -> Status {
    let reason = match unknown.cause {
        Cause::NothingKnown | Cause::TooOld | Cause::TargetUnknown | Cause::ModelUnknown => {
            Reason::ServiceUnavailable
        }
        Cause::InvalidVariant => Reason::Invalid,
        Cause::TargetNotFound => Reason::NotFound,
    };
    let message = format!(
        "{} of variant {id} is not known: {} (for {}, since {})",
        query.metric,
        unknown.explanation,
        Seconds::between(unknown.since, query.context.now),
        Time::from_timestamp(unknown.since)
    );
    about(id, reason, message, query)
}

/// The error for a target whose evidence is too old now.
pub(super) fn evidence_too_old(id: &VariantId, target: &Target, query: &MetricQuery<'_>) -> Status {
    let message = format!(
        "{} of variant {id} is withheld: its newest evidence is {}, more than max-stale {}; the last number was {} ({}: \
         {}); check that the metric source answers and that an instance of wva holds the lease",
        query.metric,
        evidence_age(target, query),
        query.context.max_stale,
        target.desired,
        target.reason.as_str(),
        target.explanation
    );
    about(id, Reason::ServiceUnavailable, message, query)
}

/// The error for a metric that needs the current count of a scale target that has none.
pub(super) fn no_current_count(id: &VariantId, target: &Target, query: &MetricQuery<'_>) -> Status {
    let message = format!(
        "{} of variant {id} is not known: its scale target has no current count; its newest evidence is {}; check that the \
         target exists: {}",
        query.metric,
        evidence_age(target, query),
        kubectl_get(id)
    );
    about(id, Reason::NotFound, message, query)
}

/// The error for a number that all HPAs multiply by their Ready pods, while there are none.
pub(super) fn no_ready_pod(id: &VariantId, target: &Target, query: &MetricQuery<'_>) -> Status {
    let message = format!(
        "{} of variant {id} is withheld: it is {}, its HPAs have targets of the type Value, which multiply it by their Ready pods, and no \
         pod is Ready; it is served again with the first one, or to HPAs with targets of the type AverageValue",
        query.metric, target.desired
    );
    about(id, Reason::ServiceUnavailable, message, query)
}

/// The error for a number while it is not known which HPAs multiply it.
pub(super) fn unknown_readers(id: &VariantId, target: &Target, query: &MetricQuery<'_>) -> Status {
    let message = format!(
        "{} of variant {id} is withheld: it is {}, and it is not known which HPAs have targets of the type Value, which multiply it; \
         check that this server may list and watch HorizontalPodAutoscalers, or remove --serve-value-targets",
        query.metric, target.desired
    );
    about(id, Reason::ServiceUnavailable, message, query)
}

/// The error for a number that an HPA would misread.
pub(super) fn invalid_quantity(
    id: &VariantId,
    target: &Target,
    error: InvalidQuantity,
    query: &MetricQuery<'_>,
) -> Status {
    let message = format!(
        "{} of variant {id} is withheld: {error}; its newest evidence is {}; this is a bug of this server: report it with \
         the variant, {}",
        query.metric,
        evidence_age(target, query),
        kubectl_get(id)
    );
    about(id, Reason::InternalError, message, query)
}

fn evidence_age(target: &Target, query: &MetricQuery<'_>) -> String {
    let age = Seconds::between(target.evidence, query.context.now);
    format!("{age} old (from {})", Time::from_timestamp(target.evidence))
}

fn kubectl_get(id: &VariantId) -> String {
    let VariantId { namespace, name } = id;
    format!("`kubectl get variantautoscaling {name} -n {namespace} -o yaml`")
}
