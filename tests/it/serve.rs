//! The server as clients see it: real sockets, real TLS, exact bytes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

pub(crate) mod client;
mod connections;
mod custom_metrics;
mod explanations;
mod external_scaler;
mod forwarding;
mod fuzz;
mod golden;
mod golden_errors;
pub(crate) mod identity;
mod installations;
mod legacy;
mod metrics;
mod operators;
mod overload;
mod pass_through;
pub(crate) mod pki;
mod policy;
pub(crate) mod process;
mod quantities;
mod raw_http2;
mod resource_metrics;
pub(crate) mod reviewing_api_server;
mod reviews;
mod rules;
mod rules_in_faults;
mod rules_of_objects;
mod scaled_objects;
mod shutdown;
mod streams;
pub(crate) mod test_server;
mod trust;

/// The path of an external metric.
pub(crate) fn path(namespace: &str, metric: &str) -> String {
    format!("/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{metric}")
}

/// The path that most tests read.
pub(crate) const READ: &str = "/apis/external.metrics.k8s.io/v1beta1/namespaces/llm/wva_desired_replicas";
