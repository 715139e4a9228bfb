//! What hostile model servers show: pages that cost whoever reads them more than they are worth, or that speak for others.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use axum::body::Bytes;

/// Ports that a scheduler names of each of a few pods: 20,000 series.
const PORTS: usize = 5_000;
const PODS_OF_SCHEDULER: usize = 4;
/// Series with so many labels of so many bytes: 7 MB.
const FLOODED: usize = 40;
const LABELS: usize = 3_000;
const LABEL: usize = 40;
/// Pods of a namespace without variants, each with a label of so many bytes: 24 MB.
const STRANGERS: usize = 2_000;
const LONG: usize = 4_096;
/// Pods of others for which an impostor speaks, engines of each, and what it says.
const VICTIMS: usize = 10;
const ENGINES: usize = 200;
const LIES: [(&str, &str); 4] = [
    ("num_requests_waiting", "1000000.0"),
    ("num_requests_running", "256.0"),
    ("kv_cache_usage_perc", "1.0"),
    ("generation_tokens_total", "0.0"),
];

/// The pages of all attacks by name. They never change, and take longer to write than to serve.
pub(crate) fn pages() -> BTreeMap<&'static str, Bytes> {
    let pages =
        [("ports", ports()), ("labels", labels()), ("strangers", strangers()), ("impostor", impostor())];
    pages.map(|(name, page)| (name, page.into())).into()
}

/// A scheduler that counts by port. Writing to a `String` cannot fail, here and below.
fn ports() -> String {
    let name = "llm_d_epp_scheduler_attempts_total";
    let mut text = format!("# TYPE {name} counter\n");
    for pod in 0..PODS_OF_SCHEDULER {
        for port in 1..=PORTS {
            let _ = writeln!(
                text,
                "{name}{{pod_name=\"v-{pod}-0\",port=\"{port}\",status=\"success\",model_name=\"v-{pod}\"}} 1.0"
            );
        }
    }
    text
}

/// A pod whose series have thousands of labels.
fn labels() -> String {
    let (mut many, value) = (String::new(), "v".repeat(LABEL));
    for label in 0..LABELS {
        let _ = write!(many, ",l{label}=\"{value}\"");
    }
    let mut text = String::from("# TYPE vllm:num_requests_waiting gauge\n");
    for engine in 0..FLOODED {
        let _ = writeln!(text, "vllm:num_requests_waiting{{engine=\"{engine}\",model_name=\"m\"{many}}} 0.0");
    }
    text
}

/// Pods of a namespace without any variant.
fn strangers() -> String {
    let (mut text, ballast) = (String::new(), "b".repeat(LONG));
    for name in ["num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"] {
        let _ = writeln!(text, "# TYPE vllm:{name} gauge");
        for pod in 0..STRANGERS {
            let _ = writeln!(
                text,
                "vllm:{name}{{pod=\"p-{pod}\",model_name=\"m-{pod}\",ballast=\"{ballast}\"}} 0.0"
            );
        }
    }
    text
}

/// Says of the pods of others that they are overloaded. Scraped without `honor_labels`, it is the scrape that says whose this is.
fn impostor() -> String {
    let mut text = String::new();
    for (name, value) in LIES {
        let _ = writeln!(text, "# TYPE vllm:{name} gauge");
        for victim in 0..VICTIMS {
            for engine in 0..ENGINES {
                let _ = writeln!(
                    text,
                    "vllm:{name}{{namespace=\"llm\",pod=\"v-{victim}-0\",exported_namespace=\"llm\",exported_pod=\"v-{victim}-0\",\
                     engine=\"{engine}\",model_name=\"v-{victim}\"}} {value}"
                );
            }
        }
    }
    text
}
