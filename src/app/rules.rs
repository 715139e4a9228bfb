//! Constructs the metrics that rules of prometheus-adapter make.

use std::sync::Arc;

use anyhow::Context;

use super::sources::prometheus_settings;
use crate::collect::PrometheusApi;
use crate::config;
use crate::engine::Clock;
use crate::rules::{AdapterRules, RuleSettings};

/// The metrics of the configured rules.
pub(super) fn adapter_rules(from: config::Rules, clock: Arc<dyn Clock>) -> anyhow::Result<AdapterRules> {
    let config::Rules { file, relist_interval, max_age, prometheus } = from;
    let api = PrometheusApi::new(&prometheus_settings(prometheus))
        .context("cannot set up the rules of --adapter-config")?;
    Ok(AdapterRules::new(api, clock, RuleSettings { file, relist_interval, max_age }))
}
