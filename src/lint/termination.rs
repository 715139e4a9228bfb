//! How the pods of a workload end.

use k8s_openapi::api::core::v1::{Lifecycle, LifecycleHandler, PodSpec};

/// What a pod means by leaving out `terminationGracePeriodSeconds`.
pub(super) const DEFAULT_GRACE: i64 = 30;

/// How the pods of a workload end, as their template says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Termination {
    /// Seconds from the order to stop to the kill.
    pub(super) grace: i64,
    pub(super) pre_stop: PreStop,
}

/// The preStop hooks of the containers that serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PreStop {
    /// None of them has one; the name of the first.
    Missing(Box<str>),
    /// How long the longest one sleeps, seconds, where that can be read.
    Sleeps(Option<i64>),
}

/// A container, as far as its end depends on it.
#[derive(Debug, Clone, Copy)]
pub struct EndingContainer<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether it has a limit of GPUs of any make.
    pub has_gpus: bool,
    /// Its hooks.
    pub lifecycle: Option<&'a Lifecycle>,
}

impl Termination {
    /// That of pods with these containers, of which those with GPUs serve, or all where none has any; `None` without containers. `grace` is
    /// their `terminationGracePeriodSeconds`.
    pub fn new<'a>(
        grace: Option<i64>,
        containers: impl Iterator<Item = EndingContainer<'a>> + Clone,
    ) -> Option<Self> {
        let has_gpus = containers.clone().any(|container| container.has_gpus);
        let servers = containers.filter(|container| container.has_gpus || !has_gpus);
        let first = servers.clone().next()?;
        let mut hooks = servers.filter_map(|container| container.lifecycle?.pre_stop.as_ref()).peekable();
        let pre_stop = match hooks.peek() {
            Some(_) => PreStop::Sleeps(hooks.filter_map(sleep).max()),
            None => PreStop::Missing(first.name.into()),
        };
        Some(Self { grace: grace.unwrap_or(DEFAULT_GRACE), pre_stop })
    }

    /// That of pods with this spec.
    #[must_use]
    pub fn of(spec: &PodSpec) -> Option<Self> {
        let containers = spec.containers.iter().map(|container| EndingContainer {
            name: &container.name,
            has_gpus: container
                .resources
                .iter()
                .flat_map(|own| own.limits.iter().flatten())
                .any(|(resource, _)| is_gpu(resource)),
            lifecycle: container.lifecycle.as_ref(),
        });
        Self::new(spec.termination_grace_period_seconds, containers)
    }
}

/// Whether a resource is GPUs of any make.
pub(crate) fn is_gpu(resource: &str) -> bool {
    resource.ends_with("/gpu")
}

/// How long a hook sleeps, where that can be read.
fn sleep(hook: &LifecycleHandler) -> Option<i64> {
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
