//! Whether the nodes have room for the maximum of each variant.

use std::collections::BTreeMap;

use smol_str::SmolStr;
use wva_core::snapshot::VariantState;

use super::report::Report;
use crate::cluster::ClusterState;
use crate::lint::Severity;

/// Checks the maxima of all variants against the GPUs of the nodes, where these are known.
pub(super) fn check(state: &ClusterState, report: &mut Report) {
    let Some(inventory) = state.view.inventory.as_ref().filter(|inventory| !inventory.is_empty()) else {
        return;
    };
    let mut wanted: BTreeMap<SmolStr, u64> = BTreeMap::new();
    for VariantState { variant, template, .. } in &state.view.variants {
        let (Some(accelerator), Some(gpus), Some(max)) =
            (&variant.accelerator, template.gpus, variant.bounds.max)
        else {
            continue;
        };
        let kind = state.objects.get(&variant.id).map(|object| object.kind).unwrap_or_default();
        let object = format!("{kind} {}", variant.id);
        let named = inventory.iter().find(|(name, _)| name.eq_ignore_ascii_case(accelerator));
        let Some((name, available)) = named else {
            report.add(
                (Severity::Warning, "AcceleratorNotFound"),
                object,
                format!("its replicas need {accelerator}"),
                "no schedulable node has a label that names this accelerator: new pods stay Pending, unless such nodes are added",
                "# label the nodes (nvidia.com/gpu.product, …), or correct the accelerator of the workload",
            );
            continue;
        };
        let needed = u64::from(gpus) * u64::from(max.get());
        *wanted.entry(name.clone()).or_default() += needed;
        if needed > u64::from(*available) {
            let fits = available / gpus.max(1);
            report.add(
                (Severity::Warning, "NoRoomForMaximum"),
                object,
                format!("maxReplicas {max} with {gpus} GPUs each need {needed} {accelerator}", max = max.get()),
                format!("the nodes have {available}: beyond {fits} replicas pods stay Pending, unless nodes are added, and requests wait"),
                format!("spec:\n  maxReplicas: {}", fits.max(1)),
            );
        }
    }
    for (accelerator, needed) in wanted {
        let available = inventory.get(&accelerator).copied().unwrap_or_default();
        if needed > u64::from(available) {
            report.add(
                (Severity::Note, "MaximaExceedNodes"),
                format!("accelerator {accelerator}"),
                format!("the maxima of all variants together need {needed} GPUs, and the nodes have {available}"),
                "not all variants reach their maximum at once: enableLimiter shares the GPUs by priority, or pods stay Pending",
                "# in the entry `default` of the saturation ConfigMap\nenableLimiter: true",
            );
        }
    }
}
