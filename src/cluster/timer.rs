//! Timers of loops that wait for several things.

use std::future::pending;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// How long changes of watched objects are gathered: those of one `kubectl apply` count as one, the state is rebuilt at most 10
/// times a second, and a change is seen well before the next evaluation (5 s).
pub(crate) const DEBOUNCE_WINDOW: Duration = Duration::from_millis(100);

/// Waits until `due`; for ever when nothing is due.
pub(crate) async fn sleep_until_due(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
}
