//! One HTTP/2 connection over mutual TLS to another server of wva. All requests to it share the connection, which is opened when it
//! is needed. Bounded in time and size; after a failure it backs off, so that not every read waits for a dead server.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use crate::serve::tls::SharedPki;
use crate::serve::tls::pem::{self, VERSIONS};

/// Time after a failure in which requests fail at once.
const BACKOFF: Duration = Duration::from_secs(1);

/// A server, and the certificates of both sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The name in the server's certificate.
    pub(crate) server_name: String,
    /// The CAs that the server's certificate is verified by, and the certificate that is presented.
    pub(crate) pki: SharedPki,
}

/// Why there is no answer. Clients see it, so it contains no secret.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestFailure {
    #[error("it failed less than a second ago: {0}")]
    Recent(String),
    #[error("it did not answer within {0:?}")]
    Timeout(Duration),
    /// Says nothing about other requests.
    #[error("its answer is larger than {0} bytes")]
    TooLarge(usize),
    #[error("{0}")]
    Failed(String),
}

/// Sends requests to one server at a time.
pub(crate) struct PooledConnection {
    timeout: Duration,
    max_body_bytes: usize,
    connection: tokio::sync::Mutex<Option<Connection>>,
    backoff: Mutex<Option<Backoff>>,
}

/// The server that failed last.
struct Backoff {
    host: String,
    port: u16,
    /// It is not tried again before.
    until: Instant,
    cause: String,
}

/// An open connection; dropping it closes it.
struct Connection {
    destination: Destination,
    sender: SendRequest<Empty<Bytes>>,
    _driver: JoinSet<()>,
}

/// Why one attempt failed.
#[derive(Debug, thiserror::Error)]
enum AttemptError {
    #[error("{0:?} is not a name that a certificate can have")]
    ServerName(String),
    #[error("{0}")]
    Connect(#[from] std::io::Error),
    #[error("{0}")]
    Tls(#[from] rustls::Error),
    #[error("the certificates: {0}")]
    Pem(#[from] pem::PemError),
    #[error("{0}")]
    Http(#[from] hyper::Error),
    #[error("its answer is larger than {0} bytes")]
    TooLarge(usize),
}

impl PooledConnection {
    /// `timeout` bounds a request with all that it takes, `max_body_bytes` the body of an answer.
    pub(crate) fn new(timeout: Duration, max_body_bytes: usize) -> Self {
        Self { timeout, max_body_bytes, connection: tokio::sync::Mutex::new(None), backoff: Mutex::new(None) }
    }

    /// Sends `request`, which has no effect on the server, so that it may be repeated.
    pub(crate) async fn send(
        &self,
        to: &Destination,
        request: Request<Empty<Bytes>>,
    ) -> Result<Response<Bytes>, RequestFailure> {
        if let Some(cause) = self.recent_failure(to) {
            return Err(RequestFailure::Recent(cause));
        }
        let failure = match timeout(self.timeout, self.attempt(to, request)).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(AttemptError::TooLarge(bytes))) => return Err(RequestFailure::TooLarge(bytes)),
            Ok(Err(cause)) => RequestFailure::Failed(cause.to_string()),
            Err(_) => RequestFailure::Timeout(self.timeout),
        };
        self.back_off(to, failure.to_string());
        Err(failure)
    }

    /// Why the server failed, while it is not tried again.
    fn recent_failure(&self, to: &Destination) -> Option<String> {
        let backoff = self.backoff.lock();
        let failed = backoff.as_ref()?;
        let is_recent = failed.host == to.host && failed.port == to.port && Instant::now() < failed.until;
        is_recent.then(|| failed.cause.clone())
    }

    /// Closes the connection too: after a server has vanished, it looks open for minutes. Waits for nobody: whoever holds the lock is
    /// about to replace the connection.
    fn back_off(&self, to: &Destination, cause: String) {
        let until = Instant::now() + BACKOFF;
        *self.backoff.lock() = Some(Backoff { host: to.host.clone(), port: to.port, until, cause });
        if let Ok(mut connection) = self.connection.try_lock() {
            *connection = None;
        }
    }

    /// A server may close an idle connection at any time, also just before a request: only a new one tells whether it answers.
    async fn attempt(
        &self,
        to: &Destination,
        request: Request<Empty<Bytes>>,
    ) -> Result<Response<Bytes>, AttemptError> {
        let (sender, is_new) = self.sender(to).await?;
        match self.exchange(sender, request.clone()).await {
            Err(AttemptError::Http(_)) if !is_new => {
                let (sender, _) = self.sender(to).await?;
                self.exchange(sender, request).await
            }
            result => result,
        }
    }

    async fn exchange(
        &self,
        mut sender: SendRequest<Empty<Bytes>>,
        request: Request<Empty<Bytes>>,
    ) -> Result<Response<Bytes>, AttemptError> {
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, self.max_body_bytes).collect().await;
        let body = body.map_err(|error| match error.downcast::<hyper::Error>() {
            Ok(error) => AttemptError::Http(*error),
            Err(_) => AttemptError::TooLarge(self.max_body_bytes),
        })?;
        Ok(Response::from_parts(head, body.to_bytes()))
    }

    /// The open connection, or a new one (true) when the destination changed.
    async fn sender(&self, to: &Destination) -> Result<(SendRequest<Empty<Bytes>>, bool), AttemptError> {
        let mut slot = self.connection.lock().await;
        let usable = |open: &&Connection| open.destination == *to && !open.sender.is_closed();
        if let Some(open) = slot.as_ref().filter(usable) {
            return Ok((open.sender.clone(), false));
        }
        let connection = connect(to).await?;
        let sender = connection.sender.clone();
        *slot = Some(connection);
        Ok((sender, true))
    }
}

async fn connect(to: &Destination) -> Result<Connection, AttemptError> {
    let name = ServerName::try_from(to.server_name.clone())
        .map_err(|_| AttemptError::ServerName(to.server_name.clone()))?;
    let config = client_config(&to.pki)?;
    let tcp = TcpStream::connect((to.host.as_str(), to.port)).await?;
    tcp.set_nodelay(true)?;
    let tls = TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await?;
    let mut driver = JoinSet::new();
    driver.spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "the connection to another server of wva ended");
        }
    });
    Ok(Connection { destination: to.clone(), sender, _driver: driver })
}

/// Trusts only the given CAs, and presents the given leaf.
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

/// Host and port of `https://host:port`.
pub(crate) fn endpoint(url: &str) -> Option<(String, u16)> {
    let uri: Uri = url.parse().ok()?;
    let host = uri.host()?.trim_matches(['[', ']']).to_owned();
    (uri.scheme_str() == Some("https")).then_some((host, uri.port_u16()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_https_host_and_port() {
        assert_eq!(endpoint("https://10.0.0.1:6443"), Some(("10.0.0.1".into(), 6443)));
        assert_eq!(endpoint("https://[fd00::1]:6443"), Some(("fd00::1".into(), 6443)));
        for wrong in ["http://10.0.0.1:6443", "https://10.0.0.1", "10.0.0.1:6443", "", "https://"] {
            assert_eq!(endpoint(wrong), None, "{wrong}");
        }
    }
}
