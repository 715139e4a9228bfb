//! One request to the fallback server and its answer, bounded in time and size.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::body::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use reqwest::{Client, Response};
use tokio::time::timeout;

use crate::collect::{HeaderSource, Lookup, TlsSettings, Token, error_kind, http_client, root_cause};
use crate::serve::{AUDIT_ID, FallbackAnswer, PASSED_ON};

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The server, and how it is asked.
#[derive(Debug, Clone)]
pub struct FallbackSettings {
    /// Its Service, as `namespace/name`.
    pub service: String,
    /// The host of the Service, which is the name in its certificate.
    pub host: String,
    /// The name by which its address is looked up.
    pub lookup_name: String,
    /// The port of the Service.
    pub port: u16,
    /// PEM file with the CAs of its certificate; `None` verifies nothing.
    pub ca: Option<PathBuf>,
    /// File with the bearer token that it is sent.
    pub token: PathBuf,
    /// Most time for an answer.
    pub timeout: Duration,
    /// How often its metrics are listed.
    pub list_interval: Duration,
}

/// Why there is no answer that can be used.
pub(super) struct Failure {
    /// For metrics.
    pub(super) kind: &'static str,
    /// What happened, and what to do.
    pub(super) cause: String,
    /// Whether the server has answered.
    pub(super) is_alive: bool,
}

impl Failure {
    fn dead(kind: &'static str, cause: impl Into<String>) -> Self {
        Self { kind, cause: cause.into(), is_alive: false }
    }

    fn alive(kind: &'static str, cause: impl Into<String>) -> Self {
        Self { kind, cause: cause.into(), is_alive: true }
    }
}

/// Sends requests.
pub(super) struct Exchange {
    address: String,
    ca: Option<PathBuf>,
    lookup: Lookup,
    timeout: Duration,
    token: HeaderSource,
    client: ArcSwap<TlsClient>,
}

/// The client, with the CAs that it was made with, or why there is none.
#[derive(Clone)]
struct TlsClient {
    ca: Option<Vec<u8>>,
    client: Result<Client, String>,
}

impl TlsClient {
    fn new(ca_path: Option<PathBuf>, lookup: Lookup, timeout: Duration) -> Self {
        let ca = ca_path.as_ref().and_then(|path| std::fs::read(path).ok());
        let insecure_skip_verify = ca_path.is_none();
        let tls =
            TlsSettings { ca_path, insecure_skip_verify, lookup: Some(lookup), ..TlsSettings::default() };
        Self { ca, client: http_client(&tls, true, timeout).map_err(|error| error.message) }
    }
}

impl Exchange {
    pub(super) fn new(settings: &FallbackSettings) -> Self {
        let FallbackSettings { host, lookup_name, port, ca, token, timeout, .. } = settings;
        let lookup = Lookup { host: host.clone(), name: lookup_name.clone() };
        Self {
            address: format!("https://{host}:{port}"),
            ca: ca.clone(),
            timeout: *timeout,
            token: HeaderSource::bearer(Token::File(token.clone())),
            client: ArcSwap::from_pointee(TlsClient::new(ca.clone(), lookup.clone(), *timeout)),
            lookup,
        }
    }

    /// Makes a new client if the file with the CAs has changed.
    pub(super) fn reload(&self) {
        let Some(path) = &self.ca else { return };
        let known = self.client.load();
        if known.client.is_ok() && std::fs::read(path).ok() == known.ca {
            return;
        }
        let newest = TlsClient::new(self.ca.clone(), self.lookup.clone(), self.timeout);
        // What cannot be read or parsed any more leaves the client of before.
        if newest.client.is_ok() || known.client.is_err() {
            self.client.store(Arc::new(newest));
        }
    }

    /// The CAs that its certificate is verified by, PEM, if it is.
    pub(super) fn authorities(&self) -> Option<Vec<u8>> {
        self.client.load().ca.clone()
    }

    /// The answer to a GET of `path`, of which the body has at most `max_bytes`.
    pub(super) async fn get(
        &self,
        path: &str,
        audit_id: Option<&HeaderValue>,
        max_bytes: usize,
    ) -> Result<FallbackAnswer, Failure> {
        // With the time for the token.
        let exchange = timeout(self.timeout, self.send(path, audit_id, max_bytes)).await;
        exchange.unwrap_or_else(|_| Err(self.no_answer_in_time()))
    }

    fn no_answer_in_time(&self) -> Failure {
        let seconds = self.timeout.as_secs_f64();
        let cause = format!(
            "it did not answer within {seconds} s (--fallback-timeout): check that it runs and is not overloaded"
        );
        Failure::dead("timeout", cause)
    }

    async fn send(
        &self,
        path: &str,
        audit_id: Option<&HeaderValue>,
        max_bytes: usize,
    ) -> Result<FallbackAnswer, Failure> {
        let client = self.client.load().client.clone().map_err(|cause| Failure::dead("config", cause))?;
        let token = self.token.value().await.map_err(|error| Failure::dead("token", error.to_string()))?;
        let mut request = client
            .get(format!("{}{path}", self.address))
            .header(ACCEPT, JSON)
            .header(PASSED_ON, HeaderValue::from_static("1"));
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, token);
        }
        if let Some(id) = audit_id {
            request = request.header(AUDIT_ID, id);
        }
        let answer = request.send().await.map_err(|error| {
            if error.is_timeout() && !error.is_connect() {
                return self.no_answer_in_time();
            }
            let next =
                "check that it runs, its Service, --fallback-ca, and that no NetworkPolicy is in the way";
            Failure::dead(error_kind(&error), format!("{}: {next}", root_cause(&error)))
        })?;
        let status = answer.status();
        if let Some(refusal) = refusal(status) {
            return Err(Failure::alive("refused", refusal));
        }
        let content_type = answer.headers().get(CONTENT_TYPE).cloned();
        let is_json = content_type.as_ref().is_some_and(|value| {
            value.to_str().is_ok_and(|value| {
                value
                    .split(';')
                    .next()
                    .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
            })
        });
        let body = self.body(answer, max_bytes).await?;
        if !is_json && status == StatusCode::OK {
            let kind = content_type.as_ref().map_or("none", |value| value.to_str().unwrap_or("not text"));
            let cause = format!(
                "its answer is no JSON (Content-Type: {kind:.100}): check that it is a metrics server of Kubernetes"
            );
            return Err(Failure::alive("content_type", cause));
        }
        Ok(FallbackAnswer { status, body })
    }

    async fn body(&self, mut answer: Response, max_bytes: usize) -> Result<Bytes, Failure> {
        let mut body = Vec::new();
        loop {
            let chunk = answer.chunk().await.map_err(|error| {
                if error.is_timeout() {
                    return self.no_answer_in_time();
                }
                Failure::dead("body", format!("its answer broke off ({}): see its log", root_cause(&error)))
            })?;
            let Some(chunk) = chunk else { return Ok(body.into()) };
            if body.len() + chunk.len() > max_bytes {
                let cause = format!(
                    "its answer is larger than {max_bytes} bytes: check that the selector selects what the autoscaler needs"
                );
                return Err(Failure::alive("too_large", cause));
            }
            body.extend_from_slice(&chunk);
        }
    }
}

/// What is wrong with an answer of which only the status counts.
fn refusal(status: StatusCode) -> Option<String> {
    match status {
        StatusCode::UNAUTHORIZED => Some(
            "it does not accept the token of this server's service account (401): check --fallback-token-path, and that it \
             authenticates by the API server (TokenReview)"
                .to_owned(),
        ),
        StatusCode::FORBIDDEN => Some(
            "this server's service account may not read there (403): grant it the verbs get and list on * in \
             external.metrics.k8s.io, as the chart does with fallback.apiService"
                .to_owned(),
        ),
        status if status.is_redirection() => Some(format!(
            "it answered with a redirect ({}), which is not followed: check that it is a metrics server of Kubernetes",
            status.as_u16()
        )),
        _ => None,
    }
}
