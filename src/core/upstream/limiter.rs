//! GPUs by spare capacity, as upstream's limiter hands them out. Source: WVA v0.9,
//! `internal/engines/pipeline/greedy_saturation_algorithm.go` and `default_limiter.go`.

use std::collections::BTreeMap;

use smol_str::SmolStr;

use crate::limit::{
    Budget, Footprint, FreeGpus, Grant, GrantRequest, Inventory, KnownGpus, Limit, only_accelerator,
};
use crate::units::Replicas;

/// Free GPUs by accelerator.
pub(crate) type Pools = BTreeMap<SmolStr, i64>;

/// Defect: GPUs that others use count as free, and accelerators that are not listed count as not there.
pub(crate) fn inventory(known: KnownGpus<'_>) -> Inventory<'_> {
    Inventory { gpus: known.inventory, elsewhere: None, unlabelled: None, is_open: false }
}

/// What `limits` leave of `requests`. Upstream's pools (inventory, quota of the cluster) come first; the other limits, which upstream does not have,
/// apply to what the pools grant.
pub(crate) fn grant(requests: &[GrantRequest], limits: &[Limit]) -> Vec<Grant> {
    let (pools, others): (Vec<Limit>, Vec<Limit>) = limits.iter().cloned().partition(is_pool);
    if pools.is_empty() {
        return crate::limit::grant(requests, limits);
    }
    let usage: Vec<_> =
        requests.iter().map(|request| (request.footprint(), i64::from(request.current.get()))).collect();
    let of_pools = grant_by_spare(requests, &mut free_gpus(&pools, &usage).cluster);
    let left: Vec<GrantRequest> = requests
        .iter()
        .zip(&of_pools)
        .map(|(request, grant)| GrantRequest { proposed: grant.granted, ..request.clone() })
        .collect();
    let of_others = crate::limit::grant(&left, &others);
    let both = of_pools.into_iter().zip(of_others).map(|(of_pool, of_other)| Grant {
        proposed: of_pool.proposed,
        gpus: of_pool.gpus.min(of_other.gpus),
        is_limited: of_pool.is_limited || of_other.is_limited,
        ..of_other
    });
    both.collect()
}

/// The limit is one of upstream's pools: GPUs by accelerator, for the whole cluster.
pub(crate) fn is_pool(limit: &Limit) -> bool {
    match &limit.budget {
        Budget::Inventory(_) => true,
        Budget::Quota(quota) => !quota.by_namespace(),
        Budget::Power { .. } | Budget::Spend(_) | Budget::OfVariants(_) => false,
    }
}

/// What `limits` leave beside `usage`. Defect: a quota switches the inventory off.
pub(crate) fn free_gpus(limits: &[Limit], usage: &[(Footprint<'_>, i64)]) -> FreeGpus {
    let has_quota = limits.iter().any(|limit| matches!(limit.budget, Budget::Quota(_)));
    let counts = |limit: &&Limit| !(has_quota && matches!(limit.budget, Budget::Inventory(_)));
    let limits: Vec<Limit> = limits.iter().filter(counts).cloned().collect();
    FreeGpus::new(&limits, usage)
}

/// Grants by spare capacity and cost, ties in the given order. `pools` are the free GPUs, before and after. Defect: GPUs that are too few for a whole
/// replica are lost for all.
pub(crate) fn grant_by_spare(requests: &[GrantRequest], pools: &mut Pools) -> Vec<Grant> {
    let mut grants: Vec<Grant> = requests.iter().map(GrantRequest::unlimited).collect();
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by(|left, right| {
        let by_spare = requests[*left].spare.total_cmp(&requests[*right].spare);
        by_spare.then_with(|| requests[*left].cost.get().total_cmp(&requests[*right].cost.get()))
    });
    for index in order {
        let request = &requests[index];
        let grant = &mut grants[index];
        if request.missing_to(request.proposed) <= 0 {
            grant.granted = request.proposed;
            continue;
        }
        let missing = request.missing_to(grant.proposed);
        if missing <= 0 {
            continue;
        }
        let per_replica = i64::from(request.gpus.unwrap_or(1).max(1));
        let name = request.accelerator.as_deref().or_else(|| only_accelerator(pools)).map(SmolStr::from);
        let mut taken = 0;
        if let Some(free) = name.filter(|_| request.gpus.is_some()).and_then(|name| pools.get_mut(&name)) {
            taken = missing.saturating_mul(per_replica).min(*free).max(0);
            *free -= taken;
        }
        let fit = taken / per_replica;
        grant.gpus = fit.saturating_mul(per_replica);
        grant.is_limited = fit < missing;
        let target = Replicas::saturating_from(i64::from(request.current.get()) + fit);
        grant.granted = target.max(request.bounds.min);
    }
    grants
}
