//! Metrics pages of hostile model servers: pages that are expensive to read, or that claim to be of other pods.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use axum::body::Bytes;

/// Ports that a scheduler reports for each pod. With the pods: 20,000 series.
const PORTS: usize = 5_000;
/// Pods that the scheduler reports.
const SCHEDULER_PODS: usize = 4;
/// Series with thousands of labels: 7 MB with the labels.
const LABELLED_SERIES: usize = 40;
/// Labels of each such series.
const LABELS: usize = 3_000;
/// Bytes of each label.
const LABEL_BYTES: usize = 40;
/// Pods of a namespace without variants: 24 MB with their labels.
const UNRELATED_PODS: usize = 2_000;
/// Bytes of the label of each.
const LONG_LABEL_BYTES: usize = 4_096;
/// Pods of others that the impostor claims to be.
const VICTIMS: usize = 10;
/// Engines that it claims for each.
const ENGINES: usize = 200;
/// Names and values that it claims.
const CLAIMS: [(&str, &str); 4] = [
    ("num_requests_waiting", "1000000.0"),
    ("num_requests_running", "256.0"),
    ("kv_cache_usage_perc", "1.0"),
    ("generation_tokens_total", "0.0"),
];

/// The pages of all attacks by name, generated once because that takes longer than serving them.
pub(crate) fn pages() -> BTreeMap<&'static str, Bytes> {
    let pages =
        [("ports", ports()), ("labels", labels()), ("strangers", strangers()), ("impostor", impostor())];
    pages.map(|(name, page)| (name, page.into())).into()
}

/// A scheduler that reports every port. Writing to a `String` cannot fail, here and below.
fn ports() -> String {
    let name = "llm_d_epp_scheduler_attempts_total";
    let mut text = format!("# TYPE {name} counter\n");
    for pod in 0..SCHEDULER_PODS {
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
    let mut labels = String::new();
    let value = "v".repeat(LABEL_BYTES);
    for label in 0..LABELS {
        let _ = write!(labels, ",l{label}=\"{value}\"");
    }
    let mut text = String::from("# TYPE vllm:num_requests_waiting gauge\n");
    for engine in 0..LABELLED_SERIES {
        let _ =
            writeln!(text, "vllm:num_requests_waiting{{engine=\"{engine}\",model_name=\"m\"{labels}}} 0.0");
    }
    text
}

/// Pods of a namespace without any variant.
fn strangers() -> String {
    let mut text = String::new();
    let ballast = "b".repeat(LONG_LABEL_BYTES);
    for name in ["num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"] {
        let _ = writeln!(text, "# TYPE vllm:{name} gauge");
        for pod in 0..UNRELATED_PODS {
            let _ = writeln!(
                text,
                "vllm:{name}{{pod=\"p-{pod}\",model_name=\"m-{pod}\",ballast=\"{ballast}\"}} 0.0"
            );
        }
    }
    text
}

/// Claims that the pods of others are overloaded. Without `honor_labels`, the scrape target decides whose samples these are.
fn impostor() -> String {
    let mut text = String::new();
    for (name, value) in CLAIMS {
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
