//! What a watch does when it fails: waits, tells it once, and tells once that it is over.

use std::time::Duration;

use kube::runtime::watcher::{Error, ExponentialBackoff};

/// First wait after a failed watch.
const BACKOFF_MIN: Duration = Duration::from_millis(800);
/// Longest wait after a failed watch: after an outage everything is seen again within two evaluations.
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// The back-off of every watch of this room.
pub(crate) fn backoff() -> ExponentialBackoff {
    let builder = backon::ExponentialBuilder::default();
    builder.with_min_delay(BACKOFF_MIN).with_max_delay(BACKOFF_MAX).with_jitter().without_max_times().into()
}

/// Tells a lasting problem once, and its end once.
pub(crate) struct Trouble {
    what: &'static str,
    hint: &'static str,
    told: Option<String>,
}

impl Trouble {
    /// Nothing is wrong with the watch of `what`; `hint` is the next step for when something is.
    pub(crate) const fn new(what: &'static str, hint: &'static str) -> Self {
        Self { what, hint, told: None }
    }

    pub(crate) fn tell(&mut self, error: &Error) {
        let (what, hint, text) = (self.what, self.hint, brief(error));
        // A watch that ends or has become too old is ordinary: the next list repairs it.
        let lasting = matches!(error, Error::InitialListFailed(_) | Error::WatchStartFailed(_));
        if lasting && self.told.as_ref() != Some(&text) {
            tracing::warn!(error = %text, "cannot watch {what}: {hint}; trying again");
            self.told = Some(text);
        } else {
            tracing::debug!(error = %text, "watch of {what} interrupted");
        }
    }

    pub(crate) fn over(&mut self) {
        if self.told.take().is_some() {
            tracing::info!("watching {} again", self.what);
        }
    }
}

/// An error of a watch in one line: the client's own text repeats itself.
fn brief(error: &Error) -> String {
    match error {
        Error::InitialListFailed(cause) | Error::WatchStartFailed(cause) => said(cause),
        Error::WatchError(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// What the API server said, or why it could not.
pub(crate) fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} ({})", status.message.trim_end(), status.code),
        other => other.to_string(),
    }
}
