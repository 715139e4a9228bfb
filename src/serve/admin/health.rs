//! `/livez`, `/readyz`, `/healthz` as Go servers answer them. Readiness depends on whether this process can answer, never on
//! Prometheus: a metrics server that is not ready breaks the discovery of the whole cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, StatusCode, Uri};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::serve::auth::TrustData;
use crate::serve::data_read::ReadState;
use crate::serve::tls::certificates::Certificates;

const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");

/// How long readiness waits for what the cluster says: the watches, the trust, the leader. Without them reads get 503, so
/// during a rolling update none should arrive yet. They take seconds. What takes longer may never come (a deleted CRD, a
/// missing permission), and a Service without endpoints stops the deletion of every namespace of the cluster. A server without
/// them tells each client what is missing.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(30);

/// How long an isolated instance is not ready, so that reads go to another one; not longer, for the same reason. The
/// chart's probe needs 10 s to notice.
const ISOLATION_TIMEOUT: Duration = Duration::from_secs(30);

/// How long an instance must have been in contact before another isolation makes it not ready: an API server that answers now
/// and then must not remove its endpoint each time. Together with the lease, which lasts 10 s longer than its renewal, the
/// instance is ready most of the time.
const CONTACT_WINDOW: Duration = Duration::from_secs(30);

/// What readiness depends on.
pub(crate) struct Health {
    trust: watch::Receiver<TrustData>,
    certificates: Arc<Certificates>,
    reads: Arc<ReadState>,
    /// Set once a leader is known. Between two leaders there is none for a moment, and reads are answered from the last state.
    has_known_leader: AtomicBool,
    isolation: Mutex<Isolation>,
    started: Instant,
    stopping: CancellationToken,
    /// True while the right to read the trust is missing; `None` where no installation may forward reads.
    trust_refused: Option<watch::Receiver<bool>>,
    /// Why the process is not ready, as last logged.
    logged: Mutex<Option<&'static str>>,
}

/// A time in which this instance was isolated, while it still counts.
#[derive(Debug, Default)]
struct Isolation {
    began: Option<Instant>,
    /// When its end was first noticed.
    ended: Option<Instant>,
}

impl Isolation {
    /// Notes whether this instance is isolated now; true while that makes it not ready.
    fn update(&mut self, is_isolated: bool) -> bool {
        let now = Instant::now();
        if self.ended.is_some_and(|ended| now - ended >= CONTACT_WINDOW) {
            *self = Self::default();
        }
        if is_isolated {
            self.ended = None;
            return now - *self.began.get_or_insert(now) < ISOLATION_TIMEOUT;
        }
        if self.began.is_some() {
            self.ended.get_or_insert(now);
        }
        false
    }
}

/// One check of health.
struct Check {
    name: &'static str,
    /// Why it fails, if it does.
    result: Result<(), &'static str>,
}

impl Health {
    pub(crate) fn new(
        trust: watch::Receiver<TrustData>,
        stopping: CancellationToken,
        certificates: Arc<Certificates>,
        reads: Arc<ReadState>,
        trust_refused: Option<watch::Receiver<bool>>,
    ) -> Self {
        Self {
            trust,
            certificates,
            reads,
            has_known_leader: AtomicBool::new(false),
            isolation: Mutex::default(),
            started: Instant::now(),
            stopping,
            trust_refused,
            logged: Mutex::default(),
        }
    }

    fn checks(&self, path: &str) -> Vec<Check> {
        let mut checks = vec![("ping", Ok(()))];
        if path == "readyz" {
            let has_certificate = self.certificates.is_ready();
            let is_running = !self.stopping.is_cancelled();
            checks.extend([
                (
                    "informer-sync",
                    self.require_known(self.reads.synced.has_synced(), "not every watch has listed once"),
                ),
                ("authentication-trust", self.trust()),
                ("leadership", self.leadership()),
                (
                    "serving-certificate",
                    has_certificate.then_some(()).ok_or("there is no serving certificate"),
                ),
                ("shutdown", is_running.then_some(()).ok_or("this process is stopping")),
            ]);
        }
        checks.into_iter().map(|(name, result)| Check { name, result }).collect()
    }

    /// Fails while callers cannot be authenticated, except where they never can be: an installation that another one forwards reads
    /// to may lack the right to read the ConfigMap, and answers those reads without it.
    fn trust(&self) -> Result<(), &'static str> {
        let is_loaded = self.trust.borrow().is_some();
        let is_refused = self.trust_refused.as_ref().is_some_and(|refused| *refused.borrow());
        self.require_known(
            is_loaded || is_refused,
            "ConfigMap kube-system/extension-apiserver-authentication has not been read",
        )
    }

    /// Fails while reads should go to another instance: not between two leaders, but while this instance rejects them.
    fn leadership(&self) -> Result<(), &'static str> {
        let has_leader = {
            let leadership = self.reads.leadership.borrow();
            leadership.is_mine() || leadership.holder.is_some()
        };
        if has_leader {
            self.has_known_leader.store(true, Ordering::Relaxed);
        }
        self.require_known(self.has_known_leader.load(Ordering::Relaxed), "the leader is not known")?;
        if self.isolation.lock().update(self.reads.is_isolated()) {
            return Err(
                "the lease has expired and its new leader is not known: check that this server reaches the API server",
            );
        }
        Ok(())
    }

    /// Fails with `cause` while something is not known, until [`STARTUP_TIMEOUT`] has passed.
    fn require_known(&self, is_known: bool, cause: &'static str) -> Result<(), &'static str> {
        if is_known || self.started.elapsed() >= STARTUP_TIMEOUT { Ok(()) } else { Err(cause) }
    }

    /// Logs why the process is not ready, whenever that changes: the answer withholds it, and is polled every few seconds.
    fn log_change(&self, cause: Option<&'static str>) {
        let mut logged = self.logged.lock();
        if *logged != cause {
            match cause {
                Some(cause) => tracing::info!(why = cause, "not ready"),
                None => tracing::info!("ready"),
            }
            *logged = cause;
        }
    }
}

/// `/{livez,readyz,healthz}`
pub(crate) async fn all(
    State(health): State<Arc<Health>>,
    uri: Uri,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    let path = uri.path().trim_matches('/');
    let excluded: Vec<_> =
        query.iter().filter(|(key, _)| key == "exclude").map(|(_, value)| value.as_str()).collect();
    let is_verbose = query.iter().any(|(key, _)| key == "verbose");
    let checks = health.checks(path);
    if path == "readyz" {
        health.log_change(checks.iter().find_map(|check| check.result.err()));
    }
    let has_failed = checks.iter().any(|check| check.result.is_err() && !excluded.contains(&check.name));
    if !has_failed && !is_verbose {
        return plain(StatusCode::OK, "ok".into());
    }
    let mut lines: String = checks.iter().map(|check| check_line(check, &excluded)).collect();
    let is_check = |name: &str| checks.iter().any(|check| check.name == name);
    let unknown: Vec<_> =
        excluded.iter().filter(|name| !is_check(name)).map(|name| format!("{name:?}")).collect();
    if !unknown.is_empty() {
        let names = unknown.join(",");
        lines += &format!("warn: some health checks cannot be excluded: no matches for {names}\n");
    }
    if has_failed {
        return plain(StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}{path} check failed\n"));
    }
    plain(StatusCode::OK, format!("{lines}{path} check passed\n"))
}

fn check_line(check: &Check, excluded: &[&str]) -> String {
    let Check { name, result } = check;
    match result {
        _ if excluded.contains(name) => format!("[+]{name} excluded: ok\n"),
        Ok(()) => format!("[+]{name} ok\n"),
        Err(_) => format!("[-]{name} failed: reason withheld\n"),
    }
}

/// `/{livez,readyz,healthz}/{check}`
pub(crate) async fn single(
    State(health): State<Arc<Health>>,
    uri: Uri,
    name: Result<Path<String>, PathRejection>,
) -> Response {
    let path = uri.path().trim_start_matches('/').split('/').next().unwrap_or_default();
    // No check has a name that is not UTF-8.
    let name = name.map_or_else(|_| String::new(), |Path(name)| name);
    match health.checks(path).into_iter().find(|check| check.name == name).map(|check| check.result) {
        None => plain(StatusCode::NOT_FOUND, "404 page not found\n".into()),
        Some(Ok(())) => plain(StatusCode::OK, "ok".into()),
        Some(Err(cause)) => {
            plain(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {cause}\n"))
        }
    }
}

fn plain(status: StatusCode, text: String) -> Response {
    (status, [(CONTENT_TYPE, PLAIN_TEXT), (X_CONTENT_TYPE_OPTIONS, NOSNIFF)], text).into_response()
}
