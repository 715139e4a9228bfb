//! How the pods of a workload end when the number falls.

use k8s_openapi::api::core::v1::{Container, PodSpec};

use super::input::Workload;
use super::object::ObjectRef;
use wva_core::text::quoted;

use super::words::{Severity, Words};

/// What a pod means by leaving out `terminationGracePeriodSeconds`.
const DEFAULT_GRACE: i64 = 30;
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
    let Some(spec) = workload.template.filter(|_| workload.variant.is_some()) else { return Vec::new() };
    let object = ObjectRef {
        kind: workload.target.kind.clone(),
        namespace: workload.namespace.into(),
        name: workload.target.name.clone(),
    };
    let servers = servers(spec);
    let grace = spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE);
    let hook = |container: &&Container| {
        container.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.pre_stop.is_some())
    };
    let mut issues = Vec::new();
    if let Some(container) = servers.first().filter(|_| !servers.iter().any(hook)) {
        issues.push(PodIssue::NoPreStop { container: container.name.clone() });
    }
    let sleep = servers.iter().filter_map(|container| sleep(container)).max();
    match sleep.filter(|sleep| *sleep >= grace) {
        Some(sleep) => issues.push(PodIssue::PreStopTooLong { sleep, grace }),
        None if grace < MIN_GRACE => issues.push(PodIssue::GraceTooShort { grace }),
        None => {}
    }
    issues.into_iter().map(|issue| (object.clone(), issue)).collect()
}

/// The containers that serve: those with GPUs, or all where none has any.
fn servers(spec: &PodSpec) -> Vec<&Container> {
    let has_gpus = |container: &&Container| {
        let resources = container.resources.as_ref();
        let limits = resources.and_then(|resources| resources.limits.as_ref());
        limits.is_some_and(|limits| limits.keys().any(|name| name.ends_with("/gpu")))
    };
    let with_gpus: Vec<_> = spec.containers.iter().filter(has_gpus).collect();
    if with_gpus.is_empty() { spec.containers.iter().collect() } else { with_gpus }
}

/// How long the hook of a container sleeps, where that can be read.
fn sleep(container: &Container) -> Option<i64> {
    let hook = container.lifecycle.as_ref()?.pre_stop.as_ref()?;
    if let Some(sleep) = &hook.sleep {
        return Some(sleep.seconds);
    }
    let command = hook.exec.as_ref()?.command.as_ref()?.join(" ");
    let words = command.match_indices("sleep ");
    let is_word = |at: &usize| !command[..*at].ends_with(|letter: char| letter.is_ascii_alphanumeric());
    let at = words.map(|(at, _)| at).find(is_word)?;
    let after = &command[at + "sleep ".len()..];
    after.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
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
