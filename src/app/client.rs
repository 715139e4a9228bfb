//! The client of the API server: one for the whole program.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use anyhow::Context;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::time::Instant;
use tower::Service;
use tower::layer::layer_fn;

use crate::telemetry::ApiRequestMetrics;

/// Longest silence of the API server within an answer: more than the 65 s after which a silent watch is restarted.
const READ_TIMEOUT: Duration = Duration::from_secs(75);

/// A client of the cluster that `kubeconfig` names, or else of the one that this process runs in, whose requests are counted in
/// `metrics`.
///
/// # Errors
/// When neither says how to reach a cluster.
pub async fn client(kubeconfig: Option<&Path>, metrics: ApiRequestMetrics) -> anyhow::Result<kube::Client> {
    let mut from = match kubeconfig {
        Some(path) => {
            let unusable = |error: &dyn Error| {
                anyhow::anyhow!("--kubeconfig {}: {}", path.display(), kubeconfig_problem(error))
            };
            let file = Kubeconfig::read_from(path).map_err(|error| unusable(&error))?;
            let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
            config.map_err(|error| unusable(&error))?
        }
        None => kube::Config::incluster().context(
            "not in a cluster, and no --kubeconfig given; to try without a cluster, run `wva demo`",
        )?,
    };
    // Bounds a list, or the start of a watch, that is never answered; a watch itself ends after 60 s. Counted from the request,
    // not from the last use of its pooled connection.
    from.read_timeout = Some(READ_TIMEOUT);
    from.reset_reader_on_write = true;
    // Callers log failures and retry in their own time. The client's own 15 attempts after a 429, 503 or 504 log nothing, and wait
    // up to 82 s longer than the API server needs, or as long as any `Retry-After` says.
    from.default_retry = false;
    let host: Arc<str> = from.cluster_url.authority().map(ToString::to_string).unwrap_or_default().into();
    let builder = ClientBuilder::try_from(from).context("cannot set up the Kubernetes client")?;
    let observed = layer_fn(|inner| Observed { inner, host: Arc::clone(&host), metrics: metrics.clone() });
    Ok(builder.with_layer(&observed).build())
}

/// Counts requests, and the time until the heads of their answers.
struct Observed<S> {
    inner: S,
    host: Arc<str>,
    metrics: ApiRequestMetrics,
}

impl<S, B> Service<Request<Body>> for Observed<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut task::Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (method, host, metrics) = (request.method().clone(), self.host.clone(), self.metrics.clone());
        let observation = Observation { method, host, metrics, started: Instant::now(), code: None };
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            observation.end(answer.as_ref().ok().map(|answer| answer.status().as_u16()));
            answer
        })
    }
}

/// A request that counts when it is dropped: after its answer, or before it by a caller that waits no longer.
struct Observation {
    method: Method,
    host: Arc<str>,
    metrics: ApiRequestMetrics,
    started: Instant,
    /// Of the answer; `None` without one.
    code: Option<u16>,
}

impl Observation {
    fn end(mut self, code: Option<u16>) {
        self.code = code;
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        self.metrics.observe(self.method.as_str(), &self.host, self.code, self.started.elapsed());
    }
}

/// Why a kubeconfig cannot be used, on one line. The text of a syntax error is left out: it quotes the file, and so perhaps a token.
pub(crate) fn kubeconfig_problem(error: &dyn Error) -> String {
    const SYNTAX: &str = "failed to parse kubeconfig YAML";
    let text = error.to_string();
    let shown = text.find(SYNTAX).map_or(text.as_str(), |at| &text[..at + SYNTAX.len()]);
    shown.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::task::JoinSet;
    use tokio::time::timeout;

    use super::*;

    /// An API server that is overloaded for an hour.
    async fn overloaded(listener: TcpListener) {
        let answer = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n";
        while let Ok((mut tcp, _)) = listener.accept().await {
            let _ = tcp.read(&mut [0; 4096]).await;
            let _ = tcp.write_all(answer.as_bytes()).await;
        }
    }

    /// A client of the API server at `address`, and what it counts.
    async fn counted_client(address: SocketAddr) -> (kube::Client, Registry) {
        let name = format!("wva-client-{}-{}.yaml", std::process::id(), address.port());
        let path = std::env::temp_dir().join(name);
        let text = format!(
            "{{current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}],\n\
             clusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}], users: [{{name: u, user: {{}}}}]}}"
        );
        std::fs::write(&path, text).unwrap();
        let (metrics, mut registry) = (ApiRequestMetrics::default(), Registry::default());
        metrics.register(&mut registry);
        let client = client(Some(&path), metrics).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        (client, registry)
    }

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        text
    }

    fn assert_counted(registry: &Registry, address: SocketAddr, code: &str) {
        let text = text(registry);
        let line = format!(r#"rest_client_requests_total{{code="{code}",method="GET",host="{address}"}} 1"#);
        assert!(text.lines().any(|own| own == line), "{text}");
    }

    #[tokio::test]
    async fn a_kubeconfig_that_cannot_be_parsed_is_refused_without_its_token() {
        let path = std::env::temp_dir().join(format!("wva-syntax-{}.yaml", std::process::id()));
        for user in ["geheim", "{token: geheim", "{token: [geheim]}"] {
            std::fs::write(&path, format!("users: [{{name: u, user: {user}}}]\n")).unwrap();
            let refused = client(Some(&path), ApiRequestMetrics::default()).await.err();
            let text = format!("{:#}", refused.expect("no kubeconfig"));
            assert!(text.contains("--kubeconfig") && text.contains("parse"), "{text}");
            assert!(!text.contains("geheim"), "{text}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[tokio::test]
    async fn the_429_of_an_overloaded_api_server_is_returned_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut serving = JoinSet::new();
        serving.spawn(overloaded(listener));
        let (client, registry) = counted_client(address).await;
        let request = Request::get("/version").body(Body::empty()).unwrap();
        let answer = timeout(Duration::from_secs(5), client.send(request)).await.expect("no silent wait");
        assert_eq!(answer.unwrap().status(), 429);
        assert_counted(&registry, address, "429");
    }

    #[tokio::test]
    async fn a_request_that_timed_out_was_never_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, registry) = counted_client(address).await;
        let request = Request::get("/version").body(Body::empty()).unwrap();
        assert!(timeout(Duration::from_millis(100), client.send(request)).await.is_err());
        // The client's own task drops the request.
        let counted = || text(&registry).contains(r#"code="<error>",method="GET""#);
        for _ in 0..100 {
            if counted() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_counted(&registry, address, "<error>");
    }
}
