//! How every watch is requested, and what happens when it fails: it backs off, logs the error once and the recovery once.

use std::fmt::Debug;
use std::time::Duration;

use futures::{Stream, StreamExt, future};
use kube::Resource;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::{Backoff, ResetTimerBackoff};
use kube::runtime::watcher::{self, Error, Event, ExponentialBackoff, watcher};
use serde::de::DeserializeOwned;

use crate::cluster::requests::{LogOnce, error_text};

/// First wait after a failed watch.
const MIN_BACKOFF: Duration = Duration::from_millis(800);
/// Longest wait after a failed watch: after an outage everything is seen again within two evaluations (of 5 s).
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// The longest wait before jitter, which at most doubles it.
const MAX_BACKOFF_BEFORE_JITTER: Duration = Duration::from_secs(MAX_BACKOFF.as_secs() / 2);
/// Without a failure for this long, the next one waits [`MIN_BACKOFF`] again: a dozen times the longest wait.
const BACKOFF_RESET_WINDOW: Duration = Duration::from_secs(120);
/// How long the API server keeps one watch request open, in seconds. The client waits 5 s longer and then takes the
/// connection for dead, so an event behind a dead connection is seen after 65 s at most.
const WATCH_TIMEOUT_SECONDS: u32 = 60;

/// The parameters of every watch.
pub(crate) fn watch_config() -> watcher::Config {
    watcher::Config::default().timeout(WATCH_TIMEOUT_SECONDS)
}

/// Watches one object by name, with back-off; `None` while it does not exist.
pub(crate) fn watch_object<K>(
    api: Api<K>,
    name: &str,
) -> impl Stream<Item = watcher::Result<Option<K>>> + Send + use<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let config = watch_config().fields(&format!("metadata.name={name}"));
    let mut listed = false;
    watcher(api, config).backoff(backoff()).filter_map(move |event| {
        let state = match event {
            Ok(Event::Init) => {
                listed = false;
                None
            }
            Ok(Event::InitApply(object)) => {
                listed = true;
                Some(Ok(Some(object)))
            }
            Ok(Event::InitDone) => (!listed).then_some(Ok(None)),
            Ok(Event::Apply(object)) => Some(Ok(Some(object))),
            Ok(Event::Delete(_)) => Some(Ok(None)),
            Err(error) => Some(Err(error)),
        };
        future::ready(state)
    })
}

/// True when the right to list or watch is missing.
pub(crate) fn is_forbidden(error: &Error) -> bool {
    use Error::{InitialListFailed, WatchStartFailed};
    matches!(error, InitialListFailed(kube::Error::Api(status)) | WatchStartFailed(kube::Error::Api(status))
        if status.code == 403)
}

/// The events of a watch, with back-off. A failure is logged once until the watch works again.
pub(crate) fn watch_events<K: Send + 'static>(
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
    resource: &'static str,
    hint: &'static str,
) -> impl Stream<Item = Event<K>> + Send {
    watch_results(events, resource, hint).filter_map(|event| future::ready(event.ok()))
}

/// The events and failures of a watch, with back-off. A failure is logged once until the watch works again.
pub(crate) fn watch_results<K: Send + 'static>(
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
    resource: &'static str,
    hint: &'static str,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send {
    let mut health = WatchHealth::new(resource, hint);
    events.backoff(backoff()).inspect(move |event| match event {
        // A list begins, and may still fail.
        Ok(Event::Init) => {}
        Ok(_) => health.report_recovery(),
        Err(error) => health.report_failure(error),
    })
}

/// The back-off of every watch.
pub(crate) fn backoff() -> TimedResetBackoff {
    let builder = backon::ExponentialBuilder::default();
    let builder = builder.with_min_delay(MIN_BACKOFF).with_max_delay(MAX_BACKOFF_BEFORE_JITTER);
    let waits = builder.with_jitter().without_max_times();
    TimedResetBackoff(ResetTimerBackoff::new(waits.into(), BACKOFF_RESET_WINDOW))
}

/// A back-off that only time resets. A watch yields `Ok(Init)` before every list, and the stream resets its back-off at
/// every `Ok`, so without this a list that keeps failing would be retried after the first wait forever.
pub(crate) struct TimedResetBackoff(ResetTimerBackoff<ExponentialBackoff>);

impl Iterator for TimedResetBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next()
    }
}

impl Backoff for TimedResetBackoff {
    fn reset(&mut self) {}
}

/// Logs a lasting failure of a watch once, and its end once.
pub(crate) struct WatchHealth {
    resource: &'static str,
    hint: &'static str,
    logged: LogOnce,
}

impl WatchHealth {
    /// The watch of `resource` works; `hint` is what to check when it does not.
    pub(crate) fn new(resource: &'static str, hint: &'static str) -> Self {
        Self { resource, hint, logged: LogOnce::default() }
    }

    /// Logs `error`: a warning when the watch cannot be established, and no warning when it merely ended or has become too
    /// old, which the next list repairs.
    pub(crate) fn report_failure(&mut self, error: &Error) {
        let Self { resource, hint, logged } = self;
        let text = match error {
            Error::InitialListFailed(cause) | Error::WatchStartFailed(cause) => error_text(cause),
            Error::WatchError(status) => status.message.clone(),
            other => other.to_string(),
        };
        let lasting = matches!(error, Error::InitialListFailed(_) | Error::WatchStartFailed(_));
        if lasting && logged.is_new(&text) {
            tracing::warn!(error = %text, "cannot watch {resource}: {hint}; retrying");
        } else {
            tracing::debug!(error = %text, "the watch of {resource} was interrupted; retrying");
        }
    }

    /// Nothing is wrong any more, and nothing is to be watched either.
    pub(crate) fn forget_failure(&mut self) {
        self.logged.clear();
    }

    /// Logs that the watch works again, if it did not.
    pub(crate) fn report_recovery(&mut self) {
        if self.logged.clear() {
            tracing::info!("watching {} again", self.resource);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_makes_no_wait_longer_than_the_longest() {
        let longest = backoff().take(1000).max();
        assert!(
            longest.is_some_and(|wait| wait > MAX_BACKOFF_BEFORE_JITTER && wait <= MAX_BACKOFF),
            "{longest:?}"
        );
    }
}
