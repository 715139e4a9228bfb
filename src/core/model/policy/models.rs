//! The policy of one model.

use serde::{Deserialize, Serialize};

use super::{LatencyTargets, RatePolicy, SaturationPolicy, ServiceClass, Stability};
use crate::model::Analyzer;
use crate::units::{OutOfRange, Replicas, Seconds, at_least_zero};

/// The policy of one model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ModelPolicy {
    /// The analyzer that decides. One that measures capacity (`saturation`, `throughput`, `queueing-model`) leads those of `secondary`.
    pub analyzer: Analyzer,
    /// Secondary analyzers of capacity, whose findings are combined with the first one's: any may add replicas, and all must agree
    /// to remove one.
    #[serde(rename = "beside", skip_serializing_if = "Vec::is_empty")]
    pub secondary: Vec<SecondaryAnalyzer>,
    /// When a replica is saturated, and what spare capacity V1 keeps.
    pub saturation: SaturationPolicy,
    /// The utilisations between which an analyzer of capacity changes nothing.
    pub utilisation: Utilisation,
    /// Weight against other models when GPUs are short, above 0.
    pub priority: f64,
    /// Weight of the first analyzer's finding, at least 0.
    pub score: f64,
    /// Whether and when the model is scaled to zero, if set here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_to_zero: Option<ScaleToZero>,
    /// Settings of the rate policy.
    pub rate: RatePolicy,
    /// Settings of the queueing model.
    pub queueing: QueueingPolicy,
    /// The only class of service for the legacy solver; `None` for those of all models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_class: Option<ServiceClass>,
    /// Settings of the scores (`threshold`, `weighted`).
    pub scoring: Scoring,
    /// Limits on how fast numbers change.
    pub stability: Stability,
}

impl Default for ModelPolicy {
    fn default() -> Self {
        Self {
            analyzer: Analyzer::Rate,
            secondary: Vec::new(),
            saturation: SaturationPolicy::default(),
            utilisation: Utilisation::default(),
            priority: 1.0,
            score: 1.0,
            scale_to_zero: None,
            rate: RatePolicy::default(),
            queueing: QueueingPolicy::default(),
            service_class: None,
            scoring: Scoring::default(),
            stability: Stability::default(),
        }
    }
}

impl ModelPolicy {
    /// # Errors
    /// Names the first field that is out of range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        self.saturation.validated()?;
        let utilisations =
            self.secondary.iter().filter_map(|secondary| secondary.utilisation).chain([self.utilisation]);
        utilisations.into_iter().try_for_each(|range| Utilisation::new(range.up, range.down).map(|_| ()))?;
        let weights = self.secondary.iter().map(|secondary| ("score", secondary.score));
        for (unit, value) in weights.chain([("score", self.score), ("priority", self.priority)]) {
            at_least_zero(unit, value)?;
        }
        self.rate.check()?;
        self.queueing.check()?;
        let targets = self.service_class.iter().flat_map(|class| &class.targets);
        targets.map(|target| target.latency).try_for_each(LatencyTargets::check)?;
        self.scoring.check()?;
        self.stability.check()
    }
}

/// An analyzer whose finding is combined with the first one's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecondaryAnalyzer {
    /// Which one.
    pub analyzer: Analyzer,
    /// Weight of its finding, at least 0.
    #[serde(default = "default_score")]
    pub score: f64,
    /// Its own utilisations; `None` are the model's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilisation: Option<Utilisation>,
}

const fn default_score() -> f64 {
    1.0
}

/// Utilisations between which a number does not change: replicas are added if demand exceeds the share `up` of the capacity with starting replicas, and
/// removed if it is below the share `down` of the serving capacity. Both in (0, 1], `up` above `down`. Defaults: WVA's 0.85 and 0.70.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Utilisation {
    /// Above it replicas are added.
    pub up: f64,
    /// Below it replicas may be removed.
    pub down: f64,
}

impl Default for Utilisation {
    fn default() -> Self {
        Self { up: 0.85, down: 0.70 }
    }
}

impl Utilisation {
    /// The defaults of `analyzer`: the two scores have lower ones (0.80 and 0.30) than the others.
    #[must_use]
    pub fn of(analyzer: Analyzer) -> Self {
        match analyzer {
            Analyzer::Threshold | Analyzer::Weighted => Self { up: 0.80, down: 0.30 },
            _ => Self::default(),
        }
    }

    /// # Errors
    /// When one is not in (0, 1], or `up` is not above `down`.
    pub fn new(up: f64, down: f64) -> Result<Self, OutOfRange> {
        let share = |value: f64| value > 0.0 && value <= 1.0;
        let wrong = |unit, value, allowed| Err(OutOfRange { unit, value, allowed });
        match (up, down) {
            (up, _) if !share(up) => wrong("scaleUpThreshold", up, "above 0 and at most 1"),
            (_, down) if !share(down) => wrong("scaleDownBoundary", down, "above 0 and at most 1"),
            (up, down) if up <= down => wrong("scaleUpThreshold", up, "above scaleDownBoundary"),
            _ => Ok(Self { up, down }),
        }
    }
}

/// When an idle model is scaled to zero. Acts only where every variant of the model has a minimum of 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ScaleToZero {
    /// If off, the cheapest variant keeps one replica.
    pub enabled: bool,
    /// How long the model must have been idle.
    pub retention: Seconds,
}

impl Default for ScaleToZero {
    fn default() -> Self {
        Self { enabled: false, retention: Seconds::whole(600) }
    }
}

/// When a mean score of a variant's engines, 0 to 1, moves its number, and by how much.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Scoring {
    /// Above it replicas are added.
    pub up: f64,
    /// Below it replicas are removed.
    pub down: f64,
    /// How many are added at once.
    pub more: Replicas,
    /// How many are removed at once.
    pub fewer: Replicas,
    /// A queue of this length counts as full. If not set: 10 with `threshold`, 5 with `weighted`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_limit: Option<f64>,
}

impl Default for Scoring {
    fn default() -> Self {
        let Steps { up, down, more, fewer } = Steps::default();
        Self { up, down, more, fewer, queue_limit: None }
    }
}

impl Scoring {
    /// The thresholds and steps without the queue limit.
    #[must_use]
    pub const fn steps(self) -> Steps {
        let Self { up, down, more, fewer, queue_limit: _ } = self;
        Steps { up, down, more, fewer }
    }

    fn check(&self) -> Result<(), OutOfRange> {
        at_least_zero("scoring.down", self.down)?;
        at_least_zero("scoring.queueLimit", self.queue_limit.unwrap_or(0.0))?;
        let (unit, value, allowed) = ("scoring.up", self.up, "finite and above scoring.down");
        if value.is_finite() && value > self.down { Ok(()) } else { Err(OutOfRange { unit, value, allowed }) }
    }
}

/// Thresholds and steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Steps {
    /// A mean score above this adds replicas.
    pub up: f64,
    /// A mean score below this removes some.
    pub down: f64,
    /// How many are added.
    pub more: Replicas,
    /// How many are removed.
    pub fewer: Replicas,
}

impl Default for Steps {
    /// Above 0.8 one more, below 0.3 one fewer.
    fn default() -> Self {
        Self { up: 0.8, down: 0.3, more: Replicas::ONE, fewer: Replicas::ONE }
    }
}

/// How the queueing model finds its objectives and its parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct QueueingPolicy {
    /// The latency objectives, if the user sets them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub targets: Option<LatencyTargets>,
    /// Otherwise the objectives are this many times the latencies of an idle replica, above 1 (WVA: 3).
    pub slo_multiplier: f64,
    /// Learn the service times from what is measured.
    pub tuning: bool,
}

impl Default for QueueingPolicy {
    fn default() -> Self {
        Self { targets: None, slo_multiplier: 3.0, tuning: true }
    }
}

impl QueueingPolicy {
    fn check(&self) -> Result<(), OutOfRange> {
        let (unit, value, allowed) = ("sloMultiplier", self.slo_multiplier, "above 1");
        if !(value.is_finite() && value > 1.0) {
            return Err(OutOfRange { unit, value, allowed });
        }
        self.targets.map_or(Ok(()), LatencyTargets::check)
    }
}
