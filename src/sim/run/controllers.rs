//! The state of each kind of controller between two decisions.

use wva_core::decision::Verdict;
use wva_core::memory::Memory;
use wva_core::model::{Policy, VariantId};
use wva_core::units::Replicas;
use wva_core::{decide, observe};

use super::observer::Observer;
use super::recorder::RunRecorder;
use crate::cluster::SimCluster;
use crate::controller::{NAMESPACE, ScheduleEntry};
use crate::scenario::Scenario;

/// The number of replicas of each variant; `None` where the controller gives no answer.
pub(super) type Numbers = Vec<Option<Replicas>>;

/// The program's core, and the samples that it decides from.
#[derive(Debug)]
pub(super) struct CoreController<'a> {
    pub(super) observer: Observer,
    policy: &'a Policy,
    memory: Memory,
    ids: Vec<VariantId>,
    /// Decisions at which some signal of an engine was contradicted by another.
    pub(super) contradicted_decisions: u32,
}

impl<'a> CoreController<'a> {
    pub(super) fn new(scenario: &Scenario, policy: &'a Policy, observer: Observer) -> Self {
        let ids = scenario.variants.iter().map(|variant| VariantId::new(NAMESPACE, variant.name.clone()));
        Self { observer, policy, memory: Memory::default(), ids: ids.collect(), contradicted_decisions: 0 }
    }

    /// Decides from what the observer has by now.
    pub(super) fn decide(&mut self, cluster: &SimCluster<RunRecorder>, now_s: f64) -> Numbers {
        self.observer.update_pods(cluster, now_s);
        self.observer.take_samples(now_s);
        let snapshot = &self.observer.snapshot;
        let memory = observe(snapshot, std::mem::take(&mut self.memory));
        let outcome = decide(snapshot, &memory, self.policy);
        debug_assert!(outcome.report.failed.is_empty(), "{:?}", outcome.report.failed);
        self.memory = outcome.memory;
        let mut histories = self.memory.groups.values().filter_map(|group| group.signal_history.as_ref());
        self.contradicted_decisions += u32::from(histories.any(|history| history.has_contradictions()));
        let number = |id| match outcome.decisions.get(id)?.verdict {
            Verdict::Target(ref target) => Some(target.desired),
            Verdict::Unknown(_) => None,
        };
        self.ids.iter().map(number).collect()
    }
}

/// The scheduled replicas of `variant`, an index into the scenario, at `now_s`.
pub(super) fn scheduled_replicas(
    schedule: &[ScheduleEntry],
    scenario: &Scenario,
    variant: usize,
    now_s: f64,
) -> Option<Replicas> {
    let entry = schedule.iter().rev().find(|entry| entry.from.as_secs_f64() <= now_s);
    match entry {
        Some(ScheduleEntry { replicas, .. }) => fixed_replicas(replicas, variant),
        None => scenario.variants.get(variant).map(|variant| variant.replicas),
    }
}

/// The replicas of `variant` in a fixed fleet.
pub(super) fn fixed_replicas(fleet: &[Replicas], variant: usize) -> Option<Replicas> {
    fleet.get(variant).or(fleet.last()).copied()
}

/// KEDA's metrics of the endpoint picker's pool.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PoolMetrics {
    /// Requests running or waiting in ready pods, or held at the gateway.
    pub(super) requests: f64,
    /// Of these, the waiting ones.
    pub(super) waiting: f64,
}

impl PoolMetrics {
    pub(super) fn read(cluster: &mut SimCluster<RunRecorder>, now_s: f64) -> Self {
        let held = cluster.gateway().requests;
        let mut pool = Self { requests: held, waiting: held };
        for index in 0..cluster.pods().len() {
            if cluster.pods()[index].ready_server().is_some() {
                cluster.read_pod(index, now_s, |_, readings| {
                    pool.requests += readings.running + readings.waiting;
                    pool.waiting += readings.waiting;
                });
            }
        }
        pool
    }
}
