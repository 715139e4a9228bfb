//! Recognises other instances by the shared certificate.

use std::sync::Arc;

use http::request::Parts;
use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, UnixTime};
use tokio::sync::watch;

use crate::serve::auth::{Subject, VerifiedChains, require_get};
use crate::serve::encoding::{Reason, Status};
use crate::serve::tls::pem::ClientCas;
use crate::serve::tls::{Peer, SharedPki};

/// Verifies the certificates of other instances.
pub(crate) struct InstanceVerifier {
    instance_name: String,
    pki: watch::Receiver<Option<SharedPki>>,
    authority: Mutex<Arc<Authority>>,
    verified: VerifiedChains<bool>,
}

/// One version of the CAs that instances share.
#[derive(Default)]
struct Authority {
    generation: u64,
    bundle: String,
    /// `None` when the bundle contains no usable CA.
    cas: Option<ClientCas>,
}

impl InstanceVerifier {
    pub(crate) fn new(instance_name: String, pki: watch::Receiver<Option<SharedPki>>) -> Self {
        Self { instance_name, pki, authority: Mutex::default(), verified: VerifiedChains::new() }
    }

    /// True when the shared CA issued the peer's certificate and the certificate has the exact name of an instance.
    pub(crate) async fn is_instance(&self, peer: &Peer) -> bool {
        let Some(authority) = self.authority() else { return false };
        let verify = |chain: &[CertificateDer<'static>]| self.has_issued(&authority, chain);
        self.verified.verify(authority.generation, &peer.chain, verify).await
    }

    /// Lets a GET of another instance pass.
    pub(crate) async fn authorize(&self, request: &Parts) -> Result<(), Status> {
        let is_instance = match request.extensions.get::<Peer>() {
            Some(peer) => self.is_instance(peer).await,
            None => false,
        };
        if !is_instance {
            let message = "forbidden: this path is only for instances of wva with the shared certificate";
            return Err(Status::new(Reason::Forbidden, message));
        }
        require_get(request)
    }

    /// The newest version of the CAs, each version parsed once.
    fn authority(&self) -> Option<Arc<Authority>> {
        let pki = self.pki.borrow();
        let bundle = &pki.as_ref()?.ca_pem;
        let mut authority = self.authority.lock();
        if authority.bundle != *bundle {
            let generation = authority.generation + 1;
            let cas = ClientCas::from_pem(bundle.as_bytes()).ok();
            *authority = Arc::new(Authority { generation, bundle: bundle.clone(), cas });
        }
        Some(authority.clone())
    }

    fn has_issued(&self, authority: &Authority, chain: &[CertificateDer<'static>]) -> bool {
        let Some(leaf) = chain.first() else { return false };
        let names = Subject::parse(leaf).dns_names;
        let has_name = names.iter().any(|name| name.eq_ignore_ascii_case(&self.instance_name));
        has_name && authority.cas.as_ref().is_some_and(|cas| cas.verify(chain, UnixTime::now()))
    }
}
