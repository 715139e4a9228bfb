//! The cluster's GPUs as a limit, and when they are one.

use std::collections::BTreeMap;

use smol_str::SmolStr;

/// GPUs by accelerator.
type Gpus = BTreeMap<SmolStr, u32>;

/// What is known of the cluster's GPUs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KnownGpus<'s> {
    /// `None` if nodes are not watched.
    pub(crate) inventory: Option<&'s Gpus>,
    /// Used by pods that are not of any variant.
    pub(crate) elsewhere: &'s Gpus,
    /// A node with GPUs whose accelerator has no label.
    pub(crate) unlabelled: Option<&'s SmolStr>,
}

/// The inventory as a limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inventory<'s> {
    /// The GPUs that it limits; `None` if they are not known.
    pub(crate) gpus: Option<&'s Gpus>,
    pub(crate) elsewhere: Option<&'s Gpus>,
    /// The node that leaves it without force.
    pub(crate) unlabelled: Option<&'s SmolStr>,
    /// Accelerators that it does not list are not limited.
    pub(crate) is_open: bool,
}

/// An inventory without GPUs is none, because nodes without labels have GPUs, too. An `open` limit is not in force either if it is known to be
/// incomplete.
pub(crate) fn inventory(known: KnownGpus<'_>, open: bool) -> Inventory<'_> {
    let unlabelled = known.unlabelled.filter(|_| open);
    let gpus = known.inventory.filter(|gpus| !gpus.is_empty() && unlabelled.is_none());
    Inventory { gpus, elsewhere: Some(known.elsewhere), unlabelled, is_open: open }
}
