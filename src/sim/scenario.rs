//! What is simulated: load, servers, scrapes, the HPA, and the objectives. Values only. [`super::Controller`] says who
//! decides, the seed determines all random numbers.

use std::sync::Arc;
use std::time::Duration;

use smol_str::SmolStr;
use wva_core::hpa::{AtZero, Behavior, Tolerance};
use wva_core::model::Bounds;
use wva_core::units::{Cost, Ratio, Replicas};

use super::fault::Fault;
use super::invalid::{Field, Invalid};
use super::load::{LoadShape, Pattern};
use super::physics::{Deviations, Physics};
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
    pub sizes: Vec<(Duration, RequestSizes)>,
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
    /// The latency objectives.
    pub slo: Slo,
    /// Signals that are reported wrongly for a while.
    pub faults: Vec<Fault>,
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
}

impl Default for Scrape {
    /// The program's defaults: every 5 s, usable after 0.2 s, none lost.
    fn default() -> Self {
        Self { interval: Duration::from_secs(5), delay: Duration::from_millis(200), loss: Ratio::default() }
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
        Self { ttft: Duration::from_secs(1), itl: Duration::from_millis(100) }
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
    pub const MAX_DURATION: Duration = super::time::MAX_DURATION;
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
            sizes: vec![(Duration::ZERO, sizes)],
            prefix_hits: Ratio::default(),
            variants,
            scrape: Scrape::default(),
            hpa: HpaSetup::default(),
            grace_period: Duration::from_secs(30),
            max_waiting_per_pod: None,
            deletion_order: DeletionOrder::default(),
            slo: Slo::default(),
            faults: Vec::new(),
        }
    }

    /// # Errors
    /// The first invalid field, with its value and what is allowed. [`super::simulate`] checks too.
    pub fn check(&self) -> Result<(), Invalid> {
        let field = Field::root();
        field.at("duration").span(self.duration, Duration::from_nanos(1), Self::MAX_DURATION)?;
        self.check_arrivals(&field.at("arrivals"))?;
        let sizes = field.at("sizes");
        let trace = matches!(self.arrivals, Arrivals::Trace(_));
        sizes.rule(trace || !self.sizes.is_empty(), "empty", "at least one entry")?;
        for (index, (_, entry)) in self.sizes.iter().enumerate() {
            entry.check(&sizes.item(index))?;
        }
        let ordered = self.sizes.windows(2).all(|pair| pair[0].0 < pair[1].0);
        sizes.rule(ordered, "not in order of time", "in ascending order of time")?;
        let variants = field.at("variants");
        variants.rule(!self.variants.is_empty(), "empty", "at least one variant")?;
        for (index, variant) in self.variants.iter().enumerate() {
            let item = variants.item(index);
            variant.check(&item)?;
            let is_taken = self.variants[..index].iter().any(|previous| previous.name == variant.name);
            item.at("name").rule(!is_taken, &variant.name, "different for every variant")?;
        }
        let scrape = field.at("scrape");
        let tick = Duration::from_millis(10);
        scrape.at("interval").span(self.scrape.interval, tick, Duration::from_secs(3600))?;
        scrape.at("delay").span(self.scrape.delay, Duration::ZERO, Duration::from_secs(3600))?;
        field.at("hpa").at("sync").span(self.hpa.sync, tick, Duration::from_secs(3600))?;
        field.at("grace_period").span(self.grace_period, Duration::ZERO, Self::MAX_DURATION)?;
        let faults = field.at("faults");
        self.faults.iter().enumerate().try_for_each(|(index, fault)| fault.check(&faults.item(index)))
    }

    fn check_arrivals(&self, field: &Field<'_>) -> Result<(), Invalid> {
        match &self.arrivals {
            Arrivals::Rate { load, pattern } => {
                field.at("load").rule(!load.length().is_zero(), "empty", "longer than 0 s")?;
                let burst = if let Pattern::Bursts(size) = pattern { *size } else { 1 };
                field.at("pattern").number(f64::from(burst), 1.0, 1e6)
            }
            Arrivals::Trace(trace) => {
                let is_valid = |arrival: &Arrival| arrival.at_s.is_finite() && arrival.at_s >= 0.0;
                let invalid = trace.iter().position(|arrival| !is_valid(arrival));
                if let Some(index) = invalid {
                    let at = trace.get(index).map_or(0.0, |arrival| arrival.at_s);
                    return field.item(index).at("at_s").number(at, 0.0, f64::MAX);
                }
                let unordered = trace.windows(2).position(|pair| pair[0].at_s > pair[1].at_s);
                let index = unordered.map_or(0, |index| index + 1);
                field.item(index).at("at_s").rule(
                    unordered.is_none(),
                    "before the previous arrival",
                    "in ascending order",
                )
            }
        }
    }
}

impl SimVariant {
    fn check(&self, field: &Field<'_>) -> Result<(), Invalid> {
        let max_pods = f64::from(Scenario::MAX_PODS);
        field.at("name").rule(!self.name.is_empty(), "empty", "a name")?;
        field.at("gpus").number(f64::from(self.gpus), 1.0, 1024.0)?;
        self.physics.check(&field.at("physics"))?;
        self.deviations.check(&field.at("deviations"))?;
        let max = self.bounds.max.map_or(max_pods, |max| f64::from(max.get()));
        field.at("bounds").at("max").number(max, 1.0, max_pods)?;
        field.at("bounds").at("min").number(f64::from(self.bounds.min.get()), 0.0, max)?;
        field.at("replicas").number(f64::from(self.replicas.get()), 0.0, max)?;
        field.at("start_up").at("mean").span(self.start_up.mean, Duration::ZERO, Scenario::MAX_DURATION)?;
        field.at("start_up").at("spread").number(self.start_up.spread, 0.0, 1.0)?;
        let flaps_at_zero = self.pod_faults.contains(&PodFault::Flapping { waiting: 0 });
        field.at("pod_faults").rule(!flaps_at_zero, "flapping at 0 waiting requests", "at least 1")?;
        let min = f64::from(self.bounds.min.get());
        let pinned = self.pinned.map_or(min, |pinned| f64::from(pinned.replicas.get()));
        field.at("pinned").number(pinned, min, max)?;
        field.at("first_pod_slowdown").number(self.first_pod_slowdown, 0.01, 100.0)
    }
}
