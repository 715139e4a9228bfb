//! The source: reads every pod in scope once, remembers, and answers with everything that is remembered. A pod that
//! doesn't answer is no error: its samples grow old with their true times, and `core::quality` sees that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, stream};
use http::HeaderValue;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};
use tracing::{Instrument as _, debug_span, info_span};

use super::fetch::Fetcher;
use super::settings::ScrapeSettings;
use super::text;
use super::window::Window;
use crate::collect::bounds::LogOnce;
use crate::collect::merge;
use crate::collect::round_robin::RoundRobin;
use crate::engine::{Clock, Collected, Endpoint, Gap, MetricSource, Scope, SourceError};

/// Reads signals from the serving pods themselves.
pub struct ScrapeSource {
    fetcher: Fetcher,
    clock: Arc<dyn Clock>,
    concurrency: usize,
    deadline: Duration,
    window: Duration,
    memory: Mutex<BTreeMap<Endpoint, Window>>,
    log_once: LogOnce,
    /// One round at a time, so that no pod is read twice at once.
    round: tokio::sync::Mutex<RoundRobin<Endpoint>>,
}

/// What one pod's answer was worth.
#[derive(Default)]
struct Visit {
    bad_samples: u64,
    /// Series of its page that are beyond what is kept of a pod.
    dropped: u64,
    /// Why nothing was read.
    failed: Option<String>,
    /// Why not everything was read.
    cut: Option<String>,
    /// The round was over before it was read.
    unread: bool,
}

impl ScrapeSource {
    /// A source for these settings. `clock` stamps the samples. Reads nothing yet.
    ///
    /// # Errors
    /// When the scheme or a certificate file can't be used: says which, and what to do.
    pub fn new(settings: &ScrapeSettings, clock: Arc<dyn Clock>) -> Result<Self, SourceError> {
        Ok(Self {
            fetcher: Fetcher::new(settings)?,
            clock,
            deadline: settings.deadline,
            concurrency: settings.concurrency.max(1),
            window: settings.window,
            memory: Mutex::new(BTreeMap::new()),
            log_once: LogOnce::default(),
            round: tokio::sync::Mutex::default(),
        })
    }

    async fn read(&self, scope: &Scope) -> Result<Collected, SourceError> {
        let until = Instant::now() + self.deadline;
        let mut turns = self.round.lock().await;
        let endpoints: BTreeSet<&Endpoint> = scope.endpoints.iter().collect();
        self.memory.lock().retain(|endpoint, _| endpoints.contains(endpoint));
        let authorization = self.fetcher.authorization().await?;
        turns.start(|endpoint| endpoints.contains(endpoint));
        let visit = |endpoint| {
            let visit = self.visit_until(until, endpoint, authorization.as_ref());
            visit.map(move |visit| (endpoint, visit)).instrument(debug_span!("scrape", pod = endpoint.pod))
        };
        let visits: Vec<_> = in_turn(endpoints, &turns).into_iter().map(visit).collect();
        let visits: Vec<(&Endpoint, Visit)> =
            stream::iter(visits).buffer_unordered(self.concurrency).collect().await;
        for (endpoint, visit) in visits.iter().filter(|(_, visit)| !visit.unread) {
            turns.note((*endpoint).clone(), visit.failed.is_none());
        }
        let remembered = self.remembered(scope);
        // Away from the threads that wait for sockets: thousands of pods are tens of milliseconds.
        let merged = tokio::task::spawn_blocking(move || merge::merge(remembered)).await;
        let merged = merged.map_err(|error| SourceError {
            kind: "decode",
            message: format!("scraping pods: {error}; report this"),
        })?;
        let gaps = self.gaps(&visits);
        let bad_samples = visits.iter().map(|(_, visit)| visit.bad_samples).sum();
        let mut collected = Collected { gaps, bad_samples, ..Collected::default() };
        let mut dropped = merged.hand_over(&mut collected);
        for (endpoint, visit) in &visits {
            dropped.add(&endpoint.namespace.as_str().into(), &endpoint.pod.as_str().into(), visit.dropped);
        }
        self.log_once.log(&dropped);
        collected.gaps.extend(dropped.gaps());
        collected.dropped_series = dropped.count();
        Ok(collected)
    }

    async fn visit_until(
        &self,
        until: Instant,
        endpoint: &Endpoint,
        authorization: Option<&HeaderValue>,
    ) -> Visit {
        let unread = Visit { unread: true, ..Visit::default() };
        if Instant::now() >= until {
            return unread;
        }
        timeout_at(until, self.visit(endpoint, authorization)).await.unwrap_or(unread)
    }

    /// Reads one pod and remembers what it said.
    async fn visit(&self, endpoint: &Endpoint, authorization: Option<&HeaderValue>) -> Visit {
        let page = match self.fetcher.get(endpoint, authorization).await {
            Ok(page) => page,
            Err(cause) => return Visit { failed: Some(cause), ..Visit::default() },
        };
        let now = self.clock.now();
        let read = text::parse(&page.body, text::format(&page.content_type));
        let unfinished = read.cut.then(|| "its answer has no end mark".to_owned());
        let cut = page.cut.or(unfinished);
        let mut lines = read.lines;
        if cut.is_some() {
            // Other parts of the same figure may be in what is missing: the sum would look like a counter that fell.
            lines.retain(|line| line.part.id == 0);
        }
        let crowded = self.memory.lock().entry(endpoint.clone()).or_default().add(lines, now);
        Visit { bad_samples: read.bad_samples, dropped: read.dropped + crowded, cut, ..Visit::default() }
    }

    fn remembered(&self, scope: &Scope) -> Vec<merge::RawSeries> {
        let now: Timestamp = self.clock.now();
        let mut memory = self.memory.lock();
        let mut raw = Vec::new();
        let looked = scope.needs.as_ref().map_or(0.0, |needs| needs.window.get());
        let kept = self.window.max(Duration::from_secs_f64(looked));
        for (endpoint, window) in memory.iter_mut() {
            window.forget(now, kept);
            raw.extend(window.series(endpoint));
        }
        raw
    }

    /// A gap for each namespace of which no pod answered or some were not read in time, and for each pod whose answer
    /// was cut. Single silent pods
    /// make no gap: pods that start are silent for minutes, and the age of samples tells about the others.
    fn gaps(&self, visits: &[(&Endpoint, Visit)]) -> Vec<Gap> {
        let mut pods: BTreeMap<&str, Vec<&(&Endpoint, Visit)>> = BTreeMap::new();
        for visit in visits {
            pods.entry(&visit.0.namespace).or_default().push(visit);
        }
        let mut gaps = Vec::new();
        for (namespace, visits) in pods {
            let gap = |reason| Gap { namespace: Some(namespace.to_owned()), reason };
            let cut =
                visits.iter().filter_map(|(endpoint, visit)| visit.cut.as_ref().map(|why| (endpoint, why)));
            gaps.extend(cut.map(|(endpoint, why)| gap(format!("pod {}: {why}", endpoint.pod))));
            let unread = visits.iter().filter(|(_, visit)| visit.unread).count();
            if unread > 0 {
                let (all, seconds) = (visits.len(), self.deadline.as_secs_f64());
                gaps.push(gap(format!(
                    "{unread} of {all} pods were not read within {seconds:.1} s, because pods that hang took the \
                     time; check the scrape port, and that network policies refuse instead of swallowing"
                )));
            }
            let failed =
                visits.iter().filter_map(|(endpoint, visit)| Some((endpoint, visit.failed.as_ref()?)));
            let (count, first) = (failed.clone().count(), failed.min_by_key(|(endpoint, _)| **endpoint));
            if let Some((endpoint, why)) = first.filter(|_| count == visits.len()) {
                let url = self.fetcher.url(endpoint);
                gaps.push(gap(format!(
                    "none of {count} pods answered; pod {} at {url}: {why}; check the scrape port, scheme and path, \
                     and that network policies let us in",
                    endpoint.pod
                )));
            }
        }
        gaps
    }
}

/// In which order pods are read: who was silent last goes last, and of the others every namespace in turn, so that no
/// namespace of pods that hang stands before all others.
fn in_turn<'a>(endpoints: BTreeSet<&'a Endpoint>, turns: &RoundRobin<Endpoint>) -> Vec<&'a Endpoint> {
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    let mut order = Vec::new();
    for endpoint in endpoints {
        let place = places.entry(&endpoint.namespace).or_default();
        *place += 1;
        order.push((turns.place(endpoint), *place, endpoint));
    }
    order.sort();
    order.into_iter().map(|(_, _, endpoint)| endpoint).collect()
}

impl MetricSource for ScrapeSource {
    fn collect<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Collected, SourceError>> {
        let span = info_span!("scrape_round", pods = scope.endpoints.len());
        self.read(scope).instrument(span).boxed()
    }
}
