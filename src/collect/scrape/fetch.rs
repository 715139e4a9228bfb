//! Fetches the metrics page of one pod, up to a limit, as complete lines.

use std::net::SocketAddr;

use http::{HeaderValue, header};

use super::settings::ScrapeSettings;
use crate::collect::http_client;
use crate::collect::token::{HeaderSource, Token};
use crate::engine::{Endpoint, SourceError};

/// OpenMetrics is preferred, because its end mark reveals truncation. Every exporter supports one of the two.
const ACCEPT: &str = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

/// The page of a pod.
pub(super) struct FetchedPage {
    pub(super) content_type: String,
    /// Complete lines.
    pub(super) body: Vec<u8>,
    /// Why it is truncated, if it is.
    pub(super) truncation: Option<String>,
}

/// Fetches pages.
pub(super) struct Fetcher {
    client: reqwest::Client,
    scheme: String,
    path: String,
    bearer: Option<HeaderSource>,
    max_body_bytes: usize,
}

impl Fetcher {
    pub(super) fn new(settings: &ScrapeSettings) -> Result<Self, SourceError> {
        let https = match settings.scheme.as_str() {
            "https" => true,
            "http" => false,
            scheme => {
                return Err(http_client::config_error(format!(
                    "the scrape scheme {scheme:?} is neither http nor https"
                )));
            }
        };
        if !https && !matches!(settings.token, Token::None) {
            tracing::warn!(
                "pods are read over plain http, so that the scrape token is not sent; use https to send it"
            );
        }
        let client = http_client::client_builder(&settings.tls, https)?
            .timeout(settings.timeout)
            .build()
            .map_err(|error| {
                let cause = http_client::root_cause(&error);
                http_client::config_error(format!(
                    "cannot set up TLS for scraping: {cause}; check its CA and client certificate"
                ))
            })?;
        Ok(Self {
            client,
            scheme: settings.scheme.clone(),
            path: format!("/{}", settings.path.trim_start_matches('/')),
            bearer: https.then(|| HeaderSource::bearer(settings.token.clone())),
            max_body_bytes: settings.max_body_bytes,
        })
    }

    /// The current credentials; none over plain http.
    pub(super) async fn authorization(&self) -> Result<Option<HeaderValue>, SourceError> {
        match &self.bearer {
            None => Ok(None),
            Some(bearer) => bearer
                .value()
                .await
                .map_err(|error| http_client::config_error(format!("scraping pods: {error}"))),
        }
    }

    /// The URL of a pod's metrics; an error if its port is unknown.
    pub(super) fn url(&self, endpoint: &Endpoint) -> Result<String, String> {
        let path = endpoint.path.as_deref().unwrap_or(&self.path);
        let address = endpoint.port.map(|port| SocketAddr::new(endpoint.ip, port));
        let address = address.ok_or(
            "it shares the network of its node, and no container declares the port of its metrics; add that to its ports",
        )?;
        Ok(format!("{}://{address}{path}", self.scheme))
    }

    /// Fetches the page of a pod, or says why it cannot.
    pub(super) async fn fetch(
        &self,
        endpoint: &Endpoint,
        authorization: Option<&HeaderValue>,
    ) -> Result<FetchedPage, String> {
        let mut request = self.client.get(self.url(endpoint)?).header(header::ACCEPT, ACCEPT);
        if let Some(value) = authorization {
            request = request.header(header::AUTHORIZATION, value.clone());
        }
        let mut response = request.send().await.map_err(|error| cause(&error))?;
        if !response.status().is_success() {
            return Err(format!("answered {}", response.status()));
        }
        let content_type = response.headers().get(header::CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
        let (mut body, truncation) = self.read_body(&mut response).await;
        if truncation.is_some() {
            // The last line may end within a number.
            body.truncate(body.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1));
        }
        Ok(FetchedPage { content_type, body, truncation })
    }

    /// The body, and why it is truncated, if it is.
    async fn read_body(&self, response: &mut reqwest::Response) -> (Vec<u8>, Option<String>) {
        let mut body = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) => {
                    let remaining = self.max_body_bytes - body.len();
                    body.extend_from_slice(chunk.get(..remaining).unwrap_or(&chunk));
                    if chunk.len() > remaining {
                        return (
                            body,
                            Some(format!("its answer is longer than {} bytes", self.max_body_bytes)),
                        );
                    }
                }
                Ok(None) => return (body, None),
                Err(error) => return (body, Some(format!("its answer broke off ({})", cause(&error)))),
            }
        }
    }
}

fn cause(error: &reqwest::Error) -> String {
    match http_client::error_kind(error) {
        "timeout" => "no answer in time".into(),
        _ => http_client::root_cause(error),
    }
}
