//! Everything learned about one model, by role and by variant. At most 2 KiB for each variant survive a restart; the rest (the last
//! readings, the arrivals of the last ten minutes) is only kept between evaluations and in recordings.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::arrivals::Arrivals;
use super::counter_snapshot::{CounterSnapshot, Growth};
use super::dispersion::Dispersion;
use super::numeric::{is_default, six_digits};
use super::occupancy::{Occupancy, StepTokens};
use super::rollback::Rollback;
use super::scorecard::{DemandForecasts, ReplicaPredictions};
use super::start_up::{ReplacedPods, StartUpTimes};
use super::step_time::{StepSample, StepTimeFit};
use super::surge::Surges;
use super::token_shape::TokenShape;
use super::window_extrema::WindowMaximum;
use crate::model::Role;
use crate::moment::{MAX_CLOCK_SKEW, Moment, may_lower};
use crate::name_map::NameMap;
use crate::snapshot::SignalSet;

/// Peaks that survive a restart.
const MAX_STORED_PEAKS: usize = 12;

/// Fewer inter-token gaps give no mean step time.
const MIN_GAPS: f64 = 20.0;
/// With fewer running sequences the engine is idle now and then.
const MIN_BUSY: f64 = 1.5;
/// If readings are further apart than this, seconds, their end points say little about the KV usage in between.
const MAX_USAGE_GAP: f64 = 7.5;
/// Fewer first tokens give no mean.
const MIN_FIRST_TOKENS: f64 = 3.0;
/// At least this many requests wait when the number of sequences is limited.
const MIN_WAITING: f64 = 2.0;
/// At a higher KV usage it is the cache that limits.
const MAX_USAGE: f64 = 0.85;
/// Consecutive readings that show a limit.
const MIN_LIMITED_READINGS: u8 = 3;
/// Readings below this share of the known limit show another limit. Closer ones are from scrapes between the end of one sequence and the
/// start of the next (30, 31 and 32 were seen with a limit of 32).
const SAME_LIMIT_SHARE: f64 = 0.9;

/// Everything learned about one model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelKnowledge {
    /// By role: each has its own load. Boxed, because a node of the tree has room for eleven and most models have one.
    pub roles: BTreeMap<Role, Box<RoleKnowledge>>,
    /// By variant name: each has its own hardware.
    #[serde(skip_serializing_if = "NameMap::is_empty")]
    pub(crate) variants: NameMap<VariantKnowledge>,
}

/// The load of one role.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RoleKnowledge {
    /// Arrivals of the last ten minutes. Not kept over a restart.
    #[serde(skip_serializing_if = "is_default")]
    pub arrivals: Arrivals,
    /// When an arrival was last estimated from gauges, until counted ones are known again. Not kept over a restart.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) gauged_at: Option<Moment>,
    /// Arrival rate in the last decision, requests/s. Not kept over a restart.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) level: Option<f64>,
    pub(crate) dispersion: Dispersion,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) shape: TokenShape,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) surges: Surges,
    /// Maximum load of the last minutes, in replicas.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) peaks: WindowMaximum,
    /// Forecasts of its demand, and how earlier ones turned out.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) forecasts: DemandForecasts,
    /// Earlier states. Not kept over a restart.
    #[serde(rename = "past", skip_serializing_if = "is_default")]
    pub(crate) rollback: Box<Rollback<Load>>,
}

/// The part of [`RoleKnowledge`] that is learned from counters.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Load {
    shape: TokenShape,
    surges: Surges,
    peaks: WindowMaximum,
}

/// What is learned about one variant.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct VariantKnowledge {
    /// The last reading of each engine. Not kept over a restart.
    #[serde(rename = "pods", skip_serializing_if = "NameMap::is_empty")]
    pub(crate) engines: NameMap<LastReading>,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) fit: StepTimeFit,
    /// The least time to first token that was seen, seconds for each prompt token.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) first_token: Option<f64>,
    /// When a lower one could last have been seen. Earlier versions did not store it, nor `capacity_at` and `limit_at`.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) first_token_at: Option<Moment>,
    /// KV-cache size of an engine, tokens.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) capacity: Option<f64>,
    /// When an engine last showed it.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) capacity_at: Option<Moment>,
    /// Engines of a pod, if known: several with data parallelism.
    #[serde(rename = "processes", skip_serializing_if = "is_default")]
    pub(crate) engines_per_pod: Option<f64>,
    /// KV usage of a running sequence.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) occupancy: Occupancy,
    /// Tokens that a step gives a sequence.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) steps: StepTokens,
    /// Maximum of running sequences that an engine has shown, if any.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) limit: Option<f64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) limit_at: Option<Moment>,
    /// The most sequences that were seen running in an engine.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) most_running: f64,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) starts: StartUpTimes,
    /// What was predicted about its replicas, and how that turned out.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) predictions: ReplicaPredictions,
    /// When a limit last granted fewer replicas than proposed. Not kept over a restart.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) denied: Option<Moment>,
    /// Earlier states. Not kept over a restart.
    #[serde(rename = "past", skip_serializing_if = "is_default")]
    pub(crate) rollback: Box<Rollback<Learned>>,
    /// Pods that were ready and failed, and for which others were ordered. Not kept over a restart.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) replaced: ReplacedPods,
}

/// The part of [`VariantKnowledge`] that is learned from counters and gauges.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Learned {
    fit: StepTimeFit,
    first_token: Option<f64>,
    occupancy: Occupancy,
    steps: StepTokens,
    limit: Option<f64>,
    most_running: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct LastReading {
    #[serde(rename = "frame")]
    pub(crate) snapshot: CounterSnapshot,
    /// Consecutive readings that show a limit on running sequences.
    #[serde(rename = "full", default, skip_serializing_if = "is_default")]
    pub(crate) limited_readings: u8,
    /// The most sequences that ran in these.
    #[serde(rename = "most", default, skip_serializing_if = "is_default")]
    pub(crate) limited_running: f64,
    /// Seconds for which requests have been waiting in it without a break, at most 255.
    #[serde(rename = "saturated", default, skip_serializing_if = "is_default")]
    pub(crate) saturated_for: u8,
    /// Signals that were missing or contradicted recently: nobody knows when they grew since.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) lacked: SignalSet,
    /// KV-cache size at the first reading, tokens: an engine cannot change it.
    #[serde(rename = "cache", default, skip_serializing_if = "is_default")]
    pub(crate) capacity: Option<f64>,
}

impl ModelKnowledge {
    /// The part that is kept over a restart.
    pub(crate) fn compacted(&self) -> Self {
        let compact_role = |role: &RoleKnowledge| {
            Box::new(RoleKnowledge {
                arrivals: Arrivals::default(),
                gauged_at: None,
                level: None,
                dispersion: role.dispersion.compacted(),
                shape: role.shape.compacted(),
                surges: role.surges.compacted(),
                peaks: role.peaks.compacted(MAX_STORED_PEAKS),
                forecasts: role.forecasts.compacted(),
                rollback: Box::default(),
            })
        };
        let compact_variant = |(name, variant): (&SmolStr, &VariantKnowledge)| {
            let compacted = VariantKnowledge {
                engines: NameMap::default(),
                fit: variant.fit.compacted(),
                first_token: variant.first_token.map(six_digits),
                occupancy: variant.occupancy.compacted(),
                steps: variant.steps.compacted(),
                predictions: variant.predictions.compacted(),
                denied: None,
                rollback: Box::default(),
                replaced: ReplacedPods::default(),
                ..variant.clone()
            };
            (name.clone(), compacted)
        };
        Self {
            roles: self.roles.iter().map(|(name, role)| (*name, compact_role(role))).collect(),
            variants: self.variants.iter().map(compact_variant).collect(),
        }
    }

    /// Moves or drops times after `now`: the clock was set back.
    pub(crate) fn not_after(&mut self, now: Moment) {
        let latest = now.plus(MAX_CLOCK_SKEW.as_secs_f64());
        for role in self.roles.values_mut() {
            role.arrivals.not_after(latest);
            role.gauged_at = role.gauged_at.map(|at| at.min(latest));
            role.surges.not_after(now);
            role.peaks.not_after(now);
            role.forecasts.not_after(now);
            role.rollback.not_after(latest);
        }
        for variant in self.variants.values_mut() {
            variant.fit.not_after(latest);
            variant.starts.not_after(latest);
            for at in [&mut variant.first_token_at, &mut variant.capacity_at, &mut variant.limit_at] {
                *at = at.map(|at| at.min(latest));
            }
            variant.rollback.not_after(latest);
            variant.denied = variant.denied.map(|at| at.min(now));
            variant.replaced.at = variant.replaced.at.map(|at| at.min(now));
            variant.engines.retain_values(|engine| engine.snapshot.at <= latest);
        }
    }
}

impl RoleKnowledge {
    /// Stores a state, to be able to undo what is learned from now on.
    pub(super) fn checkpoint(&mut self, now: Moment) {
        let Self { rollback, shape, surges, peaks, .. } = self;
        rollback.checkpoint(now, || Load { shape: *shape, surges: surges.clone(), peaks: peaks.clone() });
    }

    /// Undoes what was learned from contradicted signals: sizes, also loads if many engines' requests are `sized` by these signals, and
    /// also arrivals if they are `counted` by them.
    pub(super) fn roll_back(&mut self, sized: bool, counted: bool) {
        let Some((at, load)) = self.rollback.restore() else { return };
        self.shape = load.shape;
        if sized {
            self.surges = load.surges;
            self.peaks = load.peaks;
        }
        if counted {
            self.arrivals.forget_after(at);
        }
    }
}

impl VariantKnowledge {
    /// Stores a state, to be able to undo what is learned from now on.
    pub(super) fn checkpoint(&mut self, now: Moment) {
        let Self { rollback, fit, first_token, occupancy, steps, limit, most_running, .. } = self;
        rollback.checkpoint(now, || Learned {
            fit: *fit,
            first_token: *first_token,
            occupancy: *occupancy,
            steps: *steps,
            limit: *limit,
            most_running: *most_running,
        });
    }

    /// Undoes what was learned from contradicted signals.
    pub(super) fn roll_back(&mut self) {
        let Some((_, learned)) = self.rollback.restore() else { return };
        self.fit = learned.fit;
        self.first_token = learned.first_token;
        self.occupancy = learned.occupancy;
        self.steps = learned.steps;
        self.limit = learned.limit;
        self.most_running = learned.most_running;
        self.predictions.discard_claim();
    }

    /// The least time to first token, if it was seen recently enough to raise the capacity of a replica.
    pub(crate) fn recent_first_token(&self, now: Moment) -> Option<f64> {
        self.first_token.filter(|_| may_lower(self.first_token_at, now))
    }

    /// The most sequences that an engine runs: `default` if it has never shown a limit. A limit that was not shown recently counts
    /// only if it is lower: it may raise a number and not lower it.
    pub(crate) fn max_sequences(&self, default: f64, now: Moment) -> f64 {
        let unlimited = default.max(self.most_running);
        match self.limit {
            Some(limit) if may_lower(self.limit_at, now) => limit,
            Some(limit) => limit.min(unlimited),
            None => unlimited,
        }
    }

    /// The capacity of a replica of `role` was learned recently enough to lower a number, or nothing is known that it would rest on.
    pub(crate) fn may_lower(&self, role: Role, now: Moment) -> bool {
        let is_step_recent = match self.fit.learned_at() {
            None if role == Role::Prefill && self.first_token.is_some() => {
                may_lower(self.first_token_at, now)
            }
            None => true,
            at => may_lower(at, now),
        };
        is_step_recent && (self.capacity.is_none() || may_lower(self.capacity_at, now))
    }

    /// Learns from an engine of `role` that was read twice; `before` are its readings that showed a limit so far. Returns them with this
    /// one.
    pub(super) fn learn(&mut self, role: Role, growth: &Growth, before: LimitedReadings) -> LimitedReadings {
        self.learn_step(role, growth);
        self.learn_first_token(growth);
        self.most_running = self.most_running.max(growth.after.running);
        self.learn_limit(growth, before)
    }

    fn learn_step(&mut self, role: Role, growth: &Growth) {
        let Growth { counted, before, after, .. } = growth;
        let seconds = growth.seconds();
        let is_busy = counted.gaps > MIN_GAPS && (before.running + after.running) / 2.0 >= MIN_BUSY;
        // Unread counters are NaN, which is never above anything.
        if !is_busy || seconds <= 0.0 {
            return;
        }
        // Each running sequence adds a second of latency in every second.
        let running = counted.gap_seconds / seconds;
        let step = counted.gap_seconds / counted.gaps;
        let usage = if seconds > MAX_USAGE_GAP {
            // Usage per sequence changes less than usage.
            running * (before.usage + after.usage) / (before.running + after.running)
        } else {
            (before.usage + after.usage) / 2.0
        };
        // A decoding engine computes no prompts.
        let prompt = if role == Role::Decode { 0.0 } else { counted.computed() / seconds * step };
        self.fit.learn(growth.to, &StepSample { step, prompt, running, usage });
    }

    /// Without a queue, the time to first token is that of computing the prompt.
    fn learn_first_token(&mut self, growth: &Growth) {
        let counted = &growth.counted;
        let is_queue_empty = growth.before.waiting <= 0.0 && growth.after.waiting <= 0.0;
        let computed = counted.computed();
        if counted.firsts >= MIN_FIRST_TOKENS
            && is_queue_empty
            && computed > 0.0
            && counted.first_seconds > 0.0
        {
            let per_token = counted.first_seconds / computed;
            self.first_token = Some(self.first_token.map_or(per_token, |least| least.min(per_token)));
            self.first_token_at = self.first_token_at.max(Some(growth.to));
        }
    }

    /// If requests wait although the KV cache has room, and the running ones have stopped growing, their number is limited.
    fn learn_limit(&mut self, growth: &Growth, limited: LimitedReadings) -> LimitedReadings {
        let (before, after) = (growth.before, growth.after);
        let is_waiting = before.waiting >= MIN_WAITING && after.waiting >= MIN_WAITING;
        let has_stopped = (after.running - before.running).abs() <= 1.0 && after.running >= 1.0;
        let limited = if is_waiting && has_stopped && after.usage < MAX_USAGE {
            LimitedReadings {
                count: limited.count.saturating_add(1),
                most_running: limited.most_running.max(before.running).max(after.running),
            }
        } else {
            LimitedReadings::default()
        };
        if limited.count >= MIN_LIMITED_READINGS {
            let known = self.limit.filter(|known| limited.most_running >= SAME_LIMIT_SHARE * known);
            self.limit = Some(known.unwrap_or_default().max(limited.most_running));
        }
        let is_at_limit = self.limit.is_some_and(|limit| after.running >= limit);
        if limited.count >= MIN_LIMITED_READINGS || is_at_limit {
            self.limit_at = self.limit_at.max(Some(growth.to));
        }
        // What runs is not limited to less.
        self.limit = self.limit.map(|limit| limit.max(after.running));
        limited
    }
}

/// Consecutive readings of an engine that show a limit on running sequences, and the most that ran in them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LimitedReadings {
    pub(super) count: u8,
    pub(super) most_running: f64,
}
