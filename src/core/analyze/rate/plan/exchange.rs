//! Exchanges dear replicas for cheap ones while demand is steady. Demand goes to a dearer variant while a cheaper one gets no more replicas,
//! and nothing would bring it back: as long as nothing is missing, nothing is added, and what serves is not removed.
//!
//! The cheap replicas are added first. Once they serve, the dear ones are not needed any longer, and a removal takes the dearest first.

use super::{MAX_ADDED, Planner, REMOVAL_DOUBT, REMOVAL_MARGIN, largest};
use crate::hpa::past_tolerance;

/// A request must cost this many times as much on the dear variant as it certainly costs at most on the cheap one. Capacities are known to 5 %,
/// and an exchange back must not look worth it as soon as the cheap variant is under load.
const WORTH: f64 = 1.25;

/// Replicas of a variant that are added in place of those of another one. Variants go by their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exchange {
    /// The dear variant.
    pub from: usize,
    /// The cheap variant.
    pub to: usize,
}

impl Planner<'_, '_> {
    /// Adds cheap replicas in place of up to half of the dearest. Of several variants that may take over it is another one after each of the
    /// `earlier` tries, the cheapest first: one may never get room. `None` if nothing is worth it.
    pub(super) fn exchange(&self, targets: &mut [u32], earlier: u8) -> Option<Exchange> {
        if !self.is_settled() {
            return None;
        }
        let order = self.by_price();
        let from = order.iter().copied().rfind(|index| self.removable(targets, *index) > 0)?;
        self.input.variants[from].capacity?;
        let worth = order.into_iter().filter_map(|to| Some((to, self.exchanged(targets, from, to)?)));
        let worth: Vec<(usize, u32)> = worth.collect();
        let (to, number) = *worth.get(usize::from(earlier).checked_rem(worth.len())?)?;
        targets[to] = number;
        Some(Exchange { from, to })
    }

    /// The number of `to` that carries what up to half of the replicas of `from` do and costs less.
    fn exchanged(&self, targets: &[u32], from: usize, to: usize) -> Option<u32> {
        let cheap = &self.input.variants[to];
        let room = cheap.max().saturating_sub(targets[to]).min(MAX_ADDED);
        let price = self.cost(to) / self.replicas[to].lower_end(REMOVAL_DOUBT).max_rate();
        if to == from || cheap.capacity.is_none() || cheap.is_full || self.price(from) < WORTH * price {
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
        let bounds = cheap.bounds.min.get()..=cheap.max();
        let number = targets[to] + added;
        let number = past_tolerance(cheap.requested.get(), number, bounds, self.input.tolerance, |_| false);
        let more = f64::from(number.saturating_sub(targets[to]));
        (more > 0.0 && self.cost(to) * more < self.cost(from) * f64::from(replaced)).then_some(number)
    }

    /// Every replica that was ordered exists and serves.
    pub(super) fn is_settled(&self) -> bool {
        !self.awaits_pods() && self.input.variants.iter().all(|variant| variant.unavailable.get() == 0)
    }

    /// A replica that was ordered does not serve yet, and is expected to.
    pub(super) fn awaits_pods(&self) -> bool {
        self.input.variants.iter().any(|variant| {
            let ordered = variant.committed.saturating_sub(variant.unavailable);
            variant.starting.get() > 0 || variant.requested < ordered
        })
    }
}
