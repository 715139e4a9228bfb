//! Input edge: metrics of model servers become [`crate::engine::Collected`] samples, from Prometheus or from pods.
//!
//! Both sources read the same names (`signals`) and answer the same way (`merge`): one series for one signal of one
//! serving process, old and new metric names never mixed, two Prometheus replicas never interleaved, every sample with
//! its true time. Nothing here decides what a sample means: that is `core::quality`.

mod bounds;
mod http;
mod merge;
mod page;
mod prometheus;
mod round_robin;
mod scrape;
mod series;
mod signals;
mod token;

pub use http::TlsSettings;
pub use page::signals_page;
pub use prometheus::{PrometheusSettings, PrometheusSource};
pub use scrape::{ScrapeSettings, ScrapeSource};
pub use series::series_of;
pub use token::Token;
