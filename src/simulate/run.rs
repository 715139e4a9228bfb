//! Runs many simulations at once, one on each processor. Each is deterministic, and results have the index of their job, so the
//! outcome does not depend on which finishes first.

use std::num::NonZero;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use wva_core::units::truncated_u32;
use wva_sim::{Controller, Run, simulate, simulate_figures};

use super::plan::Plan;

/// Progress is reported at least this often.
const REPORT_INTERVAL: Duration = Duration::from_millis(250);
/// Resolution of a job's progress.
const PROGRESS_PARTS: f64 = 1000.0;

/// One simulation.
#[derive(Debug, Clone)]
pub struct Job {
    /// The plan to simulate.
    pub plan: Arc<Plan>,
    /// The controller.
    pub controller: Arc<Controller>,
    /// The seed.
    pub seed: u64,
    /// What is kept besides the figures.
    pub detail: RunDetail,
}

/// What is kept of a run besides its figures. Everything of thousands of runs would not fit into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunDetail {
    /// Nothing.
    Figures,
    /// Every change of a number.
    Changes,
    /// Also the series over time, for plots: 300 kB.
    Series,
}

/// How far jobs are.
pub struct Progress<'a> {
    /// Finished jobs.
    pub done: usize,
    queue: &'a JobQueue,
}

impl Progress<'_> {
    /// All jobs.
    #[must_use]
    pub fn jobs(&self) -> usize {
        self.queue.jobs.len()
    }

    /// The share of all jobs that is done, 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        let sum: f64 = self.queue.progress.iter().map(|job| f64::from(job.load(Ordering::Relaxed))).sum();
        sum / (PROGRESS_PARTS * self.jobs().max(1) as f64)
    }
}

/// Runs `jobs` on as many threads as there are processors, and returns the runs in their order. `report` is called several times a
/// second; if it breaks, there are no runs, and the threads end after the jobs that they are working on.
///
/// # Errors
/// A simulation panicked.
pub fn run_all(
    jobs: Vec<Job>,
    mut report: impl FnMut(&Progress<'_>) -> ControlFlow<()>,
) -> Result<Option<Vec<Run>>, String> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(jobs.len());
    let mut runs: Vec<Option<Run>> = vec![None; jobs.len()];
    let progress = jobs.iter().map(|_| AtomicU32::new(0)).collect();
    let queue = Arc::new(JobQueue { jobs, next: AtomicUsize::new(0), progress });
    let (sender, results) = channel();
    for _ in 0..threads {
        let queue = queue.clone();
        let sender = sender.clone();
        thread::spawn(move || queue.run_all(&sender));
    }
    drop(sender);
    let mut done = 0;
    while done < runs.len() {
        match results.recv_timeout(REPORT_INTERVAL) {
            Ok((index, run)) => {
                runs[index] = Some(run);
                done += 1;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err("a simulation panicked; this is a bug".into()),
        }
        if report(&Progress { done, queue: &queue }).is_break() {
            return Ok(None);
        }
    }
    Ok(Some(runs.into_iter().flatten().collect()))
}

struct JobQueue {
    jobs: Vec<Job>,
    next: AtomicUsize,
    /// Of each job, in [`PROGRESS_PARTS`].
    progress: Vec<AtomicU32>,
}

impl JobQueue {
    fn run_all(&self, results: &Sender<(usize, Run)>) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = self.jobs.get(index) else { return };
            let report = |share| {
                self.progress[index].store(truncated_u32(share * PROGRESS_PARTS), Ordering::Relaxed);
            };
            // The receiver is gone when the runs were interrupted.
            if results.send((index, job.run(report))).is_err() {
                return;
            }
        }
    }
}

impl Job {
    fn run(&self, report: impl FnMut(f64)) -> Run {
        let scenario = self.plan.scenario(self.seed);
        if self.detail == RunDetail::Series {
            return simulate(&scenario, &self.controller, self.seed, report);
        }
        let mut run = simulate_figures(&scenario, &self.controller, self.seed, report);
        if self.detail == RunDetail::Figures {
            run.writes = Vec::new();
        }
        run
    }
}
