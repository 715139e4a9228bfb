//! Runs all jobs with a progress bar on the terminal, until they are done or Ctrl-C.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use tokio::time::Instant;
use wva_sim::Run;

use super::super::decisions::Failure;
use crate::simulate::{Job, RunningJobs, start};

/// How often the progress bar is refreshed.
const REFRESH_INTERVAL: Duration = Duration::from_millis(250);
/// Cells of the bar.
const BAR_CELLS: usize = 30;
const CLEAR_LINE: &str = "\r\x1b[2K";

/// How the jobs ended.
pub(super) enum Outcome {
    /// All runs, in the order of the jobs.
    Done(Vec<Run>),
    /// Ctrl-C.
    Interrupted,
}

/// Runs `jobs`.
///
/// # Errors
/// When the simulator rejects a scenario or a policy.
pub(super) fn run_all(jobs: Vec<Job>) -> Result<Outcome, Failure> {
    let names: Vec<_> = jobs.iter().map(|job| (job.plan.name.clone(), job.controller.name.clone())).collect();
    let mut runs: Vec<Option<Run>> = names.iter().map(|_| None).collect();
    let interrupt = interrupt();
    let running = start(jobs);
    let mut bar = ProgressBar::new(names.len());
    let mut done = 0;
    while done < names.len() {
        match running.results.recv_timeout(REFRESH_INTERVAL) {
            Ok((index, Ok(run))) => {
                runs[index] = Some(run);
                done += 1;
            }
            Ok((index, Err(invalid))) => {
                bar.clear();
                let (plan, controller) = &names[index];
                return Err(format!("{plan} under {controller}: {invalid}").into());
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                bar.clear();
                return Err("a simulation panicked; this is a bug".to_owned().into());
            }
        }
        if interrupt.try_recv().is_ok() {
            bar.clear();
            let _ = writeln!(io::stderr(), "wva: stopped after {done} of {} runs", names.len());
            return Ok(Outcome::Interrupted);
        }
        bar.show(&running, done);
    }
    bar.clear();
    Ok(Outcome::Done(runs.into_iter().flatten().collect()))
}

/// Receives a message on Ctrl-C. If no handler can be installed, Ctrl-C ends the process as usual.
fn interrupt() -> Receiver<()> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        if runtime.is_ok_and(|runtime| runtime.block_on(tokio::signal::ctrl_c()).is_ok()) {
            let _ = sender.send(());
        }
    });
    receiver
}

/// A progress bar on one line of the terminal.
struct ProgressBar {
    is_terminal: bool,
    started: Instant,
    next_refresh: Instant,
    is_shown: bool,
    jobs: usize,
}

impl ProgressBar {
    fn new(jobs: usize) -> Self {
        let now = Instant::now();
        Self {
            is_terminal: io::stderr().is_terminal(),
            started: now,
            next_refresh: now + REFRESH_INTERVAL,
            is_shown: false,
            jobs,
        }
    }

    fn show(&mut self, running: &RunningJobs, done: usize) {
        let now = Instant::now();
        if !self.is_terminal || now < self.next_refresh {
            return;
        }
        let elapsed_s = now.duration_since(self.started).as_secs_f64();
        let line = progress_line(running.progress(), done, self.jobs, elapsed_s);
        let _ = write!(io::stderr(), "{CLEAR_LINE}{line}");
        self.next_refresh = now + REFRESH_INTERVAL;
        self.is_shown = true;
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            let _ = write!(io::stderr(), "{CLEAR_LINE}");
        }
    }
}

fn progress_line(share: f64, done: usize, jobs: usize, elapsed_s: f64) -> String {
    let filled = ((share * BAR_CELLS as f64) as usize).min(BAR_CELLS);
    let bar: String = (0..BAR_CELLS).map(|cell| if cell < filled { '█' } else { '░' }).collect();
    let mut text = format!("{bar} {:.0} %, {done} of {jobs} runs", 100.0 * share);
    // Too early, an estimate is worthless.
    if share > 0.02 && elapsed_s > 1.0 {
        let left = elapsed_s * (1.0 - share) / share;
        text += &if left < 90.0 {
            format!(", {left:.0} s left")
        } else {
            format!(", {:.0} min left", left / 60.0)
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_line_has_share_runs_and_time_left() {
        assert_eq!(progress_line(0.0, 0, 4, 0.1), "░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░ 0 %, 0 of 4 runs");
        let text = progress_line(0.5, 1, 4, 10.0);
        assert_eq!(text, "███████████████░░░░░░░░░░░░░░░ 50 %, 1 of 4 runs, 10 s left");
        assert!(progress_line(0.1, 1, 4, 600.0).ends_with(", 90 min left"));
    }
}
