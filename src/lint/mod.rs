//! Judges the autoscalers of one scale target: what is set, what happens because of it, and the YAML that mends it. Pure: values in,
//! findings out.
//!
//! A finding is data, an [`Issue`] with its numbers, and [`Finding::advice`] is the only place that renders it. What an HPA does with a
//! number is computed by `wva_core::hpa`, whose arithmetic is that of the controller.

mod api;
mod behavior;
mod bounds;
mod fallback;
mod finding;
mod input;
mod keda;
mod metric;
mod object;
mod pause;
mod pod;
mod query;
mod selector;
mod target;
mod termination;
#[cfg(test)]
mod tests;
mod words;

pub use finding::{Advice, Finding, Issue};
pub use input::{
    Candidate, Candidates, ExternalMetrics, Label, ScaledObject, ScaledTarget, Trigger, VariantFacts,
    VerticalPodAutoscaler, VerticalSpec, Workload, is_of_keda,
};
pub use metric::{NUMBERS, Number, reads_a_number};
pub use object::ObjectRef;
pub use selector::selected_names;
pub use target::updates_pods;
pub use termination::{EndingContainer, Termination};
pub use words::Severity;

pub(crate) use input::TRANSFER;
pub(crate) use target::NUMBER_NOT_READ;

pub(crate) use api::{INSTALL_FIX, OWNER_FIX};
pub(crate) use metric::find as number_named;
pub(crate) use pause::paused;
pub(crate) use query::{labels_after, metric_in, query};
pub(crate) use target::NO_AUTOSCALER;
pub(crate) use termination::is_gpu;

/// What is wrong, or worth knowing, about the autoscalers of a workload: that of each object in the order in which it is looked at.
#[must_use]
pub fn lint(workload: &Workload<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for hpa in workload.own_hpas() {
        let object = ObjectRef::of("HorizontalPodAutoscaler", &hpa.metadata);
        let mut add = |issues: Vec<Issue>| {
            findings.extend(issues.into_iter().map(|issue| Finding { object: object.clone(), issue }));
        };
        let spec = hpa.spec.clone().unwrap_or_default();
        let (mut metrics, reads) = metric::judge(&spec, workload.most_replicas(spec.max_replicas));
        if workload.variant.is_some_and(|variant| variant.serves_value_targets) {
            metrics.retain(|issue| !issue.is_external_value());
        }
        add(metrics.into_iter().map(Issue::Metric).collect());
        add(api::judge(workload.external, &reads).into_iter().map(Issue::Api).collect());
        add(reads.iter().filter_map(|read| selector::judge(read, workload)).map(Issue::Selector).collect());
        add(target::judge_reads(workload, reads.len(), &spec).into_iter().map(Issue::Target).collect());
        if !reads.is_empty() {
            add(bounds::of_hpa(workload, &spec).into_iter().map(Issue::Bounds).collect());
            add(behavior::of_hpa(workload, &spec).into_iter().map(Issue::Behavior).collect());
        }
    }
    for scaled in &workload.scaled_objects {
        let object = ObjectRef::of("ScaledObject", &scaled.metadata);
        let mut add = |issues: Vec<Issue>| {
            findings.extend(issues.into_iter().map(|issue| Finding { object: object.clone(), issue }));
        };
        let (issues, metrics) = keda::judge(workload, scaled);
        add(issues.into_iter().map(Issue::Keda).collect());
        add(metrics.into_iter().map(Issue::Metric).collect());
        if scaled.reads_a_number() {
            add(bounds::of_scaled_object(workload, scaled).into_iter().map(Issue::Bounds).collect());
            add(behavior::of_scaled_object(workload, scaled).into_iter().map(Issue::Behavior).collect());
        }
    }
    let targets = target::judge(workload).into_iter().map(|(object, issue)| (object, Issue::Target(issue)));
    let pods = pod::judge(workload).into_iter().map(|(object, issue)| (object, Issue::Pod(issue)));
    findings.extend(targets.chain(pods).map(|(object, issue)| Finding { object, issue }));
    findings
}
