//! From the values of one metric to a proposed replica count, and from several proposals to one.

use std::ops::RangeInclusive;

use crate::units::{Replicas, to_f64, truncated_i64, truncated_u32};

/// How a metric's target is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The sum, divided by the target, is the replica count.
    AverageValue,
    /// The sum over the target multiplies the ready replica count.
    Value,
}

/// `metrics[].external.target`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricTarget {
    /// How it is meant.
    pub kind: Kind,
    /// Its value in thousandths, above 0 (the API server validates it).
    pub milli: i64,
}

/// How far usage may be from its target, as a share, before anything changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Below the target.
    pub down: f64,
    /// Above the target.
    pub up: f64,
}

/// The default of the controller's `--horizontal-pod-autoscaler-tolerance`.
pub(crate) const TOLERANCE: f64 = 0.1;

impl Default for Tolerance {
    fn default() -> Self {
        Self { down: TOLERANCE, up: TOLERANCE }
    }
}

impl Tolerance {
    fn holds(self, ratio: f64) -> bool {
        (1.0 - self.down) <= ratio && ratio <= (1.0 + self.up)
    }
}

/// An HPA with this tolerance takes `desired` for what runs already, so that nothing will happen. Source: Kubernetes,
/// `replica_calculator.go` of newer versions, in which both ends of the tolerance count as within it.
pub(crate) fn is_ignored(desired: Replicas, running: Replicas, tolerance: f64) -> bool {
    let ratio = f64::from(desired.get()) / f64::from(running.get());
    desired != running && Tolerance { down: tolerance, up: tolerance }.holds(ratio)
}

/// The number that an HPA follows: a `target` that it would take for the `requested` replicas is moved past its `tolerance`, up to the
/// maximum or down to the minimum of `bounds`. Down only if `may_pass`; otherwise it stays what is requested.
pub fn past_tolerance(
    requested: u32,
    target: u32,
    bounds: RangeInclusive<u32>,
    tolerance: f64,
    may_pass: impl Fn(u32) -> bool,
) -> u32 {
    let is_ignored = |number| is_ignored(Replicas::new(number), Replicas::new(requested), tolerance);
    if !is_ignored(target) {
        return target;
    }
    let (min, max) = (*bounds.start(), *bounds.end());
    if target > requested {
        let high = f64::from(requested) * (1.0 + tolerance);
        return truncated_u32(high).saturating_add(1).min(max).max(target);
    }
    let low = f64::from(requested) * (1.0 - tolerance);
    let past = truncated_u32(low.ceil()).saturating_sub(1).max(min);
    let is_past = past < requested && !is_ignored(past);
    if is_past && may_pass(past) { past } else { requested.clamp(min, max.max(min)) }
}

/// The nearest number above `running` that an HPA with the default tolerance acts on: exact, in whole tenths.
pub(crate) fn next_above(running: Replicas) -> Replicas {
    let running = i64::from(running.get());
    Replicas::saturating_from((running + 1).max(running * 11 / 10 + 1))
}

/// The nearest number below `running` that an HPA with the default tolerance acts on.
pub(crate) fn next_below(running: Replicas) -> Replicas {
    let running = i64::from(running.get());
    Replicas::saturating_from((running * 9 + 9) / 10 - 1)
}

/// The scale object's counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// `spec.replicas`.
    pub spec: Replicas,
    /// `status.replicas`.
    pub status: Replicas,
    /// `status.readyReplicas`, or `status` where the target does not say.
    pub ready: Replicas,
}

/// A value in thousandths, as a quantity carries it.
#[must_use]
pub fn milli(value: f64) -> i64 {
    // Saturates, as the controller's sum does.
    truncated_i64((value * 1000.0).round())
}

/// What one external metric asks for: all returned `items` (in thousandths) are added up. `None` when there is none.
#[must_use]
pub fn propose(
    items: &[i64],
    target: MetricTarget,
    counts: Counts,
    tolerance: Tolerance,
) -> Option<Replicas> {
    if items.is_empty() {
        return None;
    }
    let usage = to_f64(items.iter().fold(0_i64, |sum, item| sum.saturating_add(*item)));
    let target_value = to_f64(target.milli);
    Some(match target.kind {
        Kind::AverageValue => {
            // With no replicas the ratio is infinite or not a number: outside every tolerance.
            let ratio = usage / (target_value * f64::from(counts.status.get()));
            if tolerance.holds(ratio) { counts.status } else { Replicas::ceil(usage / target_value) }
        }
        Kind::Value => {
            let ratio = usage / target_value;
            if counts.spec == Replicas::ZERO {
                Replicas::ceil(ratio)
            } else if tolerance.holds(ratio) {
                counts.spec
            } else {
                Replicas::ceil(ratio * f64::from(counts.ready.get()))
            }
        }
    })
}

/// One proposal from several metrics (`None`: that metric failed). `None` when nothing may change.
#[must_use]
pub fn combine(proposals: &[Option<Replicas>], spec: Replicas) -> Option<Replicas> {
    let most = proposals.iter().flatten().max().copied()?;
    let some_failed = proposals.iter().any(Option::is_none);
    // A metric that failed might have asked for more, so the others may not shrink without it.
    if some_failed && most < spec { None } else { Some(most) }
}
