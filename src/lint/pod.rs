//! How the pods of a workload end when the number falls.

use super::input::Workload;
use super::object::ObjectRef;
use super::termination::{DEFAULT_GRACE, PreStop, Termination};
use wva_core::text::quoted;

use super::words::{Severity, Words};

/// Shortest time that lets most answers end: 2,000 tokens at 30 ms each.
const MIN_GRACE: i64 = 60;
/// What a preStop hook should wait for, seconds: that endpoints and the scheduler no longer send requests.
const PRE_STOP: i64 = 15;

/// Answers that are cut off when a pod is removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodIssue {
    /// The container is stopped while requests are still sent to it.
    NoPreStop {
        /// The container.
        container: String,
    },
    /// There is less time than an answer takes.
    GraceTooShort {
        /// Seconds.
        grace: i64,
    },
    /// The hook takes all of the time.
    PreStopTooLong {
        /// How long it sleeps, seconds.
        sleep: i64,
        /// Seconds in all.
        grace: i64,
    },
}

/// What is wrong with the pods of a variant, and with which object.
pub(super) fn judge(workload: &Workload<'_>) -> Vec<(ObjectRef, PodIssue)> {
    let termination = workload.termination.filter(|_| workload.variant.is_some());
    let Some(Termination { grace, pre_stop }) = termination else { return Vec::new() };
    let object = ObjectRef {
        kind: workload.target.kind.clone(),
        namespace: workload.namespace.into(),
        name: workload.target.name.clone(),
    };
    let grace = *grace;
    let mut issues = Vec::new();
    if let PreStop::Missing(container) = pre_stop {
        issues.push(PodIssue::NoPreStop { container: container.to_string() });
    }
    match pre_stop {
        PreStop::Sleeps(Some(sleep)) if *sleep >= grace => {
            issues.push(PodIssue::PreStopTooLong { sleep: *sleep, grace });
        }
        _ if grace < MIN_GRACE => issues.push(PodIssue::GraceTooShort { grace }),
        _ => {}
    }
    issues.into_iter().map(|issue| (object.clone(), issue)).collect()
}

impl PodIssue {
    pub(super) fn words(&self) -> Words {
        match self {
            Self::NoPreStop { container } => Words::new(
                (Severity::Warning, "NoPreStop"),
                format!("container {} has no preStop hook", quoted(container)),
                "at each removal it is told to stop while Services and the scheduler still send it requests: these fail",
                template(&format!(
                    "containers:\n      - name: {}\n        lifecycle: {{preStop: {{sleep: {{seconds: {PRE_STOP}}}}}}} # before Kubernetes 1.30: exec, with a command that sleeps",
                    // A string of JSON is one of YAML.
                    serde_json::Value::from(container.as_str())
                )),
            ),
            Self::GraceTooShort { grace } => Words::new(
                (Severity::Warning, "GracePeriodTooShort"),
                format!(
                    "terminationGracePeriodSeconds is {grace}{}",
                    if *grace == DEFAULT_GRACE { ", the default" } else { "" }
                ),
                format!(
                    "at each removal, answers that take longer than {grace} s (2,000 tokens at 30 ms take {MIN_GRACE} s) are cut off"
                ),
                template("terminationGracePeriodSeconds: 120 # the longest answer, and the preStop hook"),
            ),
            Self::PreStopTooLong { sleep, grace } => Words::new(
                (Severity::Warning, "PreStopTooLong"),
                format!("the preStop hook sleeps {sleep} s, and terminationGracePeriodSeconds is {grace}"),
                "the hook takes all of the time: the server is killed at its end, and running answers are cut off",
                template(&format!("terminationGracePeriodSeconds: {}", sleep.saturating_add(MIN_GRACE))),
            ),
        }
    }
}

fn template(fields: &str) -> String {
    format!("spec:\n  template:\n    spec:\n      {fields}")
}
