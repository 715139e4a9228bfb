//! An entry of the saturation ConfigMap: how a model is decided about. Read as it is written; what it leaves open is filled
//! in from the entry `default` and only then from the defaults of the program, so that an entry that tunes one field keeps
//! what is tuned for all (upstream fills in defaults first; algorithm reference §1.8).

use wva_core::GroupId;
use wva_core::model::{
    Analyzer, Compat, ModelPolicy, QueueingPolicy, SaturationPolicy, ScaleToZero, Scoring, Stability,
    StepLimit, Utilisation,
};
use wva_core::units::{Replicas, Seconds};

use super::analyzers::{Choice, thresholds};
use super::fields::{Fields, Range, Said};
use super::limits::Limits;
use super::model_key::ModelKey;
use super::node::Node;
use super::rate::Rate;
use super::zero::RETENTION;

/// A window or a time to stay longer than this holds a number longer than any day's load lasts.
const DAY: Seconds = Seconds::whole(86_400);
/// More replicas at once than any Deployment has.
const MOST_REPLICAS: u32 = 10_000;

/// An entry as written.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Entry {
    /// The model; `None` for the default.
    pub(super) group: Option<GroupId>,
    kv_cache: Option<f64>,
    queue_length: Option<f64>,
    kv_spare: Option<f64>,
    queue_spare: Option<f64>,
    pub(super) choice: Choice,
    up: Option<f64>,
    down: Option<f64>,
    priority: Option<f64>,
    pub(super) zero: Inline,
    rate: Rate,
    scores: Scores,
    stability: Steadiness,
    pub(super) limits: Limits,
    /// Whose arithmetic, of all models.
    pub(super) compat: Option<Compat>,
}

/// Scaling to zero, said in this ConfigMap.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Inline {
    pub(super) enabled: Option<bool>,
    pub(super) retention: Option<Seconds>,
}

impl Inline {
    /// What counts for a model of which the ConfigMap of scaling to zero says `otherwise`. What is said here wins.
    pub(super) fn over(self, otherwise: ScaleToZero) -> ScaleToZero {
        ScaleToZero {
            enabled: self.enabled.unwrap_or(otherwise.enabled),
            retention: self.retention.unwrap_or(otherwise.retention),
        }
    }

    pub(super) fn is_set(self) -> bool {
        self.enabled.is_some() || self.retention.is_some()
    }
}

/// How the policies of scores step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Scores {
    more: Option<u32>,
    fewer: Option<u32>,
    queue_limit: Option<f64>,
}

impl Scores {
    fn read(fields: &mut Fields<'_>) -> Self {
        Self {
            more: fields.whole("more", 1, MOST_REPLICAS),
            fewer: fields.whole("fewer", 1, MOST_REPLICAS),
            queue_limit: fields.number("queueLimit", Range::AT_LEAST_0),
        }
    }

    fn over(self, below: Self) -> Self {
        Self {
            more: self.more.or(below.more),
            fewer: self.fewer.or(below.fewer),
            queue_limit: self.queue_limit.or(below.queue_limit),
        }
    }

    /// Their thresholds are those of the entry.
    fn policy(self, Utilisation { up, down }: Utilisation) -> Scoring {
        let usual = Scoring::default();
        Scoring {
            up,
            down,
            more: self.more.map_or(usual.more, Replicas::new),
            fewer: self.fewer.map_or(usual.fewer, Replicas::new),
            queue_limit: self.queue_limit,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Steadiness {
    up_window: Option<Seconds>,
    down_window: Option<Seconds>,
    up_step: Step,
    down_step: Step,
    dwell: Option<Seconds>,
    tolerance: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Step {
    replicas: Option<u32>,
    percent: Option<f64>,
}

impl Entry {
    pub(super) fn read(fields: &mut Fields<'_>, place: ModelKey<'_>) -> Self {
        let group = place.group(fields);
        let kv_cache = fields.number("kvCacheThreshold", Range::SHARE);
        let queue_length = fields.number("queueLengthThreshold", Range::AT_LEAST_0);
        let kv_spare = fields.number("kvSpareTrigger", Range::SHARE);
        let queue_spare = fields.number("queueSpareTrigger", Range::AT_LEAST_0);
        if let (Some(full), Some(spare)) = (kv_cache, kv_spare)
            && full < spare
        {
            fields.refuse_all(&format!("kvCacheThreshold {full} must be at least kvSpareTrigger {spare}"));
        }
        let choice = Choice::read(fields);
        let (up, down) = thresholds(fields);
        Self {
            group,
            kv_cache,
            queue_length,
            kv_spare,
            queue_spare,
            choice,
            up,
            down,
            priority: fields.number("priority", Range::WEIGHT),
            zero: fields.within("scaleToZero", inline).unwrap_or_default(),
            rate: fields.within("rate", Rate::read).unwrap_or_default(),
            scores: fields.within("scoring", Scores::read).unwrap_or_default(),
            stability: fields.within("stability", Steadiness::read).unwrap_or_default(),
            limits: Limits::read(fields),
            compat: compat(fields),
        }
    }

    /// This, and what it leaves open from `below`. Of limits and `compat` only its own: nobody asks an entry of
    /// a model for them.
    pub(super) fn over(&self, below: &Self) -> Self {
        Self {
            group: self.group.clone(),
            kv_cache: self.kv_cache.or(below.kv_cache),
            queue_length: self.queue_length.or(below.queue_length),
            kv_spare: self.kv_spare.or(below.kv_spare),
            queue_spare: self.queue_spare.or(below.queue_spare),
            choice: self.choice.over(&below.choice),
            up: self.up.or(below.up),
            down: self.down.or(below.down),
            priority: self.priority.or(below.priority),
            zero: Inline {
                enabled: self.zero.enabled.or(below.zero.enabled),
                retention: self.zero.retention.or(below.zero.retention),
            },
            rate: self.rate.over(below.rate),
            scores: self.scores.over(below.scores),
            stability: self.stability.over(below.stability),
            limits: self.limits.clone(),
            compat: self.compat,
        }
    }

    /// The whole policy: what is still open has the program's defaults. `zero` is what is said of scaling to zero where
    /// this says nothing.
    pub(super) fn policy(
        &self,
        zero: Option<ScaleToZero>,
        queueing: QueueingPolicy,
        said: &mut Said,
    ) -> ModelPolicy {
        let chosen = self.choice.chosen(self.up, self.down, said);
        let scored = matches!(chosen.analyzer, Analyzer::Threshold | Analyzer::Weighted);
        let thresholds = if scored { chosen.utilisation } else { Utilisation::of(Analyzer::Threshold) };
        ModelPolicy {
            analyzer: chosen.analyzer,
            beside: chosen.beside,
            saturation: self.saturation(said),
            utilisation: chosen.utilisation,
            priority: self.priority.unwrap_or(1.0),
            score: chosen.score,
            scale_to_zero: zero,
            rate: self.rate.policy(),
            queueing,
            scoring: self.scores.policy(thresholds),
            stability: self.stability.policy(),
        }
    }

    fn saturation(&self, said: &mut Said) -> SaturationPolicy {
        let default = SaturationPolicy::default();
        let policy = SaturationPolicy {
            kv_cache_threshold: self.kv_cache.unwrap_or(default.kv_cache_threshold),
            queue_length_threshold: self.queue_length.unwrap_or(default.queue_length_threshold),
            kv_spare_trigger: self.kv_spare.unwrap_or(default.kv_spare_trigger),
            queue_spare_trigger: self.queue_spare.unwrap_or(default.queue_spare_trigger),
        };
        policy.validated().unwrap_or_else(|wrong| {
            let SaturationPolicy { kv_cache_threshold: full, kv_spare_trigger: spare, .. } = default;
            said.note(format!("{wrong}, {}: {full} and {spare} count instead", policy.kv_spare_trigger));
            SaturationPolicy { kv_cache_threshold: full, kv_spare_trigger: spare, ..policy }
        })
    }
}

fn compat(fields: &mut Fields<'_>) -> Option<Compat> {
    match fields.text("compat")? {
        "corrected" => Some(Compat::Corrected),
        "upstream" => Some(Compat::Upstream),
        "upstream-june" => Some(Compat::UpstreamJune),
        other => {
            let given = Node::Text(other.to_owned());
            fields.refuse("compat", &given, "corrected, upstream or upstream-june");
            None
        }
    }
}

fn inline(fields: &mut Fields<'_>) -> Inline {
    let (least, most) = RETENTION;
    Inline { enabled: fields.switch("enabled"), retention: fields.duration("retentionPeriod", least, most) }
}

impl Steadiness {
    fn read(fields: &mut Fields<'_>) -> Self {
        Self {
            up_window: fields.duration("upWindow", Seconds::ZERO, DAY),
            down_window: fields.duration("downWindow", Seconds::ZERO, DAY),
            up_step: fields.within("upStep", Step::read).unwrap_or_default(),
            down_step: fields.within("downStep", Step::read).unwrap_or_default(),
            dwell: fields.duration("dwell", Seconds::ZERO, DAY),
            tolerance: fields.number("tolerance", Range::SHARE),
        }
    }

    fn over(self, below: Self) -> Self {
        Self {
            up_window: self.up_window.or(below.up_window),
            down_window: self.down_window.or(below.down_window),
            up_step: self.up_step.over(below.up_step),
            down_step: self.down_step.over(below.down_step),
            dwell: self.dwell.or(below.dwell),
            tolerance: self.tolerance.or(below.tolerance),
        }
    }

    fn policy(self) -> Stability {
        let default = Stability::default();
        Stability {
            up_window: self.up_window.unwrap_or(default.up_window),
            down_window: self.down_window.unwrap_or(default.down_window),
            up_step: self.up_step.policy(),
            down_step: self.down_step.policy(),
            dwell: self.dwell.unwrap_or(default.dwell),
            tolerance: self.tolerance.unwrap_or(default.tolerance),
        }
    }
}

impl Step {
    fn read(fields: &mut Fields<'_>) -> Self {
        let replicas = fields.whole("replicas", 1, MOST_REPLICAS);
        let percent = fields.number("percent", Range::from(0.0, 10_000.0, "0 to 10000"));
        Self { replicas, percent }
    }

    fn over(self, below: Self) -> Self {
        Self { replicas: self.replicas.or(below.replicas), percent: self.percent.or(below.percent) }
    }

    fn policy(self) -> Option<StepLimit> {
        let default = StepLimit::default();
        let limit = StepLimit {
            replicas: self.replicas.map_or(default.replicas, Replicas::new),
            percent: self.percent.unwrap_or(default.percent),
        };
        (self != Self::default()).then_some(limit)
    }
}
