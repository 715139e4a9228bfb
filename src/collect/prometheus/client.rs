//! One query: asked with POST, its answer streamed, capped and parsed as it comes. Says what went wrong and what to do
//! about it, never with a token in the text. Not here: which queries there are.

use std::error::Error as _;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use http::{HeaderValue, StatusCode, header};
use hyper::body::Bytes;
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::answer::{self, Element, Envelope};
use super::settings::{PrometheusSettings, display, parse_url};
use crate::collect::http as edge;
use crate::collect::token::Bearer;
use crate::engine::SourceError;

/// Pieces of a body between the network and the parser: eight of up to 16 KiB keep both busy.
const PIECES: usize = 8;

/// A collection lasts at most as long as this many queries (the count, everything, and everything again in parts), and
/// never longer than the source's deadline, which comes first with the default of 10 s a query. Without both, a hundred
/// namespaces at a Prometheus that hangs would last minutes.
const ROUND_TIMEOUTS: u32 = 3;

/// How much of a refusal is read: its text is one line.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;

/// Characters of a refusal that are quoted.
const MAX_QUOTE_CHARS: usize = 300;

/// What parts of a backend's refusals say that less may be asked for. Lower case; Prometheus, Thanos, Mimir and
/// VictoriaMetrics, in this order.
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

/// A query that got no usable answer.
#[derive(Debug)]
pub(super) enum QueryError {
    /// The backend refuses for size: asking for less helps.
    Limit(SourceError),
    /// There was no time left to ask.
    Unasked(SourceError),
    /// Anything else.
    Failed(SourceError),
}

impl QueryError {
    /// Asking for less may help: the answer was refused for size, or late.
    pub(super) fn is_too_much(&self) -> bool {
        match self {
            Self::Limit(_) => true,
            Self::Failed(error) => error.kind == "timeout",
            Self::Unasked(_) => false,
        }
    }

    pub(super) fn into_source(self) -> SourceError {
        match self {
            Self::Limit(error) | Self::Unasked(error) | Self::Failed(error) => error,
        }
    }
}

/// Why an answer isn't whole.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    /// For people.
    pub(super) reasons: Vec<String>,
    /// It ended early: it was too long, too slow or broke off.
    pub(super) cut: bool,
}

/// What the queries of one evaluation have in common.
#[derive(Debug)]
pub(super) struct RequestLimits {
    authorization: Option<HeaderValue>,
    /// No query lasts longer than this, so that many slow ones end together.
    until: Instant,
}

impl RequestLimits {
    /// The same limits for a query that can be asked again in parts: it leaves half of the time for these.
    pub(super) fn first_half(&self) -> Self {
        self.within(self.until.saturating_duration_since(Instant::now()) / 2)
    }

    /// The same limits for a query that lasts at most so long.
    pub(super) fn within(&self, longest: Duration) -> Self {
        let until = Instant::now().checked_add(longest).map_or(self.until, |end| end.min(self.until));
        Self { authorization: self.authorization.clone(), until }
    }
}

/// A client of one Prometheus.
pub(super) struct QueryClient {
    client: prometheus_http_query::Client,
    /// As people may see it: without user, password and query.
    name: String,
    /// The host as configured, where the URL has the certificate's name instead.
    host: Option<HeaderValue>,
    bearer: Option<Bearer>,
    timeout: Duration,
    max_body_bytes: usize,
}

impl QueryClient {
    pub(super) fn new(settings: &PrometheusSettings) -> Result<Self, SourceError> {
        let mut url = parse_url(&settings.url)?;
        let name = display(&url);
        let https = url.scheme() == "https";
        let has_secret = !matches!(settings.token, crate::collect::Token::None) || url.password().is_some();
        if !https {
            tracing::warn!(
                %name,
                token_withheld = has_secret,
                "metrics are read over plain http: anybody on the way can change them; use https"
            );
            // A URL without these can't fail to lose them.
            let _ = url.set_password(None);
            let _ = url.set_username("");
        }
        let mut builder = edge::builder(&settings.tls, https)?;
        let mut host = None;
        if let Some(server_name) = settings.server_name.as_deref().filter(|name| https && !name.is_empty()) {
            let real = rename(&mut url, server_name)?;
            host = Some(real.header()?);
            // HTTP/2 has one name for both, HTTP/1.1 lets `Host` differ.
            builder = builder.dns_resolver(real).http1_only();
        }
        let client = builder.build().map_err(|error| {
            let cause = edge::root_cause(&error);
            edge::config(format!(
                "cannot set up TLS for {name}: {cause}; check its CA and client certificate"
            ))
        })?;
        let client = prometheus_http_query::Client::from(client, url.as_str())
            .map_err(|error| edge::config(format!("{name}: {error}; give a base URL")))?;
        Ok(Self {
            client,
            name,
            host,
            bearer: https.then(|| Bearer::new(settings.token.clone())),
            timeout: settings.query_timeout,
            max_body_bytes: settings.max_body_bytes,
        })
    }

    /// As people may see it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The credentials of now (none over plain http), and the end of a collection that starts now and must be over
    /// within `deadline`.
    pub(super) async fn limits(&self, deadline: Duration) -> Result<RequestLimits, SourceError> {
        let until = Instant::now() + deadline.min(self.timeout * ROUND_TIMEOUTS);
        let authorization = match &self.bearer {
            None => None,
            Some(bearer) => {
                bearer.header().await.map_err(|error| edge::config(format!("{}: {error}", self.name)))?
            }
        };
        Ok(RequestLimits { authorization, until })
    }

    /// Asks, hands every series of the answer to `each`, and returns what `each` made of them with the reasons why
    /// the answer isn't whole.
    pub(super) async fn query<S: Send + 'static>(
        &self,
        promql: &str,
        limits: &RequestLimits,
        mut state: S,
        each: fn(&mut S, Element<'_>),
    ) -> Result<(S, Warnings), QueryError> {
        let now = Instant::now();
        if now >= limits.until {
            let next = "check that it is not overloaded: what was asked before took all the time";
            return Err(QueryError::Unasked(self.failed("timeout", "no time left to ask", next)));
        }
        let deadline = limits.until.min(now + self.timeout);
        let mut response = match timeout_at(deadline, self.send(promql, limits)).await {
            Ok(sent) => sent.map_err(QueryError::Failed)?,
            Err(_) => return Err(QueryError::Failed(self.timed_out(deadline - now))),
        };
        if !response.status().is_success() {
            return Err(self.refusal(response, deadline).await);
        }
        let (pieces, mut body) = mpsc::channel::<Bytes>(PIECES);
        let parser = tokio::task::spawn_blocking(move || {
            let mut reader = answer::Reader::default();
            while let Some(piece) = body.blocking_recv() {
                if !reader.take(&piece, &mut |element| each(&mut state, element)) {
                    break;
                }
            }
            (state, reader.end())
        });
        let cut = self.pump(&mut response, &pieces, deadline).await;
        drop(pieces);
        let (state, envelope) = parser
            .await
            .map_err(|error| QueryError::Failed(self.failed("decode", &error.to_string(), "report this")))?;
        let remarks = self.judge(envelope, cut)?;
        Ok((state, remarks))
    }

    /// The answer of Prometheus to a question for its configuration, at most so many bytes; else why there is none.
    pub(super) async fn configuration(&self, max_bytes: usize) -> Result<Vec<u8>, String> {
        let limits = self.limits(self.timeout).await.map_err(|error| error.message)?;
        let mut url = self.client.base_url().clone();
        url.set_path(&format!("{}/api/v1/status/config", url.path().trim_end_matches('/')));
        let mut request = self.client.inner().get(url).timeout(self.timeout);
        if let Some(value) = limits.authorization {
            request = request.header(header::AUTHORIZATION, value);
        }
        if let Some(host) = &self.host {
            request = request.header(header::HOST, host.clone());
        }
        let mut response = request.send().await.map_err(|error| edge::root_cause(&error))?;
        if !response.status().is_success() {
            return Err(format!("answered {}", response.status()));
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| edge::root_cause(&error))? {
            if chunk.len() > max_bytes - body.len() {
                return Err(format!("longer than {max_bytes} bytes"));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    async fn send(&self, promql: &str, limits: &RequestLimits) -> Result<reqwest::Response, SourceError> {
        let millis = i64::try_from(self.timeout.as_millis()).unwrap_or(i64::MAX);
        let mut query = self.client.query(promql).timeout(millis);
        if let Some(value) = &limits.authorization {
            query = query.header(header::AUTHORIZATION, value.clone());
        }
        if let Some(host) = &self.host {
            query = query.header(header::HOST, host.clone());
        }
        query.post_raw().await.map_err(|error| {
            let next = "check the URL, that it is reachable from here, and its CA";
            let inner = error.source().and_then(|inner| inner.downcast_ref::<reqwest::Error>());
            self.failed(inner.map_or("connect", edge::kind), &edge::root_cause(&error), next)
        })
    }

    /// Moves the body to the parser; the reason when it ended early.
    async fn pump(
        &self,
        response: &mut reqwest::Response,
        pieces: &mpsc::Sender<Bytes>,
        deadline: Instant,
    ) -> Option<String> {
        let mut room = self.max_body_bytes;
        loop {
            let chunk = match timeout_at(deadline, response.chunk()).await {
                Ok(Ok(Some(chunk))) => chunk,
                Ok(Ok(None)) => return None,
                Ok(Err(error)) => {
                    return Some(format!("the answer broke off: {}", edge::root_cause(&error)));
                }
                Err(_) => return Some("the answer took too long".to_owned()),
            };
            if chunk.len() > room {
                return Some(format!("the answer is longer than {} bytes", self.max_body_bytes));
            }
            room -= chunk.len();
            if pieces.send(chunk).await.is_err() {
                // The parser gave up; it says why.
                return None;
            }
        }
    }

    /// What surrounds an answer: an error, or the reasons why it isn't whole.
    fn judge(&self, envelope: Envelope, cut: Option<String>) -> Result<Warnings, QueryError> {
        if envelope.status == "error" {
            return Err(self.refused(StatusCode::OK, &envelope));
        }
        let mut reasons = Vec::new();
        let is_cut = cut.is_some();
        let broken = cut.or(envelope.broken);
        if !envelope.has_result {
            let broken = broken.as_deref().unwrap_or("the answer has no result");
            let next = "check that the URL is that of a Prometheus API";
            return Err(QueryError::Failed(self.failed("decode", broken, next)));
        }
        if let Some(broken) = broken {
            reasons.push(format!("{}: {broken}; what came before is used", self.name));
        }
        reasons
            .extend(envelope.warnings.into_iter().map(|warning| format!("{} warns: {warning}", self.name)));
        Ok(Warnings { reasons, cut: is_cut })
    }

    /// An answer that is an error by its HTTP status.
    async fn refusal(&self, mut response: reqwest::Response, deadline: Instant) -> QueryError {
        let status = response.status();
        let mut body = Vec::new();
        while let Ok(Ok(Some(chunk))) = timeout_at(deadline, response.chunk()).await {
            let room = MAX_REFUSAL_BYTES.saturating_sub(body.len());
            body.extend_from_slice(chunk.get(..room).unwrap_or(&chunk));
            if chunk.len() >= room {
                break;
            }
        }
        let mut reader = answer::Reader::default();
        reader.take(&body, &mut |_| {});
        self.refused(status, &reader.end())
    }

    fn refused(&self, status: StatusCode, envelope: &Envelope) -> QueryError {
        let mut what = format!("answered {status}");
        let quote: String = envelope.error.chars().take(MAX_QUOTE_CHARS).collect();
        if !quote.is_empty() {
            let _ = write!(what, " ({quote})");
        }
        if is_limit(&quote) {
            let next = "raise its limits on series and samples, or lower --max-series";
            return QueryError::Limit(self.failed("status", &what, next));
        }
        let kind = if envelope.error_type == "timeout" { "timeout" } else { "status" };
        QueryError::Failed(self.failed(kind, &what, next_step(status)))
    }

    fn timed_out(&self, waited: Duration) -> SourceError {
        let what = format!("no answer within {:.1} s", waited.as_secs_f64());
        self.failed("timeout", &what, "check that it is reachable and not overloaded")
    }

    pub(super) fn failed(&self, kind: &'static str, what: &str, next: &str) -> SourceError {
        SourceError { kind, message: format!("{}: {what}; {next}", self.name) }
    }
}

fn next_step(status: StatusCode) -> &'static str {
    match status.as_u16() {
        300..=399 => "redirects are not followed: configure the final URL",
        401 | 403 => "check the bearer token or client certificate, and that its owner may query",
        404 | 405 => "check the path of the URL: it must be the base of a Prometheus API",
        429 | 500..=599 => "check that it is healthy and not overloaded",
        _ => "check that the URL is that of a Prometheus API",
    }
}

fn is_limit(error: &str) -> bool {
    let error = error.to_lowercase();
    LIMIT_TEXTS.iter().any(|text| error.contains(text))
}

/// The address behind a URL whose host was replaced by the name in the server's certificate.
struct RealHost {
    host: String,
    port: u16,
}

/// Puts `server_name` into `url`, so that TLS asks for it and checks it; names resolve to the host that was there.
fn rename(url: &mut Url, server_name: &str) -> Result<RealHost, SourceError> {
    let real = RealHost {
        host: url.host_str().unwrap_or_default().to_owned(),
        port: url.port_or_known_default().unwrap_or(443),
    };
    let is_address = server_name.parse::<std::net::IpAddr>().is_ok();
    if is_address || url.set_host(Some(server_name)).is_err() {
        let wrong =
            format!("the Prometheus server name {server_name:?} is not a DNS name; give the certificate's");
        return Err(edge::config(wrong));
    }
    Ok(real)
}

impl RealHost {
    fn header(&self) -> Result<HeaderValue, SourceError> {
        HeaderValue::from_str(&format!("{}:{}", self.host, self.port)).map_err(|_| {
            edge::config("the host of the Prometheus URL is not a host name; correct the URL".into())
        })
    }
}

impl Resolve for RealHost {
    fn resolve(&self, _: Name) -> Resolving {
        // Brackets belong to URLs, not to addresses.
        let host = self.host.trim_matches(['[', ']']).to_owned();
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((host, 0)).await?.collect();
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_known_backends_are_recognised_and_timeouts_are_not_limits() {
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
    fn a_url_is_shown_without_its_password() {
        let url = parse_url("https://user:s3cret@prometheus:9090/prefix/?x=y").unwrap();
        assert_eq!(display(&url), "Prometheus at https://prometheus:9090/prefix");
        let error = parse_url("ftp://user:s3cret@host").unwrap_err();
        assert!(error.kind == "config" && !error.message.contains("s3cret"));
    }
}
