//! Parses PEM into certificates, keys and verifiers. Pure.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, version};
use x509_parser::prelude::{ASN1Time, FromDer, Validity, X509Certificate};

/// Certificates in one bundle: a rotation has two or three, more is a mistake or an attack.
const MAX_BUNDLE_LENGTH: usize = 256;

/// PEM that cannot be used. The message never quotes the text, which may be a key.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    #[error("the PEM text cannot be parsed: {0}")]
    Malformed(String),
    #[error("the PEM text contains no certificate; add at least one CERTIFICATE block")]
    NoCertificate,
    #[error("the PEM bundle has more than {MAX_BUNDLE_LENGTH} certificates")]
    TooMany,
    #[error("the certificate and the key cannot be used together: {0}")]
    Mismatch(rustls::Error),
    #[error("no certificate in the bundle can be used as a CA: none could be parsed")]
    NoCa,
}

/// The crypto provider that the whole program uses.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// The supported TLS versions, preferred first.
pub(crate) const VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];

/// The certificates of a bundle.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).take(MAX_BUNDLE_LENGTH + 1).collect();
    let parsed = parsed.map_err(|error| PemError::Malformed(error.to_string()))?;
    match parsed.len() {
        0 => Err(PemError::NoCertificate),
        count if count > MAX_BUNDLE_LENGTH => Err(PemError::TooMany),
        _ => Ok(parsed),
    }
}

/// A certificate chain with its key, which is checked to match.
pub(crate) fn certified_key(chain: &[u8], key: &[u8]) -> Result<CertifiedKey, PemError> {
    let chain = certificates(chain)?;
    CertifiedKey::from_der(chain, private_key(key)?, &provider()).map_err(PemError::Mismatch)
}

/// A private key.
pub(crate) fn private_key(key: &[u8]) -> Result<PrivateKeyDer<'static>, PemError> {
    PrivateKeyDer::from_pem_slice(key).map_err(|error| PemError::Malformed(error.to_string()))
}

/// The CAs of a bundle. Unusable ones are skipped.
pub(crate) fn roots(bundle: &[u8]) -> Result<RootCertStore, PemError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates(bundle)?);
    if roots.is_empty() { Err(PemError::NoCa) } else { Ok(roots) }
}

/// The CAs that may issue client certificates, each with its validity: the verifier checks the dates of a chain, but never
/// those of the CA itself.
#[derive(Debug)]
pub(crate) struct ClientCas(Vec<(Validity, Arc<dyn ClientCertVerifier>)>);

impl ClientCas {
    /// The CAs of a bundle. Unusable ones are skipped.
    pub(crate) fn from_pem(bundle: &[u8]) -> Result<Self, PemError> {
        let usable = certificates(bundle)?.into_iter().filter_map(|certificate| {
            let validity = X509Certificate::from_der(&certificate).ok()?.1.validity().clone();
            let mut root = RootCertStore::empty();
            root.add(certificate).ok()?;
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(root), provider()).build();
            Some((validity, verifier.ok()? as Arc<dyn ClientCertVerifier>))
        });
        let usable: Vec<_> = usable.collect();
        if usable.is_empty() { Err(PemError::NoCa) } else { Ok(Self(usable)) }
    }

    /// True when a CA that is valid `now` issued the chain, and the chain is valid and may be used by a client.
    pub(crate) fn verify(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> bool {
        let Some((leaf, intermediates)) = chain.split_first() else { return false };
        let now_asn1 = i64::try_from(now.as_secs()).ok().and_then(|secs| ASN1Time::from_timestamp(secs).ok());
        let Some(now_asn1) = now_asn1 else { return false };
        self.0.iter().filter(|(validity, _)| validity.is_valid_at(now_asn1)).any(|(_, ca)| {
            ca.verify_client_cert(leaf, intermediates, now)
                .inspect_err(|error| tracing::debug!(%error, "this CA did not issue the client certificate"))
                .is_ok()
        })
    }
}
