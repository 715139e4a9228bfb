//! Whether the nodes have room for the maximum of each variant.

use std::collections::BTreeMap;

use smol_str::SmolStr;
use wva_core::snapshot::VariantState;

use super::policy::Loaded;
use super::report::Report;
use crate::cluster::objects::VariantKind;
use crate::cluster::watch::NodeRoom;
use crate::lint::Severity;

/// Checks the maxima of all variants against the GPUs of the nodes, where these are known.
pub(super) fn check(loaded: &Loaded, report: &mut Report) {
    let mut wanted: BTreeMap<SmolStr, u64> = BTreeMap::new();
    for VariantState { variant, template, .. } in &loaded.state.view.variants {
        let (Some(room), Some(accelerator), Some(gpus), Some(max)) =
            (loaded.rooms.get(&variant.id), &variant.accelerator, template.gpus, variant.bounds.max)
        else {
            continue;
        };
        let (gpus, max) = (u64::from(gpus), max.get());
        let kind = loaded.state.objects.get(&variant.id).map(|object| object.kind).unwrap_or_default();
        let object = format!("{kind} {}", variant.id);
        if room.named == 0 {
            report.add(
                (Severity::Warning, "AcceleratorNotFound"),
                object,
                format!("its replicas need {accelerator}"),
                "no schedulable node has a label that names this accelerator: new pods stay Pending, unless such nodes are added",
                "# label the nodes (nvidia.com/gpu.product, …), or correct the accelerator of the workload",
            );
            continue;
        }
        let needed = gpus * u64::from(max);
        *wanted.entry(accelerator.to_ascii_uppercase().into()).or_default() += needed;
        if max > room.replicas {
            report.add(
                (Severity::Warning, "NoRoomForMaximum"),
                object,
                format!("maxReplicas {max} with {} each need {needed} {accelerator}", counted(gpus, "GPU")),
                room_for(room, accelerator, gpus),
                fix(room, kind, variant.bounds.min.get()),
            );
        }
    }
    check_sums(loaded, wanted, report);
}

/// What the nodes have room for, and what happens beyond it.
fn room_for(room: &NodeRoom, accelerator: &str, gpus: u64) -> String {
    let &NodeRoom { named, suitable, largest, replicas } = room;
    let rules = "its tolerations, node selector and required affinity allow";
    let nodes = format!("{} with {accelerator}", counted(named as u64, "node"));
    let replicas_fit = counted(u64::from(replicas), "replica");
    let fits = match suitable {
        0 => format!("{rules} none of the {nodes}"),
        _ if replicas == 0 => {
            let allowed = counted(suitable as u64, "node");
            format!(
                "a replica with {gpus} GPUs does not fit on the {allowed} that it may run on, of which the largest has {largest}"
            )
        }
        _ if suitable < named => format!("{rules} {suitable} of the {nodes}, with room for {replicas_fit}"),
        _ => format!("there is room for {replicas_fit} on the {nodes}"),
    };
    let beyond = if replicas == 0 { "its" } else { "further" };
    format!("{fits}: {beyond} pods stay Pending, unless nodes are added, and requests wait")
}

fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn fix(room: &NodeRoom, kind: VariantKind, min: u32) -> String {
    match room {
        NodeRoom { suitable: 0, .. } => {
            "# correct tolerations, nodeSelector or affinity of the pod template, or add nodes that they allow".to_owned()
        }
        NodeRoom { replicas: 0, .. } => {
            "# add larger nodes, or let each replica need fewer GPUs".to_owned()
        }
        NodeRoom { replicas, .. } if *replicas < min => "# add nodes, or lower the minimum too".to_owned(),
        NodeRoom { replicas, .. } => {
            let field = if kind == VariantKind::ScaledObject { "maxReplicaCount" } else { "maxReplicas" };
            format!("spec:\n  {field}: {replicas}")
        }
    }
}

/// Checks the sum of all maxima. `wanted` has the GPUs that they need, by accelerator in upper case.
fn check_sums(loaded: &Loaded, wanted: BTreeMap<SmolStr, u64>, report: &mut Report) {
    let Some(inventory) = &loaded.state.view.inventory else { return };
    for (accelerator, needed) in wanted {
        let named = || inventory.iter().filter(|(name, _)| name.eq_ignore_ascii_case(&accelerator));
        let available: u64 = named().map(|(_, gpus)| u64::from(*gpus)).sum();
        let name = named().next().map_or(&accelerator, |(name, _)| name);
        if needed > available {
            report.add(
                (Severity::Note, "MaximaExceedNodes"),
                format!("accelerator {name}"),
                format!("the maxima of all variants together need {needed} GPUs, and the nodes have {available}"),
                "not all variants reach their maximum at once: enableLimiter shares the GPUs by priority, or pods stay Pending",
                "# in the entry `default` of the saturation ConfigMap\nenableLimiter: true",
            );
        }
    }
}
