//! Scarce resources: GPUs, quotas, power, money. A limit only holds back additions: it evicts no running replica, and stops no removal.
//!
//! Every limit is a budget for each key and a use per replica, so that one `Ledger` answers how many more replicas fit into all of them.
//! [`grant()`] says what happens to a minimum above a limit.

mod budget;
mod free_gpus;
mod grant;
mod inventory;
mod ledger;
mod of_variants;
mod quota;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use budget::SharedGpus;
pub(crate) use budget::only_accelerator;
pub(crate) use budget::{Budget, Footprint, INVENTORY, Limit, UNKNOWN, UNKNOWN_GPUS};
pub(crate) use free_gpus::{FreeGpus, UNLIMITED};
pub(crate) use grant::{Grant, GrantRequest, grant};
pub(crate) use inventory::{Inventory, KnownGpus, inventory};
pub(crate) use ledger::Binding;
pub(crate) use ledger::Ledger;
pub(crate) use of_variants::limits_of_variants;
pub(crate) use quota::Quota;
