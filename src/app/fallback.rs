//! Constructs the client of the fallback server.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;

use super::tasks::Phase;
use crate::cluster::pki::{PreviousOwner, ServiceRef};
use crate::config::{self, Config};
use crate::pass_through::{FallbackApi, FallbackSettings};
use crate::serve::{FallbackServer, RuleMetrics};
use crate::telemetry::FallbackMetrics;

/// How often its metrics are listed: as often as prometheus-adapter makes a new list.
const LIST_INTERVAL: Duration = Duration::from_secs(60);

/// Metrics that are not of variants: those of rules, and those of the configured server.
pub(super) type OtherMetrics = (Option<Arc<dyn RuleMetrics>>, Option<Arc<dyn FallbackServer>>);

/// Starts what lists the metrics of the configured server, if there is one.
pub(super) fn start_fallback(
    config: &Config,
    registry: &mut Registry,
    watches: &mut Phase,
) -> Option<Arc<dyn FallbackServer>> {
    let from = config.fallback.as_ref()?;
    let fallback = Arc::new(fallback_api(from, FallbackMetrics::register(registry)));
    let listing = Arc::clone(&fallback);
    watches.start("fallback server", |stop| listing.run(stop));
    Some(fallback)
}

/// Whose APIService is taken over or given back, if there is a configured server.
pub(super) fn previous_owner(config: &Config) -> Option<PreviousOwner> {
    config.fallback.as_ref().map(|fallback| PreviousOwner {
        service: ServiceRef { namespace: fallback.namespace.clone(), name: fallback.name.clone() },
        take_over: fallback.take_over,
    })
}

/// The configured server.
fn fallback_api(from: &config::Fallback, metrics: FallbackMetrics) -> FallbackApi {
    let config::Fallback { namespace, name, port, ca, token, timeout, take_over: _ } = from.clone();
    let settings = FallbackSettings {
        service: format!("{namespace}/{name}"),
        host: from.host(),
        port,
        ca,
        token,
        timeout,
        list_interval: LIST_INTERVAL,
    };
    FallbackApi::new(&settings, metrics)
}
