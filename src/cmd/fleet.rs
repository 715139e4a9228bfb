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
    let blocks = readings.kv_tokens / u64::from(readings.block_size.max(1));
    page.info("cache_config_info", &[("block_size", readings.block_size.into()), ("num_gpu_blocks", blocks)]);
    page.gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", readings.kv_usage);
    page.gauge(
        "num_requests_waiting",
        "Number of requests waiting to be processed.",
        readings.waiting.floor(),
    );
    page.gauge("num_requests_running", "Number of requests in execution batches.", readings.running.floor());
    page.counter("num_preemptions_total", "Number of preemptions.", readings.preemptions);
    page.counter("prompt_tokens_total", "Number of prompt tokens processed.", readings.prompt_tokens);
    page.counter("generation_tokens_total", "Number of generated tokens.", readings.generation_tokens);
    page.counter_with(
        "request_success_total",
        "Finished requests.",
        ("finished_reason", "stop"),
        readings.finished(),
    );
    page.counter("iteration_tokens_total_count", "Steps of the engine.", readings.steps);
    page.histogram("time_to_first_token_seconds", "Time to first token.", &readings.first_token);
    page.histogram("inter_token_latency_seconds", "Time between tokens.", &readings.inter_token);
    page.histogram("request_prompt_tokens", "Prompt tokens of finished requests.", &readings.request_prompt);
    page.histogram("request_generation_tokens", "Tokens of finished requests.", &readings.request_generation);
    page.text
}

/// A page under construction. Writing to a `String` cannot fail, so the results of `write!` are ignored.
struct Page {
    text: String,
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
        }
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}");
    }

    /// vLLM puts no model name on this one.
    fn info(&mut self, name: &str, labels: &[(&str, u64)]) {
        self.head(name, "gauge", "Information of the LLMEngine CacheConfig.");
        let labels = labels.iter().map(|(label, value)| format!(",{label}=\"{value}\"")).collect::<String>();
        let _ = writeln!(self.text, "vllm:{name}{{engine=\"0\"{labels}}} 1.0");
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, "gauge", help);
        let _ = writeln!(self.text, "vllm:{name}{{{}}} {value:?}", self.labels);
    }

    fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.head(name.trim_end_matches("_total"), "counter", help);
        let _ = writeln!(self.text, "vllm:{name}{{{}}} {:?}", self.labels, value.floor());
    }

    fn counter_with(&mut self, name: &str, help: &str, label: (&str, &str), value: f64) {
        self.head(name.trim_end_matches("_total"), "counter", help);
        let labels = &self.labels;
        let (label, label_value) = label;
        let _ = writeln!(self.text, "vllm:{name}{{{labels},{label}=\"{label_value}\"}} {:?}", value.floor());
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let labels = &self.labels;
        for (bound, below) in histogram.cumulative() {
            let _ =
                writeln!(self.text, "vllm:{name}_bucket{{{labels},le=\"{bound:?}\"}} {:?}", below.floor());
        }
        let sum = histogram.sum();
        let count = histogram.count().floor();
        let _ = writeln!(self.text, "vllm:{name}_bucket{{{labels},le=\"+Inf\"}} {count:?}");
        let _ = writeln!(self.text, "vllm:{name}_sum{{{labels}}} {sum:?}");
        let _ = writeln!(self.text, "vllm:{name}_count{{{labels}}} {count:?}");
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
        exposition(fleet.pods().next().unwrap().readings.unwrap(), "org/\"big\" model")
    }

    #[test]
    fn every_series_that_an_analyzer_reads_is_there_with_vllms_labels() {
        let page = page();
        let labels = r#"{engine="0",model_name="org/\"big\" model"}"#;
        for name in [
            "kv_cache_usage_perc",
            "num_requests_waiting",
            "num_requests_running",
            "prompt_tokens_total",
            "generation_tokens_total",
            "inter_token_latency_seconds_sum",
            "inter_token_latency_seconds_count",
            "iteration_tokens_total_count",
            "time_to_first_token_seconds_sum",
            "time_to_first_token_seconds_count",
            "request_prompt_tokens_sum",
            "request_prompt_tokens_count",
            "request_generation_tokens_sum",
            "request_generation_tokens_count",
        ] {
            assert!(page.contains(&format!("\nvllm:{name}{labels} ")), "{name} is missing in\n{page}");
        }
        assert!(
            page.contains(
                "vllm:cache_config_info{engine=\"0\",block_size=\"16\",num_gpu_blocks=\"30000\"} 1.0"
            )
        );
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
