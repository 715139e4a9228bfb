//! The state of the field's autoscalers between two decisions.

use std::collections::VecDeque;

use super::recorder::RunRecorder;
use crate::cluster::{Arrived, SimCluster};
use crate::peer::Peer;
use crate::sizes::RequestSizes;

/// Knative's stable window, and how long a panic lasts, seconds.
const KPA_WINDOW_S: f64 = 60.0;
/// Knative's panic window: a tenth of the stable one.
const KPA_PANIC_WINDOW_S: f64 = 6.0;
/// Knative panics when it wants this many times the ready pods.
const KPA_PANIC_FACTOR: f64 = 2.0;
/// Window of `AIBrix`'s APA, seconds.
const APA_WINDOW_S: f64 = 60.0;
/// Tolerance of `AIBrix`'s APA and of Kthena.
const TOLERANCE: f64 = 0.1;
/// Kthena goes up by the least proposal of this time, seconds.
const KTHENA_UP_WINDOW_S: f64 = 60.0;
/// Kthena goes down by the largest proposal of this time, and panics for as long, seconds.
const KTHENA_DOWN_WINDOW_S: f64 = 300.0;
/// The arena's KEDA and reactive scalers: queued requests a pod, and shares of the KV cache.
const ARENA_KEDA: (f64, f64) = (5.0, 0.9);
const ARENA_UP: (f64, f64) = (4.0, 0.8);
const ARENA_DOWN: (f64, f64) = (1.0, 0.3);
/// Kthena panics when the metric is this many times its target.
const KTHENA_PANIC_FACTOR: f64 = 1.5;

/// What the pods of a variant show.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct VariantLoad {
    pub(super) ready: f64,
    pub(super) running: f64,
    /// Those at the gateway count for the first variant.
    pub(super) waiting: f64,
    /// Sum of the shares of the ready pods.
    kv_usage: f64,
}

impl VariantLoad {
    /// Of every variant, now.
    pub(super) fn read(cluster: &mut SimCluster<RunRecorder>, now_s: f64) -> Vec<Self> {
        let mut loads = vec![Self::default(); cluster.scenario().variants.len()];
        for index in 0..cluster.pods().len() {
            if cluster.pods()[index].ready_server().is_some() {
                cluster.read_pod(index, now_s, |pod, readings| {
                    let load = &mut loads[pod.variant];
                    load.ready += 1.0;
                    load.running += readings.running;
                    load.waiting += readings.waiting;
                    load.kv_usage += readings.kv_usage;
                });
            }
        }
        loads[0].waiting += cluster.gateway().requests;
        loads
    }
}

/// A peer with what it remembers.
#[derive(Debug)]
pub(super) struct PeerState {
    peer: Peer,
    /// What was read, oldest first.
    readings: VecDeque<(f64, Vec<VariantLoad>)>,
    /// Proposals of Kthena by variant, oldest first.
    proposals: VecDeque<(f64, Vec<f64>)>,
    /// Until when each variant panics, seconds.
    panic_until_s: Vec<f64>,
    arrived: Arrived,
    /// When it last planned, seconds.
    planned_at_s: f64,
}

impl PeerState {
    pub(super) fn new(peer: Peer, variants: usize) -> Self {
        Self {
            peer,
            readings: VecDeque::new(),
            proposals: VecDeque::new(),
            panic_until_s: vec![f64::NEG_INFINITY; variants],
            arrived: Arrived::default(),
            planned_at_s: 0.0,
        }
    }

    /// Running requests by variant, as they were read last.
    pub(super) fn running(&self, variant: usize) -> f64 {
        self.readings.back().map_or(0.0, |(_, loads)| loads[variant].running)
    }

    /// Remembers what the pods show now.
    pub(super) fn read(&mut self, cluster: &mut SimCluster<RunRecorder>, now_s: f64) {
        self.readings.push_back((now_s, VariantLoad::read(cluster, now_s)));
        while self.readings.front().is_some_and(|(at_s, _)| *at_s <= now_s - KPA_WINDOW_S) {
            self.readings.pop_front();
        }
    }

    /// The replicas of every variant, whatever its bounds.
    pub(super) fn decide(&mut self, cluster: &SimCluster<RunRecorder>, now_s: f64) -> Vec<f64> {
        let specs: Vec<f64> = cluster.spec_replicas().iter().map(|spec| f64::from(*spec)).collect();
        match self.peer {
            Peer::RunningRequests { .. } => specs,
            Peer::KnativeKpa { concurrency } => (0..specs.len())
                .map(|variant| self.kpa(variant, specs[variant], concurrency, now_s))
                .collect(),
            Peer::AibrixApa { kv_usage } => {
                (0..specs.len()).map(|variant| self.apa(variant, specs[variant], kv_usage, now_s)).collect()
            }
            Peer::Kthena { waiting } => self.kthena(&specs, waiting, now_s),
            Peer::ArenaKeda => self.arena_keda(&specs, now_s),
            Peer::ArenaReactive => self.arena_reactive(&specs),
            Peer::LoadPlanner { utilisation, .. } => self.planned(cluster, now_s, utilisation),
        }
    }

    /// Mean of `value` over the readings of `variant` in the last `window_s`.
    fn mean(&self, variant: usize, now_s: f64, window_s: f64, value: impl Fn(&VariantLoad) -> f64) -> f64 {
        let recent = self.readings.iter().filter(|(at_s, _)| *at_s > now_s - window_s);
        let (sum, count) = recent
            .fold((0.0, 0.0_f64), |(sum, count), (_, loads)| (sum + value(&loads[variant]), count + 1.0));
        sum / count.max(1.0)
    }

    fn kpa(&mut self, variant: usize, spec: f64, target: f64, now_s: f64) -> f64 {
        let ready = self.readings.back().map_or(1.0, |(_, loads)| loads[variant].ready.max(1.0));
        let wanted = |window_s| {
            let concurrency = self.mean(variant, now_s, window_s, |load| load.running + load.waiting);
            (concurrency / target).ceil().clamp((ready / 2.0).floor(), 1000.0 * ready)
        };
        let (stable, panic) = (wanted(KPA_WINDOW_S), wanted(KPA_PANIC_WINDOW_S));
        if panic >= KPA_PANIC_FACTOR * ready {
            self.panic_until_s[variant] = now_s + KPA_WINDOW_S;
        }
        if now_s < self.panic_until_s[variant] { stable.max(panic).max(spec) } else { stable }
    }

    fn apa(&self, variant: usize, spec: f64, target: f64, now_s: f64) -> f64 {
        let usage = self.mean(variant, now_s, APA_WINDOW_S, |load| load.kv_usage / load.ready.max(1.0));
        let ratio = usage / target;
        if (ratio - 1.0).abs() <= TOLERANCE {
            return spec;
        }
        (spec * ratio).ceil().clamp((spec / 2.0).floor(), 2.0 * spec)
    }

    fn kthena(&mut self, specs: &[f64], target: f64, now_s: f64) -> Vec<f64> {
        let Some((_, loads)) = self.readings.back() else { return specs.to_vec() };
        let ratios: Vec<f64> =
            specs.iter().zip(loads).map(|(spec, load)| load.waiting / (spec.max(1.0) * target)).collect();
        let wanted = |(spec, ratio): (&f64, &f64)| {
            if (ratio - 1.0).abs() <= TOLERANCE { *spec } else { (spec.max(1.0) * ratio).ceil() }
        };
        self.proposals.push_back((now_s, specs.iter().zip(&ratios).map(wanted).collect()));
        while self.proposals.front().is_some_and(|(at_s, _)| *at_s <= now_s - KTHENA_DOWN_WINDOW_S) {
            self.proposals.pop_front();
        }
        let mut numbers = Vec::new();
        for (variant, spec) in specs.iter().enumerate() {
            let recent = |window_s| {
                let proposals = self.proposals.iter().filter(move |(at_s, _)| *at_s > now_s - window_s);
                proposals.map(|(_, proposal)| proposal[variant])
            };
            let newest = recent(KTHENA_UP_WINDOW_S).next_back().unwrap_or(*spec);
            if ratios[variant] >= KTHENA_PANIC_FACTOR {
                self.panic_until_s[variant] = now_s + KTHENA_DOWN_WINDOW_S;
            }
            let up = recent(KTHENA_UP_WINDOW_S).fold(f64::INFINITY, f64::min);
            let down = recent(KTHENA_DOWN_WINDOW_S).fold(0.0, f64::max);
            numbers.push(if now_s < self.panic_until_s[variant] {
                newest.max(*spec)
            } else {
                spec.clamp(up.min(down), down)
            });
        }
        numbers
    }

    fn arena_keda(&mut self, specs: &[f64], now_s: f64) -> Vec<f64> {
        let Some((_, loads)) = self.readings.back() else { return specs.to_vec() };
        let (queued, kv_usage) = ARENA_KEDA;
        let wanted = |(spec, load): (&f64, &VariantLoad)| {
            let propose = |ratio: f64, number: f64| {
                if (ratio - 1.0).abs() <= TOLERANCE { *spec } else { (number * ratio - 1e-9).ceil() }
            };
            let by_queue = propose(load.waiting / (queued * spec.max(1.0)), spec.max(1.0));
            // Pods that start have no cache: an HPA does not count them in either.
            by_queue.max(propose(load.kv_usage / load.ready.max(1.0) / kv_usage, load.ready))
        };
        self.proposals.push_back((now_s, specs.iter().zip(loads).map(wanted).collect()));
        while self.proposals.front().is_some_and(|(at_s, _)| *at_s <= now_s - KTHENA_DOWN_WINDOW_S) {
            self.proposals.pop_front();
        }
        let newest = self.proposals.back().map(|(_, proposal)| proposal.clone()).unwrap_or_default();
        let largest = |variant: usize| self.proposals.iter().map(|(_, all)| all[variant]).fold(0.0, f64::max);
        let number = |(variant, spec): (usize, &f64)| newest[variant].max(spec.min(largest(variant)));
        specs.iter().enumerate().map(number).collect()
    }

    fn arena_reactive(&self, specs: &[f64]) -> Vec<f64> {
        let Some((_, loads)) = self.readings.back() else { return specs.to_vec() };
        let wanted = |(spec, load): (&f64, &VariantLoad)| {
            let ready = load.ready.max(1.0);
            let (queued, kv_usage) = (load.waiting / ready, load.kv_usage / ready);
            if queued > ARENA_UP.0 || kv_usage > ARENA_UP.1 {
                spec + 1.0
            } else if queued < ARENA_DOWN.0 && kv_usage < ARENA_DOWN.1 {
                (spec - 1.0).max(0.0)
            } else {
                *spec
            }
        };
        specs.iter().zip(loads).map(wanted).collect()
    }

    /// The load since the last plan, on the variants in the order of their price for it.
    fn planned(&mut self, cluster: &SimCluster<RunRecorder>, now_s: f64, utilisation: f64) -> Vec<f64> {
        let seconds = now_s - std::mem::replace(&mut self.planned_at_s, now_s);
        let arrived = cluster.arrived();
        let before = std::mem::replace(&mut self.arrived, arrived);
        let requests = arrived.requests - before.requests;
        let mean = |tokens: f64| (tokens / requests.max(1.0)).max(1.0);
        let sizes =
            RequestSizes::fixed(mean(arrived.prompt - before.prompt), mean(arrived.output - before.output));
        let mut rest = requests / seconds.max(1.0);
        let variants = &cluster.scenario().variants;
        let capacity = |variant: usize| variants[variant].physics.capacity_rps(sizes) * utilisation;
        let price = |variant: usize| variants[variant].cost.get() / capacity(variant);
        let mut order: Vec<usize> = (0..variants.len()).collect();
        order.sort_by(|left, right| price(*left).total_cmp(&price(*right)));
        let mut numbers = vec![0.0; variants.len()];
        for variant in order {
            let bounds = variants[variant].bounds;
            let max = bounds.max.map_or(f64::INFINITY, |max| f64::from(max.get()));
            numbers[variant] = (rest / capacity(variant)).ceil().clamp(f64::from(bounds.min.get()), max);
            rest = (rest - numbers[variant] * capacity(variant)).max(0.0);
        }
        numbers
    }
}
