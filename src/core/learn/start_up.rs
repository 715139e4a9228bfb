//! How long a pod of a variant takes from its creation to serving.

use serde::{Deserialize, Serialize};

use smol_str::SmolStr;

use super::knowledge::ReplacedPods;
use super::{is_default, short};
use crate::moment::Moment;
use crate::snapshot::{Phase, Replica, VariantState};

/// From a change of the load to the order of a pod, seconds: about 10 to see it, 15 until the HPA looks at the worst, 5 for a
/// scrape.
pub const LEAD: f64 = 30.0;

/// Starts that are remembered. The longest counts.
const KEPT: usize = 5;

/// A start that a pod says it took before anybody watched, seconds, is at most this: readiness may have come and gone.
const UNWATCHED_MOST: f64 = 600.0;

/// No start takes longer, seconds: beyond it, a pod that serves is none that has just started.
const MOST: f64 = 1800.0;

/// When each pod that serves was created, and when it began to serve; in the order of the pods that serve.
#[must_use]
pub fn start_up_times(state: &VariantState) -> Vec<(Moment, Moment)> {
    let serving = state.replicas.iter().filter(|one| one.phase == Phase::Ready);
    serving.map(|replica| (replica.created.into(), replica.ready_or_created().into())).collect()
}

/// The starts of one variant's pods.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StartUpTimes {
    /// The last ones, seconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    last: Vec<f64>,
    /// Until when starts were counted.
    #[serde(skip_serializing_if = "is_default")]
    counted: Option<Moment>,
}

impl StartUpTimes {
    /// Looks at the pods that serve at `now`: when each was created and when it began to serve. `served_before` says whether
    /// the pod at a position was seen serving earlier, so that it has not just started but become ready again.
    pub fn learn(&mut self, now: Moment, pods: &[(Moment, Moment)], served_before: impl Fn(usize) -> bool) {
        let Some(counted) = self.counted else {
            self.counted = Some(now);
            return;
        };
        let new = pods.iter().enumerate().filter(|(at, (_, ready))| *ready > counted && !served_before(*at));
        let mut new: Vec<_> = new.map(|(_, pod)| *pod).collect();
        new.sort_by_key(|(created, ready)| (*ready, *created));
        self.last.extend(new.iter().map(|(created, ready)| created.until(*ready)).filter(|one| *one <= MOST));
        self.last.drain(..self.last.len().saturating_sub(KEPT));
        self.counted = pods.iter().map(|(_, ready)| *ready).chain([counted]).max();
    }

    /// How long a start takes, seconds: the longest of those seen; before one was, at least `prior` and what half of the
    /// pods that serve already say it took.
    #[must_use]
    pub fn expected(&self, prior: f64, pods: &[(Moment, Moment)]) -> f64 {
        if let Some(longest) = self.last.iter().copied().reduce(f64::max) {
            return longest;
        }
        let mut said: Vec<f64> = pods.iter().map(|(created, ready)| created.until(*ready)).collect();
        said.sort_by(f64::total_cmp);
        said.get(said.len() / 2).map_or(prior, |usual| usual.min(UNWATCHED_MOST).max(prior))
    }

    /// The longest start that was seen, seconds.
    #[must_use]
    pub fn longest(&self) -> Option<f64> {
        self.last.iter().copied().reduce(f64::max)
    }

    /// Makes the moments that are after `now` be now.
    pub fn not_after(&mut self, now: Moment) {
        self.counted = self.counted.map(|at| at.min(now));
    }
}

/// Pods that are remembered while they start: enough to learn how long that takes.
const WATCHED: usize = 16;

/// The starts of one variant's pods, as every analyzer remembers them: of those that were seen before they served.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ObservedStarts {
    /// The last ones, seconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    last: Vec<f64>,
    /// Pods that were seen and have never served. Not kept over a restart.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pods: Vec<SmolStr>,
    /// Pods that were ready and failed, as far as others were ordered for them. Not kept over a restart.
    #[serde(skip_serializing_if = "is_default")]
    pub replaced: ReplacedPods,
}

impl ObservedStarts {
    /// What is known once the pods of `state` were looked at; `None` where that is what was known before.
    #[must_use]
    pub fn after(&self, state: &VariantState) -> Option<Self> {
        let never_served = |one: &&Replica| {
            one.ready_since.is_none()
                && matches!(one.phase, Phase::Pending | Phase::Starting | Phase::Unschedulable)
        };
        let starting = state.replicas.iter().filter(never_served).map(|one| &one.pod).take(WATCHED);
        if starting.clone().eq(&self.pods) {
            return None;
        }
        let ready = state.replicas.iter().filter(|one| one.phase == Phase::Ready);
        let started = ready.filter(|one| self.pods.contains(&one.pod));
        let took = started.map(|one| Moment::from(one.created).until(one.ready_or_created().into()));
        let mut last: Vec<f64> = self.last.iter().copied().chain(took.filter(|took| *took <= MOST)).collect();
        last.drain(..last.len().saturating_sub(KEPT));
        Some(Self { last, pods: starting.cloned().collect(), replaced: self.replaced })
    }

    /// The longest of the last starts, seconds.
    #[must_use]
    pub fn longest(&self) -> Option<f64> {
        self.last.iter().copied().reduce(f64::max)
    }

    /// What is worth keeping over a restart.
    #[must_use]
    pub fn kept(&self) -> Self {
        Self { last: self.last.iter().copied().map(short).collect(), ..Self::default() }
    }

    /// Makes the moments that are after `now` be now.
    pub fn not_after(&mut self, now: Moment) {
        self.replaced.at = self.replaced.at.map(|at| at.min(now));
    }
}
