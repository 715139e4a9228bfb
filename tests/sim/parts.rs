//! The parts of the evidence: their scenarios and gates.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use wva_core::units::Replicas;
use wva_sim::{Algorithm, Controller, Run, ScheduleEntry};

use super::Args;
use super::gates::{
    Gate, at_most, fewer_cut, mean, no_collapse, no_late_reversal, on_the_frontier, outside, random_set,
};
use super::runs::{BASELINES, Runs, controllers, read, run};

/// First seeds of the four sets of random scenarios.
const SETS: [u64; 4] = [1, 101, 201, 1001];
/// Scenarios of a set.
const SET: u64 = 80;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    Cases,
    Constant,
    Others,
    Random,
    Traces,
    Robust,
    Victims,
}

/// The results of a part.
#[derive(Debug, Default)]
pub(crate) struct PartResults {
    pub(crate) title: &'static str,
    pub(crate) about: &'static str,
    pub(crate) gates: Vec<Gate>,
    pub(crate) runs: Runs,
    /// Rows for whole sets, where single runs are not shown.
    pub(crate) sets: Vec<SetRow>,
    pub(crate) left_out: Vec<String>,
}

/// A set of random scenarios under one policy.
#[derive(Debug)]
pub(crate) struct SetRow {
    pub(crate) set: String,
    pub(crate) policy: String,
    pub(crate) replicas: f64,
    pub(crate) quick_p95: usize,
    pub(crate) quick_p99: usize,
    pub(crate) runs: usize,
    pub(crate) outside: f64,
    pub(crate) flips: f64,
}

impl PartResults {
    fn new(title: &'static str, about: &'static str) -> Self {
        Self { title, about, ..Self::default() }
    }
}

impl Part {
    pub(crate) const ALL: [Self; 7] =
        [Self::Cases, Self::Constant, Self::Others, Self::Random, Self::Traces, Self::Robust, Self::Victims];

    pub(crate) fn run(self, args: &Args) -> Result<PartResults, String> {
        match self {
            Self::Cases => cases(args),
            Self::Constant => constant(args),
            Self::Others => others(args),
            Self::Random => random(args),
            Self::Traces => traces(args),
            Self::Robust => robust(args),
            Self::Victims => victims(args),
        }
    }
}

fn seeds(args: &Args) -> std::ops::RangeInclusive<u64> {
    1..=args.seeds
}

fn cases(args: &Args) -> Result<PartResults, String> {
    let mut runs = Runs::default();
    for name in ["case1", "case2", "case3", "case4"] {
        let plans = read(&args.scenarios.join(name).with_extension("yaml"), None)?;
        let mut all = controllers(&args.policy)?;
        all.extend((name == "case1").then(|| Arc::new(next_sync())));
        runs.0.extend(run(&plans, &all, seeds(args))?.0);
    }
    let bound = runs.line("case1", NEXT_SYNC)?.highest(|run| run.ttft_p99_s).mean;
    let cost: FigureOfRun = |run| run.cost_avg;
    let replicas: FigureOfRun = |run| run.replicas_avg;
    let p95: FigureOfRun = |run| run.ttft_p95_s;
    let p99: FigureOfRun = |run| run.ttft_p99_s;
    let mut gates = Vec::new();
    for (case, subject, figure, max, unit) in [
        ("case1", "cost", cost, 6.0, ""),
        ("case1", "p99 (1.1 × that of an order at the next HPA sync)", p99, 1.1 * bound, " s"),
        ("case2", "replicas", replicas, 3.5, ""),
        ("case2", "p95", p95, 1.0, " s"),
        ("case3", "replicas", replicas, 2.0, ""),
        ("case3", "p99", p99, 1.0, " s"),
        ("case4", "replicas", replicas, 2.3, ""),
        ("case4", "p99", p99, 0.1, " s"),
    ] {
        let figure = runs.line(case, &args.policy)?.highest(figure);
        gates.push(at_most(&format!("{case}: {subject}"), figure, max, unit));
    }
    let about = "The scenarios of llm-d's published head-to-head runs. `next-sync` knows the load and orders at the step: \
                 the HPA acts on it at its next sync.";
    Ok(PartResults { gates, runs, ..PartResults::new("Published cases", about) })
}

/// A figure of a run.
type FigureOfRun = fn(&Run) -> f64;

const NEXT_SYNC: &str = "next-sync";

/// What 10 requests/s of case 1 need, requested when they start: one TP2 and three TP1 at 68 %.
fn next_sync() -> Controller {
    let replicas = [1, 3].map(Replicas::new).to_vec();
    let order = ScheduleEntry { from: Duration::from_secs(300), replicas };
    Controller { name: NEXT_SYNC.into(), algorithm: Algorithm::Schedule(vec![order]), ..Controller::fixed(1) }
}

fn constant(args: &Args) -> Result<PartResults, String> {
    let plans = read(&args.scenarios.join("const.yaml"), None)?;
    let runs = run(&plans, &controllers(&args.policy)?, 1..=args.seeds.min(5))?;
    let gates = vec![no_late_reversal("constant load, 1 to 10 requests/s, 2 h", runs.of(&args.policy))];
    Ok(PartResults { gates, runs, ..PartResults::new("Constant load", "Two hours from three replicas.") })
}

fn others(args: &Args) -> Result<PartResults, String> {
    let mut plans = Vec::new();
    for name in ["burst", "ramp", "drop", "shape", "shape2", "zero", "big", "long", "mix3"] {
        plans.extend(read(&args.scenarios.join(name).with_extension("yaml"), None)?);
    }
    let runs = run(&plans, &controllers(&args.policy)?, 1..=args.seeds.min(5))?;
    Ok(PartResults { runs, ..PartResults::new("Other scenarios", "No gates: for comparison.") })
}

fn random(args: &Args) -> Result<PartResults, String> {
    let plans = read(&args.scenarios.join("random.yaml"), None)?;
    let about = "80 in each set, another for every seed: tokens, hardware, start-up and load are drawn \
                 (`tests/scenarios/sim/random.yaml`). Requests outside the objectives: of all requests of the set.";
    let mut result = PartResults::new("Random scenarios", about);
    let mut own = Vec::new();
    for first in SETS.into_iter().take(args.random_sets) {
        let runs = run(&plans, &controllers(&args.policy)?, first..first + SET)?;
        let name = format!("random {first}–{}", first + SET - 1);
        result.gates.extend(random_set(&name, &runs, &args.policy));
        own.push(outside(runs.of(&args.policy)));
        for policy in std::iter::once(args.policy.as_str()).chain(BASELINES) {
            result.sets.push(set_row(&name, &runs, policy));
        }
    }
    let all = 100.0 * mean(own.into_iter());
    result.gates.push(Gate {
        subject: "random: requests outside the objectives, mean of the sets".into(),
        criterion: "at most 1.5 %".into(),
        result: format!("{all:.2} %"),
        holds: all <= 1.5,
    });
    Ok(result)
}

fn set_row(set: &str, runs: &Runs, policy: &str) -> SetRow {
    SetRow {
        set: set.into(),
        policy: policy.into(),
        replicas: mean(runs.of(policy).map(|run| run.replicas_avg)),
        quick_p95: runs.of(policy).filter(|run| run.ttft_p95_s < 1.0).count(),
        quick_p99: runs.of(policy).filter(|run| run.ttft_p99_s < 1.0).count(),
        runs: runs.of(policy).count(),
        outside: outside(runs.of(policy)),
        flips: mean(runs.of(policy).map(|run| f64::from(run.flips))),
    }
}

fn traces(args: &Args) -> Result<PartResults, String> {
    let about = "A day of each of ServeGen's models and the Azure code trace (`tests/scenarios/sim/diurnal*.yaml`, `azure.yaml`).";
    let mut result = PartResults::new("Traces", about);
    let azure = ("azure", "azure_llm_2023_code.csv.gz", args.seeds);
    let days = ["diurnal", "diurnal-mid", "diurnal-small", "diurnal-reasoning", "diurnal-image"];
    let days = days.map(|day| (day, "servegen_total_rate_10min.csv.gz", args.seeds.min(3)));
    for (name, trace, seeds) in std::iter::once(azure).chain(days) {
        let trace = args.traces.join(trace);
        if !Path::new(&trace).is_file() {
            result.left_out.push(format!("{name}: there is no {}", trace.display()));
            continue;
        }
        let plans = read(&args.scenarios.join(name).with_extension("yaml"), Some(&trace))?;
        let runs = run(&plans, &controllers(&args.policy)?, 1..=seeds)?;
        result.gates.push(on_the_frontier(&runs, name, &args.policy)?);
        result.runs.0.extend(runs.0);
    }
    Ok(result)
}

fn robust(args: &Args) -> Result<PartResults, String> {
    let plans = read(&args.scenarios.join("robust.yaml"), None)?;
    let runs = run(&plans, &controllers(&args.policy)?, 1..=args.seeds.min(5))?;
    let mut gates = Vec::new();
    for plan in &plans {
        gates.push(on_the_frontier(&runs, &plan.name, &args.policy)?);
        gates.push(no_collapse(&runs, &plan.name, &args.policy)?);
    }
    let about = "The published cases, each under worse conditions (`tests/scenarios/sim/robust.yaml`).";
    Ok(PartResults { gates, runs, ..PartResults::new("Robustness", about) })
}

fn victims(args: &Args) -> Result<PartResults, String> {
    let plans = read(&args.scenarios.join("victims.yaml"), None)?;
    let runs = run(&plans, &controllers(&args.policy)?, seeds(args))?;
    let policies = std::iter::once(args.policy.as_str()).chain(BASELINES);
    let gates = policies.map(|policy| fewer_cut(&runs, policy)).collect();
    let about = "Streams that outlive the grace period are cut: `errors` (`tests/scenarios/sim/victims.yaml`). The youngest pods go \
                 first, as a ReplicaSet has it, or those with the fewest requests in flight (`podDeletionCost`); or, to compare, \
                 those with the fewest tokens in the KV cache.";
    Ok(PartResults { gates, runs, ..PartResults::new("Which pods go first", about) })
}
