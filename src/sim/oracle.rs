//! An oracle: it knows the requests that will come, and looks for the cheapest orders of replicas under which no more than a given
//! number of them is outside the objectives. It has the HPA's syncs, the start-up times and the first fleet of everybody else.
//!
//! It is a search by descent, so its cost is an upper bound of the least possible one. Nobody who starts with the same fleet may be
//! cheaper at the same share of requests within the objectives: such a run shows a defect of the search.

use std::sync::Arc;
use std::time::Duration;

use smol_str::SmolStr;
use wva_core::units::{Replicas, truncated_u32};

use super::controller::{Algorithm, Controller, MetricPath, ScheduleEntry};
use super::run::{Rehearsal, Run};
use super::scenario::Scenario;

/// The name of the oracle's runs.
pub const ORACLE: &str = "oracle";
/// Shares of the requests that may be outside the objectives, spent one after another. What costs no request comes first, so that
/// they are not wasted on the beginning of the run.
const SPENT: [f64; 3] = [0.0, 0.5, 1.0];
/// The shortest part of a run whose replicas are lowered as a whole, in HPA syncs. Shifts of the changes find what is shorter.
const MIN_PART: usize = 8;
/// A run has at most about this many such parts: a search takes as many simulations.
const MAX_PARTS: usize = 64;
/// States of a run that are kept, from which a change of its later part is played.
const STATES: usize = 32;
/// By how many syncs changes are shifted.
const SHIFTS: [usize; 4] = [8, 4, 2, 1];

/// The cheapest run that was found for `scenario` and `seed` with at most `max_outside` requests outside the objectives. The search
/// begins at the largest fleet and at the orders of each of the `known` runs of the same scenario and seed that meets the bound.
/// `None` when none of them does.
#[must_use]
pub fn oracle(scenario: &Scenario, seed: u64, max_outside: u64, known: &[&Run]) -> Option<Run> {
    let controller = orders_controller();
    let search =
        Search { scenario, controller: &controller, seed, max_outside, order: removal_order(scenario) };
    let starts = std::iter::once(Orders::at_maximum(scenario))
        .chain(known.iter().map(|run| Orders::of(scenario, run)));
    let mut starts: Vec<Found<'_>> = starts.filter_map(|orders| search.start(orders)).collect();
    // The largest fleet has all the freedom, the cheapest known run the least distance.
    let cheapest = starts
        .iter()
        .enumerate()
        .skip(1)
        .min_by(|(_, left), (_, right)| left.cost().total_cmp(&right.cost()));
    let cheapest_start = cheapest.map_or(0, |(index, _)| index);
    let second = (cheapest_start > 0).then(|| starts.swap_remove(cheapest_start));
    starts.truncate(1);
    let found = starts.into_iter().chain(second).map(|start| search.descend(start));
    found.min_by(|left, right| left.cost().total_cmp(&right.cost())).map(|found| found.run)
}

/// Requests of a run that are outside the objectives.
#[must_use]
pub fn outside(run: &Run) -> u64 {
    let within = run.slo_attainment * run.requests as f64;
    run.requests - (within.round() as u64).min(run.requests)
}

/// The orders of replicas at each HPA sync, by variant.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Orders(Vec<Vec<u32>>);

struct Found<'a> {
    orders: Orders,
    run: Run,
    rehearsal: Rehearsal<'a>,
}

impl Found<'_> {
    fn cost(&self) -> f64 {
        self.run.cost_avg
    }
}

/// Follows the orders that the search tries.
fn orders_controller() -> Controller {
    Controller {
        name: SmolStr::new_static(ORACLE),
        algorithm: Algorithm::Schedule(Vec::new()),
        path: MetricPath::Direct,
        scale_down_window: Some(Duration::ZERO),
        spares: 0,
    }
}

/// HPA syncs of a scenario.
fn syncs(scenario: &Scenario) -> usize {
    (scenario.duration.as_secs_f64() / scenario.hpa.sync.as_secs_f64()).ceil().max(1.0) as usize
}

/// The variants, the dearest for what they serve first.
fn removal_order(scenario: &Scenario) -> Vec<usize> {
    let price = |variant: usize| {
        let variant = &scenario.variants[variant];
        let sizes = scenario.sizes.first().map(|timed| timed.sizes);
        variant.cost.get() / sizes.map_or(1.0, |sizes| variant.physics.capacity_rps(sizes))
    };
    let mut order: Vec<usize> = (0..scenario.variants.len()).collect();
    order.sort_by(|left, right| price(*right).total_cmp(&price(*left)));
    order
}

impl Orders {
    fn at_maximum(scenario: &Scenario) -> Self {
        let max = |max: Option<Replicas>| max.map_or(Scenario::MAX_PODS, Replicas::get);
        Self(scenario.variants.iter().map(|variant| vec![max(variant.bounds.max); syncs(scenario)]).collect())
    }

    /// The orders of a run that wrote down its changes.
    fn of(scenario: &Scenario, run: &Run) -> Self {
        let sync_s = scenario.hpa.sync.as_secs_f64();
        let mut orders: Vec<Vec<u32>> =
            scenario.variants.iter().map(|variant| vec![variant.replicas.get(); syncs(scenario)]).collect();
        for write in &run.writes {
            let from = ((write.at_s / sync_s) as usize).min(syncs(scenario) - 1);
            orders[write.variant][from..].fill(write.to);
        }
        Self(orders)
    }

    /// A schedule with an entry at each change.
    fn schedule(&self, sync: Duration) -> Arc<[ScheduleEntry]> {
        let at = |slot: usize| self.0.iter().map(move |orders| orders[slot]);
        let is_change = |slot: &usize| *slot == 0 || at(*slot).ne(at(slot - 1));
        let slots = (0..self.0.first().map_or(0, Vec::len)).filter(is_change);
        let entry = |slot: usize| ScheduleEntry {
            from: sync.mul_f64(slot as f64),
            replicas: at(slot).map(Replicas::new).collect(),
        };
        slots.map(entry).collect()
    }

    /// The first slot at which other orders differ; 0 if none does.
    fn first_difference(&self, orders: &Self) -> usize {
        let of_variant =
            |(own, new): (&Vec<u32>, &Vec<u32>)| own.iter().zip(new).position(|(own, new)| own != new);
        self.0.iter().zip(&orders.0).filter_map(of_variant).min().unwrap_or(0)
    }

    /// The slots at which the number of a variant changes.
    fn changes(&self, variant: usize) -> Vec<usize> {
        let orders = &self.0[variant];
        (1..orders.len()).filter(|slot| orders[*slot] != orders[slot - 1]).collect()
    }
}

struct Search<'a> {
    scenario: &'a Scenario,
    controller: &'a Controller,
    seed: u64,
    max_outside: u64,
    order: Vec<usize>,
}

impl<'a> Search<'a> {
    /// The run under `orders`, if it meets the bound.
    fn start(&self, orders: Orders) -> Option<Found<'a>> {
        let mut rehearsal = Rehearsal::new(self.scenario, self.controller, self.seed, STATES);
        let (run, states) =
            rehearsal.play(&orders.schedule(self.scenario.hpa.sync), 0.0, self.max_outside)?;
        rehearsal.keep(0.0, states);
        (outside(&run) <= self.max_outside).then_some(Found { orders, run, rehearsal })
    }

    fn descend(&self, mut best: Found<'a>) -> Found<'a> {
        let slots = syncs(self.scenario);
        let least = outside(&best.run);
        let spare = self.max_outside.saturating_sub(least);
        for spent in SPENT {
            let max_outside = least + (spent * spare as f64) as u64;
            let shortest = MIN_PART.max(slots.div_ceil(MAX_PARTS)).min(slots);
            let mut part = slots;
            self.lower_parts(&mut best, part, max_outside);
            while part > shortest {
                part = part.div_ceil(2);
                self.lower_parts(&mut best, part, max_outside);
            }
            for shift in SHIFTS {
                self.shift_changes(&mut best, shift, max_outside);
            }
        }
        best
    }

    /// Replaces `best` by `orders` if they are cheaper and meet the bound.
    fn accept(&self, best: &mut Found<'a>, orders: Orders, max_outside: u64) -> bool {
        let sync = self.scenario.hpa.sync;
        let from_s = sync.as_secs_f64() * best.orders.first_difference(&orders) as f64;
        match best.rehearsal.play(&orders.schedule(sync), from_s, max_outside) {
            Some((run, states)) if run.cost_avg < best.cost() - 1e-9 && outside(&run) <= max_outside => {
                best.rehearsal.keep(from_s, states);
                best.orders = orders;
                best.run = run;
                true
            }
            _ => false,
        }
    }

    /// Lowers the replicas of each variant in each part of `part` syncs as far as the bound allows: in long parts, where a fleet at
    /// its maximum is far too large, by large steps first.
    fn lower_parts(&self, best: &mut Found<'a>, part: usize, max_outside: u64) {
        let slots = syncs(self.scenario);
        for &variant in &self.order {
            let min = self.scenario.variants[variant].bounds.min.get();
            for start in (0..slots).step_by(part) {
                let highest =
                    best.orders.0[variant].iter().skip(start).take(part).max().copied().unwrap_or(min);
                let is_long = part * 4 >= slots;
                let mut step =
                    if is_long { highest.saturating_sub(min).next_power_of_two() / 2 } else { 1 }.max(1);
                while step > 0 {
                    let mut orders = best.orders.clone();
                    for number in orders.0[variant].iter_mut().skip(start).take(part) {
                        *number = number.saturating_sub(step).max(min);
                    }
                    if orders == best.orders || !self.accept(best, orders, max_outside) {
                        step /= 2;
                    }
                }
            }
        }
    }

    /// Lets each change to more come later, and each change to fewer earlier, by `shift` syncs, as far as the bound allows.
    fn shift_changes(&self, best: &mut Found<'a>, shift: usize, max_outside: u64) {
        for &variant in &self.order {
            for slot in best.orders.changes(variant) {
                let mut at = slot;
                loop {
                    let mut orders = best.orders.clone();
                    let numbers = &mut orders.0[variant];
                    let (before, after) = (numbers[at - 1], numbers[at]);
                    if before == after {
                        break;
                    }
                    let is_rise = after > before;
                    let range = if is_rise {
                        at..(at + shift).min(numbers.len())
                    } else {
                        at.saturating_sub(shift).max(1)..at
                    };
                    at = if is_rise { range.end } else { range.start };
                    numbers[range].iter_mut().for_each(|number| *number = before.min(after).min(*number));
                    let is_last = at >= numbers.len() || at <= 1;
                    if orders == best.orders || !self.accept(best, orders, max_outside) || is_last {
                        break;
                    }
                }
            }
        }
    }
}

/// Requests that may be outside the objectives of `requests` so that `share` of them, 0 to 1, is within.
#[must_use]
pub fn allowed_outside(requests: u64, share: f64) -> u64 {
    // The tolerance keeps a share computed from whole requests from losing one of them.
    let allowed = (1.0 - share) * requests as f64 + 1e-6;
    u64::from(truncated_u32(allowed.max(0.0)))
}
