//! Parses a metrics page, in Prometheus text format or OpenMetrics. Each sample line is passed to the library separately, so that
//! its name is the one that Prometheus would store, whatever the `# TYPE` lines are, and a malformed line affects only itself.
//! Lines that are not read (mostly histogram buckets) are skipped without parsing.
//!
//! The library is `prometheus-scraper`, because only it reads both formats, has a permissive licence and accepts colons in names.
//! Its grouping into families is not used, because without `# TYPE` lines it merges `_sum` and `_count`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use prometheus_scraper::borrowed::{LabelPair, Metric, MetricValue};
use prometheus_scraper::{TextFormat, text_parse_family};

use crate::collect::limits::MAX_LABEL_BYTES;
use crate::collect::merge::Part;
use crate::collect::series_labels::{self, SeriesLabels};
use crate::collect::signals::{self, MetricKind, MetricName};
use crate::engine::{Destination, MAX_SERIES_OF_A_POD, Scheduler};

/// Most samples kept of one page: twice the series of a pod, since a page may have two names of a metric.
const MAX_PAGE_SAMPLES: usize = 2 * MAX_SERIES_OF_A_POD;

/// A sample on a page, with what its labels say.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PageSample {
    pub(super) name: &'static MetricName,
    /// The `engine` label, or else the data-parallel rank.
    pub(super) engine: Option<String>,
    /// Whether `engine` is a data-parallel rank.
    pub(super) is_rank: bool,
    pub(super) model: Option<String>,
    pub(super) part: Part,
    /// Of a scheduler's counter: where the counted requests were sent.
    pub(super) destination: Option<Destination>,
    /// The time, if the page contains it.
    pub(super) at: Option<Timestamp>,
    pub(super) value: f64,
}

/// The content of a page.
#[derive(Debug, Default)]
pub(super) struct ParsedPage {
    pub(super) samples: Vec<PageSample>,
    /// The number of samples with invalid values, and of malformed lines.
    pub(super) bad_samples: u64,
    /// The number of samples beyond a limit.
    pub(super) dropped: u64,
    /// Whether it is in OpenMetrics and has no end mark.
    pub(super) is_truncated: bool,
}

/// The format of an answer with this `Content-Type`: Prometheus text, unless it is OpenMetrics.
pub(super) fn format(content_type: &str) -> TextFormat {
    if content_type.trim_start().starts_with("application/openmetrics-text") {
        TextFormat::OpenMetrics
    } else {
        TextFormat::Prometheus
    }
}

/// Parses a page of an engine, or the beginning of one that ends with a complete line.
pub(super) fn parse(body: &[u8], format: TextFormat) -> ParsedPage {
    let mut page = ParsedPage::default();
    page.is_truncated = for_each_line(body, format, |line| match line {
        LineResult::Sample(sample) if sample.name.kind.is_scheduler() => {}
        LineResult::Sample(_) if page.samples.len() >= MAX_PAGE_SAMPLES => page.dropped += 1,
        LineResult::Sample(sample) => page.samples.push(sample),
        LineResult::OverLimit => page.dropped += 1,
        LineResult::Bad => page.bad_samples += 1,
        LineResult::NotRead => {}
    });
    page
}

/// Parses the page of a scheduler. Its metrics are split by labels of requests, of which there may be any number, and added up here:
/// by model, of which only those of `scheduler` are read, and by destination.
pub(super) fn parse_scheduler(body: &[u8], format: TextFormat, scheduler: &Scheduler) -> ParsedPage {
    let mut page = ParsedPage::default();
    let mut sums: BTreeMap<(&'static str, Option<String>, Option<Destination>), PageSample> = BTreeMap::new();
    page.is_truncated = for_each_line(body, format, |line| match line {
        LineResult::Sample(mut sample) => {
            if let Some(only) = scheduler.only_model() {
                sample.model = Some(only.to_string());
            }
            let is_own = sample.model.as_deref().is_some_and(|model| scheduler.models.contains(model));
            if !sample.name.kind.is_scheduler() || !is_own {
                return;
            }
            let key = (sample.name.text, sample.model.clone(), sample.destination.clone());
            if let Some(sum) = sums.get_mut(&key) {
                sum.value += sample.value;
            } else if sums.len() < MAX_PAGE_SAMPLES {
                // Read now, whatever time a part of it has.
                sums.insert(
                    key,
                    PageSample { part: Part::default(), at: None, engine: None, is_rank: false, ..sample },
                );
            } else {
                page.dropped += 1;
            }
        }
        LineResult::OverLimit => page.dropped += 1,
        LineResult::Bad => page.bad_samples += 1,
        LineResult::NotRead => {}
    });
    page.samples = sums.into_values().filter(|sum| sum.value.is_finite()).collect();
    page
}

/// Calls `read` for each line that may be read. True if the page is truncated, as far as its format tells.
fn for_each_line(body: &[u8], format: TextFormat, mut read: impl FnMut(LineResult)) -> bool {
    for line in body.split(|&byte| byte == b'\n') {
        let Ok(line) = std::str::from_utf8(line) else { continue };
        let line = line.trim();
        if line == "# EOF" {
            return false;
        }
        if may_be_read(line) {
            read(parse_line(line, format));
        }
    }
    format == TextFormat::OpenMetrics
}

/// Whether a line may be a sample that is read, by its first characters.
fn may_be_read(line: &str) -> bool {
    // A quoted name is inside the braces (UTF-8 names of Prometheus 3), where the library finds it.
    line.starts_with('{') || signals::find(line.split(['{', ' ', '\t']).next().unwrap_or_default()).is_some()
}

enum LineResult {
    Sample(PageSample),
    Bad,
    OverLimit,
    NotRead,
}

fn parse_line(line: &str, format: TextFormat) -> LineResult {
    let Ok(family) = text_parse_family(line, format) else { return LineResult::Bad };
    let Some(name) = signals::find(&family.name) else { return LineResult::NotRead };
    let Some(Metric { label: labels, value: MetricValue::Untyped(number), timestamp }) =
        family.metric.first()
    else {
        return LineResult::Bad;
    };
    let labels = &PageLabels(labels);
    if !series_labels::is_read(name.kind, labels) {
        return LineResult::NotRead;
    }
    if series_labels::exceeds_limits(name.kind, labels) {
        return LineResult::OverLimit;
    }
    let Some(mut value) = signals::valid_value(name.kind, number.as_f64()) else { return LineResult::Bad };
    if name.kind == MetricKind::CacheConfig {
        let Some(tokens) = signals::cache_tokens(|label| labels.get(label)) else {
            return LineResult::NotRead;
        };
        value = tokens;
    }
    let pairs = labels.0.iter().map(|pair| (pair.name.as_ref(), pair.value.as_ref()));
    let part = match name.kind {
        MetricKind::CacheConfig => Part::default(),
        kind if kind.is_scheduler() => Part::from_labels(pairs),
        kind => match kind.part_label() {
            Some(label) => Part::from_page(pairs).split_by(label, labels.get(label)),
            None => Part::from_page(pairs),
        },
    };
    let engine = series_labels::engine(labels);
    LineResult::Sample(PageSample {
        name,
        is_rank: engine.as_ref().is_some_and(|engine| engine.is_rank),
        engine: engine.map(|engine| engine.name.into_owned()),
        model: series_labels::model(name.kind, labels).map(Into::into),
        destination: destination(name.kind, labels),
        part,
        at: timestamp.as_ref().and_then(|at| timestamp_of(at.seconds, at.nanos)),
        value,
    })
}

/// Where a scheduler sent the requests that it counts.
fn destination(kind: MetricKind, labels: &PageLabels<'_>) -> Option<Destination> {
    let pod = labels.get("pod_name").filter(|_| kind == MetricKind::SchedulerSuccesses)?;
    let port = labels.get("port").and_then(|port| port.parse().ok());
    (pod.len() <= MAX_LABEL_BYTES).then(|| Destination { pod: pod.into(), port })
}

/// A time in whole milliseconds, as both formats contain it. The library's conversion from decimal seconds is not exact.
fn timestamp_of(seconds: i64, nanos: i32) -> Option<Timestamp> {
    let millis = (i64::from(nanos) + 500_000) / 1_000_000;
    Timestamp::from_millisecond(seconds.checked_mul(1_000)?.checked_add(millis)?).ok()
}

/// The labels of a sample.
struct PageLabels<'a>(&'a [LabelPair<'a>]);

impl SeriesLabels for PageLabels<'_> {
    fn get(&self, label: &str) -> Option<&str> {
        let value = self.0.iter().find(|pair| pair.name == label && !pair.value.is_empty());
        value.map(|pair| pair.value.as_ref())
    }

    fn count(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASSIC: &str = r#"# HELP vllm:num_requests_waiting Number of requests.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="meta/llama, {\"3\"}"} 3.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} NaN
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="m"} 0.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 4.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 4.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 1.25e-1
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="27000",engine="0"} 1.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 1.7e+06 1800000000123
vllm:num_requests_running{engine="0" 5
process_cpu_seconds_total 12.5
"#;

    fn value(page: &ParsedPage, name: &str) -> Option<f64> {
        page.samples.iter().find(|sample| sample.name.text == name).map(|sample| sample.value)
    }

    #[test]
    fn a_page_of_vllm_is_parsed_with_colons_escapes_histograms_and_values_in_labels() {
        let page = parse(CLASSIC.as_bytes(), TextFormat::Prometheus);
        assert_eq!(value(&page, "vllm:num_requests_waiting"), Some(3.0));
        assert_eq!(page.samples[0].model.as_deref(), Some("meta/llama, {\"3\"}"));
        assert_eq!(page.samples[0].engine.as_deref(), Some("0"));
        assert_eq!(value(&page, "vllm:time_to_first_token_seconds_sum"), Some(0.125));
        assert_eq!(value(&page, "vllm:time_to_first_token_seconds_count"), Some(4.0));
        assert_eq!(value(&page, "vllm:cache_config_info"), Some(432_000.0));
        assert_eq!(page.samples.len(), 5);
    }

    #[test]
    fn invalid_values_and_malformed_lines_are_counted_and_affect_only_themselves() {
        let page = parse(CLASSIC.as_bytes(), TextFormat::Prometheus);
        assert_eq!(value(&page, "vllm:kv_cache_usage_perc"), None);
        assert_eq!(page.bad_samples, 2);
        assert!(!page.is_truncated);
    }

    #[test]
    fn classic_times_are_milliseconds_and_open_metrics_times_are_seconds() {
        let page = parse(CLASSIC.as_bytes(), TextFormat::Prometheus);
        assert_eq!(page.samples[4].at.unwrap().as_millisecond(), 1_800_000_000_123);
        let open = "# TYPE vllm:prompt_tokens counter\n\
                    vllm:prompt_tokens_total 5 1800000000.25 # {trace_id=\"a\"} 1 1800000000\n# EOF\n";
        let page = parse(open.as_bytes(), TextFormat::OpenMetrics);
        assert_eq!(page.samples[0].at.unwrap().as_millisecond(), 1_800_000_000_250);
        assert_eq!(value(&page, "vllm:prompt_tokens_total"), Some(5.0));
    }

    #[test]
    fn an_open_metrics_page_without_its_end_mark_is_truncated() {
        assert!(parse(b"vllm:prompt_tokens_total 5\n", TextFormat::OpenMetrics).is_truncated);
        assert!(!parse(b"vllm:prompt_tokens_total 5\n# EOF", TextFormat::OpenMetrics).is_truncated);
    }

    proptest::proptest! {
        #[test]
        fn no_page_makes_it_panic_or_gives_an_invalid_value(
            tail in r#"[{} =",\\#a-z0-9.+eE-]{0,60}"#,
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..80),
        ) {
            let mut text = format!("vllm:kv_cache_usage_perc{tail}\n{{\"vllm:prompt_tokens\"{tail}\n").into_bytes();
            text.extend(bytes);
            for format in [TextFormat::Prometheus, TextFormat::OpenMetrics] {
                let page = parse(&text, format);
                proptest::prop_assert!(page.samples.iter().all(|sample| sample.value.is_finite() && sample.value >= 0.0));
            }
        }
    }

    #[test]
    fn the_labels_and_samples_kept_of_a_page_are_limited() {
        let long = "x".repeat(MAX_LABEL_BYTES + 1);
        let page = format!(
            "vllm:prompt_tokens_total{{engine=\"{long}\"}} 1\nvllm:prompt_tokens_total{{engine=\"0\",note=\"{long}\"}} 2\n"
        );
        let page = parse(page.as_bytes(), TextFormat::Prometheus);
        assert_eq!(
            (page.dropped, value(&page, "vllm:prompt_tokens_total")),
            (1, Some(2.0)),
            "another label may be long"
        );
        let many: String =
            (0..5_000).map(|n| format!("vllm:prompt_tokens_total{{engine=\"{n}\"}} 1\n")).collect();
        let page = parse(many.as_bytes(), TextFormat::Prometheus);
        assert_eq!((page.samples.len(), page.dropped), (MAX_PAGE_SAMPLES, 3_000));
    }

    #[test]
    fn deferred_requests_are_not_counted_as_waiting_for_capacity() {
        let page = r#"vllm:num_requests_waiting{engine="0"} 9.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 7.0
vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0.0
vllm:engine_sleep_state{engine="0",sleep_state="weights_offloaded"} 1.0
"#;
        let page = parse(page.as_bytes(), TextFormat::Prometheus);
        assert_eq!(value(&page, "vllm:num_requests_waiting_by_reason"), Some(2.0));
        assert_eq!(value(&page, "vllm:engine_sleep_state"), Some(1.0), "asleep");
        assert_eq!(page.samples.len(), 3);
    }

    #[test]
    fn no_type_line_is_needed_to_tell_a_sum_from_a_count() {
        let page = parse(
            b"vllm:request_prompt_tokens_sum 900\nvllm:request_prompt_tokens_count 3\n",
            TextFormat::Prometheus,
        );
        assert_eq!(value(&page, "vllm:request_prompt_tokens_sum"), Some(900.0));
        assert_eq!(value(&page, "vllm:request_prompt_tokens_count"), Some(3.0));
    }
}
