//! Reads of metrics: where their answer comes from. The leader answers from its own decisions. Another instance forwards
//! the read to the leader, and answers from the last published state when the leader does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use futures::FutureExt as _;
use http::header::WARNING;
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::timeout;

use super::encoding::{Reason, Status};
use super::forward::Forwarder;
use super::middleware::AuditId;
use super::namespace_permits::NamespacePermits;
use super::paths::{ANSWERED_BY, LEADER, LEADER_WITHOUT_RESULT};
use super::ports::{EventSink, FallbackServer, PublishedReader, RuleMetrics};
use super::request_metrics::EvidenceAge;
use super::tls::Permits;
use crate::engine::{Leadership, Origin, Published};

/// Concurrent reads. A read waits for at most the read-wait, so this is hundreds per second while evaluations hang and
/// hundreds of thousands per second from memory.
pub(crate) const MAX_READS: usize = 512;

/// Concurrent reads of metrics that rules make: a quarter of these.
const MAX_RULE_READS: usize = 128;

/// Concurrent reads that wait for the fallback server. An HPA controller has 5 workers by default, each with one read.
const MAX_FALLBACK_READS: usize = 64;
/// The same of one namespace: another one's metrics may hang.
const MAX_FALLBACK_READS_OF_NAMESPACE: usize = 16;

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
    /// Metrics that rules make, if there is a file of them.
    pub(crate) rules: Option<RuleReads>,
    /// Who is asked for metrics that are not served here, if there is somebody.
    pub(crate) fallback: Option<FallbackReads>,
}

/// Reads of metrics that rules make. They wait for Prometheus, so that they have a limit of their own: reads of variants, which nearly
/// always are answered from memory, must not wait for them.
pub(crate) struct RuleReads {
    pub(crate) rules: Arc<dyn RuleMetrics>,
    pub(crate) permits: Permits,
}

impl RuleReads {
    pub(crate) fn new(rules: Arc<dyn RuleMetrics>) -> Self {
        Self { rules, permits: Permits::new(MAX_RULE_READS) }
    }
}

/// Reads that are passed on to the fallback server, with a limit of their own, so that a slow one costs no other reads.
pub(crate) struct FallbackReads {
    pub(crate) server: Arc<dyn FallbackServer>,
    pub(crate) permits: NamespacePermits,
}

impl FallbackReads {
    pub(crate) fn new(server: Arc<dyn FallbackServer>) -> Self {
        let permits = NamespacePermits::new(MAX_FALLBACK_READS, MAX_FALLBACK_READS_OF_NAMESPACE);
        Self { server, permits }
    }
}

/// Whether every watch has listed once. A watch that breaks later leaves the last state, which is better than none.
pub(crate) struct SyncedOnce {
    synced: watch::Receiver<bool>,
    has_synced: AtomicBool,
}

impl SyncedOnce {
    pub(crate) fn new(synced: watch::Receiver<bool>) -> Self {
        Self { synced, has_synced: AtomicBool::new(false) }
    }

    pub(crate) fn has_synced(&self) -> bool {
        if *self.synced.borrow() {
            self.has_synced.store(true, Ordering::Relaxed);
        }
        self.has_synced.load(Ordering::Relaxed)
    }
}

impl ReadState {
    /// True while this instance holds the lease and answers from its own decisions.
    pub(crate) fn is_leader(&self) -> bool {
        self.leadership.borrow().is_mine()
    }

    /// The identity of the leader, if that is another instance.
    pub(crate) fn other_leader(&self) -> Option<String> {
        self.leadership.borrow().other_holder().map(|leader| leader.identity.clone())
    }

    /// True while this instance rejects reads although another one may have an answer: its lease has expired, the new leader is
    /// not known, and the newest result is from the time before.
    pub(crate) fn is_isolated(&self) -> bool {
        let knows_leader = {
            let leadership = self.leadership.borrow();
            leadership.is_mine() || leadership.other_holder().is_some()
        };
        !knows_leader && !self.reader.may_answer(&self.reader.newest())
    }

    /// Answers an authorised client: from the own result, with the leader's answer, or from the last known state. 503 when
    /// this instance may not answer from what it knows.
    pub(crate) async fn answer(
        &self,
        request: &Parts,
        audit: &AuditId,
        render: impl FnOnce(&Published) -> Result<Response, Status>,
    ) -> Result<Response, Status> {
        if self.is_leader() {
            let published = self.current().await;
            // Checked after the wait, during which the lease may have expired.
            if self.reader.may_answer(&published) {
                return render(&published);
            }
            if let Some(published) = self.first_of_term().await {
                return render(&published);
            }
            if self.is_leader() {
                return Err(expired_term(
                    "it has just acquired the lease and is still reading what the last leader published; retry in a second",
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
                "its lease has expired and it does not know the new leader; check that this server reaches the API server",
            );
            // Another instance may know. The proxy of an API server sends all its reads over one connection, to the instance
            // that it reached first: unless that closes, it would keep asking here.
            return Err(status.with_note(&error).closing_connection());
        }
        let mut answer = render(&published).map_err(|status| status.with_note(&error))?;
        add_warning(answer.headers_mut(), &format!("{error}; this is the last state it published"));
        Ok(answer)
    }

    /// Answers another instance as the leader; 421 without the lease. Never forwards, so that a read travels at most once.
    pub(crate) async fn answer_instance<R>(
        &self,
        read: Result<R, Status>,
        render: impl FnOnce(R, &Published) -> Result<Response, Status>,
    ) -> Result<Response, Status> {
        if !self.is_leader() {
            return Err(Status::new(Reason::NotLeader, "this instance does not hold the lease"));
        }
        let mut answered_by = LEADER;
        let answer = match read {
            Ok(read) => {
                let published = self.current().await;
                // Without a result of this term the other instance may still have a number to answer with.
                if published.origin == Origin::Empty || !self.reader.may_answer(&published) {
                    answered_by = LEADER_WITHOUT_RESULT;
                    let message =
                        "this instance holds the lease but has neither evaluated nor restored anything yet";
                    Err(Status::new(Reason::NotLeader, message))
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

    /// What the last leader published, once it is read by an instance that has just acquired the lease; `None` after the
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
