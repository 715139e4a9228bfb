//! The way to the holder: one HTTP/2 connection with mutual TLS from the shared CA. Bounded in time and size; after a
//! failure it rests, so that a dead holder does not cost every read a wait.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use http::header::{ACCEPT, CONTENT_TYPE, VARY, WARNING};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use super::{ANSWERED, AUDIT_ID, HOLDER, NOTHING_YET, inner};
use crate::engine::Leadership;
use crate::serve::accept::{self, Representation};
use crate::serve::tls::SharedPki;
use crate::serve::tls::pem::{self, VERSIONS};

/// The largest answer passed on: 10,000 items of 400 bytes are 4 MB.
const MAX_BODY: usize = 16 * 1024 * 1024;

/// Added to what the holder itself waits for an evaluation: one round trip, and a handshake.
const ROUND_TRIP: Duration = Duration::from_millis(250);

/// The rest after a failure: a read in it is answered at once from the last published state.
const REST: Duration = Duration::from_secs(1);

/// Why a read could not be answered by the holder. Shown to people in a warning; holds no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ForwardError {
    #[error("no instance is known to hold the lease now")]
    NoHolder,
    #[error("the holder {0} does not say where it answers")]
    NoAddress(String),
    #[error("the shared certificates are not there yet")]
    NoCertificates,
    #[error("the holder {holder} cannot be reached: {cause}")]
    Unreachable { holder: String, cause: String },
    #[error("the holder {0} did not answer in time")]
    Late(String),
    #[error("{0} does not hold the lease any more")]
    NotTheHolder(String),
    #[error("the holder {0} has only just started and knows nothing yet")]
    NothingYet(String),
    #[error("the holder {holder} answered {status} instead of a number")]
    Refused { holder: String, status: u16 },
}

/// Asks the holder.
pub(crate) struct Forwarder {
    instance_name: String,
    pki: watch::Receiver<Option<SharedPki>>,
    patience: Duration,
    connection: tokio::sync::Mutex<Option<Connection>>,
    resting: Mutex<Option<(String, Instant)>>,
}

/// An open connection; dropping it closes it.
struct Connection {
    address: String,
    pki: SharedPki,
    sender: SendRequest<Empty<Bytes>>,
    _driver: JoinSet<()>,
}

/// Why one attempt failed.
#[derive(Debug, thiserror::Error)]
enum Attempt {
    #[error("its address {0:?} is not https://host:port")]
    Address(String),
    #[error("{0}")]
    Connect(#[from] std::io::Error),
    #[error("{0}")]
    Tls(#[from] rustls::Error),
    #[error("the shared certificates: {0}")]
    Pem(#[from] pem::PemError),
    #[error("{0}")]
    Http(#[from] hyper::Error),
    #[error("{0}")]
    Request(#[from] http::Error),
    #[error("its answer was cut or larger than {MAX_BODY} bytes")]
    Body,
}

impl Forwarder {
    /// `read_wait` is what the holder waits for an evaluation.
    pub(crate) fn new(
        instance_name: String,
        pki: watch::Receiver<Option<SharedPki>>,
        read_wait: Duration,
    ) -> Self {
        let patience = read_wait + ROUND_TRIP;
        let (connection, resting) = (tokio::sync::Mutex::new(None), Mutex::new(None));
        Self { instance_name, pki, patience, connection, resting }
    }

    /// The holder's answer to the read of `uri`, word for word: it writes what the client of `headers` accepts. It is asked
    /// for no compression, which is between each client and the instance it talks to.
    pub(crate) async fn ask(
        &self,
        leadership: &Leadership,
        uri: &Uri,
        headers: &HeaderMap,
        audit: &HeaderValue,
    ) -> Result<Response<Body>, ForwardError> {
        let holder = leadership.other_holder().ok_or(ForwardError::NoHolder)?;
        let name = holder.identity.clone();
        let address = holder.address.as_deref().ok_or_else(|| ForwardError::NoAddress(name.clone()))?;
        let pki = self.pki.borrow().clone().ok_or(ForwardError::NoCertificates)?;
        if self.rests(address) {
            return Err(ForwardError::Unreachable { holder: name, cause: "it failed a moment ago".into() });
        }
        let request = self.request(uri, headers, audit);
        let answer = match timeout(self.patience, self.attempt(address, pki, request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(cause)) => {
                self.rest(address).await;
                return Err(ForwardError::Unreachable { holder: name, cause: cause.to_string() });
            }
            Err(_) => {
                self.rest(address).await;
                return Err(ForwardError::Late(name));
            }
        };
        let answered = answer.headers().get(ANSWERED);
        match answer.status() {
            _ if answered == Some(&HOLDER) => Ok(verbatim(answer)),
            StatusCode::MISDIRECTED_REQUEST if answered == Some(&NOTHING_YET) => {
                Err(ForwardError::NothingYet(name))
            }
            StatusCode::MISDIRECTED_REQUEST => Err(ForwardError::NotTheHolder(name)),
            status => Err(ForwardError::Refused { holder: name, status: status.as_u16() }),
        }
    }

    fn rests(&self, address: &str) -> bool {
        self.resting
            .lock()
            .as_ref()
            .is_some_and(|(resting, until)| resting == address && Instant::now() < *until)
    }

    /// Gives the connection up too: a peer that is gone without a word looks open for minutes.
    async fn rest(&self, address: &str) {
        *self.resting.lock() = Some((address.to_owned(), Instant::now() + REST));
        *self.connection.lock().await = None;
    }

    fn request(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        audit: &HeaderValue,
    ) -> http::Result<Request<Empty<Bytes>>> {
        let asked = uri.path_and_query().map_or("", |all| all.as_str());
        let request =
            Request::get(format!("https://{}{}", self.instance_name, inner(asked))).header(AUDIT_ID, audit);
        // What the client's header comes to, never its bytes: they could be such as the connection to the holder, which all
        // reads share, does not survive.
        let accepted = accept::representation(headers).map(Representation::media);
        accepted.into_iter().fold(request, |request, media| request.header(ACCEPT, media)).body(Empty::new())
    }

    async fn attempt(
        &self,
        address: &str,
        pki: SharedPki,
        request: http::Result<Request<Empty<Bytes>>>,
    ) -> Result<Response<Bytes>, Attempt> {
        let mut sender = self.sender(address, pki).await?;
        let (head, body) = sender.send_request(request?).await?.into_parts();
        let body = Limited::new(body, MAX_BODY).collect().await.map_err(|_| Attempt::Body)?;
        Ok(Response::from_parts(head, body.to_bytes()))
    }

    /// The open connection, or a new one when the address or the certificates changed.
    async fn sender(&self, address: &str, pki: SharedPki) -> Result<SendRequest<Empty<Bytes>>, Attempt> {
        let mut slot = self.connection.lock().await;
        let usable =
            |open: &&Connection| open.address == address && open.pki == pki && !open.sender.is_closed();
        if let Some(open) = slot.as_ref().filter(usable) {
            return Ok(open.sender.clone());
        }
        let connection = self.connect(address, pki).await?;
        let sender = connection.sender.clone();
        *slot = Some(connection);
        Ok(sender)
    }

    async fn connect(&self, address: &str, pki: SharedPki) -> Result<Connection, Attempt> {
        let (host, port) = endpoint(address).ok_or_else(|| Attempt::Address(address.into()))?;
        let name = ServerName::try_from(self.instance_name.clone())
            .map_err(|_| Attempt::Address(self.instance_name.clone()))?;
        let config = client_config(&pki)?;
        let tcp = TcpStream::connect((host.as_str(), port)).await?;
        tcp.set_nodelay(true)?;
        let tls = TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection to the holder ended");
            }
        });
        Ok(Connection { address: address.into(), pki, sender, _driver: driver })
    }
}

/// Trusts the shared CA alone, and shows the shared leaf.
fn client_config(pki: &SharedPki) -> Result<ClientConfig, Attempt> {
    let mut config = ClientConfig::builder_with_provider(pem::provider())
        .with_protocol_versions(VERSIONS)?
        .with_root_certificates(pem::roots(pki.ca_pem.as_bytes())?)
        .with_client_auth_cert(
            pem::certificates(pki.cert_pem.as_bytes())?,
            pem::private_key(pki.key_pem.as_bytes())?,
        )?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn endpoint(address: &str) -> Option<(String, u16)> {
    let uri: Uri = address.parse().ok()?;
    let host = uri.host()?.trim_matches(['[', ']']).to_owned();
    (uri.scheme_str() == Some("https")).then_some((host, uri.port_u16()?))
}

/// Status, body, type and warnings; nothing else of the other connection.
fn verbatim(answer: Response<Bytes>) -> Response<Body> {
    let (head, body) = answer.into_parts();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = head.status;
    for name in [CONTENT_TYPE, VARY, WARNING] {
        for value in head.headers.get_all(&name) {
            response.headers_mut().append(name.clone(), value.clone());
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_clients_accept_header_never_reach_the_holder() {
        let forwarder =
            Forwarder::new("wva-instance.x.internal".into(), watch::channel(None).1, Duration::ZERO);
        let uri =
            "/apis/external.metrics.k8s.io/v1beta1/namespaces/llm/wva_desired_replicas".parse().unwrap();
        let audit = HeaderValue::from_static("id");
        for (accept, media) in [
            (&b"application/json"[..], "application/json"),
            (b"\xff\xfe, application/vnd.kubernetes.protobuf, */*", "application/vnd.kubernetes.protobuf"),
            (b"application/json;as=Table;v=v1;g=meta.k8s.io,application/json;x=\x80", TABLE),
            (b"application/yaml;q=0.9, text/html", "application/yaml"),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_bytes(accept).unwrap())]);
            let request = forwarder.request(&uri, &headers, &audit).unwrap();
            let sent: Vec<_> = request.headers().get_all(ACCEPT).iter().collect();
            assert_eq!(sent, [media], "{}", String::from_utf8_lossy(accept));
            assert_eq!(
                accept::representation(request.headers()),
                accept::representation(&headers),
                "{media}: the same answer"
            );
        }
    }

    const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

    #[test]
    fn an_address_is_https_host_and_port() {
        assert_eq!(endpoint("https://10.0.0.1:6443"), Some(("10.0.0.1".into(), 6443)));
        assert_eq!(endpoint("https://[fd00::1]:6443"), Some(("fd00::1".into(), 6443)));
        for wrong in ["http://10.0.0.1:6443", "https://10.0.0.1", "10.0.0.1:6443", "", "https://"] {
            assert_eq!(endpoint(wrong), None, "{wrong}");
        }
    }
}
