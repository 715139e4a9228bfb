//! What the handshake requires of a client certificate: only that the client owns its key. `auth` decides for each request
//! whom a certificate may speak for, so that an unknown certificate never fails a probe, and a rotated CA takes effect on
//! connections that are already open.

use std::sync::Arc;

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
