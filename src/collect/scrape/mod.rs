//! Metrics directly from the serving pods, without Prometheus, which is the default: every evaluation reads each pod's `/metrics`
//! once, and the samples of the last minutes are kept in memory.

mod fetch;
#[cfg(test)]
mod fuzz;
mod history;
mod parse;
mod queue;
mod settings;
mod source;

pub use queue::QueueScraper;
pub use settings::ScrapeSettings;
pub use source::ScrapeSource;
