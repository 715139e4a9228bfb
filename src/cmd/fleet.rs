//! The `/metrics` page of a simulated replica, with vLLM's names and labels. Shared by the demo and by the model servers of the
//! end-to-end tests; the simulation itself is in `wva_sim`.

use std::fmt::Write as _;

use wva_sim::{Histogram, Readings};

/// The content type of [`exposition`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The Prometheus text of one vLLM server that serves `model`.
#[must_use]
pub fn exposition(readings: &Readings, model: &str) -> String {
    let mut page = Page::new(model);
    let block_size = readings.block_size;
    let blocks = readings.kv_tokens / u64::from(block_size.max(1));
    page.head("cache_config_info", "gauge", "Information of the LLMEngine CacheConfig.");
    // vLLM puts no model name on this one.
    let labels = format!("engine=\"0\",block_size=\"{block_size}\",num_gpu_blocks=\"{blocks}\"");
    let _ = writeln!(page.text, "vllm:cache_config_info{{{labels}}} 1.0");
    for (name, help, value) in [
        ("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", readings.kv_usage),
        ("num_requests_waiting", "Number of requests waiting to be processed.", readings.waiting.floor()),
        ("num_requests_running", "Number of requests in execution batches.", readings.running.floor()),
    ] {
        page.head(name, "gauge", help);
        page.sample(name, "", value);
    }
    for (name, labels, help, value) in [
        ("num_preemptions_total", "", "Number of preemptions.", readings.preemptions),
        ("prompt_tokens_total", "", "Number of prompt tokens processed.", readings.prompt_tokens),
        ("generation_tokens_total", "", "Number of generated tokens.", readings.generation_tokens),
        ("request_success_total", ",finished_reason=\"stop\"", "Finished requests.", readings.finished()),
        ("iteration_tokens_total_count", "", "Steps of the engine.", readings.steps),
    ] {
        page.head(name.trim_end_matches("_total"), "counter", help);
        page.sample(name, labels, value.floor());
    }
    page.head("admission_rejections", "counter", "Requests refused because the queue is full.");
    let model = page.model.clone();
    // It is the server's, which has no engine.
    for (reason, value) in [("max_num_queued_reqs", readings.refused), ("max_num_queued_tokens", 0.0)] {
        let labels = format!("model_name=\"{model}\",reason=\"{reason}\"");
        let _ = writeln!(page.text, "vllm:admission_rejections_total{{{labels}}} {:?}", value.floor());
    }
    for (name, help, histogram) in [
        ("time_to_first_token_seconds", "Time to first token.", &readings.first_token),
        ("inter_token_latency_seconds", "Time between tokens.", &readings.inter_token),
        ("request_prompt_tokens", "Prompt tokens of finished requests.", &readings.request_prompt),
        ("request_generation_tokens", "Tokens of finished requests.", &readings.request_generation),
    ] {
        page.head(name, "histogram", help);
        page.histogram(name, histogram);
    }
    page.text
}

/// A page under construction. Writing to a `String` cannot fail, so the results of `write!` are ignored.
struct Page {
    text: String,
    /// The model's name, escaped.
    model: String,
    labels: String,
}

impl Page {
    /// A page has about 6 kB: allocated at once.
    const CAPACITY: usize = 8 * 1024;

    fn new(model: &str) -> Self {
        let model = model.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
        Self {
            text: String::with_capacity(Self::CAPACITY),
            labels: format!("engine=\"0\",model_name=\"{model}\""),
            model,
        }
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let _ = writeln!(self.text, "vllm:{name}{{{}{labels}}} {value:?}", self.labels);
    }

    fn histogram(&mut self, name: &str, histogram: &Histogram) {
        for (bound, below) in histogram.cumulative() {
            self.sample(&format!("{name}_bucket"), &format!(",le=\"{bound:?}\""), below.floor());
        }
        let count = histogram.count().floor();
        self.sample(&format!("{name}_bucket"), ",le=\"+Inf\"", count);
        self.sample(&format!("{name}_sum"), "", histogram.sum());
        self.sample(&format!("{name}_count"), "", count);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wva_core::units::Cost;
    use wva_sim::{Fleet, RequestSizes, SimVariant, TP1};

    use super::*;

    fn page() -> String {
        let variant = SimVariant::new("a", TP1, Cost::new(1.0).unwrap());
        let mut fleet = Fleet::new(variant, RequestSizes::fixed(1000.0, 250.0), 1);
        fleet.set_rate(10.0);
        fleet.advance(Duration::from_secs(60));
        exposition(fleet.pods()[0].readings().unwrap(), "org/\"big\" model")
    }

    #[test]
    fn every_series_that_an_analyzer_reads_is_there_with_vllms_labels() {
        let page = page();
        let labels = r#"{engine="0",model_name="org/\"big\" model"}"#;
        let names = "kv_cache_usage_perc num_requests_waiting num_requests_running prompt_tokens_total generation_tokens_total \
                     inter_token_latency_seconds_sum inter_token_latency_seconds_count iteration_tokens_total_count \
                     time_to_first_token_seconds_sum time_to_first_token_seconds_count request_prompt_tokens_sum \
                     request_prompt_tokens_count request_generation_tokens_sum request_generation_tokens_count";
        for name in names.split(' ') {
            assert!(page.contains(&format!("\nvllm:{name}{labels} ")), "{name} is missing in\n{page}");
        }
        let labels = r#"{model_name="org/\"big\" model",reason="max_num_queued_reqs"}"#;
        assert!(page.contains(&format!("\nvllm:admission_rejections_total{labels} 0.0")), "{page}");
        let labels = r#"{engine="0",block_size="16",num_gpu_blocks="30000"}"#;
        assert!(page.contains(&format!("vllm:cache_config_info{labels} 1.0")));
    }

    #[test]
    fn buckets_end_in_the_count() {
        let page = page();
        let value =
            |line: &str| page.lines().find(|l| l.starts_with(line)).unwrap().rsplit(' ').next().unwrap();
        let last =
            r#"vllm:time_to_first_token_seconds_bucket{engine="0",model_name="org/\"big\" model",le="+Inf"}"#;
        assert_eq!(value(last), value("vllm:time_to_first_token_seconds_count"));
    }
}
