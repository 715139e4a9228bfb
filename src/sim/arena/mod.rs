//! NVIDIA's Planner Gym (`ai-dynamo/dynamo`, `gyms/planner-gym`), a public leaderboard of LLM autoscalers, by its formulas: its
//! workloads, its metric, its fleet, and its published results. The servers are those of this simulator.

mod workloads;

use std::time::Duration;

use wva_core::model::Bounds;
use wva_core::units::{Cost, Replicas};

use crate::controller::Controller;
use crate::load::LoadShape;
use crate::physics::{Deviations, Physics, TP1};
use crate::run::{Run, simulate_figures};
use crate::scenario::{Arrivals, Routing, Scenario, SimVariant, Slo, StartUp};
use crate::sizes::RequestSizes;

pub use self::workloads::{GOLDEN, Sources, WORKLOADS, arena_sources};
use self::workloads::{Workload, workload};

/// A mixture-of-experts model of 120 billion parameters, of which 4 of 128 experts serve a token, on one H200. The time of a prompt token
/// was chosen so that the fixed fleet of four has nearly its published shares of good requests (the command prints both). 4.8 TB/s read
/// the weights of the experts in 12.5 ms and a token's cache in 15 ns.
const GPT_OSS_120B: Physics = Physics {
    base_s: 4e-3,
    per_prompt_token_s: 32e-6,
    per_sequence_s: 20e-6,
    per_kv_token_s: 15e-9,
    kv_tokens: 29_920 * 16,
    block_size: 16,
    ..TP1
};
const EXPERTS: Deviations = Deviations {
    per_prompt_token: 0.0,
    per_kv_share: 0.0,
    noise: 0.0,
    stalls: 0.0,
    stall_s: 0.0,
    experts_s: 12.5e-3,
    expert_share: 4.0 / 128.0,
};

/// The arena's profiles of objectives. The last one's first figure is for the whole answer.
pub const PROFILES: [(&str, Slo); 3] = [
    ("relaxed", Slo { ttft: Duration::from_secs(2), itl: Duration::from_millis(50), end_to_end: None }),
    ("strict", Slo { ttft: Duration::from_millis(300), itl: Duration::from_millis(50), end_to_end: None }),
    (
        "end-to-end",
        Slo {
            ttft: Duration::from_secs(3),
            itl: Duration::from_millis(200),
            end_to_end: Some(Duration::from_secs(3)),
        },
    ),
];

/// Published results of a scaler: over all workloads, and over the golden six.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Published {
    /// Its name.
    pub name: &'static str,
    /// Goodput per GPU by that of the fixed fleet of four: all, golden.
    pub ratio: (f64, f64),
    /// Share of good requests: all, golden.
    pub good: (f64, f64),
}

/// The published results of 2026-10-02, aggregated serving.
#[must_use]
pub const fn published() -> [Published; 6] {
    const fn row(name: &'static str, ratio: (f64, f64), good: (f64, f64)) -> Published {
        Published { name, ratio, good }
    }
    [
        row("cloudai-mpc", (1.66, 2.53), (0.697, 0.883)),
        row("cloudai-rl", (1.62, 2.36), (0.682, 0.895)),
        row("reactive", (1.54, 2.15), (0.634, 0.734)),
        row("KEDA, queue 5", (1.51, 2.17), (0.738, 0.809)),
        row("Dynamo planner", (1.35, 2.04), (0.583, 0.896)),
        row("static-4", (1.0, 1.0), (0.934, 0.996)),
    ]
}

/// Everything about a tournament but who takes part.
#[derive(Debug, Clone)]
pub struct Arena {
    /// Of the workloads that come from a trace.
    pub sources: Sources,
    /// Requests a second of which the golden workloads are shares.
    pub reference_rps: f64,
    /// The objectives.
    pub slo: Slo,
}

/// The arena's figures of one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score {
    /// Good requests a second and average GPU.
    pub per_gpu: f64,
    /// Good requests by all that came; 1 when none came.
    pub good: f64,
    /// Average GPUs, starting and draining ones included.
    pub gpus: f64,
    /// Changes of the number of replicas.
    pub changes: u32,
    /// Of these, changes of direction.
    pub reversals: u32,
}

impl Score {
    fn new(run: &Run, duration: Duration) -> Self {
        let seconds = duration.as_secs_f64();
        let gpus = run.gpu_hours * 3600.0 / seconds;
        let good = run.good as f64;
        Self {
            per_gpu: if gpus > 0.0 { good / seconds / gpus } else { 0.0 },
            good: if run.requests > 0 { good / run.requests as f64 } else { 1.0 },
            gpus,
            changes: run.changes,
            reversals: run.flips,
        }
    }
}

impl Arena {
    /// Plays a workload of [`WORKLOADS`]; `None` where there is none of the name, or no trace that it needs. `sync` is the period
    /// of HPAs.
    #[must_use]
    pub fn play(&self, name: &str, controller: &Controller, sync: Duration, seed: u64) -> Option<Score> {
        let workload = workload(name, seed, &self.sources, self.reference_rps)?;
        let duration = workload.duration;
        let scenario = scenario(name, workload, sync, self.slo);
        Some(Score::new(&simulate_figures(&scenario, controller, seed, |_| ()), duration))
    }
}

/// The rate that a fixed fleet of `gpus` just carries: the highest at which at least `share` of the requests of the steady golden
/// workload are good, by bisection to 1 %. `None` without a trace.
#[must_use]
pub fn reference_rate(sources: &Sources, gpus: u32, share: f64, slo: Slo, seed: u64) -> Option<f64> {
    let carries = |rps: f64| {
        // The steady workload has 0.85 of the reference rate.
        let arena = Arena { sources: sources.clone(), reference_rps: rps / 0.85, slo };
        let sync = Duration::from_secs(15);
        arena
            .play("steady-near-capacity", &Controller::fixed(gpus), sync, seed)
            .map(|score| score.good >= share)
    };
    let (mut low, mut high) = (0.01, 200.0);
    while high / low > 1.01 {
        let middle = f64::sqrt(low * high);
        if carries(middle)? { low = middle } else { high = middle }
    }
    Some(low)
}

/// The arena's fleet: 1 to 8 GPUs, of which one runs at the start; 30 s to start; requests one after another to each.
fn scenario(name: &str, workload: Workload, sync: Duration, slo: Slo) -> Scenario {
    let variant = SimVariant {
        accelerator: "H200".into(),
        bounds: Bounds { min: Replicas::ONE, max: Some(Replicas::new(8)) },
        start_up: StartUp { mean: Duration::from_secs(30), spread: 0.0 },
        deviations: EXPERTS,
        ..SimVariant::new("gpt-oss-120b", GPT_OSS_120B, Cost::new(1.0).unwrap_or_default())
    };
    let sizes = RequestSizes::fixed(1.0, 1.0);
    let mut scenario = Scenario::new(name, workload.duration, LoadShape::default(), sizes, vec![variant]);
    scenario.arrivals = Arrivals::Trace(workload.arrivals.into());
    scenario.routing = Routing::RoundRobin;
    scenario.slo = slo;
    scenario.hpa.sync = sync;
    scenario
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Peer;
    use crate::scenario::Arrival;

    const SYNC: Duration = Duration::from_secs(15);

    fn score(arrivals: Vec<Arrival>, controller: &Controller, slo: Slo) -> Score {
        let duration = Duration::from_secs(100);
        let scenario = scenario("test", Workload { duration, arrivals }, SYNC, slo);
        Score::new(&simulate_figures(&scenario, controller, 1, |_| ()), duration)
    }

    fn request(at_s: f64, prompt: u32, output: u32) -> Arrival {
        Arrival { at_s, prompt, output, cached: 0 }
    }

    #[test]
    fn a_single_token_and_a_lost_request_are_not_good() {
        let relaxed = PROFILES[0].1;
        let fleet = Controller::fixed(1);
        // The last one is larger than the memory of a server.
        let all =
            vec![request(1.0, 100, 2), request(2.0, 100, 1), request(3.0, 100, 50), request(4.0, 900_000, 5)];
        let got = score(all, &fleet, relaxed);
        assert!((got.good - 0.5).abs() < 1e-9, "{got:?}");
        assert!((got.per_gpu - 0.02).abs() < 1e-9 && (got.gpus - 1.0).abs() < 1e-9, "{got:?}");
    }

    #[test]
    fn an_answer_that_lasts_too_long_is_good_only_without_an_objective_for_it() {
        // A step of one sequence takes more than 4 ms, so that 1000 tokens take more than 4 s.
        let long = vec![request(1.0, 100, 1000)];
        let good = |slo| score(long.clone(), &Controller::fixed(1), slo).good;
        assert!((good(PROFILES[0].1) - 1.0).abs() < 1e-9);
        assert!(good(PROFILES[2].1).abs() < 1e-9);
    }

    #[test]
    fn starting_and_draining_gpus_count() {
        // A queue at once: the reactive scaler asks for more, which start for 30 s and never serve.
        let crowd: Vec<Arrival> = (0..3000).map(|_| request(0.5, 8000, 200)).collect();
        let got = score(crowd, &Controller::peer(Peer::ArenaReactive), PROFILES[0].1);
        assert!(got.gpus > 2.0, "{got:?}");
        assert!((5..=7).contains(&got.changes) && got.reversals == 0, "one at a time every 15 s: {got:?}");
    }

    #[test]
    fn keda_goes_up_at_once_and_waits_five_minutes_before_it_goes_down() {
        let crowd: Vec<Arrival> = (0..3000).map(|_| request(0.5, 8000, 200)).collect();
        let up = score(crowd, &Controller::peer(Peer::ArenaKeda), PROFILES[0].1);
        assert_eq!((up.changes, up.reversals), (1, 0), "{up:?}");
        let arrivals = (0..400).map(|_| request(0.5, 2000, 30)).collect();
        let duration = Duration::from_secs(600);
        let scenario = scenario("test", Workload { duration, arrivals }, SYNC, PROFILES[0].1);
        let run = simulate_figures(&scenario, &Controller::peer(Peer::ArenaKeda), 1, |_| ());
        let [up, down] = run.writes.as_slice() else { panic!("{:?}", run.writes) };
        assert!(up.to > up.from && down.to < down.from && down.at_s - up.at_s >= 285.0, "{:?}", run.writes);
    }

    #[test]
    fn larger_fleets_have_more_good_requests_and_nobody_leaves_the_bounds() {
        let arena = Arena { sources: Sources::default(), reference_rps: 1.0, slo: PROFILES[0].1 };
        let rate = Controller::analyzer(wva_core::model::Analyzer::Rate);
        for name in ["square", "flash-crowd"] {
            let good = |controller: &Controller| arena.play(name, controller, SYNC, 3).unwrap();
            assert!(good(&Controller::fixed(8)).good >= good(&Controller::fixed(1)).good);
            assert!((1.0..=8.0).contains(&good(&rate).gpus));
        }
        assert!(arena.play("gradual-ramp", &rate, SYNC, 3).is_none(), "it needs a trace");
    }

    #[test]
    fn the_reference_rate_is_carried_by_its_fleet_and_grows_with_it() {
        let sources = arena_sources((0..1000).map(|_| request(0.0, 20_000, 20)).collect());
        let rate = |gpus| reference_rate(&sources, gpus, 0.95, PROFILES[0].1, 1).unwrap();
        let (two, four) = (rate(2), rate(4));
        // Two GPUs compute 3.1 such prompts a second.
        assert!((0.5..3.1).contains(&two) && four > 1.8 * two, "{two} {four}");
        assert!(reference_rate(&Sources::default(), 2, 0.95, PROFILES[0].1, 1).is_none());
    }
}
