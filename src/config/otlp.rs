//! Where the numbers are pushed.

use std::path::PathBuf;
use std::time::Duration;

use http::Uri;

use super::args::OtlpArgs;
use super::error::ConfigError;
use super::parsers::{at_least, non_empty, non_empty_path};

/// The shortest time between two exports.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Where receivers of OTLP over HTTP take metrics.
const METRICS_PATH: &str = "/v1/metrics";

/// Where the desired replicas are pushed, by OTLP over HTTP.
#[derive(Debug, Clone)]
pub struct Otlp {
    /// The full URL.
    pub url: String,
    /// How often.
    pub interval: Duration,
    /// The CA of the receiver's certificate.
    pub ca_file: Option<PathBuf>,
}

impl Otlp {
    /// The receiver, if one is named.
    pub(super) fn of(args: OtlpArgs) -> Result<Option<Self>, ConfigError> {
        let Some(endpoint) = non_empty(args.otlp_endpoint) else { return Ok(None) };
        let url = full_url(&endpoint).ok_or(ConfigError::OtlpEndpoint)?;
        let interval = at_least("--otlp-interval", args.otlp_interval, MIN_INTERVAL, "")?;
        Ok(Some(Self { url, interval, ca_file: non_empty_path(args.otlp_ca_file) }))
    }
}

/// `None` if it is not the URL of a receiver, or may contain a password or a key, which logs would show.
fn full_url(endpoint: &str) -> Option<String> {
    let url: Uri = endpoint.parse().ok()?;
    let is_http = ["http", "https"].contains(&url.scheme_str()?);
    let may_have_secret = url.authority()?.as_str().contains('@') || url.query().is_some();
    if !is_http || may_have_secret {
        return None;
    }
    let needs_path = url.path() == "/";
    Some(if needs_path {
        format!("{}{METRICS_PATH}", endpoint.trim_end_matches('/'))
    } else {
        endpoint.to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_metrics_is_added_to_a_url_without_one() {
        for (endpoint, url) in [
            ("http://otel:4318", Some("http://otel:4318/v1/metrics")),
            ("https://otel.example/", Some("https://otel.example/v1/metrics")),
            (
                "http://prometheus:9090/api/v1/otlp/v1/metrics",
                Some("http://prometheus:9090/api/v1/otlp/v1/metrics"),
            ),
            ("otel:4318", None),
            ("grpc://otel:4317", None),
            ("http://user:password@otel:4318", None),
            ("https://vendor.example/v1/metrics?api-key=secret", None),
            ("/v1/metrics", None),
        ] {
            assert_eq!(full_url(endpoint).as_deref(), url, "{endpoint}");
        }
    }
}
