//! Runs all jobs, with a line on the terminal that says how far it is, until they are done or Ctrl-C.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use tokio::time::Instant;
use wva_sim::Run;

use super::super::decisions::Failure;
use crate::simulate::{Job, Running, start};

/// How often a person is told how far it is.
const TOLD_EVERY: Duration = Duration::from_millis(250);
/// Cells of the bar.
const CELLS: usize = 30;
const CLEAR_LINE: &str = "\r\x1b[2K";

/// How it ended.
pub(super) enum Ended {
    /// All runs, in the order of the jobs.
    Done(Vec<Run>),
    /// Ctrl-C: what was done is thrown away.
    Interrupted,
}

/// Runs `jobs`.
///
/// # Errors
/// When a scenario or a policy makes no sense to the simulator.
pub(super) fn all(jobs: Vec<Job>) -> Result<Ended, Failure> {
    let names: Vec<_> = jobs.iter().map(|job| (job.plan.name.clone(), job.controller.name.clone())).collect();
    let mut runs: Vec<Option<Run>> = names.iter().map(|_| None).collect();
    let interrupt = interrupt();
    let running = start(jobs);
    let mut bar = Bar::new(names.len());
    let mut done = 0;
    while done < names.len() {
        match running.results.recv_timeout(TOLD_EVERY) {
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
                return Err("a simulation died; this is a bug".to_owned().into());
            }
        }
        if interrupt.try_recv().is_ok() {
            bar.clear();
            let _ = writeln!(io::stderr(), "wva: stopped after {done} of {} runs", names.len());
            return Ok(Ended::Interrupted);
        }
        bar.tell(&running, done);
    }
    bar.clear();
    Ok(Ended::Done(runs.into_iter().flatten().collect()))
}

/// Tells of Ctrl-C. Where it cannot be heard, it ends the process as it always does.
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

/// One line of a terminal, written anew again and again.
struct Bar {
    live: bool,
    started: Instant,
    next: Instant,
    shown: bool,
    jobs: usize,
}

impl Bar {
    fn new(jobs: usize) -> Self {
        let now = Instant::now();
        Self { live: io::stderr().is_terminal(), started: now, next: now + TOLD_EVERY, shown: false, jobs }
    }

    fn tell(&mut self, running: &Running, done: usize) {
        let now = Instant::now();
        if !self.live || now < self.next {
            return;
        }
        let (share, took) = (running.progress(), now.duration_since(self.started).as_secs_f64());
        let _ = write!(io::stderr(), "{CLEAR_LINE}{}", line(share, done, self.jobs, took));
        (self.next, self.shown) = (now + TOLD_EVERY, true);
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(io::stderr(), "{CLEAR_LINE}");
        }
    }
}

fn line(share: f64, done: usize, jobs: usize, took_s: f64) -> String {
    let filled = ((share * CELLS as f64) as usize).min(CELLS);
    let bar: String = (0..CELLS).map(|cell| if cell < filled { '█' } else { '░' }).collect();
    let mut text = format!("{bar} {:.0} %, {done} of {jobs} runs", 100.0 * share);
    // The first moments say nothing of the rest.
    if share > 0.02 && took_s > 1.0 {
        let left = took_s * (1.0 - share) / share;
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
    fn the_line_says_how_far_it_is_and_how_long_it_takes_yet() {
        assert_eq!(line(0.0, 0, 4, 0.1), "░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░ 0 %, 0 of 4 runs");
        let text = line(0.5, 1, 4, 10.0);
        assert_eq!(text, "███████████████░░░░░░░░░░░░░░░ 50 %, 1 of 4 runs, 10 s left");
        assert!(line(0.1, 1, 4, 600.0).ends_with(", 90 min left"));
    }
}
