//! The fallback server, as the routes see it.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{HeaderValue, StatusCode};
use smol_str::SmolStr;
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
    metrics: FallbackMetrics,
}

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
            metrics,
        }
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
            let problem = self.list().await.err();
            if let Some(problem) = problem.as_ref().filter(|problem| last_problem.as_ref() != Some(*problem))
            {
                warn!(
                    service = self.service,
                    problem, "the metrics of the fallback server cannot be listed; those of before stay"
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
                if self.outage.fail(cause) {
                    warn!(service, cause, "the fallback server does not answer");
                }
            }
            Ok(_) | Err(_) => {
                if self.outage.end() {
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
            self.outage.admit().map_err(named)?;
            self.ask(path_and_query, Some(audit_id), MAX_ANSWER_BYTES).await.map_err(named)
        }
        .boxed()
    }
}
