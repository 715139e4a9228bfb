//! Sets of random scenarios: what the policy promises over hours that nobody has seen.

use std::sync::Arc;

use wva::simulate::{Plan, RunDetail};
use wva_sim::{Controller, Run};

use super::Args;
use super::gates::{self, Gate, MOST_OUTSIDE, MOST_REGRET, MOST_REPLICAS, Verdict};
use super::groups::add_rows;
use super::policies::{BASELINES, with_baselines};
use super::runs::{Question, ask, of, read, run};
use super::seeds::Seeds;
use super::stats::Mean;
use super::store::PartResults;

/// Scenarios of a set.
const SET: u64 = 80;
/// Runs of a set with a p95 below 1 s, at least; and on average over the sets.
const QUICK: (usize, f64) = (74, 76.0);
/// Time to first token of a quick run, seconds.
const QUICK_S: f64 = 1.0;
const HEADER: &str = "| set | policy | replicas | requests outside %, mean over runs | of all requests % | runs with p95 < 1 s | \
                      with p99 < 1 s | flips |";

/// The sets, in their order.
pub(crate) fn random(args: &Args, seeds: &Seeds) -> Result<PartResults, String> {
    let plans = read(&args.scenarios.join("random.yaml"), None)?;
    let about = "80 scenarios in each set, another for every seed: tokens, hardware, start-up and load are drawn \
                 (`tests/scenarios/sim/random.yaml`). The oracle is asked about the first of each set.";
    let mut results = PartResults::new("Random scenarios", about);
    let controllers = with_baselines(&args.policy)?;
    let mut all: Vec<Run> = Vec::new();
    let mut quick = Vec::new();
    let (sets, oracles) = if args.ci { (1, 4) } else { (args.sets, 12) };
    let mut verdicts = OracleRuns::default();
    for set in 0..sets as u64 {
        let own = seeds.of(100 + set, SET);
        let name = format!("random {}", set + 1);
        let runs = run(&name, &plans, &controllers, &own, RunDetail::Changes)?;
        let in_set = of(&runs, &args.policy).iter().filter(|run| run.ttft_p95_s < QUICK_S).count();
        quick.push(in_set as f64);
        let subject = format!("{name}: runs with p95 below 1 s");
        let criterion = format!("at least {} of {SET}", QUICK.0);
        let gate = Gate::new(subject, criterion, in_set.to_string(), in_set >= QUICK.0);
        results.gates.push(gate.by(slow_excess(in_set as f64, QUICK.0 as f64)));
        let label = format!("{} (seeds from {})", set + 1, own.first().copied().unwrap_or_default());
        add_rows(
            &mut results,
            HEADER,
            controllers.iter().map(|policy| row(&label, &policy.name, &runs)).collect(),
        );
        verdicts.ask(&plans[0], &args.policy, &runs, own.get(..oracles).unwrap_or(&own));
        all.extend(runs.into_iter().map(|run| Run { writes: Vec::new(), ..run }));
    }
    results.runs = all.len();
    whole(args, &plans, &controllers, &all, &mut results)?;
    let quick = Mean::of(&quick);
    let subject = "random: runs with p95 below 1 s, mean of the sets".to_owned();
    let criterion = format!("at least {}", QUICK.1);
    let gate = Gate::new(subject, criterion, format!("{quick:.1}"), quick.mean >= QUICK.1);
    results.gates.push(gate.by(slow_excess(quick.mean, QUICK.1)));
    verdicts.gates(&mut results);
    Ok(results)
}

/// The runs of a set that are not quick, as a multiple of those that may be.
fn slow_excess(quick: f64, wanted: f64) -> f64 {
    (SET as f64 - quick) / (SET as f64 - wanted)
}

/// The gates of all sets together, and those of fixed fleets.
fn whole(
    args: &Args,
    plans: &[Arc<Plan>],
    controllers: &[Arc<Controller>],
    all: &[Run],
    results: &mut PartResults,
) -> Result<(), String> {
    let ours = of(all, &args.policy);
    let outside = outside_by_run(&ours);
    let percent = outside.times(100.0);
    let subject = "random: requests outside the objectives, mean over runs";
    results.gates.push(gates::at_most(subject, percent, 100.0 * MOST_OUTSIDE, " %"));
    let (own, wva_v2) = (replicas(&ours), replicas(&of(all, BASELINES[0])));
    let limit = MOST_REPLICAS * wva_v2.mean;
    let criterion = format!("at most {MOST_REPLICAS} × WVA V2's");
    let result = format!("{own} = {:.3} × {wva_v2}", own.mean / wva_v2.mean);
    let gate = Gate::new("random: replicas".into(), criterion, result, own.mean <= limit);
    results.gates.push(gate.by(own.mean / limit));
    let peers: Vec<String> = BASELINES.map(String::from).to_vec();
    results.gates.push(gates::no_peer_better("random", all, &args.policy, &peers));
    for controller in controllers {
        let runs = of(all, &controller.name);
        results.point("outside", &controller.name, replicas(&runs).mean, 100.0 * outside_by_run(&runs).mean);
    }
    add_rows(results, HEADER, controllers.iter().map(|policy| row("all", &policy.name, all)).collect());
    // A fixed fleet of more replicas than the limit fails by its cost, whatever it serves.
    let mut met = Vec::new();
    let tried = f64::floor(limit) as u32;
    let seeds: Vec<u64> = ours.iter().take(SET as usize).map(|run| run.seed).collect();
    for size in 1..=tried {
        let fleet = Controller::fixed(size);
        let played = run("random: fixed fleets", plans, &[Arc::new(fleet)], &seeds, RunDetail::Figures)?;
        let found = outside_by_run(&played.iter().collect::<Vec<&Run>>());
        results.point("outside", &format!("static:{size}"), f64::from(size), 100.0 * found.mean);
        if found.mean <= MOST_OUTSIDE {
            met.push(format!("static:{size} ({:.2} % outside)", found.times(100.0)));
        }
        results.runs += played.len();
    }
    results.gates.push(gates::no_fixed_fleet("random", &met, 16));
    Ok(())
}

/// The policy's runs that an oracle was asked about, with the oracle's cost.
#[derive(Default)]
struct OracleRuns {
    runs: Vec<Run>,
    costs: Vec<f64>,
    cheaper: Vec<String>,
}

impl OracleRuns {
    fn ask(&mut self, plan: &Plan, ours: &str, runs: &[Run], seeds: &[u64]) {
        let compared: Vec<&Run> =
            of(runs, ours).into_iter().filter(|run| seeds.contains(&run.seed)).collect();
        let known = |seed| runs.iter().filter(|run| run.seed == seed).collect::<Vec<&Run>>();
        let questions: Vec<Question<'_>> =
            compared.iter().map(|run| Question { plan, run, known: known(run.seed) }).collect();
        for (run, oracle) in compared.iter().zip(ask("random: oracle", &questions)) {
            let Some(oracle) = oracle else {
                self.cheaper.push(format!("seed {}: none as good as {ours}", run.seed));
                continue;
            };
            let better = |peer: &&Run| {
                peer.slo_attainment >= run.slo_attainment && peer.cost_avg < 0.995 * oracle.cost_avg
            };
            for peer in known(run.seed).into_iter().filter(better) {
                self.cheaper.push(format!(
                    "seed {}: {} {:.3} < {:.3}",
                    run.seed, peer.policy, peer.cost_avg, oracle.cost_avg
                ));
            }
            self.costs.push(oracle.cost_avg);
            self.runs.push((*run).clone());
        }
    }

    fn gates(&self, results: &mut PartResults) {
        let verdict = Verdict::new(&self.runs.iter().collect::<Vec<&Run>>(), &self.costs);
        results.gates.push(gates::oracle_is_best("random", &self.cheaper, self.runs.len()));
        let (regret, most) = (verdict.regret.times(100.0), 100.0 * MOST_REGRET);
        results.gates.push(gates::at_most(
            "random: cost above the oracle's, mean over runs",
            regret,
            most,
            " %",
        ));
        results.point("regret", "random", regret.mean, regret.half);
    }
}

/// Share of requests outside the objectives, mean over runs.
pub(crate) fn outside_by_run(runs: &[&Run]) -> Mean {
    Mean::of(&runs.iter().map(|run| 1.0 - run.slo_attainment).collect::<Vec<f64>>())
}

fn replicas(runs: &[&Run]) -> Mean {
    Mean::of(&runs.iter().map(|run| run.replicas_avg).collect::<Vec<f64>>())
}

/// The row of a policy in a set.
pub(crate) fn row(set: &str, policy: &str, runs: &[Run]) -> String {
    let own = of(runs, policy);
    let all: f64 = own.iter().map(|run| run.requests as f64).sum();
    let outside: f64 = own.iter().map(|run| (1.0 - run.slo_attainment) * run.requests as f64).sum();
    let below = |value: fn(&Run) -> f64| own.iter().filter(|run| value(run) < QUICK_S).count();
    let flips = Mean::of(&own.iter().map(|run| f64::from(run.flips)).collect::<Vec<f64>>());
    format!(
        "| {set} | {policy} | {} | {} | {:.2} | {} of {} | {} | {:.1} |",
        replicas(&own),
        outside_by_run(&own).times(100.0),
        100.0 * outside / all.max(1.0),
        below(|run| run.ttft_p95_s),
        own.len(),
        below(|run| run.ttft_p99_s),
        flips.mean,
    )
}

/// The header of [`row`]'s table.
pub(crate) const fn header() -> &'static str {
    HEADER
}
