//! Places that peers share fairly. When all are taken, room is made where most of it went: the source with the most
//! places loses its oldest. Many connections from one address so cost that address, not the others; and those that it
//! keeps idle don't keep its next one out, which may be the kubelet's probe.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Half of an IPv6 address names the host within its network, and one host may have all of them.
const NETWORK: u128 = !0 << 64;

/// The places of one kind of peers.
#[derive(Debug)]
pub(crate) struct Shares {
    most: usize,
    taken: Mutex<Taken>,
}

/// By the order in which they were taken.
#[derive(Debug, Default)]
struct Taken {
    begun: u64,
    places: BTreeMap<u64, Taker>,
}

#[derive(Debug)]
struct Taker {
    source: IpAddr,
    displaced: CancellationToken,
}

/// One place; dropping it gives it back.
pub(crate) struct Place<'a> {
    all: &'a Shares,
    number: u64,
    displaced: CancellationToken,
}

impl Shares {
    /// At most `most` at once; at least one.
    pub(crate) fn new(most: usize) -> Self {
        Self { most: most.max(1), taken: Mutex::default() }
    }

    /// A place in any case: when all are taken, the oldest of the source with the most gives way. For what needs a
    /// moment only, so that the one who waits longest is the one who doesn't mean it.
    pub(crate) fn push(&self, peer: IpAddr) -> Place<'_> {
        let mut taken = self.taken.lock();
        if taken.places.len() >= self.most {
            taken.displace_of_the_richest(source(peer), 0);
        }
        self.take(&mut taken, source(peer))
    }

    /// A place, if there is one. Else the oldest of the richest source gives way, if that has more than the peer's will
    /// have, or the oldest of the peer's own. None for a source that has none where nobody has two.
    pub(crate) fn claim(&self, peer: IpAddr) -> Option<Place<'_>> {
        let (mut taken, source) = (self.taken.lock(), source(peer));
        if taken.places.len() >= self.most {
            let own = taken.places.values().filter(|taker| taker.source == source).count();
            // Richer than this source will be with the new place: none is taken from its equals.
            let is_room = taken.displace_of_the_richest(source, own + 2) || taken.displace_of(source);
            is_room.then_some(())?;
        }
        Some(self.take(&mut taken, source))
    }

    fn take(&self, taken: &mut Taken, source: IpAddr) -> Place<'_> {
        taken.begun += 1;
        let (number, displaced) = (taken.begun, CancellationToken::new());
        taken.places.insert(number, Taker { source, displaced: displaced.clone() });
        Place { all: self, number, displaced }
    }
}

impl Taken {
    /// Takes the oldest place of the source that has the most with the one that `newcomer` asks for, if it has `least`.
    fn displace_of_the_richest(&mut self, newcomer: IpAddr, least: usize) -> bool {
        let mut counts = HashMap::from([(newcomer, 1)]);
        for taker in self.places.values() {
            *counts.entry(taker.source).or_insert(0) += 1;
        }
        let count = |taker: &Taker| counts.get(&taker.source).copied().unwrap_or_default();
        // The first of equals is the oldest.
        let richest = self.places.iter().rev().max_by_key(|(_, taker)| count(taker));
        let oldest = richest.filter(|(_, taker)| count(taker) >= least).map(|(&number, _)| number);
        self.displace(oldest)
    }

    /// Takes the oldest place of `source`, if it has one.
    fn displace_of(&mut self, source: IpAddr) -> bool {
        let oldest = self.places.iter().find(|(_, taker)| taker.source == source).map(|(&number, _)| number);
        self.displace(oldest)
    }

    fn displace(&mut self, number: Option<u64>) -> bool {
        let taker = number.and_then(|number| self.places.remove(&number));
        taker.is_some_and(|taker| {
            taker.displaced.cancel();
            true
        })
    }
}

impl Place<'_> {
    /// What `work` comes to; `None` when the place was given to another.
    pub(crate) async fn unless_displaced<F: Future>(&self, work: F) -> Option<F::Output> {
        self.displaced.run_until_cancelled(work).await
    }

    /// Ends when the place was given to another.
    pub(crate) async fn displaced(&self) {
        self.displaced.cancelled().await;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.all.taken.lock().places.remove(&self.number);
    }
}

/// What counts as one source: an IPv4 address, the /64 network of an IPv6 one.
fn source(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK).into(),
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
    async fn the_oldest_gives_way_and_the_newest_goes_on() {
        let (all, one) = (Shares::new(2), ip("10.0.0.1"));
        let (first, second) = (all.push(one), all.push(one));
        let third = all.push(one);
        assert_eq!(first.unless_displaced(pending::<()>()).await, None);
        assert_eq!(second.unless_displaced(ready(2)).await, Some(2));
        drop(second);
        let fourth = all.push(one);
        assert_eq!(third.unless_displaced(ready(3)).await, Some(3), "there was a place again");
        assert_eq!(fourth.unless_displaced(ready(4)).await, Some(4));
        drop((first, third, fourth));
        assert!(all.taken.lock().places.is_empty());
    }

    #[tokio::test]
    async fn the_source_with_the_most_pays_for_what_it_takes() {
        let all = Shares::new(4);
        let slow = all.push(ip("10.0.0.1"));
        let flood: Vec<_> = (0..100).map(|_| all.push(ip("10.0.0.2"))).collect();
        assert_eq!(slow.unless_displaced(ready(())).await, Some(()));
        let left = flood.iter().filter(|place| !place.displaced.is_cancelled()).count();
        assert_eq!(left, 3);
    }

    #[test]
    fn a_newcomer_is_at_the_cost_of_who_has_more_and_else_of_its_own_source_never_of_its_equals() {
        let all = Shares::new(4);
        let displaced = |places: &[Place<'_>]| -> Vec<_> {
            places.iter().map(|place| place.displaced.is_cancelled()).collect()
        };
        let crowd: Vec<_> = (0..5).map(|_| all.claim(ip("10.0.0.2")).unwrap()).collect();
        assert_eq!(displaced(&crowd), [true, false, false, false, false], "the fifth has the first one's");
        let others: Vec<_> = (0..3).map(|_| all.claim(ip("10.0.0.1")).unwrap()).collect();
        assert_eq!(displaced(&crowd), [true, true, true, false, false], "the oldest went");
        assert_eq!(displaced(&others), [true, false, false], "two and two are fair: the third costs its own");
        let third = all.claim(ip("10.0.0.3")).expect("a third source finds room");
        let fourth = all.claim(ip("10.0.0.4")).expect("and a fourth");
        assert!(all.claim(ip("10.0.0.5")).is_none(), "one each is fair");
        assert!(all.claim(ip("10.0.0.4")).is_some() && fourth.displaced.is_cancelled());
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
