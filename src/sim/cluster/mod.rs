//! The pods of a simulated model behind one gateway: they get nodes, start, serve, drain and go, and the gateway routes
//! requests to them. What decides the number of pods is not known here.

mod pod;

use std::cmp::Reverse;
use std::collections::VecDeque;

use wva_core::hpa::Counts;
use wva_core::pod_deletion_order::{InFlight, order};
use wva_core::snapshot::Phase;
use wva_core::units::{Replicas, count};

use self::pod::{Life, ServerSetup};
use super::load::Request;
use super::recorder::Recorder;
use super::rng::Rng;
use super::scenario::{DeletionOrder, PodFault, Routing, Scenario, SimVariant};
use super::server::{Admission, Readings};

pub use pod::Pod;

/// The most requests that the gateway holds: 32 MB, more than an hour at 250 requests/s. Further ones are refused.
const MAX_HELD: usize = 1_000_000;
/// Seconds between two readiness probes of a pod: the kubelet's default.
const PROBE_INTERVAL_S: f64 = 10.0;
/// Random streams: start-up times, one for each variant, and the steps of servers, one for each pod.
const START_UP_STREAM: u64 = 1 << 48;
const STEP_STREAM: u64 = 1;

/// The pods of a model and the requests that wait for them.
#[derive(Debug, Clone)]
pub(crate) struct SimCluster<R> {
    scenario: Scenario,
    seed: u64,
    /// In the order of their creation.
    pods: Vec<Pod>,
    /// When each pod's next event is due, seconds: beside the pods, since it is searched at every event.
    due_s: Vec<f64>,
    gateway: VecDeque<Request>,
    gateway_tokens: u64,
    /// Pods created so far.
    serials: u64,
    /// Random numbers of start-up times, by variant.
    start_up_rngs: Vec<Rng>,
    /// `spec.replicas` by variant.
    spec_replicas: Vec<u32>,
    /// Requests given to pods.
    dispatched: f64,
    arrived: Arrived,
    /// Requests that their clients send again, and when, seconds.
    retries: VecDeque<(f64, Request)>,
    gpu_s: f64,
    /// The pod that got the last request.
    last_serial: u64,
    /// When pods are probed next, seconds; infinite in a scenario without pod faults.
    next_probe_s: f64,
    pub(crate) recorder: R,
}

/// What has arrived at the gateway so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Arrived {
    pub(crate) requests: f64,
    /// Tokens of their prompts.
    pub(crate) prompt: f64,
    /// Tokens that they will generate.
    pub(crate) output: f64,
}

/// What waits at the gateway.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GatewayState {
    pub(crate) requests: f64,
    /// Tokens of their prompts.
    pub(crate) prompt_tokens: f64,
    /// Requests given to pods so far.
    pub(crate) dispatched: f64,
    /// When the oldest waiting request arrived, seconds.
    pub(crate) oldest_s: Option<f64>,
}

impl<R: Recorder> SimCluster<R> {
    /// A cluster with the initial replicas of `scenario`, which have been ready for long.
    pub(crate) fn new(scenario: Scenario, seed: u64, recorder: R) -> Self {
        let variants = scenario.variants.len();
        let has_faults = scenario.variants.iter().any(|variant| !variant.pod_faults.is_empty());
        let rngs = (0..variants).map(|variant| Rng::stream(seed, START_UP_STREAM + variant as u64));
        let mut cluster = Self {
            seed,
            pods: Vec::new(),
            due_s: Vec::new(),
            gateway: VecDeque::new(),
            gateway_tokens: 0,
            serials: 0,
            start_up_rngs: rngs.collect(),
            spec_replicas: scenario.variants.iter().map(|variant| variant.replicas.get()).collect(),
            dispatched: 0.0,
            arrived: Arrived::default(),
            retries: VecDeque::new(),
            gpu_s: 0.0,
            last_serial: 0,
            next_probe_s: if has_faults { PROBE_INTERVAL_S } else { f64::INFINITY },
            scenario,
            recorder,
        };
        for variant in 0..variants {
            for index in 0..cluster.spec_replicas[variant] {
                let pod = cluster.new_pod(variant, 0.0);
                let rng = cluster.step_rng(pod.serial);
                let pod = pod.ready_before_start(index == 0, &server_setup(&cluster.scenario, variant), rng);
                cluster.add(pod);
            }
        }
        cluster
    }

    pub(crate) const fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    pub(crate) fn pods(&self) -> &[Pod] {
        &self.pods
    }

    pub(crate) fn pods_mut(&mut self) -> &mut [Pod] {
        &mut self.pods
    }

    /// Advances the server of the pod at `index` to `now_s` and reads it; `None` while the pod has no server.
    pub(crate) fn read_pod<T>(
        &mut self,
        index: usize,
        now_s: f64,
        read: impl FnOnce(&Pod, &Readings) -> T,
    ) -> Option<T> {
        let pod = self.pods.get_mut(index)?;
        pod.server_mut()?.advance(now_s, &mut self.recorder);
        self.due_s[index] = pod.due_s();
        pod.server().map(|server| read(pod, server.readings()))
    }

    pub(crate) fn gateway(&self) -> GatewayState {
        GatewayState {
            requests: self.gateway.len() as f64,
            prompt_tokens: self.gateway_tokens as f64,
            dispatched: self.dispatched,
            oldest_s: self.gateway.front().map(|request| request.arrived_s),
        }
    }

    pub(crate) const fn arrived(&self) -> Arrived {
        self.arrived
    }

    /// `spec.replicas` by variant.
    pub(crate) fn spec_replicas(&self) -> &[u32] {
        &self.spec_replicas
    }

    /// The replica counts of a variant's scale target.
    pub(crate) fn counts(&self, variant: usize) -> Counts {
        let mut status = 0;
        let mut ready = 0;
        for pod in self.pods.iter().filter(|pod| pod.variant == variant) {
            status += u32::from(pod.phase() != Phase::Terminating);
            ready += u32::from(pod.phase() == Phase::Ready);
        }
        let spec = self.spec_replicas.get(variant).copied().unwrap_or(0);
        Counts { spec: Replicas::new(spec), status: Replicas::new(status), ready: Replicas::new(ready) }
    }

    /// Requests that are neither finished nor failed.
    pub(crate) fn in_flight(&self) -> usize {
        self.pods.iter().map(Pod::in_flight).sum::<usize>() + self.gateway.len() + self.retries.len()
    }

    /// When the next event of a pod is due, seconds.
    pub(crate) fn next_event_s(&self) -> f64 {
        let retry_s = self.retries.front().map_or(f64::INFINITY, |(at_s, _)| *at_s);
        self.due_s.iter().copied().fold(self.next_probe_s.min(retry_s), f64::min)
    }

    /// Processes all events that are due at `now_s`.
    pub(crate) fn process_events(&mut self, now_s: f64) {
        let mut index = 0;
        while index < self.pods.len() {
            if self.due_s[index] <= now_s && self.process_pod(index, now_s) {
                self.remove(index, now_s);
            } else {
                index += 1;
            }
        }
        if self.next_probe_s <= now_s {
            self.probe_readiness(now_s);
            self.next_probe_s += PROBE_INTERVAL_S;
        }
        while let Some((_, request)) = self.retries.pop_front_if(|(at_s, _)| *at_s <= now_s) {
            self.take(Request { sent_s: now_s, retries: request.retries + 1, ..request }, now_s);
        }
        self.dispatch_held(now_s);
    }

    /// Processes a pod's event. Returns true when the pod has ended.
    fn process_pod(&mut self, index: usize, now_s: f64) -> bool {
        let rng = self.step_rng(self.pods[index].serial);
        let pod = &mut self.pods[index];
        match &mut pod.life {
            Life::Unschedulable => {}
            Life::Starting { .. } => pod.become_ready(&server_setup(&self.scenario, pod.variant), now_s, rng),
            Life::Ready { server, .. } => {
                server.advance_to_decision(now_s, &mut self.recorder);
                server.begin_if_idle(&mut self.recorder);
            }
            Life::Terminating { server, until_s, .. } => {
                server.advance_to_decision(now_s, &mut self.recorder);
                if *until_s <= now_s || server.in_flight() == 0 {
                    return true;
                }
                server.begin_if_idle(&mut self.recorder);
            }
        }
        if self.scenario.clients.is_some() {
            let abandoned = self.pods[index].server_mut().map(|server| server.take_abandoned());
            abandoned.into_iter().flatten().for_each(|request| self.give_up(request, now_s));
        }
        self.due_s[index] = self.pods[index].due_s();
        false
    }

    /// A client has waited too long, or was refused: it sends its request again later, or gives up for good.
    fn give_up(&mut self, request: Request, now_s: f64) {
        match self.scenario.clients.filter(|clients| request.retries < clients.retries) {
            Some(clients) => self.retries.push_back((now_s + clients.backoff.as_secs_f64(), request)),
            None => {
                self.recorder.failed(1);
                self.recorder.unanswered(request, now_s);
            }
        }
    }

    /// Crashes the oldest pods of variants whose time it is.
    fn crash_pods(&mut self, now_s: f64) {
        for variant in 0..self.scenario.variants.len() {
            let is_due = |every_s: f64| now_s >= every_s && now_s % every_s < PROBE_INTERVAL_S;
            let crashing =
                self.scenario.variants[variant].pod_faults.iter().filter_map(|fault| match *fault {
                    PodFault::Crashing { every, pods } if is_due(every.as_secs_f64()) => Some(pods as usize),
                    _ => None,
                });
            let Some(pods) = crashing.max() else { continue };
            let own = (0..self.pods.len()).filter(|index| self.pods[*index].variant == variant);
            for index in own.take(pods).collect::<Vec<usize>>() {
                if let Some(server) = self.pods[index].crash(now_s) {
                    self.recorder.failed(server.in_flight());
                    server.unanswered().for_each(|request| self.recorder.unanswered(request, now_s));
                }
                self.due_s[index] = self.pods[index].due_s();
            }
        }
    }

    fn probe_readiness(&mut self, now_s: f64) {
        self.crash_pods(now_s);
        for (index, variant) in self.scenario.variants.iter().enumerate() {
            let pods = self.pods.iter_mut().filter(|pod| pod.variant == index);
            for (older_pods, pod) in (0..).zip(pods) {
                pod.probe(now_s, older_pods, &variant.pod_faults);
            }
        }
    }

    /// Random numbers of the steps of a pod's server.
    fn step_rng(&self, serial: u64) -> Rng {
        Rng::stream(self.seed, STEP_STREAM + (serial << 8))
    }

    fn new_pod(&mut self, variant: usize, now_s: f64) -> Pod {
        let template = &self.scenario.variants[variant];
        let start_up = template.start_up;
        let start_up_s = self.start_up_rngs[variant].around(start_up.mean.as_secs_f64(), start_up.spread);
        self.serials += 1;
        Pod::new(self.serials, variant, &template.name, now_s, start_up_s)
    }

    fn add(&mut self, pod: Pod) {
        self.due_s.push(pod.due_s());
        self.pods.push(pod);
    }

    /// Removes a pod. Its requests fail.
    fn remove(&mut self, index: usize, now_s: f64) {
        let pod = self.pods.remove(index);
        self.due_s.remove(index);
        if let Some(server) = pod.server() {
            self.recorder.failed(server.in_flight());
            server.unanswered().for_each(|request| self.recorder.unanswered(request, now_s));
        }
        self.gpu_s += self.gpu_seconds_of(&pod, now_s);
        self.schedule_pods(pod.variant, now_s);
    }

    /// Accelerator-seconds of `pod` until `now_s`, within the scenario.
    fn gpu_seconds_of(&self, pod: &Pod, now_s: f64) -> f64 {
        let gpus = f64::from(self.scenario.variants[pod.variant].gpus);
        let until_s = now_s.min(self.scenario.duration.as_secs_f64());
        pod.scheduled_s.map_or(0.0, |from_s| (until_s - from_s.max(0.0)).max(0.0)) * gpus
    }

    /// Accelerator-seconds of all pods until `now_s`, within the scenario.
    pub(crate) fn gpu_seconds(&self, now_s: f64) -> f64 {
        self.gpu_s + self.pods.iter().map(|pod| self.gpu_seconds_of(pod, now_s)).sum::<f64>()
    }

    /// Schedules unschedulable pods of a variant while nodes have room, the oldest first.
    fn schedule_pods(&mut self, variant: usize, now_s: f64) {
        let SimVariant { max_scheduled_pods, room_from, .. } = &self.scenario.variants[variant];
        let has_room = room_from.is_some_and(|from| from.as_secs_f64() <= now_s);
        let limit = max_scheduled_pods.filter(|_| !has_room).unwrap_or(u32::MAX);
        let scheduled =
            self.pods.iter().filter(|pod| pod.variant == variant && pod.scheduled_s.is_some()).count();
        let mut free = limit.saturating_sub(count(scheduled));
        for (pod, due_s) in self.pods.iter_mut().zip(&mut self.due_s) {
            if free > 0 && pod.variant == variant && pod.scheduled_s.is_none() {
                pod.schedule(now_s);
                *due_s = pod.due_s();
                free -= 1;
            }
        }
    }

    /// Sets `spec.replicas` of a variant: creates or deletes pods until this many are not terminating.
    pub(crate) fn scale(&mut self, variant: usize, replicas: u32, now_s: f64) {
        self.spec_replicas[variant] = replicas;
        let existing = self.counts(variant).status.get();
        for _ in existing..replicas {
            let pod = self.new_pod(variant, now_s);
            self.add(pod);
        }
        self.schedule_pods(variant, now_s);
        for serial in self.pods_to_delete(variant, existing.saturating_sub(replicas)) {
            if let Some(index) = self.pods.iter().position(|pod| pod.serial == serial) {
                self.delete(index, now_s);
            }
        }
    }

    /// Begins to terminate a pod; one without requests ends at once.
    fn delete(&mut self, index: usize, now_s: f64) {
        let until_s = now_s + self.scenario.grace_period.as_secs_f64();
        if self.pods[index].terminate(until_s) {
            self.due_s[index] = self.pods[index].due_s();
        } else {
            self.remove(index, now_s);
        }
    }

    /// The serials of the `number` pods that are deleted next: pods that are not ready before those that are.
    fn pods_to_delete(&self, variant: usize, number: u32) -> Vec<u64> {
        let own = self.pods.iter().filter(|pod| pod.variant == variant);
        let mut pods: Vec<&Pod> = own.filter(|pod| pod.phase() != Phase::Terminating).collect();
        let rank = |pod: &Pod| match pod.phase() {
            Phase::Unschedulable => 0,
            Phase::Starting => 1,
            _ => 2,
        };
        pods.sort_by_key(|pod| (rank(pod), Reverse(pod.serial)));
        if self.scenario.deletion_order != DeletionOrder::Youngest {
            let ready = pods.split_off(pods.partition_point(|pod| pod.phase() != Phase::Ready));
            let knows_requests = self.scenario.deletion_order == DeletionOrder::LeastLoaded;
            let measured = |pod: &Pod| {
                let InFlight { tokens, requests } = pod.measured_in_flight();
                InFlight { tokens, requests: requests.filter(|_| knows_requests) }
            };
            let in_flight: Vec<InFlight> = ready.iter().map(|pod| measured(pod)).collect();
            pods.extend(order(&in_flight).into_iter().map(|index| ready[index]));
        }
        pods.iter().take(number as usize).map(|pod| pod.serial).collect()
    }

    /// Adds a pod of a variant that is ready at once, under a name given from outside. False when the name is taken.
    pub(crate) fn add_ready_pod(&mut self, variant: usize, name: &str, now_s: f64) -> bool {
        if self.pods.iter().any(|pod| pod.name == name) {
            return false;
        }
        let mut pod = self.new_pod(variant, now_s);
        pod.name = name.into();
        pod.schedule(now_s);
        let rng = self.step_rng(pod.serial);
        pod.become_ready(&server_setup(&self.scenario, variant), now_s, rng);
        self.add(pod);
        self.dispatch_held(now_s);
        true
    }

    /// Begins to terminate the pod of that name. False when there is none.
    pub(crate) fn delete_pod(&mut self, name: &str, now_s: f64) -> bool {
        let index = self.pods.iter().position(|pod| pod.name == name);
        if let Some(index) = index.filter(|index| self.pods[*index].phase() != Phase::Terminating) {
            self.delete(index, now_s);
        }
        index.is_some()
    }

    /// A request arrives at the gateway.
    pub(crate) fn arrive(&mut self, request: Request) {
        self.recorder.arrived();
        self.arrived.requests += 1.0;
        self.arrived.prompt += f64::from(request.prompt);
        self.arrived.output += f64::from(request.output);
        self.take(request, request.arrived_s);
    }

    /// Gives a request to a pod, or holds it.
    fn take(&mut self, request: Request, now_s: f64) {
        if !self.gateway.is_empty() || !self.dispatch(request, now_s) {
            self.hold(request);
        }
    }

    fn hold(&mut self, request: Request) {
        if self.gateway.len() >= MAX_HELD {
            self.recorder.failed(1);
            return;
        }
        self.gateway_tokens += u64::from(request.prompt);
        self.gateway.push_back(request);
    }

    /// Dispatches requests that the gateway holds, oldest first, until no pod takes the next one.
    fn dispatch_held(&mut self, now_s: f64) {
        let patience_s = self.scenario.patience_s();
        while let Some(&request) = self.gateway.front() {
            let is_impatient = now_s - request.sent_s > patience_s;
            if is_impatient {
                self.give_up(request, now_s);
            } else if !self.dispatch(request, now_s) {
                break;
            }
            self.gateway.pop_front();
            self.gateway_tokens -= u64::from(request.prompt);
        }
    }

    /// Gives a request to the ready pod that the scenario's routing chooses. Returns false when the gateway must hold it. The client
    /// of a request that its pod refuses does as one that has waited too long.
    fn dispatch(&mut self, request: Request, now_s: f64) -> bool {
        let max_waiting = self.scenario.max_waiting_per_pod.map_or(usize::MAX, |waiting| waiting as usize);
        let mut best: Option<(usize, f64)> = None;
        let mut ready = 0;
        for (index, pod) in self.pods.iter().enumerate() {
            let Some(server) = pod.ready_server().filter(|server| server.waiting() < max_waiting) else {
                continue;
            };
            ready += 1;
            // In turn: the next is the one after the pod that got the last request.
            let pressure = match self.scenario.routing {
                Routing::LeastPressure => server.pressure(now_s),
                Routing::RoundRobin => f64::from(u8::from(pod.serial <= self.last_serial)),
            };
            if best.is_none_or(|(_, least)| pressure < least) {
                best = Some((index, pressure));
            }
        }
        let Some((index, _)) = best else { return false };
        let pod = &mut self.pods[index];
        let cached = self.scenario.prefix_cache.found(request.cached, pod.dispatched, ready);
        let request = Request { cached, ..request };
        match pod.server_mut().map_or(Admission::Failed, |server| server.submit(request, now_s)) {
            Admission::Admitted => {}
            Admission::Refused => {
                self.give_up(request, now_s);
                return true;
            }
            Admission::Failed => {
                self.recorder.failed(1);
                return true;
            }
        }
        pod.dispatched += 1.0;
        self.last_serial = pod.serial;
        self.dispatched += 1.0;
        self.due_s[index] = self.pods[index].due_s();
        true
    }

    /// Ends the run: requests without a first token will never get one.
    pub(crate) fn close(&mut self, now_s: f64) {
        let in_pods = self.pods.iter().filter_map(Pod::server).flat_map(|server| server.unanswered());
        let retried = self.retries.iter().map(|(_, request)| *request);
        for request in in_pods.chain(self.gateway.iter().copied()).chain(retried) {
            self.recorder.unanswered(request, now_s);
        }
    }
}

/// What the servers of a variant are made of.
fn server_setup(scenario: &Scenario, variant: usize) -> ServerSetup<'_> {
    ServerSetup { variant: &scenario.variants[variant], patience_s: scenario.patience_s() }
}
