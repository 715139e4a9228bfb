//! Runs scenarios under policies, and searches oracles, on all processors.

use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;
use wva::simulate::{Job, Plan, RunDetail, TraceOverride, plans, run_all};
use wva_sim::{Controller, Run, allowed_outside, oracle};

/// Progress is printed this often.
const REPORT: Duration = Duration::from_secs(20);

/// The plans of a scenario file, with a trace where one is given.
pub(crate) fn read(path: &Path, trace: Option<&Path>) -> Result<Vec<Arc<Plan>>, String> {
    let trace_override = TraceOverride { trace: trace.map(Into::into), series: None };
    let all = plans(path, &trace_override).map_err(|error| error.to_string())?;
    Ok(all.into_iter().map(Arc::new).collect())
}

/// Prints what is done of something long, and how long the rest takes at this pace.
struct Progress {
    what: String,
    started: Instant,
    printed: Instant,
}

impl Progress {
    fn new(what: &str) -> Self {
        Self { what: what.into(), started: Instant::now(), printed: Instant::now() }
    }

    fn report(&mut self, share: f64, done: usize, all: usize) {
        if self.printed.elapsed() >= REPORT {
            self.printed = Instant::now();
            let passed_s = self.started.elapsed().as_secs_f64();
            let left_s = if share > 0.0 { passed_s / share - passed_s } else { f64::INFINITY };
            let left = if left_s.is_finite() { format!(", about {left_s:.0} s left") } else { String::new() };
            let _ = writeln!(std::io::stderr(), "{}: {done} of {all}{left}", self.what);
        }
    }
}

/// Every plan under every controller with every seed.
pub(crate) fn run(
    what: &str,
    plans: &[Arc<Plan>],
    controllers: &[Arc<Controller>],
    seeds: &[u64],
    detail: RunDetail,
) -> Result<Vec<Run>, String> {
    let mut jobs = Vec::new();
    for plan in plans {
        for seed in seeds {
            for controller in controllers {
                let (plan, controller) = (plan.clone(), controller.clone());
                jobs.push(Job { plan, controller, seed: *seed, detail });
            }
        }
    }
    let mut printed = Progress::new(what);
    let runs = run_all(jobs, |progress| {
        printed.report(progress.share(), progress.done, progress.jobs());
        ControlFlow::Continue(())
    });
    Ok(runs?.unwrap_or_default())
}

/// What an oracle is asked: to do as well as `run` at least, for less.
pub(crate) struct Question<'a> {
    pub(crate) plan: &'a Plan,
    /// The run to be compared with.
    pub(crate) run: &'a Run,
    /// Runs of the same scenario and seed that began with the same fleet.
    pub(crate) known: Vec<&'a Run>,
}

/// The oracle's run for each question, in their order; `None` where it finds none that is as good.
pub(crate) fn ask(what: &str, questions: &[Question<'_>]) -> Vec<Option<Run>> {
    let next = AtomicUsize::new(0);
    let answers = Mutex::new(vec![None; questions.len()]);
    let progress = Mutex::new(Progress::new(what));
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(Question { plan, run, known }) = questions.get(index) else { return };
            let max_outside = allowed_outside(run.requests, run.slo_attainment);
            let answer = oracle(&plan.scenario(run.seed), run.seed, max_outside, known);
            if let (Ok(mut answers), Ok(mut progress)) = (answers.lock(), progress.lock()) {
                answers[index] = answer;
                progress.report(index as f64 / questions.len() as f64, index, questions.len());
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, std::num::NonZero::get) {
            scope.spawn(work);
        }
    });
    answers.into_inner().unwrap_or_default()
}

/// The runs of a policy.
pub(crate) fn of<'a>(runs: &'a [Run], policy: &str) -> Vec<&'a Run> {
    runs.iter().filter(|run| run.policy == policy).collect()
}
