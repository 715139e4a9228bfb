//! The decision core of `wva`: values in, values out. No clock, no I/O, no async, no randomness, no Kubernetes types.
//!
//! Two entry points share one [`Memory`]: [`observe()`] adds what a [`Snapshot`] shows to what is remembered, [`decide()`] turns
//! a snapshot, the memory and a [`Policy`] into an [`Outcome`]. The same input always gives the same bytes.

// The tests in `tests` name the core as other packages do, but are compiled into it: they compare algorithms with upstream's that are not
// public.
#[cfg(test)]
extern crate self as wva_core;

pub(crate) mod analyze;
pub(crate) mod arithmetic;
pub(crate) mod bound;
pub mod check;
pub mod decide;
pub mod decision;
#[cfg(test)]
mod fixture;
pub mod hpa;
pub mod isolate;
pub(crate) mod learn;
pub(crate) mod limit;
pub mod memory;
pub mod model;
pub(crate) mod moment;
pub mod name_map;
mod normalize;
pub mod observe;
pub(crate) mod optimize;
pub mod outcome;
pub mod pod_deletion_order;
pub mod progress;
pub mod quality;
pub mod report;
pub mod required_signals;
pub(crate) mod sequence_limit;
pub mod snapshot;
#[cfg(test)]
#[path = "tests/main.rs"]
mod tests;
pub mod text;
pub mod units;
pub(crate) mod upstream;
pub mod usage;

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
