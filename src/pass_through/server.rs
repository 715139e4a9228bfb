//! The fallback server, as the routes see it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{HeaderValue, StatusCode};
use smol_str::SmolStr;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::exchange::{Exchange, Failure, FallbackSettings};
use super::list;
use super::outage::Outage;
use crate::serve::{FallbackAnswer, FallbackError, FallbackServer};
use crate::telemetry::FallbackMetrics;

/// Where its metrics are listed.
const LIST_PATH: &str = "/apis/external.metrics.k8s.io/v1beta1";
/// A metric that no server has.
const PROBE_PATH: &str = "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/wva_probe";
/// Bytes of an answer to a read. An HPA needs one value; values with many labels have 1 KiB.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;
/// Bytes of the list of metrics. Each has about 150.
const MAX_LIST_BYTES: usize = 4 * 1024 * 1024;
/// How often the file with the CAs is read again.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// The fallback server.
pub struct FallbackApi {
    service: String,
    list_interval: Duration,
    exchange: Exchange,
    outage: Outage,
    names: ArcSwap<Arc<[SmolStr]>>,
    state: watch::Sender<ListState>,
    /// Whether it was once seen that this program may read metrics there.
    is_permitted: AtomicBool,
    metrics: FallbackMetrics,
}

/// What the last list has shown: the CAs by which the server's certificate was verified, PEM, if it was, or why reads cannot be passed on.
pub type ListState = Result<Option<Vec<u8>>, String>;

impl FallbackApi {
    /// Its metrics are listed once [`Self::run`] has asked it.
    #[must_use]
    pub fn new(settings: &FallbackSettings, metrics: FallbackMetrics) -> Self {
        let service = settings.service.clone();
        if settings.ca.is_none() {
            warn!(
                service,
                "the certificate of the fallback server is not verified (--fallback-insecure-skip-tls-verify): whoever answers at its \
                 address gets the token of this server, and sets the replicas of its autoscalers; set --fallback-ca"
            );
        }
        Self {
            service,
            list_interval: settings.list_interval,
            exchange: Exchange::new(settings),
            outage: Outage::default(),
            names: ArcSwap::default(),
            state: watch::Sender::new(Err("its metrics have not been listed yet".to_owned())),
            is_permitted: AtomicBool::new(false),
            metrics,
        }
    }

    /// What the last list has shown.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<ListState> {
        self.state.subscribe()
    }

    /// Lists its metrics, and tries whether this program may read them. How many there are.
    ///
    /// # Errors
    /// Why reads cannot be passed on to it, and what to do.
    pub async fn check(&self) -> Result<usize, String> {
        self.list().await?;
        self.try_read().await?;
        Ok(self.names.load().len())
    }

    /// Lists its metrics from time to time until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        stop.run_until_cancelled(self.follow()).await;
    }

    async fn follow(&self) {
        let mut ticks = interval(RELOAD_INTERVAL.min(self.list_interval));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut listed: Option<Instant> = None;
        let mut last_problem = None;
        loop {
            ticks.tick().await;
            self.exchange.reload();
            if listed.is_some_and(|at| at.elapsed() < self.list_interval) {
                continue;
            }
            let problem = self.check().await.err();
            let state = problem.clone().map_or_else(|| Ok(self.exchange.authorities()), Err);
            drop(self.state.send_replace(state));
            if let Some(problem) = problem.as_ref().filter(|problem| last_problem.as_ref() != Some(*problem))
            {
                warn!(
                    service = self.service,
                    problem,
                    "the metrics of the fallback server cannot be listed or read; the list of before stays"
                );
            }
            // Until the first list has been read, at each tick.
            listed = (problem.is_none() || listed.is_some()).then(Instant::now);
            last_problem = problem;
        }
    }

    async fn list(&self) -> Result<(), String> {
        let answer = self.ask(LIST_PATH, None, MAX_LIST_BYTES).await?;
        if answer.status != StatusCode::OK {
            return Err(format!("it answered {}", answer.status.as_u16()));
        }
        let names: Arc<[SmolStr]> = list::names(&answer.body)?.into();
        if **self.names.load() != names {
            info!(
                service = self.service,
                metrics = names.len(),
                "the metrics of the fallback server have changed"
            );
            self.names.store(Arc::new(names));
        }
        Ok(())
    }

    /// Anybody may list the names; whether this program may read a metric shows only when it reads one. The name is nobody's, and any
    /// answer but a refusal will do.
    async fn try_read(&self) -> Result<(), String> {
        if !self.is_permitted.load(Relaxed) {
            self.ask(PROBE_PATH, None, MAX_ANSWER_BYTES).await?;
            self.is_permitted.store(true, Relaxed);
        }
        Ok(())
    }

    /// Asks it, and counts what comes of it.
    async fn ask(
        &self,
        path: &str,
        audit_id: Option<&HeaderValue>,
        max_bytes: usize,
    ) -> Result<FallbackAnswer, String> {
        let started = Instant::now();
        let result = self.exchange.get(path, audit_id, max_bytes).await;
        let outcome = match &result {
            Ok(answer) => answer.status.as_u16().to_string(),
            Err(Failure { kind, .. }) => (*kind).to_owned(),
        };
        let is_alive = result.as_ref().map_or_else(|failure| failure.is_alive, |_| true);
        self.metrics.observe(outcome, started.elapsed(), is_alive);
        let service = self.service.as_str();
        match &result {
            Err(Failure { cause, is_alive: false, .. }) => {
                if self.outage.fail(path, started, cause) {
                    warn!(service, cause, "the fallback server does not answer");
                }
            }
            Ok(_) | Err(_) => {
                if self.outage.end(path) {
                    info!(service, "the fallback server answers again");
                }
            }
        }
        result.map_err(|failure| failure.cause)
    }
}

impl FallbackServer for FallbackApi {
    fn service(&self) -> &str {
        &self.service
    }

    fn names(&self) -> Arc<[SmolStr]> {
        Arc::clone(&self.names.load())
    }

    fn get<'a>(
        &'a self,
        path_and_query: &'a str,
        audit_id: &'a HeaderValue,
    ) -> BoxFuture<'a, Result<FallbackAnswer, FallbackError>> {
        let named = |cause: String| {
            let service = &self.service;
            FallbackError(format!(
                "Service {service}, to which this server passes on what is not its own: {cause}"
            ))
        };
        async move {
            self.outage.admit(path_and_query).map_err(named)?;
            self.ask(path_and_query, Some(audit_id), MAX_ANSWER_BYTES).await.map_err(named)
        }
        .boxed()
    }
}
