//! The decision core of `wva`. Values in, values out: no clock, no I/O, no async, no randomness, no Kubernetes.
//!
//! Two entry points share one [`Memory`]: [`observe()`] folds a [`Snapshot`] into what is remembered, [`decide()`] turns
//! a snapshot, the memory and a [`Policy`] into an [`Outcome`]. Same input, same bytes out.

pub mod analyze;
pub mod bound;
pub mod by_name;
#[allow(dead_code, reason = "shared with the tests outside")]
#[cfg(test)]
#[path = "tests/support/cases.rs"]
mod cases;
pub mod check;
mod clean;
pub mod decide;
pub mod decision;
pub mod hpa;
pub mod isolate;
pub mod learn;
pub mod limit;
pub mod memory;
pub mod model;
pub mod needs;
pub mod observe;
pub mod optimize;
pub mod progress;
pub mod quality;
pub mod report;
pub mod sequences;
pub mod snapshot;
pub mod units;
pub mod victims;

pub use clean::clean_all;
pub use decide::{decide, decide_watched};
pub use decision::{Decision, Outcome};
pub use isolate::give_up;
pub use memory::Memory;
pub use model::{GroupId, Policy, Variant, VariantId};
pub use needs::{Needs, needs};
pub use observe::{observe, observe_watched};
pub use progress::Progress;
pub use report::Report;
pub use snapshot::Snapshot;
