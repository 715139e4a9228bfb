//! The identity that a client certificate proves. The handshake has shown that the peer owns the key; here the chain is verified
//! against the cluster's CAs. The front proxy's CA and the users' CA are kept apart: a user's certificate must never speak for
//! another user, and the proxy's certificate never for itself. The handshake has limited the length of the chain.

use std::time::Duration;

use moka::future::Cache;
use rustls::pki_types::{CertificateDer, UnixTime};
use tokio::time::Instant;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate, X509Name};

use super::reviewer::User;
use super::trust::Trust;
use crate::serve::tls::PeerChain;

/// How long a verified chain stays verified: one signature check a minute instead of one per request. A certificate that
/// expires meanwhile is accepted for at most this much longer.
const VERIFICATION_TTL: Duration = Duration::from_secs(60);

/// Bytes of the cache. An API server's chain has 1 or 2 KiB, so that about a thousand fit; of the longest chains that TLS
/// carries, 64 KiB, it is 32.
const CACHE_BYTES: u64 = 4 * 1024 * 1024;

/// Bytes of a cache entry besides its chain and its result.
const ENTRY_BYTES: usize = 256;

/// What a chain proves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct CertificateIdentity {
    /// It belongs to the front proxy, whose `X-Remote-*` headers name the caller.
    pub(crate) is_front_proxy: bool,
    /// It belongs to this user.
    pub(crate) user: Option<User>,
}

impl CertificateIdentity {
    /// Verifies `chain` against the CAs of `trust`.
    pub(crate) fn verify(trust: &Trust, chain: &[CertificateDer<'static>]) -> Self {
        let now = UnixTime::now();
        let subject = || Some(Subject::parse(chain.first()?));
        let front_proxy = trust.front_proxy.as_ref().filter(|proxy| proxy.verifier.verify(chain, now));
        let is_front_proxy = front_proxy.is_some_and(|proxy| {
            let allowed = &proxy.allowed_names;
            let common_name = || subject().and_then(|subject| subject.common_name);
            allowed.is_empty() || common_name().is_some_and(|name| allowed.contains(&name))
        });
        let user = trust.users.as_ref().filter(|cas| cas.verify(chain, now)).and_then(|_| {
            let Subject { common_name, organisations, .. } = subject()?;
            Some(User { groups: organisations, ..User::named(common_name.filter(|name| !name.is_empty())?) })
        });
        Self { is_front_proxy, user }
    }
}

/// Results of verifying chains, positive and negative, for each generation of the CAs. A peer that returns with the same
/// chain is not verified again.
pub(crate) struct VerifiedChains<V> {
    results: Cache<(u64, PeerChain), Verified<V>>,
}

/// The result of verifying one chain.
#[derive(Debug, Clone)]
struct Verified<V> {
    at: Instant,
    value: V,
}

impl<V: Clone + Default + Send + Sync + 'static> VerifiedChains<V> {
    pub(crate) fn new() -> Self {
        let results = Cache::builder()
            .weigher(|(_, chain): &(u64, PeerChain), _: &Verified<V>| entry_bytes(chain))
            .max_capacity(CACHE_BYTES)
            .time_to_live(VERIFICATION_TTL)
            .build();
        Self { results }
    }

    /// The result of `verify` for `chain` under this `generation` of the CAs, which is called only when no result is cached. An
    /// empty chain proves nothing.
    pub(crate) async fn verify(
        &self,
        generation: u64,
        chain: &PeerChain,
        verify: impl FnOnce(&[CertificateDer<'static>]) -> V,
    ) -> V {
        if chain.is_empty() {
            return V::default();
        }
        let key = (generation, chain.clone());
        let cached = self.results.get(&key).await;
        if let Some(verified) = cached.filter(|verified| verified.at.elapsed() < VERIFICATION_TTL) {
            return verified.value;
        }
        let value = verify(chain.certificates());
        self.results.insert(key, Verified { at: Instant::now(), value: value.clone() }).await;
        value
    }
}

/// The chain counts twice: what it proves is text of its leaf.
fn entry_bytes(chain: &PeerChain) -> u32 {
    let bytes: usize = chain.certificates().iter().map(|certificate| certificate.len()).sum();
    u32::try_from(2 * bytes + ENTRY_BYTES).unwrap_or(u32::MAX)
}

/// The names in a certificate.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) common_name: Option<String>,
    pub(crate) organisations: Vec<String>,
    pub(crate) dns_names: Vec<String>,
}

impl Subject {
    /// The names in `certificate`; none when it cannot be parsed.
    pub(crate) fn parse(certificate: &CertificateDer<'_>) -> Self {
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

/// The last common name, as Go reads it.
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

    fn chain(leaf: Vec<u8>) -> PeerChain {
        PeerChain::new([CertificateDer::from(leaf)].into())
    }

    #[tokio::test]
    async fn the_cache_is_bounded_in_bytes_whatever_the_chains_have() {
        let chains = VerifiedChains::new();
        for n in 0..100_u8 {
            assert_eq!(chains.verify(1, &chain(vec![n; 64 * 1024]), |_| n).await, n);
        }
        chains.results.run_pending_tasks().await;
        assert!((1..=32).contains(&chains.results.entry_count()), "{}", chains.results.entry_count());
        assert!(chains.results.weighted_size() <= CACHE_BYTES);
    }

    #[tokio::test]
    async fn a_chain_is_verified_once_in_each_generation_whatever_the_result() {
        let chains = VerifiedChains::new();
        let first = chain(vec![7]);
        let second = chain(vec![7]);
        for answer in [false, true] {
            let generation = u64::from(answer);
            assert_eq!(chains.verify(generation, &first, |_| answer).await, answer);
            for connection in [&first, &second] {
                let cached = chains.verify(generation, connection, |_| !answer).await;
                assert_eq!(cached, answer, "cached, on another connection too");
            }
        }
        assert!(!chains.verify(1, &PeerChain::default(), |_| true).await, "an empty chain proves nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn a_result_is_not_used_longer_on_any_connection() {
        let chains = VerifiedChains::new();
        assert!(chains.verify(1, &chain(vec![7]), |_| true).await);
        advance(VERIFICATION_TTL - Duration::from_secs(1)).await;
        let late = chain(vec![7]);
        assert!(chains.verify(1, &late, |_| false).await, "known from another connection");
        advance(Duration::from_secs(1)).await;
        assert!(!chains.verify(1, &late, |_| false).await);
    }
}
