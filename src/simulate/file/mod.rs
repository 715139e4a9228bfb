//! Scenario files: what a person writes. Types only, with their defaults; the schema is made of them. Reading is in `read`, what
//! they mean for the simulator in [`super::plan`].

mod change;
mod locate;
mod physics;
mod random;
mod read;

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::values::{
    Count, Every, Gpus, Late, Length, MeanTokens, Pods, Price, Rps, Share, SomePods, Span, Times, Variation,
};

pub use change::{Change, SpreadFile};
pub(in crate::simulate) use locate::Step;
pub use physics::{PhysicsEntry, PhysicsFile, RoughFile, known_physics};
pub use random::{Between, RandomFile, RandomLoad, Shape, TimeBetween};
pub use read::{FileError, schema};
pub(in crate::simulate) use read::{Problem, Source, read};

/// A scenario file is one of these.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(untagged, title = "A scenario of wva simulate")]
pub enum File {
    /// Other scenarios, each changed in several ways.
    Set(SetFile),
    /// A scenario that every seed draws anew.
    Random(RandomFile),
    /// One scenario, or one with variations.
    Scenario(Box<ScenarioFile>),
}

/// Other scenarios, each changed in several ways.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SetFile {
    /// What it is about, for people.
    #[serde(default)]
    pub about: Option<String>,
    /// Scenario files, beside this one.
    pub of: Vec<PathBuf>,
    /// Every one of them with each of these changes; as they are without any.
    #[serde(default)]
    pub vary: Vec<Change>,
}

/// One scenario.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScenarioFile {
    /// What it is about, for people.
    #[serde(default)]
    pub about: Option<String>,
    /// How long requests come; by default as long as the load lasts.
    #[serde(default)]
    pub duration: Option<Length>,
    /// What comes.
    pub load: Load,
    /// What serves the model.
    pub variants: Vec<VariantFile>,
    /// How pods are looked at by the program itself.
    #[serde(default)]
    pub scrape: ScrapeFile,
    /// The HPA of every variant.
    #[serde(default)]
    pub hpa: HpaFile,
    /// What a terminating pod has not finished by then is cut off: terminationGracePeriodSeconds. 30s by default.
    #[serde(default)]
    pub grace: Option<Span>,
    /// The gateway holds requests while every ready pod has this many waiting; by default only while no pod is ready.
    #[serde(default)]
    pub hold_at: Option<Count>,
    /// Which pods go first.
    #[serde(default)]
    pub victims: VictimsFile,
    /// What users were promised.
    #[serde(default)]
    pub slo: SloFile,
    /// The scenario in several ways: each of these is run, in place of the scenario as it stands.
    #[serde(default)]
    pub vary: Vec<Change>,
}

/// What comes.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Load {
    /// How requests follow each other at a rate.
    #[serde(default)]
    pub arrivals: ArrivalsFile,
    /// How many tokens requests have. Not needed where a trace says it.
    #[serde(default)]
    pub tokens: Option<Tokens>,
    /// Share of every prompt that is found in the prefix cache.
    #[serde(default)]
    pub prefix_hits: Option<Share>,
    /// Parts, one after the other. Either this or a trace.
    #[serde(default)]
    pub rate: Vec<Part>,
    /// What really came somewhere. Either this or rates.
    #[serde(default)]
    pub trace: Option<TraceFile>,
}

/// How requests follow each other at a rate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ArrivalsFile {
    /// Each independent of all others.
    #[default]
    Poisson,
    /// One by one, at equal distances.
    Even,
    /// So many at one moment.
    Bursts(Count),
}

/// How many tokens requests have. One of `spread`, `cv` and `large` at most; ±10 % without any.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Tokens {
    /// Mean tokens of a prompt.
    pub prompt: MeanTokens,
    /// Mean tokens generated.
    pub output: MeanTokens,
    /// Uniform, within the mean ± this share.
    #[serde(default)]
    pub spread: Option<Share>,
    /// Log-normal, with this coefficient of variation.
    #[serde(default)]
    pub cv: Option<Variation>,
    /// Some requests are much larger; the others are as much smaller as keeps the means.
    #[serde(default)]
    pub large: Option<Large>,
}

/// Requests that are larger than most.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Large {
    /// Share of all requests.
    pub share: Share,
    /// How many times the mean they have; share × times is below 1.
    pub times: Times,
}

/// A part of the load: a rate, a ramp (with `to`) or a wave (with `swing` and `period`).
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Part {
    /// Requests a second: all the time, at the start of a ramp, or in the mean of a wave.
    pub rps: Rps,
    /// How long.
    #[serde(rename = "for")]
    pub lasts: Length,
    /// Requests a second at the end of a ramp.
    #[serde(default)]
    pub to: Option<Rps>,
    /// How far a wave goes up and down.
    #[serde(default)]
    pub swing: Option<Rps>,
    /// How long one wave is.
    #[serde(default)]
    pub period: Option<Length>,
    /// From here on requests have these tokens.
    #[serde(default)]
    pub tokens: Option<Tokens>,
}

/// What really came somewhere.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TraceFile {
    /// The file, beside this one; else give it by --trace.
    #[serde(default)]
    pub file: Option<PathBuf>,
    /// Which column or model, where the file has several.
    #[serde(default)]
    pub series: Option<String>,
    /// Begins here, counted from the trace's first moment.
    #[serde(default)]
    pub from: Option<Span>,
    /// As much of the load: rates times this; of requests each comes so often.
    #[serde(default)]
    pub times: Option<Times>,
    /// Requests come up to this much later than they did, each by chance.
    #[serde(default)]
    pub jitter: Option<Late>,
}

/// One way of serving the model, scaled on its own.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VariantFile {
    /// Its name.
    pub name: String,
    /// How fast a replica is.
    pub physics: PhysicsFile,
    /// Where it is not as simple as that.
    #[serde(default)]
    pub rough: Option<RoughFile>,
    /// The accelerator's name; H100 by default.
    #[serde(default)]
    pub accelerator: Option<String>,
    /// Accelerators of one replica; 1 by default.
    #[serde(default)]
    pub gpus: Option<Gpus>,
    /// What one replica costs an hour; 1 by default.
    #[serde(default)]
    pub cost: Option<Price>,
    /// minReplicas; 1 by default.
    #[serde(default)]
    pub min: Option<Pods>,
    /// maxReplicas; 10 by default.
    #[serde(default)]
    pub max: Option<SomePods>,
    /// Replicas that are ready at the beginning; by default the minimum, and 1 at least.
    #[serde(default)]
    pub replicas: Option<Pods>,
    /// From a pod's creation to its being ready; 95s by default.
    #[serde(default)]
    pub start_up: Option<Span>,
    /// By how much of it that differs; 0.05 by default.
    #[serde(default)]
    pub start_up_spread: Option<Share>,
    /// Every step of the first pod takes this many times as long.
    #[serde(default)]
    pub first_pod_slower: Option<Times>,
    /// Pods that nodes have room for; more stay unschedulable.
    #[serde(default)]
    pub schedulable: Option<Pods>,
}

/// How pods are looked at.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScrapeFile {
    /// Between two looks at a pod; 5s by default.
    #[serde(default)]
    pub interval: Option<Every>,
    /// From a look until what was seen can be used; 200ms by default.
    #[serde(default)]
    pub delay: Option<Late>,
    /// Share of looks that fail, also of Prometheus.
    #[serde(default)]
    pub loss: Option<Share>,
}

/// The HPA of every variant: as the API server fills it in, but for this.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HpaFile {
    /// How often the controller looks; 15s by default.
    #[serde(default)]
    pub sync: Option<Every>,
    /// How far from equal counts as equal; 0.1 by default.
    #[serde(default)]
    pub tolerance: Option<Share>,
    /// stabilizationWindowSeconds of scaleUp; 0s by default.
    #[serde(default)]
    pub scale_up_window: Option<Late>,
    /// stabilizationWindowSeconds of scaleDown; 300s by default. Policies that come with a window of their own (rate 0s,
    /// wva-v1 and wva-v2 120s) have that.
    #[serde(default)]
    pub scale_down_window: Option<Late>,
    /// Without a behavior block: the controller's older arithmetic.
    #[serde(default)]
    pub no_behavior: bool,
}

/// Which pods go first when a variant shrinks, after those that are not ready.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum VictimsFile {
    /// The youngest, as a ReplicaSet does.
    #[default]
    Youngest,
    /// Those with the fewest requests in flight: pod-deletion-cost.
    LeastLoaded,
    /// Those with the fewest tokens in the KV cache.
    FewestTokens,
}

/// What users were promised.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SloFile {
    /// Time to the first token; 1s by default.
    #[serde(default)]
    pub ttft: Option<Length>,
    /// Mean time between two tokens; 100ms by default.
    #[serde(default)]
    pub itl: Option<Every>,
}
