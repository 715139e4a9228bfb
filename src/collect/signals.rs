//! The table of metric names: which signal each metric of an engine or scheduler measures, in current and older versions, and
//! which values are valid.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use wva_core::snapshot::Signal;

/// How far above 1 a ratio may be before it must be something else, such as a percentage. Engines divide block counts in floating
/// point, so a full cache may read 1.0000001; 1 % is far above rounding errors and far below any percentage.
const RATIO_TOLERANCE: f64 = 0.01;

/// The name of a metric that is read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MetricName {
    /// The name, as the engine exposes it.
    pub(crate) text: &'static str,
    /// What the metric measures.
    pub(crate) signal: Signal,
    /// 0 for the current name; higher for names of older versions or of another engine.
    pub(crate) generation: u8,
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
    /// A gauge that is always 1: its value is in its labels ([`cache_tokens`]).
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

    /// True for metrics of a scheduler about a model, false for metrics of an engine.
    pub(crate) const fn is_scheduler(self) -> bool {
        matches!(self, Self::SchedulerGauge | Self::SchedulerSuccesses)
    }
}

const fn name(text: &'static str, signal: Signal, generation: u8, kind: MetricKind) -> MetricName {
    MetricName { text, signal, generation, kind }
}

/// All names, the newest of a signal first. vLLM has renamed its cache gauge and its latency histogram once, and its prefix-cache
/// counters twice. Python exporters append `_total` to a counter, others do not. SGLang's prefix-cache counters are not read,
/// because they would have to be summed by source first.
static NAMES: &[MetricName] = {
    use MetricKind::WaitingForCapacity;
    use MetricKind::{Awake, CacheConfig, Counter, Gauge, Ratio, SchedulerGauge, SchedulerSuccesses};
    use Signal as S;
    &[
        name("vllm:kv_cache_usage_perc", S::KvUsage, 0, Ratio),
        name("vllm:gpu_cache_usage_perc", S::KvUsage, 1, Ratio),
        name("sglang:token_usage", S::KvUsage, 2, Ratio),
        name("vllm:num_requests_waiting_by_reason", S::Waiting, 0, WaitingForCapacity),
        name("vllm:num_requests_waiting", S::Waiting, 1, Gauge),
        name("sglang:num_queue_reqs", S::Waiting, 2, Gauge),
        name("vllm:num_requests_running", S::Running, 0, Gauge),
        name("sglang:num_running_reqs", S::Running, 1, Gauge),
        name("vllm:cache_config_info", S::KvCapacity, 0, CacheConfig),
        name("sglang:max_total_num_tokens", S::KvCapacity, 1, Gauge),
        name("vllm:prompt_tokens_total", S::PromptTokens, 0, Counter),
        name("vllm:prompt_tokens", S::PromptTokens, 1, Counter),
        name("sglang:prompt_tokens_total", S::PromptTokens, 2, Counter),
        name("vllm:generation_tokens_total", S::GenerationTokens, 0, Counter),
        name("vllm:generation_tokens", S::GenerationTokens, 1, Counter),
        name("sglang:generation_tokens_total", S::GenerationTokens, 2, Counter),
        name("vllm:inter_token_latency_seconds_sum", S::InterTokenLatencySum, 0, Counter),
        name("vllm:inter_token_latency_seconds_count", S::InterTokenLatencyCount, 0, Counter),
        name("vllm:time_per_output_token_seconds_sum", S::InterTokenLatencySum, 1, Counter),
        name("vllm:time_per_output_token_seconds_count", S::InterTokenLatencyCount, 1, Counter),
        name("sglang:inter_token_latency_seconds_sum", S::InterTokenLatencySum, 2, Counter),
        name("sglang:inter_token_latency_seconds_count", S::InterTokenLatencyCount, 2, Counter),
        name("vllm:time_to_first_token_seconds_sum", S::TimeToFirstTokenSum, 0, Counter),
        name("vllm:time_to_first_token_seconds_count", S::TimeToFirstTokenCount, 0, Counter),
        name("sglang:time_to_first_token_seconds_sum", S::TimeToFirstTokenSum, 1, Counter),
        name("sglang:time_to_first_token_seconds_count", S::TimeToFirstTokenCount, 1, Counter),
        name("vllm:request_prompt_tokens_sum", S::RequestPromptTokensSum, 0, Counter),
        name("vllm:request_prompt_tokens_count", S::RequestPromptTokensCount, 0, Counter),
        name("sglang:prompt_tokens_histogram_sum", S::RequestPromptTokensSum, 1, Counter),
        name("sglang:prompt_tokens_histogram_count", S::RequestPromptTokensCount, 1, Counter),
        name("vllm:request_generation_tokens_sum", S::RequestGenerationTokensSum, 0, Counter),
        name("vllm:request_generation_tokens_count", S::RequestGenerationTokensCount, 0, Counter),
        name("sglang:generation_tokens_histogram_sum", S::RequestGenerationTokensSum, 1, Counter),
        name("sglang:generation_tokens_histogram_count", S::RequestGenerationTokensCount, 1, Counter),
        name("vllm:prefix_cache_hits_total", S::PrefixCacheHits, 0, Counter),
        name("vllm:prefix_cache_queries_total", S::PrefixCacheQueries, 0, Counter),
        name("vllm:prefix_cache_hits", S::PrefixCacheHits, 1, Counter),
        name("vllm:prefix_cache_queries", S::PrefixCacheQueries, 1, Counter),
        name("vllm:gpu_prefix_cache_hits_total", S::PrefixCacheHits, 2, Counter),
        name("vllm:gpu_prefix_cache_queries_total", S::PrefixCacheQueries, 2, Counter),
        name("vllm:gpu_prefix_cache_hits", S::PrefixCacheHits, 3, Counter),
        name("vllm:gpu_prefix_cache_queries", S::PrefixCacheQueries, 3, Counter),
        name("vllm:iteration_tokens_total_count", S::EngineSteps, 0, Counter),
        name("vllm:engine_sleep_state", S::Asleep, 0, Awake),
        name("llm_d_epp_flow_control_queue_size", S::SchedulerQueueSize, 0, SchedulerGauge),
        name("inference_extension_flow_control_queue_size", S::SchedulerQueueSize, 1, SchedulerGauge),
        name("llm_d_epp_flow_control_queue_bytes", S::SchedulerQueueBytes, 0, SchedulerGauge),
        name("inference_extension_flow_control_queue_bytes", S::SchedulerQueueBytes, 1, SchedulerGauge),
        name("llm_d_epp_scheduler_attempts_total", S::SchedulerAttempts, 0, SchedulerSuccesses),
        name("inference_extension_scheduler_attempts_total", S::SchedulerAttempts, 1, SchedulerSuccesses),
    ]
};

static BY_TEXT: LazyLock<BTreeMap<&'static str, &'static MetricName>> =
    LazyLock::new(|| NAMES.iter().map(|name| (name.text, name)).collect());

/// The entry of a metric name; `None` if the metric is not read.
pub(crate) fn find(text: &str) -> Option<&'static MetricName> {
    BY_TEXT.get(text).copied()
}

/// For each of `signals` (all of them when `None`) a regular expression that matches its names; no name needs escaping. Whether
/// engines sleep is always included.
pub(crate) fn name_patterns(signals: Option<&BTreeSet<Signal>>) -> Vec<String> {
    let is_included =
        |signal| signals.is_none_or(|signals| signals.contains(&signal) || signal == Signal::Asleep);
    let mut names: BTreeMap<Signal, Vec<&str>> = BTreeMap::new();
    for name in NAMES.iter().filter(|name| is_included(name.signal)) {
        names.entry(name.signal).or_default().push(name.text);
    }
    names.into_values().map(|names| names.join("|")).collect()
}

/// The names of `signal`, newest first.
pub(crate) fn names(signal: Signal) -> Vec<&'static MetricName> {
    let mut names: Vec<_> = NAMES.iter().filter(|name| name.signal == signal).collect();
    names.sort_by_key(|name| name.generation);
    names
}

/// The current name of `signal` for each engine, and for the scheduler: what to look for when a series is missing.
#[must_use]
pub fn current_series_names(signal: Signal) -> Vec<String> {
    let mut engines = BTreeSet::new();
    let is_first =
        |name: &&str| name.split_once(':').is_none_or(|(engine, _)| engines.insert(engine.to_owned()));
    names(signal).into_iter().map(|name| name.text).filter(is_first).map(str::to_owned).collect()
}

/// Label matchers for a query for `names`, which exclude series that would not be read. Each is `,label=~"|value"`, which also
/// matches metrics without the label.
pub(crate) fn label_matchers(names: &str) -> String {
    let names: BTreeSet<&str> = names.split('|').collect();
    let queried = NAMES.iter().filter(|name| !name.kind.is_scheduler() && names.contains(name.text));
    let required: BTreeSet<_> = queried.filter_map(|name| name.kind.required_label()).collect();
    required.into_iter().map(|(label, value)| format!(",{label}=~\"|{value}\"")).collect()
}

/// True for signals of a scheduler, false for those of an engine.
pub(crate) const fn is_scheduler_signal(signal: Signal) -> bool {
    matches!(signal, Signal::SchedulerQueueSize | Signal::SchedulerQueueBytes | Signal::SchedulerAttempts)
}

/// For the denominator of a ratio its numerator, otherwise `signal` itself. Both halves of a ratio must come from one generation of
/// names, so they are selected together.
pub(crate) const fn numerator(signal: Signal) -> Signal {
    match signal {
        Signal::InterTokenLatencyCount => Signal::InterTokenLatencySum,
        Signal::TimeToFirstTokenCount => Signal::TimeToFirstTokenSum,
        Signal::RequestPromptTokensCount => Signal::RequestPromptTokensSum,
        Signal::RequestGenerationTokensCount => Signal::RequestGenerationTokensSum,
        Signal::PrefixCacheQueries => Signal::PrefixCacheHits,
        signal => signal,
    }
}

/// The value to use; `None` when the sample is invalid: not finite, negative, or a ratio well above 1.
pub(crate) fn valid_value(kind: MetricKind, value: f64) -> Option<f64> {
    if !value.is_finite() || value < 0.0 {
        return None;
    }
    match kind {
        MetricKind::Ratio if value > 1.0 + RATIO_TOLERANCE => None,
        MetricKind::Ratio => Some(value.min(1.0)),
        MetricKind::Awake => Some(if value > 0.0 { 0.0 } else { 1.0 }),
        _ => Some(value),
    }
}

/// KV-cache size in tokens from the labels of `vllm:cache_config_info`: as reported, else blocks × block size, which is too much
/// where layers have caches of different sizes (a model with sliding windows: 262,144 instead of 99,273). `None` when the engine
/// does not know it yet (vLLM writes `None` before it has profiled the memory) or reports zero.
pub(crate) fn cache_tokens<'l>(label: impl Fn(&str) -> Option<&'l str>) -> Option<f64> {
    let number = |name| label(name).and_then(|text| text.parse::<u32>().ok());
    let product = || {
        // The product of two u32 fits u64, and below 2^53 (a cache of 9 quadrillion tokens) f64 is exact.
        Some((u64::from(number("num_gpu_blocks")?) * u64::from(number("block_size")?)) as f64)
    };
    let reported = number("kv_cache_size_tokens").filter(|tokens| *tokens > 0).map(f64::from);
    reported.or_else(product).filter(|tokens| *tokens > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_listed_once_and_needs_no_escape() {
        assert_eq!(BY_TEXT.len(), NAMES.len());
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        assert!(NAMES.iter().all(|name| name.text.chars().all(plain)));
    }

    #[test]
    fn both_halves_of_a_ratio_exist_in_every_generation() {
        for denominator in NAMES.iter().filter(|name| numerator(name.signal) != name.signal) {
            let has_numerator = NAMES.iter().any(|name| {
                name.signal == numerator(denominator.signal) && name.generation == denominator.generation
            });
            assert!(has_numerator, "{} has no numerator", denominator.text);
        }
    }

    #[test]
    fn invalid_values_are_rejected_and_rounding_errors_are_not() {
        assert_eq!(valid_value(MetricKind::Ratio, 1.000_000_1), Some(1.0));
        assert_eq!(valid_value(MetricKind::Ratio, 87.0), None);
        assert_eq!(valid_value(MetricKind::Gauge, -1.0), None);
        assert_eq!(valid_value(MetricKind::Counter, f64::NAN), None);
        assert_eq!(valid_value(MetricKind::Counter, f64::INFINITY), None);
        assert_eq!(valid_value(MetricKind::Gauge, 0.0), Some(0.0));
    }

    #[test]
    fn the_cache_size_is_reported_or_blocks_times_block_size_and_never_zero_if_unknown() {
        let tokens = |labels: &[(&'static str, &'static str)]| {
            cache_tokens(|name| labels.iter().find(|(label, _)| *label == name).map(|(_, value)| *value))
        };
        let blocks = |blocks| tokens(&[("num_gpu_blocks", blocks), ("block_size", "16")]);
        assert_eq!(blocks("27000"), Some(432_000.0));
        assert_eq!((blocks("None"), blocks("0"), tokens(&[])), (None, None, None));
        let hybrid = |size| {
            tokens(&[("num_gpu_blocks", "16384"), ("block_size", "16"), ("kv_cache_size_tokens", size)])
        };
        assert_eq!(
            (hybrid("99273"), hybrid("None"), hybrid("0")),
            (Some(99_273.0), Some(262_144.0), Some(262_144.0))
        );
    }

    #[test]
    fn each_engine_has_one_current_name() {
        assert_eq!(current_series_names(Signal::KvUsage), ["vllm:kv_cache_usage_perc", "sglang:token_usage"]);
        assert!(Signal::ALL.into_iter().all(|signal| !current_series_names(signal).is_empty()));
    }

    #[test]
    fn a_query_matches_only_the_series_that_are_read() {
        assert_eq!(label_matchers("vllm:prompt_tokens_total|vllm:num_requests_running"), "");
        let both = "vllm:engine_sleep_state|vllm:num_requests_waiting_by_reason|vllm:num_requests_waiting";
        assert_eq!(label_matchers(both), ",reason=~\"|capacity\",sleep_state=~\"|awake\"");
        let patterns = name_patterns(Some(&[Signal::Running].into()));
        assert_eq!(patterns.last().map(String::as_str), Some("vllm:engine_sleep_state"), "{patterns:?}");
    }
}
