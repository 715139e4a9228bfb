//! What the program sees of simulated pods: scraped samples with their true times, in windows, as a snapshot.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use smol_str::SmolStr;

use super::bed::Bed;
use super::faults::Faults;
use super::pod::Pod;
use crate::controller::{MODEL, NAMESPACE};
use crate::rng::Rng;
use crate::scenario::{Scenario, SimVariant};
use crate::server::Readings;
use wva_core::model::{GroupId, Policy, Role, TargetRef, Variant, VariantId};
use wva_core::name_map::NameMap;
use wva_core::required_signals::required_signals;
use wva_core::snapshot::Engine;
use wva_core::snapshot::EngineParameters;
use wva_core::snapshot::{
    ModelGroup, Replica, Scale, Signal, Signals, Snapshot, SourceHealth, Template, VariantState,
};
use wva_core::units::Replicas;

/// When simulated time begins: some moment, so that clocks can be written down.
const START: Timestamp = Timestamp::constant(1_800_000_000, 0);
/// How far back samples are kept at least, as the program does.
const LEAST_WINDOW_S: f64 = 120.0;
/// Samples kept of one series, as the program does.
const MOST_SAMPLES: usize = 120;
/// Of a prompt's text.
const BYTES_PER_TOKEN: f64 = 4.0;
/// What a run's chance is used for.
const LOSSES: u64 = 2;

/// What can be scraped of a pod, in the order of the signals.
const OF_A_POD: [Signal; 18] = [
    Signal::KvUsage,
    Signal::Waiting,
    Signal::Running,
    Signal::KvCapacity,
    Signal::PromptTokens,
    Signal::GenerationTokens,
    Signal::InterTokenLatencySum,
    Signal::InterTokenLatencyCount,
    Signal::TimeToFirstTokenSum,
    Signal::TimeToFirstTokenCount,
    Signal::RequestPromptTokensSum,
    Signal::RequestPromptTokensCount,
    Signal::RequestGenerationTokensSum,
    Signal::RequestGenerationTokensCount,
    Signal::PrefixCacheHits,
    Signal::PrefixCacheQueries,
    Signal::EngineSteps,
    Signal::SchedulerAttempts,
];

/// What can be scraped of the scheduler.
const OF_THE_SCHEDULER: [Signal; 3] =
    [Signal::SchedulerQueueSize, Signal::SchedulerQueueBytes, Signal::SchedulerAttempts];

/// What the scheduler tells: requests held, their bytes, and requests given out.
fn scheduler(bed: &Bed<'_>) -> [f64; 3] {
    let held = bed.held();
    [held.requests, held.tokens * BYTES_PER_TOKEN, held.dispatched]
}

/// The moment `seconds` after the start.
pub(super) fn moment(seconds: f64) -> Timestamp {
    let since = SignedDuration::try_from_secs_f64(seconds).unwrap_or_default();
    START.checked_add(since).unwrap_or(START)
}

/// The values of [`OF_A_POD`].
fn values(readings: &Readings, dispatched: f64) -> [f64; OF_A_POD.len()] {
    [
        readings.kv_usage,
        readings.waiting,
        readings.running,
        readings.kv_tokens as f64,
        readings.prompt_tokens,
        readings.generation_tokens,
        readings.inter_token.sum(),
        readings.inter_token.count(),
        readings.first_token.sum(),
        readings.first_token.count(),
        readings.request_prompt.sum(),
        readings.request_prompt.count(),
        readings.request_generation.sum(),
        readings.request_generation.count(),
        readings.prefix_hits,
        readings.prefix_queries,
        readings.steps,
        dispatched,
    ]
}

/// What was scraped of one pod.
#[derive(Debug)]
struct Look {
    variant: usize,
    serial: u64,
    values: [f64; OF_A_POD.len()],
}

/// What was scraped at one moment, until it can be used.
#[derive(Debug)]
struct Round {
    at_s: f64,
    usable_s: f64,
    pods: Vec<Look>,
    /// The scheduler's queue: requests, bytes, and requests given out.
    scheduler: Option<[f64; 3]>,
}

/// A sense of the pods.
#[derive(Debug)]
pub(super) struct Eyes {
    pub(super) snapshot: Snapshot,
    group: GroupId,
    /// By variant and replica of the snapshot: which pod it is.
    serials: Vec<Vec<u64>>,
    /// Places in [`OF_A_POD`] of what is looked at.
    looked_at: Vec<usize>,
    window_s: f64,
    late: VecDeque<Round>,
    loss: f64,
    rng: Rng,
    faults: Faults,
}

impl Eyes {
    /// Eyes for what decisions under `policy` look at, through a source that needs `slack` more window.
    pub(super) fn new(scenario: &Scenario, policy: &Policy, seed: u64, slack: Duration) -> Self {
        let variants: Vec<VariantState> = scenario.variants.iter().map(state).collect();
        let needs = required_signals(policy, variants.iter().map(|one| &one.variant));
        let group = GroupId::new(NAMESPACE, MODEL);
        let model = ModelGroup { source: SourceHealth::Complete, variants, scheduler: Signals::default() };
        let looked_at = (0..OF_A_POD.len()).filter(|place| needs.signals.contains(&OF_A_POD[*place]));
        let asked_s = needs.window.get();
        let window_s = if asked_s > 0.0 { asked_s + slack.as_secs_f64() } else { 0.0 };
        Self {
            snapshot: Snapshot {
                now: START,
                groups: BTreeMap::from([(group.clone(), model)]),
                invalid: Vec::new(),
                inventory: None,
                elsewhere: [].into(),
                unlabelled: None,
            },
            group,
            serials: vec![Vec::new(); scenario.variants.len()],
            looked_at: looked_at.collect(),
            window_s: window_s.max(LEAST_WINDOW_S),
            late: VecDeque::new(),
            loss: scenario.scrape.loss.get(),
            rng: Rng::stream(seed, LOSSES),
            faults: Faults::new(&scenario.faults),
        }
    }

    /// When the oldest of what was scraped can be used.
    pub(super) fn usable_s(&self) -> f64 {
        self.late.front().map_or(f64::INFINITY, |round| round.usable_s)
    }

    /// Scrapes all pods and the scheduler; what is seen can be used `delay_s` later.
    pub(super) fn scrape(&mut self, bed: &mut Bed<'_>, now_s: f64, delay_s: f64) {
        let pods = (0..bed.pods().len()).filter_map(|place| self.look(bed, place, now_s)).collect();
        let scheduler = Some(self.look_at_scheduler(bed, now_s));
        self.late.push_back(Round { at_s: now_s, usable_s: now_s + delay_s, pods, scheduler });
    }

    /// Scrapes each pod whose time has come, as Prometheus does, and the scheduler if `with_scheduler`.
    pub(super) fn scrape_due(&mut self, bed: &mut Bed<'_>, now_s: f64, every_s: f64, with_scheduler: bool) {
        let mut pods = Vec::new();
        for place in 0..bed.pods().len() {
            if bed.pods()[place].scrape_s <= now_s {
                pods.extend(self.look(bed, place, now_s));
                bed.pods_mut()[place].scrape_s += every_s;
            }
        }
        if with_scheduler || !pods.is_empty() {
            let scheduler = with_scheduler.then(|| self.look_at_scheduler(bed, now_s));
            self.late.push_back(Round { at_s: now_s, usable_s: now_s, pods, scheduler });
        }
    }

    /// One look at a pod, unless it is lost.
    fn look(&mut self, bed: &mut Bed<'_>, place: usize, now_s: f64) -> Option<Look> {
        if self.loss > 0.0 && self.rng.unit() < self.loss {
            return None;
        }
        let (mut look, created_s) = bed.look(place, now_s, |pod, readings| {
            let values = values(readings, pod.dispatched);
            (Look { variant: pod.variant, serial: pod.serial, values }, pod.created_s)
        })?;
        self.faults.of_pod((look.serial, created_s), now_s, &OF_A_POD, &mut look.values);
        Some(look)
    }

    fn look_at_scheduler(&mut self, bed: &Bed<'_>, now_s: f64) -> [f64; OF_THE_SCHEDULER.len()] {
        let mut values = scheduler(bed);
        self.faults.of_scheduler(now_s, &OF_THE_SCHEDULER, &mut values);
        values
    }

    /// Takes in what can be used by now. False when there is nothing.
    pub(super) fn take_in(&mut self, now_s: f64) -> bool {
        let mut any = false;
        while self.late.front().is_some_and(|round| round.usable_s <= now_s) {
            let Some(round) = self.late.pop_front() else { break };
            self.learn(&round);
            any = true;
        }
        any
    }

    fn learn(&mut self, round: &Round) {
        let (at, oldest) = (moment(round.at_s), moment(round.at_s - self.window_s));
        let Some(group) = self.snapshot.groups.get_mut(&self.group) else { return };
        for look in &round.pods {
            let places = self.serials.get(look.variant).map(|serials| serials.binary_search(&look.serial));
            let Some(Ok(place)) = places else { continue };
            let replicas = group.variants.get_mut(look.variant).map(|state| &mut state.replicas);
            let Some(replica) = replicas.and_then(|replicas| replicas.get_mut(place)) else { continue };
            let row = self.looked_at.iter().map(|place| (OF_A_POD[*place], look.values[*place]));
            // Of a pod that shows nothing no engine is known.
            if replica.engines.get("8000").is_none() && row.clone().all(|(_, value)| value.is_nan()) {
                continue;
            }
            let engine = replica.engines.or_default("8000");
            engine.slide(at, oldest, MOST_SAMPLES, row);
        }
        if let Some(values) = round.scheduler {
            group.scheduler.slide(at, oldest, MOST_SAMPLES, OF_THE_SCHEDULER.into_iter().zip(values));
        }
    }

    /// Brings the pods and counts of the snapshot up to date: the API server tells of these at once.
    pub(super) fn look_around(&mut self, bed: &Bed<'_>, now_s: f64) {
        self.snapshot.now = moment(now_s);
        let Some(group) = self.snapshot.groups.get_mut(&self.group) else { return };
        for (place, (state, serials)) in group.variants.iter_mut().zip(&mut self.serials).enumerate() {
            let counts = bed.counts(place);
            let current = if counts.status == Replicas::ZERO { counts.spec } else { counts.status };
            state.variant.bounds = bed.scenario().variants[place].bounds_at(now_s);
            state.scale = Some(Scale { spec: counts.spec, current, ready: counts.ready });
            let pods = bed.pods().iter().filter(|pod| pod.variant == place);
            update(&mut state.replicas, serials, pods);
        }
    }
}

/// Makes `replicas` be `pods`, which are in the order of their serials, as they were: what was seen of them stays.
fn update<'p>(
    replicas: &mut Vec<Replica>,
    serials: &mut Vec<u64>,
    pods: impl Iterator<Item = &'p Pod> + Clone,
) {
    let mut left = pods.clone().peekable();
    let mut kept = serials.iter().map(|serial| {
        while left.next_if(|pod| pod.serial < *serial).is_some() {}
        left.next_if(|pod| pod.serial == *serial).is_some()
    });
    replicas.retain(|_| kept.next().unwrap_or(false));
    serials.clear();
    for (place, pod) in pods.enumerate() {
        serials.push(pod.serial);
        let ready_since = pod.ready_since_s().map(moment);
        match replicas.get_mut(place) {
            Some(known) => (known.phase, known.ready_since) = (pod.phase(), ready_since),
            None => replicas.push(Replica {
                pod: pod.name.clone(),
                phase: pod.phase(),
                created: moment(pod.created_s),
                ready_since,
                engines: NameMap::default(),
            }),
        }
    }
}

fn state(variant: &SimVariant) -> VariantState {
    let physics = variant.physics;
    let batch = i64::from(physics.token_budget);
    let engine = EngineParameters {
        block_size: i64::from(physics.block_size),
        tensor_parallel_size: i64::from(variant.gpus),
        max_batched_tokens: batch,
        batched_tokens: batch,
        max_sequences: i64::from(physics.max_sequences),
        has_max_sequences: true,
        ..EngineParameters::defaults(Engine::Vllm)
    };
    VariantState {
        variant: Variant {
            id: VariantId::new(NAMESPACE, variant.name.clone()),
            model: SmolStr::new_static(MODEL),
            target: TargetRef { kind: SmolStr::new_static("Deployment"), name: variant.name.clone() },
            cost: variant.cost,
            bounds: variant.bounds,
            accelerator: Some(variant.accelerator.clone()),
            role: Role::Both,
        },
        scale: None,
        replicas: Vec::new(),
        last_status: None,
        template: Template { gpus: variant.gpus, engine: Some(engine) },
    }
}
