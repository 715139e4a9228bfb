//! The HPAs of a run, and what was spent.

use jiff::Timestamp;

use super::bed::Bed;
use super::results::Write;
use crate::controller::{Brain, Controller};
use crate::scenario::{Scenario, SimVariant};
use wva_core::hpa::{Behavior, Hpa, Rules, Settings};
use wva_core::units::{Replicas, Seconds};

/// The HPA of one variant.
#[derive(Debug)]
pub(super) struct Scaler {
    hpa: Hpa,
    cost: f64,
    /// Since when as many are asked for as now.
    since_s: f64,
    /// Replica-seconds asked for before.
    asked_s: f64,
}

impl Scaler {
    pub(super) fn new(scenario: &Scenario, controller: &Controller, variant: &SimVariant) -> Self {
        let min = variant.bounds.min;
        // KEDA's HPA never goes below one: zero is KEDA's own business.
        let keda = matches!(controller.brain, Brain::KedaEpp { .. });
        let min = if keda { min.max(Replicas::ONE) } else { min };
        let max = variant.bounds.max.unwrap_or(Replicas::new(Scenario::MOST_PODS));
        let settings =
            Settings { min, max, behavior: behavior(scenario, controller), at_zero: scenario.hpa.at_zero };
        Self { hpa: Hpa::new(settings), cost: variant.cost.get(), since_s: 0.0, asked_s: 0.0 }
    }

    /// One look of the HPA, which may write.
    pub(super) fn step(
        &mut self,
        variant: usize,
        bed: &mut Bed<'_>,
        (now_s, now): (f64, Timestamp),
        proposal: Option<Replicas>,
    ) {
        let spec = bed.counts(variant).spec;
        let wanted = self.hpa.step(now, spec, proposal);
        self.write(variant, bed, now_s, wanted);
    }

    /// Writes a number.
    pub(super) fn write(&mut self, variant: usize, bed: &mut Bed<'_>, now_s: f64, wanted: Replicas) {
        let spec = bed.counts(variant).spec;
        if wanted == spec {
            return;
        }
        self.spend(spec, now_s);
        bed.tally.wrote(Write { at_s: now_s, variant, from: spec.get(), to: wanted.get() });
        bed.scale(variant, wanted.get(), now_s);
    }

    fn spend(&mut self, spec: Replicas, now_s: f64) {
        self.asked_s += f64::from(spec.get()) * (now_s - self.since_s);
        self.since_s = now_s;
    }

    /// Ends the account.
    pub(super) fn finish(&mut self, variant: usize, bed: &Bed<'_>, end_s: f64) {
        self.spend(bed.counts(variant).spec, end_s);
    }

    /// Replica-seconds asked for, and their cost.
    pub(super) fn spent(&self) -> (f64, f64) {
        (self.asked_s, self.asked_s * self.cost)
    }
}

fn behavior(scenario: &Scenario, controller: &Controller) -> Option<Behavior> {
    let given = scenario.hpa.behavior.clone();
    let Some(window) = controller.down_window else { return given };
    let filled = given.unwrap_or_default();
    let window = Seconds::new(window.as_secs_f64()).unwrap_or_default();
    Some(Behavior { down: Rules { window, ..filled.down }, ..filled })
}
