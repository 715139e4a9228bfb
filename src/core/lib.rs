//! The decision core of `wva`: values in, values out. No clock, no I/O, no async, no randomness, no Kubernetes types.
//!
//! Two entry points share one [`Memory`]: [`observe()`] adds what a [`Snapshot`] shows to what is remembered, [`decide()`] turns
//! a snapshot, the memory and a [`Policy`] into an [`Outcome`]. The same input always gives the same bytes.

pub mod analyze;
pub mod arithmetic;
pub mod bound;
#[allow(dead_code, reason = "shared with the integration tests")]
#[cfg(test)]
#[path = "tests/support/cases.rs"]
mod cases;
pub mod check;
pub mod decide;
pub mod decision;
#[cfg(test)]
mod fixture;
pub mod hpa;
pub mod isolate;
pub mod learn;
pub mod limit;
pub mod memory;
pub mod model;
pub mod moment;
pub mod name_map;
mod normalize;
pub mod observe;
pub mod optimize;
pub mod outcome;
pub mod pod_deletion_order;
pub mod progress;
pub mod quality;
pub mod report;
pub mod required_signals;
pub(crate) mod sequence_limit;
pub mod snapshot;
pub mod units;
pub mod upstream;

pub use decide::{decide, decide_watched};
pub use decision::Decision;
pub use memory::{Memory, give_up};
pub use model::{GroupId, Policy, Variant, VariantId};
pub use normalize::normalize;
pub use observe::{observe, observe_watched};
pub use outcome::Outcome;
pub use progress::Progress;
pub use report::Report;
pub use required_signals::{RequiredSignals, required_signals};
pub use snapshot::Snapshot;
