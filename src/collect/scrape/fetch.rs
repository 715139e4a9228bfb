//! One pod's answer: asked within its time, capped, in whole lines. Not here: what the lines mean.

use std::net::SocketAddr;

use http::{HeaderValue, header};

use super::settings::ScrapeSettings;
use crate::collect::http as edge;
use crate::collect::token::{Bearer, Token};
use crate::engine::{Endpoint, SourceError};

/// OpenMetrics first, because its end mark shows a cut answer; everything speaks one of the two.
const ACCEPT: &str = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

/// What a pod answered.
pub(super) struct Page {
    pub(super) content_type: String,
    /// Whole lines only.
    pub(super) body: Vec<u8>,
    /// Why the answer ended early.
    pub(super) cut: Option<String>,
}

/// Asks pods.
pub(super) struct Fetcher {
    client: reqwest::Client,
    scheme: String,
    path: String,
    bearer: Option<Bearer>,
    max_body_bytes: usize,
}

impl Fetcher {
    pub(super) fn new(settings: &ScrapeSettings) -> Result<Self, SourceError> {
        let https = match settings.scheme.as_str() {
            "https" => true,
            "http" => false,
            other => {
                return Err(edge::config(format!("the scrape scheme {other:?} is neither http nor https")));
            }
        };
        if !https && !matches!(settings.token, Token::None) {
            tracing::warn!(
                "pods are read over plain http: the scrape token is withheld; use https to send it"
            );
        }
        let client =
            edge::builder(&settings.tls, https)?.timeout(settings.timeout).build().map_err(|error| {
                let cause = edge::root_cause(&error);
                edge::config(format!(
                    "cannot set up TLS for scraping: {cause}; check its CA and client certificate"
                ))
            })?;
        Ok(Self {
            client,
            scheme: settings.scheme.clone(),
            path: format!("/{}", settings.path.trim_start_matches('/')),
            bearer: https.then(|| Bearer::new(settings.token.clone())),
            max_body_bytes: settings.max_body_bytes,
        })
    }

    /// The credentials of now; none over plain http.
    pub(super) async fn authorization(&self) -> Result<Option<HeaderValue>, SourceError> {
        match &self.bearer {
            None => Ok(None),
            Some(bearer) => {
                bearer.header().await.map_err(|error| edge::config(format!("scraping pods: {error}")))
            }
        }
    }

    /// Where a pod's metrics are.
    pub(super) fn url(&self, endpoint: &Endpoint) -> String {
        format!("{}://{}{}", self.scheme, SocketAddr::new(endpoint.ip, endpoint.port), self.path)
    }

    /// One pod's answer; the error is the cause in words.
    pub(super) async fn get(
        &self,
        endpoint: &Endpoint,
        authorization: Option<&HeaderValue>,
    ) -> Result<Page, String> {
        let mut request = self.client.get(self.url(endpoint)).header(header::ACCEPT, ACCEPT);
        if let Some(value) = authorization {
            request = request.header(header::AUTHORIZATION, value.clone());
        }
        let mut response = request.send().await.map_err(|error| cause(&error))?;
        if !response.status().is_success() {
            return Err(format!("answered {}", response.status()));
        }
        let content_type = response.headers().get(header::CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
        let (mut body, cut) = self.body(&mut response).await;
        if cut.is_some() {
            // What follows the last line end may be half a number.
            body.truncate(body.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1));
        }
        Ok(Page { content_type, body, cut })
    }

    async fn body(&self, response: &mut reqwest::Response) -> (Vec<u8>, Option<String>) {
        let mut body = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) => {
                    let room = self.max_body_bytes - body.len();
                    body.extend_from_slice(chunk.get(..room).unwrap_or(&chunk));
                    if chunk.len() > room {
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
    match edge::kind(error) {
        "timeout" => "no answer in time".into(),
        _ => edge::root_cause(error),
    }
}
