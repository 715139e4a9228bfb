//! The types of scenario files, with their defaults. The schema is generated from them: what is said of a field here is what users
//! read.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::values::{
    CostPerHour, Delay, Factor, GpuCount, MeanTokens, PodCount, PositiveCount, PositiveDuration,
    PositivePodCount, Rps, ScenarioTime, Share, ShortInterval, TokenCapacity, TokensPerStep,
    VariationCoefficient,
};
use super::physics::{DeviationsFile, PhysicsFile};

/// A scenario file is one of these.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(untagged, title = "A scenario of wva simulate")]
pub enum File {
    /// Other scenarios, each changed in several ways.
    Set(SetFile),
    /// A scenario that is drawn again for every seed.
    Random(Box<RandomFile>),
    /// One scenario, or one with variations.
    Scenario(Box<ScenarioFile>),
}

/// Other scenarios, each changed in several ways.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SetFile {
    /// A description for people.
    pub about: Option<String>,
    /// Scenario files, beside this one.
    pub of: Vec<PathBuf>,
    /// Run each of them with each of these changes; without any, as they are.
    #[serde(default)]
    pub vary: Vec<Change>,
}

/// One scenario.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScenarioFile {
    /// A description for people.
    pub about: Option<String>,
    /// How long requests arrive; by default as long as the load lasts.
    pub duration: Option<PositiveDuration>,
    /// The requests.
    pub load: Load,
    /// The variants of the model.
    pub variants: Vec<VariantFile>,
    /// How wva scrapes pods itself.
    #[serde(default)]
    pub scrape: ScrapeFile,
    /// The HPA of every variant.
    #[serde(default)]
    pub hpa: HpaFile,
    /// terminationGracePeriodSeconds: requests that a terminating pod has not finished by then are cut off. 30s by default.
    pub grace: Option<ScenarioTime>,
    /// The gateway holds requests while every ready pod has this many waiting; by default only while no pod is ready.
    pub hold_at: Option<PositiveCount>,
    /// Which pods are deleted first.
    #[serde(default)]
    pub victims: DeletionOrderFile,
    /// The latency objectives.
    #[serde(default)]
    pub slo: SloFile,
    /// Which pods have what prompts have in common.
    pub prefix_cache: Option<PrefixCacheFile>,
    /// When clients give up.
    pub clients: Option<ClientsFile>,
    /// Variations, run instead of the scenario itself.
    #[serde(default)]
    pub vary: Vec<Change>,
}

/// The requests.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Load {
    /// How requests follow each other at a rate.
    #[serde(default)]
    pub arrivals: ArrivalsFile,
    /// How many tokens requests have. Not needed with a trace that has them.
    pub tokens: Option<Tokens>,
    /// Share of every prompt that is found in the prefix cache.
    pub prefix_hits: Option<Share>,
    /// Parts in sequence. Either this or a trace.
    #[serde(default)]
    pub rate: Vec<SegmentFile>,
    /// A trace of a real system. Either this or rates.
    pub trace: Option<TraceFile>,
}

/// How requests follow each other at a rate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ArrivalsFile {
    /// Poisson arrivals: each independent of all others.
    #[default]
    Poisson,
    /// Single requests at equal distances.
    Even,
    /// This many requests at the same moment.
    Bursts(PositiveCount),
}

/// How many tokens requests have. One of `spread`, `cv` and `large` at most; ±10 % without any.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Tokens {
    /// Mean tokens of a prompt.
    pub prompt: MeanTokens,
    /// Mean tokens generated.
    pub output: MeanTokens,
    /// Uniform in the mean ± this share.
    pub spread: Option<Share>,
    /// Log-normal, with this coefficient of variation.
    pub cv: Option<VariationCoefficient>,
    /// Some requests are much larger; the others are smaller, so that the means stay.
    pub large: Option<LargeRequests>,
}

/// Requests that are larger than the others.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LargeRequests {
    /// Share of all requests.
    pub share: Share,
    /// Their size as a multiple of the mean; share × times is below 1.
    pub times: Factor,
}

/// A part of the load: a rate, a ramp (with `to`) or a wave (with `swing` and `period`).
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SegmentFile {
    /// Requests a second: constant, at the start of a ramp, or the mean of a wave.
    pub rps: Rps,
    /// Its duration.
    #[serde(rename = "for")]
    pub lasts: PositiveDuration,
    /// Requests a second at the end of a ramp.
    pub to: Option<Rps>,
    /// Amplitude of a wave, requests a second.
    pub swing: Option<Rps>,
    /// Period of a wave.
    pub period: Option<PositiveDuration>,
    /// Tokens of requests from this part on.
    pub tokens: Option<Tokens>,
}

/// A trace of a real system.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TraceFile {
    /// The file, relative to this one; or give it with --trace.
    pub file: Option<PathBuf>,
    /// The column or model, if the file has several.
    pub series: Option<String>,
    /// Where to begin, after the start of the trace.
    pub from: Option<ScenarioTime>,
    /// Multiplies the load: rates are multiplied, each request is repeated so often.
    pub times: Option<Factor>,
    /// Requests arrive up to this much later than they did, at random.
    pub jitter: Option<Delay>,
}

/// A variant of the model, scaled on its own.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VariantFile {
    /// Its name.
    pub name: String,
    /// How fast a replica is.
    pub physics: PhysicsFile,
    /// How step times deviate from that.
    pub rough: Option<DeviationsFile>,
    /// The accelerator's name; H100 by default.
    pub accelerator: Option<String>,
    /// Accelerators of one replica; 1 by default.
    pub gpus: Option<GpuCount>,
    /// Cost of a replica an hour; 1 by default.
    pub cost: Option<CostPerHour>,
    /// minReplicas; 1 by default.
    pub min: Option<PodCount>,
    /// maxReplicas; 10 by default.
    pub max: Option<PositivePodCount>,
    /// Replicas that are ready at the start; by default the minimum.
    pub replicas: Option<PodCount>,
    /// Time from a pod's creation until it is ready; 95s by default.
    pub start_up: Option<ScenarioTime>,
    /// Uniform in startUp ± this share of it; 0.05 by default.
    pub start_up_spread: Option<Share>,
    /// Every step of the first pod takes this many times as long.
    pub first_pod_slower: Option<Factor>,
    /// Pods that fit on nodes; further ones stay unschedulable.
    pub schedulable: Option<PodCount>,
    /// Pods that crash or fail their readiness probes.
    #[serde(default)]
    pub faults: Vec<PodFaultFile>,
}

/// A fault of pods.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum PodFaultFile {
    /// The oldest pods crash again and again, and take their start-up time until they are ready again.
    Crashing(CrashingFile),
    /// The oldest pods fail their readiness probes for a while, again and again.
    Blinking(BlinkingFile),
}

/// Pods that crash again and again.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CrashingFile {
    /// Time between two crashes.
    pub every: PositiveDuration,
    /// Number of pods.
    pub pods: PositivePodCount,
}

/// Pods that fail their readiness probes again and again.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BlinkingFile {
    /// Time between two failures.
    pub every: PositiveDuration,
    /// How long a failure lasts.
    pub lasts: PositiveDuration,
    /// Number of pods.
    pub pods: PositivePodCount,
}

/// Which pods have what prompts have in common. By default all of them do.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PrefixCacheFile {
    /// Requests after which a new pod's cache has 63 % of what it will have; at once by default.
    pub warm_after: Option<PositiveCount>,
    /// How badly requests are routed to the pods that have their prefix: with n ready pods, n^-this of the cached tokens are found.
    pub spread: Option<Share>,
}

/// Clients that wait for a first token only so long, and then send their request again.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClientsFile {
    /// How long they wait.
    pub timeout: PositiveDuration,
    /// How often they send the request again; never by default.
    pub retries: Option<PositiveCount>,
    /// Time between giving up and sending again; 1s by default.
    pub backoff: Option<PositiveDuration>,
}

/// How wva scrapes pods.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScrapeFile {
    /// Time between two scrapes of a pod; 5s by default.
    pub interval: Option<ShortInterval>,
    /// Time from a scrape until its samples can be used; 200ms by default.
    pub delay: Option<Delay>,
    /// Share of scrapes that fail, also those of Prometheus.
    pub loss: Option<Share>,
}

/// The HPA of every variant. Other fields have the defaults of the API server.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HpaFile {
    /// The sync period; 15s by default.
    pub sync: Option<ShortInterval>,
    /// How far a ratio may be from 1 and still count as 1; 0.1 by default.
    pub tolerance: Option<Share>,
    /// stabilizationWindowSeconds of scaleUp; 0s by default.
    pub scale_up_window: Option<Delay>,
    /// stabilizationWindowSeconds of scaleDown; 300s by default. Policies with a window of their own keep it: rate 0s,
    /// wva-v1 and wva-v2 120s.
    pub scale_down_window: Option<Delay>,
    /// No behavior block: the controller uses its older algorithm.
    #[serde(default)]
    pub no_behavior: bool,
}

/// Which ready pods are deleted first when a variant shrinks. Pods that are not ready always go before them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DeletionOrderFile {
    /// The youngest, like a ReplicaSet.
    #[default]
    Youngest,
    /// Those with the fewest requests in flight: pod-deletion-cost.
    LeastLoaded,
    /// Those with the fewest tokens in the KV cache.
    FewestTokens,
}

/// The latency objectives.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SloFile {
    /// Time to first token; 1s by default.
    pub ttft: Option<PositiveDuration>,
    /// Mean time between two tokens; 100ms by default.
    pub itl: Option<ShortInterval>,
}

/// A change of a scenario. Fields that are left out stay as they are.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Change {
    /// Its name in tables, after the scenario's.
    pub name: String,
    /// Multiplies the load.
    pub load: Option<Factor>,
    /// How requests follow each other.
    pub arrivals: Option<ArrivalsFile>,
    /// How sizes are distributed; the means stay.
    pub sizes: Option<SpreadFile>,
    /// Tokens of all requests.
    pub tokens: Option<Tokens>,
    /// Share of every prompt that is found in the prefix cache.
    pub prefix_hits: Option<Share>,
    /// Time from a pod's creation until it is ready.
    pub start_up: Option<ScenarioTime>,
    /// Every step takes this many times as long.
    pub slower: Option<Factor>,
    /// Multiplies the size of the KV cache.
    pub kv: Option<Factor>,
    /// Sequences that may run at once.
    pub max_sequences: Option<PositiveCount>,
    /// Tokens that a step may compute.
    pub token_budget: Option<TokenCapacity>,
    /// Tokens that a sequence gains in a step: speculative decoding.
    pub tokens_per_step: Option<TokensPerStep>,
    /// How step times deviate from the physics.
    pub rough: Option<DeviationsFile>,
    /// Every step of the first pod of a variant takes this many times as long.
    pub first_pod_slower: Option<Factor>,
    /// Replicas of every variant that are ready at the start.
    pub replicas: Option<PodCount>,
    /// Pods of each variant that fit on nodes.
    pub schedulable: Option<PodCount>,
    /// How wva scrapes pods.
    #[serde(default)]
    pub scrape: ScrapeFile,
    /// The HPA.
    #[serde(default)]
    pub hpa: HpaFile,
    /// How long a terminating pod may take to finish its requests.
    pub grace: Option<Delay>,
    /// The gateway holds requests while every ready pod has this many waiting.
    pub hold_at: Option<PositiveCount>,
    /// Which pods are deleted first.
    pub victims: Option<DeletionOrderFile>,
    /// Pods of each variant that crash or fail their readiness probes.
    pub faults: Option<Vec<PodFaultFile>>,
    /// Which pods have what prompts have in common.
    pub prefix_cache: Option<PrefixCacheFile>,
    /// When clients give up.
    pub clients: Option<ClientsFile>,
    /// The physics of every variant.
    pub physics: Option<PhysicsFile>,
}

/// How sizes are distributed around their means: one of these.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum SpreadFile {
    /// Uniform in the mean ± this share.
    Spread(Share),
    /// Log-normal, with this coefficient of variation.
    Cv(VariationCoefficient),
    /// Some requests are much larger.
    Large(LargeRequests),
}

/// A scenario that each seed draws: tokens, hardware, start-up and load.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RandomFile {
    /// A description for people.
    pub about: Option<String>,
    /// The ranges.
    pub random: RandomLoad,
}

/// The ranges of a random scenario. Values are drawn uniformly and independently; `slower`, `factor`, and all of families and sizes
/// uniformly in their logarithm.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RandomLoad {
    /// The preset that hardware and KV cache are multiples of. Not with families.
    pub preset: Option<String>,
    /// Hardware, one of these. Not with a preset.
    #[serde(default)]
    pub families: Vec<FamilyFile>,
    /// Mean tokens of prompts and outputs: one of these. Not with sizes.
    #[serde(default)]
    pub tokens: Vec<MeanTokensFile>,
    /// Sizes are uniform in the mean ± this share; 0.5 by default. Not with sizes.
    pub spread: Option<Share>,
    /// Sizes from ranges.
    pub sizes: Option<SizesRange>,
    /// Multiplies the time of steps.
    pub slower: Range,
    /// Multiplies the size of the KV cache.
    pub kv: Range,
    /// Time from a pod's creation until it is ready.
    pub start_up: TimeRange,
    /// Number of parts of the load.
    pub parts: PositiveCount,
    /// Duration of each part.
    pub part: PositiveDuration,
    /// Load of the first part, in replicas at full load.
    pub first: Range,
    /// Load of each further part as a multiple of the part before it.
    pub factor: Range,
    /// The least and the most load of a part, in replicas at full load.
    pub within: Range,
    /// The variant's maxReplicas.
    pub max: PositivePodCount,
}

/// A kind of hardware and model. Each parameter is drawn between a half of it and twice it.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FamilyFile {
    /// Its name, for people.
    pub name: String,
    /// How fast a replica is.
    pub physics: PhysicsFile,
    /// How step times deviate from that. Not drawn.
    pub rough: Option<DeviationsFile>,
}

/// Mean tokens in ranges, and the spread of single requests.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SizesRange {
    /// Of a prompt.
    pub prompt: Range,
    /// Generated.
    pub output: Range,
    /// Coefficient of variation of the log-normal sizes.
    pub cv: Range,
}

/// Mean tokens.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MeanTokensFile {
    /// Of a prompt.
    pub prompt: MeanTokens,
    /// Generated.
    pub output: MeanTokens,
}

/// A range of factors.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Range {
    /// At least.
    pub from: Factor,
    /// At most.
    pub to: Factor,
}

/// A range of durations.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TimeRange {
    /// At least.
    pub from: ScenarioTime,
    /// At most.
    pub to: ScenarioTime,
}
