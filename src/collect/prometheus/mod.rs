//! Metrics from Prometheus, or what speaks its query API (Thanos, Mimir, VictoriaMetrics).
//!
//! An evaluation asks once, however many models and variants there are: one range selector over every name that is needed,
//! which answers with raw samples and their true times. Only when there are more series than `max_series`, or the backend
//! refuses for size, is the question split by namespace, and a namespace that alone is too much by signal. How many
//! series there are is counted once a minute.

mod answer;
mod bad_samples;
mod client;
mod collectors;
#[cfg(test)]
mod fuzz;
mod labels;
mod plan;
mod preflight;
mod settings;
mod source;
mod window;

pub use settings::PrometheusSettings;
pub use source::PrometheusSource;
