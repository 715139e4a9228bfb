//! Environment variables of the older controller that have no effect here. The log names each that is set, once.

/// The variables, and why they have no effect.
const IGNORED_VARIABLES: &[(&str, &str)] = &[
    ("GLOBAL_OPT_INTERVAL", "the number is computed when it is read; see --interval"),
    ("PROMETHEUS_METRICS_CACHE_TTL", "see --max-age"),
    ("PROMETHEUS_METRICS_CACHE_CLEANUP_INTERVAL", "nothing needs cleaning up"),
    ("PROMETHEUS_METRICS_CACHE_FETCH_INTERVAL", "see --interval"),
    ("PROMETHEUS_METRICS_CACHE_FRESH_THRESHOLD", "freshness follows the observed scrape interval"),
    ("PROMETHEUS_METRICS_CACHE_STALE_THRESHOLD", "staleness follows the observed scrape interval"),
    ("PROMETHEUS_METRICS_CACHE_UNAVAILABLE_THRESHOLD", "see --max-stale"),
    ("PROMETHEUS_METRICS_CACHE_MAX_SIZE", "the cache is bounded by itself"),
    ("LEADER_ELECT", "one instance always decides and all answer"),
    ("LEADER_ELECTION_LEASE_DURATION", "the lease lasts 15 s"),
    ("LEADER_ELECTION_RENEW_DEADLINE", "the lease is renewed within 10 s"),
    ("LEADER_ELECTION_RETRY_PERIOD", "the lease is tried every 2 s"),
    ("REST_CLIENT_TIMEOUT", "each kind of request has its own time-out"),
    ("METRICS_BIND_ADDRESS", "/metrics is on the secure port"),
    ("METRICS_SECURE", "/metrics is on the secure port"),
    ("METRICS_CERT_PATH", "/metrics is on the secure port; see --cert-dir"),
    ("METRICS_CERT_NAME", "/metrics is on the secure port; see --cert-dir"),
    ("METRICS_CERT_KEY", "/metrics is on the secure port; see --cert-dir"),
    ("WEBHOOK_CERT_PATH", "there is no webhook"),
    ("WEBHOOK_CERT_NAME", "there is no webhook"),
    ("WEBHOOK_CERT_KEY", "there is no webhook"),
    ("V", "see --log-level"),
    ("HEALTH_PROBE_BIND_ADDRESS", "health is on the secure port"),
    ("ENABLE_HTTP2", "HTTP/2 is always on"),
    ("WVA_LIMITED_MODE", "see enableLimiter in the saturation ConfigMap"),
    ("POOL_GROUP", "the scheduler's queue is read from its metrics"),
    ("EPP_METRIC_READER_BEARER_TOKEN", "the scheduler's metrics are read through Prometheus"),
    ("SCALE_FROM_ZERO_ENGINE_MAX_CONCURRENCY", "one evaluation covers all variants"),
    ("CONFIG_MAP_NAME", "its settings are flags and environment variables"),
];

/// The variables without effect that are set, each with the reason.
pub fn ignored_environment() -> impl Iterator<Item = (&'static str, &'static str)> {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    IGNORED_VARIABLES.iter().copied().filter(move |(name, _)| is_set(name))
}
