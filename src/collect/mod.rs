//! Input edge: metrics of model servers become [`crate::engine::Collected`] samples, from Prometheus or from pods.
//!
//! The types of a sample on its way, by stage:
//!
//! 1. *Read.* `prometheus::response` gives `QueriedSeries`, with all labels; `scrape::parse` gives `PageSample`s, which
//!    `scrape::history` collects over time.
//! 2. *Identified.* Both become `RawSeries`: the metric's name from the table `metric_names`, and the pod and engine it is about.
//! 3. *Merged.* `merge` makes one [`crate::engine::Series`] of all `RawSeries` of one signal of one engine: it never mixes old and
//!    new metric names, nor two replicas of Prometheus.
//!
//! Every sample keeps its true time. What it means is for `wva_core::quality` to decide.

mod http_client;
mod limits;
mod merge;
mod metric_names;
mod prometheus;
mod round_robin;
mod scrape;
mod series_labels;
mod signals;
mod signals_page;
mod token;

pub(crate) use http_client::error_kind;
pub use http_client::{Lookup, TlsSettings, http_client, root_cause};
pub use prometheus::{PrometheusApi, PrometheusSettings, PrometheusSource, QuerySample, SeriesLabels};
pub use scrape::{QueueScraper, ScrapeSettings, ScrapeSource};
pub use signals::current_series_names;
pub use signals_page::signals_page;
pub(crate) use token::HeaderSource;
pub use token::Token;
