//! The input edge against real sockets: Prometheus's API as it answers, refuses, breaks off and lies, and pods.

#![expect(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests are tests")]

mod engines;
mod prometheus;
mod prometheus_faults;
mod prometheus_real;
mod prometheus_scope;
mod prometheus_tls;
mod scrape;
mod support;
