//! How much of the time goes into evaluating, reads included: at most a quarter. When an evaluation takes long, because
//! there are thousands of variants or the source is slow, answers get older; the machine is not given up to it. Only the
//! wait for a source that did not answer counts less: it is no work.
//!
//! Time of the wall, not of our processor: most of a collection is the source's work (with 20,000 pods Prometheus spends
//! 0.9 s of processor time and we 0.5 s), we cannot measure it, and a source that is slow because it is overloaded must be
//! asked less often. It is asked four queries at once at most, so a quarter of the time is one of its processors.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// After an evaluation that took `E`, the next one starts no earlier than `3 E` later: `E / (E + 3 E)` is a quarter.
const REST: u32 = 3;

/// Whether the last evaluation has been rested from. Whoever wants to evaluate asks here: the loop and every read.
#[derive(Debug, Default)]
pub(super) struct DutyCycle(Mutex<Option<Instant>>);

impl DutyCycle {
    /// An evaluation that took this long ends now.
    pub(super) fn rest_from(&self, took: Duration) {
        *self.0.lock() = Instant::now().checked_add(took.saturating_mul(REST));
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
