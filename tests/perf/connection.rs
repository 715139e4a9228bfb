//! A keep-alive connection to a metrics API server over TLS with a client certificate: plain hyper, polled by the task that reads,
//! so that the client costs as little as possible.

use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use http::header::{ACCEPT, HOST, HeaderValue};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The server, how to verify it, and the client's identity.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ApiServer {
    /// Address of the server, as ip:port.
    #[arg(long)]
    address: SocketAddr,
    /// The name in its certificate.
    #[arg(long)]
    name: String,
    /// Its CA, PEM.
    #[arg(long)]
    ca: PathBuf,
    /// The client certificate (the front proxy's, or a user's to read from an API server), PEM.
    #[arg(long)]
    cert: PathBuf,
    /// Its key, PEM.
    #[arg(long)]
    key: PathBuf,
    /// The user on whose behalf the front proxy reads. Empty: the user of the client certificate.
    #[arg(long, default_value = "system:serviceaccount:kube-system:horizontal-pod-autoscaler")]
    user: String,
    /// The metric, up to the selector.
    #[arg(long, default_value = "/apis/external.metrics.k8s.io/v1beta1/namespaces/llm/wva_desired_replicas")]
    path: String,
    /// The Accept header; by default that of the HPA controller.
    #[arg(long, default_value = "application/vnd.kubernetes.protobuf, */*")]
    accept: String,
    /// HTTP/2 instead of 1.1, still with one request at a time on each connection.
    #[arg(long)]
    http2: bool,
}

/// A request without a body, built once and cloned for each read.
pub(crate) type ReadRequest = Request<Empty<Bytes>>;

impl ApiServer {
    /// The reads of the variants `v-0`, `v-1` …, as the HPA controller sends them.
    pub(crate) fn read_requests(&self, variants: usize) -> anyhow::Result<Vec<ReadRequest>> {
        let request = |i: usize| self.read_request(&format!("?labelSelector=variant_name%3Dv-{i}"));
        (0..variants).map(request).collect()
    }

    /// The reads that `file` lists: a path with its query per line. At least one.
    pub(crate) fn listed_requests(&self, file: &Path) -> anyhow::Result<Vec<ReadRequest>> {
        let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let requests: Vec<_> = text.lines().map(|path| self.request(path)).collect::<Result<_, _>>()?;
        if requests.is_empty() {
            bail!("{} has no lines: write one path per line", file.display());
        }
        Ok(requests)
    }

    /// A read of the metric with `query` after its path.
    pub(crate) fn read_request(&self, query: &str) -> anyhow::Result<ReadRequest> {
        self.request(&format!("{}{query}", self.path))
    }

    fn request(&self, path: &str) -> anyhow::Result<ReadRequest> {
        let target = if self.http2 { format!("https://{}{path}", self.name) } else { path.to_owned() };
        let mut request = Request::get(target)
            .header(ACCEPT, &self.accept)
            .header("User-Agent", "wva-load")
            .body(Empty::new())?;
        let headers = request.headers_mut();
        if !self.http2 {
            headers.insert(HOST, HeaderValue::from_str(&self.name)?);
        }
        if !self.user.is_empty() {
            headers.insert("X-Remote-User", HeaderValue::from_str(&self.user)?);
            headers.insert("X-Remote-Group", HeaderValue::from_static("system:authenticated"));
        }
        Ok(request)
    }

    /// The same server with JSON answers.
    pub(crate) fn with_json(mut self) -> Self {
        self.accept = "application/json".into();
        self
    }

    /// The TLS settings of every connection.
    pub(crate) fn tls(&self) -> anyhow::Result<TlsConnector> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.ca)? {
            roots.add(certificate)?;
        }
        let key = PrivateKeyDer::from_pem_file(&self.key).with_context(|| self.key.display().to_string())?;
        let config = ClientConfig::builder().with_root_certificates(roots);
        let mut config = config.with_client_auth_cert(certificates(&self.cert)?, key)?;
        config.alpn_protocols = vec![if self.http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
        Ok(TlsConnector::from(Arc::new(config)))
    }

    /// Connects and runs `client`. Connection and client share the caller's task, so that an answer wakes one task, not two.
    pub(crate) async fn with_connection<T>(
        &self,
        tls: &TlsConnector,
        client: impl AsyncFnOnce(Sender) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let io = TokioIo::new(self.connect(tls).await?);
        if self.http2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
            drive(connection, client(Sender::Http2(sender))).await
        } else {
            let (sender, connection) = http1::handshake(io).await?;
            drive(connection, client(Sender::Http1(sender))).await
        }
    }

    async fn connect(&self, tls: &TlsConnector) -> anyhow::Result<TlsStream<TcpStream>> {
        let tcp =
            TcpStream::connect(self.address).await.with_context(|| format!("connect to {}", self.address))?;
        tcp.set_nodelay(true)?;
        let name = ServerName::try_from(self.name.clone())?;
        tls.connect(name, tcp).await.with_context(|| format!("TLS with {} as {}", self.address, self.name))
    }
}

async fn drive<T>(
    connection: impl Future<Output = hyper::Result<()>>,
    client: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    tokio::select! {
        biased;
        result = client => result,
        ended = connection => {
            ended.context("the connection")?;
            bail!("the server closed the connection")
        }
    }
}

fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let read = || CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>();
    read().with_context(|| path.display().to_string())
}

/// The client side of a connection.
pub(crate) enum Sender {
    /// HTTP/1.1.
    Http1(http1::SendRequest<Empty<Bytes>>),
    /// HTTP/2.
    Http2(http2::SendRequest<Empty<Bytes>>),
}

impl Sender {
    /// Sends a request and reads the whole answer. An answer that is no success is an error that quotes it.
    pub(crate) async fn read(&mut self, request: &ReadRequest) -> anyhow::Result<Bytes> {
        let response: Response<Incoming> = match self {
            Self::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request.clone()).await?
            }
            Self::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request.clone()).await?
            }
        };
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            let text: String = String::from_utf8_lossy(&body).chars().take(500).collect();
            bail!("{}: {status}: {text}", request.uri());
        }
        Ok(body)
    }
}
