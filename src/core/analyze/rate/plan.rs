//! From what is seen and remembered to the number of each variant: enough for what is coming, in as few steps as possible.
//!
//! More is ordered at once when demand exceeds what may be used, and after a minute and a half when only the reserve is
//! missing. Something is removed when the others would pass the same test under the highest demand of the last 200 seconds
//! and a tenth more, half of it at a time. What is committed is the number itself, moved past what an HPA takes for equal.

use super::backlog::at_horizon;
use super::capacity::Replica;
use super::control::Control;
use super::demand::Demand;
use super::fleet::{Bound, Sum, Test, reserve, share};
use super::look::{Look, Variant, replicas};
use crate::learn::{ArrivalLevel, LEAD, RoleKnowledge, level};
use crate::model::Role;
use crate::units::{Replicas, whole};

/// The peaks of this time count for a removal, seconds: longer than most pods take to start (40 to 240 s), so that what comes
/// back as soon as it went is still there. Measured on 480 drawn hours against 300: 2 % fewer replicas, as many requests
/// outside the objectives.
const PEAKS: f64 = 200.0;
/// Of which so many seconds must have been seen: all but two scrapes of 15 s.
const PEAKS_SEEN: f64 = 170.0;
/// A level is certain after this time, seconds: two scrapes.
const CERTAIN: f64 = 10.0;
/// A missing reserve waits this long, seconds, for the level to stay: false steps are short.
const CONFIRMED: f64 = 90.0;
/// How much more than what suffices is asked before something is added.
pub(super) const MORE: f64 = 1.025;
/// How much more than the peak the others must carry before something is removed. Between the two tests lie 12.75 %.
const FEWER: f64 = 1.10;
/// Prices of a request within this factor are equal: what was fitted is known to 5 %, and here two are compared.
const EQUAL: f64 = 1.10;
/// Replicas that one decision adds at most: no model has as many, and a capacity learned wrong orders no more.
const MOST: u32 = 1000;

/// What the policy wants.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Of each variant, in their order.
    pub targets: Vec<Replicas>,
    /// Why.
    pub found: Found,
}

/// The terms of the test, and what it came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// What is asked.
    pub demand: Demand,
    /// What the fleet carries that is wanted now.
    pub fleet: Sum,
    /// What it was tested for.
    pub test: Test,
    /// The part of the test that leaves the least, and what it allows, requests a second.
    pub binding: (Bound, f64),
    /// The highest demand of the last minutes, requests a second.
    pub peak: f64,
    /// The demand below which a replica can go, requests a second; `None` when none can, whatever the demand.
    pub removable_below: Option<f64>,
    /// Seconds until one can go at the earliest, if the demand stays what it is.
    pub removable_in: f64,
    /// More is missing than may be added.
    pub short: bool,
    /// Each variant's replica, in their order.
    pub replicas: Vec<Replica>,
}

/// One look while it is being decided.
struct Scene<'l, 'a> {
    look: &'l Look<'a>,
    replicas: Vec<Replica>,
    test: Test,
    /// What runs fits into so many of each variant.
    fits: &'l dyn Fn(&[u32]) -> bool,
}

/// What the policy wants of the variants of one role; `None` while nothing is known of what they carry, or of what arrives.
/// Nothing is removed beyond numbers of which `fits` says that what runs fits into them.
pub fn analyze(
    look: &Look<'_>,
    known: &mut RoleKnowledge,
    control: &mut Control,
    fits: &dyn Fn(&[u32]) -> bool,
) -> Option<Answer> {
    let replicas = replicas(&look.variants)?;
    let seen = look.variants.iter().find_map(|one| one.replica).map(|replica| replica.rate())?;
    let starts = look.variants.iter().map(|one| one.start.get());
    let demand = demand(known, starts.fold(0.0, f64::max) + LEAD)?;
    learn(look, known, &demand, seen);
    control.forgive(look.now);
    let test = Test {
        reserve: reserve(look.policy.surge_headroom, demand.horizon),
        surge: share(demand.horizon, known.surges.largest()),
        backlog: backlog(look, &replicas, &demand),
        drain: look.policy.drain.get(),
    };
    let scene = Scene { look, replicas, test, fits };
    let peak =
        known.peaks.highest(look.now, PEAKS).map_or(0.0, |peak| peak * seen).max(demand.coming) * look.hidden;
    let mut targets: Vec<u32> = look.variants.iter().map(|one| one.bounds.clamp(one.target).get()).collect();
    // A second look at one moment moves nothing, whatever has become of what the first one wanted.
    if control.looked.replace(look.now) != Some(look.now) {
        scene.step(&mut targets, (&demand, peak), known, control);
    }
    let found = scene.found(&targets, demand, peak, (known, control));
    Some(Answer { targets: targets.into_iter().map(Replicas::new).collect(), found })
}

/// What is asked now; `None` before anything was counted.
fn demand(known: &RoleKnowledge, horizon: f64) -> Option<Demand> {
    let counts = known.arrivals.counts();
    if counts.is_empty() {
        return None;
    }
    let dispersion = known.dispersion.factor();
    Some(Demand::new(level(&counts, dispersion), dispersion, horizon))
}

/// Remembers the level: for pods that are not read, for removals, and as a surge if it is one.
fn learn(look: &Look<'_>, known: &mut RoleKnowledge, demand: &Demand, one: f64) {
    let ArrivalLevel { rate, seconds, .. } = demand.level;
    known.level = Some(rate);
    known.peaks.push(look.now, rate / one, PEAKS);
    // As long as nothing has finished a replica only seems to carry more: what then shows is no surge.
    if look.role == Role::Prefill || known.shape.output().is_some() {
        let loads = (rate / one, demand.surged / one);
        known.surges.learn(look.now, demand.horizon, loads, seconds >= CERTAIN);
    }
}

/// Requests that will be there when a pod ordered now serves, beyond those that the fleet ordered runs.
fn backlog(look: &Look<'_>, replicas: &[Replica], demand: &Demand) -> f64 {
    if look.waiting <= 0.0 {
        return 0.0;
    }
    let each = look.variants.iter().zip(replicas);
    let pods: Vec<_> = each
        .clone()
        .flat_map(|(variant, replica)| variant.pods.iter().map(|ready_in| (*replica, ready_in.get())))
        .collect();
    let inside = at_horizon(look.waiting + look.running, demand.coming, &pods, demand.horizon);
    let ordered: f64 =
        each.map(|(variant, replica)| variant.coming(variant.target.get()) * replica.most).sum();
    (inside - ordered).max(0.0)
}

impl Variant {
    /// Of `target` replicas, those that will serve: of fewer than there are, the lost ones go first, and of more the others
    /// are new.
    fn coming(&self, target: u32) -> f64 {
        let (own, most) = (self.target.get(), self.target.above(self.lost).get());
        f64::from(target.min(most)) + f64::from(target.saturating_sub(own))
    }

    fn at_most(&self) -> u32 {
        self.bounds.clamp(Replicas::new(u32::MAX)).get()
    }
}

impl Scene<'_, '_> {
    fn sum(&self, targets: &[u32]) -> Sum {
        let each = self.look.variants.iter().zip(targets);
        let each = each.map(|(variant, target)| variant.coming(*target));
        Sum::of(self.replicas.iter().zip(each))
    }

    /// The places of the variants, those with the least cost for each request a second first.
    fn by_price(&self) -> Vec<usize> {
        let price = |at: &usize| self.look.variants[*at].cost.get() / self.replicas[*at].rate();
        let mut places: Vec<usize> = (0..self.replicas.len()).collect();
        places.sort_by(|one, other| price(one).total_cmp(&price(other)));
        places
    }

    /// The same, but where prices are as good as equal the smallest first: what is needed is then filled up closer, and more
    /// pods start at once.
    fn by_unit(&self) -> Vec<usize> {
        let cost = |at: &usize| self.look.variants[*at].cost.get();
        let mut places = self.by_price();
        let near = places.first().map_or(0, |least| {
            let most = cost(least) / self.replicas[*least].rate() * EQUAL;
            places.iter().take_while(|at| cost(at) / self.replicas[**at].rate() <= most).count()
        });
        places[..near].sort_by(|one, other| cost(one).total_cmp(&cost(other)));
        places
    }

    /// Demand exceeds what may be used, or the fleet ordered will not even hold what comes: this does not wait.
    fn hard(&self, sum: &Sum, demand: &Demand) -> bool {
        demand.sure > sum.allowed || self.test.backlog > 0.0
    }

    /// Something is missing for long enough.
    fn short(&self, sum: &Sum, demand: &Demand) -> bool {
        let missing = !self.test.passes(sum, demand.sure / MORE);
        missing && (self.hard(sum, demand) || demand.level.seconds >= CONFIRMED)
    }

    /// One step: adds, or else removes, and past what an HPA takes for equal.
    fn step(
        &self,
        targets: &mut [u32],
        (demand, peak): (&Demand, f64),
        known: &RoleKnowledge,
        control: &mut Control,
    ) {
        let look = self.look;
        let before = targets.to_vec();
        let mut removable = vec![0; targets.len()];
        if self.more(targets, demand) {
            control.grew(look.now);
        } else if look.may_remove
            && control.wait(look.now, look.policy.dwell.get()) <= 0.0
            && self.test.backlog <= 0.0
            && known.peaks.reach(look.now) >= PEAKS_SEEN
        {
            removable = self.fewer(targets, peak * FEWER);
        }
        for (at, variant) in look.variants.iter().enumerate() {
            let (running, bounds) = (variant.running.get(), (variant.bounds.min.get(), variant.at_most()));
            if variant.full && targets[at] >= before[at] {
                continue;
            }
            let allowed = |past: u32| before[at].saturating_sub(past) <= removable[at];
            targets[at] = past_tolerance(running, targets[at], bounds, look.tolerance, allowed);
        }
        if targets.iter().zip(&before).any(|(now, before)| now < before) {
            control.shrank(look.now);
        }
    }

    /// Adds what is missing, where it costs least. True when something is missing.
    fn more(&self, targets: &mut [u32], demand: &Demand) -> bool {
        let sum = self.sum(targets);
        // Woken: the gateway holds requests, and nobody is there to serve them.
        let woken = targets.iter().all(|target| *target == 0) && self.look.waiting > 0.0;
        if !(woken || self.short(&sum, demand)) {
            return false;
        }
        let load = if woken || self.hard(&sum, demand) { demand.coming } else { demand.sure };
        let (mut sum, mut left, mut first) = (sum, MOST, woken);
        for at in self.by_unit() {
            let variant = &self.look.variants[at];
            while left > 0 && !variant.full && targets[at] < variant.at_most() {
                if self.test.passes(&sum, load) && !first {
                    return true;
                }
                (first, left) = (false, left - 1);
                targets[at] += 1;
                sum = sum.plus(&self.replicas[at], 1.0);
            }
        }
        true
    }

    /// Removes half of what the others can carry without, the dearest first. Returns how many of each could go in all.
    ///
    /// A fleet that passes without so many passes without fewer, so that the most is found by halving: users write the
    /// bounds, and these may differ by billions.
    fn fewer(&self, targets: &mut [u32], load: f64) -> Vec<u32> {
        let mut left = targets.to_vec();
        let mut places = self.by_price();
        places.reverse();
        for at in &places {
            let now = left[*at];
            let passes = |gone: u32| {
                let mut fewer = left.clone();
                fewer[*at] = now - gone;
                self.test.passes(&self.sum(&fewer), load) && (self.fits)(&fewer)
            };
            let gone = largest(self.removable(&left, *at), passes);
            left[*at] = now - gone;
        }
        let removable: Vec<u32> = targets.iter().zip(&left).map(|(all, left)| all - left).collect();
        let sum: u64 = removable.iter().map(|gone| u64::from(*gone)).sum();
        let mut half = sum.div_ceil(2);
        for at in places {
            let gone = removable[at].min(u32::try_from(half).unwrap_or(u32::MAX));
            targets[at] -= gone;
            half -= u64::from(gone);
        }
        removable
    }

    /// Replicas of the variant that may go, whatever the load: the role keeps one.
    fn removable(&self, targets: &[u32], at: usize) -> u32 {
        let sum: u64 = targets.iter().map(|target| u64::from(*target)).sum();
        let own = targets[at].saturating_sub(self.look.variants[at].bounds.min.get());
        own.min(u32::try_from(sum.saturating_sub(1)).unwrap_or(u32::MAX))
    }

    fn found(
        &self,
        targets: &[u32],
        demand: Demand,
        peak: f64,
        (known, control): (&RoleKnowledge, &Control),
    ) -> Found {
        let fleet = self.sum(targets);
        let without = |at: usize| {
            let mut fewer = targets.to_vec();
            fewer[at] -= 1;
            self.test.binding(&self.sum(&fewer)).1 / FEWER
        };
        let removable = (0..targets.len()).filter(|at| self.removable(targets, *at) > 0).map(without);
        let removable_below = removable.max_by(f64::total_cmp).filter(|below| *below > 0.0);
        let now = self.look.now;
        let seen = self.look.variants.iter().find_map(|one| one.replica).map_or(1.0, |one| one.rate());
        let quiet = removable_below.map_or(0.0, |below| known.peaks.gone_in(now, PEAKS, below / seen));
        let watched = (PEAKS_SEEN - known.peaks.reach(now)).max(0.0);
        let removable_in = control.wait(now, self.look.policy.dwell.get()).max(quiet).max(watched);
        Found {
            demand,
            fleet,
            test: self.test,
            binding: self.test.binding(&fleet),
            peak,
            removable_below,
            removable_in,
            short: self.short(&fleet, &demand),
            replicas: self.replicas.clone(),
        }
    }
}

/// The largest number up to `most` that `holds`, where 0 does and what a larger one holds for a smaller one does too.
fn largest(most: u32, holds: impl Fn(u32) -> bool) -> u32 {
    let (mut low, mut high) = (0, most);
    while low < high {
        // Rounded up, so that it moves.
        let middle = low + (high - low).div_ceil(2);
        if holds(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

/// The number that an HPA follows. It takes anything within `tolerance` of what runs for equal, so a `target` in there is
/// moved past it, up to `most` or down to `least`; down only if `may_pass`, otherwise it stays what runs.
#[must_use]
pub fn past_tolerance(
    running: u32,
    target: u32,
    (least, most): (u32, u32),
    tolerance: f64,
    may_pass: impl Fn(u32) -> bool,
) -> u32 {
    let [low, high] = [1.0 - tolerance, 1.0 + tolerance].map(|share| f64::from(running) * share);
    if running == 0 {
        target
    } else if target > running && f64::from(target) <= high {
        whole(high).saturating_add(1).min(most).max(target)
    } else if target < running && f64::from(target) >= low {
        let past = whole(low.ceil()).saturating_sub(1).max(least);
        if f64::from(past) < low && may_pass(past) { past } else { running.clamp(least, most.max(least)) }
    } else {
        target
    }
}

#[cfg(test)]
mod tests;
