//! How long a pod of a variant takes from its creation to serving.

use serde::{Deserialize, Serialize};

use smol_str::SmolStr;

use super::numeric::{is_default, six_digits};
use crate::moment::Moment;
use crate::snapshot::{Phase, Pod, VariantState};

/// From a change of the load to the order of a pod, seconds: about 10 to detect it, up to 15 until the HPA syncs, and 5 for a scrape.
pub(crate) const LEAD: f64 = 30.0;

/// Start-ups that are remembered. The longest counts.
const MAX_REMEMBERED: usize = 5;

/// Maximum start-up time, seconds, that is inferred from a pod which was ready before it was watched: its readiness may have come and
/// gone.
const MAX_UNWATCHED: f64 = 600.0;

/// No start takes longer, seconds: an older pod has not just started.
const MAX_START_UP: f64 = 1800.0;

/// When each ready pod was created and became ready, in the order of the ready pods.
pub(crate) fn start_up_times(state: &VariantState) -> Vec<(Moment, Moment)> {
    let ready = state.pods.iter().filter(|pod| pod.phase == Phase::Ready);
    ready.map(|pod| (pod.created.into(), pod.ready_or_created().into())).collect()
}

/// The median start-up time of `pods`, seconds, at least `prior`: what is expected before a start was seen. Without pods it is `prior`.
pub(crate) fn median_start(pods: &[(Moment, Moment)], prior: f64) -> f64 {
    let mut inferred: Vec<f64> = pods.iter().map(|(created, ready)| created.until(*ready)).collect();
    inferred.sort_by(f64::total_cmp);
    inferred.get(inferred.len() / 2).map_or(prior, |median| median.min(MAX_UNWATCHED).max(prior))
}

/// Start-up times of one variant's pods, as the rate policy remembers them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct StartUpTimes {
    /// The last start-up times, seconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    last: Vec<f64>,
    /// Until when they were counted.
    #[serde(skip_serializing_if = "is_default")]
    counted: Option<Moment>,
}

impl StartUpTimes {
    /// Adds the pods that are ready at `now`, with the times at which each was created and became ready. `served_before` says whether the
    /// pod at a position was seen serving earlier, so that it did not start up but became ready again. Returns the start-up times that are
    /// new, seconds.
    pub(crate) fn learn(
        &mut self,
        now: Moment,
        pods: &[(Moment, Moment)],
        served_before: impl Fn(usize) -> bool,
    ) -> Vec<f64> {
        let Some(counted) = self.counted else {
            self.counted = Some(now);
            return Vec::new();
        };
        let new = pods.iter().enumerate().filter(|(at, (_, ready))| *ready > counted && !served_before(*at));
        let mut new: Vec<_> = new.map(|(_, pod)| *pod).collect();
        new.sort_by_key(|(created, ready)| (*ready, *created));
        let took = new.iter().map(|(created, ready)| created.until(*ready));
        let took: Vec<f64> = took.filter(|took| *took <= MAX_START_UP).collect();
        self.last.extend(&took);
        self.last.drain(..self.last.len().saturating_sub(MAX_REMEMBERED));
        self.counted = pods.iter().map(|(_, ready)| *ready).chain([counted]).max();
        took
    }

    pub(crate) fn longest(&self) -> Option<f64> {
        self.last.iter().copied().reduce(f64::max)
    }

    pub(crate) fn not_after(&mut self, now: Moment) {
        self.counted = self.counted.map(|at| at.min(now));
    }
}

/// Pods that are remembered while they start: enough to learn how long that takes.
const MAX_WATCHED: usize = 16;

/// Start-up times of one variant's pods that were watched from before they served; remembered for every analyzer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ObservedStarts {
    /// The last start-up times, seconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    last: Vec<f64>,
    /// Watched pods that have never been ready. Not kept over a restart.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pods: Vec<SmolStr>,
    /// Pods that were ready and failed, and for which others were ordered. Not kept over a restart.
    #[serde(skip_serializing_if = "is_default")]
    pub replaced: ReplacedPods,
}

impl ObservedStarts {
    /// The same with the pods of `state` added; `None` if nothing changes.
    #[must_use]
    pub fn after(&self, state: &VariantState) -> Option<Self> {
        let has_never_served = |pod: &&Pod| pod.ready_since.is_none() && pod.phase.is_awaited();
        let starting = state.pods.iter().filter(has_never_served).map(|pod| &pod.name).take(MAX_WATCHED);
        if starting.clone().eq(&self.pods) {
            return None;
        }
        let ready = state.pods.iter().filter(|pod| pod.phase == Phase::Ready);
        let started = ready.filter(|pod| self.pods.contains(&pod.name));
        let took = started.map(|pod| Moment::from(pod.created).until(pod.ready_or_created().into()));
        let mut last: Vec<f64> =
            self.last.iter().copied().chain(took.filter(|took| *took <= MAX_START_UP)).collect();
        last.drain(..last.len().saturating_sub(MAX_REMEMBERED));
        Some(Self { last, pods: starting.cloned().collect(), replaced: self.replaced })
    }

    /// The longest of the last start-up times, seconds.
    #[must_use]
    pub fn longest(&self) -> Option<f64> {
        self.last.iter().copied().reduce(f64::max)
    }

    /// The part that is kept over a restart.
    #[must_use]
    pub fn compacted(&self) -> Self {
        Self { last: self.last.iter().copied().map(six_digits).collect(), ..Self::default() }
    }

    pub(crate) fn not_after(&mut self, now: Moment) {
        self.replaced.at = self.replaced.at.map(|at| at.min(now));
    }
}

/// How many failed pods are replaced by new ones.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ReplacedPods {
    /// Replaced pods.
    pub pods: u32,
    /// When their number last grew.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) at: Option<Moment>,
}

impl ReplacedPods {
    /// How many of `failing` pods to replace. The number grows at most once in the `start_up` seconds that a pod takes: until then
    /// nobody knows whether the pods that were ordered are enough. Pods that come back are no longer replaced.
    pub(crate) fn update(&mut self, failing: u32, start_up: f64, now: Moment) -> u32 {
        if self.at.is_none_or(|at| at.until(now) >= start_up) {
            self.at = if failing > self.pods { Some(now) } else { self.at };
            self.pods = failing;
        }
        self.pods.min(failing)
    }
}
