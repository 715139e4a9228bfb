//! Who decides in a simulation, and by which path the number reaches the HPA.

use std::time::Duration;

use smol_str::SmolStr;

use super::invalid::{Field, Invalid};
use wva_core::model::Analyzer;
use wva_core::model::{Compat, Policy};
use wva_core::units::Replicas;

/// Who decides, and how the number reaches the HPA.
#[derive(Debug, Clone, PartialEq)]
pub struct Controller {
    /// Its name in tables.
    pub name: SmolStr,
    /// What it thinks.
    pub brain: Brain,
    /// What it sees, and when the HPA sees it.
    pub path: Path,
    /// In place of the downscale window of the scenario's HPA.
    pub down_window: Option<Duration>,
    /// Replicas of the cheapest variant that are asked for on top of every number, up to its maximum: warm spares.
    pub spare: u32,
}

/// What a controller thinks.
#[derive(Debug, Clone, PartialEq)]
pub enum Brain {
    /// The program's own core: `observe` and `decide` under this policy. The model is [`MODEL`] in [`NAMESPACE`].
    Core(Box<Policy>),
    /// KEDA's arithmetic over metrics of the endpoint picker's pool: every variant asks for
    /// `max((running + waiting) / running_threshold, waiting / waiting_threshold)` of the whole pool.
    KedaEpp {
        /// Requests in a pod, waiting or not, above 0.
        in_pod: f64,
        /// Requests waiting in a pod, above 0.
        waiting: f64,
    },
    /// Numbers by the clock: from each moment on so many of each variant (in the scenario's order; the last number is
    /// for all further ones). Before the first moment, what the scenario starts with.
    Script(Vec<(Duration, Vec<Replicas>)>),
}

/// The namespace of every simulated variant.
pub const NAMESPACE: &str = "sim";
/// The model of every simulated variant.
pub const MODEL: &str = "model";

/// What a controller sees, and when the HPA sees its number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Path {
    /// The program's own: it scrapes pods as the scenario says, decides after every scrape, and when the HPA reads it
    /// scrapes and decides again before it answers (as long as the scenario's scrape delay is at most 1 s).
    Direct,
    /// Prometheus scrapes (phases of its own, one for each pod); every `reconcile` a decision is made from what it has;
    /// the HPA sees a number `publish` after it was decided.
    Prometheus {
        /// Between two scrapes, above 0.
        scrape: Duration,
        /// Between two decisions, above 0.
        reconcile: Duration,
        /// From a decision to the HPA's seeing it.
        publish: Duration,
    },
}

impl Path {
    /// As the published runs had it: 15 s, 15 s and 15 s.
    #[must_use]
    pub const fn published() -> Self {
        let each = Duration::from_secs(15);
        Self::Prometheus { scrape: each, reconcile: each, publish: each }
    }
}

impl Controller {
    /// The program itself under `policy`.
    #[must_use]
    pub fn core(name: impl Into<SmolStr>, policy: Policy) -> Self {
        Self {
            name: name.into(),
            brain: Brain::Core(Box::new(policy)),
            path: Path::Direct,
            down_window: None,
            spare: 0,
        }
    }

    /// WVA V2 as published: tokens of saturation by upstream's arithmetic (August), through Prometheus, with the
    /// downscale window of 120 s.
    #[must_use]
    pub fn wva_v2() -> Self {
        let down_window = Some(Duration::from_secs(120));
        Self { path: Path::published(), down_window, ..Self::upstream("wva-v2", Analyzer::Saturation) }
    }

    /// WVA V1: shares of saturation by upstream's arithmetic (August), on the same path.
    #[must_use]
    pub fn wva_v1() -> Self {
        let down_window = Some(Duration::from_secs(120));
        Self { path: Path::published(), down_window, ..Self::upstream("wva-v1", Analyzer::SaturationPercent) }
    }

    fn upstream(name: &'static str, analyzer: Analyzer) -> Self {
        let mut policy = Policy { compat: Compat::Upstream, ..Policy::default() };
        policy.global.default.analyzer = analyzer;
        Self::core(name, policy)
    }

    /// KEDA with the endpoint picker's metrics at the thresholds of the published runs: 16 in a pod, 5 waiting.
    #[must_use]
    pub fn keda_epp() -> Self {
        Self {
            path: Path::published(),
            brain: Brain::KedaEpp { in_pod: 16.0, waiting: 5.0 },
            ..Self::fixed(0)
        }
        .named("keda-epp")
    }

    /// `replicas` of every variant, all the time.
    #[must_use]
    pub fn fixed(replicas: u32) -> Self {
        let brain = Brain::Script(vec![(Duration::ZERO, vec![Replicas::new(replicas)])]);
        let name = smol_str::format_smolstr!("static:{replicas}");
        Self { name, brain, path: Path::Direct, down_window: None, spare: 0 }
    }

    /// The same by another name.
    #[must_use]
    pub fn named(self, name: impl Into<SmolStr>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// # Errors
    /// Names the first field that makes no sense, its value and what is allowed. [`super::simulate`] asks too.
    pub fn check(&self) -> Result<(), Invalid> {
        let field = Field::root();
        let brain = field.at("brain");
        match &self.brain {
            Brain::Core(policy) => {
                let checked = policy.as_ref().clone().validated();
                if let Err(wrong) = checked {
                    let value = smol_str::format_smolstr!("{} with {} {}", "set", wrong.unit, wrong.value);
                    return brain.at("policy").rule(false, &value, wrong.allowed);
                }
            }
            Brain::KedaEpp { in_pod, waiting } => {
                brain.at("in_pod").number(*in_pod, 0.001, 1e6)?;
                brain.at("waiting").number(*waiting, 0.001, 1e6)?;
            }
            Brain::Script(steps) => {
                let filled = steps.iter().all(|(_, numbers)| !numbers.is_empty());
                brain.rule(filled, "a moment without numbers", "one number at least at every moment")?;
                let ordered = steps.windows(2).all(|pair| pair[0].0 < pair[1].0);
                brain.rule(ordered, "moments out of order", "ascending moments")?;
            }
        }
        let Path::Prometheus { scrape, reconcile, publish } = self.path else { return Ok(()) };
        let path = field.at("path");
        let (tick, hour) = (Duration::from_millis(10), Duration::from_secs(3600));
        path.at("scrape").span(scrape, tick, hour)?;
        path.at("reconcile").span(reconcile, tick, hour)?;
        path.at("publish").span(publish, Duration::ZERO, hour)
    }
}
