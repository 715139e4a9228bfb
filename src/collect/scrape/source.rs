//! The scrape source: reads every pod in scope once, and returns all samples of the last minutes. A pod that does not answer is no
//! error: its samples get older, and `wva_core::quality` judges their age.

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
use super::history::PodHistory;
use super::parse;
use super::settings::ScrapeSettings;
use crate::collect::limits::DroppedSeriesLog;
use crate::collect::merge;
use crate::collect::round_robin::RoundRobin;
use crate::engine::{Clock, Collected, Endpoint, Gap, MetricSource, Scheduler, Scope, SourceError};

/// Reads signals from the serving pods themselves.
pub struct ScrapeSource {
    fetcher: Fetcher,
    clock: Arc<dyn Clock>,
    concurrency: usize,
    timeout: Duration,
    window: Duration,
    histories: Mutex<BTreeMap<Endpoint, PodHistory>>,
    dropped_log: DroppedSeriesLog,
    /// Locked during a collection, so that no pod is read twice at once.
    round_robin: tokio::sync::Mutex<RoundRobin<Endpoint>>,
}

/// The scrape of one pod.
#[derive(Default)]
struct PodScrape {
    bad_samples: u64,
    /// The number of samples beyond the limits of a pod.
    dropped: u64,
    /// Why the pod could not be read.
    failure: Option<String>,
    /// Why its page is truncated, if it is.
    truncation: Option<String>,
    /// Whether the time of the collection was over before the pod was read.
    is_out_of_time: bool,
}

impl ScrapeSource {
    /// A source with these settings, which reads nothing yet. `clock` gives samples their time.
    ///
    /// # Errors
    /// When the scheme or a certificate file is unusable.
    pub fn new(settings: &ScrapeSettings, clock: Arc<dyn Clock>) -> Result<Self, SourceError> {
        Ok(Self {
            fetcher: Fetcher::new(settings)?,
            clock,
            timeout: settings.deadline,
            concurrency: settings.concurrency.max(1),
            window: settings.window,
            histories: Mutex::new(BTreeMap::new()),
            dropped_log: DroppedSeriesLog::default(),
            round_robin: tokio::sync::Mutex::default(),
        })
    }

    async fn read(&self, scope: &Scope) -> Result<Collected, SourceError> {
        let deadline = Instant::now() + self.timeout;
        let mut round_robin = self.round_robin.lock().await;
        let engines: BTreeSet<&Endpoint> = scope.endpoints.iter().collect();
        // A pod that is a replica of a model speaks as that.
        let schedulers = scope.schedulers.iter().filter(|scheduler| !engines.contains(&scheduler.endpoint));
        let schedulers: BTreeMap<&Endpoint, &Scheduler> =
            schedulers.map(|scheduler| (&scheduler.endpoint, scheduler)).collect();
        let endpoints: BTreeSet<&Endpoint> = engines.iter().chain(schedulers.keys()).copied().collect();
        self.histories.lock().retain(|endpoint, _| endpoints.contains(endpoint));
        let authorization = self.fetcher.authorization().await?;
        round_robin.start_round(|endpoint| endpoints.contains(endpoint));
        let scrape = |endpoint| {
            let scheduler = schedulers.get(endpoint).copied();
            // Schedulers get no credentials: any namespace may have a pool.
            let authorization = authorization.as_ref().filter(|_| scheduler.is_none());
            let scrape = self.scrape_until(deadline, endpoint, scheduler, authorization);
            scrape.map(move |scrape| (endpoint, scrape)).instrument(debug_span!("scrape", pod = endpoint.pod))
        };
        let scrapes: Vec<_> = in_order(endpoints, &round_robin).into_iter().map(scrape).collect();
        let scrapes: Vec<(&Endpoint, PodScrape)> =
            stream::iter(scrapes).buffer_unordered(self.concurrency).collect().await;
        for (endpoint, scrape) in scrapes.iter().filter(|(_, scrape)| !scrape.is_out_of_time) {
            round_robin.record((*endpoint).clone(), scrape.failure.is_none());
        }
        let raw = self.series(scope);
        // Not on the threads that serve sockets: thousands of pods take tens of milliseconds.
        let merged = tokio::task::spawn_blocking(move || merge::merge(vec![raw])).await;
        let merged = merged.map_err(|error| SourceError {
            kind: "decode",
            message: format!("scraping pods: {error}; report this"),
        })?;
        let bad_samples = scrapes.iter().map(|(_, scrape)| scrape.bad_samples).sum();
        // A scheduler that could not be read makes no answer incomplete: its samples get older.
        let scrapes: Vec<_> =
            scrapes.into_iter().filter(|(endpoint, _)| !schedulers.contains_key(endpoint)).collect();
        let gaps = self.gaps(&scrapes);
        let mut collected = Collected { gaps, bad_samples, ..Collected::default() };
        let mut dropped = merged.put_into(&mut collected);
        for (endpoint, scrape) in &scrapes {
            dropped.add(&endpoint.namespace.as_str().into(), &endpoint.pod.as_str().into(), scrape.dropped);
        }
        self.dropped_log.log(&dropped);
        collected.gaps.extend(dropped.gaps());
        collected.dropped_series = dropped.count();
        Ok(collected)
    }

    async fn scrape_until(
        &self,
        deadline: Instant,
        endpoint: &Endpoint,
        scheduler: Option<&Scheduler>,
        authorization: Option<&HeaderValue>,
    ) -> PodScrape {
        let out_of_time = PodScrape { is_out_of_time: true, ..PodScrape::default() };
        if Instant::now() >= deadline {
            return out_of_time;
        }
        timeout_at(deadline, self.scrape(endpoint, scheduler, authorization)).await.unwrap_or(out_of_time)
    }

    /// Reads one pod and adds its samples to its history: of an engine, or of a scheduler.
    async fn scrape(
        &self,
        endpoint: &Endpoint,
        scheduler: Option<&Scheduler>,
        authorization: Option<&HeaderValue>,
    ) -> PodScrape {
        let fetched = match self.fetcher.fetch(endpoint, authorization).await {
            Ok(fetched) => fetched,
            Err(cause) => return PodScrape { failure: Some(cause), ..PodScrape::default() },
        };
        let now = self.clock.now();
        let format = parse::format(&fetched.content_type);
        let page = match scheduler {
            None => parse::parse(&fetched.body, format),
            Some(scheduler) => parse::parse_scheduler(&fetched.body, format, scheduler),
        };
        let without_end = page.is_truncated.then(|| "its answer has no end mark".to_owned());
        let truncation = fetched.truncation.or(without_end);
        let mut samples = page.samples;
        if truncation.is_some() && scheduler.is_some() {
            // The rest of a sum is missing.
            samples.clear();
        } else if truncation.is_some() {
            // Other parts of the same metric may be missing: the sum would look like a drop of a counter.
            samples.retain(|sample| sample.part.id == 0);
        }
        let beyond_limits = {
            let mut histories = self.histories.lock();
            let history = histories.entry(endpoint.clone()).or_default();
            history.set_only_model(scheduler.and_then(Scheduler::only_model));
            history.add(samples, now)
        };
        PodScrape {
            bad_samples: page.bad_samples,
            dropped: page.dropped + beyond_limits,
            truncation,
            ..PodScrape::default()
        }
    }

    /// The series of all pods, without samples that are too old.
    fn series(&self, scope: &Scope) -> Vec<merge::RawSeries> {
        let now: Timestamp = self.clock.now();
        let mut histories = self.histories.lock();
        let mut raw = Vec::new();
        let needed = scope.needs.as_ref().map_or(0.0, |needs| needs.window.get());
        let max_age = self.window.max(Duration::from_secs_f64(needed));
        for (endpoint, history) in histories.iter_mut() {
            history.forget(now, max_age);
            raw.extend(history.series(endpoint));
        }
        raw
    }

    /// A gap for each namespace of which no pod answered or some were not read in time, and for each pod with a truncated page.
    /// Single pods that do not answer are no gap: starting pods do not answer for minutes, and for others the age of their samples
    /// shows it.
    fn gaps(&self, scrapes: &[(&Endpoint, PodScrape)]) -> Vec<Gap> {
        let mut namespaces: BTreeMap<&str, Vec<&(&Endpoint, PodScrape)>> = BTreeMap::new();
        for scrape in scrapes {
            namespaces.entry(&scrape.0.namespace).or_default().push(scrape);
        }
        let mut gaps = Vec::new();
        for (namespace, scrapes) in namespaces {
            let gap = |reason| Gap { namespace: Some(namespace.to_owned()), reason };
            let truncated =
                scrapes.iter().filter_map(|(pod, scrape)| Some((pod, scrape.truncation.as_ref()?)));
            gaps.extend(truncated.map(|(endpoint, cause)| gap(format!("pod {}: {cause}", endpoint.pod))));
            let out_of_time = scrapes.iter().filter(|(_, scrape)| scrape.is_out_of_time).count();
            if out_of_time > 0 {
                let (total, seconds) = (scrapes.len(), self.timeout.as_secs_f64());
                gaps.push(gap(format!(
                    "{out_of_time} of {total} pods were not read within {seconds:.1} s, because pods that hang took the time; check \
                     the scrape port, and that network policies reject packets instead of dropping them"
                )));
            }
            let failed = scrapes.iter().filter_map(|(pod, scrape)| Some((pod, scrape.failure.as_ref()?)));
            let (count, first) = (failed.clone().count(), failed.min_by_key(|(endpoint, _)| **endpoint));
            if let Some((endpoint, cause)) = first.filter(|_| count == scrapes.len()) {
                let next =
                    "check the scrape port, scheme and path, and that network policies allow the connection";
                let at_url = self.fetcher.url(endpoint).map(|url| format!(" at {url}: {cause}; {next}"));
                let (pod, why) = (&endpoint.pod, at_url.unwrap_or_else(|unknown| format!(": {unknown}")));
                gaps.push(gap(format!("none of {count} pods answered; pod {pod}{why}")));
            }
        }
        gaps
    }
}

/// The order in which pods are read: those that did not answer last time come last, and otherwise the namespaces alternate, so that
/// a namespace whose pods hang does not come before all others.
fn in_order<'a>(endpoints: BTreeSet<&'a Endpoint>, round_robin: &RoundRobin<Endpoint>) -> Vec<&'a Endpoint> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut order = Vec::new();
    for endpoint in endpoints {
        let count = counts.entry(&endpoint.namespace).or_default();
        *count += 1;
        order.push((round_robin.place(endpoint), *count, endpoint));
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
