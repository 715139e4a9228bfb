//! Wakes sleeping models: while all variants of a model are at zero, the leader reads the queues of its schedulers every 100 ms,
//! and has the model decided about as soon as a request waits.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, OptionFuture};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use wva_core::model::{Variant, VariantId};
use wva_core::units::Replicas;
use wva_core::{Decision, GroupId};

use super::board::Published;
use super::evaluate::Engine;
use super::model_names::LearnedModels;
use super::ports::{ClusterView, Endpoint, QueueAnswer, QueueSource, Scheduler};
use super::schedulers::schedulers_of;
use super::term_state::{WaitingRequests, WakeOutcome, number};
use crate::telemetry::WakeMetrics;

/// How often the queue of a scheduler is read.
const READ_INTERVAL: Duration = Duration::from_millis(100);
/// Most reads that start in that time: 500 a second. With more than 50 schedulers of sleeping models, each is read less often.
const MAX_READS_OF_INTERVAL: usize = 50;
/// Most reads at a time, and most of one namespace. Those of schedulers that do not answer take a second each, and become rare.
const MAX_CONCURRENT_READS: usize = 100;
const MAX_CONCURRENT_READS_OF_NAMESPACE: usize = 20;
/// How often it is looked which models sleep: a walk over all variants.
const REFRESH_INTERVAL: Duration = Duration::from_millis(500);
/// Most models that are decided about together. Further ones follow at once.
const MAX_WOKEN_TOGETHER: usize = 256;
/// The wait after a read that failed, twice as long after each further one, up to the longest.
const MIN_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// A scheduler that is read this rarely has failed four times in a row: the log says so.
const LOGGED_BACKOFF: Duration = Duration::from_millis(1600);
/// The wait after a model was not woken, because of a limit, say: the usual time between evaluations, which decide about it too.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Reads the queues of sleeping models with `queues` and wakes those for which requests wait, until `stop`.
pub async fn watch_queues(
    engine: Arc<Engine>,
    queues: Arc<dyn QueueSource>,
    metrics: WakeMetrics,
    stop: CancellationToken,
) {
    let watch = QueueWatch {
        engine,
        queues,
        metrics,
        computed_from: None,
        refresh_at: Instant::now(),
        readers: HashMap::new(),
        retry_at: HashMap::new(),
        waiting: BTreeMap::new(),
    };
    stop.run_until_cancelled(watch.run()).await;
}

/// The end of a read.
type ReadEnd = (Endpoint, QueueAnswer);
/// The end of a try to wake models, each with the time at which its request was seen.
type WakeEnd = (BTreeMap<GroupId, Instant>, WakeOutcome);

struct QueueWatch {
    engine: Arc<Engine>,
    queues: Arc<dyn QueueSource>,
    metrics: WakeMetrics,
    /// What the readers were computed from.
    computed_from: Option<(Arc<ClusterView>, Arc<Published>, Arc<LearnedModels>)>,
    /// When they are computed again, if that has changed.
    refresh_at: Instant,
    /// The schedulers of models that sleep.
    readers: HashMap<Endpoint, QueueReader>,
    /// Models that were not woken although requests wait.
    retry_at: HashMap<GroupId, Instant>,
    /// What the next decision is about.
    waiting: BTreeMap<GroupId, WaitingRequests>,
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
        // One decision at a time: each has to count what the one before granted, and a large fleet takes memory.
        let mut waking: OptionFuture<BoxFuture<'static, WakeEnd>> = None.into();
        let mut is_waking = false;
        loop {
            if !is_waking && let Some(wake) = self.start_wake() {
                waking = Some(wake).into();
                is_waking = true;
            }
            tokio::select! {
                _ = ticks.tick() => {
                    self.refresh();
                    let room = MAX_CONCURRENT_READS.saturating_sub(reads.len()).min(MAX_READS_OF_INTERVAL);
                    reads.extend(self.start_reads(room));
                }
                Some((endpoint, answer)) = reads.next() => self.end_read(&endpoint, answer),
                Some(end) = &mut waking, if is_waking => {
                    is_waking = false;
                    self.end_wake(end);
                }
            }
        }
    }

    /// Follows which models sleep.
    fn refresh(&mut self) {
        if !self.engine.can_evaluate() {
            self.readers.clear();
            self.waiting.clear();
            self.computed_from = None;
            return;
        }
        let now = Instant::now();
        if self.computed_from.is_some() && now < self.refresh_at {
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
        self.refresh_at = now + REFRESH_INTERVAL;
    }

    /// Starts at most `room` reads that are due, those that are due for longest first.
    fn start_reads(&mut self, room: usize) -> Vec<BoxFuture<'static, ReadEnd>> {
        let now = Instant::now();
        let mut running: HashMap<String, usize> = HashMap::new();
        for reader in self.readers.values().filter(|reader| reader.is_reading) {
            *running.entry(reader.scheduler.endpoint.namespace.clone()).or_default() += 1;
        }
        let mut due: Vec<&mut QueueReader> =
            self.readers.values_mut().filter(|reader| !reader.is_reading && reader.due <= now).collect();
        due.sort_by_key(|reader| reader.due);
        // Schedulers of one tenant that do not answer delay only its own.
        due.retain(|reader| {
            let running = running.entry(reader.scheduler.endpoint.namespace.clone()).or_default();
            *running += 1;
            *running <= MAX_CONCURRENT_READS_OF_NAMESPACE
        });
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

    /// Takes in the answer of a scheduler: the models for which requests wait.
    fn end_read(&mut self, endpoint: &Endpoint, answer: QueueAnswer) {
        let seen = Instant::now();
        // All of its models have been woken meanwhile, or its pool is gone.
        let Some(reader) = self.readers.get_mut(endpoint) else { return };
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
                return;
            }
        };
        for (model, requests) in queues {
            if requests > 0.0 && reader.scheduler.models.contains(&model) {
                let group = GroupId::new(namespace, model);
                let is_early = self.retry_at.get(&group).is_some_and(|at| *at > seen);
                let waiting = || WaitingRequests { scheduler: endpoint.clone(), requests, seen };
                if !is_early {
                    self.waiting.entry(group).or_insert_with(waiting);
                }
            }
        }
    }

    /// Starts to decide about the models that are waited for, if there are any.
    fn start_wake(&mut self) -> Option<BoxFuture<'static, WakeEnd>> {
        let mut waiting = std::mem::take(&mut self.waiting);
        if let Some(id) = waiting.keys().nth(MAX_WOKEN_TOGETHER).cloned() {
            self.waiting = waiting.split_off(&id);
        }
        let seen: BTreeMap<GroupId, Instant> =
            waiting.iter().map(|(id, waiting)| (id.clone(), waiting.seen)).collect();
        let engine = self.engine.clone();
        (!waiting.is_empty()).then(|| async move { (seen, engine.wake(waiting).await) }.boxed())
    }

    fn end_wake(&mut self, (seen, outcome): WakeEnd) {
        let woken = match outcome {
            // They are seen again in a moment.
            WakeOutcome::Superseded => return,
            WakeOutcome::Decided(woken) => woken,
        };
        for (id, seen) in seen {
            // A read that began before the decision says nothing new.
            self.waiting.remove(&id);
            if !woken.contains(&id) {
                self.retry_at.insert(id, Instant::now() + RETRY_INTERVAL);
                continue;
            }
            self.metrics.published(seen.elapsed());
            info!(model = id.to_string().as_str(), "woken: a request waits at the scheduler");
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
        let group = GroupId::new(state.variant.id.namespace.clone(), name);
        if state.scale.is_some_and(|scale| scale.spec > Replicas::ZERO)
            || published.decisions.get(&state.variant.id).is_some_and(has_number)
        {
            awake.insert(group);
        } else if state.scale.is_some() {
            asleep.insert(group);
        }
    }
    let name = |id: &VariantId| model(&view.variant(id)?.variant);
    schedulers_of(view, name, |group| asleep.contains(group) && !awake.contains(group))
}

#[cfg(test)]
mod tests;
