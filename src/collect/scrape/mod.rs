//! Metrics straight from the serving pods, without a Prometheus: every evaluation reads each pod's `/metrics` once and
//! keeps the last minutes of samples in memory. The embedded default.

mod fetch;
#[cfg(test)]
mod fuzz;
mod settings;
mod source;
mod text;
mod window;

pub use settings::ScrapeSettings;
pub use source::ScrapeSource;
