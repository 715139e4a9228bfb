//! A client that shows and sends exactly what a test says, and hides nothing of the answer.

use std::net::SocketAddr;
use std::sync::Arc;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::READ;
use super::bed::Bed;
use super::pki::{Leaf, SERVICE};

/// An answer, as text where it is text.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
    /// The body as it came.
    pub(crate) bytes: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let name = format!("{name}: ");
        self.head.lines().find_map(|line| line.strip_prefix(name.as_str()))
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
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(ca.as_bytes()).map(Result::unwrap));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
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
    config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    let tcp = TcpStream::connect(address).await?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(name.to_owned()).unwrap(), tcp).await
}

impl Bed {
    /// One HTTP/1.1 request on a connection of its own. `lines` are headers.
    pub(crate) async fn send(&self, identity: Option<&Leaf>, request: &str, lines: &[&str]) -> Answer {
        let stream = tls(self.address, &self.shared_ca.pem(), SERVICE, identity, "http/1.1").await.unwrap();
        exchange(stream, request, lines).await
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
    pub(crate) async fn connect(bed: &Bed, identity: Option<&Leaf>) -> Self {
        let stream = tls(bed.address, &bed.shared_ca.pem(), SERVICE, identity, "h2").await.unwrap();
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        Self { sender, driver }
    }

    /// Starts a read in the name of the HPA controller.
    pub(crate) fn read(
        &mut self,
    ) -> impl Future<Output = hyper::Result<http::Response<hyper::body::Incoming>>> + use<> {
        let request = http::Request::get(format!("https://ignored{READ}")).header("x-remote-user", "hpa");
        self.sender.send_request(request.body(Empty::new()).unwrap())
    }
}

pub(crate) async fn exchange(mut stream: TlsStream<TcpStream>, request: &str, lines: &[&str]) -> Answer {
    let mut text =
        format!("{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAudit-Id: audit-1\r\n");
    for line in lines {
        text += &format!("{line}\r\n");
    }
    stream.write_all(format!("{text}\r\n").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A server may close without a TLS goodbye; what came before is the answer.
    let _ = stream.read_to_end(&mut answer).await;
    let end = answer.windows(4).position(|at| at == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no head in {:?}", String::from_utf8_lossy(&answer)));
    let head = std::str::from_utf8(&answer[..end]).unwrap().replace('\r', "");
    let bytes = answer[end + 4..].to_vec();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head, body: String::from_utf8_lossy(&bytes).into_owned(), bytes }
}
