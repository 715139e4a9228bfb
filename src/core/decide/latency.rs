//! The analyzers of latency: the queueing model, asked from what a decision knows.

use super::capacity::{Seen, max_sequences};
use super::member::Scene;
use crate::analyze::finding::Finding;
use crate::analyze::queueing::size::Targets;
use crate::analyze::queueing::{self, Load, Observation, Settings};
use crate::memory::Learned;
use crate::model::{Beside, Utilisation};
use crate::observe::held_by_scheduler;
use crate::quality;
use crate::units::Requests;

/// What the queueing model finds; `None` while nobody knows what latencies to keep.
pub(super) fn queueing(
    scene: Scene<'_>,
    chosen: &Beside,
    utilisation: Utilisation,
    seen: &[Seen<'_, '_>],
    learned: &mut Learned,
) -> Option<Finding> {
    let loads: Vec<Load> = seen.iter().map(|one| load(scene, one)).collect();
    let policy = &scene.model.queueing;
    let targets =
        policy.targets.and_then(|given| Targets::latency(given.ttft_ms as f32, given.itl_ms as f32).ok());
    let settings = Settings {
        targets,
        multiplier: policy.slo_multiplier,
        tuning: policy.tuning,
        up: utilisation.up,
        down: utilisation.down,
        score: chosen.score,
        ..Settings::default()
    };
    let queued = held_by_scheduler(scene.now, &scene.group.scheduler).map_or(0.0, |sample| sample.value);
    let queued = Requests::new(queued).unwrap_or_default();
    let analysis = queueing::analyze(&loads, queued, &learned.queueing, &settings, scene.compat);
    learned.queueing = analysis.learned;
    analysis.finding.ok()
}

fn load(scene: Scene<'_>, one: &Seen<'_, '_>) -> Load {
    let variant = &one.member.state.variant;
    let batch = max_sequences(one.member.state);
    // Without a scheduler (ours) first tokens stand for arrivals: they differ from them by what waits.
    let arrival = |load: &quality::Load| {
        load.arriving.or(if scene.compat.is_upstream() { None } else { load.starting })
    };
    let observed = |load: &quality::Load| Observation {
        arrival: arrival(load),
        input: load.prompt.unwrap_or(0.0),
        output: load.generated.unwrap_or(0.0),
        ttft: load.first_token.unwrap_or(0.0),
        itl: load.between_tokens.unwrap_or(0.0),
        batch,
    };
    Load {
        name: variant.id.name.clone(),
        role: variant.role,
        accelerator: variant.accelerator.clone(),
        cost: variant.cost,
        ready: one.member.scale.base().above(one.pending),
        pending: one.pending,
        observations: one.loads.iter().map(observed).collect(),
    }
}
