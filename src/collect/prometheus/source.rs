//! The source: counts, asks, splits when it must, and puts the answers together.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, stream};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{Instrument as _, info_span};

use super::answer::Element;
use super::bad_samples::{Bad, Counted};
use super::client::{QueryClient, QueryError, RequestLimits, Warnings};
use super::collectors::Collectors;
use super::labels::{Known, Shared, Unused};
use super::plan::{self, Batch, Count, Extent};
use super::preflight::Preflight;
use super::settings::PrometheusSettings;
use super::window::{Heavy, Window};
use crate::collect::bounds::{Dropped, Holder, LogOnce, Room};
use crate::collect::merge::{self, RawSeries};
use crate::collect::round_robin::RoundRobin;
use crate::collect::signals;
use crate::engine::{Collected, Gap, MetricSource, Scope, SourceError};

/// How long the query stays split after the backend refused it for size: limits are raised by people, in minutes.
const SPLIT_BACKOFF: Duration = Duration::from_secs(300);

/// How long counts stand, while every namespace in scope is in them and nothing was refused: a query may then be larger
/// than wanted by what came in a minute, and, while split, a namespace that is counted and is now scraped through another
/// one too is read there a minute later. Counting each time was a quarter of Prometheus's work.
const MAX_COUNT_AGE: Duration = Duration::from_secs(60);

/// How long is waited for a namespace that was too much by itself while there are others, or twice as long as for these: all wait for
/// it. Three times what 120,000 series take.
const HEAVY_TIMEOUT: Duration = Duration::from_secs(2);

/// The usual distance of two scrapes.
const SCRAPE_INTERVAL: Duration = Duration::from_secs(15);

/// Reads signals from Prometheus, or what speaks its query API.
pub struct PrometheusSource {
    client: Arc<QueryClient>,
    max_series: u64,
    collectors: Arc<Collectors>,
    concurrency: usize,
    deadline: Duration,
    /// Never locked while anything is awaited.
    state: Mutex<State>,
    log_once: LogOnce,
    preflight: Preflight,
}

/// What one collection leaves for the next.
struct State {
    window: Window,
    split_until: Option<Instant>,
    /// Nothing is counted before then, because counting was too much.
    uncounted_until: Option<Instant>,
    heavy: Heavy,
    /// How long the slowest answer took last time, of those that were not too much.
    slowest: Duration,
    /// The last whole count.
    counts: Option<Counts>,
    /// The namespaces, while split.
    round_robin: RoundRobin<String>,
    counted: Counted,
}

/// What one query gave.
struct Found {
    known: Arc<Known>,
    shared: Shared,
    raw: Vec<RawSeries>,
    bad: Vec<Bad>,
    /// By where the names of namespace and pod are kept (of schedulers and strangers that of the namespace alone), and by
    /// whether a collector said it: what a pod says of itself needs a place of its own, since it is what counts.
    rooms: HashMap<(usize, Result<usize, Holder>, bool), Room>,
    dropped: Dropped,
}

impl Found {
    fn new(known: Arc<Known>) -> Self {
        let (shared, rooms, dropped) = (Shared::default(), HashMap::new(), Dropped::default());
        Self { known, shared, raw: Vec::new(), bad: Vec::new(), rooms, dropped }
    }

    fn add(&mut self, element: Element<'_>) {
        match self.known.identify(element, &mut self.shared) {
            Ok((series, times)) => {
                let holder = self.known.holder(&series);
                let whose = if holder == Holder::Pod { Ok(series.pod.as_ptr().addr()) } else { Err(holder) };
                let key = (series.namespace.as_ptr().addr(), whose, series.is_relayed);
                if self.rooms.entry(key).or_default().take(holder, series.text_bytes()) {
                    self.bad.extend(Bad::of(&series, times));
                    self.raw.push(series);
                } else {
                    self.dropped.add(&series.namespace, &series.pod, 1);
                    self.shared.forget(series);
                }
            }
            Err(Unused::TooLong { namespace, pod }) => self.dropped.add(&namespace, &pod, 1),
            Err(Unused::Nobodys) => {}
        }
    }
}

/// How many series there are of what was asked for.
#[derive(Clone)]
struct Counts {
    counts: Arc<Vec<Count>>,
    signals: Vec<String>,
    until: Instant,
}

/// What one evaluation asks with.
struct Round {
    /// The names of each signal that is asked for, as alternatives of a regular expression.
    signals: Vec<String>,
    known: Arc<Known>,
    limits: RequestLimits,
    window: Duration,
    /// Values of the `namespace` label that were too much by themselves, and the window for them.
    heavy: BTreeSet<String>,
    least: Duration,
    /// There are namespaces in scope that were not too much.
    has_light: bool,
}

/// How the queries of one round ended.
type Answers = Vec<(Batch, Result<(Found, Warnings), QueryError>)>;

impl PrometheusSource {
    /// A source for these settings. Asks nothing yet.
    ///
    /// # Errors
    /// When the URL, a certificate file or a name can't be used: says which, and what to do.
    pub fn new(settings: &PrometheusSettings) -> Result<Self, SourceError> {
        Ok(Self {
            client: Arc::new(QueryClient::new(settings)?),
            max_series: settings.max_series,
            collectors: Arc::new(Collectors::new(&settings.trusted_collectors)),
            concurrency: settings.concurrency.max(1),
            deadline: settings.deadline,
            state: Mutex::new(State {
                window: Window::new(settings.window),
                split_until: None,
                uncounted_until: None,
                heavy: Heavy::default(),
                slowest: Duration::ZERO,
                counts: None,
                round_robin: RoundRobin::default(),
                counted: Counted::default(),
            }),
            log_once: LogOnce::default(),
            preflight: Preflight::default(),
        })
    }

    async fn read(&self, scope: &Scope) -> Result<Collected, SourceError> {
        if scope.namespaces.is_empty() {
            return Ok(Collected::default());
        }
        let heavy = self.state.lock().heavy.namespaces(Instant::now());
        let least = self.state.lock().window.least();
        let round = Round {
            has_light: scope.namespaces.iter().any(|name| !heavy.contains(name)),
            signals: signals::alternatives(scope.needs.as_ref().map(|needs| &needs.signals)),
            known: Arc::new(Known::new(scope, self.collectors.clone())),
            limits: self.client.limits(self.deadline).await?,
            window: self.window(scope),
            heavy,
            least,
        };
        self.state.lock().round_robin.start(|namespace| scope.namespaces.contains(namespace));
        let (counts, warnings) = match self.counts(&round, scope).await {
            Ok(counted) => counted,
            Err(error) if error.is_too_much() => {
                self.state.lock().uncounted_until = Some(Instant::now() + SPLIT_BACKOFF);
                self.split(error.into_source().message.as_str());
                (Arc::default(), Warnings::default())
            }
            Err(error) => return Err(error.into_source()),
        };
        let extent = self.extent(&round, scope);
        let answers = self.ask(&round, self.plan(&counts, &extent)).await;
        let answers = self.ask_again_in_parts(&round, answers, &counts, &extent).await;
        if answers.iter().any(|(_, answer)| is_too_much(answer) || answer.is_err()) {
            self.state.lock().counts = None;
        }
        self.note_heavy(&answers);
        let collected = self.put_together(answers, warnings.reasons, scope).await;
        if let Ok(collected) = &collected {
            self.state.lock().window.learn(&collected.series, Instant::now());
        }
        collected
    }

    /// How many series there are: the last count while it stands, else a new one.
    async fn counts(&self, round: &Round, scope: &Scope) -> Result<(Arc<Vec<Count>>, Warnings), QueryError> {
        if self.state.lock().uncounted_until.is_some_and(|until| Instant::now() < until) {
            return Ok((Arc::default(), Warnings::default()));
        }
        let standing = self.state.lock().counts.clone().filter(|standing| {
            let same = standing.signals == round.signals && Instant::now() < standing.until;
            same && plan::all_counted(&standing.counts, &scope.namespaces, &self.collectors)
        });
        if let Some(Counts { counts, .. }) = standing {
            return Ok((counts, Warnings::default()));
        }
        let (counts, warnings) = self.count(round, scope).await?;
        let counts = Arc::new(counts);
        let stands = warnings.reasons.is_empty().then(|| Counts {
            counts: counts.clone(),
            signals: round.signals.clone(),
            until: Instant::now() + MAX_COUNT_AGE,
        });
        self.state.lock().counts = stands;
        Ok((counts, warnings))
    }

    /// Every batch of several namespaces that was too much, again in its smallest parts; what the others gave is kept. One
    /// namespace of long labels or of slow series so costs only itself.
    async fn ask_again_in_parts(
        &self,
        round: &Round,
        answers: Answers,
        counts: &[Count],
        extent: &Extent<'_>,
    ) -> Answers {
        let (mut kept, mut again, mut why) = (Answers::new(), Vec::new(), None);
        for (batch, answer) in answers {
            match plan::alone(&batch, counts, extent).filter(|_| is_too_much(&answer)) {
                None => kept.push((batch, answer)),
                Some(parts) => {
                    again.extend(parts);
                    why = why.or(match answer {
                        Ok((_, warnings)) => {
                            warnings.reasons.into_iter().next().map(|reason| (reason, false))
                        }
                        Err(error) => {
                            let is_limit = matches!(error, QueryError::Limit(_));
                            Some((error.into_source().message, is_limit))
                        }
                    });
                }
            }
        }
        if again.is_empty() {
            return kept;
        }
        let parts = self.ask(round, again).await;
        // Where nothing answers, nothing is gained by asking more often.
        if let Some((why, is_limit)) = why
            && (is_limit || parts.iter().any(|(_, part)| part.is_ok()))
        {
            self.split(&why);
        }
        kept.extend(parts);
        kept
    }

    /// Remembers the namespaces that were too much by themselves.
    fn note_heavy(&self, answers: &Answers) {
        let heavy = &mut self.state.lock().heavy;
        for (batch, _) in answers.iter().filter(|(_, answer)| is_too_much(answer)) {
            if let Some(label) = batch.labels.first().filter(|_| batch.labels.len() == 1) {
                heavy.note(label, Instant::now());
            }
        }
    }

    fn extent<'a>(&'a self, round: &'a Round, scope: &'a Scope) -> Extent<'a> {
        Extent {
            scope: &scope.namespaces,
            signals: &round.signals,
            max_series: self.max_series,
            collectors: &self.collectors,
            heavy: &round.heavy,
        }
    }

    /// As long as the samples' distance wants it, and as long as decisions look back, with a scrape to spare.
    fn window(&self, scope: &Scope) -> Duration {
        let looked = scope.needs.as_ref().map_or(0.0, |needs| needs.window.get());
        let looked =
            if looked > 0.0 { Duration::from_secs_f64(looked) + SCRAPE_INTERVAL } else { Duration::ZERO };
        self.state.lock().window.length(looked)
    }

    fn plan(&self, counts: &[Count], extent: &Extent<'_>) -> Vec<Batch> {
        if self.is_split() { plan::by_namespace(counts, extent) } else { plan::batches(counts, extent) }
    }

    fn is_split(&self) -> bool {
        self.state.lock().split_until.is_some_and(|until| Instant::now() < until)
    }

    fn split(&self, why: &str) {
        tracing::warn!(error = why, "asking by namespace for the next minutes");
        self.state.lock().split_until = Some(Instant::now() + SPLIT_BACKOFF);
        self.state.lock().counts = None;
    }

    async fn count(&self, round: &Round, scope: &Scope) -> Result<(Vec<Count>, Warnings), QueryError> {
        let add = |counts: &mut Vec<Count>, element: Element<'_>| {
            let label = |name| element.labels.get(name).unwrap_or_default().to_owned();
            // Counts are small whole numbers; what isn't one counts as nothing.
            let series = element.points.first().map_or(0, |count| count.value as u64);
            let (namespace, exported_namespace) = (label("namespace"), label("exported_namespace"));
            counts.push(Count { namespace, exported_namespace, series });
        };
        let query = plan::count_query(&round.signals.join("|"), &scope.namespaces, &self.collectors);
        let span = info_span!("prometheus_count", source = self.client.name());
        let (counts, warnings) =
            self.client.query(&query, &round.limits.first_half(), Vec::new(), add).instrument(span).await?;
        Ok((counts, warnings))
    }

    async fn ask(&self, round: &Round, mut batches: Vec<Batch>) -> Answers {
        {
            let round_robin = &self.state.lock().round_robin;
            batches.sort_by_key(|batch| {
                batch.concerns.iter().flatten().map(|name| round_robin.place(name)).max().unwrap_or_default()
            });
        }
        let query = |batch: Batch| async move {
            let is_heavy = !batch.labels.is_disjoint(&round.heavy);
            let query = batch.query(if is_heavy { round.least } else { round.window });
            let limits = self.limits_for(round, &batch, is_heavy);
            let span = info_span!(
                "prometheus_query",
                source = self.client.name(),
                namespaces = batch.concerns.as_ref().map_or(0, BTreeSet::len)
            );
            let (found, started) = (Found::new(Arc::clone(&round.known)), Instant::now());
            let answer = self.client.query(&query, &limits, found, Found::add).instrument(span).await;
            let took = (answer.is_ok() && !is_heavy).then(|| started.elapsed());
            (took, (batch, answer))
        };
        let answers: Vec<_> =
            stream::iter(batches).map(query).buffer_unordered(self.concurrency).collect().await;
        let (took, answers): (Vec<Option<Duration>>, Answers) = answers.into_iter().unzip();
        if let Some(slowest) = took.into_iter().flatten().max() {
            self.state.lock().slowest = slowest;
        }
        self.note_answered(&answers);
        answers
    }

    /// How long an answer is waited for: one that can be asked for in parts leaves time for these, and one that was too much before
    /// does not hold all others up.
    fn limits_for(&self, round: &Round, batch: &Batch, is_heavy: bool) -> RequestLimits {
        if batch.labels.len() > 1 {
            return round.limits.first_half();
        }
        let longest = if is_heavy && round.has_light {
            HEAVY_TIMEOUT.max(self.state.lock().slowest * 2)
        } else {
            Duration::MAX
        };
        round.limits.within(longest)
    }

    /// A namespace of which any part was not answered counts as silent; of several that were asked for together nobody knows
    /// which one it is.
    fn note_answered(&self, answers: &Answers) {
        let judged = answers.iter().filter(|(batch, answer)| match answer {
            Ok(_) => true,
            Err(QueryError::Unasked(_)) => false,
            Err(_) => batch.labels.len() == 1,
        });
        let (answered, silent): (Vec<_>, Vec<_>) = judged.partition(|(_, answer)| answer.is_ok());
        let round_robin = &mut self.state.lock().round_robin;
        for (batch, answer) in answered.into_iter().chain(silent) {
            for namespace in batch.concerns.iter().flatten() {
                round_robin.note(namespace.clone(), answer.is_ok());
            }
        }
    }

    async fn put_together(
        &self,
        answers: Answers,
        warnings: Vec<String>,
        scope: &Scope,
    ) -> Result<Collected, SourceError> {
        let mut collected = Collected::default();
        let (mut raw, mut dropped) = (Vec::new(), Dropped::default());
        let mut reasons: Vec<(Option<BTreeSet<String>>, String)> =
            warnings.into_iter().map(|warning| (None, warning)).collect();
        let (mut answered, mut first_error) = (answers.is_empty(), None);
        for (batch, answer) in answers {
            match answer {
                Ok((mut found, partial)) => {
                    answered = true;
                    // Parts that are missing in an answer would look like a counter that fell.
                    let is_cut = !partial.reasons.is_empty();
                    found.raw.iter_mut().for_each(|series| series.part.is_cut = is_cut);
                    raw.extend(found.raw);
                    dropped.extend(found.dropped);
                    collected.bad_samples += self.state.lock().counted.count(found.bad);
                    reasons
                        .extend(partial.reasons.into_iter().map(|reason| (batch.concerns.clone(), reason)));
                }
                Err(error) => {
                    let error = error.into_source();
                    reasons.push((batch.concerns, error.message.clone()));
                    first_error.get_or_insert(error);
                }
            }
        }
        if let Some(error) = first_error.filter(|_| !answered) {
            return Err(error);
        }
        let merged = tokio::task::spawn_blocking(move || merge::merge(raw)).await;
        let merged =
            merged.map_err(|error| self.client.failed("decode", &error.to_string(), "report this"))?;
        collected.gaps = gaps(reasons, scope);
        dropped.extend(merged.hand_over(&mut collected));
        self.log_once.log(&dropped);
        collected.dropped_series = dropped.count();
        collected.gaps.extend(dropped.gaps());
        Ok(collected)
    }
}

/// Whether asking for less may help: the answer was refused, cut or late.
fn is_too_much<T>(answer: &Result<(T, Warnings), QueryError>) -> bool {
    match answer {
        Ok((_, warnings)) => warnings.cut,
        Err(error) => error.is_too_much(),
    }
}

/// One gap a namespace and reason; what concerns all is said once.
fn gaps(reasons: Vec<(Option<BTreeSet<String>>, String)>, scope: &Scope) -> Vec<Gap> {
    let mut gaps: Vec<Gap> = Vec::new();
    for (concerns, reason) in reasons {
        match concerns.filter(|names| *names != scope.namespaces) {
            None => gaps.push(Gap { namespace: None, reason }),
            Some(names) => {
                gaps.extend(
                    names.into_iter().map(|name| Gap { namespace: Some(name), reason: reason.clone() }),
                );
            }
        }
    }
    gaps.sort_by(|a, b| (&a.namespace, &a.reason).cmp(&(&b.namespace, &b.reason)));
    gaps.dedup();
    gaps
}

impl MetricSource for PrometheusSource {
    fn collect<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Collected, SourceError>> {
        let read = async move {
            let collected = self.read(scope).await;
            self.preflight.after(collected.is_ok(), &self.client);
            collected
        };
        read.boxed()
    }
}
