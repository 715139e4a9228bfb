//! Which rules of prometheus-adapter are used.

use std::path::PathBuf;
use std::time::Duration;

use super::args::RuleArgs;
use super::error::ConfigError;
use super::parsers::{at_least, non_empty_path};
use super::source::{Prometheus, Source};

/// The shortest time between two lists of series: Prometheus answers each from its index.
const MIN_RELIST: Duration = Duration::from_secs(1);

/// Which rules are used, and how.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The file.
    pub file: PathBuf,
    /// How often series are listed.
    pub relist_interval: Duration,
    /// A series without a sample for so long makes no metric.
    pub max_age: Duration,
    /// Whether `metrics.k8s.io` is served.
    pub serves_usage: bool,
    /// Where the series are.
    pub prometheus: Prometheus,
}

impl Rules {
    /// The rules, if a file of them is named.
    pub(super) fn of(args: RuleArgs, source: &Source) -> Result<Option<Self>, ConfigError> {
        let Some(file) = non_empty_path(args.adapter_config) else { return Ok(None) };
        let Source::Prometheus(prometheus) = source else { return Err(ConfigError::RulesWithoutPrometheus) };
        let relist_interval =
            at_least("--metrics-relist-interval", args.metrics_relist_interval, MIN_RELIST, "")?;
        let max_age = args.metrics_max_age.unwrap_or(args.metrics_relist_interval);
        let note = " (--metrics-relist-interval), so that metrics do not come and go";
        let max_age = at_least("--metrics-max-age", max_age, relist_interval, note)?;
        let serves_usage = args.serve_resource_metrics;
        Ok(Some(Self {
            file,
            relist_interval,
            max_age,
            serves_usage,
            prometheus: Prometheus::clone(prometheus),
        }))
    }
}
