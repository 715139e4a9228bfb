//! Wakes sleeping models: while all variants of a model are at zero, the leader reads the queues of its schedulers every 100 ms,
//! and has the model decided about as soon as a request waits.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use smol_str::SmolStr;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use wva_core::model::{Variant, VariantId};
use wva_core::units::Replicas;
use wva_core::{Decision, GroupId};

use super::board::Published;
use super::evaluate::Engine;
use super::leadership::Term;
use super::model_names::LearnedModels;
use super::ports::{ClusterView, Endpoint, QueueAnswer, QueueSource, Scheduler};
use super::schedulers::schedulers_of;
use super::term_state::{Woken, number};
use crate::telemetry::WakeMetrics;

/// How often the queue of a scheduler is read.
const READ_INTERVAL: Duration = Duration::from_millis(100);
/// Most reads that start in that time: 500 a second. With more than 50 schedulers of sleeping models, each is read less often.
const MAX_READS_OF_INTERVAL: usize = 50;
/// Most reads at a time. Those of schedulers that do not answer take a second each, and become rare.
const MAX_CONCURRENT_READS: usize = 200;
/// The wait after a read that failed, twice as long after each further one, up to the longest.
const MIN_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// A scheduler that is read this rarely has failed four times in a row: the log says so.
const LOGGED_BACKOFF: Duration = Duration::from_millis(1600);
/// The wait after a model was not woken, because of a limit, say: the usual time between evaluations, which decide about it too.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// A model that was woken, for those who act on it.
#[derive(Debug, Clone)]
pub struct WakeUp {
    /// The term in which it was decided: in another one, somebody else decides.
    pub term: Term,
    /// When the waiting request was seen.
    pub seen: Instant,
    /// The variants that were at zero, each with its published number.
    pub variants: Vec<(Variant, Replicas)>,
}

/// Reads the queues of sleeping models with `queues` and wakes those for which requests wait, until `stop`. What is woken is also sent
/// to `woken`, once it is published.
pub async fn watch_queues(
    engine: Arc<Engine>,
    queues: Arc<dyn QueueSource>,
    woken: Option<mpsc::Sender<WakeUp>>,
    metrics: WakeMetrics,
    stop: CancellationToken,
) {
    let watch = QueueWatch {
        engine,
        queues,
        woken,
        metrics,
        computed_from: None,
        readers: HashMap::new(),
        retry_at: HashMap::new(),
        waking: HashSet::new(),
    };
    stop.run_until_cancelled(watch.run()).await;
}

/// The end of a read.
type ReadEnd = (Endpoint, QueueAnswer);
/// The end of a try to wake a model for a request that was seen then.
type WakeEnd = (GroupId, Instant, Option<Woken>);

struct QueueWatch {
    engine: Arc<Engine>,
    queues: Arc<dyn QueueSource>,
    woken: Option<mpsc::Sender<WakeUp>>,
    metrics: WakeMetrics,
    /// What the readers were computed from.
    computed_from: Option<(Arc<ClusterView>, Arc<Published>, Arc<LearnedModels>)>,
    /// The schedulers of models that sleep.
    readers: HashMap<Endpoint, QueueReader>,
    /// Models that were not woken although requests wait.
    retry_at: HashMap<GroupId, Instant>,
    waking: HashSet<GroupId>,
}

/// The reads of one scheduler: never two at once, so that one connection is enough.
struct QueueReader {
    /// With the models that sleep.
    scheduler: Scheduler,
    due: Instant,
    is_reading: bool,
    /// Zero unless the last read failed.
    backoff: Duration,
}

impl QueueWatch {
    async fn run(mut self) {
        let mut ticks = interval(READ_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reads: FuturesUnordered<BoxFuture<'static, ReadEnd>> = FuturesUnordered::new();
        let mut wakes: FuturesUnordered<BoxFuture<'static, WakeEnd>> = FuturesUnordered::new();
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    self.refresh();
                    let room = MAX_CONCURRENT_READS.saturating_sub(reads.len()).min(MAX_READS_OF_INTERVAL);
                    reads.extend(self.start_reads(room));
                }
                Some((endpoint, answer)) = reads.next() => wakes.extend(self.end_read(&endpoint, answer)),
                Some(end) = wakes.next() => self.end_wake(end),
            }
        }
    }

    /// Follows which models sleep.
    fn refresh(&mut self) {
        if !self.engine.can_evaluate() {
            self.readers.clear();
            self.computed_from = None;
            return;
        }
        let parts = self.engine.parts();
        let (view, published) = (parts.cluster.view(), parts.board.newest());
        let models = self.engine.models().in_force();
        if let Some((old_view, old_published, old_models)) = &self.computed_from
            && Arc::ptr_eq(old_view, &view)
            && Arc::ptr_eq(old_published, &published)
            && Arc::ptr_eq(old_models, &models)
        {
            return;
        }
        let sleeping = sleeping_schedulers(&view, &published, &models);
        let mut before = std::mem::take(&mut self.readers);
        let now = Instant::now();
        for scheduler in sleeping {
            let known = before.remove(&scheduler.endpoint);
            let fresh = || QueueReader {
                scheduler: scheduler.clone(),
                due: now,
                is_reading: false,
                backoff: Duration::ZERO,
            };
            let reader =
                known.map_or_else(fresh, |known| QueueReader { scheduler: scheduler.clone(), ..known });
            self.readers.insert(scheduler.endpoint.clone(), reader);
        }
        self.retry_at.retain(|_, at| *at > now);
        self.computed_from = Some((view, published, models));
    }

    /// Starts at most `room` reads that are due, those that are due for longest first.
    fn start_reads(&mut self, room: usize) -> Vec<BoxFuture<'static, ReadEnd>> {
        let now = Instant::now();
        let mut due: Vec<&mut QueueReader> =
            self.readers.values_mut().filter(|reader| !reader.is_reading && reader.due <= now).collect();
        due.sort_by_key(|reader| reader.due);
        let start = |reader: &mut QueueReader| {
            reader.is_reading = true;
            reader.due = now + READ_INTERVAL;
            let (queues, scheduler) = (self.queues.clone(), reader.scheduler.clone());
            async move {
                let answer = queues.read(&scheduler).await;
                (scheduler.endpoint, answer)
            }
            .boxed()
        };
        due.into_iter().take(room).map(start).collect()
    }

    /// Takes in the answer of a scheduler, and starts to wake the models for which requests wait.
    fn end_read(&mut self, endpoint: &Endpoint, answer: QueueAnswer) -> Vec<BoxFuture<'static, WakeEnd>> {
        let seen = Instant::now();
        // All of its models have been woken meanwhile, or its pool is gone.
        let Some(reader) = self.readers.get_mut(endpoint) else { return Vec::new() };
        reader.is_reading = false;
        let (namespace, pod) = (endpoint.namespace.as_str(), endpoint.pod.as_str());
        let queues = match answer {
            Ok(queues) => {
                if std::mem::take(&mut reader.backoff) >= LOGGED_BACKOFF {
                    info!(namespace, pod, "the queue of a scheduler can be read again");
                }
                queues
            }
            Err(error) => {
                reader.backoff = (reader.backoff * 2).clamp(MIN_BACKOFF, MAX_BACKOFF);
                reader.due = seen + reader.backoff;
                self.metrics.read_failed(error.kind);
                if reader.backoff == LOGGED_BACKOFF {
                    let error = error.message.as_str();
                    warn!(
                        namespace,
                        pod, error, "cannot read the queue of a scheduler whose model sleeps; retrying"
                    );
                }
                return Vec::new();
            }
        };
        let waiting = queues
            .into_iter()
            .filter(|(model, requests)| *requests > 0.0 && reader.scheduler.models.contains(model));
        let waiting: Vec<(SmolStr, f64)> = waiting.collect();
        waiting
            .into_iter()
            .filter_map(|(model, requests)| self.start_wake(model, endpoint, requests, seen))
            .collect()
    }

    fn start_wake(
        &mut self,
        model: SmolStr,
        endpoint: &Endpoint,
        requests: f64,
        seen: Instant,
    ) -> Option<BoxFuture<'static, WakeEnd>> {
        let group = GroupId::new(endpoint.namespace.as_str(), model);
        let is_early = self.retry_at.get(&group).is_some_and(|at| *at > seen);
        if is_early || !self.waking.insert(group.clone()) {
            return None;
        }
        let (engine, endpoint) = (self.engine.clone(), endpoint.clone());
        Some(
            async move {
                let woken = engine.wake(&group, &endpoint, requests).await;
                (group, seen, woken)
            }
            .boxed(),
        )
    }

    fn end_wake(&mut self, (group, seen, woken): WakeEnd) {
        self.waking.remove(&group);
        let Some(Woken { term, variants }) = woken else {
            self.retry_at.insert(group, Instant::now() + RETRY_INTERVAL);
            return;
        };
        self.metrics.published(seen.elapsed());
        info!(
            model = group.to_string().as_str(),
            variants = variants.len(),
            "woken: a request waits at the scheduler"
        );
        if let Some(sender) = &self.woken
            && sender.try_send(WakeUp { term, seen, variants }).is_err()
        {
            warn!(
                model = group.to_string().as_str(),
                "too many models wake at once: this one is left to its autoscalers"
            );
        }
    }
}

/// The schedulers of the models whose variants are all at zero and have no number above that, with these models.
fn sleeping_schedulers(view: &ClusterView, published: &Published, models: &LearnedModels) -> Vec<Scheduler> {
    if view.pools.is_empty() {
        return Vec::new();
    }
    let model = |variant: &Variant| {
        let learned = || models.get(&variant.id).map(|learned| learned.name.clone());
        if variant.names_model() { Some(variant.model.clone()) } else { learned() }
    };
    let has_number = |decision: &Decision| number(decision).is_some_and(|number| number > Replicas::ZERO);
    let (mut asleep, mut awake) = (BTreeSet::new(), BTreeSet::new());
    for state in &view.variants {
        let Some(name) = model(&state.variant) else { continue };
        let group = (state.variant.id.namespace.clone(), name);
        if state.scale.is_some_and(|scale| scale.spec > Replicas::ZERO)
            || published.decisions.get(&state.variant.id).is_some_and(has_number)
        {
            awake.insert(group);
        } else if state.scale.is_some() {
            asleep.insert(group);
        }
    }
    let sleeping = |id: &VariantId| {
        let name = model(&view.variant(id)?.variant)?;
        let group = (id.namespace.clone(), name);
        (asleep.contains(&group) && !awake.contains(&group)).then_some(group.1)
    };
    schedulers_of(view, sleeping)
}

#[cfg(test)]
mod tests;
