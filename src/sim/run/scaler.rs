//! The HPAs of a run, and the account of their replicas.

use wva_core::hpa::{Behavior, Hpa, Rules, Settings};
use wva_core::units::{Replicas, Seconds};

use super::observer::timestamp;
use super::recorder::RunRecorder;
use super::results::ReplicaChange;
use crate::cluster::SimCluster;
use crate::controller::{Algorithm, Controller};
use crate::scenario::{Scenario, SimVariant};

/// The HPA of one variant.
#[derive(Debug, Clone)]
pub(super) struct Scaler {
    hpa: Hpa,
    /// Of a replica an hour.
    pub(super) cost: f64,
    /// Since when `spec.replicas` is what it is now, seconds.
    since_s: f64,
    /// Replica-seconds of `spec.replicas` before that.
    pub(super) replica_s: f64,
}

impl Scaler {
    pub(super) fn new(scenario: &Scenario, controller: &Controller, variant: &SimVariant) -> Self {
        let min = variant.bounds.min;
        // The HPA that KEDA creates never goes below one replica: KEDA itself scales to zero.
        let is_keda = matches!(controller.algorithm, Algorithm::KedaEpp { .. });
        let min = if is_keda { min.max(Replicas::ONE) } else { min };
        let max = variant.bounds.max.unwrap_or(Replicas::new(Scenario::MAX_PODS));
        let settings =
            Settings { min, max, behavior: behavior(scenario, controller), at_zero: scenario.hpa.at_zero };
        Self { hpa: Hpa::new(settings), cost: variant.cost.get(), since_s: 0.0, replica_s: 0.0 }
    }

    /// Syncs the HPA with `proposal`, the replicas that its metrics propose.
    pub(super) fn sync(
        &mut self,
        variant: usize,
        cluster: &mut SimCluster<RunRecorder>,
        now_s: f64,
        proposal: Option<Replicas>,
    ) {
        let spec = cluster.counts(variant).spec;
        let replicas = self.hpa.step(timestamp(now_s), spec, proposal);
        self.write(variant, cluster, now_s, replicas);
    }

    /// Writes `spec.replicas`.
    pub(super) fn write(
        &mut self,
        variant: usize,
        cluster: &mut SimCluster<RunRecorder>,
        now_s: f64,
        replicas: Replicas,
    ) {
        let spec = cluster.counts(variant).spec;
        if replicas == spec {
            return;
        }
        self.account(spec, now_s);
        let change = ReplicaChange { at_s: now_s, variant, from: spec.get(), to: replicas.get() };
        cluster.recorder.replicas_changed(change);
        cluster.scale(variant, replicas.get(), now_s);
    }

    /// Adds the replica-seconds of `spec` until `now_s`.
    pub(super) fn account(&mut self, spec: Replicas, now_s: f64) {
        self.replica_s += f64::from(spec.get()) * (now_s - self.since_s);
        self.since_s = now_s;
    }
}

fn behavior(scenario: &Scenario, controller: &Controller) -> Option<Behavior> {
    let behavior = scenario.hpa.behavior.clone();
    let Some(window) = controller.scale_down_window else { return behavior };
    let behavior = behavior.unwrap_or_default();
    let window = Seconds::new(window.as_secs_f64()).unwrap_or_default();
    Some(Behavior { down: Rules { window, ..behavior.down }, ..behavior })
}
