//! The other end of a connection, and what the handshake requires of its certificate: only that it owns the key. `auth` decides
//! for each request whom a certificate may speak for, so that an unknown certificate never fails a probe, and a rotated CA takes
//! effect on connections that are already open.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, LazyLock};

use futures::future::BoxFuture;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};

/// Certificates in a chain, leaf first. Clusters use one or two. The cost of searching a path from the leaf to a CA grows
/// faster than the chain, so longer chains are rejected before any search.
const MAX_CHAIN_LENGTH: usize = 5;

/// Randomly keyed, so that nobody can choose certificates that collide.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The certificates that a peer presented, leaf first, at most five; empty for a peer without a certificate. It has proved to
/// own the key of the first; none is verified against any CA. In the extensions of every request.
///
/// Hashed once, when the connection begins: what a chain proves is looked up for every request, and hashing its kilobytes
/// each time would cost more than the rest of the lookup.
#[derive(Debug, Clone, Default)]
pub(crate) struct PeerChain {
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
    fn verify<'a>(&'a self, chain: &'a PeerChain) -> BoxFuture<'a, PeerTrust>;
}

/// A chain that is rejected unseen.
#[derive(Debug, thiserror::Error)]
#[error("the client sent {0} certificates; a chain may have at most {MAX_CHAIN_LENGTH}")]
struct ChainTooLong(usize);

/// Asks for a certificate, requires none, verifies none.
#[derive(Debug)]
pub(crate) struct ProofOfPossession {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ProofOfPossession {
    pub(crate) fn new() -> Self {
        Self { algorithms: super::pem::provider().signature_verification_algorithms }
    }
}

impl ClientCertVerifier for ProofOfPossession {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// Empty: clients choose their certificate themselves, and no list needs an update when a CA is rotated.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    /// Checks only the length of the chain.
    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let length = 1 + intermediates.len();
        if length > MAX_CHAIN_LENGTH {
            return Err(CertificateError::Other(OtherError(Arc::new(ChainTooLong(length)))).into());
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
