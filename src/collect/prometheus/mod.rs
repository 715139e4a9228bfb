//! Metrics from Prometheus, or from another server of its query API (Thanos, Mimir, VictoriaMetrics).
//!
//! An evaluation sends one query, however many models and variants there are: a range selector over all metric names that are
//! needed, which returns raw samples with their true times. Only when there are more than `max_series` series, or the server
//! rejects the query for its size, it is split by namespace, and a namespace that is still too large by signal. The series are
//! counted once a minute.

mod api;
mod bad_samples;
mod client;
#[cfg(test)]
mod fuzz;
mod honor_labels;
mod oversized;
mod query_plan;
mod query_result;
mod query_scope;
mod response;
mod scope_index;
mod settings;
mod source;
mod trusted_collectors;
mod window;

pub use api::{PrometheusApi, QuerySample, SeriesLabels};
pub use settings::PrometheusSettings;
pub use source::PrometheusSource;
