//! How long a pod of a variant takes from its creation to serving.

use serde::{Deserialize, Serialize};

use super::is_default;
use super::moment::Moment;
use crate::snapshot::{Phase, VariantState};

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
pub fn starts_of(state: &VariantState) -> Vec<(Moment, Moment)> {
    let serving = state.replicas.iter().filter(|one| one.phase == Phase::Ready);
    serving.map(|replica| (replica.created.into(), replica.born().into())).collect()
}

/// The starts of one variant's pods.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StartUps {
    /// The last ones, seconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    last: Vec<f64>,
    /// Until when starts were counted.
    #[serde(skip_serializing_if = "is_default")]
    counted: Option<Moment>,
}

impl StartUps {
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

    /// Makes the moments that are after `now` be now.
    pub fn not_after(&mut self, now: Moment) {
        self.counted = self.counted.map(|at| at.min(now));
    }
}
