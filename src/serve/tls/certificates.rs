//! The server's certificates and their replacement while it runs. A certificate and a key that do not match are not used: the
//! previous pair stays until the other half arrives.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use arc_swap::{ArcSwap, ArcSwapOption};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;

use super::peer::ProofOfPossession;
use super::pem::{self, PemError, VERSIONS};

/// How often certificate files are read again. The kubelet updates a mounted Secret about once a minute, and certificates
/// overlap by days: ten seconds is soon enough and costs two small reads.
pub const RECHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Bytes of a certificate or key file: 256 certificates of 4 KiB fit, a larger file is a mistake.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// The CA and leaf that all instances share. Debug output shows no key.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedPki {
    /// The CA bundle, PEM.
    pub ca_pem: String,
    /// The leaf and its chain, PEM; valid for the names of the Service and for the name of an instance.
    pub cert_pem: String,
    /// The leaf's private key, PEM.
    pub key_pem: String,
}

impl fmt::Debug for SharedPki {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedPki").field("cert_pem", &self.cert_pem).finish_non_exhaustive()
    }
}

/// The source of the certificate for API clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServingCertificate {
    /// The shared leaf.
    Shared,
    /// `--tls-cert-file` and `--tls-private-key-file`.
    Files {
        /// The chain, leaf first.
        certificate: PathBuf,
        /// Its private key.
        key: PathBuf,
        /// How often both are read again, [`RECHECK_INTERVAL`] outside tests.
        recheck_interval: Duration,
    },
}

/// A certificate that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("{path}: {source}; check --tls-cert-file and --tls-private-key-file")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The content cannot be used.
    #[error("{origin}: {source}")]
    Pem {
        /// Where the content is from.
        origin: &'static str,
        /// The cause.
        source: PemError,
    },
    /// TLS cannot be configured.
    #[error("TLS cannot be configured: {0}")]
    Config(#[from] rustls::Error),
}

/// The TLS configuration in force.
pub(crate) struct Certificates {
    instance_name: String,
    serving: ServingCertificate,
    config: ArcSwapOption<ServerConfig>,
    keys: ArcSwap<Keys>,
}

/// The certificates in use, with their keys.
#[derive(Debug, Clone, Default)]
struct Keys {
    /// For API clients.
    serving: Option<Arc<CertifiedKey>>,
    /// For other instances.
    shared: Option<Arc<CertifiedKey>>,
}

impl Certificates {
    /// `instance_name` is the server name by which instances call each other.
    pub(crate) fn new(instance_name: String, serving: ServingCertificate) -> Self {
        let keys = ArcSwap::from_pointee(Keys::default());
        Self { instance_name, serving, config: ArcSwapOption::empty(), keys }
    }

    /// The configuration for a new connection; `None` while there is no certificate.
    pub(crate) fn config(&self) -> Option<Arc<ServerConfig>> {
        self.config.load_full()
    }

    /// True when API clients can be served.
    pub(crate) fn is_ready(&self) -> bool {
        self.keys.load().serving.is_some()
    }

    /// What API clients are served, leaf first; empty while there is no certificate.
    pub(crate) fn served_chain(&self) -> Vec<CertificateDer<'static>> {
        self.keys.load().serving.as_ref().map(|key| key.cert.clone()).unwrap_or_default()
    }

    /// Applies every change, for ever.
    pub(crate) async fn follow(&self, mut shared: watch::Receiver<Option<SharedPki>>) {
        let recheck_interval = match &self.serving {
            ServingCertificate::Files { recheck_interval, .. } => *recheck_interval,
            ServingCertificate::Shared => Duration::MAX,
        };
        let mut is_open = true;
        let mut logged = None;
        loop {
            let newest = shared.borrow_and_update().clone();
            let error = self.refresh(newest.as_ref()).await.err().map(|error| error.to_string());
            // Logged once, not at every check: the other half of a pair may come much later.
            if let Some(error) = error.as_ref().filter(|_| error != logged) {
                tracing::warn!(error, "a certificate cannot be used; the previous one stays in use");
            }
            logged = error;
            tokio::select! {
                changed = shared.changed(), if is_open => is_open = changed.is_ok(),
                () = tokio::time::sleep(recheck_interval) => {}
            }
        }
    }

    /// Reads everything again and replaces what changed and is valid.
    pub(crate) async fn refresh(&self, shared: Option<&SharedPki>) -> Result<(), CertificateError> {
        let before = self.keys.load_full();
        let mut after = Keys::clone(&before);
        let outcome = self.load(&mut after, shared).await;
        if !is_same(before.serving.as_ref(), after.serving.as_ref())
            || !is_same(before.shared.as_ref(), after.shared.as_ref())
        {
            self.config.store(Some(Arc::new(self.server_config(after.clone())?)));
            self.keys.store(Arc::new(after));
            tracing::info!("new certificates are in use");
        }
        outcome
    }

    /// Puts valid certificates into `keys`, even when the others are not.
    async fn load(&self, keys: &mut Keys, shared: Option<&SharedPki>) -> Result<(), CertificateError> {
        let certified_key = |origin, cert: &[u8], key: &[u8]| {
            pem::certified_key(cert, key)
                .map(Arc::new)
                .map_err(|source| CertificateError::Pem { origin, source })
        };
        let from_shared =
            shared.map(|pki| certified_key("shared Secret", pki.cert_pem.as_bytes(), pki.key_pem.as_bytes()));
        if let Some(Ok(leaf)) = &from_shared {
            keys.shared = Some(leaf.clone());
        }
        match &self.serving {
            ServingCertificate::Shared => keys.serving.clone_from(&keys.shared),
            ServingCertificate::Files { certificate, key, .. } => {
                let read = async |path: &Path| {
                    read(path).await.map_err(|source| CertificateError::File { path: path.into(), source })
                };
                let certificate = read(certificate).await?;
                let key = read(key).await?;
                let origin = "--tls-cert-file, --tls-private-key-file";
                keys.serving = Some(certified_key(origin, &certificate, &key)?);
            }
        }
        from_shared.transpose().map(|_| ())
    }

    fn server_config(&self, keys: Keys) -> Result<ServerConfig, rustls::Error> {
        let resolver = SniResolver { instance_name: self.instance_name.clone(), keys };
        let mut config = ServerConfig::builder_with_provider(pem::provider())
            .with_protocol_versions(VERSIONS)?
            .with_client_cert_verifier(Arc::new(ProofOfPossession::new()))
            .with_cert_resolver(Arc::new(resolver));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn is_same(left: Option<&Arc<CertifiedKey>>, right: Option<&Arc<CertifiedKey>>) -> bool {
    left.map(|key| &key.cert) == right.map(|key| &key.cert)
}

/// The content of a certificate or key file.
pub(super) async fn read(path: &Path) -> io::Result<Vec<u8>> {
    let length = tokio::fs::metadata(path).await?.len();
    if length > MAX_FILE_BYTES {
        return Err(io::Error::other(format!(
            "the file has {length} bytes; at most {MAX_FILE_BYTES} are read"
        )));
    }
    tokio::fs::read(path).await
}

/// Selects by server name: other instances ask for the instance name and always get the shared leaf, which they can verify;
/// everybody else gets the serving certificate, whatever name they ask for.
#[derive(Debug)]
struct SniResolver {
    instance_name: String,
    keys: Keys,
}

impl ResolvesServerCert for SniResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let is_instance =
            hello.server_name().is_some_and(|name| name.eq_ignore_ascii_case(&self.instance_name));
        if is_instance { self.keys.shared.clone() } else { self.keys.serving.clone() }
    }
}
