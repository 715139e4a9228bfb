//! Runs all jobs with a progress bar on the terminal, until they are done or Ctrl-C.

use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, channel};

use tokio::time::Instant;
use wva_sim::Run;

use super::super::output::CommandError;
use super::super::terminal::{StatusLine, note};
use crate::simulate::{self, Job};

/// Cells of the bar.
const BAR_CELLS: usize = 30;

/// Runs `jobs`; `None` after Ctrl-C.
pub(super) fn run_all(jobs: Vec<Job>) -> Result<Option<Vec<Run>>, CommandError> {
    let interrupt = interrupt();
    let started = Instant::now();
    let mut status = StatusLine::new();
    let runs = simulate::run_all(jobs, |progress| {
        let (done, jobs) = (progress.done, progress.jobs());
        if interrupt.try_recv().is_ok() {
            status.clear();
            note(&format!("stopped after {done} of {jobs} runs"));
            return ControlFlow::Break(());
        }
        status.show(|| progress_line(progress.share(), done, jobs, started.elapsed().as_secs_f64()));
        ControlFlow::Continue(())
    });
    status.clear();
    Ok(runs?)
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

fn progress_line(share: f64, done: usize, jobs: usize, elapsed_s: f64) -> String {
    let filled = ((share * BAR_CELLS as f64) as usize).min(BAR_CELLS);
    let bar = "█".repeat(filled) + &"░".repeat(BAR_CELLS - filled);
    let mut text = format!("{bar} {:.0} %, {done} of {jobs} runs", 100.0 * share);
    // Too early, an estimate is worthless.
    if share > 0.02 && elapsed_s > 1.0 {
        let left = elapsed_s * (1.0 - share) / share;
        text += &match left {
            left if left < 90.0 => format!(", {left:.0} s left"),
            left => format!(", {:.0} min left", left / 60.0),
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
