//! Runs scenarios under policies in parallel, with a progress line.

use std::io::{IsTerminal as _, Write as _};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use wva::simulate::{
    Job, Plan, RunDetail, SummaryLine, TraceOverride, controller_for, plans, run_all, summarize,
};
use wva_sim::{Controller, Run};

/// The autoscalers to compare with.
pub(crate) const BASELINES: [&str; 2] = ["wva-v2", "keda-epp"];

/// Finished runs.
#[derive(Debug, Default)]
pub(crate) struct Runs(pub(crate) Vec<Run>);

impl Runs {
    /// Mean and worst by scenario and policy.
    pub(crate) fn lines(&self) -> Vec<SummaryLine<'_>> {
        summarize(&self.0)
    }

    /// The summary of a scenario under a policy.
    pub(crate) fn line(&self, scenario: &str, policy: &str) -> Result<SummaryLine<'_>, String> {
        let line = self.lines().into_iter().find(|line| line.scenario == scenario && line.policy == policy);
        line.ok_or_else(|| format!("{scenario} was not run under {policy}"))
    }

    /// The runs of a policy.
    pub(crate) fn of<'a>(&'a self, policy: &'a str) -> impl Iterator<Item = &'a Run> {
        self.0.iter().filter(move |run| run.policy == policy)
    }
}

/// The plans of a scenario file, with a trace where one is given.
pub(crate) fn read(path: &Path, trace: Option<&Path>) -> Result<Vec<Arc<Plan>>, String> {
    let trace_override = TraceOverride { trace: trace.map(Into::into), series: None };
    let all = plans(path, &trace_override).map_err(|error| error.to_string())?;
    Ok(all.into_iter().map(Arc::new).collect())
}

/// The policy to check, and the baselines.
pub(crate) fn controllers(ours: &str) -> Result<Vec<Arc<Controller>>, String> {
    let words = std::iter::once(ours).chain(BASELINES);
    words.map(|word| controller_for(word).map(Arc::new).map_err(|error| error.to_string())).collect()
}

/// Every plan under every controller with every seed.
pub(crate) fn run(
    plans: &[Arc<Plan>],
    controllers: &[Arc<Controller>],
    seeds: impl Iterator<Item = u64> + Clone,
) -> Result<Runs, String> {
    let mut jobs = Vec::new();
    for plan in plans {
        for controller in controllers {
            jobs.extend(seeds.clone().map(|seed| Job {
                plan: plan.clone(),
                controller: controller.clone(),
                seed,
                detail: RunDetail::Changes,
            }));
        }
    }
    let is_terminal = std::io::stderr().is_terminal();
    let runs = run_all(jobs, |progress| {
        if is_terminal {
            let percent = 100.0 * progress.share();
            let runs = format!("{percent:.0} %, {} of {} runs", progress.done, progress.jobs());
            let _ = write!(std::io::stderr(), "\r\x1b[2K{runs}");
        }
        ControlFlow::Continue(())
    });
    if is_terminal {
        let _ = write!(std::io::stderr(), "\r\x1b[2K");
    }
    Ok(Runs(runs?.unwrap_or_default()))
}
