//! A live fleet: the simulated pods of one model, driven from outside. The demo and the model servers of the end-to-end
//! tests let time pass, set the load and the replicas, and read the pods' metrics.

use std::collections::VecDeque;
use std::time::Duration;

use wva_core::hpa::Counts;
use wva_core::snapshot::Phase;

use super::cluster::{Pod, SimCluster};
use super::load::{ArrivalGap, LoadShape, Pattern, Request, span};
use super::recorder::{Recorder, ServedRequest};
use super::rng::Rng;
use super::scenario::{Scenario, SimVariant};
use super::sizes::{RequestSize, RequestSizes};

/// Window of the time-to-first-token quantiles, seconds.
const TTFT_WINDOW_S: f64 = 60.0;
/// Samples that the window holds at most: a minute at 333 requests/s, 320 kB. Further ones replace the oldest.
const MAX_TTFT_SAMPLES: usize = 20_000;
/// Random stream of the requests.
const REQUEST_STREAM: u64 = 3;
/// A fleet has one variant.
const VARIANT: usize = 0;

/// The figures of a fleet at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Summary {
    /// Pods starting.
    pub starting: usize,
    /// Pods ready.
    pub ready: usize,
    /// Pods terminating.
    pub terminating: usize,
    /// Requests waiting, those at the gateway included.
    pub waiting: f64,
    /// Requests running.
    pub running: f64,
    /// Mean KV-cache usage of the ready pods, 0 to 1.
    pub kv_usage: f64,
    /// Current mean demand, requests a second.
    pub rps: f64,
    /// Requests a second that the ready pods can sustain.
    pub capacity_rps: f64,
    /// The longest wait before running since the last reset, of requests that began to run and of those still waiting,
    /// seconds.
    pub max_wait_s: f64,
    /// Median time to first token of the last minute, seconds; `None` without first tokens.
    pub ttft_p50_s: Option<f64>,
    /// The 95th percentile of the same.
    pub ttft_p95_s: Option<f64>,
    /// Requests that arrived.
    pub arrived: u64,
    /// Requests answered to their last token.
    pub finished: u64,
    /// Requests refused by a full queue, larger than a server's memory, or cut off when their pod was killed.
    pub failed: u64,
    /// Cost of all pods so far: cost an hour of the variant times the hours that pods had a node.
    pub cost: f64,
}

/// The pods of one model, their load and their figures.
#[derive(Debug)]
pub struct Fleet {
    cluster: SimCluster<LiveStats>,
    arrivals: LiveArrivals,
    now_s: f64,
    load: Option<LoadShape>,
    /// When the rate follows `load` next: at whole seconds, however often the fleet is advanced. Infinite without a load.
    next_load_step_s: f64,
}

impl Fleet {
    /// The initial replicas of `variant` without load. Requests will have `sizes` and arrive as Poisson arrivals.
    #[must_use]
    pub fn new(variant: SimVariant, sizes: RequestSizes, seed: u64) -> Self {
        let max_duration = Scenario::MAX_DURATION;
        let scenario = Scenario::new("live", max_duration, LoadShape::default(), sizes, vec![variant]);
        Self {
            cluster: SimCluster::new(scenario, seed, LiveStats::default()),
            arrivals: LiveArrivals::new(sizes, Pattern::Poisson, Rng::stream(seed, REQUEST_STREAM)),
            now_s: 0.0,
            load: None,
            next_load_step_s: f64::INFINITY,
        }
    }

    /// The same fleet whose requests follow each other in `pattern`.
    #[must_use]
    pub fn with_pattern(mut self, pattern: Pattern) -> Self {
        self.arrivals.pattern = pattern;
        self.arrivals.draw();
        self
    }

    /// The time it has been advanced to, after the start.
    #[must_use]
    pub fn now(&self) -> Duration {
        span(self.now_s)
    }

    /// Sets a constant demand from now on, requests a second. Negative values and NaN count as 0.
    pub fn set_rate(&mut self, rps: f64) {
        self.load = None;
        self.next_load_step_s = f64::INFINITY;
        self.arrivals.rps = if rps.is_finite() { rps.max(0.0) } else { 0.0 };
    }

    /// Lets the demand follow `load` from now on.
    pub fn follow(&mut self, load: LoadShape) {
        self.set_rate(load.rate_at(self.now()));
        self.next_load_step_s = self.now_s.floor() + 1.0;
        self.load = Some(load);
    }

    /// Sets `spec.replicas`.
    pub fn scale(&mut self, replicas: u32) {
        self.cluster.scale(VARIANT, replicas, self.now_s);
    }

    /// Replica counts, as a scale target reports them.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.cluster.counts(VARIANT)
    }

    /// Adds a pod that is ready at once. Returns false when the name is taken.
    pub fn add_ready_pod(&mut self, name: &str) -> bool {
        self.cluster.add_ready_pod(VARIANT, name, self.now_s)
    }

    /// Begins to terminate a pod: it gets no new requests, finishes those it has, and is killed after the grace period.
    /// Returns false when there is no such pod.
    pub fn delete_pod(&mut self, name: &str) -> bool {
        self.cluster.delete_pod(name, self.now_s)
    }

    /// All pods, oldest first.
    #[must_use]
    pub fn pods(&self) -> &[Pod] {
        self.cluster.pods()
    }

    /// The pod of that name.
    #[must_use]
    pub fn pod(&self, name: &str) -> Option<&Pod> {
        self.pods().iter().find(|pod| pod.name == name)
    }

    /// Resets the longest wait and the times to first token; totals stay.
    pub fn reset_stats(&mut self) {
        self.cluster.recorder.reset();
    }

    /// Lets time pass until `to`, after the start. An earlier time does nothing.
    pub fn advance(&mut self, to: Duration) {
        let end_s = to.as_secs_f64();
        while self.now_s < end_s {
            let arrival_s = self.arrivals.next_s(self.now_s);
            let event_s = arrival_s.min(self.cluster.next_event_s()).min(self.next_load_step_s);
            let next_s = event_s.clamp(self.now_s, end_s);
            self.arrivals.pass(next_s - self.now_s);
            self.now_s = next_s;
            if self.cluster.next_event_s() <= next_s {
                self.cluster.process_events(next_s);
            }
            if self.next_load_step_s <= next_s {
                self.next_load_step_s += 1.0;
                let now = self.now();
                self.arrivals.rps = self.load.as_ref().map_or(0.0, |load| load.rate_at(now));
            }
            if arrival_s <= next_s {
                let request = self.arrivals.next(next_s);
                self.cluster.arrive(request);
            }
        }
        for index in 0..self.cluster.pods().len() {
            self.cluster.read_pod(index, self.now_s, |_, _| ());
        }
        self.cluster.recorder.expire(self.now_s);
    }

    /// The current figures.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let stats = &self.cluster.recorder;
        let gateway = self.cluster.gateway();
        let gateway_wait_s = gateway.oldest_s.map_or(0.0, |oldest_s| self.now_s - oldest_s);
        let variant = &self.cluster.scenario().variants[VARIANT];
        let gpu_hours = self.cluster.gpu_seconds(self.now_s) / 3600.0;
        let [ttft_p50_s, ttft_p95_s] = stats.ttft_quantiles([0.5, 0.95]);
        let mut summary = Summary {
            waiting: gateway.requests,
            rps: self.arrivals.rps,
            max_wait_s: stats.max_wait_s.max(gateway_wait_s),
            ttft_p50_s,
            ttft_p95_s,
            arrived: stats.arrived,
            finished: stats.finished,
            failed: stats.failed,
            cost: gpu_hours / f64::from(variant.gpus) * variant.cost.get(),
            ..Summary::default()
        };
        for pod in self.cluster.pods() {
            match pod.phase() {
                Phase::Ready => summary.ready += 1,
                Phase::Terminating => summary.terminating += 1,
                _ => summary.starting += 1,
            }
            let Some(server) = pod.server() else { continue };
            let readings = server.readings();
            summary.waiting += readings.waiting;
            summary.running += readings.running;
            summary.max_wait_s = summary.max_wait_s.max(server.oldest_wait_s(self.now_s));
            if pod.phase() == Phase::Ready {
                summary.kv_usage += readings.kv_usage;
                summary.capacity_rps += variant.physics.capacity_rps(self.arrivals.sizes);
            }
        }
        summary.kv_usage /= summary.ready.max(1) as f64;
        summary
    }
}

/// Requests at a rate that may change at any time.
#[derive(Debug)]
struct LiveArrivals {
    rps: f64,
    pattern: Pattern,
    sizes: RequestSizes,
    /// What is left of the gap to the next arrival. It counts requests, so that a change of the rate needs no new draw.
    gap: ArrivalGap,
    rng: Rng,
}

impl LiveArrivals {
    fn new(sizes: RequestSizes, pattern: Pattern, mut rng: Rng) -> Self {
        Self { rps: 0.0, pattern, sizes, gap: pattern.draw(&mut rng), rng }
    }

    fn draw(&mut self) {
        self.gap = self.pattern.draw(&mut self.rng);
    }

    /// When the next request arrives if the rate stays, seconds.
    fn next_s(&self, now_s: f64) -> f64 {
        if self.rps > 0.0 { now_s + self.gap.expected / self.rps } else { f64::INFINITY }
    }

    /// Lets `seconds` pass without an arrival.
    fn pass(&mut self, seconds: f64) {
        self.gap.expected = (self.gap.expected - self.rps * seconds).max(0.0);
    }

    /// Takes the request that arrives now.
    fn next(&mut self, now_s: f64) -> Request {
        self.gap.burst = self.gap.burst.saturating_sub(1);
        if self.gap.burst == 0 {
            self.draw();
        }
        let RequestSize { prompt, output } = self.sizes.draw(&mut self.rng);
        Request::new(now_s, prompt, output, 0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct TtftSample {
    at_s: f64,
    ttft_s: f64,
}

/// Totals since the start, and what users felt in the last minute.
#[derive(Debug, Default)]
struct LiveStats {
    arrived: u64,
    finished: u64,
    failed: u64,
    /// The longest wait of a request that began to run, since the last reset.
    max_wait_s: f64,
    ttft_samples: VecDeque<TtftSample>,
}

impl LiveStats {
    fn reset(&mut self) {
        self.max_wait_s = 0.0;
        self.ttft_samples.clear();
    }

    /// Drops the samples that have left the window.
    fn expire(&mut self, now_s: f64) {
        while self.ttft_samples.front().is_some_and(|sample| sample.at_s < now_s - TTFT_WINDOW_S) {
            self.ttft_samples.pop_front();
        }
    }

    /// The times to first token in the window at each of `shares`, 0 to 1; `None` without first tokens.
    fn ttft_quantiles<const N: usize>(&self, shares: [f64; N]) -> [Option<f64>; N] {
        let mut values: Vec<f64> = self.ttft_samples.iter().map(|sample| sample.ttft_s).collect();
        values.sort_by(f64::total_cmp);
        shares.map(|share| {
            let rank = (share * values.len() as f64).ceil() as usize;
            values.get(rank.saturating_sub(1)).copied()
        })
    }
}

impl Recorder for LiveStats {
    fn arrived(&mut self) {
        self.arrived += 1;
    }

    fn started(&mut self, wait_s: f64) {
        self.max_wait_s = self.max_wait_s.max(wait_s);
    }

    fn first_token(&mut self, at_s: f64, ttft_s: f64) {
        if self.ttft_samples.len() >= MAX_TTFT_SAMPLES {
            self.ttft_samples.pop_front();
        }
        self.ttft_samples.push_back(TtftSample { at_s, ttft_s });
    }

    fn finished(&mut self, _served: ServedRequest) {
        self.finished += 1;
    }

    fn failed(&mut self, requests: usize) {
        self.failed += requests as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_last_minute() {
        let mut stats = LiveStats::default();
        assert_eq!(stats.ttft_quantiles([0.5]), [None]);
        stats.first_token(1.0, 99.0);
        for i in 1..=100_u32 {
            stats.first_token(70.0, f64::from(i));
        }
        stats.expire(90.0);
        assert_eq!(stats.ttft_quantiles([0.5, 0.95, 1.0]), [Some(50.0), Some(95.0), Some(100.0)]);
        stats.reset();
        assert_eq!(stats.ttft_quantiles([0.5]), [None]);
    }
}
