//! What one look at a role sees.

use smol_str::SmolStr;

use super::capacity::Replica;
use crate::model::{Bounds, RatePolicy, Role};
use crate::moment::Moment;
use crate::units::{Cost, Replicas, Seconds};

/// One variant, as the policy sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Variant {
    /// Its name.
    pub name: SmolStr,
    /// What a replica costs.
    pub cost: Cost,
    /// How few and how many replicas it may have.
    pub bounds: Bounds,
    /// Replicas that were promised: what the last decision committed to.
    pub target: Replicas,
    /// Replicas that the scale object asks for now.
    pub running: Replicas,
    /// Of the target, replicas that are not counted on: no node has room, they should have started long ago, or they were
    /// ready and have failed.
    pub lost: Replicas,
    /// It cannot get more for now: no node has room, or what was ordered did not come.
    pub full: bool,
    /// Pods that serve, and those that will: in how many seconds.
    pub pods: Vec<Seconds>,
    /// How long a pod takes to start.
    pub start: Seconds,
    /// What one replica carries, when it was seen working.
    pub replica: Option<Replica>,
}

/// What one look at a role sees.
#[derive(Debug, Clone, PartialEq)]
pub struct Look<'a> {
    /// The moment.
    pub now: Moment,
    /// The role.
    pub role: Role,
    /// Its variants, by name.
    pub variants: Vec<Variant>,
    /// Requests that wait, at the gateway or in pods.
    pub waiting: f64,
    /// Requests that run.
    pub running: f64,
    /// Everything was measured, so that something may be removed.
    pub may_remove: bool,
    /// By how much more than is estimated what arrives may be, at least 1: pods that are not measured may be the busiest.
    pub hidden: f64,
    /// What an HPA takes for equal, as a share of what runs.
    pub tolerance: f64,
    /// What the user wants.
    pub policy: &'a RatePolicy,
}

/// Every variant's replica: those never seen working by one that was and whose cost is the nearest. `None` when none was.
#[must_use]
pub(super) fn replicas(variants: &[Variant]) -> Option<Vec<Replica>> {
    let known = || variants.iter().filter_map(|one| one.replica.map(|replica| (one, replica)));
    known().next()?;
    let guess = |own: &Variant| {
        let off = |other: &Variant| (other.cost.get() - own.cost.get()).abs();
        let nearest = known().min_by(|(one, _), (other, _)| off(one).total_cmp(&off(other)));
        nearest.map(|(other, replica)| {
            let ratio = own.cost.get() / other.cost.get();
            replica.unseen(if ratio.is_finite() && ratio > 0.0 { ratio } else { 1.0 })
        })
    };
    variants.iter().map(|own| own.replica.or_else(|| guess(own))).collect()
}
