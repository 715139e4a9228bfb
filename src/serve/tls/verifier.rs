//! What the handshake asks of a client certificate: only that the client has its key. Who a certificate may speak for
//! is decided for each request by `auth`, so that a foreign certificate never stops a probe, and a changed CA works on
//! connections that are already open.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};

/// Certificates in a chain, leaf first. Clusters show one or two; the search for a way from a leaf to a CA grows faster
/// than what a stranger sends for it, and is begun for nobody who sends more.
const MAX_CHAIN: usize = 5;

/// A chain that nobody looks at.
#[derive(Debug, thiserror::Error)]
#[error("{0} certificates are shown; a chain has at most {MAX_CHAIN}")]
struct TooLong(usize);

/// Asks for a certificate, requires none, trusts none.
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

    /// Empty: clients choose what they show, and the list needs no update when a CA changes.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    /// Looks at the length alone.
    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let shown = 1 + intermediates.len();
        if shown > MAX_CHAIN {
            return Err(CertificateError::Other(OtherError(Arc::new(TooLong(shown)))).into());
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
