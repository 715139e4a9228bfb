//! Prometheus: whether it answers, its clock, and whether it has the series that each model needs, present and fresh.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use smol_str::SmolStr;
use wva_core::model::Role;
use wva_core::snapshot::{Signal, SignalSet};
use wva_core::units::{Replicas, Seconds};
use wva_core::{GroupId, required_signals};

use super::policy::Loaded;
use super::report::Report;
use super::settings::Settings;
use crate::collect::{PrometheusSettings, PrometheusSource, current_series_names};
use crate::engine::{Clock as _, Collected, MetricSource as _, Scope, SystemClock};
use crate::lint::Severity;

/// Longest wait for one query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest wait for all series.
const COLLECTION_TIMEOUT: Duration = Duration::from_secs(4);
/// A clock that is further off delays what is seen.
const MAX_SKEW: Seconds = Seconds::whole(10);
/// Samples that are further in the future are ignored.
const MAX_AHEAD: Seconds = Seconds::whole(60);
/// A sample that is older is stale with the usual scrape intervals.
const MAX_AGE: Seconds = Seconds::whole(60);
/// Most models that are named one by one with one problem.
const MAX_MODELS: usize = 50;

/// A model of one namespace.
struct Model<'a> {
    group: GroupId,
    /// The signals without which its analyzer cannot decide.
    needed: SignalSet,
    /// Whether it may go to zero, and only the scheduler's queue would wake it.
    sleeps_by_queue: bool,
    /// Whether replicas of it are requested at all.
    is_running: bool,
    analyzer: &'a str,
}

/// The age of the newest sample of each signal of each model; without a model where series name none.
type Ages = BTreeMap<(SmolStr, Option<SmolStr>), BTreeMap<Signal, Seconds>>;

/// Checks Prometheus, if its flags are given.
pub(super) async fn check(loaded: &Loaded, settings: &Settings) -> Report {
    let mut report = Report::default();
    if settings.is_scraping {
        report.add_unchecked(
            false,
            "metrics of pods",
            "with --source=scrape the program reads its pods itself, which a check does not do",
            "# the conditions MetricsAvailable and SignalsComplete of each variant say what it reads",
        );
        return report;
    }
    let Some(configured) = &settings.prometheus else {
        report.add_unchecked(
            false,
            "Prometheus",
            "no --prometheus-url was given",
            "# wva check --prometheus-url https://HOST:PORT, with the flags that `wva serve` has",
        );
        return report;
    };
    let source = match PrometheusSource::new(&limited(configured)) {
        Ok(source) => source,
        Err(error) => {
            report.add(
                (Severity::Error, "PrometheusUnusable"),
                "Prometheus",
                error.message,
                "the program does not start with these flags",
                "# correct the flag that is named",
            );
            return report;
        }
    };
    check_clock(&source, &mut report).await;
    let is_reached = report.findings.iter().all(|finding| finding.reason != "PrometheusUnreachable");
    if is_reached {
        check_series(&source, loaded, &mut report).await;
    }
    report
}

/// The settings with the time that a check has.
pub(super) fn limited(configured: &PrometheusSettings) -> PrometheusSettings {
    PrometheusSettings { query_timeout: QUERY_TIMEOUT, deadline: COLLECTION_TIMEOUT, ..configured.clone() }
}

async fn check_clock(source: &PrometheusSource, report: &mut Report) {
    let before = SystemClock.now();
    match source.server_time().await {
        Err(error) => report.add(
            (Severity::Error, "PrometheusUnreachable"),
            source.name(),
            &error.message,
            "every number is held, and an error after 5 minutes (--max-stale): HPAs keep their replicas, whatever the load",
            "# the message says what to check",
        ),
        Ok(Some(theirs)) => {
            let after = SystemClock.now();
            // The answer was made between the two.
            let (ahead, behind) = (Seconds::between(after, theirs), Seconds::between(theirs, before));
            let skew = ahead.max(behind);
            if skew <= MAX_SKEW {
                return;
            }
            let (direction, severity) = match ahead > behind {
                true if skew > MAX_AHEAD => ("ahead of", Severity::Error),
                true => ("ahead of", Severity::Warning),
                // Its samples count for 60 s.
                false if skew > MAX_AGE => ("behind", Severity::Error),
                false => ("behind", Severity::Warning),
            };
            report.add(
                (severity, "ClockSkew"),
                source.name(),
                format!("its clock is {:.0} s {direction} the one here", skew.get()),
                "samples seem that much newer or older than they are; of those more than 60 s in the future none is read",
                "# synchronise the clocks (NTP) of both machines; run this in a pod to compare the clock that counts",
            );
        }
        Ok(None) => report.add_unchecked(
            false,
            source.name(),
            "it did not answer the query `vector(time())` with a time",
            "# check that the URL is that of a Prometheus API",
        ),
    }
}

async fn check_series(source: &PrometheusSource, loaded: &Loaded, report: &mut Report) {
    let models = models(loaded);
    if models.is_empty() {
        return;
    }
    let variants = loaded.state.view.variants.iter().map(|state| &state.variant);
    let scope = Scope {
        namespaces: models.iter().map(|model| model.group.namespace.to_string()).collect(),
        needs: Some(required_signals(&loaded.policy, variants)),
        ..Scope::default()
    };
    let collected = match source.collect(&scope).await {
        Ok(collected) => collected,
        Err(error) => {
            report.add_unchecked(
                true,
                source.name(),
                format!("could not read the series of models: {}", error.message),
                "# the message says what to check",
            );
            return;
        }
    };
    for gap in &collected.gaps {
        report.add(
            (Severity::Warning, "SeriesIncomplete"),
            source.name(),
            &gap.reason,
            "no number falls while the answer is incomplete",
            "# the message says what to check",
        );
    }
    let ages = ages(&collected, SystemClock.now());
    let (mut faulty, mut unnamed) = (0, Report::default());
    for model in models.iter().filter(|model| model.is_running) {
        let mut found = Report::default();
        judge(model, &ages, &mut found);
        if found.findings.is_empty() {
            continue;
        }
        faulty += 1;
        if faulty <= MAX_MODELS { report.merge(found) } else { unnamed.merge(found) }
    }
    // The worst of them decides.
    if let Some(worst) = unnamed.findings.iter().min() {
        report.add(
            (worst.severity, worst.reason),
            source.name(),
            format!("{} further models lack series, or have old ones", faulty - MAX_MODELS),
            &worst.effect,
            "# check namespace by namespace with -n",
        );
    }
}

/// The models of all variants that name one.
fn models(loaded: &Loaded) -> Vec<Model<'_>> {
    let mut models: BTreeMap<GroupId, Model<'_>> = BTreeMap::new();
    let named = loaded.state.view.variants.iter().filter(|state| state.variant.names_model());
    for state in named {
        let group = state.variant.group();
        let analyzer = loaded.policy.of(&group).analyzer;
        let sleeps_by_queue = loaded.policy.scale_to_zero(&group).enabled;
        let model = models.entry(group.clone()).or_insert_with(|| Model {
            group,
            needed: analyzer.needed(Role::Both),
            sleeps_by_queue,
            is_running: false,
            analyzer: analyzer.as_str(),
        });
        if state.variant.role == Role::Prefill {
            model.needed = analyzer.needed(Role::Prefill);
        }
        model.is_running |= state.scale.is_none_or(|scale| scale.spec > Replicas::ZERO);
        model.sleeps_by_queue &=
            state.variant.bounds.min == Replicas::ZERO && state.variant.woken_by.is_none();
    }
    models.into_values().collect()
}

fn ages(collected: &Collected, now: Timestamp) -> Ages {
    let mut ages = Ages::new();
    for series in &collected.series {
        let Some(newest) = series.samples.iter().last() else { continue };
        let age = Seconds::between(newest.at, now);
        let model = series.labels.model.as_deref().map(SmolStr::from);
        let of_model = ages.entry(((&*series.labels.namespace).into(), model)).or_default();
        let known = of_model.entry(series.signal).or_insert(age);
        *known = known.min(age);
    }
    ages
}

/// The age of a signal of a model, also if its series name no model.
fn age(model: &Model<'_>, signal: Signal, ages: &Ages) -> Option<Seconds> {
    let GroupId { namespace, model: name } = &model.group;
    let of = |model: Option<SmolStr>| {
        ages.get(&(namespace.clone(), model)).and_then(|ages| ages.get(&signal)).copied()
    };
    of(Some(name.clone())).or_else(|| of(None))
}

fn missing(model: &Model<'_>, ages: &Ages) -> BTreeSet<Signal> {
    model.needed.iter().filter(|signal| age(model, *signal, ages).is_none()).collect()
}

fn judge(model: &Model<'_>, ages: &Ages, report: &mut Report) {
    let GroupId { namespace, model: name } = &model.group;
    let object = format!("model {name} in namespace {namespace}");
    let missing = missing(model, ages);
    let needed = model.needed.iter().count();
    let monitor = format!(
        "# metrics of its pods: kind PodMonitor, namespace {namespace}, with the port of /metrics; the label namespace has to be the pod's,\n# and model_name {name}"
    );
    if needed > 0 && missing.len() == needed {
        report.add(
            (Severity::Error, "NoSeries"),
            object,
            format!("Prometheus has none of the {needed} signals that {} reads", model.analyzer),
            "its number is held, and an error after --max-stale, and it has none if it was never measured: the HPA keeps its replicas, \
             whatever the load",
            monitor,
        );
        return;
    }
    if !missing.is_empty() {
        let names: Vec<String> =
            missing.iter().flat_map(|signal| current_series_names(*signal).into_iter().take(1)).collect();
        report.add(
            (Severity::Warning, "SeriesMissing"),
            &object,
            format!("Prometheus has no series such as {}", names.join(", ")),
            format!(
                "{} cannot decide: another analyzer decides about additions, and nothing is removed",
                model.analyzer
            ),
            "# keep them in metricRelabelings, or update the engine: docs/signals.md has all names",
        );
    }
    let stale =
        model.needed.iter().filter_map(|signal| age(model, signal, ages)).fold(Seconds::ZERO, Seconds::max);
    if stale > MAX_AGE {
        report.add(
            (Severity::Warning, "SeriesStale"),
            &object,
            format!("the newest sample of a signal is {:.0} s old", stale.get()),
            "samples older than 60 s, or four scrape intervals, do not count: the number is held",
            "# check the scrape target in Prometheus (Status → Targets), and its interval",
        );
    }
    let queue = Signal::SchedulerQueueSize;
    if model.sleeps_by_queue && age(model, queue, ages).is_none() {
        report.add(
            (Severity::Warning, "SchedulerQueueMissing"),
            object,
            format!("Prometheus has no series such as {}", current_series_names(queue).join(", ")),
            "the model may go to zero and never does: nothing would tell when a request waits for it",
            "# scrape the endpoint picker (EPP) of its InferencePool, with flow control enabled; or, if something else wakes it:\nmetadata:\n  annotations: {wva.llmd.ai/woken-by: \"KEDA's HTTP add-on\"}",
        );
    }
}
