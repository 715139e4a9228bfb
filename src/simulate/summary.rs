//! Summarizes runs of one scenario and policy with several seeds: the mean of each figure, and its worst.

use serde::Serialize;
use wva_sim::Run;

/// Mean and worst of one figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figure {
    /// The mean over the seeds.
    pub mean: f64,
    /// The highest; the lowest of the attainment.
    pub worst: f64,
}

/// The figures of runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figures {
    /// Cost an hour.
    pub cost_avg: Figure,
    /// Replicas.
    pub replicas_avg: Figure,
    /// Median time to first token, seconds.
    pub ttft_p50_s: Figure,
    /// 95th percentile of the same.
    pub ttft_p95_s: Figure,
    /// 99th percentile of the same.
    pub ttft_p99_s: Figure,
    /// 99th percentile of the time between two tokens, seconds.
    pub itl_p99_s: Figure,
    /// Requests in error.
    pub errors: Figure,
    /// Changes of the number.
    pub changes: Figure,
    /// Changes of direction.
    pub flips: Figure,
    /// Share of requests within the objectives.
    pub slo_attainment: Figure,
    /// Accelerator-hours.
    pub gpu_hours: Figure,
}

/// One scenario under one policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SummaryLine {
    /// The scenario.
    pub scenario: String,
    /// The policy.
    pub policy: String,
    /// Number of seeds.
    pub seeds: usize,
    /// The figures.
    #[serde(flatten)]
    pub figures: Figures,
}

/// Summarizes `runs` by scenario and policy, in the order of their first runs.
#[must_use]
pub fn summarize<'a>(runs: impl IntoIterator<Item = &'a Run>) -> Vec<SummaryLine> {
    let mut groups: Vec<Vec<&Run>> = Vec::new();
    for run in runs {
        let same = |group: &&mut Vec<&Run>| {
            group.first().is_some_and(|first| first.scenario == run.scenario && first.policy == run.policy)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(run),
            None => groups.push(vec![run]),
        }
    }
    groups.iter().filter_map(|group| line(group)).collect()
}

fn line(runs: &[&Run]) -> Option<SummaryLine> {
    let first = runs.first()?;
    let figures = Figures {
        cost_avg: highest(runs, |run| run.cost_avg),
        replicas_avg: highest(runs, |run| run.replicas_avg),
        ttft_p50_s: highest(runs, |run| run.ttft_p50_s),
        ttft_p95_s: highest(runs, |run| run.ttft_p95_s),
        ttft_p99_s: highest(runs, |run| run.ttft_p99_s),
        itl_p99_s: highest(runs, |run| run.itl_p99_s),
        errors: highest(runs, |run| run.errors as f64),
        changes: highest(runs, |run| f64::from(run.changes)),
        flips: highest(runs, |run| f64::from(run.flips)),
        slo_attainment: lowest(runs, |run| run.slo_attainment),
        gpu_hours: highest(runs, |run| run.gpu_hours),
    };
    Some(SummaryLine {
        scenario: first.scenario.to_string(),
        policy: first.policy.to_string(),
        seeds: runs.len(),
        figures,
    })
}

fn highest(runs: &[&Run], value: impl Fn(&Run) -> f64) -> Figure {
    figure(runs, value, f64::max)
}

fn lowest(runs: &[&Run], value: impl Fn(&Run) -> f64) -> Figure {
    figure(runs, value, f64::min)
}

fn figure(runs: &[&Run], value: impl Fn(&Run) -> f64, worst: fn(f64, f64) -> f64) -> Figure {
    let values: Vec<f64> = runs.iter().map(|run| value(run)).collect();
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    Figure { mean, worst: values.into_iter().reduce(worst).unwrap_or(mean) }
}
