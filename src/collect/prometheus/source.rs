//! Collects from Prometheus: counts the series, queries them, splits queries that are too large, and merges the answers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, stream};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{Instrument as _, info_span};
use wva_core::units::truncated_i64;

use super::bad_samples::BadSampleCounter;
use super::client::{QueryClient, QueryError, RequestLimits, Warnings};
use super::honor_labels::HonorLabelsCheck;
use super::oversized::OversizedNamespaces;
use super::query_plan::{self, PlanInput, RangeQuery, SeriesCount};
use super::query_result::QueryResult;
use super::query_scope::QueryScope;
use super::response::QueriedSeries;
use super::scope_index::ScopeIndex;
use super::settings::PrometheusSettings;
use super::trusted_collectors::TrustedCollectors;
use super::window::RangeWindow;
use crate::collect::limits::{DroppedSeries, DroppedSeriesLog};
use crate::collect::merge::{self, SharedParts};
use crate::collect::round_robin::RoundRobin;
use crate::collect::series_labels::SeriesLabels as _;
use crate::collect::signals;
use crate::engine::{Collected, Gap, MetricSource, Scope, SourceError};

/// How long queries stay split after the server has rejected one for its size: its limits are raised by people, in minutes.
const SPLIT_BACKOFF: Duration = Duration::from_secs(300);

/// How long counts are used, while they cover the scope and no query has failed. A query may then be larger than intended by what
/// was added within a minute; and, while queries are split, a counted namespace that begins to be scraped through another one is
/// read there a minute later. Counting at every evaluation was a quarter of Prometheus's work.
const MAX_COUNT_AGE: Duration = Duration::from_secs(60);

/// The time-out for an oversized namespace while there are others, which have to wait for it, unless twice their time is longer.
/// Three times what 120,000 series take.
const OVERSIZED_TIMEOUT: Duration = Duration::from_secs(2);

/// The usual scrape interval.
const SCRAPE_INTERVAL: Duration = Duration::from_secs(15);

/// Reads signals from Prometheus, or from another server of its query API.
pub struct PrometheusSource {
    client: Arc<QueryClient>,
    max_series: u64,
    collectors: Arc<TrustedCollectors>,
    query_scope: QueryScope,
    concurrency: usize,
    timeout: Duration,
    /// Never locked across an await.
    state: Mutex<State>,
    dropped_log: DroppedSeriesLog,
    honor_labels: HonorLabelsCheck,
}

/// What a collection leaves for the next one.
struct State {
    window: RangeWindow,
    split_until: Option<Instant>,
    /// Until when series are not counted, because the count failed for its size.
    uncounted_until: Option<Instant>,
    oversized: OversizedNamespaces,
    /// The time of the slowest answer of the last collection, without those of oversized namespaces.
    slowest_answer: Duration,
    counts: Option<CachedCounts>,
    /// The order of namespaces while queries are split.
    round_robin: RoundRobin<String>,
    bad_samples: BadSampleCounter,
}

/// The last complete counts of series.
#[derive(Clone)]
struct CachedCounts {
    counts: Arc<Vec<SeriesCount>>,
    signals: Vec<String>,
    until: Instant,
}

/// The inputs of all queries of one collection.
struct Round {
    /// For each signal a regular expression that matches its names.
    signals: Vec<String>,
    index: Arc<ScopeIndex>,
    /// What the series of all answers have in common.
    shared: Arc<Mutex<SharedParts>>,
    limits: RequestLimits,
    window: Duration,
    /// The window for oversized namespaces.
    min_window: Duration,
    /// Values of the `namespace` label that are queried separately.
    oversized: BTreeSet<String>,
    /// Whether there are other namespaces in scope.
    has_others: bool,
}

/// A query and its answer.
struct Answer {
    query: RangeQuery,
    result: Result<(QueryResult, Warnings), QueryError>,
}

impl Answer {
    /// Whether a smaller query may succeed: this one was rejected for its size, truncated or late.
    fn may_be_size(&self) -> bool {
        match &self.result {
            Ok((_, warnings)) => warnings.is_truncated,
            Err(error) => error.may_be_size(),
        }
    }
}

impl PrometheusSource {
    /// A source with these settings. Sends no query yet.
    ///
    /// # Errors
    /// When the URL, a certificate file or a name is unusable.
    pub fn new(settings: &PrometheusSettings) -> Result<Self, SourceError> {
        Ok(Self {
            client: Arc::new(QueryClient::new(settings)?),
            max_series: settings.max_series,
            collectors: Arc::new(TrustedCollectors::new(&settings.trusted_collectors)),
            query_scope: QueryScope::new(settings),
            concurrency: settings.concurrency.max(1),
            timeout: settings.deadline,
            state: Mutex::new(State {
                window: RangeWindow::new(settings.window),
                split_until: None,
                uncounted_until: None,
                oversized: OversizedNamespaces::default(),
                slowest_answer: Duration::ZERO,
                counts: None,
                round_robin: RoundRobin::default(),
                bad_samples: BadSampleCounter::default(),
            }),
            dropped_log: DroppedSeriesLog::default(),
            honor_labels: HonorLabelsCheck::default(),
        })
    }

    /// Its name in messages, without credentials.
    #[must_use]
    pub fn name(&self) -> &str {
        self.client.name()
    }

    /// The time by the server's clock; `None` for an answer without a time.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn server_time(&self) -> Result<Option<Timestamp>, SourceError> {
        let limits = self.client.limits(self.timeout).await?;
        let add = |time: &mut Option<f64>, element: QueriedSeries<'_>| {
            *time = element.samples.first().map(|sample| sample.value);
        };
        let answer = self.client.query("vector(time())", &limits, None, add).await;
        let (seconds, _) = answer.map_err(QueryError::into_source)?;
        let millis = seconds.map(|seconds| truncated_i64(seconds * 1000.0));
        Ok(millis.and_then(|millis| Timestamp::from_millisecond(millis).ok()))
    }

    /// Reads what may be queried of `scope`. All else is a gap.
    async fn read(&self, scope: &Scope) -> Result<Collected, SourceError> {
        let (scope, gaps) = self.query_scope.narrow(scope);
        let mut collected = self.read_all(&scope).await?;
        collected.gaps.extend(gaps);
        Ok(collected)
    }

    async fn read_all(&self, scope: &Scope) -> Result<Collected, SourceError> {
        if scope.namespaces.is_empty() {
            return Ok(Collected::default());
        }
        let oversized = self.state.lock().oversized.namespaces(Instant::now());
        let min_window = self.state.lock().window.min();
        let round = Round {
            signals: signals::name_patterns(scope.needs.as_ref().map(|needs| &needs.signals)),
            index: Arc::new(ScopeIndex::new(scope, self.collectors.clone())),
            shared: Arc::default(),
            limits: self.client.limits(self.timeout).await?,
            window: self.window(scope),
            min_window,
            has_others: scope.namespaces.iter().any(|name| !oversized.contains(name)),
            oversized,
        };
        self.state.lock().round_robin.start_round(|namespace| scope.namespaces.contains(namespace));
        let (counts, warnings) = match self.counts(&round, scope).await {
            Ok(counted) => counted,
            Err(error) if error.may_be_size() => {
                self.state.lock().uncounted_until = Some(Instant::now() + SPLIT_BACKOFF);
                self.split_from_now(error.into_source().message.as_str());
                (Arc::default(), Warnings::default())
            }
            Err(error) => return Err(error.into_source()),
        };
        let input = PlanInput {
            scope: &scope.namespaces,
            signals: &round.signals,
            max_series: self.max_series,
            collectors: &self.collectors,
            oversized: &round.oversized,
        };
        let queries = if self.is_split() {
            query_plan::plan_by_namespace(&counts, &input)
        } else {
            query_plan::plan(&counts, &input)
        };
        let answers = self.send(&round, queries).await;
        let answers = self.repeat_in_parts(&round, answers, &counts, &input).await;
        if answers.iter().any(|answer| answer.may_be_size() || answer.result.is_err()) {
            self.state.lock().counts = None;
        }
        self.remember_oversized(&answers);
        let collected = self.combine(answers, warnings.reasons, scope, round.shared).await;
        if let Ok(collected) = &collected {
            self.state.lock().window.learn(&collected.series, Instant::now());
        }
        collected
    }

    /// The number of series: the last count while it is valid, else a new one.
    async fn counts(
        &self,
        round: &Round,
        scope: &Scope,
    ) -> Result<(Arc<Vec<SeriesCount>>, Warnings), QueryError> {
        if self.state.lock().uncounted_until.is_some_and(|until| Instant::now() < until) {
            return Ok((Arc::default(), Warnings::default()));
        }
        let cached = self.state.lock().counts.clone().filter(|cached| {
            cached.signals == round.signals
                && Instant::now() < cached.until
                && query_plan::covers_scope(&cached.counts, &scope.namespaces, &self.collectors)
        });
        if let Some(CachedCounts { counts, .. }) = cached {
            return Ok((counts, Warnings::default()));
        }
        let (counts, warnings) = self.count(round, scope).await?;
        let counts = Arc::new(counts);
        self.state.lock().counts = warnings.reasons.is_empty().then(|| CachedCounts {
            counts: counts.clone(),
            signals: round.signals.clone(),
            until: Instant::now() + MAX_COUNT_AGE,
        });
        Ok((counts, warnings))
    }

    /// Splits each query for several namespaces that may have been too large, and sends its parts. A namespace with long labels or
    /// slow series thus affects only itself.
    async fn repeat_in_parts(
        &self,
        round: &Round,
        answers: Vec<Answer>,
        counts: &[SeriesCount],
        input: &PlanInput<'_>,
    ) -> Vec<Answer> {
        let (mut final_answers, mut parts, mut first_cause) = (Vec::new(), Vec::new(), None);
        for answer in answers {
            let split =
                answer.may_be_size().then(|| query_plan::split(&answer.query, counts, input)).flatten();
            let Some(split) = split else {
                final_answers.push(answer);
                continue;
            };
            parts.extend(split);
            let cause = match answer.result {
                Ok((_, warnings)) => warnings.reasons.into_iter().next().map(|reason| (reason, false)),
                Err(error) => {
                    let is_size = matches!(error, QueryError::TooLarge(_));
                    Some((error.into_source().message, is_size))
                }
            };
            first_cause = first_cause.or(cause);
        }
        if parts.is_empty() {
            return final_answers;
        }
        let parts = self.send(round, parts).await;
        // If no part is answered either, size was not the cause, and more queries would not help.
        if let Some((cause, is_size)) = first_cause
            && (is_size || parts.iter().any(|part| part.result.is_ok()))
        {
            self.split_from_now(&cause);
        }
        final_answers.extend(parts);
        final_answers
    }

    /// Remembers the namespaces whose query may have been too large although it was for that namespace only.
    fn remember_oversized(&self, answers: &[Answer]) {
        let oversized = &mut self.state.lock().oversized;
        for Answer { query, .. } in answers.iter().filter(|answer| answer.may_be_size()) {
            if let Some(label) = query.labels.first().filter(|_| query.labels.len() == 1) {
                oversized.add(label, Instant::now());
            }
        }
    }

    /// As long as the scrape interval requires, and as long as decisions look back plus one scrape.
    fn window(&self, scope: &Scope) -> Duration {
        let needed = scope.needs.as_ref().map_or(0.0, |needs| needs.window.get());
        let needed =
            if needed > 0.0 { Duration::from_secs_f64(needed) + SCRAPE_INTERVAL } else { Duration::ZERO };
        self.state.lock().window.length(needed)
    }

    fn is_split(&self) -> bool {
        self.state.lock().split_until.is_some_and(|until| Instant::now() < until)
    }

    fn split_from_now(&self, cause: &str) {
        tracing::warn!(error = cause, "queries are split by namespace for the next minutes");
        let mut state = self.state.lock();
        state.split_until = Some(Instant::now() + SPLIT_BACKOFF);
        state.counts = None;
    }

    async fn count(&self, round: &Round, scope: &Scope) -> Result<(Vec<SeriesCount>, Warnings), QueryError> {
        let add = |counts: &mut Vec<SeriesCount>, element: QueriedSeries<'_>| {
            let label = |name| element.labels.get(name).unwrap_or_default().to_owned();
            // Counts are small whole numbers. The cast saturates: NaN and negative values become 0.
            let series = element.samples.first().map_or(0, |count| count.value as u64);
            let (namespace, exported_namespace) = (label("namespace"), label("exported_namespace"));
            counts.push(SeriesCount { namespace, exported_namespace, series });
        };
        let (names, matchers) = (round.signals.join("|"), self.query_scope.matchers());
        let query = query_plan::count_query(&names, &scope.namespaces, &self.collectors, matchers);
        let span = info_span!("prometheus_count", source = self.client.name());
        self.client.query(&query, &round.limits.first_half(), Vec::new(), add).instrument(span).await
    }

    async fn send(&self, round: &Round, mut queries: Vec<RangeQuery>) -> Vec<Answer> {
        {
            let round_robin = &self.state.lock().round_robin;
            queries.sort_by_key(|query| {
                query.affected.iter().flatten().map(|name| round_robin.place(name)).max().unwrap_or_default()
            });
        }
        let send = |query: RangeQuery| async move {
            let is_oversized = !query.labels.is_disjoint(&round.oversized);
            let window = if is_oversized { round.min_window } else { round.window };
            let promql = query.promql(window, self.query_scope.matchers());
            let limits = self.query_limits(round, &query, is_oversized);
            let span = info_span!(
                "prometheus_query",
                source = self.client.name(),
                namespaces = query.affected.as_ref().map_or(0, BTreeSet::len)
            );
            let empty = QueryResult::new(Arc::clone(&round.index), Arc::clone(&round.shared));
            let started = Instant::now();
            let result = self.client.query(&promql, &limits, empty, QueryResult::add).instrument(span).await;
            let duration = (result.is_ok() && !is_oversized).then(|| started.elapsed());
            (duration, Answer { query, result })
        };
        let answers: Vec<_> =
            stream::iter(queries).map(send).buffer_unordered(self.concurrency).collect().await;
        let (durations, answers): (Vec<Option<Duration>>, Vec<Answer>) = answers.into_iter().unzip();
        if let Some(slowest) = durations.into_iter().flatten().max() {
            self.state.lock().slowest_answer = slowest;
        }
        self.record_answers(&answers);
        answers
    }

    /// The limits of one query: one that can be split leaves time for its parts, and one for an oversized namespace does not keep
    /// all others waiting.
    fn query_limits(&self, round: &Round, query: &RangeQuery, is_oversized: bool) -> RequestLimits {
        if query.labels.len() > 1 {
            return round.limits.first_half();
        }
        let timeout = if is_oversized && round.has_others {
            OVERSIZED_TIMEOUT.max(self.state.lock().slowest_answer * 2)
        } else {
            Duration::MAX
        };
        round.limits.within(timeout)
    }

    /// Records which namespaces were answered. A namespace of which any part was not answered counts as silent. When a query for
    /// several namespaces fails, it is unknown which of them is the cause.
    fn record_answers(&self, answers: &[Answer]) {
        let known = answers.iter().filter(|answer| match answer.result {
            Ok(_) => true,
            Err(QueryError::NotSent(_)) => false,
            Err(_) => answer.query.labels.len() == 1,
        });
        let (answered, silent): (Vec<_>, Vec<_>) = known.partition(|answer| answer.result.is_ok());
        let round_robin = &mut self.state.lock().round_robin;
        for Answer { query, result } in answered.into_iter().chain(silent) {
            for namespace in query.affected.iter().flatten() {
                round_robin.record(namespace.clone(), result.is_ok());
            }
        }
    }

    async fn combine(
        &self,
        answers: Vec<Answer>,
        warnings: Vec<String>,
        scope: &Scope,
        shared: Arc<Mutex<SharedParts>>,
    ) -> Result<Collected, SourceError> {
        let mut collected = Collected::default();
        let (mut raw, mut dropped) = (Vec::new(), DroppedSeries::default());
        let mut reasons: Vec<(Option<BTreeSet<String>>, String)> =
            warnings.into_iter().map(|warning| (None, warning)).collect();
        let (mut is_answered, mut first_error) = (answers.is_empty(), None);
        for Answer { query, result } in answers {
            match result {
                Ok((mut result, warnings)) => {
                    is_answered = true;
                    // In an incomplete answer, missing parts of a counter would look like a drop.
                    let is_truncated = !warnings.reasons.is_empty();
                    result.raw.iter_mut().for_each(|series| series.is_truncated = is_truncated);
                    raw.push(result.raw);
                    dropped.extend(result.dropped);
                    collected.bad_samples += self.state.lock().bad_samples.count_new(result.bad_samples);
                    reasons
                        .extend(warnings.reasons.into_iter().map(|reason| (query.affected.clone(), reason)));
                }
                Err(error) => {
                    let error = error.into_source();
                    reasons.push((query.affected, error.message.clone()));
                    first_error.get_or_insert(error);
                }
            }
        }
        if let Some(error) = first_error.filter(|_| !is_answered) {
            return Err(error);
        }
        let merge = move || {
            drop(shared); // so that the labels of each pod are freed when its series are merged
            merge::merge(raw)
        };
        let merged = tokio::task::spawn_blocking(merge).await;
        let merged =
            merged.map_err(|error| self.client.error("decode", &error.to_string(), "report this"))?;
        collected.gaps = gaps(reasons, scope);
        dropped.extend(merged.put_into(&mut collected));
        self.dropped_log.log(&dropped);
        collected.dropped_series = dropped.count();
        collected.gaps.extend(dropped.gaps());
        Ok(collected)
    }
}

/// A gap for each affected namespace and reason, or one gap where all namespaces in scope are affected.
fn gaps(reasons: Vec<(Option<BTreeSet<String>>, String)>, scope: &Scope) -> Vec<Gap> {
    let mut gaps: Vec<Gap> = Vec::new();
    for (affected, reason) in reasons {
        match affected.filter(|names| *names != scope.namespaces) {
            None => gaps.push(Gap { namespace: None, reason }),
            Some(names) => {
                gaps.extend(
                    names.into_iter().map(|name| Gap { namespace: Some(name), reason: reason.clone() }),
                );
            }
        }
    }
    gaps.sort_by(|left, right| (&left.namespace, &left.reason).cmp(&(&right.namespace, &right.reason)));
    gaps.dedup();
    gaps
}

impl MetricSource for PrometheusSource {
    fn collect<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Collected, SourceError>> {
        let read = async move {
            let collected = self.read(scope).await;
            self.honor_labels.start_if_due(collected.is_ok(), &self.client);
            collected
        };
        read.boxed()
    }
}
