//! What a client certificate proves: second check of two. The handshake showed that the peer has the key; this asks
//! which CA vouches for it. The front proxy's CA and the users' CA are asked apart: a user's certificate must never
//! speak for somebody else, and the proxy's never for itself.

use std::sync::Arc;
use std::time::Duration;

use moka::future::Cache;
use rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate, X509Name};

use super::identity::User;
use super::trust::Trust;
use crate::serve::tls::pem::ClientCas;

/// A chain as the peer sent it, leaf first.
pub(crate) type Chain = Arc<[CertificateDer<'static>]>;

/// How long a verified chain is believed: one signature check a minute instead of one a request. A certificate that
/// expires meanwhile is used at most this much longer.
const BELIEVED: Duration = Duration::from_secs(60);

/// Chains remembered. An API server has one; 1,024 × 4 KiB is 4 MiB.
const REMEMBERED: u64 = 1_024;

/// What a chain proves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Standing {
    /// It belongs to the front proxy: its `X-Remote-*` headers are the caller's identity.
    pub(crate) front_proxy: bool,
    /// It belongs to this user.
    pub(crate) user: Option<User>,
}

/// Remembers what chains prove, for each generation of the trust that said so.
#[derive(Debug, Clone)]
pub(crate) struct Standings {
    seen: Cache<(u64, Chain), Standing>,
}

impl Standings {
    pub(crate) fn new() -> Self {
        Self { seen: Cache::builder().max_capacity(REMEMBERED).time_to_live(BELIEVED).build() }
    }

    /// What `chain` proves under `trust`.
    pub(crate) async fn of(&self, generation: u64, trust: &Trust, chain: &Chain) -> Standing {
        if chain.is_empty() {
            return Standing::default();
        }
        let key = (generation, chain.clone());
        if let Some(standing) = self.seen.get(&key).await {
            return standing;
        }
        let standing = standing(trust, chain);
        self.seen.insert(key, standing.clone()).await;
        standing
    }
}

fn standing(trust: &Trust, chain: &[CertificateDer<'static>]) -> Standing {
    let subject = || Some(Subject::of(chain.first()?));
    let front_proxy = trust.front_proxy.as_ref().filter(|proxy| vouches(&proxy.verifier, chain));
    let front_proxy = front_proxy.is_some_and(|proxy| {
        let allowed = &proxy.allowed_names;
        allowed.is_empty() || subject().and_then(|s| s.common_name).is_some_and(|cn| allowed.contains(&cn))
    });
    let user = trust.users.as_ref().filter(|verifier| vouches(verifier, chain)).and_then(|_| {
        let Subject { common_name, organisations, .. } = subject()?;
        Some(User { groups: organisations, ..User::named(common_name.filter(|name| !name.is_empty())?) })
    });
    Standing { front_proxy, user }
}

/// True when one of the CAs issued the chain, both are valid now, and it may be used by a client.
pub(crate) fn vouches(cas: &ClientCas, chain: &[CertificateDer<'static>]) -> bool {
    cas.vouch(chain, UnixTime::now())
}

/// The names in a certificate.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) common_name: Option<String>,
    pub(crate) organisations: Vec<String>,
    pub(crate) dns_names: Vec<String>,
}

impl Subject {
    /// Reads the names; none when the certificate cannot be parsed.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Self {
        let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Self::default() };
        let alternatives = certificate.subject_alternative_name().ok().flatten();
        let dns_names = alternatives.iter().flat_map(|names| &names.value.general_names).filter_map(|name| {
            if let GeneralName::DNSName(name) = name { Some((*name).to_owned()) } else { None }
        });
        Self {
            common_name: common_name(certificate.subject()),
            organisations: organisations(certificate.subject()),
            dns_names: dns_names.collect(),
        }
    }
}

/// The last one, as Go reads it.
fn common_name(name: &X509Name<'_>) -> Option<String> {
    name.iter_common_name().filter_map(|part| part.as_str().ok()).last().map(str::to_owned)
}

fn organisations(name: &X509Name<'_>) -> Vec<String> {
    name.iter_organization().filter_map(|part| part.as_str().ok()).map(str::to_owned).collect()
}
