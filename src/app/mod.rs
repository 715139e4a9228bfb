//! Composition root: constructs clients, channels, registries and tasks. The only place that spawns long-lived tasks.

mod adapters;
mod client;
mod fallback;
pub mod metrics;
mod otlp;
mod recording;
mod rules;
mod self_signed;
mod serve;
mod sources;
mod tasks;

pub use client::client;
pub(crate) use client::kubeconfig_problem;
pub(crate) use fallback::fallback_api;
pub(crate) use rules::ClusterObjects;
pub use serve::serve;
pub(crate) use sources::prometheus_settings;
