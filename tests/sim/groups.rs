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
        let asked: Vec<u64> = self.seeds.iter().take(self.oracles).copied().collect();
        let mut answers = Vec::new();
        if !asked.is_empty() {
            answers = self.answers(&runs, self.ours, &asked, results);
            let ours: Vec<&Run> =
                of(&runs, self.ours).into_iter().filter(|run| asked.contains(&run.seed)).collect();
            let costs: Vec<f64> = answers.iter().map(|oracle| oracle.cost_avg).collect();
            let verdict = Verdict::new(&ours, &costs);
            results.gates.push(gates::strict(name, &verdict));
            self.fixed_fleets(&runs, &ours, &costs, results)?;
            results.point("regret", name, 100.0 * verdict.regret.mean, 100.0 * verdict.regret.half);
        }
        if !peers.is_empty() {
            results.gates.push(gates::no_peer_better(name, &runs, self.ours, &peers));
        }
        self.rows(&runs, &answers, results);
        Ok(runs)
    }

    /// The oracle's run for each of `seeds`, doing as well as `policy` did; where it cannot, what `policy` itself did. Checks
    /// that nobody else is cheaper.
    fn answers(&self, runs: &[Run], policy: &str, seeds: &[u64], results: &mut PartResults) -> Vec<Run> {
        let asked: Vec<&Run> = of(runs, policy).into_iter().filter(|run| seeds.contains(&run.seed)).collect();
        let known = |seed| runs.iter().filter(|run| run.seed == seed).collect::<Vec<&Run>>();
        let questions: Vec<Question<'_>> =
            asked.iter().map(|run| Question { plan: self.plan, run, known: known(run.seed) }).collect();
        let answers = ask(&format!("{}: oracle", self.plan.name), &questions);
        let mut cheaper = Vec::new();
        let mut found = Vec::new();
        for (run, answer) in asked.iter().zip(answers) {
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

    /// Applies the criterion of the policy to fixed fleets of every size that may meet it.
    fn fixed_fleets(
        &self,
        runs: &[Run],
        ours: &[&Run],
        oracle_costs: &[f64],
        results: &mut PartResults,
    ) -> Result<(), String> {
        let name = self.plan.name.as_str();
        let seeds: Vec<u64> = ours.iter().map(|run| run.seed).collect();
        let scenario = self.plan.scenario(seeds.first().copied().unwrap_or(1));
        let fleets = fleets(&scenario);
        let largest = fleets.last().cloned().unwrap_or_default();
        let known = |seed| runs.iter().filter(|run| run.seed == seed).collect::<Vec<&Run>>();
        // No oracle that does as well as a fixed fleet costs more than the one that does as well as the largest fleet. A fleet that is
        // too dear for that one is too dear for its own.
        let at_largest = self.play(&largest, &seeds)?;
        let bounds = self.oracle_costs(&at_largest, known, oracle_costs);
        let own_cost = Mean::of(&ours.iter().map(|run| run.cost_avg).collect::<Vec<f64>>()).mean;
        let own_share = Mean::of(&ours.iter().map(|run| run.slo_attainment).collect::<Vec<f64>>()).mean;
        let bound = Mean::of(&bounds).mean * (1.0 + MOST_REGRET);
        let mut met = Vec::new();
        let mut best: Option<(String, f64)> = None;
        for fleet in &fleets {
            let cost = fleet_cost(&scenario, fleet);
            if cost > bound.max(own_cost) {
                continue;
            }
            let played = if *fleet == largest { at_largest.clone() } else { self.play(fleet, &seeds)? };
            results.runs += played.len();
            let runs: Vec<&Run> = played.iter().collect();
            let unasked = Verdict::new(&runs, &bounds);
            let label = played.first().map_or_else(String::new, |run| run.policy.to_string());
            if unasked.share.mean >= own_share && best.as_ref().is_none_or(|(_, least)| cost < *least) {
                best = Some((label.clone(), cost));
            }
            if unasked.share.mean >= gates::LEAST_SHARE && unasked.regret.mean <= MOST_REGRET {
                let verdict = Verdict::new(&runs, &self.oracle_costs(&played, known, oracle_costs));
                met.extend(verdict.passes().then(|| format!("{label} ({})", verdict.shown())));
            }
        }
        results.gates.push(gates::no_fixed_fleet(name, &met, fleets.len()));
        let best = best.as_ref().map(|(label, cost)| (label.as_str(), *cost));
        results.gates.push(gates::cheaper_than_fixed(name, own_cost, best));
        Ok(())
    }

    /// The costs of the oracles that do as well as `played`. Fixed fleets are there from the start, so that none may: then those
    /// of `fallback`.
    fn oracle_costs<'k>(
        &self,
        played: &[Run],
        known: impl Fn(u64) -> Vec<&'k Run>,
        fallback: &[f64],
    ) -> Vec<f64> {
        let questions: Vec<Question<'_>> =
            played.iter().map(|run| Question { plan: self.plan, run, known: known(run.seed) }).collect();
        let answers = ask(&format!("{}: fixed fleets", self.plan.name), &questions);
        answers
            .iter()
            .zip(fallback)
            .map(|(oracle, own)| oracle.as_ref().map_or(*own, |run| run.cost_avg))
            .collect()
    }

    fn play(&self, fleet: &[u32], seeds: &[u64]) -> Result<Vec<Run>, String> {
        let controllers = [Arc::new(Controller::fixed_fleet(fleet))];
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
