//! A limit of connections that is shared fairly among source addresses. When it is reached, the source with the most
//! connections loses its oldest. Many connections from one address therefore cost that address and no other, and its idle
//! connections do not keep out its next one, which may be the kubelet's probe.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// The network half of an IPv6 address: a single host may own every address of its /64 network.
const IPV6_NETWORK_MASK: u128 = !0 << 64;

/// The limit for one kind of connections.
#[derive(Debug)]
pub(crate) struct ConnectionQuota {
    limit: usize,
    holders: Mutex<Holders>,
}

/// Who holds permits, in the order of their numbers, which is the order of their beginning.
#[derive(Debug, Default)]
struct Holders {
    issued: u64,
    by_number: BTreeMap<u64, Holder>,
}

#[derive(Debug)]
struct Holder {
    source: IpAddr,
    displaced: CancellationToken,
}

/// One permit, returned when it is dropped.
pub(crate) struct QuotaPermit<'a> {
    quota: &'a ConnectionQuota,
    number: u64,
    displaced: CancellationToken,
}

impl ConnectionQuota {
    /// At most `limit` permits, at least one.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), holders: Mutex::default() }
    }

    /// A permit in any case: at the limit, the oldest holder of the source with the most is displaced. For short work, of
    /// which the oldest is most likely the one that never ends.
    pub(crate) fn acquire_displacing(&self, peer: IpAddr) -> QuotaPermit<'_> {
        let mut holders = self.holders.lock();
        if holders.by_number.len() >= self.limit {
            holders.displace_largest_source(source(peer), 0);
        }
        self.issue(&mut holders, source(peer))
    }

    /// A permit if one is free. Otherwise the oldest holder of the largest source is displaced, if that source has more than
    /// the peer's would have, or else the oldest holder of the peer's own source. `None` for a source without a permit when
    /// no source has two.
    pub(crate) fn acquire(&self, peer: IpAddr) -> Option<QuotaPermit<'_>> {
        let source = source(peer);
        let mut holders = self.holders.lock();
        if holders.by_number.len() >= self.limit {
            let own_permits = holders.by_number.values().filter(|holder| holder.source == source).count();
            // With the new permit this source has `own_permits + 1`: only a source with more than that must give way.
            let has_room = holders.displace_largest_source(source, own_permits + 2)
                || holders.displace_oldest_of(source);
            has_room.then_some(())?;
        }
        Some(self.issue(&mut holders, source))
    }

    fn issue(&self, holders: &mut Holders, source: IpAddr) -> QuotaPermit<'_> {
        holders.issued += 1;
        let number = holders.issued;
        let displaced = CancellationToken::new();
        holders.by_number.insert(number, Holder { source, displaced: displaced.clone() });
        QuotaPermit { quota: self, number, displaced }
    }
}

impl Holders {
    /// Displaces the oldest holder of the source with the most permits, counting the one that `newcomer` asks for, if that
    /// source has at least `min_permits`.
    fn displace_largest_source(&mut self, newcomer: IpAddr, min_permits: usize) -> bool {
        let mut counts = HashMap::from([(newcomer, 1)]);
        for holder in self.by_number.values() {
            *counts.entry(holder.source).or_insert(0) += 1;
        }
        let count = |holder: &Holder| counts.get(&holder.source).copied().unwrap_or_default();
        // `max_by_key` returns the last of equals: reversed, the oldest.
        let largest = self.by_number.iter().rev().max_by_key(|(_, holder)| count(holder));
        let oldest = largest.filter(|(_, holder)| count(holder) >= min_permits).map(|(&number, _)| number);
        self.displace(oldest)
    }

    /// Displaces the oldest holder of `source`, if it has one.
    fn displace_oldest_of(&mut self, source: IpAddr) -> bool {
        let oldest = self.by_number.iter().find(|(_, holder)| holder.source == source);
        let oldest = oldest.map(|(&number, _)| number);
        self.displace(oldest)
    }

    fn displace(&mut self, number: Option<u64>) -> bool {
        let holder = number.and_then(|number| self.by_number.remove(&number));
        holder.is_some_and(|holder| {
            holder.displaced.cancel();
            true
        })
    }
}

impl QuotaPermit<'_> {
    /// The result of `work`; `None` when the permit was given to another connection first.
    pub(crate) async fn unless_displaced<F: Future>(&self, work: F) -> Option<F::Output> {
        self.displaced.run_until_cancelled(work).await
    }

    /// Waits until the permit is given to another connection.
    pub(crate) async fn displaced(&self) {
        self.displaced.cancelled().await;
    }
}

impl Drop for QuotaPermit<'_> {
    fn drop(&mut self) {
        self.quota.holders.lock().by_number.remove(&self.number);
    }
}

/// What counts as one source: an IPv4 address, or the /64 network of an IPv6 address.
fn source(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & IPV6_NETWORK_MASK).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn the_oldest_is_displaced_and_the_newest_goes_on() {
        let quota = ConnectionQuota::new(2);
        let address = ip("10.0.0.1");
        let first = quota.acquire_displacing(address);
        let second = quota.acquire_displacing(address);
        let third = quota.acquire_displacing(address);
        assert_eq!(first.unless_displaced(pending::<()>()).await, None);
        assert_eq!(second.unless_displaced(ready(2)).await, Some(2));
        drop(second);
        let fourth = quota.acquire_displacing(address);
        assert_eq!(third.unless_displaced(ready(3)).await, Some(3), "there was a place again");
        assert_eq!(fourth.unless_displaced(ready(4)).await, Some(4));
        drop((first, third, fourth));
        assert!(quota.holders.lock().by_number.is_empty());
    }

    #[tokio::test]
    async fn the_source_with_the_most_permits_is_displaced() {
        let quota = ConnectionQuota::new(4);
        let slow = quota.acquire_displacing(ip("10.0.0.1"));
        let flood: Vec<_> = (0..100).map(|_| quota.acquire_displacing(ip("10.0.0.2"))).collect();
        assert_eq!(slow.unless_displaced(ready(())).await, Some(()));
        let left = flood.iter().filter(|permit| !permit.displaced.is_cancelled()).count();
        assert_eq!(left, 3);
    }

    #[test]
    fn a_newcomer_displaces_a_larger_source_or_its_own_never_an_equal_one() {
        let quota = ConnectionQuota::new(4);
        let displaced = |permits: &[QuotaPermit<'_>]| -> Vec<_> {
            permits.iter().map(|permit| permit.displaced.is_cancelled()).collect()
        };
        let crowd: Vec<_> = (0..5).map(|_| quota.acquire(ip("10.0.0.2")).unwrap()).collect();
        assert_eq!(displaced(&crowd), [true, false, false, false, false], "the fifth has the first one's");
        let others: Vec<_> = (0..3).map(|_| quota.acquire(ip("10.0.0.1")).unwrap()).collect();
        assert_eq!(displaced(&crowd), [true, true, true, false, false], "the oldest went");
        assert_eq!(displaced(&others), [true, false, false], "two and two are fair: the third costs its own");
        let third = quota.acquire(ip("10.0.0.3")).expect("a third source finds room");
        let fourth = quota.acquire(ip("10.0.0.4")).expect("and a fourth");
        assert!(quota.acquire(ip("10.0.0.5")).is_none(), "one each is fair");
        assert!(quota.acquire(ip("10.0.0.4")).is_some() && fourth.displaced.is_cancelled());
        drop((third, fourth, others));
    }

    #[test]
    fn an_ipv6_network_is_one_source_and_a_mapped_address_is_its_ipv4() {
        assert_eq!(source(ip("2001:db8::1")), source(ip("2001:db8::ffff:1:2:3")));
        assert_ne!(source(ip("2001:db8::1")), source(ip("2001:db8:0:1::1")));
        assert_eq!(source(ip("::ffff:10.0.0.1")), ip("10.0.0.1"));
        assert_ne!(source(ip("10.0.0.1")), source(ip("10.0.0.2")));
    }
}
