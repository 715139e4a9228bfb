//! Numbers for HPAs with a target of the type `Value`, where that is switched on: the HPA controller multiplies what it reads by its Ready pods,
//! so it is served divided by them. Pure.

use wva_core::VariantId;
use wva_core::decision::Target;
use wva_core::units::Replicas;

use super::context::MetricQuery;
use super::errors::{no_ready_pod, unknown_readers};
use super::metric::Metric;
use crate::serve::encoding::Status;
use crate::serve::paths::EXTERNAL_GROUP;

/// The thousandths of a number that all its readers multiply, rounded down, so that the product is rounded up to the number itself, for
/// fewer than 1,000 pods. `None` where it is served as it is.
///
/// # Errors
/// While no pod is Ready, since the product would be 0; and while the HPAs are not known.
pub(super) fn divided(
    metric: Metric,
    id: &VariantId,
    target: &Target,
    query: &MetricQuery<'_>,
) -> Result<Option<f64>, Status> {
    let view = &query.context.view;
    let Some(targets) = &view.value_targets else { return Ok(None) };
    if metric != Metric::Desired || query.group != EXTERNAL_GROUP {
        return Ok(None);
    }
    if !targets.are_known {
        return Err(unknown_readers(id, target, query));
    }
    let Some(pods) = targets.multipliers.get(id) else { return Ok(None) };
    // Of a workload at zero, the controller takes the value as it is.
    if view.variant(id).and_then(|state| state.scale).is_some_and(|scale| scale.spec == Replicas::ZERO) {
        return Ok(None);
    }
    let thousandths = quotient(target.desired.get(), *pods).ok_or_else(|| no_ready_pod(id, target, query))?;
    // Below 2⁴², so exact.
    Ok(Some(wva_core::units::to_f64(thousandths)))
}

/// The thousandths of `desired` / `pods`, rounded down; `None` for no pods. The controller multiplies in doubles, so that even an exact
/// quotient can have a product just above the number, of which it would make a replica too many: that quotient is a thousandth less.
fn quotient(desired: u32, pods: u32) -> Option<i64> {
    let thousandths = (i64::from(desired) * 1000).checked_div(i64::from(pods))?;
    let is_above = product(thousandths, pods) > f64::from(desired);
    Some(thousandths - i64::from(is_above))
}

/// What the controller makes of it before it rounds up, computed in the same order.
fn product(thousandths: i64, pods: u32) -> f64 {
    wva_core::units::to_f64(thousandths) / 1000.0 * f64::from(pods)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The replicas that the controller makes of what it reads.
    fn replicas(desired: u32, pods: u32) -> u32 {
        wva_core::units::truncated_u32(product(quotient(desired, pods).unwrap(), pods).ceil())
    }

    #[test]
    fn the_product_of_an_exact_quotient_was_a_replica_too_many_in_doubles() {
        // 0.28 × 25 is 7.000000000000001.
        assert_eq!((quotient(7, 25), replicas(7, 25)), (Some(279), 7));
        assert_eq!((quotient(110, 100), replicas(110, 100)), (Some(1099), 110));
        assert_eq!((quotient(7, 3), quotient(5, 5), quotient(5, 0)), (Some(2333), Some(1000), None));
        for (desired, pods) in (0..300).flat_map(|desired| (1..1000).map(move |pods| (desired, pods))) {
            assert_eq!(replicas(desired, pods), desired, "{desired} replicas, {pods} pods");
        }
    }

    proptest! {
        #[test]
        fn the_product_is_rounded_up_to_the_number(desired in 0_u32..100_000, pods in 1_u32..1000) {
            prop_assert_eq!(replicas(desired, pods), desired);
        }
    }
}
