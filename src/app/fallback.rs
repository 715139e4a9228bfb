//! Constructs the client of the fallback server.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;

use super::tasks::Phase;
use crate::cluster::pki::{PreviousOwner, ServiceRef};
use crate::config::{self, Config};
use crate::pass_through::{FallbackApi, FallbackSettings};
use crate::serve::FallbackServer;
use crate::telemetry::FallbackMetrics;

/// Where a pod's DNS is configured.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// How often its metrics are listed: as often as prometheus-adapter makes a new list.
const LIST_INTERVAL: Duration = Duration::from_secs(60);

/// Starts what lists the metrics of the configured server, if there is one. The server, and whose APIService it is.
pub(super) fn start_fallback(
    config: &Config,
    registry: &mut Registry,
    watches: &mut Phase,
) -> Option<(Arc<dyn FallbackServer>, PreviousOwner)> {
    let from = config.fallback.as_ref()?;
    let server = Arc::new(fallback_api(from, FallbackMetrics::register(registry)));
    let service = ServiceRef { namespace: from.namespace.clone(), name: from.name.clone() };
    let owner = PreviousOwner { service, port: from.port, take_over: from.take_over, state: server.state() };
    let listing = Arc::clone(&server);
    watches.start("fallback server", |stop| listing.run(stop));
    Some((server, owner))
}

/// The configured server.
pub(crate) fn fallback_api(from: &config::Fallback, metrics: FallbackMetrics) -> FallbackApi {
    let config::Fallback { namespace, name, port, ca, token, timeout, take_over: _ } = from.clone();
    let resolv_conf = std::fs::read_to_string(RESOLV_CONF).unwrap_or_default();
    let settings = FallbackSettings {
        service: format!("{namespace}/{name}"),
        lookup_name: config::absolute_name(&from.host(), &resolv_conf),
        host: from.host(),
        port,
        ca,
        token,
        timeout,
        list_interval: LIST_INTERVAL,
    };
    FallbackApi::new(&settings, metrics)
}
