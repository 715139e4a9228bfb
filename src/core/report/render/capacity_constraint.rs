//! The text of what keeps a variant from the replicas that it needs, and of what would end that.

use std::fmt::{self, Display, Formatter};

use super::counted;
use crate::limit::{Binding, INVENTORY, UNKNOWN, UNKNOWN_GPUS};
use crate::report::AdjustmentReason;
use crate::report::capacity_constraint::{CapacityConstraint, Cause};
use crate::snapshot::VariantLimit;

impl Display for CapacityConstraint<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            Cause::Limit(adjustment) => {
                write!(f, "{adjustment}; ")?;
                match &adjustment.why {
                    AdjustmentReason::Limit { binding: Some(binding) } => write_remedy(f, binding),
                    _ => f.write_str("it ends when GPUs of the accelerator are freed or added"),
                }
            }
            Cause::LimitBefore => f.write_str(
                "a limit has denied replicas within the last minute; it ends when the limit is raised, or others use less of it",
            ),
            Cause::NoNode { pods, message } => {
                write!(f, "no node has room for {}; ", counted(pods, "pod"))?;
                if let Some(message) = message {
                    write!(f, "the scheduler says: {message}; ")?;
                }
                f.write_str("it ends when nodes are added, or room on them is freed")
            }
        }
    }
}

fn write_remedy(f: &mut Formatter<'_>, binding: &Binding) -> fmt::Result {
    let Binding { limit, key, .. } = binding;
    if key == UNKNOWN {
        return f.write_str(
            "what a replica uses of it is not known: name the variant's accelerator, and list it in the limit",
        );
    }
    if key == UNKNOWN_GPUS {
        return f.write_str("it ends when the workload has a pod template, or a pod of it runs on a node");
    }
    if limit == INVENTORY {
        return write!(f, "it ends when nodes with {key} are added, or others use fewer");
    }
    if limit == VariantLimit::SUITABLE_NODES {
        return f.write_str(
            "it ends when nodes are added that its tolerations, node selector and required affinity allow, or others use fewer",
        );
    }
    if limit == VariantLimit::CLOSED_QUEUE {
        return f.write_str("it ends when the queue admits workloads again");
    }
    f.write_str("it ends when the limit is raised, or others use less of it")
}
