//! Which metric names say what: one table for every engine and the scheduler, old names beside new ones, and which
//! values are possible. Not here: where samples come from, and what is concluded from them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use wva_core::snapshot::Signal;

/// How far above 1 a share may be before it is something else than a share (a percentage, say). Engines divide block
/// counts in floating point, so a full cache may read 1.0000001; 1 % is far more than rounding and far less than a unit.
const SHARE_SLACK: f64 = 0.01;

/// A metric name that is read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// As the engine exposes it.
    pub(crate) text: &'static str,
    /// What it measures.
    pub(crate) signal: Signal,
    /// 0 is the current name of the signal, higher numbers are older or belong to another engine.
    pub(crate) generation: u8,
    /// How its value is to be read.
    pub(crate) kind: Kind,
}

/// How a value is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A gauge from 0 to 1.
    Share,
    /// A gauge, at least 0.
    Gauge,
    /// A counter, at least 0.
    Counter,
    /// Always 1: the value is in its labels ([`cache_tokens`]).
    CacheConfig,
    /// A gauge, of which only `reason="capacity"` counts: deferred requests wait for something else than room.
    WaitingForCapacity,
    /// A gauge, of which only `sleep_state="awake"` counts: 0 is asleep, and is read as 1.
    Awake,
    /// A gauge of the scheduler: its parts (by priority, by flow) add up.
    SchedulerGauge,
    /// A counter of the scheduler, of which only `status="success"` counts: its parts (by endpoint) add up.
    SchedulerSuccesses,
}

impl Kind {
    /// The label value of a series that counts, where it isn't every series of the name.
    pub(crate) const fn only(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::WaitingForCapacity => Some(("reason", "capacity")),
            Self::Awake => Some(("sleep_state", "awake")),
            Self::SchedulerSuccesses => Some(("status", "success")),
            _ => None,
        }
    }

    /// True for what the scheduler says of a model, false for what an engine says of itself.
    pub(crate) const fn is_scheduler(self) -> bool {
        matches!(self, Self::SchedulerGauge | Self::SchedulerSuccesses)
    }
}

const fn name(text: &'static str, signal: Signal, generation: u8, kind: Kind) -> Name {
    Name { text, signal, generation, kind }
}

/// Every name, newest first within a signal. vLLM renamed its cache gauge and its latency histogram, and its prefix
/// cache counters twice; Python exporters add `_total` to a counter, others don't. SGLang's prefix cache is left out:
/// its parts must be added up by source first.
static NAMES: &[Name] = {
    use Kind::WaitingForCapacity;
    use Kind::{Awake, CacheConfig, Counter, Gauge, SchedulerGauge, SchedulerSuccesses, Share};
    use Signal as S;
    &[
        name("vllm:kv_cache_usage_perc", S::KvUsage, 0, Share),
        name("vllm:gpu_cache_usage_perc", S::KvUsage, 1, Share),
        name("sglang:token_usage", S::KvUsage, 2, Share),
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

static BY_TEXT: LazyLock<BTreeMap<&'static str, &'static Name>> =
    LazyLock::new(|| NAMES.iter().map(|name| (name.text, name)).collect());

/// The entry of a metric name; `None` for what isn't read.
pub(crate) fn find(text: &str) -> Option<&'static Name> {
    BY_TEXT.get(text).copied()
}

/// The names of each of `signals` as alternatives of a regular expression, of all signals when `None`. Names have no
/// character that one must escape. Where an engine is asked about, so is whether it sleeps.
pub(crate) fn alternatives(signals: Option<&BTreeSet<Signal>>) -> Vec<String> {
    let is_asked =
        |signal| signals.is_none_or(|signals| signals.contains(&signal) || signal == Signal::Asleep);
    let mut names: BTreeMap<Signal, Vec<&str>> = BTreeMap::new();
    for name in NAMES.iter().filter(|name| is_asked(name.signal)) {
        names.entry(name.signal).or_default().push(name.text);
    }
    names.into_values().map(|names| names.join("|")).collect()
}

/// The names of `signal`, newest first.
pub(crate) fn names(signal: Signal) -> Vec<&'static Name> {
    let mut names: Vec<_> = NAMES.iter().filter(|name| name.signal == signal).collect();
    names.sort_by_key(|name| name.generation);
    names
}

/// What a query for `names` leaves out: matchers for the series of which only some count, each as `,label=~"|value"`.
pub(crate) fn matchers(names: &str) -> String {
    let asked: BTreeSet<&str> = names.split('|').collect();
    let only = NAMES.iter().filter(|name| !name.kind.is_scheduler() && asked.contains(name.text));
    let only: BTreeSet<_> = only.filter_map(|name| name.kind.only()).collect();
    only.into_iter().map(|(label, value)| format!(",{label}=~\"|{value}\"")).collect()
}

/// A signal of a scheduler, not of an engine.
pub(crate) const fn is_schedulers(signal: Signal) -> bool {
    matches!(signal, Signal::SchedulerQueueSize | Signal::SchedulerQueueBytes | Signal::SchedulerAttempts)
}

/// The signal that stands for `signal` and its other half: both must come from one generation of names.
pub(crate) const fn couple(signal: Signal) -> Signal {
    match signal {
        Signal::InterTokenLatencyCount => Signal::InterTokenLatencySum,
        Signal::TimeToFirstTokenCount => Signal::TimeToFirstTokenSum,
        Signal::RequestPromptTokensCount => Signal::RequestPromptTokensSum,
        Signal::RequestGenerationTokensCount => Signal::RequestGenerationTokensSum,
        Signal::PrefixCacheQueries => Signal::PrefixCacheHits,
        other => other,
    }
}

/// The value as it may be used; `None` when it is impossible: not finite, negative, or a share well above 1.
pub(crate) fn possible(kind: Kind, value: f64) -> Option<f64> {
    if !value.is_finite() || value < 0.0 {
        return None;
    }
    match kind {
        Kind::Share if value > 1.0 + SHARE_SLACK => None,
        Kind::Share => Some(value.min(1.0)),
        Kind::Awake => Some(if value > 0.0 { 0.0 } else { 1.0 }),
        _ => Some(value),
    }
}

/// KV-cache size in tokens from the labels of `vllm:cache_config_info`: as the engine says it, else blocks × block size, which
/// is too much where layers have caches of different sizes (a model with sliding windows: 262,144 for 99,273). `None` when
/// the engine doesn't know yet (vLLM writes `None` before it has profiled the memory) or says zero.
pub(crate) fn cache_tokens<'l>(label: impl Fn(&str) -> Option<&'l str>) -> Option<f64> {
    let number = |name| label(name).and_then(|text| text.parse::<u32>().ok());
    let product = || {
        // The product of two u32 fits u64, and below 2^53 (a cache of 9 quadrillion tokens) f64 is exact.
        Some((u64::from(number("num_gpu_blocks")?) * u64::from(number("block_size")?)) as f64)
    };
    let said = number("kv_cache_size_tokens").filter(|tokens| *tokens > 0).map(f64::from);
    said.or_else(product).filter(|tokens| *tokens > 0.0)
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
        for half in NAMES.iter().filter(|name| couple(name.signal) != name.signal) {
            let other = NAMES
                .iter()
                .any(|name| name.signal == couple(half.signal) && name.generation == half.generation);
            assert!(other, "{} has no counterpart", half.text);
        }
    }

    #[test]
    fn an_impossible_value_is_refused_and_rounding_is_not() {
        assert_eq!(possible(Kind::Share, 1.000_000_1), Some(1.0));
        assert_eq!(possible(Kind::Share, 87.0), None);
        assert_eq!(possible(Kind::Gauge, -1.0), None);
        assert_eq!(possible(Kind::Counter, f64::NAN), None);
        assert_eq!(possible(Kind::Counter, f64::INFINITY), None);
        assert_eq!(possible(Kind::Gauge, 0.0), Some(0.0));
    }

    #[test]
    fn cache_size_is_what_the_engine_says_else_blocks_times_block_size_and_unknown_is_not_zero() {
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
    fn a_query_asks_only_for_the_series_of_a_name_that_count() {
        assert_eq!(matchers("vllm:prompt_tokens_total|vllm:num_requests_running"), "");
        let both = "vllm:engine_sleep_state|vllm:num_requests_waiting_by_reason|vllm:num_requests_waiting";
        assert_eq!(matchers(both), ",reason=~\"|capacity\",sleep_state=~\"|awake\"");
        let asked = alternatives(Some(&[Signal::Running].into()));
        assert_eq!(asked.last().map(String::as_str), Some("vllm:engine_sleep_state"), "{asked:?}");
    }
}
