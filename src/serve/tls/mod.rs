//! TLS: certificates, the accept loop, connection limits, and what the handshake asks of clients. Knows no route and no user.

pub(crate) mod accept;
pub(crate) mod certificates;
pub(crate) mod connection;
pub(crate) mod connection_errors;
mod connection_quota;
mod head_timeout;
mod header_blocks;
mod idle;
mod listener;
mod peer;
pub mod pem;
mod response_body;
mod verifier;
mod write_timeout;

pub use certificates::{CertificateError, RECHECK_INTERVAL, ServingCertificate, SharedPki};
pub use peer::{Peer, PeerChain};
pub(crate) use peer::{PeerTrust, PeerVerifier};
pub(crate) use response_body::UntilSent;
