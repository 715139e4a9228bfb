//! Exchanges dear replicas for cheap ones while demand is steady. Demand goes to a dearer variant while a cheaper one gets no more replicas,
//! and nothing would bring it back: as long as nothing is missing, nothing is added, and what serves is not removed.
//!
//! The cheap replicas are added first. Once they serve, the dear ones are not needed any longer, and a removal takes the dearest first.

use super::{Cooldown, MAX_ADDED, Planner, REMOVAL_DOUBT, REMOVAL_MARGIN, RateVariant, largest};
use crate::hpa::past_tolerance;
use crate::units::Replicas;

/// A request must cost this many times as much on the dear variant as it certainly costs at most on the cheap one. Capacities are known to 5 %,
/// and an exchange back must not look worth it as soon as the cheap variant is under load.
const MIN_PRICE_RATIO: f64 = 1.25;

/// Replicas of a variant that are added in place of those of another one. Variants go by their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exchange {
    /// The dear variant.
    pub from: usize,
    /// The cheap variant.
    pub to: usize,
}

impl Planner<'_, '_> {
    /// Adds cheap replicas in place of up to half of a dear variant's. Of several pairs that are worth it, the dearest and the cheapest come
    /// first, and after each try the next ones, because one variant may never get room: `tries` were made. `None` if no pair is.
    pub(super) fn exchange(&self, targets: &mut [u32], tries: u8) -> Option<Exchange> {
        if !self.is_settled() {
            return None;
        }
        let order = self.by_price();
        let pairs =
            order.iter().rev().flat_map(|from| order.iter().map(|to| Exchange { from: *from, to: *to }));
        let worth = pairs.filter_map(|pair| Some((pair, self.number_in_exchange(targets, pair)?)));
        let worth: Vec<(Exchange, u32)> = worth.collect();
        let (exchange, number) = *worth.get(usize::from(tries).checked_rem(worth.len())?)?;
        targets[exchange.to] = number;
        Some(exchange)
    }

    /// The exchange whose cheap replicas are ordered, and not requested yet.
    pub(super) fn pending_exchange(&self, targets: &[u32], cooldown: &Cooldown) -> Option<Exchange> {
        let is_ordered = |index: &usize| targets[*index] > self.input.variants[*index].requested.get();
        let order = if cooldown.is_exchanging { self.by_price() } else { Vec::new() };
        let to = order.iter().copied().find(is_ordered)?;
        let from = order.iter().copied().rfind(|index| self.removable(targets, *index) > 0)?;
        (from != to).then_some(Exchange { from, to })
    }

    /// The number of `to` that carries what up to half of the replicas of `from` do and costs less.
    fn number_in_exchange(&self, targets: &[u32], Exchange { from, to }: Exchange) -> Option<u32> {
        let (dear, cheap) = (&self.input.variants[from], &self.input.variants[to]);
        let room = cheap.max().saturating_sub(targets[to]).min(MAX_ADDED);
        let price = self.cost(to) / self.replicas[to].lower_end(REMOVAL_DOUBT).max_rate();
        let are_measured = dear.capacity.is_some() && cheap.capacity.is_some();
        if to == from || !are_measured || cheap.is_full || self.price(from) < MIN_PRICE_RATIO * price {
            return None;
        }
        let load = self.peak * REMOVAL_MARGIN;
        let carry = |replaced: u32, added: u32| {
            let mut exchanged = targets.to_vec();
            exchanged[from] -= replaced;
            exchanged[to] += added;
            self.test.passes(&self.certain_capacity(&exchanged), load)
        };
        let replaced = largest(self.removable(targets, from).div_ceil(2), |replaced| carry(replaced, room));
        let added = room - largest(room, |spared| carry(replaced, room - spared));
        let followed = |variant: &RateVariant, number: u32| {
            let bounds = variant.bounds.min.get()..=variant.max();
            let may_go = |past: u32| targets[from].saturating_sub(past) <= replaced;
            past_tolerance(variant.requested.get(), number, bounds, self.input.tolerance, may_go)
        };
        let number = followed(cheap, targets[to] + added);
        let more = f64::from(number.saturating_sub(targets[to]));
        let is_cheaper = more > 0.0 && self.cost(to) * more < self.cost(from) * f64::from(replaced);
        // An HPA would keep dear ones that are within its tolerance.
        (is_cheaper && followed(dear, targets[from] - replaced) < targets[from]).then_some(number)
    }

    /// Every replica that was ordered exists and serves.
    pub(super) fn is_settled(&self) -> bool {
        let is_settled = |variant: &RateVariant| {
            variant.awaited() == Replicas::ZERO && variant.unavailable == Replicas::ZERO
        };
        self.input.variants.iter().all(is_settled)
    }
}
