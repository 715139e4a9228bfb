//! Many simulations at once, one on each processor: each is deterministic on its own, so the order of the results is that of the
//! jobs, whichever is done first.

use std::num::NonZero;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;

use wva_core::units::whole;
use wva_sim::{Controller, Invalid, Run, simulate};

use super::plan::Plan;

/// One simulation.
#[derive(Debug, Clone)]
pub struct Job {
    /// What is simulated.
    pub plan: Arc<Plan>,
    /// Who decides.
    pub controller: Arc<Controller>,
    /// The seed.
    pub seed: u64,
    /// What is kept beside the figures.
    pub keep: Keep,
}

/// What is kept of a run beside its figures: thousands of runs with all of it fill the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Nothing.
    Figures,
    /// Every change of a number.
    Writes,
    /// That and its course over time, for plots: 300 kB.
    Series,
}

/// Simulations under way. They go on while the process lives, whether or not anybody listens.
#[derive(Debug)]
pub struct Running {
    /// What is done, with the job's place; ends when all is done.
    pub results: Receiver<(usize, Result<Run, Invalid>)>,
    done: Arc<Vec<AtomicU32>>,
}

/// Parts of a job that its progress is told in.
const PARTS: f64 = 1000.0;

impl Running {
    /// The share of all jobs that is done, 0 to 1.
    #[must_use]
    pub fn progress(&self) -> f64 {
        let sum: f64 = self.done.iter().map(|job| f64::from(job.load(Ordering::Relaxed))).sum();
        sum / (PARTS * self.done.len().max(1) as f64)
    }
}

/// Starts `jobs` on as many threads as there are processors.
#[must_use]
pub fn start(jobs: Vec<Job>) -> Running {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(jobs.len());
    let done = Arc::new(jobs.iter().map(|_| AtomicU32::new(0)).collect::<Vec<_>>());
    let work =
        Arc::new(Work { jobs, next: AtomicUsize::new(0), done: done.clone(), failed: OnceLock::new() });
    let (sender, results) = channel();
    for _ in 0..threads {
        let (work, sender) = (work.clone(), sender.clone());
        thread::spawn(move || work.until_nothing_is_left(&sender));
    }
    Running { results, done }
}

struct Work {
    jobs: Vec<Job>,
    next: AtomicUsize,
    done: Arc<Vec<AtomicU32>>,
    /// A job has failed: the others need not begin.
    failed: OnceLock<()>,
}

impl Work {
    fn until_nothing_is_left(&self, results: &Sender<(usize, Result<Run, Invalid>)>) {
        while self.failed.get().is_none() {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let (Some(job), Some(done)) = (self.jobs.get(index), self.done.get(index)) else { return };
            let result = one(job, |share| done.store(whole(share * PARTS), Ordering::Relaxed));
            done.store(whole(PARTS), Ordering::Relaxed);
            if result.is_err() {
                let _ = self.failed.set(());
            }
            // Nobody listens any more: the answer is not wanted.
            if results.send((index, result)).is_err() {
                return;
            }
        }
    }
}

fn one(job: &Job, progress: impl FnMut(f64)) -> Result<Run, Invalid> {
    let scenario = job.plan.scenario(job.seed);
    let mut run = simulate(&scenario, &job.controller, job.seed, progress)?;
    if job.keep != Keep::Series {
        run.series = Vec::new();
    }
    if job.keep == Keep::Figures {
        run.writes = Vec::new();
    }
    Ok(run)
}
