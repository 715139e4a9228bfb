//! Arrivals at engines that have lost their counters (an upgrade has renamed them, a relabelling drops them), from their gauges: what so many
//! running sequences finish, and the growth of the requests that are held. It is an estimate: it may raise a number and not lower it.

use jiff::Timestamp;

use super::arrivals::EngineArrivals;
use super::counter_snapshot::{CounterSnapshot, Gauges, Growth};
use super::knowledge::{RoleKnowledge, VariantKnowledge};
use super::step_time::StepTime;
use super::token_shape::TokenShape;
use super::window_extrema::WindowMaximum;
use crate::model::Role;
use crate::moment::Moment;
use crate::sequence_limit::default_for_device;
use crate::snapshot::{Signal, Signals, VariantState, newest_confirmed};

/// An engine may hold so many requests less than what it finishes explains.
const MAX_CHANCE_FALL: f64 = 10.0;
/// Coverage of the last two minutes that is enough to go on: scrapes may come once a minute, and at different times.
const MIN_COVERAGE: f64 = 1.0 / 3.0;

/// The gauges that are read.
pub(super) const GAUGES: [Signal; 3] = [Signal::Running, Signal::Waiting, Signal::KvUsage];

impl CounterSnapshot {
    /// The same with a number of running sequences that is confirmed and possible: without counters nothing contradicts a wrong one.
    pub(super) fn with_confirmed_running(
        mut self,
        signals: &Signals,
        scraped: Timestamp,
        state: &VariantState,
        known: &VariantKnowledge,
    ) -> Self {
        let default = default_for_device(state.variant.accelerator.as_deref());
        let argument = state.template.sequences();
        let limit = argument.map_or_else(|| known.max_sequences(default.into(), self.at), f64::from);
        let rows = signals.rows().until(scraped);
        let confirmed = newest_confirmed(rows.get(Signal::Running)).map_or(0.0, |sample| sample.value);
        self.gauges.running = self.gauges.running.min(confirmed).min(limit);
        self
    }
}

impl Growth {
    /// Requests that arrived at an engine that counts nothing; `None` where its step times or request sizes are not known. It may be negative
    /// by chance: clipping each interval at 0 would be too many in the mean.
    pub(super) fn arrivals_by_gauges(
        &self,
        role: Role,
        known: &VariantKnowledge,
        shape: &TokenShape,
    ) -> Option<f64> {
        let held = |gauges: &Gauges| gauges.running + gauges.waiting;
        let mean = |gauge: fn(&Gauges) -> f64| f64::midpoint(gauge(&self.before), gauge(&self.after));
        let gauges = Gauges { waiting: 0.0, running: mean(|own| own.running), usage: mean(|own| own.usage) };
        let finished = known.finish_rate(role, &gauges, shape, self.to)? * self.seconds();
        let joined = held(&self.after) - held(&self.before);
        // An engine that was restarted holds only what has arrived since.
        let is_restart = -joined > 2.0 * finished + MAX_CHANCE_FALL;
        Some(if is_restart { held(&self.after) } else { finished + joined })
    }
}

impl VariantKnowledge {
    /// Requests/s that an engine of `role` with these gauges finishes: each running one gets its tokens step by step. `None` before the step
    /// times and the mean request are known.
    pub(super) fn finish_rate(
        &self,
        role: Role,
        gauges: &Gauges,
        shape: &TokenShape,
        now: Moment,
    ) -> Option<f64> {
        let output = shape.output()?;
        // A decoding engine computes no prompts.
        let prompt = if role == Role::Decode { 0.0 } else { shape.prompt()? };
        let StepTime { base, prompt_token, sequence, full_cache } =
            self.fit.solve(self.recent_first_token(now))?;
        let per_step = gauges.running * self.steps.per_step() / output;
        // A request that finishes makes room for another one, whose prompt is computed.
        let seconds =
            base + prompt_token * prompt * per_step + sequence * gauges.running + full_cache * gauges.usage;
        Some(per_step / seconds)
    }
}

impl RoleKnowledge {
    /// Engines have lost their counters, and arrivals at enough of them were known in the last `seconds`, be it by their gauges.
    pub(crate) fn reads_gauges(&self, now: Moment, seconds: f64) -> bool {
        let bins = self.arrivals.bins();
        let recent = bins.iter().rev().take_while(|bin| bin.end.until(now) < seconds);
        let read: f64 = recent.map(|bin| bin.read * bin.seconds).sum();
        let expected = bins.last().map_or(0.0, |newest| newest.expected * seconds);
        self.gauged_at.is_some() && read > 0.0 && read >= MIN_COVERAGE * expected
    }

    /// Requests that arrived at an engine that counts nothing, if that can be estimated.
    pub(super) fn estimate_arrivals(
        &mut self,
        role: Role,
        growth: &Growth,
        variant: &VariantKnowledge,
    ) -> Option<EngineArrivals> {
        let arrivals = growth.arrivals_by_gauges(role, variant, &self.shape)?;
        self.gauged_at = self.gauged_at.max(Some(growth.to));
        Some(EngineArrivals::admitted(arrivals))
    }

    /// Forgets what was estimated from gauges, once arrivals are counted again: only those may lower a number.
    pub(super) fn forget_gauged(&mut self) {
        let is_counted = |at: &Moment| {
            self.arrivals.bins().last().is_some_and(|newest| newest.start() >= *at && newest.read > 0.0)
        };
        if let Some(at) = self.gauged_at.filter(is_counted) {
            self.arrivals.forget_until(at);
            self.peaks = WindowMaximum::default();
            (self.level, self.gauged_at) = (None, None);
        }
    }
}
