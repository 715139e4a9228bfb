//! The rules of prometheus-adapter: what each of them would make, and what is wrong with it.

use std::sync::Arc;

use kube::Client;

use super::inputs::Inputs;
use super::prometheus::limited;
use super::report::Report;
use super::rights;
use super::settings::Settings;
use crate::app::ClusterObjects;
use crate::collect::PrometheusApi;
use crate::engine::{Clock as _, SystemClock};
use crate::lint::Severity;
use crate::rules::{ObjectKind, ReviewSources, RuleProblem, review};
use crate::serve::Metric;

/// Where the format is described.
const FIX: &str = "# correct what is named; docs/rules.md has an example of each kind of rule";

/// Checks the file of `--adapter-config`, with the cluster and, if it is known, Prometheus.
pub(super) async fn check(client: &Client, settings: &Settings) -> Report {
    let mut report = Report::default();
    let Some((place, text)) = file(settings, &mut report) else { return report };
    let objects = ClusterObjects::new(client.clone());
    // Why it cannot be used is said once, of the series of models.
    let api =
        settings.prometheus.as_ref().and_then(|configured| PrometheusApi::new(&limited(configured)).ok());
    if api.is_none() {
        report.add_unchecked(
            false,
            &place,
            "without --prometheus-url it is not known what the rules make of series",
            "# wva check --prometheus-url https://HOST:PORT, with the flags that `wva serve` has",
        );
    }
    let sources = ReviewSources {
        prometheus: api.as_ref().map(|api| (api, settings.rules.max_age, SystemClock.now())),
        objects: Some(&objects),
        ..sources(settings)
    };
    let kinds = check_text(&place, &text, sources, &mut report).await;
    report.merge(rights::check_lists(client, settings, &kinds).await);
    report
}

/// Checks the file of `--adapter-config` and the rules among the files, without asking anybody.
pub(super) async fn check_texts(inputs: &Inputs, settings: &Settings) -> Report {
    let mut report = Report::default();
    let file = file(settings, &mut report);
    for (place, text) in file.iter().chain(&inputs.rules) {
        check_text(place, text, sources(settings), &mut report).await;
    }
    report
}

fn sources(settings: &Settings) -> ReviewSources<'static> {
    ReviewSources {
        prometheus: None,
        objects: None,
        serves_usage: settings.rules.serves_usage,
        is_reserved: |name| Metric::find(name).is_some(),
    }
}

/// The file of the rules and its text, if there is one.
fn file(settings: &Settings, report: &mut Report) -> Option<(String, String)> {
    let file = settings.rules.file.as_ref()?;
    let place = format!("file {}", file.display());
    match std::fs::read_to_string(file) {
        Ok(text) => Some((place, text)),
        Err(error) => {
            let fix = "# give the file of rules that exists and that you may read";
            report.add_unchecked(true, place, format!("could not read it: {error}"), fix);
            None
        }
    }
}

/// Checks the text of rules, and returns the kinds whose objects are listed for reads of their metrics.
async fn check_text(
    place: &str,
    text: &str,
    sources: ReviewSources<'_>,
    report: &mut Report,
) -> Vec<Arc<ObjectKind>> {
    match review(text, sources).await {
        Ok(review) => {
            for (rule, problem) in review.findings {
                add(format!("{rule} of {place}"), problem, report);
            }
            review.kinds
        }
        Err(cause) => {
            report.add(
                (Severity::Error, "RulesInvalid"),
                place,
                cause,
                "none of these rules is in force; a program that runs keeps those that it has read before",
                FIX,
            );
            Vec::new()
        }
    }
}

/// What a finding says: severity and reason, what is set, what happens because of it, and what mends it.
type Words = ((Severity, &'static str), String, &'static str, &'static str);

const MISSING: &str = "it makes no metrics: a read of one is an error, for which HPAs keep their replicas";
const NAMING: &str = "# correct seriesFilters, name.matches or name.as";

fn add(rule: String, problem: RuleProblem, report: &mut Report) {
    if let RuleProblem::Unchecked(cause) = problem {
        return report.add_unchecked(false, rule, cause, "# the message says what to check");
    }
    let words = words_of_rule(&problem).or_else(|| words_of_metrics(&problem));
    if let Some((kind, set, effect, fix)) = words {
        report.add(kind, rule, set, effect, fix);
    }
}

/// What is wrong with the fields of a rule, or with the series that it selects.
fn words_of_rule(problem: &RuleProblem) -> Option<Words> {
    let words = match problem {
        RuleProblem::Invalid(cause) => ((Severity::Error, "RuleInvalid"), cause.clone(), MISSING, FIX),
        RuleProblem::SeriesQuery(cause) => {
            let set = format!("Prometheus refuses its seriesQuery: {cause}");
            ((Severity::Error, "RuleInvalid"), set, MISSING, FIX)
        }
        RuleProblem::Query(cause) => (
            (Severity::Error, "RuleQueryFails"),
            format!("it has no query that Prometheus answers: {cause}"),
            "a read of its metrics is an error, for which HPAs keep their replicas",
            FIX,
        ),
        RuleProblem::NoSeries(age) => (
            (Severity::Warning, "RuleWithoutSeries"),
            format!("no series that its seriesQuery selects has had a sample for {} s", age.as_secs()),
            MISSING,
            "# compare the labels in seriesQuery with those that Prometheus has; series with rarer samples need --metrics-max-age",
        ),
        RuleProblem::NoName(count) => (
            (Severity::Warning, "RuleWithoutMetrics"),
            format!(
                "of the names of its series ({count}), none passes its filters and becomes that of a metric"
            ),
            MISSING,
            NAMING,
        ),
        RuleProblem::NoObject(count) => (
            (Severity::Warning, "RuleWithoutObjects"),
            format!("no label of its series ({count} names) is that of a kind of objects by its resources"),
            MISSING,
            "# name the labels of objects by resources.template or resources.overrides",
        ),
        RuleProblem::UnknownResource(resource) => (
            (Severity::Warning, "ResourceUnknown"),
            format!("an override names the resource {resource}, which the API server does not serve"),
            "the label names no objects until it is served",
            "# correct group and resource, or install what defines it",
        ),
        RuleProblem::Unused => (
            (Severity::Note, "RuleUnused"),
            "it is there, and --serve-resource-metrics is not set".to_owned(),
            "it has no effect: usually metrics-server serves metrics.k8s.io",
            "# nothing to mend, if that is meant",
        ),
        _ => return None,
    };
    Some(words)
}

/// What is wrong with the metrics that a rule makes.
fn words_of_metrics(problem: &RuleProblem) -> Option<Words> {
    let words = match problem {
        RuleProblem::Replaced { metric, count, by } => (
            (Severity::Warning, "MetricReplaced"),
            format!("it makes {}, and so does {by}", named(metric, *count)),
            "the last rule that makes a metric counts, and not this one",
            NAMING,
        ),
        RuleProblem::Reserved(metric) => (
            (Severity::Warning, "MetricReserved"),
            format!("it makes {metric}"),
            "that is a metric of variants: reads of it get the decision, and never what this rule makes",
            "# remove the rule if it is the one by which prometheus-adapter served the number, or else choose another name.as",
        ),
        RuleProblem::SameInLowerCase(first, second) => (
            (Severity::Warning, "MetricsDifferInCase"),
            format!("{first} and {second} differ only in case"),
            "an HPA asks in lower case, and finds neither",
            NAMING,
        ),
        RuleProblem::TooManyMetrics(share) => (
            (Severity::Warning, "RuleMakesTooMany"),
            format!("it makes more than {share} metrics, its share"),
            "those beyond are left out",
            "# narrow its seriesQuery",
        ),
        _ => return None,
    };
    Some(words)
}

fn named(metric: &str, count: usize) -> String {
    if count == 1 { metric.to_owned() } else { format!("{metric} and {} more", count - 1) }
}
