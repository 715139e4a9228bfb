//! Replicas of one model behind one gateway: pods start, serve, drain and go; requests are routed to the least loaded
//! pod, and wait at the gateway only while no pod is Ready.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::Moment;
use super::load::{LoadShape, Poisson, Request, TokenShape};
use super::physics::Physics;
use super::rng::Rng;
use super::server::Server;
use super::stats::Stats;

/// How long a terminating pod may finish what it has: the default `terminationGracePeriodSeconds` of Kubernetes.
const GRACE: Duration = Duration::from_secs(30);
/// Requests that the gateway holds while no pod is Ready: 1.6 MB, an hour at 18 requests/s. More are refused.
const MAX_AT_GATEWAY: usize = 65_536;
/// How often a load script is looked at: its ramps become steps of one second.
const SCRIPT_STEP: Duration = Duration::from_secs(1);

/// What a pod is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct PodSpec {
    /// Its name.
    pub name: String,
    /// What it belongs to: the variant or Deployment.
    pub group: String,
    /// How fast it is.
    pub physics: Physics,
    /// What it costs an hour.
    pub cost: f64,
}

/// Where a pod is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodPhase {
    /// Loading the model.
    Starting,
    /// Serving.
    Ready,
    /// Finishing what it has.
    Terminating,
}

/// A pod, seen from outside.
#[derive(Debug, Clone, Copy)]
pub struct PodView<'a> {
    /// Its name.
    pub name: &'a str,
    /// What it belongs to.
    pub group: &'a str,
    /// Where it is in its life.
    pub phase: PodPhase,
    /// When it was created.
    pub created: Moment,
    /// When it became Ready, if it did.
    pub ready_since: Option<Moment>,
    /// Its model server, once Ready.
    pub server: Option<&'a Server>,
}

/// Why a pod was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FleetError {
    /// Two pods cannot have one name.
    #[error("pod {0} exists already: remove it first or choose another name")]
    Duplicate(String),
    /// A fluid cannot be routed request by request.
    #[error("pod {0} has other physics than the fleet: give all pods of a fleet the same kind")]
    OtherPhysics(String),
}

/// How requests come: one by one, or as a fluid.
#[derive(Debug, Clone, PartialEq)]
enum Flow {
    Requests { poisson: Poisson, gateway: VecDeque<Request> },
    Fluid { rps: f64, gateway: f64 },
}

#[derive(Debug, Clone, PartialEq)]
struct Pod {
    spec: PodSpec,
    created: Moment,
    ready_at: Moment,
    server: Option<Server>,
    killed_at: Option<Moment>,
}

impl Pod {
    fn phase(&self) -> PodPhase {
        match (self.killed_at, &self.server) {
            (Some(_), _) => PodPhase::Terminating,
            (None, Some(_)) => PodPhase::Ready,
            (None, None) => PodPhase::Starting,
        }
    }

    fn view(&self) -> PodView<'_> {
        PodView {
            name: &self.spec.name,
            group: &self.spec.group,
            phase: self.phase(),
            created: self.created,
            ready_since: self.server.is_some().then_some(self.ready_at),
            server: self.server.as_ref(),
        }
    }

    /// When something happens to it by itself.
    fn due(&self) -> Option<Moment> {
        self.killed_at.or_else(|| self.server.is_none().then_some(self.ready_at))
    }
}

/// The figures of a fleet at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Summary {
    /// Pods starting.
    pub starting: usize,
    /// Pods serving.
    pub ready: usize,
    /// Pods finishing what they have.
    pub terminating: usize,
    /// Requests waiting, the gateway's included.
    pub waiting: f64,
    /// Requests running.
    pub running: f64,
    /// Mean KV-cache use of the Ready pods, 0 to 1.
    pub kv_usage: f64,
    /// Requests a second that come now (on average).
    pub rps: f64,
    /// Requests a second that the Ready pods can carry for long.
    pub capacity_rps: f64,
    /// The longest wait before running since the reset: of requests that have begun, and of those still waiting.
    pub max_wait_s: f64,
    /// Median time to first token of the last minute; `None` without first tokens.
    pub ttft_p50_s: Option<f64>,
    /// 95th percentile of the same.
    pub ttft_p95_s: Option<f64>,
    /// Requests answered to their last token, in all.
    pub completed: f64,
}

/// The replicas of one model, their load and their figures.
#[derive(Debug, Clone, PartialEq)]
pub struct Fleet {
    now: Moment,
    tokens: TokenShape,
    flow: Flow,
    script: Option<LoadShape>,
    pods: BTreeMap<String, Pod>,
    rng: Rng,
    stats: Stats,
}

impl Fleet {
    /// An empty fleet of servers with continuous batching; requests have `tokens`.
    #[must_use]
    pub fn of_requests(seed: u64, tokens: TokenShape) -> Self {
        let mut rng = Rng::new(seed);
        let flow = Flow::Requests { poisson: Poisson::new(&mut rng), gateway: VecDeque::new() };
        Self::with(flow, tokens, rng)
    }

    /// An empty fleet of fluid servers: load is shared evenly by the Ready pods.
    #[must_use]
    pub fn of_fluid(seed: u64, tokens: TokenShape) -> Self {
        Self::with(Flow::Fluid { rps: 0.0, gateway: 0.0 }, tokens, Rng::new(seed))
    }

    fn with(flow: Flow, tokens: TokenShape, rng: Rng) -> Self {
        let stats = Stats::default();
        Self { now: Moment::ZERO, tokens, flow, script: None, pods: BTreeMap::new(), rng, stats }
    }

    /// How far it has come.
    #[must_use]
    pub const fn now(&self) -> Moment {
        self.now
    }

    /// Requests a second from now on; ends a script. Negative or not a number is none.
    pub fn set_rate(&mut self, rps: f64) {
        self.script = None;
        self.apply_rate(rps);
    }

    /// Lets the rate follow a script from now on.
    pub fn follow(&mut self, script: LoadShape) {
        let rps = script.rate_at(self.now);
        self.script = Some(script);
        self.apply_rate(rps);
    }

    fn apply_rate(&mut self, wanted: f64) {
        let wanted = if wanted.is_finite() { wanted.max(0.0) } else { 0.0 };
        match &mut self.flow {
            Flow::Requests { poisson, .. } => poisson.rps = wanted,
            Flow::Fluid { rps, .. } => *rps = wanted,
        }
        self.spread_fluid();
    }

    /// Requests a second now.
    #[must_use]
    pub const fn rate(&self) -> f64 {
        match &self.flow {
            Flow::Requests { poisson, .. } => poisson.rps,
            Flow::Fluid { rps, .. } => *rps,
        }
    }

    /// Creates a pod that will be Ready after `ready_in`.
    ///
    /// # Errors
    /// When the name is taken or the physics are of another kind than the fleet's.
    pub fn start(&mut self, spec: PodSpec, ready_in: Duration) -> Result<(), FleetError> {
        if self.pods.contains_key(&spec.name) {
            return Err(FleetError::Duplicate(spec.name));
        }
        let fits = matches!(
            (&self.flow, &spec.physics),
            (Flow::Requests { .. }, Physics::Batching(_)) | (Flow::Fluid { .. }, Physics::Linear(_))
        );
        if !fits {
            return Err(FleetError::OtherPhysics(spec.name));
        }
        let (created, ready_at) = (self.now, self.now + ready_in);
        let name = spec.name.clone();
        self.pods.insert(name, Pod { spec, created, ready_at, server: None, killed_at: None });
        self.pod_events();
        Ok(())
    }

    /// Begins to end a pod: it gets no new requests, finishes what it has, and is killed after the grace period. A pod
    /// that has not begun to serve goes at once. False when there is no such pod.
    pub fn terminate(&mut self, name: &str) -> bool {
        let Some(pod) = self.pods.get_mut(name) else { return false };
        pod.killed_at.get_or_insert(if pod.server.is_some() { self.now + GRACE } else { self.now });
        self.pod_events();
        true
    }

    /// Ends a pod now; what it had is lost. False when there is no such pod.
    pub fn remove(&mut self, name: &str) -> bool {
        let Some(pod) = self.pods.remove(name) else { return false };
        self.stats.failed += pod.server.map_or(0.0, |server| server.in_flight());
        self.spread_fluid();
        true
    }

    /// Every pod, by name.
    pub fn pods(&self) -> impl Iterator<Item = PodView<'_>> {
        self.pods.values().map(Pod::view)
    }

    /// One pod.
    #[must_use]
    pub fn pod(&self, name: &str) -> Option<PodView<'_>> {
        self.pods.get(name).map(Pod::view)
    }

    /// Totals since the beginning.
    #[must_use]
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Forgets waits and first tokens; totals stay.
    pub fn reset_stats(&mut self) {
        self.stats.reset();
    }

    /// Lets time pass until `to`. Going back does nothing.
    pub fn advance(&mut self, to: Moment) {
        while self.now < to {
            let arrival = match &self.flow {
                Flow::Requests { poisson, .. } => poisson.due(self.now),
                Flow::Fluid { .. } => None,
            };
            let next = [arrival, self.next_pod_event(), self.next_script_step()];
            let next = next.into_iter().flatten().fold(to, Moment::min).max(self.now);
            self.pass(next);
            self.pod_events();
            if let Some(script) = &self.script
                && self.now.subsec_nanos() == 0
            {
                // Only at whole seconds, so that it does not matter how often somebody looks.
                let rps = script.rate_at(self.now);
                self.apply_rate(rps);
            }
            if arrival.is_some_and(|at| at <= next) {
                self.arrive();
            }
        }
        self.stats.expire(self.now);
    }

    fn next_pod_event(&self) -> Option<Moment> {
        self.pods.values().filter_map(Pod::due).min()
    }

    fn next_script_step(&self) -> Option<Moment> {
        let into = self.now.as_nanos() % SCRIPT_STEP.as_nanos();
        self.script.is_some().then(|| self.now + SCRIPT_STEP - Duration::from_nanos(into as u64))
    }

    fn pass(&mut self, to: Moment) {
        let dt = to.saturating_sub(self.now);
        self.now = to;
        let hours = dt.as_secs_f64() / 3600.0;
        for pod in self.pods.values_mut() {
            self.stats.cost += pod.spec.cost * hours;
            if let Some(server) = &mut pod.server {
                server.advance(to, &mut self.stats);
            }
        }
        let nobody_ready = !self.pods.values().any(|pod| pod.phase() == PodPhase::Ready);
        match &mut self.flow {
            Flow::Requests { poisson, .. } => poisson.pass(dt),
            Flow::Fluid { rps, gateway } => {
                let came = *rps * dt.as_secs_f64();
                self.stats.arrived += came;
                if nobody_ready {
                    *gateway += came;
                }
            }
        }
    }

    /// Makes Ready what is due, removes what has drained or run out of grace, and empties the gateway.
    fn pod_events(&mut self) {
        let now = self.now;
        for pod in self.pods.values_mut().filter(|pod| pod.phase() == PodPhase::Starting) {
            if pod.ready_at <= now {
                pod.server = Some(Server::new(pod.spec.physics, now));
            }
        }
        let gone = |pod: &Pod| {
            let empty = pod.server.as_ref().is_none_or(|server| server.in_flight() <= 0.0);
            pod.killed_at.is_some_and(|at| at <= now || empty)
        };
        let names: Vec<String> =
            self.pods.iter().filter(|(_, pod)| gone(pod)).map(|(name, _)| name.clone()).collect();
        for name in names {
            self.remove(&name);
        }
        self.empty_gateway();
        self.spread_fluid();
    }

    fn arrive(&mut self) {
        let Flow::Requests { poisson, .. } = &mut self.flow else { return };
        poisson.draw(&mut self.rng);
        let request = self.tokens.request(self.now.as_secs_f64(), &mut self.rng);
        self.stats.arrived += 1.0;
        self.route(request);
    }

    /// To the Ready pod with the least pressure; to the gateway's queue when there is none.
    fn route(&mut self, request: Request) {
        let ready = self.pods.values_mut().filter(|pod| pod.phase() == PodPhase::Ready);
        let servers = ready.filter_map(|pod| pod.server.as_mut());
        let now = self.now;
        let best = servers.min_by(|a, b| a.pressure(now).total_cmp(&b.pressure(now)));
        let refused = match (best, &mut self.flow) {
            (Some(server), _) => server.submit(request, now).is_err(),
            (None, Flow::Requests { gateway, .. }) if gateway.len() < MAX_AT_GATEWAY => {
                gateway.push_back(request);
                false
            }
            (None, _) => true,
        };
        self.stats.failed += f64::from(u8::from(refused));
    }

    fn empty_gateway(&mut self) {
        let ready = self.pods.values().filter(|pod| pod.phase() == PodPhase::Ready).count();
        if ready == 0 {
            return;
        }
        match &mut self.flow {
            Flow::Requests { gateway, .. } => {
                for request in std::mem::take(gateway) {
                    self.route(request);
                }
            }
            Flow::Fluid { gateway, .. } => {
                let each = std::mem::take(gateway) / ready as f64;
                for pod in self.pods.values_mut().filter(|pod| pod.phase() == PodPhase::Ready) {
                    pod.server.iter_mut().for_each(|server| server.pour(each));
                }
            }
        }
    }

    /// A fluid is shared evenly by the Ready pods; the others get none.
    fn spread_fluid(&mut self) {
        let Flow::Fluid { rps, .. } = &self.flow else { return };
        let ready = self.pods.values().filter(|pod| pod.phase() == PodPhase::Ready).count();
        let share = rps / ready.max(1) as f64;
        for pod in self.pods.values_mut() {
            let offered = if pod.phase() == PodPhase::Ready { share } else { 0.0 };
            pod.server.iter_mut().for_each(|server| server.offer(offered));
        }
    }

    /// The figures now.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let (waiting, gateway_wait_s) = match &self.flow {
            Flow::Requests { gateway, .. } => {
                let now_s = self.now.as_secs_f64();
                let oldest_s = gateway.front().map_or(now_s, |request| request.arrived_s);
                (gateway.len() as f64, (now_s - oldest_s).max(0.0))
            }
            Flow::Fluid { rps, gateway } => (*gateway, if *rps > 0.0 { gateway / rps } else { 0.0 }),
        };
        let mut summary = Summary {
            waiting,
            rps: self.rate(),
            max_wait_s: self.stats.longest_wait_s().max(gateway_wait_s),
            completed: self.stats.finished,
            ..Summary::default()
        };
        for pod in self.pods.values() {
            self.add_pod(pod, &mut summary);
        }
        summary.kv_usage /= summary.ready.max(1) as f64;
        if let Some([p50, p95]) = self.stats.first_token_quantiles([0.5, 0.95]) {
            (summary.ttft_p50_s, summary.ttft_p95_s) = (Some(p50), Some(p95));
        }
        summary
    }

    fn add_pod(&self, pod: &Pod, summary: &mut Summary) {
        match pod.phase() {
            PodPhase::Starting => summary.starting += 1,
            PodPhase::Ready => summary.ready += 1,
            PodPhase::Terminating => summary.terminating += 1,
        }
        let Some(server) = &pod.server else { return };
        let readings = server.readings();
        summary.waiting += readings.waiting;
        summary.running += readings.running;
        summary.max_wait_s = summary.max_wait_s.max(server.oldest_wait_s(self.now));
        if pod.killed_at.is_none() {
            summary.kv_usage += readings.kv_usage;
            summary.capacity_rps += pod.spec.physics.capacity_rps(self.tokens);
        }
    }
}
