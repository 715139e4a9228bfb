//! A group of runs: one scenario with several seeds, under the policy, its peers, fixed fleets and the oracle.

use std::sync::Arc;

use wva::simulate::{Plan, RunDetail};
use wva_sim::{Algorithm, Controller, Run, Scenario};

use super::gates::{self, MOST_REGRET, Verdict};
use super::runs::{Question, ask, of, run};
use super::stats::Mean;
use super::store::{PartResults, Table};

/// Of an oracle, how much cheaper another must be to show a defect: the oracle's clock has the HPA's syncs, others act between them.
const DEFECT: f64 = 0.995;
/// Header of the table of a group.
const HEADER: &str = "| scenario | policy | cost | replicas | TTFT p50 s | p95 | p99 | ITL p99 ms | errors | changes | flips | \
                      within objectives % | cost above the oracle % |";

/// What is run of a scenario.
pub(crate) struct Group<'a> {
    pub(crate) plan: &'a Arc<Plan>,
    /// The policy and its peers.
    pub(crate) controllers: &'a [Arc<Controller>],
    pub(crate) ours: &'a str,
    pub(crate) seeds: &'a [u64],
    /// Of the seeds, how many have an oracle.
    pub(crate) oracles: usize,
    /// Its load varies, so that no fixed fleet may be better.
    pub(crate) varies: bool,
}

impl Group<'_> {
    /// Runs the scenario and adds its gates and its rows. Returns the runs.
    pub(crate) fn evaluate(&self, results: &mut PartResults) -> Result<Vec<Run>, String> {
        let name = self.plan.name.as_str();
        let plans = std::slice::from_ref(self.plan);
        let runs = run(name, plans, self.controllers, self.seeds, RunDetail::Changes)?;
        results.runs += runs.len();
        // A schedule knows the load: it is no peer.
        let is_peer = |rival: &&Arc<Controller>| {
            rival.name != self.ours && !matches!(rival.algorithm, Algorithm::Schedule(_))
        };
        let peers: Vec<String> =
            self.controllers.iter().filter(is_peer).map(|peer| peer.name.to_string()).collect();
        let oracle_seeds = self.seeds.get(..self.oracles).unwrap_or(self.seeds);
        let answers =
            if oracle_seeds.is_empty() { Vec::new() } else { self.answers(&runs, oracle_seeds, results) };
        if !answers.is_empty() {
            let ours: Vec<&Run> = of(&runs, self.ours).into_iter().take(answers.len()).collect();
            let verdict = Verdict::new(&ours, &costs(&answers));
            results.gates.push(gates::strict(name, &verdict));
            results.point("regret", name, 100.0 * verdict.regret.mean, 100.0 * verdict.regret.half);
        }
        if self.varies {
            self.fixed_fleets(&runs, &answers, results)?;
        }
        if !peers.is_empty() {
            results.gates.push(gates::no_peer_better(name, &runs, self.ours, &peers));
        }
        self.rows(&runs, &answers, results);
        Ok(runs)
    }

    /// The oracle's run for each of `seeds`, doing as well as the policy did; where it cannot, what the policy itself did. Checks
    /// that nobody else is cheaper.
    fn answers(&self, runs: &[Run], seeds: &[u64], results: &mut PartResults) -> Vec<Run> {
        let compared: Vec<&Run> =
            of(runs, self.ours).into_iter().filter(|run| seeds.contains(&run.seed)).collect();
        let known = |seed| runs.iter().filter(|run| run.seed == seed).collect::<Vec<&Run>>();
        let questions: Vec<Question<'_>> =
            compared.iter().map(|run| Question { plan: self.plan, run, known: known(run.seed) }).collect();
        let answers = ask(&format!("{}: oracle", self.plan.name), &questions);
        let mut cheaper = Vec::new();
        let mut found = Vec::new();
        for (run, answer) in compared.iter().zip(answers) {
            let Some(oracle) = answer else {
                cheaper.push(format!("seed {}: none as good as {}", run.seed, run.policy));
                found.push((*run).clone());
                continue;
            };
            let better = |rival: &&Run| {
                rival.slo_attainment >= run.slo_attainment && rival.cost_avg < DEFECT * oracle.cost_avg
            };
            for rival in known(run.seed).into_iter().filter(better) {
                cheaper.push(format!(
                    "seed {}: {} {:.3} < {:.3}",
                    run.seed, rival.policy, rival.cost_avg, oracle.cost_avg
                ));
            }
            found.push(oracle);
        }
        results.gates.push(gates::oracle_is_best(&self.plan.name, &cheaper, found.len()));
        found
    }

    /// Fixed fleets of every size that may be better: none may be cheaper with as many requests within the objectives, and none
    /// may meet the criterion of the policy, where that has an oracle.
    fn fixed_fleets(&self, runs: &[Run], answers: &[Run], results: &mut PartResults) -> Result<(), String> {
        let name = self.plan.name.as_str();
        let ours: Vec<&Run> = of(runs, self.ours);
        let own_cost = Mean::of(&ours.iter().map(|run| run.cost_avg).collect::<Vec<f64>>()).mean;
        let own_share = Mean::of(&ours.iter().map(|run| run.slo_attainment).collect::<Vec<f64>>()).mean;
        let scenario = self.plan.scenario(self.seeds.first().copied().unwrap_or(1));
        let fleets = fleets(&scenario);
        // No oracle that does as well as a fixed fleet costs more than the one that does as well as the largest fleet. A fleet that is
        // too dear for that one is too dear for its own.
        let largest =
            fleets.last().map(|fleet| self.play(fleet, answers.len())).transpose()?.unwrap_or_default();
        let bounds = self.oracle_costs(&largest, runs, answers);
        let bound = Mean::of(&bounds).mean * (1.0 + MOST_REGRET);
        let mut met = Vec::new();
        let mut best: Option<(String, f64)> = None;
        for fleet in &fleets {
            let cost = fleet_cost(&scenario, fleet);
            if cost > bound.max(own_cost) {
                continue;
            }
            let played = self.play(fleet, self.seeds.len())?;
            results.runs += played.len();
            let label = played.first().map_or_else(String::new, |run| run.policy.to_string());
            let share = Mean::of(&played.iter().map(|run| run.slo_attainment).collect::<Vec<f64>>()).mean;
            if share >= own_share && best.as_ref().is_none_or(|(_, least)| cost < *least) {
                best = Some((label.clone(), cost));
            }
            let compared = played.get(..answers.len()).unwrap_or(&played);
            let verdict = |costs: &[f64]| Verdict::new(&compared.iter().collect::<Vec<&Run>>(), costs);
            // Searches take long: only where the bound leaves room.
            if !answers.is_empty() && verdict(&bounds).passes() {
                let own = verdict(&self.oracle_costs(compared, runs, answers));
                met.extend(own.passes().then(|| format!("{label} ({})", own.shown())));
            }
        }
        if !answers.is_empty() {
            results.gates.push(gates::no_fixed_fleet(name, &met, fleets.len()));
        }
        let best = best.as_ref().map(|(label, cost)| (label.as_str(), *cost));
        results.gates.push(gates::cheaper_than_fixed(name, own_cost, best));
        Ok(())
    }

    /// The costs of the oracles that do as well as `played`. Fixed fleets are there from the start, so that none may: then those
    /// of the policy's `answers`.
    fn oracle_costs(&self, played: &[Run], runs: &[Run], answers: &[Run]) -> Vec<f64> {
        let mut questions = Vec::new();
        for run in played {
            let known = runs.iter().filter(|known| known.seed == run.seed).collect();
            questions.push(Question { plan: self.plan, run, known });
        }
        let found = ask(&format!("{}: fixed fleets", self.plan.name), &questions);
        found
            .iter()
            .zip(costs(answers))
            .map(|(oracle, own)| oracle.as_ref().map_or(own, |run| run.cost_avg))
            .collect()
    }

    /// A fixed fleet under the first `count` seeds.
    fn play(&self, fleet: &[u32], count: usize) -> Result<Vec<Run>, String> {
        let controllers = [Arc::new(Controller::fixed_fleet(fleet))];
        let seeds = self.seeds.get(..count).unwrap_or(self.seeds);
        run(&self.plan.name, std::slice::from_ref(self.plan), &controllers, seeds, RunDetail::Figures)
    }

    /// Adds a row for each policy.
    fn rows(&self, runs: &[Run], answers: &[Run], results: &mut PartResults) {
        let mut rows = Vec::new();
        for controller in self.controllers {
            let own = of(runs, &controller.name);
            let pairs = own.iter().flat_map(|run| {
                let oracle = answers.iter().find(|oracle| oracle.seed == run.seed);
                oracle.map(|oracle| run.cost_avg / oracle.cost_avg - 1.0)
            });
            let regret = Mean::of(&pairs.collect::<Vec<f64>>());
            let is_ours = controller.name == self.ours;
            let regret = (is_ours && !answers.is_empty()).then(|| format!("{:.0}", regret.times(100.0)));
            rows.push(row(if is_ours { &self.plan.name } else { "" }, &controller.name, &own, regret));
        }
        if !answers.is_empty() {
            rows.push(row("", "oracle", &answers.iter().collect::<Vec<&Run>>(), None));
        }
        add_rows(results, HEADER, rows);
    }
}

/// Adds rows to the table with this header.
pub(crate) fn add_rows(results: &mut PartResults, header: &str, rows: Vec<String>) {
    match results.tables.iter_mut().find(|table| table.header == header) {
        Some(table) => table.rows.extend(rows),
        None => results.tables.push(Table { header: header.into(), rows }),
    }
}

/// The row of a policy: means, those of cost and share with intervals.
fn row(scenario: &str, policy: &str, runs: &[&Run], regret: Option<String>) -> String {
    let of = |value: fn(&Run) -> f64| Mean::of(&runs.iter().map(|run| value(run)).collect::<Vec<f64>>());
    let seconds = |mean: f64| if mean < 10.0 { format!("{mean:.3}") } else { format!("{mean:.0}") };
    format!(
        "| {scenario} | {policy} | {:.2} | {:.2} | {:.3} | {} | {} | {:.0} | {:.1} | {:.1} | {:.1} | {:.2} | {} |",
        of(|run| run.cost_avg),
        of(|run| run.replicas_avg).mean,
        of(|run| run.ttft_p50_s).mean,
        seconds(of(|run| run.ttft_p95_s).mean),
        seconds(of(|run| run.ttft_p99_s).mean),
        1000.0 * of(|run| run.itl_p99_s).mean,
        of(|run| run.errors as f64).mean,
        of(|run| f64::from(run.changes)).mean,
        of(|run| f64::from(run.flips)).mean,
        of(|run| run.slo_attainment).times(100.0),
        regret.unwrap_or_default(),
    )
}

/// Every fleet of a scenario within its bounds, the largest last.
fn fleets(scenario: &Scenario) -> Vec<Vec<u32>> {
    let mut all: Vec<Vec<u32>> = vec![Vec::new()];
    for variant in &scenario.variants {
        let max = variant.bounds.max.map_or(1, wva_core::units::Replicas::get);
        let sizes = variant.bounds.min.get()..=max;
        let longer = |fleet: Vec<u32>| sizes.clone().map(move |size| [fleet.as_slice(), &[size]].concat());
        all = all.into_iter().flat_map(longer).collect();
    }
    all.retain(|fleet| fleet.iter().any(|size| *size > 0));
    all
}

fn fleet_cost(scenario: &Scenario, fleet: &[u32]) -> f64 {
    scenario.variants.iter().zip(fleet).map(|(variant, size)| variant.cost.get() * f64::from(*size)).sum()
}

fn costs(runs: &[Run]) -> Vec<f64> {
    runs.iter().map(|run| run.cost_avg).collect()
}
