//! Summarizes runs of one scenario and policy with several seeds: the mean of each figure, and its worst.

use wva_sim::Run;

/// Mean and worst of one figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// The mean over the seeds.
    pub mean: f64,
    /// The worst of them.
    pub worst: f64,
}

/// The runs of one scenario under one policy.
#[derive(Debug, Clone, PartialEq)]
pub struct SummaryLine<'a> {
    /// The scenario.
    pub scenario: &'a str,
    /// The policy.
    pub policy: &'a str,
    /// A run for each seed, at least one.
    pub runs: Vec<&'a Run>,
}

impl SummaryLine<'_> {
    /// Mean and worst of `value`; `worst` picks the worse of two.
    pub fn figure(&self, value: impl Fn(&Run) -> f64, worst: fn(f64, f64) -> f64) -> Figure {
        let values: Vec<f64> = self.runs.iter().map(|run| value(run)).collect();
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        Figure { mean, worst: values.into_iter().reduce(worst).unwrap_or(mean) }
    }

    /// Mean and highest of `value`.
    pub fn highest(&self, value: impl Fn(&Run) -> f64) -> Figure {
        self.figure(value, f64::max)
    }

    /// Mean and lowest share of requests within the objectives.
    #[must_use]
    pub fn slo_attainment(&self) -> Figure {
        self.figure(|run| run.slo_attainment, f64::min)
    }
}

/// Summarizes `runs` by scenario and policy, in the order of their first runs.
#[must_use]
pub fn summarize<'a>(runs: impl IntoIterator<Item = &'a Run>) -> Vec<SummaryLine<'a>> {
    let mut lines: Vec<SummaryLine<'a>> = Vec::new();
    for run in runs {
        match lines.iter_mut().find(|line| line.scenario == run.scenario && line.policy == run.policy) {
            Some(line) => line.runs.push(run),
            None => lines.push(SummaryLine { scenario: &run.scenario, policy: &run.policy, runs: vec![run] }),
        }
    }
    lines
}
