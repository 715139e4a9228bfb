//! How every watch is kept, and what it does when it fails: waits, tells it once, and tells once that it is over.

use std::fmt::Debug;
use std::time::Duration;

use futures::{Stream, StreamExt, future};
use kube::Resource;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::{Backoff, ResetTimerBackoff};
use kube::runtime::watcher::{self, Error, Event, ExponentialBackoff, watcher};
use serde::de::DeserializeOwned;

/// First wait after a failed watch.
const BACKOFF_MIN: Duration = Duration::from_millis(800);
/// Longest wait after a failed watch: after an outage everything is seen again within two evaluations.
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// Of which this is the part that every instance waits: jitter adds as much again at most.
const BACKOFF_CERTAIN: Duration = Duration::from_secs(BACKOFF_MAX.as_secs() / 2);
/// How long nothing may fail before the next failure waits the first wait again: a dozen times the longest wait.
const BACKOFF_RESET: Duration = Duration::from_secs(120);
/// How long one watch request lives before it is made anew from where it was, in seconds. The client waits 5 s longer
/// and then takes the connection for dead: what happens behind a silent one is seen after 65 s at the latest.
const WATCH_SECONDS: u32 = 60;

/// How every watch of this room is asked for.
pub(crate) fn config() -> watcher::Config {
    watcher::Config::default().timeout(WATCH_SECONDS)
}

/// The one object of a name, whenever it changes; `None` when there is none. With back-off.
pub(crate) fn watch_one<K>(
    api: Api<K>,
    name: &str,
) -> impl Stream<Item = watcher::Result<Option<K>>> + Send + use<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let only = config().fields(&format!("metadata.name={name}"));
    let mut listed = false;
    watcher(api, only).backoff(backoff()).filter_map(move |event| {
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

/// The back-off of every watch of this room.
pub(crate) fn backoff() -> Patient {
    let builder = backon::ExponentialBuilder::default();
    let builder = builder.with_min_delay(BACKOFF_MIN).with_max_delay(BACKOFF_CERTAIN);
    Patient(ResetTimerBackoff::new(builder.with_jitter().without_max_times().into(), BACKOFF_RESET))
}

/// A back-off that only time resets. A watch says `Ok(Init)` before every list, and the stream resets its back-off at
/// every `Ok`: a list that keeps failing would be tried at the first wait for ever.
pub(crate) struct Patient(ResetTimerBackoff<ExponentialBackoff>);

impl Iterator for Patient {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next()
    }
}

impl Backoff for Patient {
    fn reset(&mut self) {}
}

/// What is wrong at the moment, as last told.
#[derive(Default)]
pub(crate) struct Told(Option<String>);

impl Told {
    /// True when this was not the last thing told; now it is.
    pub(crate) fn is_news(&mut self, text: &str) -> bool {
        let news = self.0.as_deref() != Some(text);
        if news {
            self.0 = Some(text.to_owned());
        }
        news
    }

    /// True when something was wrong; now nothing is.
    pub(crate) fn over(&mut self) -> bool {
        self.0.take().is_some()
    }
}

/// Tells a lasting problem once, and its end once.
pub(crate) struct Trouble {
    what: &'static str,
    hint: &'static str,
    told: Told,
}

impl Trouble {
    /// Nothing is wrong with the watch of `what`; `hint` is the next step for when something is.
    pub(crate) const fn new(what: &'static str, hint: &'static str) -> Self {
        Self { what, hint, told: Told(None) }
    }

    pub(crate) fn tell(&mut self, error: &Error) {
        let (what, hint, text) = (self.what, self.hint, brief(error));
        // A watch that ends or has become too old is ordinary: the next list repairs it.
        let lasting = matches!(error, Error::InitialListFailed(_) | Error::WatchStartFailed(_));
        if lasting && self.told.is_news(&text) {
            tracing::warn!(error = %text, "cannot watch {what}: {hint}; trying again");
        } else {
            tracing::debug!(error = %text, "watch of {what} interrupted");
        }
    }

    pub(crate) fn over(&mut self) {
        if self.told.over() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_makes_no_wait_longer_than_the_longest() {
        let longest = backoff().take(1000).max();
        assert!(longest.is_some_and(|wait| wait > BACKOFF_CERTAIN && wait <= BACKOFF_MAX), "{longest:?}");
    }
}
