//! What the demo is about: one model, its servers, its HPA, and ten minutes of load that rises and falls. Values only.

use std::time::Duration;

use wva_core::model::{Bounds, TargetRef, Variant, VariantId};
use wva_core::units::{Cost, OutOfRange, Replicas};
use wva_sim::{Batching, LoadShape, Physics, PodSpec, Segment, StartUp, TP1, TokenShape};

/// Where the variant lives.
pub(super) const NAMESPACE: &str = "default";
/// The variant, and its Deployment.
pub(super) const VARIANT: &str = "llama-8b";
/// What its pods serve.
pub(super) const MODEL: &str = "meta-llama/Llama-3.1-8B-Instruct";
/// What one pod costs an hour: the custom resource's default.
pub(super) const COST: f64 = Variant::DEFAULT_COST;
/// Bounds of the variant and of its HPA.
pub(super) const MIN: Replicas = Replicas::ONE;
/// See [`MIN`].
pub(super) const MAX: Replicas = Replicas::new(8);

/// The simulated server: the H100 of the presets, with little memory left for the KV cache (as with a small
/// `--gpu-memory-utilization`): 25,000 tokens are full at 30 of these requests, before the compute is. Then KV usage,
/// which the default analyzer looks at, grows nearly in proportion to the load: 8.1 requests/s fill a pod.
const SERVER: Batching = Batching { kv_tokens: 25_008, ..TP1 };

/// Chat turns: half of the tokens read, half written.
pub(super) const TOKENS: TokenShape = TokenShape::varied(500, 500, 0.3);

/// Short, so that one can watch it; real models take minutes.
pub(super) const START_UP: StartUp = StartUp { mean: Duration::from_secs(30), spread: 0.1 };

/// `behavior.scaleDown.stabilizationWindowSeconds` of the demo's HPA. Kubernetes' default is 300: nobody would watch.
pub(super) const SCALE_DOWN_WINDOW_S: u32 = 30;

/// Ten minutes: calm, rise, peak, fall, calm; then again. The default analyzer takes one step at a time and waits for
/// each new pod, about 75 s in all: the rise brings one pod's worth of load (4.3 requests/s, where it asks for another)
/// in 85 s, so that it can follow.
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

/// What every pod is made from.
pub(super) fn pod() -> PodSpec {
    PodSpec { name: VARIANT.into(), group: VARIANT.into(), physics: Physics::Batching(SERVER), cost: COST }
}

/// The variant as its `VariantAutoscaling` would describe it.
pub(super) fn variant() -> Result<Variant, OutOfRange> {
    Ok(Variant {
        id: VariantId::new(NAMESPACE, VARIANT),
        model: MODEL.into(),
        target: TargetRef { kind: "Deployment".into(), name: VARIANT.into() },
        cost: Cost::new(COST)?,
        bounds: Bounds { min: MIN, max: Some(MAX) },
        accelerator: Some("H100".into()),
        role: wva_core::model::Role::Both,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_needs_more_than_one_pod_and_fewer_than_the_maximum() {
        let (shape, capacity) = (load(), SERVER.capacity_rps(TOKENS));
        let rates: Vec<f64> = (0..600).map(|second| shape.rate_at(Duration::from_secs(second))).collect();
        let most = rates.iter().copied().fold(0.0, f64::max);
        assert_eq!(shape.length(), Duration::from_secs(600));
        assert!(rates[0] < capacity && most > capacity && most < capacity * f64::from(MAX.get()) * 0.7);
    }
}
