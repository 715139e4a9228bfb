//! Sends one query by POST and parses its answer while it is received, up to a limit. Errors say what went wrong and what to do;
//! they never contain a token.

use std::cmp::Reverse;
use std::error::Error as _;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode, header};
use hyper::body::Bytes;
use reqwest::Url;
use reqwest::dns::{self, Addrs, Resolve, Resolving};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::response::{Envelope, QueriedSeries, ResponseParser};
use super::settings::{PrometheusSettings, display, parse_url};
use crate::collect::http_client;
use crate::collect::token::{BEARER_PREFIX, HeaderSource, Token};
use crate::engine::SourceError;

/// Chunks of a body between the network and the parser: eight of up to 16 KiB keep both busy.
const MAX_QUEUED_CHUNKS: usize = 8;

/// The longest collection, in time-outs of a query: for the count, one query for everything, and that query in parts. With the
/// default of 10 s a query, the source's deadline comes first. Without a limit, a hundred namespaces would take minutes when
/// Prometheus hangs.
const MAX_QUERY_TIMEOUTS: u32 = 3;

/// Most bytes of an error answer that are read. Its text is one line.
const MAX_ERROR_BYTES: usize = 64 * 1024;

/// Characters of an error that are quoted.
const MAX_QUOTE_CHARS: usize = 300;

/// Texts of errors after which a smaller query may succeed, in lower case, of Prometheus, Thanos, Mimir and VictoriaMetrics.
const LIMIT_TEXTS: [&str; 9] = [
    "too many samples",
    "exceeded series limit",
    "exceeded samples limit",
    "max number of series",
    "maximum number of series",
    "err-mimir-max-",
    "exceeded bytes limit",
    "larger than max",
    "matching timeseries exceeds",
];

/// Text of the answer of Mimir and Cortex to a request that names no tenant, in lower case.
const NO_TENANT_TEXT: &str = "no org id";

/// Parts of the names of headers that carry credentials.
const CREDENTIAL_WORDS: [&str; 6] = ["auth", "credential", "key", "password", "secret", "token"];

/// Why a query has no usable answer.
#[derive(Debug)]
pub(super) enum QueryError {
    /// The server rejected it for its size. A smaller one may succeed.
    TooLarge(SourceError),
    /// There was no time left to send it.
    NotSent(SourceError),
    /// Any other reason.
    Failed(SourceError),
}

impl QueryError {
    /// Whether a smaller query may succeed: this one was rejected for its size, or timed out.
    pub(super) fn may_be_size(&self) -> bool {
        match self {
            Self::TooLarge(_) => true,
            Self::Failed(error) => error.kind == "timeout",
            Self::NotSent(_) => false,
        }
    }

    pub(super) fn into_source(self) -> SourceError {
        match self {
            Self::TooLarge(error) | Self::NotSent(error) | Self::Failed(error) => error,
        }
    }
}

/// Why an answer is incomplete.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    /// For people.
    pub(super) reasons: Vec<String>,
    /// Whether it ended early: it was too long or too slow, or the connection broke.
    pub(super) is_truncated: bool,
}

/// What the queries of one collection have in common.
#[derive(Debug)]
pub(super) struct RequestLimits {
    /// Of each request.
    pub(super) headers: Arc<[(HeaderName, HeaderValue)]>,
    /// When all queries end.
    deadline: Instant,
}

impl RequestLimits {
    /// Limits of a query that can be split and sent again: half of the time is left for that.
    pub(super) fn first_half(&self) -> Self {
        self.within(self.deadline.saturating_duration_since(Instant::now()) / 2)
    }

    /// Limits of a query that may take at most `timeout`.
    pub(super) fn within(&self, timeout: Duration) -> Self {
        let deadline =
            Instant::now().checked_add(timeout).map_or(self.deadline, |end| end.min(self.deadline));
        Self { headers: Arc::clone(&self.headers), deadline }
    }
}

impl RequestLimits {
    /// What the server said, without the values of headers that it repeats. The longest first: one may be part of another.
    pub(super) fn without_secrets(&self, text: &str) -> String {
        let values = self.headers.iter().filter(|(name, _)| *name != header::HOST);
        let values = values.filter_map(|(_, value)| std::str::from_utf8(value.as_bytes()).ok());
        let mut values: Vec<&str> =
            values.map(|value| value.strip_prefix(BEARER_PREFIX).unwrap_or(value)).collect();
        values.sort_by_key(|value| Reverse(value.len()));
        values.into_iter().fold(text.to_owned(), |text, value| text.replace(value, "…"))
    }
}

/// A client of one Prometheus.
pub(super) struct QueryClient {
    pub(super) client: prometheus_http_query::Client,
    /// Its name in messages: the URL without user, password and query.
    name: String,
    /// The configured host, if the URL has the name in the certificate instead.
    host: Option<HeaderValue>,
    /// The headers that may be sent.
    headers: Vec<(HeaderName, HeaderSource)>,
    pub(super) timeout: Duration,
    max_body_bytes: usize,
}

impl QueryClient {
    pub(super) fn new(settings: &PrometheusSettings) -> Result<Self, SourceError> {
        let mut url = parse_url(&settings.url)?;
        let name = display(&url);
        let https = url.scheme() == "https";
        let has_secret = !matches!(settings.token, Token::None)
            || url.password().is_some()
            || settings.headers.iter().any(|(name, value)| is_secret(name, value));
        if !https {
            tracing::warn!(
                %name,
                secrets_withheld = has_secret,
                "metrics are read over plain http, so that others on the network can change them; use https"
            );
            // This can only fail for URLs that have neither.
            let _ = url.set_password(None);
            let _ = url.set_username("");
        }
        let mut builder = http_client::client_builder(&settings.tls, https)?;
        let mut host = None;
        if let Some(server_name) = settings.server_name.as_deref().filter(|name| https && !name.is_empty()) {
            let configured = replace_host(&mut url, server_name)?;
            host = Some(configured.header()?);
            // In HTTP/1.1 `Host` may differ from the name in the certificate, in HTTP/2 it may not.
            builder = builder.dns_resolver(configured).http1_only();
        }
        let client = builder.build().map_err(|error| {
            let cause = http_client::root_cause(&error);
            http_client::config_error(format!(
                "cannot set up TLS for {name}: {cause}; check its CA and client certificate"
            ))
        })?;
        let client = prometheus_http_query::Client::from(client, url.as_str())
            .map_err(|error| http_client::config_error(format!("{name}: {error}; give a base URL")))?;
        Ok(Self {
            client,
            name,
            host,
            headers: headers(settings, https),
            timeout: settings.query_timeout,
            max_body_bytes: settings.max_body_bytes,
        })
    }

    /// Its name in messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The current headers, and the deadline of a collection that starts now and takes at most `timeout`.
    pub(super) async fn limits(&self, timeout: Duration) -> Result<RequestLimits, SourceError> {
        let deadline = Instant::now() + timeout.min(self.timeout * MAX_QUERY_TIMEOUTS);
        let mut headers: Vec<_> = self.host.iter().map(|host| (header::HOST, host.clone())).collect();
        for (name, source) in &self.headers {
            let value = source.value().await;
            let value =
                value.map_err(|error| http_client::config_error(format!("{}: {error}", self.name)))?;
            headers.extend(value.map(|value| (name.clone(), value)));
        }
        Ok(RequestLimits { headers: headers.into(), deadline })
    }

    /// Sends a query and adds each series of the answer to `result` with `add`. Also returns why the answer is incomplete.
    pub(super) async fn query<S: Send + 'static>(
        &self,
        promql: &str,
        limits: &RequestLimits,
        mut result: S,
        add: fn(&mut S, QueriedSeries<'_>),
    ) -> Result<(S, Warnings), QueryError> {
        let now = Instant::now();
        if now >= limits.deadline {
            let next = "check that it is not overloaded: earlier queries took all the time";
            return Err(QueryError::NotSent(self.error("timeout", "no time left for a query", next)));
        }
        let deadline = limits.deadline.min(now + self.timeout);
        let mut response = match timeout_at(deadline, self.send(promql, limits)).await {
            Ok(sent) => sent.map_err(QueryError::Failed)?,
            Err(_) => return Err(QueryError::Failed(self.timed_out(deadline - now))),
        };
        if !response.status().is_success() {
            return Err(self.read_error(response, deadline, limits).await);
        }
        let (chunks, mut body) = mpsc::channel::<Bytes>(MAX_QUEUED_CHUNKS);
        let parsing = tokio::task::spawn_blocking(move || {
            let mut parser = ResponseParser::default();
            while let Some(chunk) = body.blocking_recv() {
                if !parser.push(&chunk, &mut |series| add(&mut result, series)) {
                    break;
                }
            }
            (result, parser.finish())
        });
        let truncation = self.receive(&mut response, &chunks, deadline).await;
        drop(chunks);
        let (result, envelope) = parsing
            .await
            .map_err(|error| QueryError::Failed(self.error("decode", &error.to_string(), "report this")))?;
        let warnings = self.warnings(envelope, truncation, limits)?;
        Ok((result, warnings))
    }

    async fn send(&self, promql: &str, limits: &RequestLimits) -> Result<reqwest::Response, SourceError> {
        let millis = i64::try_from(self.timeout.as_millis()).unwrap_or(i64::MAX);
        let mut query = self.client.query(promql).timeout(millis);
        for (name, value) in limits.headers.iter() {
            query = query.header(name.clone(), value.clone());
        }
        query.post_raw().await.map_err(|error| {
            let next = "check the URL, that it is reachable from here, and its CA";
            let inner = error.source().and_then(|inner| inner.downcast_ref::<reqwest::Error>());
            let kind = inner.map_or("connect", http_client::error_kind);
            self.error(kind, &http_client::root_cause(&error), next)
        })
    }

    /// Receives the body and passes it to the parser. Returns why it is truncated, if it is.
    async fn receive(
        &self,
        response: &mut reqwest::Response,
        chunks: &mpsc::Sender<Bytes>,
        deadline: Instant,
    ) -> Option<String> {
        let mut remaining = self.max_body_bytes;
        loop {
            let chunk = match timeout_at(deadline, response.chunk()).await {
                Ok(Ok(Some(chunk))) => chunk,
                Ok(Ok(None)) => return None,
                Ok(Err(error)) => {
                    return Some(format!("the answer broke off: {}", http_client::root_cause(&error)));
                }
                Err(_) => return Some("the answer took too long".to_owned()),
            };
            if chunk.len() > remaining {
                return Some(format!("the answer is longer than {} bytes", self.max_body_bytes));
            }
            remaining -= chunk.len();
            if chunks.send(chunk).await.is_err() {
                // Parsing has failed; the envelope says why.
                return None;
            }
        }
    }

    /// Why an answer is incomplete, if it is; an error if it is one, or unusable.
    fn warnings(
        &self,
        envelope: Envelope,
        truncation: Option<String>,
        limits: &RequestLimits,
    ) -> Result<Warnings, QueryError> {
        if envelope.status == "error" {
            return Err(self.rejected(StatusCode::OK, &envelope, limits));
        }
        let is_truncated = truncation.is_some();
        let failure = truncation.or(envelope.parse_error).map(|text| limits.without_secrets(&text));
        if !envelope.has_result {
            let failure = failure.as_deref().unwrap_or("the answer has no result");
            let next = "check that the URL is that of a Prometheus API";
            return Err(QueryError::Failed(self.error("decode", failure, next)));
        }
        let failure =
            failure.map(|failure| format!("{}: {failure}; the part before that is used", self.name));
        let warnings = envelope.warnings.iter().map(|warning| limits.without_secrets(warning));
        let warnings = warnings.map(|warning| format!("{} warns: {warning}", self.name));
        Ok(Warnings { reasons: failure.into_iter().chain(warnings).collect(), is_truncated })
    }

    /// The error in an answer whose HTTP status is one. If its body is not received in time, the error is read from what was.
    async fn read_error(
        &self,
        mut response: reqwest::Response,
        deadline: Instant,
        limits: &RequestLimits,
    ) -> QueryError {
        let status = response.status();
        let content_type = response.headers().get(header::CONTENT_TYPE);
        let is_text = content_type.is_some_and(|value| value.as_bytes().starts_with(b"text/plain"));
        let mut body = Vec::new();
        while let Ok(Ok(Some(chunk))) = timeout_at(deadline, response.chunk()).await {
            let remaining = MAX_ERROR_BYTES.saturating_sub(body.len());
            body.extend_from_slice(chunk.get(..remaining).unwrap_or(&chunk));
            if chunk.len() >= remaining {
                break;
            }
        }
        let mut parser = ResponseParser::default();
        parser.push(&body, &mut |_| {});
        let mut envelope = parser.finish();
        if is_text && envelope.error.is_empty() {
            // As Mimir and proxies answer.
            envelope.error = String::from_utf8_lossy(&body).into_owned();
        }
        self.rejected(status, &envelope, limits)
    }

    fn rejected(&self, status: StatusCode, envelope: &Envelope, limits: &RequestLimits) -> QueryError {
        let mut what = format!("answered {status}");
        // Secrets first: of one that is cut, the beginning would be shown.
        let text = limits.without_secrets(&envelope.error);
        let quote: String =
            text.chars().filter(|letter| !letter.is_control()).take(MAX_QUOTE_CHARS).collect();
        if !quote.is_empty() {
            let _ = write!(what, " ({quote})");
        }
        if is_limit(&envelope.error) {
            let next = "raise its limits on series and samples, or lower --max-series";
            return QueryError::TooLarge(self.error("status", &what, next));
        }
        let kind = if envelope.error_type == "timeout" { "timeout" } else { "status" };
        QueryError::Failed(self.error(kind, &what, next_step(status, &envelope.error)))
    }

    fn timed_out(&self, timeout: Duration) -> SourceError {
        let what = format!("no answer within {:.1} s", timeout.as_secs_f64());
        self.error("timeout", &what, "check that it is reachable and not overloaded")
    }

    /// An error that says what happened and what to do `next`.
    pub(super) fn error(&self, kind: &'static str, what: &str, next: &str) -> SourceError {
        SourceError { kind, message: format!("{}: {what}; {next}", self.name) }
    }
}

fn next_step(status: StatusCode, error: &str) -> &'static str {
    match status.as_u16() {
        _ if error.to_lowercase().contains(NO_TENANT_TEXT) => {
            "set the tenant with --prometheus-header 'X-Scope-OrgID: TENANT' (a value from a file is sent over https only)"
        }
        300..=399 => "redirects are not followed: configure the final URL",
        400 | 422 => "check that the URL is that of a Prometheus API, and --query-matcher",
        401 | 403 => {
            "check the bearer token or client certificate, that its owner may query, and the tenant in --prometheus-header"
        }
        404 | 405 => "check the path of the URL: it must be the base of a Prometheus API",
        429 | 500..=599 => "check that it is healthy and not overloaded",
        _ => "check that the URL is that of a Prometheus API",
    }
}

/// A header is a secret if its value comes from a file, or if its name says so.
fn is_secret(name: &HeaderName, value: &Token) -> bool {
    matches!(value, Token::File(_)) || CREDENTIAL_WORDS.iter().any(|word| name.as_str().contains(word))
}

/// The headers of every request. Over plain http, secrets are withheld.
fn headers(settings: &PrometheusSettings, https: bool) -> Vec<(HeaderName, HeaderSource)> {
    let bearer = (header::AUTHORIZATION, HeaderSource::bearer(settings.token.clone()));
    let further = settings.headers.iter().filter(|(name, value)| https || !is_secret(name, value));
    let further = further.map(|(name, value)| (name.clone(), HeaderSource::named(name, value.clone())));
    https.then_some(bearer).into_iter().chain(further).collect()
}

fn is_limit(error: &str) -> bool {
    let error = error.to_lowercase();
    LIMIT_TEXTS.iter().any(|text| error.contains(text))
}

/// The configured host of a URL in which it was replaced by the name in the server's certificate.
struct ConfiguredHost {
    host: String,
    port: u16,
}

/// Replaces the host of `url` by `server_name`, so that TLS requests and verifies that name. The result resolves it to the former
/// host.
fn replace_host(url: &mut Url, server_name: &str) -> Result<ConfiguredHost, SourceError> {
    let configured = ConfiguredHost {
        host: url.host_str().unwrap_or_default().to_owned(),
        port: url.port_or_known_default().unwrap_or(443),
    };
    let is_address = server_name.parse::<std::net::IpAddr>().is_ok();
    if is_address || url.set_host(Some(server_name)).is_err() {
        return Err(http_client::config_error(format!(
            "the Prometheus server name {server_name:?} is not a DNS name; give the one in the certificate"
        )));
    }
    Ok(configured)
}

impl ConfiguredHost {
    fn header(&self) -> Result<HeaderValue, SourceError> {
        HeaderValue::from_str(&format!("{}:{}", self.host, self.port)).map_err(|_| {
            http_client::config_error(
                "the host of the Prometheus URL is not a host name; correct the URL".into(),
            )
        })
    }
}

impl Resolve for ConfiguredHost {
    fn resolve(&self, _: dns::Name) -> Resolving {
        // In URLs, but not here, IPv6 addresses have brackets.
        let host = self.host.trim_matches(['[', ']']).to_owned();
        Box::pin(async move {
            let addresses: Vec<SocketAddr> = tokio::net::lookup_host((host, 0)).await?.collect();
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_known_servers_about_size_are_recognised_and_timeouts_are_not() {
        for text in [
            "query processing would load too many samples into memory in query execution",
            "rpc error: code = ResourceExhausted desc = exceeded series limit: limit 10 violated (got 11)",
            "the query exceeded the maximum number of series (limit: 10 series) (err-mimir-max-series-per-query)",
            "the query hit the max number of series limit (limit: 10 series)",
            "the number of matching timeseries exceeds 30000; either narrow down the search",
        ] {
            assert!(is_limit(text), "{text}");
        }
        assert!(!is_limit("context deadline exceeded"));
        assert!(!is_limit("query timed out in expression evaluation"));
    }

    #[test]
    fn a_url_is_displayed_without_its_password() {
        let url = parse_url("https://user:s3cret@prometheus:9090/prefix/?x=y").unwrap();
        assert_eq!(display(&url), "Prometheus at https://prometheus:9090/prefix");
        let error = parse_url("ftp://user:s3cret@host").unwrap_err();
        assert!(error.kind == "config" && !error.message.contains("s3cret"));
    }
}
