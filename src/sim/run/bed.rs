//! The pods of a simulated model behind one gateway: they get nodes, start, serve, drain and go, and requests find
//! their way to them. Knows nothing of who decides how many there are.

use std::cmp::Reverse;
use std::collections::VecDeque;

use super::pod::{Life, Pod};
use super::tally::Tally;
use crate::load::Request;
use crate::rng::Rng;
use crate::scenario::{PodFault, Scenario, Victims};
use crate::server::Readings;
use wva_core::hpa::Counts;
use wva_core::pod_deletion_order::{InFlight, order};
use wva_core::snapshot::Phase;
use wva_core::units::{Replicas, count};

/// Requests that the gateway holds: 32 MB, more than an hour at 250 a second. More are refused.
const MAX_AT_GATEWAY: usize = 1_000_000;
/// Seconds between two readiness probes of a pod: the kubelet's default.
const PROBE_S: f64 = 10.0;
/// What a run's chance is used for, beside what comes.
const STARTS: u64 = 1 << 48;
const STEPS: u64 = 1;

/// The pods and what waits for them.
#[derive(Debug)]
pub(super) struct Bed<'a> {
    scenario: &'a Scenario,
    seed: u64,
    /// In the order of their creation.
    pods: Vec<Pod>,
    /// When something happens to each.
    due_s: Vec<f64>,
    gateway: VecDeque<Request>,
    gateway_tokens: u64,
    /// Pods so far.
    serials: u64,
    /// By variant: chance of start-ups.
    starts: Vec<Rng>,
    /// By variant: what was asked for last.
    asked: Vec<u32>,
    /// Requests given to pods.
    dispatched: f64,
    pub(super) tally: Tally,
    gpu_s: f64,
    /// When pods are probed next; never where nothing fails.
    probe_s: f64,
}

/// What waits before the pods.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    pub(super) requests: f64,
    /// Of their prompts.
    pub(super) tokens: f64,
    /// Requests given to pods so far.
    pub(super) dispatched: f64,
}

impl<'a> Bed<'a> {
    pub(super) fn new(scenario: &'a Scenario, seed: u64) -> Self {
        let variants = scenario.variants.len();
        let streams = (0..variants).map(|place| Rng::stream(seed, STARTS + place as u64));
        let faulty = scenario.variants.iter().any(|variant| !variant.pod_faults.is_empty());
        let mut bed = Self {
            scenario,
            seed,
            pods: Vec::new(),
            due_s: Vec::new(),
            gateway: VecDeque::new(),
            gateway_tokens: 0,
            serials: 0,
            starts: streams.collect(),
            asked: vec![0; variants],
            dispatched: 0.0,
            tally: Tally::new(scenario.slo, variants),
            gpu_s: 0.0,
            probe_s: if faulty { PROBE_S } else { f64::INFINITY },
        };
        for (place, variant) in scenario.variants.iter().enumerate() {
            bed.asked[place] = variant.replicas.get();
            for index in 0..variant.replicas.get() {
                let pod = bed.made(place, 0.0);
                let chance = bed.chance(pod.serial);
                bed.add(pod.ready_before(index == 0, variant, chance));
            }
        }
        bed
    }

    pub(super) const fn scenario(&self) -> &Scenario {
        self.scenario
    }

    pub(super) fn pods(&self) -> &[Pod] {
        &self.pods
    }

    /// The same, to plan scrapes.
    pub(super) fn pods_mut(&mut self) -> &mut [Pod] {
        &mut self.pods
    }

    /// What can be read of a pod now; `None` while it has no server.
    pub(super) fn look<T>(
        &mut self,
        place: usize,
        now_s: f64,
        of: impl FnOnce(&Pod, &Readings) -> T,
    ) -> Option<T> {
        let pod = self.pods.get_mut(place)?;
        pod.server_mut()?.advance(now_s, &mut self.tally);
        self.due_s[place] = pod.due_s();
        pod.server().map(|server| of(pod, server.readings()))
    }

    pub(super) fn held(&self) -> Held {
        let requests = self.gateway.len() as f64;
        Held { requests, tokens: self.gateway_tokens as f64, dispatched: self.dispatched }
    }

    /// Replicas asked for, by variant.
    pub(super) fn asked(&self) -> &[u32] {
        &self.asked
    }

    /// The scale target's counts.
    pub(super) fn counts(&self, variant: usize) -> Counts {
        let (mut status, mut ready) = (0, 0);
        for pod in self.pods.iter().filter(|pod| pod.variant == variant) {
            status += u32::from(pod.phase() != Phase::Terminating);
            ready += u32::from(pod.phase() == Phase::Ready);
        }
        let spec = self.asked.get(variant).copied().unwrap_or(0);
        Counts { spec: Replicas::new(spec), status: Replicas::new(status), ready: Replicas::new(ready) }
    }

    /// Requests that are neither finished nor lost.
    pub(super) fn in_flight(&self) -> usize {
        let servers = self.pods.iter().filter_map(Pod::server);
        servers.map(|server| server.in_flight()).sum::<usize>() + self.gateway.len()
    }

    /// When something happens to a pod next.
    pub(super) fn next_s(&self) -> f64 {
        self.due_s.iter().copied().fold(self.probe_s, f64::min)
    }

    /// Lets happen what is due at `now_s`.
    pub(super) fn pass(&mut self, now_s: f64) {
        let mut place = 0;
        while place < self.pods.len() {
            if self.due_s[place] <= now_s && self.pass_one(place, now_s) {
                self.remove(place, now_s);
            } else {
                place += 1;
            }
        }
        if self.probe_s <= now_s {
            self.probe(now_s);
            self.probe_s += PROBE_S;
        }
        self.empty_gateway(now_s);
    }

    /// Probes the readiness of all pods that serve.
    fn probe(&mut self, now_s: f64) {
        for (place, variant) in self.scenario.variants.iter().enumerate() {
            let own = self.pods.iter_mut().filter(|pod| pod.variant == place);
            for (index, pod) in own.enumerate() {
                pod.probe(now_s, |serial, failing, waiting| {
                    variant.pod_faults.iter().any(|fault| match fault {
                        PodFault::Broken { at, pods } => {
                            at.as_secs_f64() <= now_s && (failing || count(index) < *pods)
                        }
                        PodFault::Flapping { waiting: most } => {
                            let (half, most) = (serial % 2 == 0, *most as usize);
                            half && if failing { waiting > 0 } else { waiting >= most }
                        }
                    })
                });
            }
        }
    }

    /// True when the pod is at its end.
    fn pass_one(&mut self, place: usize, now_s: f64) -> bool {
        let chance = self.chance(self.pods[place].serial);
        let pod = &mut self.pods[place];
        match &mut pod.life {
            Life::Unschedulable => {}
            Life::Starting { .. } => pod.serve(&self.scenario.variants[pod.variant], now_s, chance),
            Life::Ready { server, .. } => {
                server.advance_whole(now_s, &mut self.tally);
                server.begin_now(&mut self.tally);
            }
            Life::Terminating { server, until_s, .. } => {
                server.advance_whole(now_s, &mut self.tally);
                if *until_s <= now_s || server.in_flight() == 0 {
                    return true;
                }
                server.begin_now(&mut self.tally);
            }
        }
        self.due_s[place] = self.pods[place].due_s();
        false
    }

    /// Chance of the steps of a pod's server.
    fn chance(&self, serial: u64) -> Rng {
        Rng::stream(self.seed, STEPS + (serial << 8))
    }

    fn made(&mut self, variant: usize, now_s: f64) -> Pod {
        let template = &self.scenario.variants[variant];
        let (mean_s, spread) = (template.start_up.mean.as_secs_f64(), template.start_up.spread);
        let start_s = self.starts[variant].around(mean_s, spread);
        self.serials += 1;
        Pod::new(self.serials, variant, template, now_s, start_s)
    }

    fn add(&mut self, pod: Pod) {
        self.due_s.push(pod.due_s());
        self.pods.push(pod);
    }

    /// Ends a pod; what it had is lost.
    fn remove(&mut self, place: usize, now_s: f64) {
        let pod = self.pods.remove(place);
        self.due_s.remove(place);
        if let Some(server) = pod.server() {
            self.tally.lost(server.in_flight());
            server.unanswered().for_each(|request| self.tally.gave_up(request, now_s));
        }
        self.gpu_s += self.gpu_seconds(&pod, now_s);
        self.place_waiting(pod.variant, now_s);
    }

    /// Accelerator-seconds of `pod` until now, within the scenario.
    fn gpu_seconds(&self, pod: &Pod, now_s: f64) -> f64 {
        let gpus = f64::from(self.scenario.variants[pod.variant].gpus);
        let until_s = now_s.min(self.scenario.duration.as_secs_f64());
        pod.placed_s.map_or(0.0, |from_s| (until_s - from_s.max(0.0)).max(0.0)) * gpus
    }

    /// Accelerator-seconds of all pods until now, within the scenario.
    pub(super) fn all_gpu_seconds(&self, now_s: f64) -> f64 {
        self.gpu_s + self.pods.iter().map(|pod| self.gpu_seconds(pod, now_s)).sum::<f64>()
    }

    /// Gives nodes to pods without one, the oldest first, while there is room.
    fn place_waiting(&mut self, variant: usize, now_s: f64) {
        let limit = self.scenario.variants[variant].schedulable.unwrap_or(u32::MAX);
        let placed = self.pods.iter().filter(|pod| pod.variant == variant && pod.placed_s.is_some()).count();
        let mut room = limit.saturating_sub(count(placed));
        for (pod, due_s) in self.pods.iter_mut().zip(&mut self.due_s) {
            if room > 0 && pod.variant == variant && pod.placed_s.is_none() {
                pod.place(now_s);
                *due_s = pod.due_s();
                room -= 1;
            }
        }
    }

    /// Makes or ends pods until there are `wanted` that are not on their way out.
    pub(super) fn scale(&mut self, variant: usize, wanted: u32, now_s: f64) {
        self.asked[variant] = wanted;
        let counts = self.counts(variant);
        for _ in counts.status.get()..wanted {
            let pod = self.made(variant, now_s);
            self.add(pod);
        }
        self.place_waiting(variant, now_s);
        let until_s = now_s + self.scenario.grace.as_secs_f64();
        for serial in self.victims(variant, counts.status.get().saturating_sub(wanted)) {
            let Some(place) = self.pods.iter().position(|pod| pod.serial == serial) else { continue };
            if self.pods[place].terminate(until_s) {
                self.due_s[place] = self.pods[place].due_s();
            } else {
                self.remove(place, now_s);
            }
        }
    }

    /// The pods that go first: those that are not ready before those that are.
    fn victims(&self, variant: usize, many: u32) -> Vec<u64> {
        let own = self.pods.iter().filter(|pod| pod.variant == variant);
        let mut pods: Vec<&Pod> = own.filter(|pod| pod.phase() != Phase::Terminating).collect();
        let rank = |pod: &Pod| match pod.phase() {
            Phase::Unschedulable => 0,
            Phase::Starting => 1,
            _ => 2,
        };
        pods.sort_by_key(|pod| (rank(pod), Reverse(pod.serial)));
        if self.scenario.victims != Victims::Youngest {
            let ready = pods.split_off(pods.partition_point(|pod| pod.phase() != Phase::Ready));
            let counted = self.scenario.victims == Victims::LeastLoaded;
            let told = |one: InFlight| InFlight { requests: one.requests.filter(|_| counted), ..one };
            let in_flight: Vec<InFlight> = ready.iter().map(|pod| told(pod.in_flight())).collect();
            pods.extend(order(&in_flight).into_iter().map(|place| ready[place]));
        }
        pods.iter().take(many as usize).map(|pod| pod.serial).collect()
    }

    /// A request comes.
    pub(super) fn arrive(&mut self, request: Request) {
        self.tally.came();
        if !self.gateway.is_empty() || !self.give(request, request.arrived_s) {
            self.hold(request);
        }
    }

    fn hold(&mut self, request: Request) {
        if self.gateway.len() >= MAX_AT_GATEWAY {
            self.tally.lost(1);
            return;
        }
        self.gateway_tokens += u64::from(request.prompt);
        self.gateway.push_back(request);
    }

    /// Gives away what the gateway holds, as far as it may.
    fn empty_gateway(&mut self, now_s: f64) {
        while let Some(&request) = self.gateway.front() {
            if !self.give(request, now_s) {
                break;
            }
            self.gateway.pop_front();
            self.gateway_tokens -= u64::from(request.prompt);
        }
    }

    /// Gives a request to the ready pod with the least pressure. False when it has to be held.
    fn give(&mut self, request: Request, now_s: f64) -> bool {
        let most = self.scenario.hold_at.map_or(usize::MAX, |most| most as usize);
        let mut best: Option<(usize, f64)> = None;
        for (place, pod) in self.pods.iter().enumerate() {
            let Some(server) = pod.open().filter(|server| server.waiting() < most) else { continue };
            let pressure = server.pressure(now_s);
            if best.is_none_or(|(_, least)| pressure < least) {
                best = Some((place, pressure));
            }
        }
        let Some((place, _)) = best else { return false };
        let pod = &mut self.pods[place];
        let taken = pod.server_mut().map(|server| server.submit(request, now_s));
        if let Some(Err(_)) = taken {
            self.tally.lost(1);
            return true;
        }
        pod.dispatched += 1.0;
        self.dispatched += 1.0;
        self.due_s[place] = self.pods[place].due_s();
        true
    }

    /// Ends the run: what is not done never will be.
    pub(super) fn close(&mut self, now_s: f64) {
        let Self { pods, gateway, tally, .. } = self;
        let in_pods = pods.iter().filter_map(Pod::server).flat_map(|server| server.unanswered());
        in_pods.chain(gateway.iter().copied()).for_each(|request| tally.gave_up(request, now_s));
    }
}
