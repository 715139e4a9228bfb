//! The parts of the evidence: their scenarios and gates.

use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use wva::simulate::{Plan, RunDetail};
use wva_core::units::Replicas;
use wva_sim::{Algorithm, Controller, Run, ScheduleEntry};

use super::Args;
use super::gates::{at_most, fewer_cut, no_late_reversal, no_peer_better};
use super::groups::{Group, add_rows};
use super::policies::{BASELINES, PEERS, on_every_path, with_baselines, with_peers};
use super::random::{self, outside_by_run};
use super::runs::{of, read, run};
use super::seeds::Seeds;
use super::stats::Mean;
use super::store::PartResults;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    Cases,
    Constant,
    Shapes,
    Random,
    Peers,
    Paths,
    Families,
    Robust,
    Traces,
    Victims,
}

impl Part {
    pub(crate) const ALL: [Self; 10] = [
        Self::Cases,
        Self::Constant,
        Self::Shapes,
        Self::Random,
        Self::Peers,
        Self::Paths,
        Self::Families,
        Self::Robust,
        Self::Traces,
        Self::Victims,
    ];

    pub(crate) fn run(self, args: &Args, seeds: &Seeds) -> Result<PartResults, String> {
        match self {
            Self::Cases => cases(args, seeds),
            Self::Constant => constant(args, seeds),
            Self::Shapes => shapes(args, seeds),
            Self::Random => random::random(args, seeds),
            Self::Peers => peers(args, seeds),
            Self::Paths => paths(args, seeds),
            Self::Families => families(args, seeds),
            Self::Robust => robust(args, seeds),
            Self::Traces => traces(args, seeds),
            Self::Victims => victims(args, seeds),
        }
    }
}

/// The seeds of a part: `full` of them, or `short` in CI.
fn seeds_of(args: &Args, seeds: &Seeds, part: Part, full: u64, short: u64) -> Vec<u64> {
    seeds.of(part as u64, if args.ci { short } else { full.min(args.seeds) })
}

/// What is larger in the full run than in CI.
const fn sized(args: &Args, full: usize, short: usize) -> usize {
    if args.ci { short } else { full }
}

fn named(args: &Args, names: &[&str]) -> Result<Vec<Arc<Plan>>, String> {
    let mut plans = Vec::new();
    for name in names {
        plans.extend(read(&args.scenarios.join(name).with_extension("yaml"), None)?);
    }
    Ok(plans)
}

/// The most replicas and the longest tails of a published case.
type Bound = (&'static str, &'static str, fn(&Run) -> f64, f64, &'static str);
const BOUNDS: [Bound; 7] = [
    ("case1", "cost", |run| run.cost_avg, 6.0, ""),
    ("case2", "replicas", |run| run.replicas_avg, 3.5, ""),
    ("case2", "p95", |run| run.ttft_p95_s, 1.0, " s"),
    ("case3", "replicas", |run| run.replicas_avg, 2.0, ""),
    ("case3", "p99", |run| run.ttft_p99_s, 1.0, " s"),
    ("case4", "replicas", |run| run.replicas_avg, 2.3, ""),
    ("case4", "p99", |run| run.ttft_p99_s, 0.1, " s"),
];

fn cases(args: &Args, seeds: &Seeds) -> Result<PartResults, String> {
    let about = "The scenarios of llm-d's published head-to-head runs. `next-sync` knows the load and orders at the step: \
                 the HPA acts on it at its next sync. The last table has what llm-d published (July 2026) beside what is simulated. Published \
                 tails are longer: the simulator has no network, tokenizer or gateway queue, its prompts take time in proportion to their \
                 length, and its pods do not fail. Which of these matters was not measured. Nor is it known why KEDA costs more in \
                 case 4.";
    let mut results = PartResults::new("Published cases", about);
    let own_seeds = seeds_of(args, seeds, Part::Cases, 10, 6);
    let mut all = Vec::new();
    for plan in named(args, &["case1", "case2", "case3", "case4"])? {
        let mut controllers = with_baselines(&args.policy)?;
        controllers.extend((plan.name == "case1").then(|| Arc::new(next_sync())));
        let oracles = sized(args, 10, 3);
        let group = Group {
            plan: &plan,
            controllers: &controllers,
            ours: &args.policy,
            seeds: &own_seeds,
            oracles,
            varies: true,
        };
        all.extend(group.evaluate(&mut results)?);
        series(args, &plan, &own_seeds, &mut results)?;
    }
    let figure = |case: &str, policy: &str, value: fn(&Run) -> f64| {
        let runs = all.iter().filter(|run| run.scenario == case && run.policy == policy);
        Mean::of(&runs.map(value).collect::<Vec<f64>>())
    };
    for (case, subject, value, max, unit) in BOUNDS {
        let found = figure(case, &args.policy, value);
        results.gates.push(at_most(&format!("{case}: {subject}"), found, max, unit));
    }
    let p99: fn(&Run) -> f64 = |run| run.ttft_p99_s;
    let bound = 1.1 * figure("case1", NEXT_SYNC, p99).mean;
    let subject = "case1: p99 (1.1 × that of an order at the next HPA sync)";
    results.gates.push(at_most(subject, figure("case1", &args.policy, p99), bound, " s"));
    published(&figure, &mut results);
    Ok(results)
}

/// What llm-d published of WVA V2 and KEDA in July 2026: case, policy, cost, p99 in seconds.
const PUBLISHED: [(&str, &str, f64, f64); 8] = [
    ("case1", "wva-v2", 5.54, 39.3),
    ("case2", "wva-v2", 3.41, 74.4),
    ("case3", "wva-v2", 1.73, 6.0),
    ("case4", "wva-v2", 2.21, 0.11),
    ("case1", "keda-epp", 17.21, 6.0),
    ("case2", "keda-epp", 4.12, 4.19),
    ("case3", "keda-epp", 4.01, 0.19),
    ("case4", "keda-epp", 5.97, 0.10),
];

/// Adds the published figures beside the simulated ones.
fn published(figure: &impl Fn(&str, &str, fn(&Run) -> f64) -> Mean, results: &mut PartResults) {
    let header = "| case | policy | cost published | simulated | TTFT p99 published s | simulated s |";
    let row = |(case, policy, cost, p99): &(&str, &str, f64, f64)| {
        let simulated =
            (figure(case, policy, |run| run.cost_avg), figure(case, policy, |run| run.ttft_p99_s));
        format!("| {case} | {policy} | {cost} | {} | {p99} | {:.2} |", simulated.0, simulated.1)
    };
    add_rows(results, header, PUBLISHED.iter().map(row).collect());
}

/// Adds the load and the replicas of a case over time, for the plot.
fn series(args: &Args, plan: &Arc<Plan>, seeds: &[u64], results: &mut PartResults) -> Result<(), String> {
    if plan.name != "case2" {
        return Ok(());
    }
    let ours = with_baselines(&args.policy)?;
    let seed = seeds.first().copied().unwrap_or(1);
    for played in run("series", std::slice::from_ref(plan), &ours, &[seed], RunDetail::Series)? {
        for point in played.series.iter().step_by(5) {
            let replicas = point.spec_replicas.iter().sum::<u32>();
            results.point("time", &played.policy, point.at_s / 60.0, f64::from(replicas));
        }
        results.runs += 1;
    }
    Ok(())
}

const NEXT_SYNC: &str = "next-sync";

/// What 10 requests/s of case 1 need, requested when they start: one TP2 and three TP1 at 68 %.
fn next_sync() -> Controller {
    let replicas = [1, 3].map(Replicas::new).to_vec();
    let order = ScheduleEntry { from: Duration::from_secs(300), replicas };
    Controller { name: NEXT_SYNC.into(), algorithm: Algorithm::Schedule(vec![order]), ..Controller::fixed(1) }
}

/// The runs of scenarios that only peers are compared in.
fn without_oracle(
    args: &Args,
    plans: &[Arc<Plan>],
    controllers: &[Arc<Controller>],
    seeds: &[u64],
    results: &mut PartResults,
) -> Result<Vec<Run>, String> {
    let mut all = Vec::new();
    for plan in plans {
        let group = Group { plan, controllers, ours: &args.policy, seeds, oracles: 0, varies: false };
        all.extend(group.evaluate(results)?);
    }
    Ok(all)
}

fn constant(args: &Args, seeds: &Seeds) -> Result<PartResults, String> {
    let mut results = PartResults::new("Constant load", "Two hours from three replicas.");
    let plans = named(args, &["const"])?;
    let controllers = with_baselines(&args.policy)?;
    let own_seeds = seeds_of(args, seeds, Part::Constant, 5, 1);
    let all = without_oracle(args, &plans, &controllers, &own_seeds, &mut results)?;
    let ours = of(&all, &args.policy);
    results.gates.push(no_late_reversal("constant load, 1 to 10 requests/s, 2 h", &ours));
    Ok(results)
}

/// Scenarios, each as a group of its own.
fn groups(
    args: &Args,
    plans: &[Arc<Plan>],
    seeds: &[u64],
    oracles: usize,
    results: &mut PartResults,
) -> Result<Vec<Run>, String> {
    let controllers = with_baselines(&args.policy)?;
    let mut all = Vec::new();
    for plan in plans {
        let group =
            Group { plan, controllers: &controllers, ours: &args.policy, seeds, oracles, varies: true };
        all.extend(group.evaluate(results)?);
    }
    Ok(all)
}

fn shapes(args: &Args, seeds: &Seeds) -> Result<PartResults, String> {
    let mut results = PartResults::new(
        "Other loads",
        "Bursts, ramps, drops, changing requests, and fleets of other sizes.",
    );
    let all = ["burst", "ramp", "drop", "shape", "shape2", "surge", "zero", "long", "mix3", "big"];
    // The last two take as long as all others together.
    let names = if args.ci { &all[..8] } else { &all[..] };
    let own_seeds = seeds_of(args, seeds, Part::Shapes, 6, 2);
    groups(args, &named(args, names)?, &own_seeds, sized(args, 4, 1), &mut results)?;
    Ok(results)
}

fn peers(args: &Args, seeds: &Seeds) -> Result<PartResults, String> {
    let about = "The first random set under all peers, each at its published default and tuned. Their formulas and sources are in \
                 `src/sim/peer.rs`.";
    let mut results = PartResults::new("Peers", about);
    let plans = read(&args.scenarios.join("random.yaml"), None)?;
    let controllers = with_peers(&args.policy)?;
    let own_seeds = seeds.of(100, sized(args, 80, 10) as u64);
    let runs = run("peers", &plans, &controllers, &own_seeds, RunDetail::Figures)?;
    results.runs = runs.len();
    add_rows(
        &mut results,
        random::header(),
        controllers.iter().map(|peer| random::row("1", &peer.name, &runs)).collect(),
    );
    let names: Vec<String> = BASELINES.into_iter().chain(PEERS).map(String::from).collect();
    results.gates.push(no_peer_better("random 1, all peers", &runs, &args.policy, &names));
    for peer in &controllers {
        let own = of(&runs, &peer.name);
        let replicas = Mean::of(&own.iter().map(|run| run.replicas_avg).collect::<Vec<f64>>());
        results.point("peers", &peer.name, replicas.mean, 100.0 * outside_by_run(&own).mean);
    }
    Ok(results)
}

fn paths(args: &Args, seeds: &Seeds) -> Result<PartResults, String> {
    let about = "The first random set under the policy alone: how often Prometheus scrapes, or a scrape of its own; and with an HPA \
                 without `behavior`, which removes replicas 300 s later.";
    let mut results = PartResults::new("Scrapes and HPAs", about);
    let plans = read(&args.scenarios.join("random.yaml"), None)?;
    let controllers = on_every_path(&args.policy)?;
    let own_seeds = seeds.of(100, sized(args, 80, 4) as u64);
    let runs = run("paths", &plans, &controllers, &own_seeds, RunDetail::Figures)?;
    results.runs = runs.len();
    add_rows(
        &mut results,
        random::header(),
        controllers.iter().map(|path| random::row("1", &path.name, &runs)).collect(),
    );
    Ok(results)
}

fn families(args: &Args, seeds: &Seeds) -> Result<PartResults, String> {
    let about = "Physics that no prior of the policy names: mixtures of experts, a cost of each sequence, stalls of seconds, prefix caches \
                 that are cold or badly routed, crashes, flapping readiness, impatient clients, starts of 20 to 600 s, requests of cv 3 \
                 (`tests/scenarios/sim/families.yaml`, `hard.yaml`).";
    let mut results = PartResults::new("Other physics", about);
    let hard = named(args, &["hard"])?;
    let selected: Vec<Arc<Plan>> = hard.iter().step_by(sized(args, 1, 2)).cloned().collect();
    let own_seeds = seeds_of(args, seeds, Part::Families, 6, 1);
    groups(args, &selected, &own_seeds, sized(args, 2, 0), &mut results)?;
    let plans = named(args, &["families"])?;
    let controllers = with_baselines(&args.policy)?;
    let drawn = seeds.of(200, sized(args, 80, 20) as u64);
    let runs = run("families", &plans, &controllers, &drawn, RunDetail::Figures)?;
    results.runs += runs.len();
    let peers: Vec<String> = BASELINES.map(String::from).to_vec();
    results.gates.push(no_peer_better("families", &runs, &args.policy, &peers));
    let rows = controllers.iter().map(|policy| random::row("families", &policy.name, &runs));
    add_rows(&mut results, random::header(), rows.collect());
    Ok(results)
}

fn robust(args: &Args, seeds: &Seeds) -> Result<PartResults, String> {
    let about = "The published cases, each under worse conditions (`tests/scenarios/sim/robust.yaml`).";
    let mut results = PartResults::new("Robustness", about);
    let plans = named(args, &["robust"])?;
    let selected: Vec<Arc<Plan>> = plans.iter().step_by(sized(args, 1, 4)).cloned().collect();
    let own_seeds = seeds_of(args, seeds, Part::Robust, 5, 1);
    groups(args, &selected, &own_seeds, sized(args, 2, 0), &mut results)?;
    Ok(results)
}

fn traces(args: &Args, seeds: &Seeds) -> Result<PartResults, String> {
    let about = "A day of each of ServeGen's models and the Azure code trace (`tests/scenarios/sim/diurnal*.yaml`, `azure.yaml`).";
    let mut results = PartResults::new("Traces", about);
    let azure = ("azure", "azure_llm_2023_code.csv.gz", 6);
    let days = ["diurnal", "diurnal-mid", "diurnal-small", "diurnal-reasoning", "diurnal-image"];
    let days = days.map(|day| (day, "servegen_total_rate_10min.csv.gz", 3));
    let days = days.into_iter().take(sized(args, 5, 1));
    for (name, trace, count) in std::iter::once(azure).chain(days) {
        let trace = args.traces.join(trace);
        if !trace.is_file() {
            results.left_out.push(format!("{name}: there is no {}", trace.display()));
            continue;
        }
        let plans = read(&args.scenarios.join(name).with_extension("yaml"), Some(&trace))?;
        let own_seeds = seeds_of(args, seeds, Part::Traces, count, 1);
        // A search over a day takes an hour.
        let oracles = if name == "azure" { sized(args, 3, 0) } else { 0 };
        groups(args, &plans, &own_seeds, oracles, &mut results)?;
    }
    Ok(results)
}

fn victims(args: &Args, seeds: &Seeds) -> Result<PartResults, String> {
    let about = "Streams that outlive the grace period are cut: `errors` (`tests/scenarios/sim/victims.yaml`). The youngest pods go \
                 first, as a ReplicaSet has it, or those with the fewest requests in flight (`podDeletionCost`); or, to compare, \
                 those with the fewest tokens in the KV cache.";
    let mut results = PartResults::new("Which pods go first", about);
    let plans = named(args, &["victims"])?;
    let selected: Vec<Arc<Plan>> = plans.iter().take(sized(args, plans.len(), 3)).cloned().collect();
    let own_seeds = seeds_of(args, seeds, Part::Victims, 5, 3);
    let controllers = with_baselines(&args.policy)?;
    let all = without_oracle(args, &selected, &controllers, &own_seeds, &mut results)?;
    for policy in std::iter::once(args.policy.as_str()).chain(BASELINES) {
        results.gates.push(fewer_cut(&of(&all, policy), policy));
    }
    Ok(results)
}
