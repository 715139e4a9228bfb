//! What decides the number of replicas in a simulation, and on which path the number reaches the HPA.

use std::time::Duration;

use smol_str::{SmolStr, format_smolstr};
use wva_core::model::{Analyzer, Compat, Policy};
use wva_core::units::Replicas;

use super::peer::Peer;
use super::program::PROGRAM_DEFAULTS;

/// An algorithm, and how its number reaches the HPA.
#[derive(Debug, Clone, PartialEq)]
pub struct Controller {
    /// Its name in tables.
    pub name: SmolStr,
    /// How it decides.
    pub algorithm: Algorithm,
    /// How metrics reach it, and its number the HPA.
    pub path: MetricPath,
    /// Replaces the downscale stabilization window of the scenario's HPA.
    pub scale_down_window: Option<Duration>,
    /// Warm spares: replicas of the cheapest variant on top of every number, up to its maximum.
    pub spares: u32,
}

/// How a controller decides.
#[derive(Debug, Clone, PartialEq)]
pub enum Algorithm {
    /// The program's own core: `observe` and `decide` under this policy. The model is [`MODEL`] in [`NAMESPACE`].
    Core(Box<Policy>),
    /// KEDA's arithmetic on the metrics of the endpoint picker's pool: every variant gets
    /// `max((running + waiting) / in_pod, waiting / waiting)` replicas, with the requests of the whole pool.
    KedaEpp {
        /// Threshold of requests in a pod, running or waiting; above 0.
        in_pod: f64,
        /// Threshold of requests waiting in a pod; above 0.
        waiting: f64,
    },
    /// A schedule, in the order of time. Before the first entry, the replicas that the scenario starts with.
    Schedule(Vec<ScheduleEntry>),
    /// Another autoscaler's arithmetic.
    Peer(Peer),
    /// Always these replicas, by variant in the scenario's order and within its bounds; the last number holds for all further
    /// variants. The scenario starts with them.
    Fixed(Vec<Replicas>),
}

/// The replicas of each variant from a time on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleEntry {
    /// When they begin, after the scenario's start.
    pub from: Duration,
    /// By variant, in the scenario's order. The last number holds for all further variants.
    pub replicas: Vec<Replicas>,
}

/// The namespace of every simulated variant.
pub const NAMESPACE: &str = "sim";
/// The model of every simulated variant.
pub const MODEL: &str = "model";

/// How metrics reach the controller, and its number the HPA.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MetricPath {
    /// The program's own: it scrapes pods at the scenario's interval and decides after every scrape. When the HPA reads, it
    /// scrapes and decides again before it answers, if the scenario's scrape delay is at most 1 s.
    Direct,
    /// Prometheus scrapes, each pod at a random phase; the controller decides every `reconcile` from what Prometheus has;
    /// the HPA sees a number `publish` after the decision.
    Prometheus {
        /// Time between two scrapes, above 0.
        scrape: Duration,
        /// Time between two decisions, above 0.
        reconcile: Duration,
        /// Time from a decision until the HPA can read it.
        publish: Duration,
    },
}

impl MetricPath {
    /// The program behind a Prometheus that scrapes every `scrape`: it decides at its own interval. Unlike the program, it does not
    /// decide once more when the HPA reads, so that its number is up to 5 s old.
    #[must_use]
    pub const fn behind_prometheus(scrape: Duration) -> Self {
        Self::Prometheus { scrape, reconcile: PROGRAM_DEFAULTS.evaluation_interval, publish: Duration::ZERO }
    }

    /// The path of llm-d's published runs: 15 s, 15 s and 15 s.
    #[must_use]
    pub const fn published() -> Self {
        let interval = Duration::from_secs(15);
        Self::Prometheus { scrape: interval, reconcile: interval, publish: interval }
    }
}

impl Controller {
    fn new(name: impl Into<SmolStr>, algorithm: Algorithm) -> Self {
        Self { name: name.into(), algorithm, path: MetricPath::Direct, scale_down_window: None, spares: 0 }
    }

    /// The program itself under `policy`.
    #[must_use]
    pub fn core(name: impl Into<SmolStr>, policy: Policy) -> Self {
        Self::new(name, Algorithm::Core(Box::new(policy)))
    }

    /// The program itself with the default settings of `analyzer`, by its name.
    #[must_use]
    pub fn analyzer(analyzer: Analyzer) -> Self {
        let mut policy = Policy::default();
        policy.global.default.analyzer = analyzer;
        Self::core(analyzer.as_str(), policy)
    }

    /// WVA V2 as published: the token saturation analyzer with upstream's arithmetic of August 2026, through Prometheus, with
    /// a downscale window of 120 s.
    #[must_use]
    pub fn wva_v2() -> Self {
        Self::upstream("wva-v2", Analyzer::Saturation)
    }

    /// WVA V1: the percentage saturation analyzer with upstream's arithmetic of August 2026, on the same path.
    #[must_use]
    pub fn wva_v1() -> Self {
        Self::upstream("wva-v1", Analyzer::SaturationPercent)
    }

    fn upstream(name: &'static str, analyzer: Analyzer) -> Self {
        let mut policy = Policy { compat: Compat::Upstream, ..Policy::default() };
        policy.global.default.analyzer = analyzer;
        let path = MetricPath::published();
        Self { path, scale_down_window: Some(Duration::from_secs(120)), ..Self::core(name, policy) }
    }

    /// KEDA on the endpoint picker's metrics with the thresholds of the published runs: 16 requests in a pod, 5 waiting.
    #[must_use]
    pub fn keda_epp() -> Self {
        Self::keda_epp_at("keda-epp", 16.0)
    }

    /// The same with another threshold of requests in a pod, above 0.
    #[must_use]
    pub fn keda_epp_at(name: impl Into<SmolStr>, in_pod: f64) -> Self {
        let algorithm = Algorithm::KedaEpp { in_pod, waiting: 5.0 };
        Self { path: MetricPath::published(), ..Self::new(name, algorithm) }
    }

    /// Another autoscaler.
    #[must_use]
    pub fn peer(peer: Peer) -> Self {
        Self { path: MetricPath::published(), ..Self::new(peer.name(), Algorithm::Peer(peer)) }
    }

    /// The rate policy's own estimates with a fixed utilisation, above 0 and at most 1, in place of its surge headroom.
    #[must_use]
    pub fn fixed_utilisation(share: f64) -> Self {
        let mut policy = Policy::default();
        policy.global.default.analyzer = Analyzer::Rate;
        policy.global.default.rate.utilisation = share;
        policy.global.default.rate.surge_headroom = 0.0;
        let name = format_smolstr!("utilisation:{share}");
        Self { scale_down_window: Some(Duration::ZERO), ..Self::core(name, policy) }
    }

    /// Always `replicas` of every variant, from the start.
    #[must_use]
    pub fn fixed(replicas: u32) -> Self {
        Self::fixed_fleet(&[replicas])
    }

    /// Always these replicas, by variant; the last number holds for all further variants. They are there from the start.
    #[must_use]
    pub fn fixed_fleet(replicas: &[u32]) -> Self {
        let numbers: Vec<String> = replicas.iter().map(u32::to_string).collect();
        let algorithm = Algorithm::Fixed(replicas.iter().copied().map(Replicas::new).collect());
        Self::new(format_smolstr!("static:{}", numbers.join("+")), algorithm)
    }
}
