//! Scarce resources: GPUs, quotas, power, money. A limit holds back additions and nothing else: running replicas are never evicted
//! for it, and it never stops a removal.
//!
//! Every limit is a budget by key and a use per replica, so that whoever hands out replicas asks one `Ledger` how many more fit.
//! [`grant()`] says what happens to a minimum above a limit.

mod budget;
mod free_gpus;
mod grant;
mod ledger;
mod quota;
#[cfg(test)]
mod tests;

pub(crate) use budget::only_accelerator;
pub use budget::{Budget, Footprint, Limit};
pub use free_gpus::{FreeGpus, UNLIMITED};
pub use grant::{Grant, GrantRequest, grant};
pub use ledger::Binding;
pub(crate) use ledger::Ledger;
pub use quota::Quota;
