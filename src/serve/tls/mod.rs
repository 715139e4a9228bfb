//! TLS: certificates, the accept loop, connection limits, and what the handshake asks of clients. Knows no route and no user.

pub(crate) mod accept;
mod activity;
mod answer_permit;
pub(crate) mod certificates;
pub(crate) mod connection;
pub(crate) mod connection_errors;
mod connection_quota;
mod head_timeout;
mod peer;
pub(crate) mod pem;
pub(crate) mod pem_file;
mod write_timeout;

pub(crate) use answer_permit::{AnswerPermit, Permits};
pub use certificates::{CertificateError, RECHECK_INTERVAL, ServingCertificate, SharedPki};
pub(crate) use connection::ConnectionEnd;
pub(crate) use peer::{PeerChain, PeerTrust, PeerVerifier};
