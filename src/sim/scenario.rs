//! What is simulated: load, servers, what is seen of them, the HPA, and the objective. Values only; who decides is in
//! [`super::Controller`], chance is in the seed.

use std::sync::Arc;
use std::time::Duration;

use smol_str::SmolStr;

use super::deployment::StartUp;
use super::fault::Fault;
use super::invalid::{Field, Invalid};
use super::load::LoadShape;
use super::physics::{Batching, Rough};
use super::sizes::Sizes;
use wva_core::hpa::{AtZero, Behavior, Tolerance};
use wva_core::model::Bounds;
use wva_core::units::{Cost, Ratio, Replicas};

/// A whole experiment, but for who decides and for the seed.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Its name in tables.
    pub name: SmolStr,
    /// How long requests come and costs are counted. Requests that came are followed to their end beyond it.
    pub duration: Duration,
    /// When requests come.
    pub arrivals: Arrivals,
    /// How many tokens they have, by time: each entry holds from its moment on, the first from the start. Ignored by a
    /// trace, whose requests bring their own.
    pub sizes: Vec<(Duration, Sizes)>,
    /// Share of every prompt that is found in the prefix cache: held in memory, but not computed. Ignored by a trace.
    pub prefix_hits: Ratio,
    /// The variants of the model, one at least.
    pub variants: Vec<SimVariant>,
    /// How pods are scraped where the program does it itself; the losses happen to Prometheus too.
    pub scrape: Scrape,
    /// The HPA of every variant.
    pub hpa: HpaSetup,
    /// `terminationGracePeriodSeconds`: what a terminating pod has not finished by then is cut off.
    pub grace: Duration,
    /// The gateway holds requests back while every ready pod has this many waiting; `None` holds them only while no pod
    /// is ready.
    pub hold_at: Option<u32>,
    /// Which pods go first when a variant shrinks.
    pub victims: Victims,
    /// What users were promised.
    pub slo: Slo,
    /// Signals that are told wrongly for a while.
    pub faults: Vec<Fault>,
}

/// When requests come.
#[derive(Debug, Clone, PartialEq)]
pub enum Arrivals {
    /// At a rate.
    Rate {
        /// Requests a second over time; shorter than the scenario, it starts again.
        load: LoadShape,
        /// How they follow each other.
        pattern: Pattern,
    },
    /// As recorded: in the order of time; what comes after the scenario's end is left out.
    Trace(Arc<[Arrival]>),
}

/// How requests follow each other at a given rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Each independent of all others.
    Poisson,
    /// One by one at equal distances.
    Even,
    /// So many at one moment, the moments independent of each other; at least 1.
    Bursts(u32),
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
    /// Of the prompt, tokens found in the prefix cache; at least one token is computed all the same.
    pub cached: u32,
}

/// One way of serving the model, scaled on its own.
#[derive(Debug, Clone, PartialEq)]
pub struct SimVariant {
    /// Its name.
    pub name: SmolStr,
    /// The accelerator's name; histories of WVA V2 are by it.
    pub accelerator: SmolStr,
    /// Accelerators of one replica, at least 1.
    pub gpus: u32,
    /// How fast a replica is.
    pub physics: Batching,
    /// Where it is not as simple as that.
    pub rough: Rough,
    /// What one replica costs an hour: the weight in `cost_avg`.
    pub cost: Cost,
    /// `minReplicas` and `maxReplicas`, of the variant and of its HPA.
    pub bounds: Bounds,
    /// Replicas that are ready when the scenario begins.
    pub replicas: Replicas,
    /// From a pod's creation to its being ready.
    pub start_up: StartUp,
    /// Every step of the first pod takes this many times as long, above 0; 1 is as all others.
    pub first_pod: f64,
    /// Pods that nodes have room for; more stay unschedulable until one goes. `None` is no limit.
    pub schedulable: Option<u32>,
    /// What goes wrong with the readiness of its pods.
    pub pod_faults: Vec<PodFault>,
    /// When somebody sets `minReplicas` and `maxReplicas` of the variant to the same number.
    pub fixed: Option<Fixed>,
}

/// A number that somebody decides for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fixed {
    /// Within the bounds of its variant.
    pub replicas: Replicas,
    /// Since when, after the scenario's start.
    pub from: Duration,
    /// Until when.
    pub until: Duration,
}

/// What goes wrong with the readiness of pods that serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodFault {
    /// So many of the oldest pods fail readiness from a moment on, and for good: a bad node, a GPU that hangs.
    Broken {
        /// Since when, after the scenario's start.
        at: Duration,
        /// Pods.
        pods: u32,
    },
    /// Half of the pods answer their probes too late while they have this many requests waiting, and again when they have
    /// none: what fails for being overloaded.
    Flapping {
        /// Requests that wait in the pod, above 0.
        waiting: u32,
    },
}

/// How often pods are looked at, and how well.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scrape {
    /// Time between two looks at a pod, above 0.
    pub interval: Duration,
    /// From a look until what was seen can be used.
    pub delay: Duration,
    /// Share of looks at a pod that fail, each on its own.
    pub loss: Ratio,
}

/// The HPAs: one a variant, an external metric with `AverageValue: 1`.
#[derive(Debug, Clone, PartialEq)]
pub struct HpaSetup {
    /// How often the controller looks, above 0; each HPA at a phase of its own, drawn from the seed.
    pub sync: Duration,
    /// `spec.behavior`; `None` is the older arithmetic.
    pub behavior: Option<Behavior>,
    /// How far from equal counts as equal.
    pub tolerance: Tolerance,
    /// What it does at zero replicas.
    pub at_zero: AtZero,
}

/// Which pods go first when a variant shrinks, after those that are not ready yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Victims {
    /// The youngest, as a ReplicaSet does.
    #[default]
    Youngest,
    /// Those with the fewest requests, as with `--pod-deletion-cost`: [`wva_core::pod_deletion_order::order`].
    LeastLoaded,
    /// Those with the fewest tokens in the KV cache, to compare: as it would be if nobody told of requests.
    FewestTokens,
}

/// A request is served well when all of it holds, and its stream was not cut.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slo {
    /// Its first token comes within this.
    pub ttft: Duration,
    /// Its mean time between two tokens is at most this.
    pub itl: Duration,
}

impl Default for Scrape {
    /// The program's own: every 5 s, at hand after 0.2 s, none lost.
    fn default() -> Self {
        Self { interval: Duration::from_secs(5), delay: Duration::from_millis(200), loss: Ratio::default() }
    }
}

impl Default for HpaSetup {
    /// As the API server fills in an HPA with a `behavior` of which nothing is said.
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
    /// One replica of 1 to 10, on one GPU, ready within 95 s ± 5 %.
    #[must_use]
    pub fn new(name: impl Into<SmolStr>, physics: Batching, cost: Cost) -> Self {
        let start_up = StartUp { mean: Duration::from_secs(95), spread: 0.05 };
        let bounds = Bounds { min: Replicas::ONE, max: Some(Replicas::new(10)) };
        Self {
            name: name.into(),
            accelerator: SmolStr::new_static("H100"),
            gpus: 1,
            physics,
            rough: Rough::default(),
            cost,
            bounds,
            replicas: Replicas::ONE,
            start_up,
            first_pod: 1.0,
            schedulable: None,
            pod_faults: Vec::new(),
            fixed: None,
        }
    }

    /// `minReplicas` and `maxReplicas` of the variant at `now_s`.
    pub(super) fn bounds_at(&self, now_s: f64) -> Bounds {
        let lasts = |fixed: &Fixed| (fixed.from.as_secs_f64()..fixed.until.as_secs_f64()).contains(&now_s);
        let fixed = self.fixed.filter(lasts).map(|fixed| fixed.replicas);
        fixed.map_or(self.bounds, |number| Bounds { min: number, max: Some(number) })
    }
}

impl Scenario {
    /// The longest scenario: a year.
    pub const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
    /// The most pods of one variant.
    pub const MOST_PODS: u32 = 10_000;
    /// The most tokens of a prompt or an output.
    pub const MOST_TOKENS: f64 = 1e7;

    /// `variants` under Poisson arrivals of `load`, everything else as in the published cases: sizes ± 10 %, 30 s of
    /// grace, HPA and objectives by default.
    #[must_use]
    pub fn new(
        name: impl Into<SmolStr>,
        duration: Duration,
        load: LoadShape,
        sizes: Sizes,
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
            grace: Duration::from_secs(30),
            hold_at: None,
            victims: Victims::default(),
            slo: Slo::default(),
            faults: Vec::new(),
        }
    }

    /// # Errors
    /// Names the first field that makes no sense, its value and what is allowed. [`super::simulate`] asks too.
    pub fn check(&self) -> Result<(), Invalid> {
        let field = Field::root();
        field.at("duration").span(self.duration, Duration::from_nanos(1), Self::LONGEST)?;
        self.check_arrivals(&field.at("arrivals"))?;
        let sizes = field.at("sizes");
        let trace = matches!(self.arrivals, Arrivals::Trace(_));
        sizes.rule(trace || !self.sizes.is_empty(), "none", "one entry at least")?;
        for (index, (_, one)) in self.sizes.iter().enumerate() {
            one.check(&sizes.item(index))?;
        }
        let ordered = self.sizes.windows(2).all(|pair| pair[0].0 < pair[1].0);
        sizes.rule(ordered, "moments out of order", "ascending moments")?;
        let variants = field.at("variants");
        variants.rule(!self.variants.is_empty(), "none", "one variant at least")?;
        for (index, variant) in self.variants.iter().enumerate() {
            let item = variants.item(index);
            variant.check(&item)?;
            let twin = self.variants[..index].iter().any(|other| other.name == variant.name);
            item.at("name").rule(!twin, &variant.name, "different for every variant")?;
        }
        let scrape = field.at("scrape");
        let tick = Duration::from_millis(10);
        scrape.at("interval").span(self.scrape.interval, tick, Duration::from_secs(3600))?;
        scrape.at("delay").span(self.scrape.delay, Duration::ZERO, Duration::from_secs(3600))?;
        field.at("hpa").at("sync").span(self.hpa.sync, tick, Duration::from_secs(3600))?;
        field.at("grace").span(self.grace, Duration::ZERO, Self::LONGEST)?;
        let faults = field.at("faults");
        self.faults.iter().enumerate().try_for_each(|(index, fault)| fault.check(&faults.item(index)))
    }

    fn check_arrivals(&self, field: &Field<'_>) -> Result<(), Invalid> {
        match &self.arrivals {
            Arrivals::Rate { load, pattern } => {
                field.at("load").rule(!load.length().is_zero(), "nothing", "a length above 0")?;
                let burst = if let Pattern::Bursts(size) = pattern { *size } else { 1 };
                field.at("pattern").number(f64::from(burst), 1.0, 1e6)
            }
            Arrivals::Trace(trace) => {
                let timed = |arrival: &Arrival| arrival.at_s.is_finite() && arrival.at_s >= 0.0;
                let broken = trace.iter().position(|arrival| !timed(arrival));
                if let Some(index) = broken {
                    let at = trace.get(index).map_or(0.0, |arrival| arrival.at_s);
                    return field.item(index).at("at_s").number(at, 0.0, f64::MAX);
                }
                let unordered = trace.windows(2).position(|pair| pair[0].at_s > pair[1].at_s);
                let index = unordered.map_or(0, |index| index + 1);
                field.item(index).at("at_s").rule(unordered.is_none(), "earlier than before", "ascending")
            }
        }
    }
}

impl SimVariant {
    fn check(&self, field: &Field<'_>) -> Result<(), Invalid> {
        let most = f64::from(Scenario::MOST_PODS);
        field.at("name").rule(!self.name.is_empty(), "empty", "a name")?;
        field.at("gpus").number(f64::from(self.gpus), 1.0, 1024.0)?;
        self.physics.check(&field.at("physics"))?;
        self.rough.check(&field.at("rough"))?;
        let max = self.bounds.max.map_or(most, |max| f64::from(max.get()));
        field.at("bounds").at("max").number(max, 1.0, most)?;
        field.at("bounds").at("min").number(f64::from(self.bounds.min.get()), 0.0, max)?;
        field.at("replicas").number(f64::from(self.replicas.get()), 0.0, max)?;
        field.at("start_up").at("mean").span(self.start_up.mean, Duration::ZERO, Scenario::LONGEST)?;
        field.at("start_up").at("spread").number(self.start_up.spread, 0.0, 1.0)?;
        let too_few = self.pod_faults.contains(&PodFault::Flapping { waiting: 0 });
        field.at("pod_faults").rule(!too_few, "flapping at 0 waiting requests", "at least 1")?;
        let fixed = self.fixed.map_or(self.bounds.min, |fixed| fixed.replicas);
        let [fixed, min] = [fixed, self.bounds.min].map(|number| f64::from(number.get()));
        field.at("fixed").number(fixed, min, max)?;
        field.at("first_pod").number(self.first_pod, 0.01, 100.0)
    }
}
