//! The table of metric names: what each exporter calls each signal, in current and older versions.
//!
//! A name is listed only where the exporter measures what the signal means, in its unit. A signal without a name is unknown for that
//! exporter, never 0. `signals_page` says what is left out, and why.

use wva_core::snapshot::Signal;

/// What exports a metric: an engine, or the scheduler in front of engines. Where a pod shows the names of several, the first one of
/// these is preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exporter {
    /// vLLM, also as a worker of NVIDIA Dynamo, which passes the metrics of its engine on.
    Vllm,
    /// SGLang, likewise.
    Sglang,
    /// TensorRT-LLM (`trtllm-serve`), likewise.
    TensorRtLlm,
    /// Hugging Face's Text Generation Inference.
    Tgi,
    /// The endpoint picker (EPP).
    Scheduler,
}

impl Exporter {
    /// All of them, in the order of preference.
    pub(crate) const ALL: [Self; 5] =
        [Self::Vllm, Self::Sglang, Self::TensorRtLlm, Self::Tgi, Self::Scheduler];

    /// Its name for people.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Vllm => "vLLM",
            Self::Sglang => "SGLang",
            Self::TensorRtLlm => "TensorRT-LLM",
            Self::Tgi => "TGI",
            Self::Scheduler => "Scheduler",
        }
    }
}

/// The exporter of a name and its age: 0 for the current name, higher for those of older versions.
pub(crate) type Generation = (Exporter, u8);

/// The name of a metric that is read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MetricName {
    /// The name, as it is exposed.
    pub(crate) text: &'static str,
    /// What the metric measures.
    pub(crate) signal: Signal,
    /// Whose name it is. Both halves of a ratio are read from one generation.
    pub(crate) generation: Generation,
    /// How to read its value.
    pub(crate) kind: MetricKind,
}

/// How to read the value of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetricKind {
    /// A gauge from 0 to 1.
    Ratio,
    /// A gauge, at least 0.
    Gauge,
    /// A counter, at least 0.
    Counter,
    /// A counter of the server in front of all engines at a port, at least 0, summed over `reason`. It names no engine, so that each
    /// engine gets an equal share: a server with several data-parallel ones has refused each request once.
    ServerCounter,
    /// A gauge that is always 1: its value is in its labels (`signals::cache_tokens`).
    CacheConfig,
    /// A gauge, of which only `reason="capacity"` is read: deferred requests do not wait for capacity.
    WaitingForCapacity,
    /// A gauge, of which only `sleep_state="awake"` is read, inverted: 0 means asleep and becomes 1.
    Awake,
    /// A gauge of the scheduler, summed over its labels (priority, flow).
    SchedulerGauge,
    /// A counter of the scheduler, of which only `status="success"` is read, summed over its labels (endpoint).
    SchedulerSuccesses,
}

impl MetricKind {
    /// The label and value that a series must have to be read, if any.
    pub(crate) const fn required_label(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::WaitingForCapacity => Some(("reason", "capacity")),
            Self::Awake => Some(("sleep_state", "awake")),
            Self::SchedulerSuccesses => Some(("status", "success")),
            _ => None,
        }
    }

    /// The label that splits a metric into parts although it is another metric's value, if any.
    pub(crate) const fn part_label(self) -> Option<&'static str> {
        match self {
            Self::ServerCounter => Some("reason"),
            _ => None,
        }
    }

    /// True for metrics of a scheduler about a model, false for metrics of an engine.
    pub(crate) const fn is_scheduler(self) -> bool {
        matches!(self, Self::SchedulerGauge | Self::SchedulerSuccesses)
    }
}

const fn name(
    exporter: Exporter,
    age: u8,
    text: &'static str,
    signal: Signal,
    kind: MetricKind,
) -> MetricName {
    MetricName { text, signal, generation: (exporter, age), kind }
}

/// All names.
///
/// - *vLLM* has renamed its cache gauge and its latency histogram once, and its prefix-cache counters twice. Python exporters append
///   `_total` to a counter, others do not.
/// - *SGLang*'s prefix-cache counters are not read, because they would have to be summed by source first.
/// - *TensorRT-LLM*: `tensorrt_llm/metrics/collector.py`. It counts tokens and first tokens when a request ends. Dynamo 0.7 wrote its
///   prefix with a colon.
/// - *TGI*: `docs/source/reference/metrics.md`. It counts each prefill and each decode of a batch.
pub(super) static NAMES: &[MetricName] = {
    use Exporter::{Scheduler, Sglang, TensorRtLlm, Tgi, Vllm};
    use MetricKind::WaitingForCapacity;
    use MetricKind::{
        Awake, CacheConfig, Counter, Gauge, Ratio, SchedulerGauge, SchedulerSuccesses, ServerCounter,
    };
    use Signal as S;
    &[
        name(Vllm, 0, "vllm:kv_cache_usage_perc", S::KvUsage, Ratio),
        name(Vllm, 1, "vllm:gpu_cache_usage_perc", S::KvUsage, Ratio),
        name(Vllm, 0, "vllm:num_requests_waiting_by_reason", S::Waiting, WaitingForCapacity),
        name(Vllm, 1, "vllm:num_requests_waiting", S::Waiting, Gauge),
        name(Vllm, 0, "vllm:num_requests_running", S::Running, Gauge),
        name(Vllm, 0, "vllm:cache_config_info", S::KvCapacity, CacheConfig),
        name(Vllm, 0, "vllm:prompt_tokens_total", S::PromptTokens, Counter),
        name(Vllm, 1, "vllm:prompt_tokens", S::PromptTokens, Counter),
        name(Vllm, 0, "vllm:generation_tokens_total", S::GenerationTokens, Counter),
        name(Vllm, 1, "vllm:generation_tokens", S::GenerationTokens, Counter),
        name(Vllm, 0, "vllm:inter_token_latency_seconds_sum", S::InterTokenLatencySum, Counter),
        name(Vllm, 0, "vllm:inter_token_latency_seconds_count", S::InterTokenLatencyCount, Counter),
        name(Vllm, 1, "vllm:time_per_output_token_seconds_sum", S::InterTokenLatencySum, Counter),
        name(Vllm, 1, "vllm:time_per_output_token_seconds_count", S::InterTokenLatencyCount, Counter),
        name(Vllm, 0, "vllm:time_to_first_token_seconds_sum", S::TimeToFirstTokenSum, Counter),
        name(Vllm, 0, "vllm:time_to_first_token_seconds_count", S::TimeToFirstTokenCount, Counter),
        name(Vllm, 0, "vllm:request_prompt_tokens_sum", S::RequestPromptTokensSum, Counter),
        name(Vllm, 0, "vllm:request_prompt_tokens_count", S::RequestPromptTokensCount, Counter),
        name(Vllm, 0, "vllm:request_generation_tokens_sum", S::RequestGenerationTokensSum, Counter),
        name(Vllm, 0, "vllm:request_generation_tokens_count", S::RequestGenerationTokensCount, Counter),
        name(Vllm, 0, "vllm:prefix_cache_hits_total", S::PrefixCacheHits, Counter),
        name(Vllm, 0, "vllm:prefix_cache_queries_total", S::PrefixCacheQueries, Counter),
        name(Vllm, 1, "vllm:prefix_cache_hits", S::PrefixCacheHits, Counter),
        name(Vllm, 1, "vllm:prefix_cache_queries", S::PrefixCacheQueries, Counter),
        name(Vllm, 2, "vllm:gpu_prefix_cache_hits_total", S::PrefixCacheHits, Counter),
        name(Vllm, 2, "vllm:gpu_prefix_cache_queries_total", S::PrefixCacheQueries, Counter),
        name(Vllm, 3, "vllm:gpu_prefix_cache_hits", S::PrefixCacheHits, Counter),
        name(Vllm, 3, "vllm:gpu_prefix_cache_queries", S::PrefixCacheQueries, Counter),
        name(Vllm, 0, "vllm:iteration_tokens_total_count", S::EngineSteps, Counter),
        name(Vllm, 0, "vllm:admission_rejections_total", S::RefusedRequests, ServerCounter),
        name(Vllm, 1, "vllm:admission_rejections", S::RefusedRequests, ServerCounter),
        name(Vllm, 0, "vllm:engine_sleep_state", S::Asleep, Awake),
        name(Sglang, 0, "sglang:token_usage", S::KvUsage, Ratio),
        name(Sglang, 0, "sglang:num_queue_reqs", S::Waiting, Gauge),
        name(Sglang, 0, "sglang:num_running_reqs", S::Running, Gauge),
        name(Sglang, 0, "sglang:max_total_num_tokens", S::KvCapacity, Gauge),
        name(Sglang, 0, "sglang:prompt_tokens_total", S::PromptTokens, Counter),
        name(Sglang, 0, "sglang:generation_tokens_total", S::GenerationTokens, Counter),
        name(Sglang, 0, "sglang:inter_token_latency_seconds_sum", S::InterTokenLatencySum, Counter),
        name(Sglang, 0, "sglang:inter_token_latency_seconds_count", S::InterTokenLatencyCount, Counter),
        name(Sglang, 0, "sglang:time_to_first_token_seconds_sum", S::TimeToFirstTokenSum, Counter),
        name(Sglang, 0, "sglang:time_to_first_token_seconds_count", S::TimeToFirstTokenCount, Counter),
        name(Sglang, 0, "sglang:prompt_tokens_histogram_sum", S::RequestPromptTokensSum, Counter),
        name(Sglang, 0, "sglang:prompt_tokens_histogram_count", S::RequestPromptTokensCount, Counter),
        name(Sglang, 0, "sglang:generation_tokens_histogram_sum", S::RequestGenerationTokensSum, Counter),
        name(Sglang, 0, "sglang:generation_tokens_histogram_count", S::RequestGenerationTokensCount, Counter),
        name(TensorRtLlm, 0, "trtllm_kv_cache_utilization", S::KvUsage, Ratio),
        name(TensorRtLlm, 0, "trtllm_num_requests_waiting", S::Waiting, Gauge),
        name(TensorRtLlm, 0, "trtllm_num_requests_running", S::Running, Gauge),
        name(TensorRtLlm, 0, "trtllm_prompt_tokens_total", S::PromptTokens, Counter),
        name(TensorRtLlm, 0, "trtllm_generation_tokens_total", S::GenerationTokens, Counter),
        name(TensorRtLlm, 0, "trtllm_time_to_first_token_seconds_sum", S::TimeToFirstTokenSum, Counter),
        name(TensorRtLlm, 0, "trtllm_time_to_first_token_seconds_count", S::TimeToFirstTokenCount, Counter),
        name(TensorRtLlm, 1, "trtllm:time_to_first_token_seconds_sum", S::TimeToFirstTokenSum, Counter),
        name(TensorRtLlm, 1, "trtllm:time_to_first_token_seconds_count", S::TimeToFirstTokenCount, Counter),
        name(Tgi, 0, "tgi_queue_size", S::Waiting, Gauge),
        name(Tgi, 0, "tgi_batch_current_size", S::Running, Gauge),
        name(Tgi, 0, "tgi_request_generated_tokens_sum", S::RequestGenerationTokensSum, Counter),
        name(Tgi, 0, "tgi_request_generated_tokens_count", S::RequestGenerationTokensCount, Counter),
        name(Tgi, 0, "tgi_batch_inference_count", S::EngineSteps, Counter),
        name(Scheduler, 0, "llm_d_epp_flow_control_queue_size", S::SchedulerQueueSize, SchedulerGauge),
        name(
            Scheduler,
            1,
            "inference_extension_flow_control_queue_size",
            S::SchedulerQueueSize,
            SchedulerGauge,
        ),
        name(Scheduler, 0, "llm_d_epp_flow_control_queue_bytes", S::SchedulerQueueBytes, SchedulerGauge),
        name(
            Scheduler,
            1,
            "inference_extension_flow_control_queue_bytes",
            S::SchedulerQueueBytes,
            SchedulerGauge,
        ),
        name(Scheduler, 0, "llm_d_epp_scheduler_attempts_total", S::SchedulerAttempts, SchedulerSuccesses),
        name(
            Scheduler,
            1,
            "inference_extension_scheduler_attempts_total",
            S::SchedulerAttempts,
            SchedulerSuccesses,
        ),
    ]
};
