//! All that is known of one model, by role and by variant. What is worth a restart is at most 2 KiB a variant; the rest (the
//! last readings, the stretches of the last ten minutes) is remembered between two decisions and in recordings only.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::arrivals::Arrivals;
use super::counter_snapshot::{CounterSnapshot, Growth};
use super::dispersion::Dispersion;
use super::occupancy::{Occupancy, StepTokens};
use super::rollback::Rollback;
use super::start_up::StartUpTimes;
use super::step_time::{Sample, StepTimeFit};
use super::surge::Surges;
use super::token_shape::TokenShape;
use super::window_extrema::WindowMaximum;
use super::{is_default, short};
use crate::model::Role;
use crate::moment::{Moment, may_lower};
use crate::name_map::NameMap;
use crate::snapshot::SignalSet;

/// Peaks that survive a restart.
const PEAKS_KEPT: usize = 12;
/// How far a sample may be ahead of the clock, seconds, as everywhere.
const SKEW: f64 = 60.0;

/// Fewer gaps between tokens are no mean of a step.
const GAPS: f64 = 20.0;
/// Fewer running sequences are an idle process now and then.
const BUSY: f64 = 1.5;
/// Readings further apart than this, seconds: their end points say little of the KV usage in between.
const FAR_APART: f64 = 7.5;
/// Fewer first tokens are no mean.
const FIRSTS: f64 = 3.0;
/// So many wait behind a limit on sequences.
const BEHIND_LIMIT: f64 = 2.0;
/// With a fuller cache it is the cache that limits.
const ROOMY: f64 = 0.85;
/// Readings in a row that show a limit.
const LIMITED: u8 = 3;
/// A row that shows less than this share of the limit known shows another one; else scrapes fell between the end of a sequence and
/// the beginning of the next (30, 31 and 32 were seen where 32 may run).
const ANOTHER_LIMIT: f64 = 0.9;

/// All that is known of one model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelKnowledge {
    /// By role: each has its own load. Most models have one, and a tree has room for eleven.
    pub roles: BTreeMap<Role, Box<RoleKnowledge>>,
    /// By variant name: each has its own hardware.
    #[serde(skip_serializing_if = "NameMap::is_empty")]
    pub variants: NameMap<VariantKnowledge>,
}

/// What is known of the load of one role.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RoleKnowledge {
    /// Arrivals of the last ten minutes. Not kept over a restart.
    #[serde(skip_serializing_if = "is_default")]
    pub arrivals: Arrivals,
    /// Requests a second, as last decided about. Not kept over a restart.
    #[serde(skip_serializing_if = "is_default")]
    pub level: Option<f64>,
    /// How much arrivals vary.
    pub dispersion: Dispersion,
    /// How large requests are.
    #[serde(skip_serializing_if = "is_default")]
    pub shape: TokenShape,
    /// Surges that have come.
    #[serde(skip_serializing_if = "is_default")]
    pub surges: Surges,
    /// Loads of the last minutes, in replicas.
    #[serde(skip_serializing_if = "is_default")]
    pub peaks: WindowMaximum,
    /// What of this was known a while ago. Not kept over a restart.
    #[serde(skip_serializing_if = "is_default")]
    pub past: Box<Rollback<Load>>,
}

/// What [`RoleKnowledge`] has learned from counters.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Load {
    shape: TokenShape,
    surges: Surges,
    peaks: WindowMaximum,
}

/// What is known of one variant.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct VariantKnowledge {
    /// The last readings. Not kept over a restart.
    #[serde(skip_serializing_if = "NameMap::is_empty")]
    pub pods: NameMap<Pod>,
    /// How long a step takes.
    #[serde(skip_serializing_if = "is_default")]
    pub fit: StepTimeFit,
    /// The least time to first token seen, seconds for each prompt token.
    #[serde(skip_serializing_if = "is_default")]
    pub first_token: Option<f64>,
    /// When one was last seen that could have been less. Earlier versions did not store it, nor the other two moments.
    #[serde(skip_serializing_if = "is_default")]
    pub first_token_at: Option<Moment>,
    /// Tokens that the KV cache of a process holds.
    #[serde(skip_serializing_if = "is_default")]
    pub capacity: Option<f64>,
    /// When a process last showed it.
    #[serde(skip_serializing_if = "is_default")]
    pub capacity_at: Option<Moment>,
    /// Serving processes of a pod, when one was seen: several with data parallelism.
    #[serde(skip_serializing_if = "is_default")]
    pub processes: Option<f64>,
    /// What a running sequence holds of it.
    #[serde(skip_serializing_if = "is_default")]
    pub occupancy: Occupancy,
    /// Tokens that a step gives a sequence.
    #[serde(skip_serializing_if = "is_default")]
    pub steps: StepTokens,
    /// Sequences that a process runs at most, when that has shown.
    #[serde(skip_serializing_if = "is_default")]
    pub limit: Option<f64>,
    /// When it last showed.
    #[serde(skip_serializing_if = "is_default")]
    pub limit_at: Option<Moment>,
    /// Most sequences that a process was seen running.
    #[serde(skip_serializing_if = "is_default")]
    pub most_running: f64,
    /// How long its pods take to start.
    #[serde(skip_serializing_if = "is_default")]
    pub starts: StartUpTimes,
    /// When a limit last left it less than was wanted. Not kept over a restart.
    #[serde(skip_serializing_if = "is_default")]
    pub denied: Option<Moment>,
    /// What was learned of a step a while ago. Not kept over a restart.
    #[serde(skip_serializing_if = "is_default")]
    pub past: Box<Rollback<Learned>>,
    /// Pods that were ready and failed, as far as others were ordered for them. Not kept over a restart.
    #[serde(skip_serializing_if = "is_default")]
    pub replaced: ReplacedPods,
}

/// What [`VariantKnowledge`] has learned from counters and gauges.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Learned {
    fit: StepTimeFit,
    first_token: Option<f64>,
    occupancy: Occupancy,
    steps: StepTokens,
    limit: Option<f64>,
    most_running: f64,
}

/// How many pods that failed are replaced, and since when.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ReplacedPods {
    /// Pods.
    pub pods: u32,
    /// When more of them were last replaced.
    #[serde(skip_serializing_if = "is_default")]
    pub at: Option<Moment>,
}

impl ReplacedPods {
    /// Of `failing` pods, those that others are ordered for. More of them only once in the `start` seconds that a pod takes:
    /// before that, nobody knows whether those that were ordered are enough. Those that come back are replaced no longer.
    pub fn settle(&mut self, failing: u32, start: f64, now: Moment) -> u32 {
        if self.at.is_none_or(|at| at.until(now) >= start) {
            self.at = if failing > self.pods { Some(now) } else { self.at };
            self.pods = failing;
        }
        self.pods.min(failing)
    }
}

/// The last reading of one process.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pod {
    /// The reading.
    pub frame: CounterSnapshot,
    /// Readings in a row at which requests waited and the running ones did not grow.
    #[serde(default, skip_serializing_if = "is_default")]
    pub full: u8,
    /// The most that ran in these.
    #[serde(default, skip_serializing_if = "is_default")]
    pub most: f64,
    /// What of it was missing or contradicted lately: what that grew by since then is of nobody knows when.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lacked: SignalSet,
    /// Tokens that its KV cache held when it was first read: a process cannot change that.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cache: Option<f64>,
}

impl ModelKnowledge {
    /// What is worth keeping over a restart.
    #[must_use]
    pub fn kept(&self) -> Self {
        let role = |own: &RoleKnowledge| {
            Box::new(RoleKnowledge {
                arrivals: Arrivals::default(),
                level: None,
                dispersion: own.dispersion.kept(),
                shape: own.shape.kept(),
                surges: own.surges.kept(),
                peaks: own.peaks.kept(PEAKS_KEPT),
                past: Box::default(),
            })
        };
        let variant = |(name, own): (&SmolStr, &VariantKnowledge)| {
            let kept = VariantKnowledge {
                pods: NameMap::default(),
                fit: own.fit.kept(),
                first_token: own.first_token.map(short),
                occupancy: own.occupancy.kept(),
                steps: own.steps.kept(),
                denied: None,
                past: Box::default(),
                replaced: ReplacedPods::default(),
                ..own.clone()
            };
            (name.clone(), kept)
        };
        Self {
            roles: self.roles.iter().map(|(name, own)| (*name, role(own))).collect(),
            variants: self.variants.iter().map(variant).collect(),
        }
    }

    /// Puts right what is later than `now`: the clock was set back.
    pub fn not_after(&mut self, now: Moment) {
        let latest = now.plus(SKEW);
        for role in self.roles.values_mut() {
            role.arrivals.not_after(latest);
            role.surges.not_after(now);
            role.peaks.not_after(now);
            role.past.not_after(latest);
        }
        for variant in self.variants.values_mut() {
            variant.fit.not_after(latest);
            variant.starts.not_after(latest);
            for moment in [&mut variant.first_token_at, &mut variant.capacity_at, &mut variant.limit_at] {
                *moment = moment.map(|at| at.min(latest));
            }
            variant.past.not_after(latest);
            variant.denied = variant.denied.map(|at| at.min(now));
            variant.replaced.at = variant.replaced.at.map(|at| at.min(now));
            variant.pods.retain_values(|pod| pod.frame.at <= latest);
        }
    }
}

impl RoleKnowledge {
    /// Remembers what is known, to be able to take back what is learned from now on.
    pub(super) fn keep(&mut self, now: Moment) {
        let Self { past, shape, surges, peaks, .. } = self;
        past.keep(now, || Load { shape: *shape, surges: surges.clone(), peaks: peaks.clone() });
    }

    /// Forgets what was learned from signals that are contradicted: also the loads where many engines' requests are `sized` by
    /// them, and the arrivals where these are `counted` by them.
    pub(super) fn take_back(&mut self, sized: bool, counted: bool) {
        let Some((at, load)) = self.past.take_back() else { return };
        self.shape = load.shape;
        if sized {
            (self.surges, self.peaks) = (load.surges, load.peaks);
        }
        if counted {
            self.arrivals.forget_after(at);
        }
    }
}

impl VariantKnowledge {
    /// Remembers what is known, to be able to take back what is learned from now on.
    pub(super) fn keep(&mut self, now: Moment) {
        let Self { past, fit, first_token, occupancy, steps, limit, most_running, .. } = self;
        past.keep(now, || Learned {
            fit: *fit,
            first_token: *first_token,
            occupancy: *occupancy,
            steps: *steps,
            limit: *limit,
            most_running: *most_running,
        });
    }

    /// Forgets what was learned from signals that are contradicted.
    pub(super) fn take_back(&mut self) {
        let Some((_, learned)) = self.past.take_back() else { return };
        let Learned { fit, first_token, occupancy, steps, limit, most_running } = learned;
        (self.fit, self.first_token, self.occupancy) = (fit, first_token, occupancy);
        (self.steps, self.limit, self.most_running) = (steps, limit, most_running);
    }

    /// The least time to first token, if it was seen lately enough to make a replica carry more.
    #[must_use]
    pub fn recent_first_token(&self, now: Moment) -> Option<f64> {
        self.first_token.filter(|_| may_lower(self.first_token_at, now))
    }

    /// Sequences that a process runs at most: `default` where no limit has shown. One that has not shown lately counts where it is
    /// less than that: it may raise a number and not lower it.
    #[must_use]
    pub fn sequences(&self, default: f64, now: Moment) -> f64 {
        let unlimited = default.max(self.most_running);
        match self.limit {
            Some(limit) if may_lower(self.limit_at, now) => limit,
            Some(limit) => limit.min(unlimited),
            None => unlimited,
        }
    }

    /// What a replica of `role` carries was learned lately enough to lower a number, or is not known at all, so that nothing rests on
    /// it.
    #[must_use]
    pub fn may_lower(&self, role: Role, now: Moment) -> bool {
        let step = match self.fit.learned_at() {
            None if role == Role::Prefill && self.first_token.is_some() => {
                may_lower(self.first_token_at, now)
            }
            None => true,
            at => may_lower(at, now),
        };
        step && (self.capacity.is_none() || may_lower(self.capacity_at, now))
    }

    /// Learns from one process of `role` that was read twice. Returns how many readings in a row have shown a limit, and the
    /// most that ran in them.
    pub(super) fn learn(&mut self, role: Role, growth: &Growth, row: (u8, f64)) -> (u8, f64) {
        let (counted, before, after, seconds) =
            (&growth.counted, growth.before, growth.after, growth.seconds());
        if counted.gaps > GAPS && (before.running + after.running) / 2.0 >= BUSY && seconds > 0.0 {
            let running = counted.gap_seconds / seconds;
            let step = counted.gap_seconds / counted.gaps;
            let usage = if seconds > FAR_APART {
                running * (before.usage + after.usage) / (before.running + after.running)
            } else {
                (before.usage + after.usage) / 2.0
            };
            // A decoding process computes no prompts.
            let prompt = if role == Role::Decode { 0.0 } else { counted.computed() / seconds * step };
            self.fit.learn(growth.to, &Sample { step, prompt, running, usage });
        }
        let calm = before.waiting <= 0.0 && after.waiting <= 0.0;
        if counted.firsts >= FIRSTS && calm && counted.computed() > 0.0 && counted.first_seconds > 0.0 {
            let each = counted.first_seconds / counted.computed();
            self.first_token = Some(self.first_token.map_or(each, |least| least.min(each)));
            self.first_token_at = self.first_token_at.max(Some(growth.to));
        }
        self.most_running = self.most_running.max(growth.after.running);
        self.learn_limit(growth, row)
    }

    /// Requests wait, there is room for them, and the running ones have stopped growing: so many run at most.
    fn learn_limit(&mut self, growth: &Growth, (full, most): (u8, f64)) -> (u8, f64) {
        let (before, after) = (growth.before, growth.after);
        let waits = before.waiting >= BEHIND_LIMIT && after.waiting >= BEHIND_LIMIT;
        let stopped = (after.running - before.running).abs() <= 1.0 && after.running >= 1.0;
        let is_full = waits && stopped && after.usage < ROOMY;
        let most = if is_full { most.max(before.running).max(after.running) } else { 0.0 };
        let full = if is_full { full.saturating_add(1) } else { 0 };
        if full >= LIMITED {
            let known = self.limit.filter(|known| most >= ANOTHER_LIMIT * known);
            self.limit = Some(known.unwrap_or_default().max(most));
        }
        if full >= LIMITED || self.limit.is_some_and(|limit| after.running >= limit) {
            self.limit_at = self.limit_at.max(Some(growth.to));
        }
        self.limit = self.limit.map(|limit| limit.max(after.running));
        (full, most)
    }
}
