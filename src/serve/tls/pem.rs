//! PEM text to certificates, keys and verifiers. Pure.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, version};
use x509_parser::prelude::{ASN1Time, FromDer, Validity, X509Certificate};

/// The most certificates read from one bundle: a rotation has two or three, more is a mistake or an attack.
const MAX_BUNDLE: usize = 256;

/// PEM that cannot be used. Never quotes the text: it may be a key.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// Not PEM.
    #[error("the PEM text is damaged: {0}")]
    Damaged(String),
    /// Nothing in it.
    #[error("the PEM text has no certificate; give at least one CERTIFICATE block")]
    NoCertificate,
    /// Too much in it.
    #[error("the PEM bundle has more than {MAX_BUNDLE} certificates")]
    TooMany,
    /// Certificate and key are of different pairs, or of an unknown kind.
    #[error("certificate and key cannot be used together: {0}")]
    Mismatch(rustls::Error),
    /// The CA cannot be used to verify.
    #[error("no certificate in the bundle can be used as a CA: {0}")]
    Unusable(String),
}

/// The one crypto provider of the program.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// The TLS versions spoken, best first.
pub(crate) const VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];

/// The certificates of a bundle.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).take(MAX_BUNDLE + 1).collect();
    let read = read.map_err(|error| PemError::Damaged(error.to_string()))?;
    match read.len() {
        0 => Err(PemError::NoCertificate),
        count if count > MAX_BUNDLE => Err(PemError::TooMany),
        _ => Ok(read),
    }
}

/// A chain with its key, checked to belong together.
pub(crate) fn pair(chain: &[u8], key: &[u8]) -> Result<CertifiedKey, PemError> {
    let chain = certificates(chain)?;
    CertifiedKey::from_der(chain, private_key(key)?, &provider()).map_err(PemError::Mismatch)
}

/// A private key.
pub(crate) fn private_key(key: &[u8]) -> Result<PrivateKeyDer<'static>, PemError> {
    PrivateKeyDer::from_pem_slice(key).map_err(|error| PemError::Damaged(error.to_string()))
}

/// The CAs of a bundle. One that cannot be used does not spoil the others.
pub(crate) fn roots(bundle: &[u8]) -> Result<RootCertStore, PemError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates(bundle)?);
    if roots.is_empty() { Err(PemError::Unusable("none could be parsed".into())) } else { Ok(roots) }
}

/// The CAs that may vouch for a client, each with the time it is valid for: a verifier looks at a chain's dates, never
/// at those of the CA itself.
#[derive(Debug)]
pub(crate) struct ClientCas(Vec<(Validity, Arc<dyn ClientCertVerifier>)>);

impl ClientCas {
    /// Those of a bundle. One that cannot be used does not spoil the others.
    pub(crate) fn of(bundle: &[u8]) -> Result<Self, PemError> {
        let usable = certificates(bundle)?.into_iter().filter_map(|certificate| {
            let validity = X509Certificate::from_der(&certificate).ok()?.1.validity().clone();
            let mut root = RootCertStore::empty();
            root.add(certificate).ok()?;
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(root), provider()).build();
            Some((validity, verifier.ok()? as Arc<dyn ClientCertVerifier>))
        });
        let usable: Vec<_> = usable.collect();
        if usable.is_empty() {
            Err(PemError::Unusable("none could be parsed".into()))
        } else {
            Ok(Self(usable))
        }
    }

    /// True when one of them, valid `now`, issued the chain, and the chain is valid and may be used by a client.
    pub(crate) fn vouch(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> bool {
        let Some((leaf, intermediates)) = chain.split_first() else { return false };
        let seconds = i64::try_from(now.as_secs()).ok().and_then(|s| ASN1Time::from_timestamp(s).ok());
        let Some(at) = seconds else { return false };
        self.0.iter().filter(|(validity, _)| validity.is_valid_at(at)).any(|(_, ca)| {
            ca.verify_client_cert(leaf, intermediates, now)
                .inspect_err(|error| tracing::debug!(%error, "a client certificate is not of this CA"))
                .is_ok()
        })
    }
}
