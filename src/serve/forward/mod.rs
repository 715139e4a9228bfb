//! Forwarding of reads: an instance without the lease asks the leader, over one HTTP/2 connection with mutual TLS from the
//! shared CA. The leader recognises other instances by the shared certificate. Who may read has been decided before.
//! `installations` uses the same connections and certificates to ask other installations.

mod connection;
mod verifier;

use std::time::Duration;

use axum::body::{Body, Bytes};
use http::header::{ACCEPT, CONTENT_TYPE, VARY, WARNING};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::Empty;
use tokio::sync::watch;

use self::connection::endpoint;
pub(crate) use self::connection::{Destination, PooledConnection, RequestFailure};
pub(crate) use self::verifier::{ForwarderVerifier, InstanceVerifier};
use super::encoding::negotiation::{self, Representation};
use super::paths::{ANSWERED_BY, AUDIT_ID, LEADER, LEADER_WITHOUT_RESULT, internal_path};
use super::tls::SharedPki;
use crate::engine::Leadership;

/// Bytes of an answer that is passed on: 10,000 items of 400 bytes are 4 MB.
const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;

/// Added to the time that the leader waits for an evaluation: a handshake and one round trip.
const ROUND_TRIP_TIMEOUT: Duration = Duration::from_millis(250);

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
    connection: PooledConnection,
}

impl Forwarder {
    /// `read_wait` is what the leader waits for an evaluation.
    pub(crate) fn new(
        instance_name: String,
        pki: watch::Receiver<Option<SharedPki>>,
        read_wait: Duration,
    ) -> Self {
        let connection = PooledConnection::new(read_wait + ROUND_TRIP_TIMEOUT, MAX_BODY_BYTES);
        Self { instance_name, pki, connection }
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
        let unreachable = |cause| ForwardError::Unreachable { leader: name.clone(), cause };
        let (host, port) = endpoint(address)
            .ok_or_else(|| unreachable(format!("its address {address:?} is not https://host:port")))?;
        let destination = Destination { host, port, server_name: self.instance_name.clone(), pki };
        let request = self.request(uri, headers, audit).map_err(|error| unreachable(error.to_string()))?;
        let answer = self.connection.send(&destination, request).await.map_err(|failure| match failure {
            RequestFailure::Timeout(_) => ForwardError::Timeout(name.clone()),
            failure => unreachable(failure.to_string()),
        })?;
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
}
