//! Recognises other servers of wva by their certificates: other instances of this installation, and the installation whose
//! forwarded reads are answered.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, UnixTime};
use tokio::sync::watch;

use crate::serve::auth::{Subject, VerifiedChains, require_get};
use crate::serve::encoding::{Reason, Status};
use crate::serve::tls::pem::ClientCas;
use crate::serve::tls::pem_file::PemFile;
use crate::serve::tls::{PeerChain, SharedPki};

/// Verifies chains by a bundle of CAs that may change, and by a name in the leaf.
struct NamedChains {
    /// A DNS name that the leaf must have.
    name: String,
    newest: Mutex<Arc<Cas>>,
    verified: VerifiedChains<bool>,
}

/// One version of the CAs.
#[derive(Default)]
struct Cas {
    generation: u64,
    bundle: String,
    /// `None` when the bundle contains no usable CA.
    cas: Option<ClientCas>,
}

impl NamedChains {
    fn new(name: String) -> Self {
        Self { name, newest: Mutex::default(), verified: VerifiedChains::new() }
    }

    /// True when a CA of `bundle` issued the chain and its leaf has the name.
    async fn verify(&self, bundle: &str, chain: &PeerChain) -> bool {
        let cas = self.cas(bundle);
        let verify = |chain: &[CertificateDer<'static>]| self.has_issued(&cas, chain);
        self.verified.verify(cas.generation, chain, verify).await
    }

    /// Each version of the CAs is parsed once.
    fn cas(&self, bundle: &str) -> Arc<Cas> {
        let mut newest = self.newest.lock();
        if newest.bundle != *bundle {
            let generation = newest.generation + 1;
            let cas = ClientCas::from_pem(bundle.as_bytes()).ok();
            *newest = Arc::new(Cas { generation, bundle: bundle.to_owned(), cas });
        }
        newest.clone()
    }

    fn has_issued(&self, cas: &Cas, chain: &[CertificateDer<'static>]) -> bool {
        let Some(leaf) = chain.first() else { return false };
        let dns_names = Subject::parse(leaf).dns_names;
        let has_name = dns_names.iter().any(|name| name.eq_ignore_ascii_case(&self.name));
        has_name && cas.cas.as_ref().is_some_and(|cas| cas.verify(chain, UnixTime::now()))
    }
}

/// The certificates of the peer of a request, if it has any.
fn peer_chain(request: &Parts) -> Option<&PeerChain> {
    request.extensions.get::<PeerChain>()
}

/// Verifies the certificates of other instances: the shared CA issued them, and they have the exact name of an instance.
pub(crate) struct InstanceVerifier {
    pki: watch::Receiver<Option<SharedPki>>,
    chains: NamedChains,
}

impl InstanceVerifier {
    pub(crate) fn new(instance_name: String, pki: watch::Receiver<Option<SharedPki>>) -> Self {
        Self { pki, chains: NamedChains::new(instance_name) }
    }

    /// True for the certificate of another instance.
    pub(crate) async fn is_instance(&self, chain: &PeerChain) -> bool {
        let bundle = self.pki.borrow().as_ref().map(|pki| pki.ca_pem.clone());
        match bundle {
            Some(bundle) => self.chains.verify(&bundle, chain).await,
            None => false,
        }
    }

    /// Lets a GET of another instance pass.
    pub(crate) async fn authorize(&self, request: &Parts) -> Result<(), Status> {
        let is_instance = match peer_chain(request) {
            Some(chain) => self.is_instance(chain).await,
            None => false,
        };
        if !is_instance {
            let message = "forbidden: this path is only for instances of wva with the shared certificate";
            return Err(Status::new(Reason::Forbidden, message));
        }
        require_get(request)
    }
}

/// Verifies the certificate of the installation that may forward reads here.
pub(crate) struct ForwarderVerifier {
    /// The file with its CA; `None` when no installation may.
    ca: Option<PemFile>,
    chains: NamedChains,
}

impl ForwarderVerifier {
    /// The file is read, and read again after each interval, by [`Self::follow`].
    pub(crate) fn new(accepted: Option<(PathBuf, String)>, recheck_interval: Duration) -> Self {
        let (file, name) = accepted.unzip();
        let ca = file.map(|file| PemFile::new(file, recheck_interval));
        Self { ca, chains: NamedChains::new(name.unwrap_or_default()) }
    }

    /// Reads the file with the CA for ever.
    pub(crate) async fn follow(&self) {
        if let Some(ca) = &self.ca {
            ca.follow().await;
        }
    }

    /// True for the certificate of that installation.
    pub(crate) async fn is_forwarder(&self, chain: &PeerChain) -> bool {
        match self.ca.as_ref().and_then(|ca| ca.text().ok()) {
            Some(bundle) => self.chains.verify(&bundle, chain).await,
            None => false,
        }
    }

    /// Lets a GET of that installation pass.
    pub(crate) async fn authorize(&self, request: &Parts) -> Result<(), Status> {
        let forbidden = |cause: &str| Err(Status::new(Reason::Forbidden, format!("forbidden: {cause}")));
        let Some(ca) = &self.ca else {
            return forbidden(
                "this installation answers no other one: set --forwarder-ca-file and --forwarder-name",
            );
        };
        if let Err(cause) = ca.text() {
            return forbidden(&format!(
                "the CA of the installation that may read here cannot be used: {cause}"
            ));
        }
        let is_forwarder = match peer_chain(request) {
            Some(chain) => self.is_forwarder(chain).await,
            None => false,
        };
        if !is_forwarder {
            return forbidden(
                "this path is only for the installation whose CA and name are in --forwarder-ca-file and --forwarder-name",
            );
        }
        require_get(request)
    }
}
