//! `/livez`, `/readyz`, `/healthz` as Go servers answer them. Readiness asks whether this process can answer, never
//! whether Prometheus does: a server that is not ready takes the discovery of the whole cluster with it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, StatusCode};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::engine::Leadership;
use crate::serve::auth::TrustData;
use crate::serve::state::{AppState, Settings};

const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");

/// How long readiness waits for what has to be learnt of the cluster: the watches, whom to trust, who decides. Without it a
/// read is answered with 503, so in a rolling update none should come yet. It takes seconds; what takes longer may never
/// come (a CRD deleted, a right missing), and a Service without endpoints stops the deletion of every namespace of the
/// cluster. A server that knows nothing says so to each reader.
const LEARNING: Duration = Duration::from_secs(30);

/// How long an instance that is cut off is not ready, so that reads go to another one: as long as above, for the same reason.
/// The chart's probe needs 10 s to see it.
const CUT_OFF_TIMEOUT: Duration = Duration::from_secs(30);

/// How long an instance must have been in contact before being cut off once more counts: an API server that answers now
/// and then must not take its endpoint away each time. A lease lasts 10 s longer, so that it is ready for most of any time.
const CONTACT_TIME: Duration = Duration::from_secs(30);

/// Why nobody can be authenticated.
const UNTRUSTED: &str = "ConfigMap kube-system/extension-apiserver-authentication has not been read";

/// What readiness is made of.
pub(crate) struct Health {
    synced: watch::Receiver<bool>,
    /// A watch that breaks later leaves the last state, which is better than no server.
    has_synced: Once,
    trust: watch::Receiver<TrustData>,
    leadership: watch::Receiver<Leadership>,
    /// Between two holders there is none for a moment, and reads are answered from what is known.
    has_holder: Once,
    isolation: Mutex<Isolation>,
    started: Instant,
    stopping: CancellationToken,
    /// Why it is not ready, as last logged.
    told: Mutex<Option<&'static str>>,
}

/// What has been true once.
#[derive(Default)]
struct Once(AtomicBool);

impl Once {
    fn or(&self, now: bool) -> bool {
        if now {
            self.0.store(true, Ordering::Relaxed);
        }
        self.0.load(Ordering::Relaxed)
    }
}

/// The time in which this instance was cut off, as far as that still counts.
#[derive(Debug, Default)]
struct Isolation {
    began: Option<Instant>,
    /// When it was first seen to be over.
    ended: Option<Instant>,
}

impl Isolation {
    /// Notes whether this instance is cut off now; true while that makes it not ready.
    fn counts(&mut self, is_cut_off: bool) -> bool {
        let now = Instant::now();
        if self.ended.is_some_and(|ended| now - ended >= CONTACT_TIME) {
            *self = Self::default();
        }
        if is_cut_off {
            self.ended = None;
            now - *self.began.get_or_insert(now) < CUT_OFF_TIMEOUT
        } else {
            if self.began.is_some() {
                self.ended.get_or_insert(now);
            }
            false
        }
    }
}

impl Health {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            synced: settings.synced.clone(),
            has_synced: Once::default(),
            trust: settings.trust.clone(),
            leadership: settings.leadership.clone(),
            has_holder: Once::default(),
            isolation: Mutex::default(),
            started: Instant::now(),
            stopping: settings.stopping.clone(),
            told: Mutex::default(),
        }
    }

    /// True once every watch has listed.
    pub(crate) fn has_synced(&self) -> bool {
        self.has_synced.or(*self.synced.borrow())
    }

    /// True when callers can be told from each other. What was read once stays.
    fn has_trust(&self) -> bool {
        self.trust.borrow().is_some()
    }

    /// True once it was known who decides, so who is asked.
    fn has_holder(&self) -> bool {
        let now = self.leadership.borrow();
        self.has_holder.or(now.is_mine() || now.holder.is_some())
    }

    /// Why reads had better go to another instance: not between two holders, but while this one refuses them.
    fn leadership(&self, is_cut_off: bool) -> Result<(), &'static str> {
        self.learnt(self.has_holder(), "it is not known who holds the lease")?;
        let cut_off = "the lease ran out and who holds it now is not known: check that this server reaches the API server";
        if self.isolation.lock().counts(is_cut_off) { Err(cut_off) } else { Ok(()) }
    }

    /// Says in the log why this process is not ready, whenever that changes: an answer withholds it, and is asked for
    /// every few seconds.
    fn tell(&self, why: Option<&'static str>) {
        let mut told = self.told.lock();
        if *told != why {
            match why {
                Some(why) => tracing::info!(why, "not ready"),
                None => tracing::info!("ready"),
            }
            *told = why;
        }
    }

    /// Why what has to be learnt is not known, for as long as that counts.
    fn learnt(&self, known: bool, why: &'static str) -> Result<(), &'static str> {
        if known || self.started.elapsed() >= LEARNING { Ok(()) } else { Err(why) }
    }
}

/// The name of a check and why it fails, if it does.
type Check = (&'static str, Result<(), &'static str>);

fn checks(state: &AppState, path: &str) -> Vec<Check> {
    let mut checks = vec![("ping", Ok(()))];
    if path == "readyz" {
        let health = state.health();
        let check = |holds: bool, why| if holds { Ok(()) } else { Err(why) };
        checks.extend([
            ("informer-sync", health.learnt(health.has_synced(), "not every watch has listed once")),
            ("authentication-trust", health.learnt(health.has_trust(), UNTRUSTED)),
            ("leadership", health.leadership(state.is_cut_off())),
            ("serving-certificate", check(state.has_certificate(), "there is no certificate to show")),
            ("shutdown", check(!health.stopping.is_cancelled(), "this process is stopping")),
        ]);
    }
    checks
}

/// `/{livez,readyz,healthz}`
pub(crate) async fn all(
    State(state): State<AppState>,
    uri: http::Uri,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    let path = uri.path().trim_matches('/');
    let excluded: Vec<_> =
        query.iter().filter(|(key, _)| key == "exclude").map(|(_, value)| value.as_str()).collect();
    let verbose = query.iter().any(|(key, _)| key == "verbose");
    let checks = checks(&state, path);
    if path == "readyz" {
        state.health().tell(checks.iter().find_map(|(_, result)| result.err()));
    }
    let failed = checks.iter().any(|(name, result)| result.is_err() && !excluded.contains(name));
    if !failed && !verbose {
        return plain(StatusCode::OK, "ok".into());
    }
    let mut lines: String = checks.iter().map(|check| line(check, &excluded)).collect();
    let unknown: Vec<_> =
        excluded.iter().filter(|name| !checks.iter().any(|(own, _)| own == *name)).copied().collect();
    if !unknown.is_empty() {
        let names: Vec<_> = unknown.iter().map(|name| format!("{name:?}")).collect();
        lines +=
            &format!("warn: some health checks cannot be excluded: no matches for {}\n", names.join(","));
    }
    if failed {
        return plain(StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}{path} check failed\n"));
    }
    plain(StatusCode::OK, format!("{lines}{path} check passed\n"))
}

fn line((name, result): &Check, excluded: &[&str]) -> String {
    match result {
        _ if excluded.contains(name) => format!("[+]{name} excluded: ok\n"),
        Ok(()) => format!("[+]{name} ok\n"),
        Err(_) => format!("[-]{name} failed: reason withheld\n"),
    }
}

/// `/{livez,readyz,healthz}/{check}`
pub(crate) async fn one(
    State(state): State<AppState>,
    uri: http::Uri,
    name: Result<Path<String>, PathRejection>,
) -> Response {
    let path = uri.path().trim_start_matches('/').split('/').next().unwrap_or_default();
    // A name that is no text is no check's.
    let name = name.map_or_else(|_| String::new(), |Path(name)| name);
    match checks(&state, path).into_iter().find(|(own, _)| *own == name) {
        None => plain(StatusCode::NOT_FOUND, "404 page not found\n".into()),
        Some((_, Ok(()))) => plain(StatusCode::OK, "ok".into()),
        Some((_, Err(why))) => {
            plain(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {why}\n"))
        }
    }
}

fn plain(status: StatusCode, text: String) -> Response {
    (status, [(CONTENT_TYPE, PLAIN), (X_CONTENT_TYPE_OPTIONS, NOSNIFF)], text).into_response()
}
