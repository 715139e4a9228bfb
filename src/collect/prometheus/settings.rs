//! Settings of the Prometheus source.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use http::HeaderName;
use reqwest::Url;

use crate::collect::http_client::{self, TlsSettings};
use crate::collect::limits::COLLECTION_TIMEOUT;

use crate::collect::token::Token;
use crate::engine::SourceError;

/// How to reach and query Prometheus.
#[derive(Clone)]
pub struct PrometheusSettings {
    /// Base URL, as in `https://prometheus.monitoring.svc:9090`; a path prefix is kept. With `http`, tokens and
    /// passwords are never sent.
    pub url: String,
    /// Bearer token.
    pub token: Token,
    /// Further headers of every request, such as the tenant's. Values from files are only sent over `https`.
    pub headers: Vec<(HeaderName, Token)>,
    /// Trusted CAs and client certificate.
    pub tls: TlsSettings,
    /// The name in the server's certificate, if it is not the host of `url`.
    pub server_name: Option<String>,
    /// Time for one query, from connecting to the last byte.
    pub query_timeout: Duration,
    /// Time for all queries of a collection. Queries without an answer by then are gaps.
    pub deadline: Duration,
    /// Length of the range selector. It becomes longer, up to 10 min, if samples turn out to be far apart.
    pub window: Duration,
    /// Most series of one query. For more, it is split by namespace and signal.
    pub max_series: u64,
    /// Most bytes of one answer, decompressed. The rest is cut off, with a gap.
    pub max_body_bytes: usize,
    /// The only scrape targets that may report metrics of pods in other namespaces, each as `namespace` or `namespace/job`.
    pub trusted_collectors: Vec<String>,
    /// Label matchers of every query, in `PromQL`: each is one, such as `cluster="eu-1"`, or a list of them.
    pub query_matchers: Vec<String>,
    /// The only namespaces that queries name, besides those of trusted collectors; empty for all in scope.
    pub query_namespaces: BTreeSet<String>,
    /// Most concurrent queries while they are split.
    pub concurrency: usize,
}

impl PrometheusSettings {
    /// Upstream's limit; 120,000 series take 0.7 s.
    pub const QUERY_TIMEOUT: Duration = Duration::from_secs(10);
    /// The stale threshold (60 s) and one usual scrape interval (15 s): it contains the 60 s of the peaks, and four samples even
    /// after a missed scrape. Longer intervals are learned.
    pub const WINDOW: Duration = Duration::from_secs(75);
    /// About 3,300 engines of 6 series each. They take 110 ms of Prometheus's time.
    pub const MAX_SERIES: u64 = 20_000;
    /// Twice the 74 MB of a namespace with 20,000 pods that is queried at once, because its series cannot be counted: 120,000
    /// series with 400 bytes of labels and 8 samples (2 min at 15 s) of 27 bytes. An answer is never in memory as a whole.
    pub const MAX_BODY_BYTES: usize = 144 * 1024 * 1024;
    /// A fifth of the 20 concurrent queries that Prometheus answers by default (`--query.max-concurrency`).
    pub const CONCURRENCY: usize = 4;

    /// The default settings for the Prometheus at `url`.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            token: Token::None,
            headers: Vec::new(),
            tls: TlsSettings::default(),
            server_name: None,
            query_timeout: Self::QUERY_TIMEOUT,
            deadline: COLLECTION_TIMEOUT,
            window: Self::WINDOW,
            max_series: Self::MAX_SERIES,
            trusted_collectors: Vec::new(),
            query_matchers: Vec::new(),
            query_namespaces: BTreeSet::new(),
            max_body_bytes: Self::MAX_BODY_BYTES,
            concurrency: Self::CONCURRENCY,
        }
    }
}

impl fmt::Debug for PrometheusSettings {
    /// Without user and password of the URL.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source =
            parse_url(&self.url).map_or_else(|_| "an unusable Prometheus URL".into(), |url| display(&url));
        f.debug_struct("PrometheusSettings")
            .field("source", &source)
            .field("token", &self.token)
            .field("headers", &self.headers)
            .field("tls", &self.tls)
            .field("server_name", &self.server_name)
            .field("query_timeout", &self.query_timeout)
            .field("deadline", &self.deadline)
            .field("window", &self.window)
            .field("max_series", &self.max_series)
            .field("trusted_collectors", &self.trusted_collectors)
            .field("query_matchers", &self.query_matchers)
            .field("query_namespaces", &self.query_namespaces)
            .field("max_body_bytes", &self.max_body_bytes)
            .field("concurrency", &self.concurrency)
            .finish()
    }
}

/// Parses the URL of a Prometheus API.
///
/// # Errors
/// When it is not an HTTP URL.
pub(super) fn parse_url(text: &str) -> Result<Url, SourceError> {
    // Without the text, which may contain a password.
    let error = |cause: &str| {
        http_client::config_error(format!("the Prometheus URL {cause}; give one like https://host:9090"))
    };
    let url = Url::parse(text).map_err(|cause| error(&format!("is not a URL ({cause})")))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(error("is neither http nor https"));
    }
    Ok(url)
}

/// A URL for messages, without user, password and query.
pub(super) fn display(url: &Url) -> String {
    let mut url = url.clone();
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    format!("Prometheus at {}", url.as_str().trim_end_matches('/'))
}
