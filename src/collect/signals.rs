//! Which signal a metric of an engine or scheduler measures, how to query for it, and which of its values are valid. The names are
//! in `metric_names`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use wva_core::snapshot::Signal;

use super::metric_names::NAMES;
pub(crate) use super::metric_names::{Exporter, MetricKind, MetricName};

/// How far above 1 a ratio may be before it must be something else, such as a percentage. Engines divide block counts in floating
/// point, so a full cache may read 1.0000001; 1 % is far above rounding errors and far below any percentage.
const RATIO_TOLERANCE: f64 = 0.01;

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

/// The names of `signal` that `exporter` has, newest first.
pub(crate) fn names_of(exporter: Exporter, signal: Signal) -> Vec<&'static MetricName> {
    let is_listed = |name: &&MetricName| name.signal == signal && name.generation.0 == exporter;
    let mut names: Vec<_> = NAMES.iter().filter(is_listed).collect();
    names.sort_by_key(|name| name.generation);
    names
}

/// The current name of `signal` for each exporter that has one: what to look for when a series is missing.
#[must_use]
pub fn current_series_names(signal: Signal) -> Vec<String> {
    let current =
        Exporter::ALL.into_iter().filter_map(|exporter| names_of(exporter, signal).into_iter().next());
    current.map(|name| name.text.to_owned()).collect()
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
    fn each_engine_has_at_most_one_current_name() {
        let expected = ["vllm:kv_cache_usage_perc", "sglang:token_usage", "trtllm_kv_cache_utilization"];
        assert_eq!(current_series_names(Signal::KvUsage), expected, "TGI has none");
        assert_eq!(current_series_names(Signal::SchedulerQueueSize), ["llm_d_epp_flow_control_queue_size"]);
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
