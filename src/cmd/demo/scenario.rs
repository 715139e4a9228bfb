//! The scenario of the demo: one model, its servers, its HPA, and ten minutes of load that rises and falls. Values only.

use std::time::Duration;

use wva_core::model::{Bounds, TargetRef, Variant, VariantId};
use wva_core::units::{Cost, Replicas};
use wva_sim::{LoadShape, Physics, RequestSizes, Segment, SimVariant, StartUp, TP1};

/// The namespace of the variant.
pub(super) const NAMESPACE: &str = "default";
/// The name of the variant and of its Deployment.
pub(super) const VARIANT: &str = "llama-8b";
/// The model that its pods serve.
pub(super) const MODEL: &str = "meta-llama/Llama-3.1-8B-Instruct";
/// Cost of a pod an hour: the default of the custom resource.
pub(super) const COST: f64 = Variant::DEFAULT_COST;
/// `minReplicas` of the variant and of its HPA.
pub(super) const MIN_REPLICAS: Replicas = Replicas::ONE;
/// `maxReplicas` of the variant and of its HPA.
pub(super) const MAX_REPLICAS: Replicas = Replicas::new(8);

/// The H100 of the presets with little memory left for the KV cache, as with a small `--gpu-memory-utilization`: 30 of these
/// requests fill 25,000 tokens before the compute is exhausted. A pod carries 8.1 requests/s, few enough for one screen.
const SERVER: Physics = Physics { kv_tokens: 25_008, ..TP1 };

/// Chat turns: as many tokens read as written.
pub(super) const SIZES: RequestSizes = RequestSizes::uniform(500.0, 500.0, 0.3);

/// Short, so that one can watch it. Real models take minutes.
pub(super) const START_UP: StartUp = StartUp { mean: Duration::from_secs(30), spread: 0.1 };

/// `behavior.scaleDown.stabilizationWindowSeconds` of the demo's HPA. Kubernetes' default of 300 s would take too long to
/// watch.
pub(super) const SCALE_DOWN_WINDOW_S: u32 = 30;

/// Ten minutes of calm, rise, peak, fall and calm, repeated. The rise adds the load of one pod in 85 s: slower than a
/// decision, an HPA sync and a start-up together, so that wva can follow.
pub(super) fn load() -> LoadShape {
    let s = Duration::from_secs;
    LoadShape::new(vec![
        Segment::Hold { rps: 4.0, lasts: s(15) },
        Segment::Ramp { from: 4.0, to: 12.5, lasts: s(170) },
        Segment::Hold { rps: 12.5, lasts: s(115) },
        Segment::Ramp { from: 12.5, to: 3.0, lasts: s(150) },
        Segment::Hold { rps: 3.0, lasts: s(150) },
    ])
}

fn cost() -> Cost {
    Cost::new(COST).unwrap_or_default()
}

/// The variant for the simulator.
pub(super) fn sim_variant() -> SimVariant {
    SimVariant { start_up: START_UP, ..SimVariant::new(VARIANT, SERVER, cost()) }
}

/// The variant as its `VariantAutoscaling` would describe it.
pub(super) fn variant() -> Variant {
    Variant {
        cost: cost(),
        bounds: Bounds { min: MIN_REPLICAS, max: Some(MAX_REPLICAS) },
        accelerator: Some("H100".into()),
        ..Variant::new(VariantId::new(NAMESPACE, VARIANT), MODEL, TargetRef::deployment(VARIANT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_needs_more_than_one_pod_and_fewer_than_the_maximum() {
        let load = load();
        let capacity = SERVER.capacity_rps(SIZES);
        let rates: Vec<f64> = (0..600).map(|second| load.rate_at(Duration::from_secs(second))).collect();
        let peak = rates.iter().copied().fold(0.0, f64::max);
        assert_eq!(load.length(), Duration::from_secs(600));
        assert!(rates[0] < capacity && peak > capacity);
        assert!(peak < capacity * f64::from(MAX_REPLICAS.get()) * 0.7);
    }
}
