//! How Prometheus is reached and asked.

use std::fmt;
use std::time::Duration;

use reqwest::Url;

use crate::collect::bounds::COLLECTION_TIMEOUT;
use crate::collect::http::{self, TlsSettings};
use crate::collect::token::Token;
use crate::engine::SourceError;

/// How to reach Prometheus and what to ask for.
#[derive(Clone)]
pub struct PrometheusSettings {
    /// Base URL, as in `https://prometheus.monitoring.svc:9090`; a path prefix is kept. With `http`, tokens and
    /// passwords are never sent.
    pub url: String,
    /// Bearer token.
    pub token: Token,
    /// Trust and client certificate.
    pub tls: TlsSettings,
    /// The name in the server's certificate, when it isn't the host of `url`.
    pub server_name: Option<String>,
    /// Time for one query, from connecting to the last byte.
    pub query_timeout: Duration,
    /// Time for all queries of a collection; what isn't answered by then is a gap.
    pub deadline: Duration,
    /// Length of the range selector; longer, up to 10 min, once samples turn out to be far apart.
    pub window: Duration,
    /// With more series than this, the query is split by namespace and signal.
    pub max_series: u64,
    /// The longest answer to one query, decompressed; what is over is cut off, and a gap says so.
    pub max_body_bytes: usize,
    /// Scrape targets that may speak for pods of other namespaces, each as `namespace` or `namespace/job`; nobody else may.
    pub trusted_collectors: Vec<String>,
    /// Queries at once while split.
    pub concurrency: usize,
}

impl PrometheusSettings {
    /// Well above the 0.7 s that 120,000 series take, and the limit that upstream had.
    pub const QUERY_TIMEOUT: Duration = Duration::from_secs(10);
    /// The stale threshold (60 s) and one scrape of the usual 15 s: the peaks of 60 s are seen whole, and after a missed
    /// scrape there are still four samples. Slower scrapes are learned.
    pub const WINDOW: Duration = Duration::from_secs(75);
    /// About 3,300 engines of 6 series each; 110 ms of Prometheus's time.
    pub const MAX_SERIES: u64 = 20_000;
    /// One namespace with 20,000 pods has 120,000 series; of 8 samples (2 min at 15 s) of 27 bytes and 400 bytes of
    /// labels these are 74 MB, where they cannot be counted and are asked for at once; twice that. It is never held as a
    /// whole.
    pub const MAX_BODY_BYTES: usize = 144 * 1024 * 1024;
    /// A Prometheus answers 20 at once by default (`--query.max-concurrency`); a fifth leaves room for others.
    pub const CONCURRENCY: usize = 4;

    /// The defaults for the Prometheus at `url`.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            token: Token::None,
            tls: TlsSettings::default(),
            server_name: None,
            query_timeout: Self::QUERY_TIMEOUT,
            deadline: COLLECTION_TIMEOUT,
            window: Self::WINDOW,
            max_series: Self::MAX_SERIES,
            trusted_collectors: Vec::new(),
            max_body_bytes: Self::MAX_BODY_BYTES,
            concurrency: Self::CONCURRENCY,
        }
    }
}

impl fmt::Debug for PrometheusSettings {
    /// Without the URL's user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrometheusSettings")
            .field("source", &public_name(&self.url))
            .field("token", &self.token)
            .field("tls", &self.tls)
            .field("server_name", &self.server_name)
            .field("query_timeout", &self.query_timeout)
            .field("deadline", &self.deadline)
            .field("window", &self.window)
            .field("max_series", &self.max_series)
            .field("trusted_collectors", &self.trusted_collectors)
            .field("max_body_bytes", &self.max_body_bytes)
            .field("concurrency", &self.concurrency)
            .finish()
    }
}

/// The URL of a Prometheus API.
///
/// # Errors
/// When it is not one.
pub(super) fn parse_url(text: &str) -> Result<Url, SourceError> {
    // The text isn't quoted: it may hold a password.
    let wrong =
        |cause: &str| http::config(format!("the Prometheus URL {cause}; give one like https://host:9090"));
    let url = Url::parse(text).map_err(|error| wrong(&format!("is not a URL ({error})")))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(wrong("is neither http nor https"));
    }
    Ok(url)
}

/// How a URL is shown to people.
fn public_name(url: &str) -> String {
    parse_url(url).map_or_else(|_| "an unusable Prometheus URL".into(), |url| display(&url))
}

/// A URL without user, password and query.
pub(super) fn display(url: &Url) -> String {
    let mut url = url.clone();
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    format!("Prometheus at {}", url.as_str().trim_end_matches('/'))
}
