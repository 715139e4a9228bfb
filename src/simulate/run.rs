//! Runs many simulations at once, one on each processor. Each is deterministic, and results have the index of their job, so the
//! outcome does not depend on which finishes first.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use wva_core::units::truncated_u32;
use wva_sim::{Controller, Invalid, Run, simulate};

use super::plan::Plan;

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

/// Simulations under way. They end when the receiver is dropped.
#[derive(Debug)]
pub struct RunningJobs {
    /// The finished runs with the index of their job; closed when all are done.
    pub results: Receiver<(usize, Result<Run, Invalid>)>,
    /// Progress of each job, in [`PROGRESS_PARTS`].
    progress: Arc<Vec<AtomicU32>>,
}

/// Resolution of a job's progress.
const PROGRESS_PARTS: f64 = 1000.0;

impl RunningJobs {
    /// The share of all jobs that is done, 0 to 1.
    #[must_use]
    pub fn progress(&self) -> f64 {
        let sum: f64 = self.progress.iter().map(|job| f64::from(job.load(Ordering::Relaxed))).sum();
        sum / (PROGRESS_PARTS * self.progress.len().max(1) as f64)
    }
}

/// Starts `jobs` on as many threads as there are processors.
#[must_use]
pub fn start(jobs: Vec<Job>) -> RunningJobs {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(jobs.len());
    let progress = Arc::new(jobs.iter().map(|_| AtomicU32::new(0)).collect::<Vec<_>>());
    let queue = Arc::new(JobQueue {
        jobs,
        next: AtomicUsize::new(0),
        progress: progress.clone(),
        has_failed: AtomicBool::new(false),
    });
    let (sender, results) = channel();
    for _ in 0..threads {
        let queue = queue.clone();
        let sender = sender.clone();
        thread::spawn(move || queue.run_all(&sender));
    }
    RunningJobs { results, progress }
}

struct JobQueue {
    jobs: Vec<Job>,
    next: AtomicUsize,
    progress: Arc<Vec<AtomicU32>>,
    /// A job has failed: no further job begins.
    has_failed: AtomicBool,
}

impl JobQueue {
    fn run_all(&self, results: &Sender<(usize, Result<Run, Invalid>)>) {
        while !self.has_failed.load(Ordering::Relaxed) {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = self.jobs.get(index) else { return };
            let progress = &self.progress[index];
            let result =
                run(job, |share| progress.store(truncated_u32(share * PROGRESS_PARTS), Ordering::Relaxed));
            progress.store(truncated_u32(PROGRESS_PARTS), Ordering::Relaxed);
            if result.is_err() {
                self.has_failed.store(true, Ordering::Relaxed);
            }
            if results.send((index, result)).is_err() {
                return;
            }
        }
    }
}

fn run(job: &Job, progress: impl FnMut(f64)) -> Result<Run, Invalid> {
    let scenario = job.plan.scenario(job.seed);
    let mut run = simulate(&scenario, &job.controller, job.seed, progress)?;
    if job.detail != RunDetail::Series {
        run.series = Vec::new();
    }
    if job.detail == RunDetail::Figures {
        run.writes = Vec::new();
    }
    Ok(run)
}
