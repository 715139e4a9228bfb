//! Who is at the other end of a connection, as far as TLS can tell.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;

/// The other end of a connection; in the extensions of every request.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Where it connects from.
    pub address: SocketAddr,
    /// The certificates it proved to have the key of, leaf first; not verified against any CA. Empty without any.
    pub chain: Arc<[CertificateDer<'static>]>,
}
