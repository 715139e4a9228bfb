//! What a client certificate proves: second check of two. The handshake showed that the peer has the key; this asks
//! which CA vouches for it. The front proxy's CA and the users' CA are asked apart: a user's certificate must never
//! speak for somebody else, and the proxy's never for itself. The length of a chain was bounded by the handshake.

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

/// Bytes of what is remembered. An API server's chain has 1 or 2 KiB, so that is a thousand of them; of the longest that
/// TLS carries, 64 KiB, it is 32.
const REMEMBERED: u64 = 4 * 1024 * 1024;

/// What a remembered chain weighs besides its bytes and its answer: the entry and its clocks.
const ENTRY: usize = 256;

/// What a chain proves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Standing {
    /// It belongs to the front proxy: its `X-Remote-*` headers are the caller's identity.
    pub(crate) front_proxy: bool,
    /// It belongs to this user.
    pub(crate) user: Option<User>,
}

impl Standing {
    /// What `chain` proves under `trust`.
    pub(crate) fn of(trust: &Trust, chain: &[CertificateDer<'static>]) -> Self {
        let subject = || Some(Subject::of(chain.first()?));
        let front_proxy = trust.front_proxy.as_ref().filter(|proxy| vouches(&proxy.verifier, chain));
        let front_proxy = front_proxy.is_some_and(|proxy| {
            let allowed = &proxy.allowed_names;
            allowed.is_empty()
                || subject().and_then(|s| s.common_name).is_some_and(|cn| allowed.contains(&cn))
        });
        let user = trust.users.as_ref().filter(|verifier| vouches(verifier, chain)).and_then(|_| {
            let Subject { common_name, organisations, .. } = subject()?;
            Some(User { groups: organisations, ..User::named(common_name.filter(|name| !name.is_empty())?) })
        });
        Self { front_proxy, user }
    }
}

/// Remembers what chains prove, yes and no alike, for each generation of what said so.
pub(crate) struct Proven<V> {
    seen: Cache<(u64, Chain), V>,
}

impl<V: Clone + Default + Send + Sync + 'static> Proven<V> {
    pub(crate) fn new() -> Self {
        let seen = Cache::builder()
            .weigher(|(_, chain): &(u64, Chain), _: &V| weight(chain))
            .max_capacity(REMEMBERED)
            .time_to_live(BELIEVED)
            .build();
        Self { seen }
    }

    /// What `chain` proves as `prove` says, which is asked once. No chain proves nothing.
    pub(crate) async fn of(&self, generation: u64, chain: &Chain, prove: impl FnOnce() -> V) -> V {
        if chain.is_empty() {
            return V::default();
        }
        let key = (generation, chain.clone());
        if let Some(known) = self.seen.get(&key).await {
            return known;
        }
        let proven = prove();
        self.seen.insert(key, proven.clone()).await;
        proven
    }
}

/// Its bytes twice: what it proves is text of its leaf.
fn weight(chain: &Chain) -> u32 {
    let bytes: usize = chain.iter().map(|certificate| certificate.len()).sum();
    u32::try_from(2 * bytes + ENTRY).unwrap_or(u32::MAX)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_remembered_is_bounded_in_bytes_whatever_a_chain_has() {
        let proven = Proven::new();
        for n in 0..100_u8 {
            let chain = Chain::from([CertificateDer::from(vec![n; 64 * 1024])]);
            assert_eq!(proven.of(1, &chain, || n).await, n);
        }
        proven.seen.run_pending_tasks().await;
        assert!((1..=32).contains(&proven.seen.entry_count()), "{}", proven.seen.entry_count());
        assert!(proven.seen.weighted_size() <= REMEMBERED);
    }

    #[tokio::test]
    async fn a_chain_is_looked_at_once_in_each_generation_whether_it_proves_something_or_not() {
        let proven = Proven::new();
        let chain = Chain::from([CertificateDer::from(vec![7])]);
        for answer in [false, true] {
            let generation = u64::from(answer);
            assert_eq!(proven.of(generation, &chain, || answer).await, answer);
            assert_eq!(proven.of(generation, &chain, || !answer).await, answer, "remembered");
        }
        assert!(!proven.of(1, &Chain::from([]), || true).await, "no chain is nobody");
    }
}
