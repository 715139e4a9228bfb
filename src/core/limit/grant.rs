//! Grants what limits leave to the proposed numbers, the neediest first.
//!
//! A minimum counts more than a limit, because the user asked for it; its pods may have to wait for resources. So minima are granted first, and
//! what they use beyond a budget is not available to the others.

use std::cmp::Ordering;

use smol_str::SmolStr;

use super::budget::{Footprint, Limit};
use super::ledger::{Binding, Ledger};
use crate::model::{Bounds, VariantId};
use crate::units::{Cost, Replicas, Watts};

/// A proposed number of replicas.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GrantRequest {
    /// The variant.
    pub id: VariantId,
    /// Replicas it has.
    pub current: Replicas,
    /// Replicas proposed for it.
    pub proposed: Replicas,
    /// Its bounds.
    pub bounds: Bounds,
    /// Its model's priority; a higher one is served first.
    pub priority: f64,
    /// The spare capacity of its model; a smaller one is served first.
    pub spare: f64,
    /// Cost units an hour of a replica; a smaller one is served first.
    pub cost: Cost,
    /// The accelerator's name, if it is known.
    pub accelerator: Option<SmolStr>,
    /// GPUs of a replica, of which 0 counts as 1; `None` if their number is not known.
    pub gpus: Option<u32>,
    /// Power of a replica, if it is known.
    pub watts: Option<Watts>,
}

/// What limits leave of a proposed number.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Grant {
    /// The variant.
    pub id: VariantId,
    /// Replicas that were proposed, within the bounds.
    pub proposed: Replicas,
    /// Replicas it gets.
    pub granted: Replicas,
    /// GPUs that were free for what was added.
    pub gpus: i64,
    /// Fewer replicas were free than proposed. Its minimum may still make `granted` more than was free.
    pub is_limited: bool,
    /// The limit that held it back; `None` for upstream's pools, which have no name.
    pub binding: Option<Binding>,
}

impl GrantRequest {
    /// What a replica of it uses.
    #[must_use]
    pub(crate) fn footprint(&self) -> Footprint<'_> {
        Footprint {
            namespace: &self.id.namespace,
            variant: &self.id.name,
            accelerator: self.accelerator.as_deref(),
            gpus: self.gpus,
            watts: self.watts,
            cost: self.cost,
        }
    }

    /// The proposed number, within the maximum, without any limits.
    pub(crate) fn unlimited(&self) -> Grant {
        let max = self.bounds.max.map(|max| max.max(self.bounds.min));
        let proposed = max.map_or(self.proposed, |max| max.min(self.proposed));
        Grant { id: self.id.clone(), proposed, granted: proposed, gpus: 0, is_limited: false, binding: None }
    }

    /// GPUs of `replicas`, 1 for each where their number is not known.
    fn gpus_of(&self, replicas: i64) -> i64 {
        replicas.saturating_mul(i64::from(self.gpus.unwrap_or(1).max(1)))
    }

    /// Replicas to be added to reach `target`; negative for a removal.
    pub(crate) fn missing_to(&self, target: Replicas) -> i64 {
        i64::from(target.get()) - i64::from(self.current.get())
    }
}

/// What `limits` leave of `requests`, in the same order. Minima are served first, then the rest by priority, spare capacity, cost
/// and name, whatever the order of `requests` is. Only additions are held back.
#[must_use]
pub(crate) fn grant(requests: &[GrantRequest], limits: &[Limit]) -> Vec<Grant> {
    let usage = requests.iter().map(|request| (request.footprint(), i64::from(request.current.get())));
    let mut ledger = Ledger::new(limits, usage);
    let mut grants: Vec<Grant> = requests.iter().map(GrantRequest::unlimited).collect();
    let mut order: Vec<usize> = (0..requests.len())
        .filter(|index| requests[*index].missing_to(grants[*index].proposed) > 0)
        .collect();
    order.sort_by(|left, right| by_need(&requests[*left], &requests[*right]));
    // First all minima, whether they fit or not, so that the second pass sees what is really left.
    let mut added = vec![0; requests.len()];
    for index in &order {
        let request = &requests[*index];
        let grant = &mut grants[*index];
        grant.proposed = grant.proposed.max(request.bounds.min);
        let missing = request.missing_to(request.bounds.min).max(0);
        let (room, binding) = ledger.room(&request.footprint());
        // Only what was free counts as GPUs; the rest of a minimum waits for its resources.
        grant.gpus = request.gpus_of(missing.min(room));
        grant.binding = binding.filter(|_| room < missing);
        added[*index] = missing;
        ledger.take(&request.footprint(), missing);
    }
    for index in order {
        let request = &requests[index];
        let grant = &mut grants[index];
        let missing = request.missing_to(grant.proposed) - added[index];
        let (room, binding) = ledger.room(&request.footprint());
        let fit = missing.min(room);
        ledger.take(&request.footprint(), fit);
        grant.gpus = grant.gpus.saturating_add(request.gpus_of(fit));
        // The limit that its minimum exceeds explains more.
        grant.binding = grant.binding.take().or(binding.filter(|_| room < missing));
        grant.is_limited = grant.binding.is_some();
        grant.granted = Replicas::saturating_from(i64::from(request.current.get()) + added[index] + fit);
    }
    grants
}

/// The higher priority first, then less spare capacity, then the lower cost, then the name.
fn by_need(left: &GrantRequest, right: &GrantRequest) -> Ordering {
    let by_priority = right.priority.total_cmp(&left.priority);
    by_priority
        .then_with(|| left.spare.total_cmp(&right.spare))
        .then_with(|| left.cost.get().total_cmp(&right.cost.get()))
        .then_with(|| left.id.cmp(&right.id))
}
