//! Forwarding of reads: an instance without the lease asks the leader, over one HTTP/2 connection with mutual TLS from the
//! shared CA. Bounded in time and size; after a failure it backs off, so that not every read waits for a dead leader. The leader
//! recognises other instances by the shared certificate. Who may read has been decided before.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use http::header::{ACCEPT, CONTENT_TYPE, VARY, WARNING};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use super::auth::{Subject, VerifiedChains, require_get};
use super::encoding::negotiation::{self, Representation};
use super::encoding::{Reason, Status};
use super::paths::{ANSWERED_BY, AUDIT_ID, LEADER, LEADER_WITHOUT_RESULT, internal_path};
use super::tls::pem::{self, ClientCas, VERSIONS};
use super::tls::{PeerChain, SharedPki};
use crate::engine::Leadership;

/// Bytes of an answer that is passed on: 10,000 items of 400 bytes are 4 MB.
const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;

/// Added to the time that the leader waits for an evaluation: a handshake and one round trip.
const ROUND_TRIP_TIMEOUT: Duration = Duration::from_millis(250);

/// Time after a failure in which reads are answered at once from the last published state.
const BACKOFF: Duration = Duration::from_secs(1);

/// Why the leader did not answer a read. Clients see it in a warning, so it contains no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ForwardError {
    #[error("no instance is known to hold the lease")]
    NoLeader,
    #[error("the leader {0} has published no address")]
    NoAddress(String),
    #[error("the shared certificates have not been read yet")]
    NoCertificates,
    #[error("the leader {leader} cannot be reached: {cause}")]
    Unreachable { leader: String, cause: String },
    #[error("the leader {0} did not answer in time")]
    Timeout(String),
    #[error("{0} no longer holds the lease")]
    NotLeader(String),
    #[error("the leader {0} has just started and has no result yet")]
    NoResult(String),
    #[error("the leader {leader} answered with status {status}")]
    Unexpected { leader: String, status: u16 },
}

/// Forwards reads to the leader.
pub(crate) struct Forwarder {
    instance_name: String,
    pki: watch::Receiver<Option<SharedPki>>,
    timeout: Duration,
    connection: tokio::sync::Mutex<Option<Connection>>,
    backoff: Mutex<Option<Backoff>>,
}

/// The address that failed last.
struct Backoff {
    address: String,
    /// It is not tried again before.
    until: Instant,
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
enum AttemptError {
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
    #[error("its answer was cut or larger than {MAX_BODY_BYTES} bytes")]
    Body,
}

impl Forwarder {
    /// `read_wait` is what the leader waits for an evaluation.
    pub(crate) fn new(
        instance_name: String,
        pki: watch::Receiver<Option<SharedPki>>,
        read_wait: Duration,
    ) -> Self {
        Self {
            instance_name,
            pki,
            timeout: read_wait + ROUND_TRIP_TIMEOUT,
            connection: tokio::sync::Mutex::new(None),
            backoff: Mutex::new(None),
        }
    }

    /// The leader's answer to the read of `uri`, unchanged and in the representation that the client's `headers` accept. Without
    /// compression, which each instance does for its own clients.
    pub(crate) async fn forward(
        &self,
        leadership: &Leadership,
        uri: &Uri,
        headers: &HeaderMap,
        audit: &HeaderValue,
    ) -> Result<Response<Body>, ForwardError> {
        let leader = leadership.other_holder().ok_or(ForwardError::NoLeader)?;
        let name = leader.identity.clone();
        let address = leader.address.as_deref().ok_or_else(|| ForwardError::NoAddress(name.clone()))?;
        let pki = self.pki.borrow().clone().ok_or(ForwardError::NoCertificates)?;
        if self.is_backing_off(address) {
            return Err(ForwardError::Unreachable {
                leader: name,
                cause: "it failed less than a second ago".into(),
            });
        }
        let request = self.request(uri, headers, audit);
        let answer = match timeout(self.timeout, self.attempt(address, pki, request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(cause)) => {
                self.back_off(address).await;
                return Err(ForwardError::Unreachable { leader: name, cause: cause.to_string() });
            }
            Err(_) => {
                self.back_off(address).await;
                return Err(ForwardError::Timeout(name));
            }
        };
        let answered_by = answer.headers().get(ANSWERED_BY);
        match answer.status() {
            _ if answered_by == Some(&LEADER) => Ok(pass_on(answer)),
            StatusCode::MISDIRECTED_REQUEST if answered_by == Some(&LEADER_WITHOUT_RESULT) => {
                Err(ForwardError::NoResult(name))
            }
            StatusCode::MISDIRECTED_REQUEST => Err(ForwardError::NotLeader(name)),
            status => Err(ForwardError::Unexpected { leader: name, status: status.as_u16() }),
        }
    }

    fn is_backing_off(&self, address: &str) -> bool {
        let backoff = self.backoff.lock();
        backoff.as_ref().is_some_and(|failed| failed.address == address && Instant::now() < failed.until)
    }

    /// Closes the connection too: after a peer has vanished, it looks open for minutes.
    async fn back_off(&self, address: &str) {
        *self.backoff.lock() = Some(Backoff { address: address.to_owned(), until: Instant::now() + BACKOFF });
        *self.connection.lock().await = None;
    }

    fn request(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        audit: &HeaderValue,
    ) -> http::Result<Request<Empty<Bytes>>> {
        let path = internal_path(uri.path_and_query().map_or("", |path| path.as_str()));
        let request = Request::get(format!("https://{}{path}", self.instance_name)).header(AUDIT_ID, audit);
        // The result of the negotiation, never the client's bytes: those could break the connection, which all reads share.
        let accepted = negotiation::representation(headers).map(Representation::media_range);
        let request = match accepted {
            Some(media_range) => request.header(ACCEPT, media_range),
            None => request,
        };
        request.body(Empty::new())
    }

    async fn attempt(
        &self,
        address: &str,
        pki: SharedPki,
        request: http::Result<Request<Empty<Bytes>>>,
    ) -> Result<Response<Bytes>, AttemptError> {
        let mut sender = self.sender(address, pki).await?;
        let (head, body) = sender.send_request(request?).await?.into_parts();
        let body = Limited::new(body, MAX_BODY_BYTES).collect().await.map_err(|_| AttemptError::Body)?;
        Ok(Response::from_parts(head, body.to_bytes()))
    }

    /// The open connection, or a new one when the address or the certificates changed.
    async fn sender(&self, address: &str, pki: SharedPki) -> Result<SendRequest<Empty<Bytes>>, AttemptError> {
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

    async fn connect(&self, address: &str, pki: SharedPki) -> Result<Connection, AttemptError> {
        let (host, port) = endpoint(address).ok_or_else(|| AttemptError::Address(address.into()))?;
        let name = ServerName::try_from(self.instance_name.clone())
            .map_err(|_| AttemptError::Address(self.instance_name.clone()))?;
        let config = client_config(&pki)?;
        let tcp = TcpStream::connect((host.as_str(), port)).await?;
        tcp.set_nodelay(true)?;
        let tls = TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection to the leader ended");
            }
        });
        Ok(Connection { address: address.into(), pki, sender, _driver: driver })
    }
}

/// Trusts only the shared CA, and presents the shared leaf.
fn client_config(pki: &SharedPki) -> Result<ClientConfig, AttemptError> {
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

/// Status, body, media type and warnings; no other header of the leader.
fn pass_on(answer: Response<Bytes>) -> Response<Body> {
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

/// Verifies the certificates of other instances.
pub(crate) struct InstanceVerifier {
    instance_name: String,
    pki: watch::Receiver<Option<SharedPki>>,
    shared_cas: Mutex<Arc<SharedCas>>,
    verified: VerifiedChains<bool>,
}

/// One version of the CAs that instances share.
#[derive(Default)]
struct SharedCas {
    generation: u64,
    bundle: String,
    /// `None` when the bundle contains no usable CA.
    cas: Option<ClientCas>,
}

impl InstanceVerifier {
    pub(crate) fn new(instance_name: String, pki: watch::Receiver<Option<SharedPki>>) -> Self {
        Self { instance_name, pki, shared_cas: Mutex::default(), verified: VerifiedChains::new() }
    }

    /// True when the shared CA issued the peer's certificate and the certificate has the exact name of an instance.
    pub(crate) async fn is_instance(&self, chain: &PeerChain) -> bool {
        let Some(shared_cas) = self.shared_cas() else { return false };
        let verify = |chain: &[CertificateDer<'static>]| self.has_issued(&shared_cas, chain);
        self.verified.verify(shared_cas.generation, chain, verify).await
    }

    /// Lets a GET of another instance pass.
    pub(crate) async fn authorize(&self, request: &Parts) -> Result<(), Status> {
        let is_instance = match request.extensions.get::<PeerChain>() {
            Some(chain) => self.is_instance(chain).await,
            None => false,
        };
        if !is_instance {
            let message = "forbidden: this path is only for instances of wva with the shared certificate";
            return Err(Status::new(Reason::Forbidden, message));
        }
        require_get(request)
    }

    /// The newest version of the CAs, each version parsed once.
    fn shared_cas(&self) -> Option<Arc<SharedCas>> {
        let pki = self.pki.borrow();
        let bundle = &pki.as_ref()?.ca_pem;
        let mut shared_cas = self.shared_cas.lock();
        if shared_cas.bundle != *bundle {
            let generation = shared_cas.generation + 1;
            let cas = ClientCas::from_pem(bundle.as_bytes()).ok();
            *shared_cas = Arc::new(SharedCas { generation, bundle: bundle.clone(), cas });
        }
        Some(shared_cas.clone())
    }

    fn has_issued(&self, shared_cas: &SharedCas, chain: &[CertificateDer<'static>]) -> bool {
        let Some(leaf) = chain.first() else { return false };
        let names = Subject::parse(leaf).dns_names;
        let has_name = names.iter().any(|name| name.eq_ignore_ascii_case(&self.instance_name));
        has_name && shared_cas.cas.as_ref().is_some_and(|cas| cas.verify(chain, UnixTime::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_the_client_accept_header_never_reach_the_leader() {
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
                negotiation::representation(request.headers()),
                negotiation::representation(&headers),
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
