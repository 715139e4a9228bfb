//! Hands out what limits leave to numbers that are already wanted, the neediest first.
//!
//! A minimum above a limit wins: it is a promise to the user, and the pods may wait for their resources. Minima are
//! therefore served first, and what they take beyond a budget is missing for everybody else.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::{Binding, Footprint, Free, Ledger, Limit, accelerator};
use crate::model::{Bounds, Compat, VariantId};
use crate::units::{Cost, Replicas, Watts};
use smol_str::SmolStr;

/// A number that is wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct Want {
    /// Whose.
    pub id: VariantId,
    /// Replicas it has.
    pub current: Replicas,
    /// Replicas it shall have.
    pub wanted: Replicas,
    /// Its bounds.
    pub bounds: Bounds,
    /// Its model's priority; a higher one is served first.
    pub priority: f64,
    /// What its model has to spare; less is served first.
    pub spare: f64,
    /// What a replica costs.
    pub cost: Cost,
    /// The accelerator's name, when one is known.
    pub accelerator: Option<SmolStr>,
    /// GPUs of a replica; 0 counts as 1.
    pub gpus: u32,
    /// Power of a replica, when it is known.
    pub watts: Option<Watts>,
}

/// What became of a number.
#[derive(Debug, Clone, PartialEq)]
pub struct Granted {
    /// Whose.
    pub id: VariantId,
    /// Replicas that were wanted, within the bounds.
    pub wanted: Replicas,
    /// Replicas it shall have.
    pub granted: Replicas,
    /// GPUs that were free for what was added.
    pub gpus: i64,
    /// Fewer were free than wanted; with a minimum, `granted` may be more than was free.
    pub limited: bool,
    /// The limit that held it back; upstream's pools go unnamed.
    pub bound: Option<Binding>,
}

/// Free GPUs by accelerator.
pub type Pools = BTreeMap<SmolStr, i64>;

impl Want {
    /// What a replica of it takes.
    #[must_use]
    pub fn footprint(&self) -> Footprint<'_> {
        let Self { gpus, watts, cost, .. } = *self;
        let namespace = &self.id.namespace;
        Footprint { namespace, accelerator: self.accelerator.as_deref(), gpus: gpus.max(1), watts, cost }
    }

    /// As it is: nothing is added.
    fn unchanged(&self) -> Granted {
        let wanted = self.bounds.max.map_or(self.wanted, |max| max.max(self.bounds.min).min(self.wanted));
        Granted { id: self.id.clone(), wanted, granted: wanted, gpus: 0, limited: false, bound: None }
    }

    /// Replicas to be added.
    fn more(&self, to: Replicas) -> i64 {
        i64::from(to.get()) - i64::from(self.current.get())
    }
}

/// What `limits` leave of `wants`, in the same order. Served are, by default, minima first; then by priority,
/// spare capacity, cost and name, whatever the order of `wants` is. Only additions are held back. Source:
/// algorithm reference §7.8, with every kind of limit and without its trap (see [`greedy_by_spare`]).
///
/// Upstream's pools (inventory, quota of the cluster) come first where upstream's rules are asked for; what they
/// grant is then held against the other limits.
#[must_use]
pub fn grant(wants: &[Want], limits: &[Limit], compat: Compat) -> Vec<Granted> {
    let (pools, others): (Vec<Limit>, Vec<Limit>) =
        limits.iter().cloned().partition(|limit| compat.is_upstream() && limit.budget.is_pool());
    if pools.is_empty() {
        return by_need(wants, limits);
    }
    let running: Vec<_> =
        wants.iter().map(|want| (want.footprint(), i64::from(want.current.get()))).collect();
    let first = greedy_by_spare(wants, &mut Free::of(&pools, &running, true).cluster);
    let left = wants.iter().zip(&first);
    let left: Vec<Want> = left.map(|(want, one)| Want { wanted: one.granted, ..want.clone() }).collect();
    let second = by_need(&left, &others).into_iter().zip(first);
    let both = second.map(|(second, first)| Granted {
        wanted: first.wanted,
        gpus: first.gpus.min(second.gpus),
        limited: first.limited || second.limited,
        ..second
    });
    both.collect()
}

fn by_need(wants: &[Want], limits: &[Limit]) -> Vec<Granted> {
    let running = wants.iter().map(|want| (want.footprint(), i64::from(want.current.get())));
    let mut ledger = Ledger::new(limits, running);
    let mut granted: Vec<Granted> = wants.iter().map(Want::unchanged).collect();
    let mut order: Vec<usize> =
        (0..wants.len()).filter(|at| wants[*at].more(granted[*at].wanted) > 0).collect();
    order.sort_by(|a, b| neediest(&wants[*a], &wants[*b]));
    let mut added = vec![0; wants.len()];
    for at in &order {
        let (want, one) = (&wants[*at], &mut granted[*at]);
        one.wanted = one.wanted.max(want.bounds.min);
        let least = want.more(want.bounds.min).max(0);
        let (room, bound) = ledger.room(&want.footprint());
        one.gpus = least.min(room).saturating_mul(i64::from(want.gpus.max(1)));
        one.bound = bound.filter(|_| room < least);
        added[*at] = least;
        ledger.take(&want.footprint(), least);
    }
    for at in order {
        let (want, one) = (&wants[at], &mut granted[at]);
        let more = want.more(one.wanted) - added[at];
        let (room, bound) = ledger.room(&want.footprint());
        let fit = more.min(room);
        ledger.take(&want.footprint(), fit);
        one.gpus = one.gpus.saturating_add(fit.saturating_mul(i64::from(want.gpus.max(1))));
        one.bound = one.bound.take().or(bound.filter(|_| room < more));
        one.limited = one.bound.is_some();
        one.granted = Replicas::saturating(i64::from(want.current.get()) + added[at] + fit);
    }
    granted
}

fn neediest(a: &Want, b: &Want) -> Ordering {
    let priority = b.priority.total_cmp(&a.priority);
    let spare = a.spare.total_cmp(&b.spare);
    priority.then(spare).then_with(|| a.cost.get().total_cmp(&b.cost.get())).then_with(|| a.id.cmp(&b.id))
}

/// Upstream's order and its trap: by spare capacity and cost, ties as given, and GPUs that fill no whole replica are
/// lost for everybody. `pools` are the free GPUs, before and after. Source: algorithm reference §7.8.
pub fn greedy_by_spare(wants: &[Want], pools: &mut Pools) -> Vec<Granted> {
    let mut granted: Vec<Granted> = wants.iter().map(Want::unchanged).collect();
    let mut order: Vec<usize> = (0..wants.len()).collect();
    order.sort_by(|a, b| {
        let (a, b) = (&wants[*a], &wants[*b]);
        a.spare.total_cmp(&b.spare).then_with(|| a.cost.get().total_cmp(&b.cost.get()))
    });
    for at in order {
        let (want, one) = (&wants[at], &mut granted[at]);
        if want.more(want.wanted) <= 0 {
            one.granted = want.wanted;
            continue;
        }
        let more = want.more(one.wanted);
        if more <= 0 {
            continue;
        }
        let each = i64::from(want.gpus.max(1));
        let name = accelerator(want.accelerator.as_deref(), pools).map(str::to_owned);
        let mut got = 0;
        if let Some(free) = name.and_then(|name| pools.get_mut(name.as_str())) {
            got = more.saturating_mul(each).min(*free).max(0);
            *free -= got;
        }
        let fit = got / each;
        one.gpus = fit.saturating_mul(each);
        one.limited = fit < more;
        let target = Replicas::saturating(i64::from(want.current.get()) + fit);
        one.granted = target.max(want.bounds.min);
    }
    granted
}
