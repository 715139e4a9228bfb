//! Turns what is known about a role into the number of each variant: enough for the forecast, in as few steps as possible.
//!
//! Replicas are added at once if demand exceeds the usable capacity, and after three minutes if only the reserve is missing. Replicas are
//! removed, half of them at a time, if the others pass the same test under the highest demand of the last 200 s and a tenth more. A number is
//! moved past the tolerance within which an HPA ignores it. While nothing changes, cheap replicas are added in place of dear ones.

mod exchange;

pub(crate) use self::exchange::Exchange;
use super::capacity::ReplicaCapacity;
use super::demand::{Demand, PodCapacity, requests_at_horizon};
use super::fleet::{CapacityTest, Constraint, FleetCapacity, chance_reserve, surge_reserve};
use super::input::{RateInput, RateVariant, resolve_capacities};
use super::memory::Cooldown;
use crate::hpa::past_tolerance;
use crate::learn::{ArrivalLevel, LEAD, RoleKnowledge, current_level};
use crate::model::Role;
use crate::units::Replicas;

/// Peaks of this time count for a removal, seconds. It is longer than most pods take to start (40 to 240 s), so that demand which comes back soon
/// is still provided for. Measured on 480 drawn hours against 300 s: 2 % fewer replicas, as many requests outside the
/// objectives.
const PEAK_WINDOW: f64 = 200.0;
/// Seconds of the window that must have been observed: all but two scrapes of 15 s.
const MIN_PEAK_REACH: f64 = 170.0;
/// A level counts for a surge after this time, seconds: two scrapes.
const SURGE_LEVEL_WINDOW: f64 = 10.0;
/// A level must last this long, seconds, before replicas are added for a missing reserve: false steps are short. Measured on 160 drawn hours
/// against 90 s and a forecast less 0.3 standard errors: 1 % fewer replicas, as many requests outside the objectives.
const RESERVE_CONFIRMATION: f64 = 180.0;
/// Demand must exceed what suffices by this factor before something is added.
pub(super) const ADDITION_MARGIN: f64 = 1.025;
/// The remaining replicas must carry the peak times this factor before any is removed. So the demand may change by 1.025 × 1.10 = 12.75 %
/// between an addition and a removal.
const REMOVAL_MARGIN: f64 = 1.10;
/// Standard errors below its likely capacity with which a replica counts for a removal: a removal can wait, an addition cannot.
const REMOVAL_DOUBT: f64 = 1.0;
/// Prices of a request within this factor count as equal: fitted capacities are known to 5 %, and two of them are compared.
const EQUAL_PRICE_FACTOR: f64 = 1.10;
/// Replicas that one decision adds at most. No model has as many, and a wrong capacity orders no more.
const MAX_ADDED: u32 = 1000;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RatePlan {
    /// Replicas of each variant, in their order.
    pub targets: Vec<Replicas>,
    pub found: RateFinding,
}

/// The terms of the test, and its result.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RateFinding {
    pub demand: Demand,
    pub fleet: FleetCapacity,
    pub test: CapacityTest,
    /// The part of the test that allows the least load, and that load, requests/s.
    pub binding: (Constraint, f64),
    /// The highest demand of the last minutes, requests/s.
    pub peak: f64,
    /// The demand below which a replica can be removed, requests/s; `None` if none can, whatever the demand.
    pub removable_below: Option<f64>,
    /// Seconds until a replica can be removed at the earliest, if the demand stays the same.
    pub removable_in: f64,
    /// More is missing than may be added.
    pub is_short: bool,
    /// What is added for its price alone.
    pub exchange: Option<Exchange>,
    /// Each variant's capacity, in their order.
    pub replicas: Vec<ReplicaCapacity>,
}

/// One role while its numbers are planned. Targets go by the variants' order.
struct Planner<'l, 'a> {
    input: &'l RateInput<'a>,
    replicas: Vec<ReplicaCapacity>,
    test: CapacityTest,
    demand: Demand,
    /// The highest demand of the last minutes, requests/s.
    peak: f64,
    /// Whether the running requests fit into these numbers of replicas.
    fits: &'l dyn Fn(&[u32]) -> bool,
}

/// Proposes numbers for the variants of one role; `None` while their capacity or the arrivals are not known. No removal goes below numbers for
/// which `fits` says that the running requests fit into them.
pub(crate) fn analyze(
    input: &RateInput<'_>,
    known: &mut RoleKnowledge,
    cooldown: &mut Cooldown,
    fits: &dyn Fn(&[u32]) -> bool,
) -> Option<RatePlan> {
    let replicas = resolve_capacities(&input.variants)?;
    let unit = unit_rate(&input.variants)?;
    let start_ups = input.variants.iter().map(|variant| variant.start_up.get());
    let demand = demand(known, start_ups.fold(0.0, f64::max) + LEAD)?;
    learn(input, known, &demand, unit);
    cooldown.forget_old_mistake(input.now);
    let test = CapacityTest {
        reserve: chance_reserve(input.policy.surge_headroom, demand.horizon),
        surge: surge_reserve(demand.horizon, known.surges.largest()),
        backlog: backlog(input, &replicas, &demand),
        drain: input.policy.drain.get(),
    };
    let observed_peak = known.peaks.highest(input.now, PEAK_WINDOW).map_or(0.0, |peak| peak * unit);
    let peak = observed_peak.max(demand.forecast) * input.unmeasured_factor;
    let planner = Planner { input, replicas, test, demand, peak, fits };
    let mut targets: Vec<u32> =
        input.variants.iter().map(|variant| variant.bounds.clamp(variant.committed).get()).collect();
    // A second call at the same moment changes nothing, even if the first proposal was not published.
    let is_first = cooldown.evaluated_at.replace(input.now) != Some(input.now);
    let exchange = is_first.then(|| planner.step(&mut targets, known, cooldown)).flatten();
    let exchange = exchange.or_else(|| planner.pending_exchange(&targets, cooldown));
    let found = RateFinding { exchange, ..planner.finding(&targets, known, cooldown) };
    Some(RatePlan { targets: targets.into_iter().map(Replicas::new).collect(), found })
}

/// The unit, requests/s, in which levels are remembered: the capacity of a replica of the first variant that was seen working. So remembered
/// levels remain valid when request sizes change.
fn unit_rate(variants: &[RateVariant]) -> Option<f64> {
    variants.iter().find_map(|variant| variant.capacity).map(|capacity| capacity.max_rate())
}

/// The present demand; `None` before anything was counted.
fn demand(known: &RoleKnowledge, horizon: f64) -> Option<Demand> {
    let counts = known.arrivals.counts();
    if counts.is_empty() {
        return None;
    }
    let dispersion = known.dispersion.factor();
    let level = current_level(&counts, dispersion);
    Some(Demand::new(level, dispersion, horizon, known.arrivals.refused_share(level.seconds)))
}

/// Remembers the level: to estimate unread pods, for removals, and for the surge reserve.
fn learn(input: &RateInput<'_>, known: &mut RoleKnowledge, demand: &Demand, unit: f64) {
    let ArrivalLevel { rate, seconds, .. } = demand.level;
    known.level = Some(rate);
    known.peaks.push(input.now, rate / unit, PEAK_WINDOW);
    // Until a request has finished, its length is a guess. A jump of the load in replicas may then come from that guess.
    // So may one between an estimate and what is counted.
    let is_sized = input.role == Role::Prefill || known.shape.output().is_some();
    if is_sized && known.gauged_at.is_none() {
        let is_certain = seconds >= SURGE_LEVEL_WINDOW;
        known.surges.learn(input.now, demand.horizon, rate / unit, demand.surge / unit, is_certain);
    }
}

/// Requests that will be there when a pod ordered now serves, beyond those that the ordered fleet runs.
fn backlog(input: &RateInput<'_>, replicas: &[ReplicaCapacity], demand: &Demand) -> f64 {
    if input.waiting <= 0.0 {
        return 0.0;
    }
    let variants = || input.variants.iter().zip(replicas);
    let pods = variants().flat_map(|(variant, capacity)| {
        let ready_in = variant.ready_in.iter().map(|seconds| seconds.get());
        ready_in.map(|ready_in| PodCapacity { capacity: *capacity, ready_in })
    });
    let pods: Vec<PodCapacity> = pods.collect();
    let now = input.waiting + input.running;
    let inside = requests_at_horizon(now, demand.admitted_forecast(), &pods, demand.horizon);
    let slots = |(variant, capacity): (&RateVariant, &ReplicaCapacity)| {
        variant.serving(variant.committed.get()) * capacity.max_sequences
    };
    let ordered: f64 = variants().map(slots).sum();
    (inside - ordered).max(0.0)
}

impl RateVariant {
    /// How many of `target` replicas will serve. A lower target removes the unavailable ones first, and a higher one adds new ones.
    fn serving(&self, target: u32) -> f64 {
        let available = self.committed.saturating_sub(self.unavailable).get();
        f64::from(target.min(available)) + f64::from(self.added(target))
    }

    /// The same where those that are awaited are removed first, and do not count before they serve.
    fn serving_now(&self, target: u32) -> f64 {
        let ready = self.committed.saturating_sub(self.unavailable).saturating_sub(self.awaited()).get();
        f64::from(target.min(ready)) + f64::from(self.added(target))
    }

    fn added(&self, target: u32) -> u32 {
        target.saturating_sub(self.committed.get())
    }

    /// Ordered replicas that do not serve yet, and are expected to.
    fn awaited(&self) -> Replicas {
        let not_requested = self.committed.saturating_sub(self.unavailable).saturating_sub(self.requested);
        Replicas::new(self.starting.get().saturating_add(not_requested.get()))
    }

    fn max(&self) -> u32 {
        self.bounds.clamp(Replicas::new(u32::MAX)).get()
    }
}

impl Planner<'_, '_> {
    fn capacity(&self, targets: &[u32]) -> FleetCapacity {
        let serving = self.input.variants.iter().zip(targets);
        let serving = serving.map(|(variant, target)| variant.serving(*target));
        FleetCapacity::sum(self.replicas.iter().zip(serving))
    }

    /// The same with what the replicas carry for certain.
    fn certain_capacity(&self, targets: &[u32]) -> FleetCapacity {
        self.certain_capacity_of(targets, RateVariant::serving)
    }

    fn certain_capacity_of(&self, targets: &[u32], serving: fn(&RateVariant, u32) -> f64) -> FleetCapacity {
        let certain: Vec<_> = self.replicas.iter().map(|replica| replica.lower_end(REMOVAL_DOUBT)).collect();
        let counts = self.input.variants.iter().zip(targets);
        FleetCapacity::sum(certain.iter().zip(counts.map(|(variant, target)| serving(variant, *target))))
    }

    fn cost(&self, variant: usize) -> f64 {
        self.input.variants[variant].cost.get()
    }

    /// The cost of one request a second.
    fn price(&self, variant: usize) -> f64 {
        self.cost(variant) / self.replicas[variant].max_rate()
    }

    fn by_price(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.replicas.len()).collect();
        order.sort_by(|left, right| self.price(*left).total_cmp(&self.price(*right)));
        order
    }

    /// The same, but among nearly equal prices the cheapest replica first: smaller replicas fit the need more closely, and more pods start at
    /// once.
    fn by_price_and_cost(&self) -> Vec<usize> {
        let mut order = self.by_price();
        let equal = order.first().map_or(0, |lowest| {
            let limit = self.price(*lowest) * EQUAL_PRICE_FACTOR;
            order.iter().take_while(|variant| self.price(**variant) <= limit).count()
        });
        order[..equal].sort_by(|left, right| self.cost(*left).total_cmp(&self.cost(*right)));
        order
    }

    /// Demand exceeds the usable capacity, or requests will queue beyond what the ordered fleet runs. Then replicas are added at once.
    fn is_urgent(&self, fleet: &FleetCapacity) -> bool {
        self.demand.certain > fleet.usable_rate || self.test.backlog > 0.0
    }

    /// Something has been missing for long enough.
    fn is_short(&self, fleet: &FleetCapacity) -> bool {
        let is_missing = !self.test.passes(fleet, self.demand.certain / ADDITION_MARGIN);
        is_missing && (self.is_urgent(fleet) || self.demand.level.seconds >= RESERVE_CONFIRMATION)
    }

    /// One step: adds, or else removes, or else exchanges, and moves each number past what an HPA takes for equal.
    fn step(&self, targets: &mut [u32], known: &RoleKnowledge, cooldown: &mut Cooldown) -> Option<Exchange> {
        let input = self.input;
        let before = targets.to_vec();
        let mut removable = vec![0; targets.len()];
        let mut exchange = None;
        // Adding comes first: if replicas are missing, none is removed, and the cooldown starts again.
        if self.add(targets) {
            cooldown.note_addition(input.now);
        } else if input.can_remove
            && cooldown.remaining(input.now, input.policy.dwell.get()) <= 0.0
            && self.test.backlog <= 0.0
            && known.peaks.reach(input.now) >= MIN_PEAK_REACH
        {
            removable = self.remove(targets, self.peak * REMOVAL_MARGIN);
            if *targets == before && cooldown.may_exchange(input.now) {
                exchange = self.exchange(targets, cooldown.exchange_tries);
                if exchange.is_some() {
                    cooldown.note_exchange(input.now);
                }
            }
        }
        for (index, variant) in input.variants.iter().enumerate() {
            // A variant that gets no more replicas keeps its number, because a higher one would order nothing.
            if variant.is_full && targets[index] >= before[index] {
                continue;
            }
            // Moving past the tolerance removes more than the step, which may be at most what the test allowed in all.
            let is_allowed = |past: u32| before[index].saturating_sub(past) <= removable[index];
            let bounds = variant.bounds.min.get()..=variant.max();
            let requested = variant.requested.get();
            targets[index] = past_tolerance(requested, targets[index], bounds, input.tolerance, is_allowed);
        }
        if targets.iter().zip(&before).any(|(now, before)| now < before) {
            let dearest = self.by_price().into_iter().rfind(|index| self.removable(&before, *index) > 0);
            let is_success = dearest.is_some_and(|index| targets[index] < before[index]);
            if cooldown.is_exchanging && is_success && self.is_settled() {
                cooldown.exchange_tries = 0;
            }
            cooldown.note_removal(input.now);
        }
        exchange
    }

    /// Adds the missing replicas where they cost least. Returns whether any are missing.
    fn add(&self, targets: &mut [u32]) -> bool {
        let mut fleet = self.capacity(targets);
        // Requests wait in the scheduler's queue, and no replica serves them.
        let wakes = targets.iter().all(|target| *target == 0) && self.input.waiting > 0.0;
        if !(wakes || self.is_short(&fleet)) {
            return false;
        }
        let load = if wakes || self.is_urgent(&fleet) { self.demand.forecast } else { self.demand.certain };
        let mut left = MAX_ADDED;
        // The first replica is added even if the test passes without it: no arrival has been counted yet.
        let mut needs_first = wakes;
        for index in self.by_price_and_cost() {
            let variant = &self.input.variants[index];
            while left > 0 && !variant.is_full && targets[index] < variant.max() {
                if self.test.passes(&fleet, load) && !needs_first {
                    return true;
                }
                needs_first = false;
                left -= 1;
                targets[index] += 1;
                fleet = fleet.plus(&self.replicas[index], 1.0);
            }
        }
        true
    }

    /// Removes half of the replicas that are not needed, the highest price first. Returns how many of each variant are not needed.
    ///
    /// A fleet that passes the test without some replicas also passes it without fewer of them, so the largest number is found by halving:
    /// numbers come from users' bounds and may be large.
    fn remove(&self, targets: &mut [u32], load: f64) -> Vec<u32> {
        let mut left = targets.to_vec();
        let mut order = self.by_price();
        order.reverse();
        for index in &order {
            let now = left[*index];
            let passes_without = |removed: u32| {
                let mut fewer = left.clone();
                fewer[*index] = now - removed;
                self.test.passes(&self.certain_capacity(&fewer), load) && (self.fits)(&fewer)
            };
            let removed = largest(self.removable(&left, *index), passes_without);
            left[*index] = now - removed;
        }
        let removable: Vec<u32> = targets.iter().zip(&left).map(|(target, left)| target - left).collect();
        let removable = self.removable_now(targets, removable, load);
        let sum: u64 = removable.iter().map(|removed| u64::from(*removed)).sum();
        // Half at a time, so that a wrong test removes only half of what it allows; rounded up, so that a single replica is removed too.
        let mut half = sum.div_ceil(2);
        for index in order {
            let removed = removable[index].min(u32::try_from(half).unwrap_or(u32::MAX));
            targets[index] -= removed;
            half -= u64::from(removed);
        }
        removable
    }

    /// How many of the `removable` replicas can go before those that are awaited serve: they make up for none that does.
    fn removable_now(&self, targets: &[u32], removable: Vec<u32>, load: f64) -> Vec<u32> {
        if self.input.variants.iter().all(|variant| variant.awaited() == Replicas::ZERO) {
            return removable;
        }
        let mut left = targets.to_vec();
        for index in self.by_price().into_iter().rev() {
            let now = left[index];
            let passes_without = |removed: u32| {
                let mut fewer = left.clone();
                fewer[index] = now - removed;
                let serving = self.certain_capacity_of(&fewer, RateVariant::serving_now);
                // Those that are awaited may go, too, whatever serves.
                serving.rate >= self.certain_capacity_of(&left, RateVariant::serving_now).rate
                    || self.test.passes(&serving, load)
            };
            left[index] = now - largest(removable[index], passes_without);
        }
        targets.iter().zip(&left).map(|(target, left)| target - left).collect()
    }

    /// Replicas of the variant that may be removed, whatever the load. The role keeps one.
    fn removable(&self, targets: &[u32], variant: usize) -> u32 {
        let sum: u64 = targets.iter().map(|target| u64::from(*target)).sum();
        let above_min = targets[variant].saturating_sub(self.input.variants[variant].bounds.min.get());
        above_min.min(u32::try_from(sum.saturating_sub(1)).unwrap_or(u32::MAX))
    }

    fn finding(&self, targets: &[u32], known: &RoleKnowledge, cooldown: &Cooldown) -> RateFinding {
        let fleet = self.capacity(targets);
        let allowed_without = |variant: usize| {
            let mut fewer = targets.to_vec();
            fewer[variant] -= 1;
            self.test.binding(&self.certain_capacity(&fewer)).1 / REMOVAL_MARGIN
        };
        let removable = (0..targets.len()).filter(|variant| self.removable(targets, *variant) > 0);
        let removable_below =
            removable.map(allowed_without).max_by(f64::total_cmp).filter(|below| *below > 0.0);
        let now = self.input.now;
        let unit = unit_rate(&self.input.variants).unwrap_or(1.0);
        let until_quiet = removable_below
            .map_or(0.0, |below| known.peaks.seconds_until_below(now, PEAK_WINDOW, below / unit));
        let until_observed = (MIN_PEAK_REACH - known.peaks.reach(now)).max(0.0);
        let until_cooled = cooldown.remaining(now, self.input.policy.dwell.get());
        RateFinding {
            demand: self.demand,
            fleet,
            test: self.test,
            binding: self.test.binding(&fleet),
            peak: self.peak,
            removable_below,
            removable_in: until_cooled.max(until_quiet).max(until_observed),
            is_short: self.is_short(&fleet),
            exchange: None,
            replicas: self.replicas.clone(),
        }
    }
}

/// The largest number up to `max` that `holds`, if 0 does, and every number below one that holds does too.
fn largest(max: u32, holds: impl Fn(u32) -> bool) -> u32 {
    let mut low = 0;
    let mut high = max;
    while low < high {
        // Rounded up, so that `low` rises even if the two are neighbours.
        let middle = low + (high - low).div_ceil(2);
        if holds(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

#[cfg(test)]
mod tests;
