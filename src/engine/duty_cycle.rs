//! Evaluations take at most a quarter of the time, those that reads cause included. When an evaluation takes long, because there
//! are thousands of variants or the source is slow, answers get older instead. The wait for a source that did not answer counts
//! less, because it is no work.
//!
//! Wall-clock time counts, not our processor time: most of a collection is the source's work (with 20,000 pods Prometheus spends
//! 0.9 s of processor time and we 0.5 s), which we cannot measure, and an overloaded source must be queried less often. At most
//! four queries run at once, so a quarter of the time is one of its processors.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// After an evaluation that took `E`, the next one starts no earlier than `3 E` later: `E / (E + 3 E)` is a quarter.
const REST_FACTOR: u32 = 3;

/// When the next evaluation may start, whether the loop or a read causes it.
#[derive(Debug, Default)]
pub(super) struct DutyCycle(Mutex<Option<Instant>>);

impl DutyCycle {
    /// Starts the rest after an evaluation that took this long.
    pub(super) fn rest_from(&self, took: Duration) {
        *self.0.lock() = Instant::now().checked_add(took.saturating_mul(REST_FACTOR));
    }

    /// True while no evaluation may start.
    pub(super) fn is_resting(&self) -> bool {
        self.0.lock().is_some_and(|until| Instant::now() < until)
    }

    /// Resolves when an evaluation may start.
    pub(super) async fn rested(&self) {
        while self.is_resting() {
            let until = *self.0.lock();
            sleep_until(until.unwrap_or_else(Instant::now)).await;
        }
    }
}
