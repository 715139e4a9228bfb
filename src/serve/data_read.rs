//! Reads of metrics: where their answer comes from. The lease holder answers from its own decisions. Another instance forwards
//! the read to the holder, and answers from the last published state when the holder does not answer.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use futures::FutureExt as _;
use http::header::WARNING;
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::time::timeout;
use wva_core::units::Seconds;

use super::encoding::{Reason, Status};
use super::forward::Forwarder;
use super::middleware::AuditId;
use super::paths::{ANSWERED_BY, CUSTOM_GROUP, EXTERNAL_GROUP, HOLDER, HOLDER_WITHOUT_RESULT};
use super::ports::{EventSink, PublishedReader};
use super::tls::Permits;
use crate::engine::{Leadership, Origin, Published};

/// Concurrent reads. A read waits for at most the read-wait, so this is hundreds per second while evaluations hang and
/// hundreds of thousands per second from memory.
pub(crate) const MAX_READS: usize = 512;

/// Added to the read-wait before the newest result is used without the engine's own timeout.
const OVERRUN_TIMEOUT: Duration = Duration::from_millis(100);

/// What reads of metrics need.
pub(crate) struct ReadState {
    pub(crate) reader: Arc<dyn PublishedReader>,
    pub(crate) events: Arc<dyn EventSink>,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) published: watch::Receiver<Arc<Published>>,
    pub(crate) synced: SyncedOnce,
    pub(crate) forwarder: Forwarder,
    pub(crate) evidence_age: EvidenceAge,
    pub(crate) read_wait: Duration,
    /// The label `controller_instance`, if this installation has one.
    pub(crate) controller_instance: Option<String>,
    /// When this process started.
    pub(crate) started: Timestamp,
    pub(crate) permits: Permits,
}

/// Whether every watch has listed once. A watch that breaks later leaves the last state, which is better than none.
pub(crate) struct SyncedOnce {
    synced: watch::Receiver<bool>,
    has_synced: OnceLock<()>,
}

impl SyncedOnce {
    pub(crate) fn new(synced: watch::Receiver<bool>) -> Self {
        Self { synced, has_synced: OnceLock::new() }
    }

    pub(crate) fn get(&self) -> bool {
        if *self.synced.borrow() {
            self.has_synced.get_or_init(|| ());
        }
        self.has_synced.get().is_some()
    }
}

impl ReadState {
    /// True while this instance holds the lease and answers from its own decisions.
    pub(crate) fn is_holder(&self) -> bool {
        self.leadership.borrow().is_mine()
    }

    /// The identity of the lease holder, if that is another instance.
    pub(crate) fn other_holder(&self) -> Option<String> {
        self.leadership.borrow().other_holder().map(|holder| holder.identity.clone())
    }

    /// True while this instance rejects reads although another one may have an answer: its lease has expired, the new holder is
    /// not known, and the newest result is from the time before.
    pub(crate) fn is_isolated(&self) -> bool {
        let knows_holder = {
            let leadership = self.leadership.borrow();
            leadership.is_mine() || leadership.other_holder().is_some()
        };
        !knows_holder && !self.reader.may_answer(&self.reader.newest())
    }

    /// Answers an authorised client: from the own result, with the lease holder's answer, or from the last known state. 503 when
    /// this instance may not answer from what it knows.
    pub(crate) async fn answer(
        &self,
        request: &Parts,
        audit: &AuditId,
        render: impl FnOnce(&Published) -> Result<Response, Status>,
    ) -> Result<Response, Status> {
        if self.is_holder() {
            let published = self.current().await;
            // Checked after the wait, during which the lease may have expired.
            if self.reader.may_answer(&published) {
                return render(&published);
            }
            if let Some(published) = self.first_of_term().await {
                return render(&published);
            }
            if self.is_holder() {
                return Err(expired_term(
                    "it has just acquired the lease and is still reading what the last holder published; retry in a second",
                ));
            }
        }
        let leadership = self.leadership.borrow().clone();
        let forwarded =
            self.forwarder.forward(&leadership, &request.uri, &request.headers, audit.header()).await;
        let error = match forwarded {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        tracing::debug!(%error, "answering from the last published state");
        let published = self.reader.newest();
        if !self.reader.may_answer(&published) {
            let status = expired_term(
                "its lease has expired and it does not know the new holder; check that this server reaches the API server",
            );
            // Another instance may know. The proxy of an API server sends all its reads over one connection, to the instance
            // that it reached first: unless that closes, it would keep asking here.
            return Err(status.with_note(&error).closing_connection());
        }
        let mut answer = render(&published).map_err(|status| status.with_note(&error))?;
        add_warning(answer.headers_mut(), &format!("{error}; this is the last state it published"));
        Ok(answer)
    }

    /// Answers another instance as the lease holder; 421 without the lease. Never forwards, so that a read travels at most once.
    pub(crate) async fn answer_instance<R>(
        &self,
        read: Result<R, Status>,
        render: impl FnOnce(R, &Published) -> Result<Response, Status>,
    ) -> Result<Response, Status> {
        if !self.is_holder() {
            return Err(Status::new(Reason::NotTheHolder, "this instance does not hold the lease"));
        }
        let mut answered_by = HOLDER;
        let answer = match read {
            Ok(read) => {
                let published = self.current().await;
                // Without a result of this term the other instance may still have a number to answer with.
                if published.origin == Origin::Empty || !self.reader.may_answer(&published) {
                    answered_by = HOLDER_WITHOUT_RESULT;
                    let message =
                        "this instance holds the lease but has neither evaluated nor restored anything yet";
                    Err(Status::new(Reason::NotTheHolder, message))
                } else {
                    render(read, &published)
                }
            }
            Err(error) => Err(error),
        };
        let mut answer = answer.into_response();
        answer.headers_mut().insert(ANSWERED_BY, answered_by);
        Ok(answer)
    }

    /// The result for a read. A read does not wait longer than intended, even if an evaluation ignores its timeouts.
    async fn current(&self) -> Arc<Published> {
        let mut current = self.reader.current();
        // Nearly always the result is there, and no timer is needed.
        if let Some(published) = (&mut current).now_or_never() {
            return published;
        }
        let limit = self.read_wait + OVERRUN_TIMEOUT;
        timeout(limit, current).await.unwrap_or_else(|_| self.reader.newest())
    }

    /// What the last holder published, once it is read by an instance that has just acquired the lease; `None` after the
    /// read-wait, or when the lease is lost first.
    async fn first_of_term(&self) -> Option<Arc<Published>> {
        let mut results = self.published.clone();
        let mut leadership = self.leadership.clone();
        let restored = async {
            loop {
                // Cloned before the check: a publisher that holds the lock of `may_answer` waits for the channel's.
                let newest = results.borrow_and_update().clone();
                if self.reader.may_answer(&newest) {
                    return Some(newest);
                }
                results.changed().await.ok()?;
            }
        };
        let first = async {
            tokio::select! {
                published = restored => published,
                _ = leadership.wait_for(|leadership| !leadership.is_mine()) => None,
            }
        };
        timeout(self.read_wait, first).await.ok().flatten()
    }
}

/// The error instead of a result of an earlier term: another instance may have published a different number since.
fn expired_term(cause: &str) -> Status {
    let message = format!("this instance does not answer with its last number: {cause}");
    Status::new(Reason::ServiceUnavailable, message)
}

/// Adds a `Warning` header, which kubectl prints and the HPA ignores.
pub(crate) fn add_warning(headers: &mut HeaderMap, text: &str) {
    let is_plain = |letter: &char| matches!(letter, ' '..='~') && !matches!(letter, '"' | '\\');
    let plain: String = text.chars().filter(is_plain).collect();
    if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{plain}\"")) {
        headers.append(WARNING, value);
    }
}

/// The smallest bucket in seconds, the factor and the number of buckets: from 1 s to 364 s, which is more than any useful
/// `--max-stale`. Name and buckets are those of metrics-server, so that its dashboards work.
const AGE_BUCKETS: (f64, f64, u16) = (1.0, 1.364, 20);

/// A histogram of how old the evidence of each answered item was.
#[derive(Debug, Clone)]
pub(crate) struct EvidenceAge {
    pub(crate) external: Histogram,
    pub(crate) custom: Histogram,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GroupLabel {
    group: &'static str,
}

impl EvidenceAge {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let (start, factor, length) = AGE_BUCKETS;
        let family = Family::<GroupLabel, Histogram, _>::new_with_constructor(move || {
            Histogram::new(exponential_buckets(start, factor, length))
        });
        let help = "Age of the evidence of each answered item, by API group";
        registry.register("metrics_apiserver_metric_freshness_seconds", help, family.clone());
        // Looked up once, not for every read.
        let histogram = |group| family.get_or_create(&GroupLabel { group }).clone();
        Self { external: histogram(EXTERNAL_GROUP), custom: histogram(CUSTOM_GROUP) }
    }
}

/// Notes how old the evidence of each answered item is.
pub(crate) fn observe_ages(histogram: &Histogram, evidence: impl Iterator<Item = Timestamp>, now: Timestamp) {
    evidence.for_each(|evidence| histogram.observe(Seconds::between(evidence, now).get()));
}
