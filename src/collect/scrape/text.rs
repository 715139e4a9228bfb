//! The text of one pod's metrics, as Prometheus text or OpenMetrics. Every sample line goes to the library by itself:
//! so its name stays the one that a Prometheus would store, whatever the `# TYPE` lines say or leave out, and a
//! malformed line costs only itself. Lines that nobody reads (histogram buckets, mostly) are skipped unparsed.
//!
//! The library is `prometheus-scraper`, because it alone reads both formats, has a permissive licence and accepts colons
//! in names; its grouping into families is not used: without a `# TYPE` line it merges `_sum` and `_count`.

use jiff::Timestamp;
use prometheus_scraper::borrowed::{LabelPair, Metric, MetricValue};
use prometheus_scraper::{TextFormat, text_parse_family};

use crate::collect::bounds::{MAX_LABEL_BYTES, MAX_LABELS};
use crate::collect::merge::Part;
use crate::collect::signals::{self, Kind, Name};
use crate::engine::MAX_SERIES_OF_A_POD;

/// Lines kept of one page: twice the series of a pod, since a page may have two names of a figure.
const MAX_LINES: usize = 2 * MAX_SERIES_OF_A_POD;

/// One sample that is read.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Line {
    pub(super) name: &'static Name,
    /// The `engine` label, or else the data-parallel rank.
    pub(super) engine: Option<String>,
    /// It is a data-parallel rank.
    pub(super) is_rank: bool,
    pub(super) model: Option<String>,
    /// Which part of a figure it is.
    pub(super) part: Part,
    /// The sample's own time, when it has one.
    pub(super) at: Option<Timestamp>,
    pub(super) value: f64,
}

/// What a text says.
#[derive(Debug, Default)]
pub(super) struct Text {
    pub(super) lines: Vec<Line>,
    /// Samples with impossible values, and lines with a name of ours that can't be read.
    pub(super) bad_samples: u64,
    /// Lines left out: too many, or with labels that are too many or too long.
    pub(super) dropped: u64,
    /// An OpenMetrics text without its end mark was cut.
    pub(super) cut: bool,
}

/// The format by the `Content-Type` of an answer; what isn't OpenMetrics is read as Prometheus text.
pub(super) fn format(content_type: &str) -> TextFormat {
    if content_type.trim_start().starts_with("application/openmetrics-text") {
        TextFormat::OpenMetrics
    } else {
        TextFormat::Prometheus
    }
}

/// Reads a text, or the part of one that ends with a whole line.
pub(super) fn parse(body: &[u8], format: TextFormat) -> Text {
    let mut text = Text { cut: format == TextFormat::OpenMetrics, ..Text::default() };
    for line in body.split(|&byte| byte == b'\n') {
        let Ok(line) = std::str::from_utf8(line) else { continue };
        let line = line.trim();
        if line == "# EOF" {
            text.cut = false;
            break;
        }
        if !is_read(line) {
            continue;
        }
        match sample(line, format) {
            Read::Sample(_) if text.lines.len() >= MAX_LINES => text.dropped += 1,
            Read::Sample(line) => text.lines.push(line),
            Read::TooLong => text.dropped += 1,
            Read::Bad => text.bad_samples += 1,
            Read::Irrelevant => {}
        }
    }
    text
}

/// Whether a line may be a sample that is read, by its first characters.
fn is_read(line: &str) -> bool {
    // A quoted name stands inside the braces (UTF-8 names of Prometheus 3): the library finds it.
    line.starts_with('{') || signals::find(line.split(['{', ' ', '\t']).next().unwrap_or_default()).is_some()
}

enum Read {
    Sample(Line),
    Bad,
    TooLong,
    Irrelevant,
}

fn sample(line: &str, format: TextFormat) -> Read {
    let Ok(family) = text_parse_family(line, format) else { return Read::Bad };
    let Some(name) = signals::find(&family.name) else { return Read::Irrelevant };
    let Some(Metric { label: labels, value: MetricValue::Untyped(number), timestamp }) =
        family.metric.first()
    else {
        return Read::Bad;
    };
    let label = |wanted| find(labels, wanted);
    if name.kind.only().is_some_and(|(only, value)| label(only) != Some(value)) {
        return Read::Irrelevant;
    }
    let too_long = |owned| label(owned).is_some_and(|value| value.len() > MAX_LABEL_BYTES);
    let many = labels.len() > MAX_LABELS && name.kind != Kind::CacheConfig;
    if many || ["engine", "dp_rank", "model_name", "target_model_name"].into_iter().any(too_long) {
        return Read::TooLong;
    }
    let Some(mut value) = signals::possible(name.kind, number.as_f64()) else { return Read::Bad };
    if name.kind == Kind::CacheConfig {
        let Some(tokens) = signals::cache_tokens(|wanted| find(labels, wanted)) else {
            return Read::Irrelevant;
        };
        value = tokens;
    }
    let at = timestamp.as_ref().and_then(|at| time(at.seconds, at.nanos));
    let (model, part) = subject(name, labels);
    let (engine, is_rank) = match (label("engine"), label("dp_rank")) {
        (Some(engine), Some(rank)) => (Some(format!("{engine}/{rank}")), false),
        (Some(engine), None) => (Some(engine.to_owned()), false),
        (None, rank) => (rank.map(Into::into), rank.is_some()),
    };
    Read::Sample(Line { name, engine, is_rank, model, part, at, value })
}

/// A time in whole milliseconds, as both formats write it; the library went through binary seconds.
fn time(seconds: i64, nanos: i32) -> Option<Timestamp> {
    let millis = (i64::from(nanos) + 500_000) / 1_000_000;
    Timestamp::from_millisecond(seconds.checked_mul(1_000)?.checked_add(millis)?).ok()
}

/// The model, and which part of the model's total this is.
fn subject(name: &Name, labels: &[LabelPair<'_>]) -> (Option<String>, Part) {
    let model = find(labels, "model_name");
    let pairs = labels.iter().map(|pair| (pair.name.as_ref(), pair.value.as_ref()));
    match name.kind {
        Kind::CacheConfig => (model.map(Into::into), Part::default()),
        kind if kind.is_scheduler() => {
            (find(labels, "target_model_name").or(model).map(Into::into), Part::by(pairs))
        }
        _ => (model.map(Into::into), Part::of_page(pairs)),
    }
}

/// The value of a label; an empty one is an absent one.
fn find<'a>(labels: &'a [LabelPair<'_>], name: &str) -> Option<&'a str> {
    labels.iter().find(|pair| pair.name == name && !pair.value.is_empty()).map(|pair| pair.value.as_ref())
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

    fn value(text: &Text, name: &str) -> Option<f64> {
        text.lines.iter().find(|line| line.name.text == name).map(|line| line.value)
    }

    #[test]
    fn the_text_of_vllm_is_read_with_colons_escapes_histograms_and_labels_that_are_values() {
        let text = parse(CLASSIC.as_bytes(), TextFormat::Prometheus);
        assert_eq!(value(&text, "vllm:num_requests_waiting"), Some(3.0));
        assert_eq!(text.lines[0].model.as_deref(), Some("meta/llama, {\"3\"}"));
        assert_eq!(text.lines[0].engine.as_deref(), Some("0"));
        assert_eq!(value(&text, "vllm:time_to_first_token_seconds_sum"), Some(0.125));
        assert_eq!(value(&text, "vllm:time_to_first_token_seconds_count"), Some(4.0));
        assert_eq!(value(&text, "vllm:cache_config_info"), Some(432_000.0));
        assert_eq!(text.lines.len(), 5);
    }

    #[test]
    fn a_bad_value_and_a_malformed_line_cost_only_themselves_and_are_counted() {
        let text = parse(CLASSIC.as_bytes(), TextFormat::Prometheus);
        assert_eq!(value(&text, "vllm:kv_cache_usage_perc"), None);
        assert_eq!(text.bad_samples, 2);
        assert!(!text.cut);
    }

    #[test]
    fn classic_times_are_milliseconds_and_open_metrics_times_are_seconds() {
        let text = parse(CLASSIC.as_bytes(), TextFormat::Prometheus);
        assert_eq!(text.lines[4].at.unwrap().as_millisecond(), 1_800_000_000_123);
        let open = "# TYPE vllm:prompt_tokens counter\n\
                    vllm:prompt_tokens_total 5 1800000000.25 # {trace_id=\"a\"} 1 1800000000\n# EOF\n";
        let text = parse(open.as_bytes(), TextFormat::OpenMetrics);
        assert_eq!(text.lines[0].at.unwrap().as_millisecond(), 1_800_000_000_250);
        assert_eq!(value(&text, "vllm:prompt_tokens_total"), Some(5.0));
    }

    #[test]
    fn an_open_metrics_text_without_its_end_mark_was_cut() {
        assert!(parse(b"vllm:prompt_tokens_total 5\n", TextFormat::OpenMetrics).cut);
        assert!(!parse(b"vllm:prompt_tokens_total 5\n# EOF", TextFormat::OpenMetrics).cut);
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic_or_gives_an_impossible_value(
            tail in r#"[{} =",\\#a-z0-9.+eE-]{0,60}"#,
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..80),
        ) {
            let mut text = format!("vllm:kv_cache_usage_perc{tail}\n{{\"vllm:prompt_tokens\"{tail}\n").into_bytes();
            text.extend(bytes);
            for format in [TextFormat::Prometheus, TextFormat::OpenMetrics] {
                let read = parse(&text, format);
                proptest::prop_assert!(read.lines.iter().all(|line| line.value.is_finite() && line.value >= 0.0));
            }
        }
    }

    #[test]
    fn a_page_of_endless_labels_or_lines_leaves_what_is_kept_of_one_pod() {
        let long = "x".repeat(MAX_LABEL_BYTES + 1);
        let page = format!(
            "vllm:prompt_tokens_total{{engine=\"{long}\"}} 1\nvllm:prompt_tokens_total{{engine=\"0\",note=\"{long}\"}} 2\n"
        );
        let text = parse(page.as_bytes(), TextFormat::Prometheus);
        assert_eq!(
            (text.dropped, value(&text, "vllm:prompt_tokens_total")),
            (1, Some(2.0)),
            "a note is not kept"
        );
        let many: String =
            (0..5_000).map(|n| format!("vllm:prompt_tokens_total{{engine=\"{n}\"}} 1\n")).collect();
        let text = parse(many.as_bytes(), TextFormat::Prometheus);
        assert_eq!((text.lines.len(), text.dropped), (MAX_LINES, 3_000));
    }

    #[test]
    fn what_waits_for_a_transfer_or_an_adapter_does_not_wait_for_room() {
        let page = r#"vllm:num_requests_waiting{engine="0"} 9.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 7.0
vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0.0
vllm:engine_sleep_state{engine="0",sleep_state="weights_offloaded"} 1.0
"#;
        let text = parse(page.as_bytes(), TextFormat::Prometheus);
        assert_eq!(value(&text, "vllm:num_requests_waiting_by_reason"), Some(2.0));
        assert_eq!(value(&text, "vllm:engine_sleep_state"), Some(1.0), "asleep");
        assert_eq!(text.lines.len(), 3);
    }

    #[test]
    fn no_type_line_is_needed_and_a_sum_is_never_read_as_a_count() {
        let text = parse(
            b"vllm:request_prompt_tokens_sum 900\nvllm:request_prompt_tokens_count 3\n",
            TextFormat::Prometheus,
        );
        assert_eq!(value(&text, "vllm:request_prompt_tokens_sum"), Some(900.0));
        assert_eq!(value(&text, "vllm:request_prompt_tokens_count"), Some(3.0));
    }
}
