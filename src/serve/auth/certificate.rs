//! What a client certificate proves: second check of two. The handshake showed that the peer has the key; this asks
//! which CA vouches for it. The front proxy's CA and the users' CA are asked apart: a user's certificate must never
//! speak for somebody else, and the proxy's never for itself. The length of a chain was bounded by the handshake.

use std::sync::Arc;
use std::time::Duration;

use moka::future::Cache;
use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, UnixTime};
use tokio::time::Instant;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate, X509Name};

use super::identity::User;
use super::trust::Trust;
use crate::serve::tls::pem::ClientCas;

/// How long a verified chain is believed: one signature check a minute instead of one a request. A certificate that
/// expires meanwhile is used at most this much longer.
const BELIEVED: Duration = Duration::from_secs(60);

/// Bytes of what is remembered. An API server's chain has 1 or 2 KiB, so that is a thousand of them; of the longest that
/// TLS carries, 64 KiB, it is 32.
const REMEMBERED: u64 = 4 * 1024 * 1024;

/// What a remembered chain weighs besides its bytes and its answer: the entry and its clocks.
const ENTRY: usize = 256;

/// A chain as the peer sent it, leaf first. Its connection keeps what it has proven: to look it up for each request, all of
/// it would be hashed.
#[derive(Debug, Default)]
pub struct Chain {
    certificates: Arc<[CertificateDer<'static>]>,
    pub(super) standing: Memo<Standing>,
    /// That it is an instance's.
    pub(crate) instance: Memo<bool>,
}

impl Chain {
    pub(crate) fn new(certificates: Arc<[CertificateDer<'static>]>) -> Self {
        Self { certificates, ..Self::default() }
    }

    /// True for a peer that showed no certificate.
    pub(crate) fn is_empty(&self) -> bool {
        self.certificates.is_empty()
    }
}

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

/// What was proven, when, and to which generation of what said so.
#[derive(Debug, Clone)]
struct Proof<V> {
    generation: u64,
    at: Instant,
    value: V,
}

/// The last proof of one chain.
#[derive(Debug)]
pub(crate) struct Memo<V>(Mutex<Option<Proof<V>>>);

impl<V> Default for Memo<V> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

/// Remembers what chains prove, yes and no alike, for each generation of what said so: who comes back with the same one is
/// not looked at anew.
pub(crate) struct Proven<V> {
    seen: Cache<(u64, Arc<[CertificateDer<'static>]>), Proof<V>>,
}

impl<V: Clone + Default + Send + Sync + 'static> Proven<V> {
    pub(crate) fn new() -> Self {
        let seen = Cache::builder()
            .weigher(|(_, chain): &(u64, Arc<[CertificateDer<'static>]>), _: &Proof<V>| weight(chain))
            .max_capacity(REMEMBERED)
            .time_to_live(BELIEVED)
            .build();
        Self { seen }
    }

    /// What `chain` proves as `prove` says, which is asked once; `memo` is the chain's. No chain proves nothing.
    pub(crate) async fn of(
        &self,
        generation: u64,
        chain: &Chain,
        memo: &Memo<V>,
        prove: impl FnOnce(&[CertificateDer<'static>]) -> V,
    ) -> V {
        if chain.is_empty() {
            return V::default();
        }
        let holds = |proof: &&Proof<V>| proof.generation == generation && proof.at.elapsed() < BELIEVED;
        if let Some(proof) = memo.0.lock().as_ref().filter(holds) {
            return proof.value.clone();
        }
        let key = (generation, chain.certificates.clone());
        let proof = match self.seen.get(&key).await {
            Some(known) => known,
            None => {
                let proof = Proof { generation, at: Instant::now(), value: prove(&chain.certificates) };
                self.seen.insert(key, proof.clone()).await;
                proof
            }
        };
        let value = proof.value.clone();
        *memo.0.lock() = Some(proof);
        value
    }
}

/// Its bytes twice: what it proves is text of its leaf.
fn weight(chain: &[CertificateDer<'static>]) -> u32 {
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
    use tokio::time::advance;

    use super::*;

    fn chain(leaf: Vec<u8>) -> Chain {
        Chain::new([CertificateDer::from(leaf)].into())
    }

    #[tokio::test]
    async fn what_is_remembered_is_bounded_in_bytes_whatever_a_chain_has() {
        let proven = Proven::new();
        for n in 0..100_u8 {
            assert_eq!(proven.of(1, &chain(vec![n; 64 * 1024]), &Memo::default(), |_| n).await, n);
        }
        proven.seen.run_pending_tasks().await;
        assert!((1..=32).contains(&proven.seen.entry_count()), "{}", proven.seen.entry_count());
        assert!(proven.seen.weighted_size() <= REMEMBERED);
    }

    #[tokio::test]
    async fn a_chain_is_looked_at_once_in_each_generation_whether_it_proves_something_or_not() {
        let proven = Proven::new();
        let (one, again) = (chain(vec![7]), chain(vec![7]));
        for answer in [false, true] {
            let generation = u64::from(answer);
            assert_eq!(proven.of(generation, &one, &one.instance, |_| answer).await, answer);
            for known in [&one, &again] {
                let remembered = proven.of(generation, known, &known.instance, |_| !answer).await;
                assert_eq!(remembered, answer, "remembered, on another connection too");
            }
        }
        let nobody = Chain::default();
        assert!(!proven.of(1, &nobody, &nobody.instance, |_| true).await, "no chain is nobody");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_does_not_believe_longer_than_all_do() {
        let (proven, chain, late) = (Proven::new(), chain(vec![7]), Memo::default());
        assert!(proven.of(1, &chain, &chain.instance, |_| true).await);
        advance(BELIEVED - Duration::from_secs(1)).await;
        assert!(proven.of(1, &chain, &late, |_| false).await, "known from another connection");
        advance(Duration::from_secs(1)).await;
        proven.seen.invalidate_all();
        assert!(!proven.of(1, &chain, &late, |_| false).await);
    }
}
