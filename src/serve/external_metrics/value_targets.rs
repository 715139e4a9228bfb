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
    let thousandths = (u64::from(target.desired.get()) * 1000).checked_div(u64::from(*pods));
    let thousandths = thousandths.ok_or_else(|| no_ready_pod(id, target, query))?;
    // Below 2⁴², so exact.
    Ok(Some(wva_core::units::to_f64(i64::try_from(thousandths).unwrap_or_default())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_product_is_rounded_up_to_the_number(desired in 0_u64..100_000, pods in 1_u64..1000) {
            let thousandths = desired * 1000 / pods;
            // As the controller computes it, in doubles.
            let product = (thousandths as f64 / 1000.0) * pods as f64;
            prop_assert_eq!(product.ceil() as u64, desired);
        }
    }
}
