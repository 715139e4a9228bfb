//! What is simulated: load, servers, scrapes, the HPA, and the objectives. Values only. [`super::Controller`] says what
//! decides, the seed determines all random numbers.

use std::sync::Arc;
use std::time::Duration;

use smol_str::SmolStr;
use wva_core::hpa::{AtZero, Behavior, Tolerance};
use wva_core::model::Bounds;
use wva_core::units::{Cost, Ratio, Replicas, truncated_u32};

use super::fault::Fault;
use super::load::{LoadShape, Pattern};
use super::physics::{Deviations, Physics};
use super::program::PROGRAM_DEFAULTS;
use super::sizes::RequestSizes;

/// A whole experiment except for the controller and the seed.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Its name in tables.
    pub name: SmolStr,
    /// How long requests arrive and costs are counted. Requests that arrived are followed to their end beyond it.
    pub duration: Duration,
    /// When requests arrive.
    pub arrivals: Arrivals,
    /// How many tokens they have over time: each entry holds from its time on, the first from the start. Ignored by a
    /// trace, whose requests have sizes of their own.
    pub sizes: Vec<TimedSizes>,
    /// Share of every prompt found in the prefix cache: held in memory, but not computed. Ignored by a trace.
    pub prefix_hits: Ratio,
    /// The variants of the model, at least one.
    pub variants: Vec<SimVariant>,
    /// How the program scrapes pods itself. Prometheus loses the same share of its scrapes.
    pub scrape: Scrape,
    /// The HPA of every variant.
    pub hpa: HpaSetup,
    /// `terminationGracePeriodSeconds`: requests that a terminating pod has not finished by then are cut off.
    pub grace_period: Duration,
    /// Flow control: the gateway holds requests back while every ready pod has this many waiting. `None` holds them only
    /// while no pod is ready.
    pub max_waiting_per_pod: Option<u32>,
    /// Which pods are deleted first when a variant shrinks.
    pub deletion_order: DeletionOrder,
    /// Which ready pod gets a request.
    pub routing: Routing,
    /// The latency objectives.
    pub slo: Slo,
    /// Signals that are reported wrongly for a while.
    pub faults: Vec<Fault>,
    /// Which pods have what prompts have in common.
    pub prefix_cache: PrefixCache,
    /// When clients give up; `None` is never.
    pub clients: Option<ClientPatience>,
}

/// Which pods have the cached part of a prompt. By default all of them do, from their first request on.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PrefixCache {
    /// A new pod's cache fills as it serves: after this many requests it has 63 % of what it will have. 0 is at once.
    pub warm_after: f64,
    /// How badly requests are routed to the pods that have their prefix: with n ready pods, n^-this of the cached tokens are found.
    /// 0 to 1.
    pub spread: f64,
}

impl PrefixCache {
    /// Of `cached` tokens, those that a pod has which served `served` requests, among `ready` pods.
    pub(super) fn found(self, cached: u32, served: f64, ready: usize) -> u32 {
        if cached == 0 || self == Self::default() {
            return cached;
        }
        let warm = if self.warm_after > 0.0 { 1.0 - (-served / self.warm_after).exp() } else { 1.0 };
        truncated_u32(f64::from(cached) * warm * (ready.max(1) as f64).powf(-self.spread))
    }
}

/// Clients that wait for a first token only so long, and then send their request again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientPatience {
    /// How long they wait, above 0.
    pub timeout: Duration,
    /// How often they send the request again. Then it is an error.
    pub retries: u32,
    /// Time between giving up and sending again.
    pub backoff: Duration,
}

/// The sizes of requests from a time on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimedSizes {
    /// When they begin to apply, after the scenario's start.
    pub from: Duration,
    /// The sizes.
    pub sizes: RequestSizes,
}

/// When requests arrive.
#[derive(Debug, Clone, PartialEq)]
pub enum Arrivals {
    /// At a rate.
    Rate {
        /// Requests a second over time. A load shorter than the scenario repeats.
        load: LoadShape,
        /// How they follow each other.
        pattern: Pattern,
    },
    /// As recorded, in the order of time. Requests after the scenario's end are left out.
    Trace(Arc<[Arrival]>),
}

/// One recorded request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrival {
    /// Seconds after the scenario's start.
    pub at_s: f64,
    /// Tokens of its prompt; 0 counts as 1.
    pub prompt: u32,
    /// Tokens it generates; 0 counts as 1.
    pub output: u32,
    /// Of the prompt, tokens found in the prefix cache. At least one token is computed all the same.
    pub cached: u32,
}

/// One variant of the model: hardware, cost and bounds, scaled on its own.
#[derive(Debug, Clone, PartialEq)]
pub struct SimVariant {
    /// Its name.
    pub name: SmolStr,
    /// The accelerator's name. WVA V2 keeps its capacity history by it.
    pub accelerator: SmolStr,
    /// Accelerators of one replica, at least 1.
    pub gpus: u32,
    /// How fast a replica is.
    pub physics: Physics,
    /// How its step times deviate from that.
    pub deviations: Deviations,
    /// Cost of one replica an hour: its weight in `cost_avg`.
    pub cost: Cost,
    /// `minReplicas` and `maxReplicas`, of the variant and of its HPA.
    pub bounds: Bounds,
    /// Replicas that are ready when the scenario starts.
    pub replicas: Replicas,
    /// Time from a pod's getting a node to its being ready.
    pub start_up: StartUp,
    /// Every step of the variant's first pod takes this many times as long as those of the others; above 0.
    pub first_pod_slowdown: f64,
    /// Pods that fit on nodes; further ones stay unschedulable until a pod goes. `None` is no limit.
    pub max_scheduled_pods: Option<u32>,
    /// When nodes are added that have room for all pods. `None` is never.
    pub room_from: Option<Duration>,
    /// Faults of its pods' readiness.
    pub pod_faults: Vec<PodFault>,
    /// A time in which an operator sets `minReplicas` and `maxReplicas` of the variant to the same number.
    pub pinned: Option<PinnedReplicas>,
}

/// How long a pod takes from getting a node to being ready.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StartUp {
    /// The mean.
    pub mean: Duration,
    /// Uniform within mean ± this share of it.
    pub spread: f64,
}

/// A number of replicas that an operator sets for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinnedReplicas {
    /// Within the bounds of its variant.
    pub replicas: Replicas,
    /// When it begins, after the scenario's start.
    pub from: Duration,
    /// When it ends, after the scenario's start.
    pub until: Duration,
}

/// A fault of the readiness of serving pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodFault {
    /// Some of the oldest pods fail readiness from a time on, forever: a bad node, a GPU that hangs.
    Broken {
        /// When it begins, after the scenario's start.
        at: Duration,
        /// Number of pods.
        pods: u32,
    },
    /// Half of the pods fail their readiness probes from the moment they have this many requests waiting until they have
    /// none: overloaded servers that answer probes too late.
    Flapping {
        /// Requests waiting in the pod, above 0.
        waiting: u32,
    },
    /// The oldest pods fail their readiness probes for a while, again and again: a probe that is too strict.
    Blinking {
        /// Time between two such failures, above 0; the first comes after it.
        every: Duration,
        /// How long a failure lasts.
        lasts: Duration,
        /// Number of pods.
        pods: u32,
    },
    /// The oldest pods crash again and again. Their requests fail, and each takes its start-up time until it is ready again.
    Crashing {
        /// Time between two crashes, above 0; the first comes after it.
        every: Duration,
        /// Number of pods.
        pods: u32,
    },
}

/// How often pods are scraped, and how reliably.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scrape {
    /// Time between two scrapes of a pod, above 0.
    pub interval: Duration,
    /// Time from a scrape until its samples can be used.
    pub delay: Duration,
    /// Share of scrapes that fail, independently of each other.
    pub loss: Ratio,
}

/// The HPAs: one per variant, on an external metric with `AverageValue: 1`.
#[derive(Debug, Clone, PartialEq)]
pub struct HpaSetup {
    /// The sync period, above 0. Each HPA has a random phase of its own.
    pub sync: Duration,
    /// `spec.behavior`; without it the HPA uses its older algorithm.
    pub behavior: Option<Behavior>,
    /// How far a ratio may be from 1 and still count as 1.
    pub tolerance: Tolerance,
    /// What the HPA does at zero replicas.
    pub at_zero: AtZero,
}

/// Which ready pods are deleted first when a variant shrinks. Pods that are not ready always go before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeletionOrder {
    /// The youngest, like a ReplicaSet.
    #[default]
    Youngest,
    /// Those with the fewest requests, as with `--pod-deletion-cost`: [`wva_core::pod_deletion_order::order`].
    LeastLoaded,
    /// Those with the fewest tokens in the KV cache, for comparison: the order if requests were not measured.
    FewestTokens,
}

/// The latency objectives. A request meets them when both hold and its stream was not cut.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slo {
    /// Time to first token, at most.
    pub ttft: Duration,
    /// Mean time between two tokens, at most.
    pub itl: Duration,
    /// From a request's arrival to its last token, at most. `None` is no objective.
    pub end_to_end: Option<Duration>,
}

/// Which ready pod the gateway gives a request to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Routing {
    /// The one with the least pressure, as an endpoint picker does.
    #[default]
    LeastPressure,
    /// One after another, whatever their load.
    RoundRobin,
}

impl Default for Scrape {
    /// At every evaluation of the program, usable after 0.2 s, none lost.
    fn default() -> Self {
        let interval = PROGRAM_DEFAULTS.evaluation_interval;
        Self { interval, delay: Duration::from_millis(200), loss: Ratio::default() }
    }
}

impl Default for HpaSetup {
    /// The defaults of the API server for an HPA with an empty `behavior`.
    fn default() -> Self {
        Self {
            sync: Duration::from_secs(15),
            behavior: Some(Behavior::default()),
            tolerance: Tolerance::default(),
            at_zero: AtZero::default(),
        }
    }
}

impl Default for Slo {
    /// First token within 1 s, 100 ms between tokens.
    fn default() -> Self {
        Self { ttft: Duration::from_secs(1), itl: Duration::from_millis(100), end_to_end: None }
    }
}

impl SimVariant {
    /// One replica, of 1 to 10, on one GPU, ready after 95 s ± 5 %.
    #[must_use]
    pub fn new(name: impl Into<SmolStr>, physics: Physics, cost: Cost) -> Self {
        let start_up = StartUp { mean: Duration::from_secs(95), spread: 0.05 };
        let bounds = Bounds { min: Replicas::ONE, max: Some(Replicas::new(10)) };
        Self {
            name: name.into(),
            accelerator: SmolStr::new_static("H100"),
            gpus: 1,
            physics,
            deviations: Deviations::default(),
            cost,
            bounds,
            replicas: Replicas::ONE,
            start_up,
            first_pod_slowdown: 1.0,
            max_scheduled_pods: None,
            room_from: None,
            pod_faults: Vec::new(),
            pinned: None,
        }
    }

    /// `minReplicas` and `maxReplicas` of the variant at `now_s`.
    pub(super) fn bounds_at(&self, now_s: f64) -> Bounds {
        let is_active = |pinned: &PinnedReplicas| {
            (pinned.from.as_secs_f64()..pinned.until.as_secs_f64()).contains(&now_s)
        };
        let pinned = self.pinned.filter(is_active).map(|pinned| pinned.replicas);
        pinned.map_or(self.bounds, |replicas| Bounds { min: replicas, max: Some(replicas) })
    }
}

impl Scenario {
    /// The longest scenario: a year.
    pub const MAX_DURATION: Duration = Duration::from_secs(366 * 24 * 3600);
    /// The most pods of one variant.
    pub const MAX_PODS: u32 = 10_000;

    /// `variants` under Poisson arrivals of `load`; grace period of 30 s, everything else at its default.
    #[must_use]
    pub fn new(
        name: impl Into<SmolStr>,
        duration: Duration,
        load: LoadShape,
        sizes: RequestSizes,
        variants: Vec<SimVariant>,
    ) -> Self {
        Self {
            name: name.into(),
            duration,
            arrivals: Arrivals::Rate { load, pattern: Pattern::Poisson },
            sizes: vec![TimedSizes { from: Duration::ZERO, sizes }],
            prefix_hits: Ratio::default(),
            variants,
            scrape: Scrape::default(),
            hpa: HpaSetup::default(),
            grace_period: Duration::from_secs(30),
            max_waiting_per_pod: None,
            deletion_order: DeletionOrder::default(),
            routing: Routing::default(),
            slo: Slo::default(),
            faults: Vec::new(),
            prefix_cache: PrefixCache::default(),
            clients: None,
        }
    }

    /// How long clients wait for a first token, seconds.
    pub(super) fn patience_s(&self) -> f64 {
        self.clients.map_or(f64::INFINITY, |clients| clients.timeout.as_secs_f64())
    }
}
