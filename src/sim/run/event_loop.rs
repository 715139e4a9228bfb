//! Everything that happens by the clock: scrapes, decisions, HPA syncs, KEDA polls, and the points of the series.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use wva_core::hpa::{Kind, MetricTarget, combine, milli, propose};
use wva_core::units::{Replicas, truncated_u32};

use super::controllers::{CoreController, Numbers, PoolMetrics, fixed_replicas, scheduled_replicas};
use super::observer::Observer;
use super::peers::PeerState;
use super::recorder::RunRecorder;
use super::results::{Point, ReplicaNumbers, Run};
use super::scaler::Scaler;
use crate::cluster::SimCluster;
use crate::controller::{Algorithm, Controller, MetricPath, ScheduleEntry};
use crate::peer::Peer;
use crate::program::PROGRAM_DEFAULTS;
use crate::rng::Rng;
use crate::scenario::Scenario;

/// KEDA checks this often whether a target at zero should wake, seconds.
const KEDA_POLL_INTERVAL_S: f64 = 30.0;
/// KEDA scales a target to zero after this long without activity, seconds.
const KEDA_COOLDOWN_S: f64 = 300.0;
/// Random stream of the phases of periodic events.
const PHASE_STREAM: u64 = 4;

/// A periodic event.
#[derive(Debug, Clone, Copy)]
struct Timer {
    next_s: f64,
    interval_s: f64,
}

impl Timer {
    const NEVER: Self = Self { next_s: f64::INFINITY, interval_s: f64::INFINITY };

    fn at_random_phase(interval_s: f64, rng: &mut Rng) -> Self {
        Self { next_s: rng.unit() * interval_s, interval_s }
    }

    /// Whether the event is due at `now_s`. If so, the next one is set.
    fn take_due(&mut self, now_s: f64) -> bool {
        let is_due = self.next_s <= now_s;
        if is_due {
            self.next_s += self.interval_s;
        }
        is_due
    }
}

/// The controller with what it has measured.
#[derive(Debug)]
enum ControllerState<'a> {
    Core(Box<CoreController<'a>>),
    Keda { pool: PoolMetrics, last_active_s: f64 },
    Peer(Box<PeerState>),
    Schedule,
}

impl<'a> ControllerState<'a> {
    fn new(scenario: &Scenario, controller: &'a Controller, seed: u64) -> Self {
        match &controller.algorithm {
            Algorithm::Core(policy) => {
                let slack = match controller.path {
                    MetricPath::Direct => Duration::ZERO,
                    MetricPath::Prometheus { scrape, .. } => scrape,
                };
                let observer = Observer::new(scenario, policy, seed, slack);
                Self::Core(Box::new(CoreController::new(scenario, policy, observer)))
            }
            Algorithm::KedaEpp { .. } => Self::Keda { pool: PoolMetrics::default(), last_active_s: 0.0 },
            Algorithm::Peer(peer) => Self::Peer(Box::new(PeerState::new(*peer, scenario.variants.len()))),
            Algorithm::Schedule(_) | Algorithm::Fixed(_) => Self::Schedule,
        }
    }
}

/// All periodic events of a run.
#[derive(Debug)]
pub(super) struct EventLoop<'a> {
    scenario: &'a Scenario,
    controller: &'a Controller,
    state: ControllerState<'a>,
    /// Of a controller that has one.
    schedule: Arc<[ScheduleEntry]>,
    rng: Rng,
    /// The numbers that HPAs can read.
    published: Numbers,
    /// Numbers that HPAs can read later.
    publishing: VecDeque<ReplicaNumbers>,
    /// Scrapes of all pods; of the scheduler alone where Prometheus scrapes each pod at a phase of its own.
    scrapes: Timer,
    decisions: Timer,
    last_decision_s: f64,
    keda_polls: Timer,
    points: Timer,
    end_s: f64,
    /// By variant.
    scalers: Vec<Scaler>,
    /// By variant.
    syncs: Vec<Timer>,
    /// When each HPA gets its answer, seconds: later than its sync where the read waits for an evaluation. Infinite between
    /// syncs.
    answers_s: Vec<f64>,
    next_s: f64,
}

impl<'a> EventLoop<'a> {
    pub(super) fn new(scenario: &'a Scenario, controller: &'a Controller, seed: u64) -> Self {
        let mut rng = Rng::stream(seed, PHASE_STREAM);
        let variants = &scenario.variants;
        let sync_s = scenario.hpa.sync.as_secs_f64();
        let syncs: Vec<Timer> = variants.iter().map(|_| Timer::at_random_phase(sync_s, &mut rng)).collect();
        let end_s = scenario.duration.as_secs_f64();
        let point_s = (end_s / Run::MAX_POINTS as f64).max(1.0);
        let mut events = Self {
            scenario,
            controller,
            state: ControllerState::new(scenario, controller, seed),
            schedule: match &controller.algorithm {
                Algorithm::Schedule(schedule) => schedule.as_slice().into(),
                _ => Arc::default(),
            },
            published: vec![None; variants.len()],
            publishing: VecDeque::new(),
            scrapes: Timer::NEVER,
            decisions: Timer::NEVER,
            last_decision_s: f64::NEG_INFINITY,
            keda_polls: Timer::NEVER,
            points: Timer { next_s: point_s, interval_s: point_s },
            end_s,
            scalers: variants.iter().map(|variant| Scaler::new(scenario, controller, variant)).collect(),
            answers_s: vec![f64::INFINITY; syncs.len()],
            syncs,
            next_s: 0.0,
            rng,
        };
        events.set_controller_timers();
        events
    }

    /// The same events, to be continued under a schedule: the state of any other controller is lost.
    pub(super) fn fork(&self, schedule: &Arc<[ScheduleEntry]>) -> Self {
        Self {
            state: ControllerState::Schedule,
            schedule: schedule.clone(),
            rng: self.rng.clone(),
            published: self.published.clone(),
            publishing: self.publishing.clone(),
            scalers: self.scalers.clone(),
            syncs: self.syncs.clone(),
            answers_s: self.answers_s.clone(),
            ..*self
        }
    }

    fn set_controller_timers(&mut self) {
        let rng = &mut self.rng;
        let own_period = match &self.controller.algorithm {
            Algorithm::Peer(peer) => peer.period(),
            _ => None,
        };
        let scrape = own_period.unwrap_or(match self.controller.path {
            MetricPath::Direct => self.scenario.scrape.interval,
            MetricPath::Prometheus { scrape, .. } => scrape,
        });
        if !matches!(self.state, ControllerState::Schedule) {
            self.scrapes = Timer::at_random_phase(scrape.as_secs_f64(), rng);
        }
        match (&self.state, self.controller.path) {
            (ControllerState::Core(_), MetricPath::Direct) => {
                let interval_s = PROGRAM_DEFAULTS.evaluation_interval.as_secs_f64();
                self.decisions = Timer { next_s: interval_s, interval_s };
            }
            (ControllerState::Core(_), MetricPath::Prometheus { reconcile, .. }) => {
                self.decisions = Timer::at_random_phase(reconcile.as_secs_f64(), rng);
            }
            (ControllerState::Keda { .. }, _) => {
                self.keda_polls = Timer::at_random_phase(KEDA_POLL_INTERVAL_S, rng);
            }
            (ControllerState::Peer(_) | ControllerState::Schedule, _) => {}
        }
    }

    /// When the next event is due, seconds.
    pub(super) const fn next_s(&self) -> f64 {
        self.next_s
    }

    /// When a core that scrapes pods itself can use its next samples, from which it decides at once; else infinite. Seconds.
    fn usable_s(&self) -> f64 {
        match (&self.state, self.controller.path) {
            (ControllerState::Core(core), MetricPath::Direct) => core.observer.usable_s(),
            _ => f64::INFINITY,
        }
    }

    fn update_next(&mut self, cluster: &SimCluster<RunRecorder>) {
        let timers = [&self.scrapes, &self.decisions, &self.keda_polls, &self.points];
        let timers_s = timers.into_iter().chain(&self.syncs).map(|timer| timer.next_s);
        let publishing_s = self.publishing.front().map(|next| next.at_s);
        let scrapes_s = cluster.pods().iter().map(|pod| pod.next_scrape_s);
        let answers_s = self.answers_s.iter().copied();
        let all_s = timers_s.chain(publishing_s).chain(answers_s).chain(scrapes_s);
        self.next_s = all_s.fold(self.usable_s(), f64::min);
    }

    /// Processes what is due at `now_s`. Returns true when it was time for a point of the series.
    pub(super) fn process(&mut self, now_s: f64, cluster: &mut SimCluster<RunRecorder>) -> bool {
        self.scrape(now_s, cluster);
        self.decide(now_s, cluster);
        while let Some(next) = self.publishing.pop_front_if(|next| next.at_s <= now_s) {
            self.published = next.numbers;
        }
        self.record_published(now_s, cluster);
        for variant in 0..self.syncs.len() {
            self.sync_hpa(variant, now_s, cluster);
        }
        if self.keda_polls.take_due(now_s) {
            self.poll_keda(now_s, cluster);
        }
        // The last point is added at the very end.
        let is_point = self.points.take_due(now_s) && now_s + self.points.interval_s / 2.0 < self.end_s;
        if is_point && cluster.recorder.has_series() {
            add_point(now_s, cluster);
        }
        self.update_next(cluster);
        is_point
    }

    /// Records the numbers that HPAs can read, if they changed.
    fn record_published(&self, now_s: f64, cluster: &mut SimCluster<RunRecorder>) {
        let history = &mut cluster.recorder.run.published;
        let is_unchanged = match history.last() {
            Some(last) => last.numbers == self.published,
            None => self.published.iter().all(Option::is_none),
        };
        if !is_unchanged && history.len() < Run::MAX_CHANGES {
            history.push(ReplicaNumbers { at_s: now_s, numbers: self.published.clone() });
        }
    }

    fn scrape(&mut self, now_s: f64, cluster: &mut SimCluster<RunRecorder>) {
        let is_due = self.scrapes.take_due(now_s);
        match (&mut self.state, self.controller.path) {
            (ControllerState::Core(core), MetricPath::Direct) if is_due => {
                core.observer.scrape_all(cluster, now_s, self.scenario.scrape.delay.as_secs_f64());
            }
            (ControllerState::Core(core), MetricPath::Prometheus { scrape, .. }) => {
                let interval_s = scrape.as_secs_f64();
                schedule_scrapes(cluster, now_s, interval_s, &mut self.rng);
                core.observer.scrape_due(cluster, now_s, interval_s, is_due);
            }
            (ControllerState::Keda { pool, last_active_s }, _) if is_due => {
                *pool = PoolMetrics::read(cluster, now_s);
                if pool.requests > 0.0 {
                    *last_active_s = now_s;
                }
            }
            (ControllerState::Peer(peer), _) if is_due => {
                peer.read(cluster, now_s);
                if self.writes_itself() {
                    self.write_numbers(now_s, cluster);
                }
            }
            _ => {}
        }
    }

    /// The controller writes replicas without an HPA.
    fn writes_itself(&self) -> bool {
        matches!(self.controller.algorithm, Algorithm::Peer(peer) if peer.period().is_some())
    }

    /// Lets a peer write its numbers.
    fn write_numbers(&mut self, now_s: f64, cluster: &mut SimCluster<RunRecorder>) {
        let ControllerState::Peer(peer) = &mut self.state else { return };
        for (variant, number) in peer.decide(cluster, now_s).into_iter().enumerate() {
            let bounds = self.scenario.variants[variant].bounds;
            let number = bounds.clamp(Replicas::new(truncated_u32(number)));
            self.scalers[variant].write(variant, cluster, now_s, number);
        }
    }

    /// Lets the core decide when it is time, or when there are new samples.
    fn decide(&mut self, now_s: f64, cluster: &SimCluster<RunRecorder>) {
        let is_due = self.decisions.take_due(now_s);
        let has_samples = self.usable_s() <= now_s;
        let ControllerState::Core(core) = &mut self.state else { return };
        match self.controller.path {
            MetricPath::Direct if is_due || has_samples => {
                self.published = core.decide(cluster, now_s);
                self.last_decision_s = now_s;
                self.decisions.next_s = now_s + PROGRAM_DEFAULTS.evaluation_interval.as_secs_f64();
            }
            MetricPath::Prometheus { publish, .. } if is_due => {
                let numbers = core.decide(cluster, now_s);
                self.publishing.push_back(ReplicaNumbers { at_s: now_s + publish.as_secs_f64(), numbers });
            }
            _ => {}
        }
    }

    /// Syncs the HPA of a variant, or gives it the answer that its read waited for.
    fn sync_hpa(&mut self, variant: usize, now_s: f64, cluster: &mut SimCluster<RunRecorder>) {
        if self.syncs[variant].take_due(now_s) && !self.writes_itself() {
            let delay_s = self.scenario.scrape.delay.as_secs_f64();
            let is_old = now_s - self.last_decision_s > PROGRAM_DEFAULTS.max_age.as_secs_f64();
            let needs_evaluation = is_old && self.scenario.scrape.delay <= PROGRAM_DEFAULTS.read_wait;
            self.answers_s[variant] = match (&mut self.state, self.controller.path) {
                (ControllerState::Core(core), MetricPath::Direct) if needs_evaluation => {
                    core.observer.scrape_all(cluster, now_s, delay_s);
                    now_s + delay_s
                }
                _ => now_s,
            };
        }
        // An answer comes from the decision about all samples that can be used.
        if self.answers_s[variant] <= now_s && self.usable_s() > now_s {
            self.answers_s[variant] = f64::INFINITY;
            let proposal = self.proposal(variant, now_s, cluster);
            self.scalers[variant].sync(variant, cluster, now_s, proposal);
        }
    }

    /// The replicas that an HPA proposes from the numbers it reads.
    fn proposal(&self, variant: usize, now_s: f64, cluster: &SimCluster<RunRecorder>) -> Option<Replicas> {
        let counts = cluster.counts(variant);
        let average = |value: f64, target: f64| {
            let target = MetricTarget { kind: Kind::AverageValue, milli: milli(target) };
            propose(&[milli(value)], target, counts, self.scenario.hpa.tolerance)
        };
        let number = match (&self.state, &self.controller.algorithm) {
            (ControllerState::Keda { pool, .. }, Algorithm::KedaEpp { in_pod, waiting }) => {
                let proposals = [average(pool.requests, *in_pod), average(pool.waiting, *waiting)];
                return combine(&proposals, counts.spec);
            }
            (ControllerState::Peer(peer), Algorithm::Peer(Peer::RunningRequests { per_pod })) => {
                return average(peer.running(variant), *per_pod);
            }
            (_, Algorithm::Schedule(_)) => scheduled_replicas(&self.schedule, self.scenario, variant, now_s),
            (_, Algorithm::Fixed(fleet)) => fixed_replicas(fleet, variant),
            _ => self.published.get(variant).copied().flatten(),
        };
        let number = number?.get().saturating_add(self.spares(variant));
        average(f64::from(number), 1.0)
    }

    /// Warm spares belong to the cheapest variant.
    fn spares(&self, variant: usize) -> u32 {
        let costs = self.scenario.variants.iter().map(|variant| variant.cost.get()).enumerate();
        let cheapest = costs.min_by(|(_, left), (_, right)| left.total_cmp(right)).map(|(index, _)| index);
        if cheapest == Some(variant) { self.controller.spares } else { 0 }
    }

    /// Lets KEDA scale to zero and back.
    fn poll_keda(&mut self, now_s: f64, cluster: &mut SimCluster<RunRecorder>) {
        let ControllerState::Keda { pool, last_active_s } = &self.state else { return };
        let is_active = pool.requests > 0.0;
        let idle_s = now_s - last_active_s;
        for (variant, scaler) in self.scalers.iter_mut().enumerate() {
            let min = self.scenario.variants[variant].bounds.min;
            let spec = cluster.counts(variant).spec;
            if spec == Replicas::ZERO && is_active {
                scaler.write(variant, cluster, now_s, min.max(Replicas::ONE));
            } else if min == Replicas::ZERO && !is_active && idle_s >= KEDA_COOLDOWN_S {
                scaler.write(variant, cluster, now_s, Replicas::ZERO);
            }
        }
    }

    /// Adds the last point, and what is counted here: mean replicas and cost.
    pub(super) fn finish(mut self, cluster: &mut SimCluster<RunRecorder>) {
        let end_s = self.end_s;
        if cluster.recorder.has_series() {
            add_point(end_s, cluster);
        }
        let mut replica_s = 0.0;
        let mut cost_s = 0.0;
        for (variant, scaler) in self.scalers.iter_mut().enumerate() {
            scaler.account(cluster.counts(variant).spec, end_s);
            replica_s += scaler.replica_s;
            cost_s += scaler.replica_s * scaler.cost;
        }
        let run = &mut cluster.recorder.run;
        run.replicas_avg = replica_s / end_s;
        run.cost_avg = cost_s / end_s;
        if let ControllerState::Core(core) = &self.state {
            run.contradicted_decisions = core.contradicted_decisions;
        }
    }
}

/// Gives pods that have become ready their first scrape by Prometheus, at a random phase.
fn schedule_scrapes(cluster: &mut SimCluster<RunRecorder>, now_s: f64, interval_s: f64, rng: &mut Rng) {
    for pod in cluster.pods_mut() {
        if pod.next_scrape_s.is_infinite() && pod.server().is_some() {
            pod.next_scrape_s = now_s + rng.unit() * interval_s;
        }
    }
}

fn add_point(now_s: f64, cluster: &mut SimCluster<RunRecorder>) {
    let mut point =
        Point { at_s: now_s, spec_replicas: cluster.spec_replicas().to_vec(), ..Point::default() };
    point.waiting = cluster.gateway().requests;
    for index in 0..cluster.pods().len() {
        let read = cluster.read_pod(index, now_s, |pod, readings| {
            point.waiting += readings.waiting;
            point.running += readings.running;
            if pod.ready_server().is_some() {
                point.ready += 1;
                point.kv_usage += readings.kv_usage;
            }
        });
        if read.is_none() {
            point.starting += 1;
        }
    }
    point.kv_usage /= f64::from(point.ready.max(1));
    cluster.recorder.add_point(point);
}
