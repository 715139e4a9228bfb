//! Which certificate is shown to whom, and the swap when one changes. A pair that does not fit together is not used:
//! the one before stays until its other half arrives.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;

use super::pem::{self, PemError, VERSIONS};
use super::verifier::ProofOfPossession;

/// How often certificate files are read again. The kubelet renews a mounted Secret about once a minute, and
/// certificates overlap by days: ten seconds is soon enough and costs two small reads.
pub const RECHECK: Duration = Duration::from_secs(10);

/// A certificate or key file larger than this is a mistake: 256 certificates of 4 KiB fit.
const MAX_FILE: u64 = 1024 * 1024;

/// The CA and leaf that all instances share. Debug output shows no key.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedPki {
    /// The CA bundle, PEM.
    pub ca_pem: String,
    /// The leaf and its chain, PEM; valid for the Service's names and for the name of an instance.
    pub cert_pem: String,
    /// The leaf's private key, PEM.
    pub key_pem: String,
}

impl fmt::Debug for SharedPki {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedPki").field("cert_pem", &self.cert_pem).finish_non_exhaustive()
    }
}

/// Where the certificate for API clients comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Serving {
    /// It is the shared leaf.
    Shared,
    /// `--tls-cert-file` and `--tls-private-key-file`.
    Files {
        /// The chain, leaf first.
        certificate: PathBuf,
        /// Its private key.
        key: PathBuf,
        /// How often both are read again: [`RECHECK`].
        recheck: Duration,
    },
}

/// A certificate that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The file cannot be read.
    #[error("{path}: {source}; check --tls-cert-file and --tls-private-key-file")]
    File {
        /// Which file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The content cannot be used.
    #[error("{origin}: {source}")]
    Pem {
        /// Where it is from.
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
    serving: Serving,
    config: ArcSwapOption<ServerConfig>,
    shown: ArcSwap<Shown>,
}

/// The certificates in use: what for API clients, what for other instances.
#[derive(Debug, Clone, Default)]
struct Shown {
    serving: Option<Arc<CertifiedKey>>,
    shared: Option<Arc<CertifiedKey>>,
}

impl Certificates {
    /// `instance_name` is the server name by which instances call each other.
    pub(crate) fn new(instance_name: String, serving: Serving) -> Self {
        let (config, shown) = (ArcSwapOption::empty(), ArcSwap::from_pointee(Shown::default()));
        Self { instance_name, serving, config, shown }
    }

    /// The configuration for a new connection; `None` while there is no certificate at all.
    pub(crate) fn config(&self) -> Option<Arc<ServerConfig>> {
        self.config.load_full()
    }

    /// True when API clients can be served.
    pub(crate) fn ready(&self) -> bool {
        self.shown.load().serving.is_some()
    }

    /// Takes every change into use, for ever.
    pub(crate) async fn follow(&self, mut shared: watch::Receiver<Option<SharedPki>>) {
        let recheck = match &self.serving {
            Serving::Files { recheck, .. } => *recheck,
            Serving::Shared => Duration::MAX,
        };
        let (mut open, mut told) = (true, None);
        loop {
            let newest = shared.borrow_and_update().clone();
            let error = self.refresh(newest.as_ref()).await.err().map(|error| error.to_string());
            // Once, not at every look: the other half of a pair may be long in coming.
            if let Some(error) = error.as_ref().filter(|_| error != told) {
                tracing::warn!(error, "a certificate is not used; the one before stays");
            }
            told = error;
            tokio::select! {
                changed = shared.changed(), if open => open = changed.is_ok(),
                () = tokio::time::sleep(recheck) => {}
            }
        }
    }

    /// Reads everything again and swaps what changed and fits.
    pub(crate) async fn refresh(&self, shared: Option<&SharedPki>) -> Result<(), CertificateError> {
        let before = self.shown.load_full();
        let mut after = Shown::clone(&before);
        let outcome = self.load(&mut after, shared).await;
        if !same(before.serving.as_ref(), after.serving.as_ref())
            || !same(before.shared.as_ref(), after.shared.as_ref())
        {
            self.config.store(Some(Arc::new(self.server_config(after.clone())?)));
            self.shown.store(Arc::new(after));
            tracing::info!("new certificates are in use");
        }
        outcome
    }

    /// What fits is put into `shown` even when the other half fails.
    async fn load(&self, shown: &mut Shown, shared: Option<&SharedPki>) -> Result<(), CertificateError> {
        let pair = |origin, cert: &[u8], key: &[u8]| {
            pem::pair(cert, key).map(Arc::new).map_err(|source| CertificateError::Pem { origin, source })
        };
        let from_shared =
            shared.map(|pki| pair("shared Secret", pki.cert_pem.as_bytes(), pki.key_pem.as_bytes()));
        if let Some(Ok(leaf)) = &from_shared {
            shown.shared = Some(leaf.clone());
        }
        match &self.serving {
            Serving::Shared => shown.serving.clone_from(&shown.shared),
            Serving::Files { certificate, key, .. } => {
                let (cert, key) = (read(certificate).await?, read(key).await?);
                shown.serving = Some(pair("--tls-cert-file, --tls-private-key-file", &cert, &key)?);
            }
        }
        from_shared.transpose().map(|_| ())
    }

    fn server_config(&self, shown: Shown) -> Result<ServerConfig, rustls::Error> {
        let resolver = BySni { instance_name: self.instance_name.clone(), shown };
        let mut config = ServerConfig::builder_with_provider(pem::provider())
            .with_protocol_versions(VERSIONS)?
            .with_client_cert_verifier(Arc::new(ProofOfPossession::new()))
            .with_cert_resolver(Arc::new(resolver));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn same(a: Option<&Arc<CertifiedKey>>, b: Option<&Arc<CertifiedKey>>) -> bool {
    a.map(|key| &key.cert) == b.map(|key| &key.cert)
}

async fn read(path: &Path) -> Result<Vec<u8>, CertificateError> {
    let failed = |source| CertificateError::File { path: path.into(), source };
    let length = tokio::fs::metadata(path).await.map_err(failed)?.len();
    if length > MAX_FILE {
        return Err(failed(io::Error::other(format!("{length} bytes are too many for PEM"))));
    }
    tokio::fs::read(path).await.map_err(failed)
}

/// Other instances ask for the instance name and always get the shared leaf, which they can verify; everybody else
/// gets the serving certificate, whatever name they ask for.
#[derive(Debug)]
struct BySni {
    instance_name: String,
    shown: Shown,
}

impl ResolvesServerCert for BySni {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let internal = hello.server_name().is_some_and(|name| name.eq_ignore_ascii_case(&self.instance_name));
        if internal { self.shown.shared.clone() } else { self.shown.serving.clone() }
    }
}
