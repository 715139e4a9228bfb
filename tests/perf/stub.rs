//! A metrics API server that only answers: the TLS, HTTP and routing stack of `wva serve` with verified client certificates and a
//! constant body. Its cost per request is that of the stack; the rest of the cost of `wva` is its own. Not part of wva.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use clap::Parser;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

/// Answer every read with the same bytes.
#[derive(Debug, Parser)]
struct Args {
    /// Address to serve on.
    #[arg(long)]
    listen: SocketAddr,
    /// The server certificate, PEM.
    #[arg(long)]
    cert: PathBuf,
    /// Its key, PEM.
    #[arg(long)]
    key: PathBuf,
    /// The CA of client certificates, PEM. Clients without a certificate are rejected.
    #[arg(long)]
    client_ca: PathBuf,
    /// The file with the body of every answer.
    #[arg(long)]
    body: PathBuf,
    /// Its content type.
    #[arg(long, default_value = "application/json")]
    content_type: String,
    /// The API group to serve.
    #[arg(long, default_value = "stub.wva.example")]
    group: String,
}

/// What every read gets.
#[derive(Clone)]
struct Answer {
    body: Bytes,
    content_type: HeaderValue,
}

async fn read(State(answer): State<Answer>) -> Response {
    ([(CONTENT_TYPE, answer.content_type)], answer.body).into_response()
}

/// The reads of the group, and the discovery answer that the aggregator needs to call the API available.
fn router(args: &Args) -> anyhow::Result<Router> {
    let body = std::fs::read(&args.body).with_context(|| args.body.display().to_string())?;
    let answer = Answer { body: body.into(), content_type: HeaderValue::from_str(&args.content_type)? };
    let version = format!("{}/v1beta1", args.group);
    let resources = serde_json::json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version,
        "resources": [{
            "name": "wva_desired_replicas", "singularName": "", "namespaced": true,
            "kind": "ExternalMetricValueList", "verbs": ["get"]
        }]
    });
    let discovery = axum::Json(resources);
    Ok(Router::new()
        .route(&format!("/apis/{version}"), get(async || discovery))
        .route(&format!("/apis/{version}/namespaces/{{namespace}}/{{metric}}"), get(read))
        .with_state(answer))
}

fn tls(args: &Args) -> anyhow::Result<TlsAcceptor> {
    let certificates = |path: &Path| {
        let read = || CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>();
        read().with_context(|| path.display().to_string())
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&args.client_ca)? {
        roots.add(certificate)?;
    }
    let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build()?;
    let key = PrivateKeyDer::from_pem_file(&args.key).with_context(|| args.key.display().to_string())?;
    let config = ServerConfig::builder().with_client_cert_verifier(verifier);
    let mut config = config.with_single_cert(certificates(&args.cert)?, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn connection(tcp: TcpStream, tls: TlsAcceptor, router: Router) -> anyhow::Result<()> {
    tcp.set_nodelay(true)?;
    let tls = tls.accept(tcp).await?;
    let is_h2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
    let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
        let router = router.clone();
        async move { Ok::<_, Infallible>(router.oneshot(request.map(Body::new)).await.unwrap_or_default()) }
    });
    let io = TokioIo::new(tls);
    if is_h2 {
        http2::Builder::new(TokioExecutor::new()).serve_connection(io, service).await?;
    } else {
        http1::Builder::new().serve_connection(io, service).await?;
    }
    Ok(())
}

async fn serve(listener: TcpListener, tls: TlsAcceptor, router: Router) -> anyhow::Result<()> {
    let mut connections = JoinSet::new();
    loop {
        let (tcp, _) = listener.accept().await?;
        while connections.try_join_next().is_some() {}
        let (tls, router) = (tls.clone(), router.clone());
        connections.spawn(async move {
            if let Err(error) = connection(tcp, tls, router).await {
                tracing::info!(%error, "connection failed");
            }
        });
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (tls, router) = (tls(&args)?, router(&args)?);
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("--listen {}: choose a free port", args.listen))?;
    tracing::info!(listen = %args.listen, "stub");
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        served = serve(listener, tls, router) => served,
        _ = terminate.recv() => Ok(()),
    }
}
