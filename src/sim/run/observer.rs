//! Scrapes simulated pods as the program does: samples with their true times, in windows, as a snapshot.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use smol_str::SmolStr;
use wva_core::model::{GroupId, Policy, Role, TargetRef, Variant, VariantId};
use wva_core::required_signals::required_signals;
use wva_core::snapshot::{
    Engine, EngineParameters, ModelGroup, Scale, Signal, Signals, Snapshot, SourceHealth, Template,
    VariantState,
};
use wva_core::units::Replicas;

use super::faults::{ActiveFaults, ScrapedPod};
use super::recorder::RunRecorder;
use crate::cluster::{Pod, SimCluster};
use crate::controller::{MODEL, NAMESPACE};
use crate::program::PROGRAM_DEFAULTS;
use crate::rng::Rng;
use crate::scenario::{Scenario, SimVariant};
use crate::server::Readings;

/// The wall-clock time of the start of every simulation.
const START: Timestamp = Timestamp::constant(1_800_000_000, 0);
/// Mean bytes of a prompt's text per token.
const BYTES_PER_TOKEN: f64 = 4.0;
/// Random stream of lost scrapes.
const LOSS_STREAM: u64 = 2;

/// The wall-clock time `seconds` after the start.
pub(super) fn timestamp(seconds: f64) -> Timestamp {
    let since = SignedDuration::try_from_secs_f64(seconds).unwrap_or_default();
    START.checked_add(since).unwrap_or(START)
}

/// What a scrape of a pod shows, under `dispatched` requests.
fn pod_values(readings: &Readings, dispatched: f64) -> [(Signal, f64); 19] {
    let Readings { inter_token, first_token, request_prompt, request_generation, .. } = readings;
    [
        (Signal::KvUsage, readings.kv_usage),
        (Signal::Waiting, readings.waiting),
        (Signal::Running, readings.running),
        (Signal::KvCapacity, readings.kv_tokens as f64),
        (Signal::PromptTokens, readings.prompt_tokens),
        (Signal::GenerationTokens, readings.generation_tokens),
        (Signal::InterTokenLatencySum, inter_token.sum()),
        (Signal::InterTokenLatencyCount, inter_token.count()),
        (Signal::TimeToFirstTokenSum, first_token.sum()),
        (Signal::TimeToFirstTokenCount, first_token.count()),
        (Signal::RequestPromptTokensSum, request_prompt.sum()),
        (Signal::RequestPromptTokensCount, request_prompt.count()),
        (Signal::RequestGenerationTokensSum, request_generation.sum()),
        (Signal::RequestGenerationTokensCount, request_generation.count()),
        (Signal::PrefixCacheHits, readings.prefix_hits),
        (Signal::PrefixCacheQueries, readings.prefix_queries),
        (Signal::EngineSteps, readings.steps),
        (Signal::RefusedRequests, readings.refused),
        (Signal::SchedulerAttempts, dispatched),
    ]
}

/// A scrape of one pod.
#[derive(Debug)]
struct PodScrape {
    variant: usize,
    serial: u64,
    values: [(Signal, f64); 19],
}

/// What was scraped at the same time.
#[derive(Debug)]
struct ScrapeRound {
    at_s: f64,
    usable_s: f64,
    pods: Vec<PodScrape>,
    scheduler: Option<[(Signal, f64); 3]>,
}

/// The program's view of the simulated cluster.
#[derive(Debug)]
pub(super) struct Observer {
    pub(super) snapshot: Snapshot,
    group: GroupId,
    /// The serials of the pods, by variant and replica of the snapshot.
    serials: Vec<Vec<u64>>,
    /// The signals that the policy needs.
    needed: BTreeSet<Signal>,
    window_s: f64,
    /// Rounds that cannot be used yet, oldest first.
    pending: VecDeque<ScrapeRound>,
    loss: f64,
    rng: Rng,
    faults: ActiveFaults,
}

impl Observer {
    /// An observer of the signals that `policy` needs. `slack` is added to the window that the policy asks for.
    pub(super) fn new(scenario: &Scenario, policy: &Policy, seed: u64, slack: Duration) -> Self {
        let variants: Vec<VariantState> = scenario.variants.iter().map(variant_state).collect();
        let needs = required_signals(policy, variants.iter().map(|state| &state.variant));
        let group = GroupId::new(NAMESPACE, MODEL);
        let model = ModelGroup { source: SourceHealth::Complete, variants, scheduler: Signals::default() };
        let window_s = needs.window.get();
        let window_s = if window_s > 0.0 { window_s + slack.as_secs_f64() } else { 0.0 };
        Self {
            snapshot: Snapshot {
                now: START,
                groups: BTreeMap::from([(group.clone(), model)]),
                invalid: Vec::new(),
                undecided: Vec::new(),
                inventory: None,
                elsewhere: [].into(),
                unlabelled: None,
                limits: Vec::new(),
                is_inventory_stale: false,
            },
            group,
            serials: vec![Vec::new(); scenario.variants.len()],
            needed: needs.signals,
            window_s: window_s.max(PROGRAM_DEFAULTS.scrape_window.as_secs_f64()),
            pending: VecDeque::new(),
            loss: scenario.scrape.loss.get(),
            rng: Rng::stream(seed, LOSS_STREAM),
            faults: ActiveFaults::new(&scenario.faults),
        }
    }

    /// When the oldest pending round can be used, seconds; infinite when there is none.
    pub(super) fn usable_s(&self) -> f64 {
        self.pending.front().map_or(f64::INFINITY, |round| round.usable_s)
    }

    /// Scrapes all pods and the scheduler. The samples can be used `delay_s` later.
    pub(super) fn scrape_all(&mut self, cluster: &mut SimCluster<RunRecorder>, now_s: f64, delay_s: f64) {
        let pods =
            (0..cluster.pods().len()).filter_map(|index| self.scrape_pod(cluster, index, now_s)).collect();
        let scheduler = Some(self.scrape_scheduler(cluster, now_s));
        self.pending.push_back(ScrapeRound { at_s: now_s, usable_s: now_s + delay_s, pods, scheduler });
    }

    /// Scrapes the pods that are due, as Prometheus does, and the scheduler if `with_scheduler`.
    pub(super) fn scrape_due(
        &mut self,
        cluster: &mut SimCluster<RunRecorder>,
        now_s: f64,
        interval_s: f64,
        with_scheduler: bool,
    ) {
        let mut pods = Vec::new();
        for index in 0..cluster.pods().len() {
            if cluster.pods()[index].next_scrape_s <= now_s {
                pods.extend(self.scrape_pod(cluster, index, now_s));
                cluster.pods_mut()[index].next_scrape_s += interval_s;
            }
        }
        if with_scheduler || !pods.is_empty() {
            let scheduler = with_scheduler.then(|| self.scrape_scheduler(cluster, now_s));
            self.pending.push_back(ScrapeRound { at_s: now_s, usable_s: now_s, pods, scheduler });
        }
    }

    /// Scrapes a pod; `None` when it has no server or the scrape is lost.
    fn scrape_pod(
        &mut self,
        cluster: &mut SimCluster<RunRecorder>,
        index: usize,
        now_s: f64,
    ) -> Option<PodScrape> {
        if self.loss > 0.0 && self.rng.unit() < self.loss {
            return None;
        }
        let pod = cluster.pods().get(index)?;
        let variant = pod.variant;
        let scraped = ScrapedPod { serial: pod.serial, created_s: pod.created_s };
        let mut values =
            cluster.read_pod(index, now_s, |pod, readings| pod_values(readings, pod.dispatched))?;
        self.faults.apply_to_pod(scraped, now_s, &mut values);
        Some(PodScrape { variant, serial: scraped.serial, values })
    }

    fn scrape_scheduler(&mut self, cluster: &SimCluster<RunRecorder>, now_s: f64) -> [(Signal, f64); 3] {
        let gateway = cluster.gateway();
        let mut values = [
            (Signal::SchedulerQueueSize, gateway.requests),
            (Signal::SchedulerQueueBytes, gateway.prompt_tokens * BYTES_PER_TOKEN),
            (Signal::SchedulerAttempts, gateway.dispatched),
        ];
        self.faults.apply_to_scheduler(now_s, &mut values);
        values
    }

    /// Adds the samples that can be used by now to the snapshot.
    pub(super) fn take_samples(&mut self, now_s: f64) {
        while self.pending.front().is_some_and(|round| round.usable_s <= now_s) {
            if let Some(round) = self.pending.pop_front() {
                self.add_samples(&round);
            }
        }
    }

    fn add_samples(&mut self, round: &ScrapeRound) {
        let at = timestamp(round.at_s);
        let oldest = timestamp(round.at_s - self.window_s);
        let Some(group) = self.snapshot.groups.get_mut(&self.group) else { return };
        for scrape in &round.pods {
            let index = self.serials.get(scrape.variant).map(|serials| serials.binary_search(&scrape.serial));
            let Some(Ok(index)) = index else { continue };
            let replicas = group.variants.get_mut(scrape.variant).map(|state| &mut state.pods);
            let Some(replica) = replicas.and_then(|replicas| replicas.get_mut(index)) else { continue };
            let row = scrape.values.iter().copied().filter(|(signal, _)| self.needed.contains(signal));
            // A pod without a single sample has no known engine.
            if replica.engines.get("8000").is_none() && row.clone().all(|(_, value)| value.is_nan()) {
                continue;
            }
            replica.engines.or_default("8000").slide(at, oldest, PROGRAM_DEFAULTS.max_samples, row);
        }
        if let Some(values) = round.scheduler {
            group.scheduler.slide(at, oldest, PROGRAM_DEFAULTS.max_samples, values);
        }
    }

    /// Updates the pods and replica counts of the snapshot. The API server reports these at once.
    pub(super) fn update_pods(&mut self, cluster: &SimCluster<RunRecorder>, now_s: f64) {
        self.snapshot.now = timestamp(now_s);
        let Some(group) = self.snapshot.groups.get_mut(&self.group) else { return };
        for (index, (state, serials)) in group.variants.iter_mut().zip(&mut self.serials).enumerate() {
            let counts = cluster.counts(index);
            let current = if counts.status == Replicas::ZERO { counts.spec } else { counts.status };
            state.variant.bounds = cluster.scenario().variants[index].bounds_at(now_s);
            state.scale = Some(Scale { spec: counts.spec, current, ready: counts.ready });
            let pods = cluster.pods().iter().filter(|pod| pod.variant == index);
            update_replicas(&mut state.pods, serials, pods);
        }
    }
}

/// Makes `replicas` equal to `pods`, which are in the order of their serials. Samples of pods that still exist stay.
fn update_replicas<'p>(
    replicas: &mut Vec<wva_core::snapshot::Pod>,
    serials: &mut Vec<u64>,
    pods: impl Iterator<Item = &'p Pod>,
) {
    let mut known = std::mem::take(serials).into_iter().zip(std::mem::take(replicas)).peekable();
    for pod in pods {
        while known.next_if(|(serial, _)| *serial < pod.serial).is_some() {}
        let engines = known.next_if(|(serial, _)| *serial == pod.serial).map(|(_, replica)| replica.engines);
        serials.push(pod.serial);
        replicas.push(wva_core::snapshot::Pod {
            name: pod.name.clone(),
            phase: pod.phase(),
            created: timestamp(pod.created_s),
            ready_since: pod.ready_since_s().map(timestamp),
            engines: engines.unwrap_or_default(),
        });
    }
}

fn variant_state(variant: &SimVariant) -> VariantState {
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
            target: TargetRef::deployment(variant.name.clone()),
            cost: variant.cost,
            bounds: variant.bounds,
            accelerator: Some(variant.accelerator.clone()),
            role: Role::Both,
            woken_by: None,
        },
        scale: None,
        target_problem: None,
        pods: Vec::new(),
        last_status: None,
        unschedulable: None,
        template: Template { gpus: Some(variant.gpus), engine: Some(engine) },
    }
}
