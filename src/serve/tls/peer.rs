//! The other end of a connection, as far as TLS knows it.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use futures::future::BoxFuture;
use rustls::pki_types::CertificateDer;

/// Randomly keyed, so that nobody can choose certificates that collide.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The other end of a connection; in the extensions of every request.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The address that it connects from.
    pub address: SocketAddr,
    /// The certificates of whose first it has proved to own the key; not verified against any CA.
    pub chain: PeerChain,
}

/// The certificates that a peer presented, leaf first, at most five; empty for a peer without a certificate.
///
/// Hashed once, when the connection begins: what a chain proves is looked up for every request, and hashing its kilobytes
/// each time would cost more than the rest of the lookup.
#[derive(Debug, Clone, Default)]
pub struct PeerChain {
    certificates: Arc<[CertificateDer<'static>]>,
    hash: u64,
}

impl PeerChain {
    pub(crate) fn new(certificates: Arc<[CertificateDer<'static>]>) -> Self {
        let hash = HASHER.hash_one(&certificates);
        Self { certificates, hash }
    }

    pub(crate) fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.certificates
    }

    /// True for a peer without a certificate.
    pub(crate) fn is_empty(&self) -> bool {
        self.certificates.is_empty()
    }
}

impl PartialEq for PeerChain {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.certificates, &other.certificates) || self.certificates == other.certificates
    }
}

impl Eq for PeerChain {}

impl Hash for PeerChain {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Which CA issued a peer's certificate; decides which connection quota applies to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerTrust {
    /// The front proxy's CA, or the CA that instances share. The cluster depends on these connections.
    Infrastructure,
    /// The CA of the cluster's users.
    User,
    /// None that is trusted here: probes, scrapes with a token, anybody in the network.
    Untrusted,
}

/// Finds out which CA issued a peer's certificate.
pub(crate) trait PeerVerifier: Send + Sync + 'static {
    /// Verifies the peer's certificates.
    fn verify<'a>(&'a self, peer: &'a Peer) -> BoxFuture<'a, PeerTrust>;
}
