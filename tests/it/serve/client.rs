//! A client that presents and sends exactly what a test sets, and returns the whole answer.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tracing::Dispatch;
use tracing::subscriber::DefaultGuard;

use super::READ;
use super::pki::{Leaf, SERVICE};
use super::test_server::TestServer;

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
    /// The body.
    pub(crate) bytes: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let name = format!("{name}: ");
        self.head.lines().find_map(|line| line.strip_prefix(name.as_str()))
    }

    /// Every value of a header, in order.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        let name = format!("{name}: ");
        self.head.lines().filter_map(|line| line.strip_prefix(name.as_str())).collect()
    }

    /// True when the body has exactly this line.
    pub(crate) fn has_line(&self, line: &str) -> bool {
        self.body.lines().any(|text| text == line)
    }

    /// The message of a `Status`.
    pub(crate) fn message(&self) -> String {
        let status: serde_json::Value = serde_json::from_str(&self.body).expect(&self.body);
        assert_eq!(status["kind"], "Status", "{}", self.body);
        assert_eq!(status["code"], self.status, "{}", self.body);
        assert_eq!(self.header("retry-after"), None);
        status["message"].as_str().unwrap().to_owned()
    }

    /// The value of the only item.
    pub(crate) fn value(&self) -> String {
        let list: serde_json::Value = serde_json::from_str(&self.body).expect(&self.body);
        assert_eq!(list["items"].as_array().expect(&self.body).len(), 1, "{}", self.body);
        list["items"][0]["value"].as_str().unwrap().to_owned()
    }
}

pub(crate) async fn tls(
    address: SocketAddr,
    ca: &str,
    name: &str,
    identity: Option<&Leaf>,
    alpn: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let config = config(ca, identity, &[alpn], rustls::DEFAULT_VERSIONS);
    tls_over(TcpStream::connect(address).await?, name, config).await
}

/// TLS over an open TCP connection.
pub(crate) async fn tls_over(
    tcp: TcpStream,
    name: &str,
    config: ClientConfig,
) -> std::io::Result<TlsStream<TcpStream>> {
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(name.to_owned()).unwrap(), tcp).await
}

/// A TCP connection from another address of this machine, `127.0.0.{host}`.
pub(crate) async fn tcp_from(host: u8, address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, host], 0))).unwrap();
    socket.connect(address).await.unwrap()
}

/// A TCP connection with small buffers, so that both sides soon notice when the other one does not read.
pub(crate) async fn tcp_with_small_buffers(address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 * 1024).unwrap();
    socket.set_send_buffer_size(16 * 1024).unwrap();
    socket.connect(address).await.unwrap()
}

/// A client configuration: trusted CA, certificate, ALPN and TLS versions.
pub(crate) fn config(
    ca: &str,
    identity: Option<&Leaf>,
    alpn: &[&str],
    versions: &[&'static SupportedProtocolVersion],
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(ca.as_bytes()).map(Result::unwrap));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
    let builder = builder.with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(leaf) => {
            let chain =
                CertificateDer::pem_slice_iter(leaf.certificate.as_bytes()).map(Result::unwrap).collect();
            let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    config
}

impl TestServer {
    /// One HTTP/1.1 request on a connection of its own. `lines` are headers.
    pub(crate) async fn send(&self, identity: Option<&Leaf>, request: &str, lines: &[&str]) -> Answer {
        exchange(self.h1(identity).await, request, lines).await
    }

    /// A connection with HTTP/1.1.
    pub(crate) async fn h1(&self, identity: Option<&Leaf>) -> TlsStream<TcpStream> {
        tls(self.address, &self.shared_ca.pem(), SERVICE, identity, "http/1.1").await.unwrap()
    }

    /// The certificate of another instance.
    pub(crate) fn instance(&self) -> Leaf {
        let shared = self.shared_ca.shared();
        Leaf { certificate: shared.cert_pem, key: shared.key_pem }
    }

    /// A request without credentials.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(None, &format!("GET {path}"), &[]).await
    }

    /// A request of the front proxy that names no user.
    pub(crate) async fn get_as_proxy(&self, path: &str) -> Answer {
        self.send(Some(&self.proxy), &format!("GET {path}"), &[]).await
    }

    /// A request through the aggregator, in the name of the HPA controller, with `lines` as further headers.
    pub(crate) async fn read_as_hpa(&self, path: &str, lines: &[&str]) -> Answer {
        let lines = [&["X-Remote-User: hpa"], lines].concat();
        self.send(Some(&self.proxy), &format!("GET {path}"), &lines).await
    }

    /// The server's own metrics.
    pub(crate) async fn metrics(&self) -> Answer {
        self.send(None, "GET /metrics", &["Authorization: Bearer good"]).await
    }

    /// A request through the aggregator, in the name of `user`.
    pub(crate) async fn proxied(&self, user: &str, path: &str) -> Answer {
        let user = format!("X-Remote-User: {user}");
        self.send(Some(&self.proxy), &format!("GET {path}"), &[&user, "X-Remote-Group: system:authenticated"])
            .await
    }
}

/// One HTTP/2 connection, as the aggregator keeps it.
pub(crate) struct H2 {
    pub(crate) sender: SendRequest<Empty<Bytes>>,
    pub(crate) driver: JoinSet<hyper::Result<()>>,
}

impl H2 {
    pub(crate) async fn connect(server: &TestServer, identity: Option<&Leaf>) -> Self {
        let stream = tls(server.address, &server.shared_ca.pem(), SERVICE, identity, "h2").await.unwrap();
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        Self { sender, driver }
    }

    /// Starts a request with one header.
    pub(crate) fn get(
        &mut self,
        path: &str,
        header: &str,
        value: &str,
    ) -> impl Future<Output = hyper::Result<http::Response<hyper::body::Incoming>>> + use<> {
        let request = http::Request::get(format!("https://ignored{path}")).header(header, value);
        self.sender.send_request(request.body(Empty::new()).unwrap())
    }

    /// Starts a read in the name of the HPA controller.
    pub(crate) fn read(
        &mut self,
    ) -> impl Future<Output = hyper::Result<http::Response<hyper::body::Incoming>>> + use<> {
        self.get(READ, "x-remote-user", "hpa")
    }
}

/// True when the other side closes within 2 s; what it sends before is discarded.
pub(crate) async fn is_closed(stream: &mut TlsStream<TcpStream>) -> bool {
    timeout(Duration::from_secs(2), stream.read_to_end(&mut Vec::new())).await.is_ok()
}

pub(crate) async fn exchange(mut stream: TlsStream<TcpStream>, request: &str, lines: &[&str]) -> Answer {
    let mut text =
        format!("{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAudit-Id: audit-1\r\n");
    for line in lines {
        text += &format!("{line}\r\n");
    }
    stream.write_all(format!("{text}\r\n").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A server may close without close_notify; what came before is the answer.
    let _ = stream.read_to_end(&mut answer).await;
    let end = answer.windows(4).position(|at| at == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no head in {:?}", String::from_utf8_lossy(&answer)));
    let head = std::str::from_utf8(&answer[..end]).unwrap().replace('\r', "");
    let bytes = answer[end + 4..].to_vec();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head, body: String::from_utf8_lossy(&bytes).into_owned(), bytes }
}

/// With a single subscriber, tracing caches for good whether the first thread wanted a line.
static DISPATCHES: LazyLock<[Dispatch; 2]> =
    LazyLock::new(|| [(); 2].map(|()| Dispatch::new(tracing_subscriber::registry())));

/// The log of this thread, on which all of a test runs.
#[derive(Clone, Default)]
pub(crate) struct Captured(Arc<Mutex<Vec<u8>>>);

impl Captured {
    /// Captures until the guard is dropped.
    pub(crate) fn log(level: tracing::Level) -> (Self, DefaultGuard) {
        LazyLock::force(&DISPATCHES);
        let captured = Self::default();
        let writer = captured.clone();
        let lines = tracing_subscriber::fmt().with_max_level(level).with_ansi(false);
        let guard = tracing::subscriber::set_default(lines.with_writer(move || writer.clone()).finish());
        (captured, guard)
    }

    /// The lines with `text`.
    pub(crate) fn lines(&self, text: &str) -> Vec<String> {
        let log = String::from_utf8_lossy(&self.0.lock()).into_owned();
        log.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }
}

impl std::io::Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
