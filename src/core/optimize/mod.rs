//! Turns findings into replica counts. [`cost_aware`] plans one model at a time, [`by_score`] shares what limits leave among models, and
//! [`rescale`] moves GPUs between models by priority.
//!
//! Every optimizer returns one plan for each request, with exactly one target for each candidate and the steps that led there.
//! Without findings a target is the current number. Numbers that are not finite, or negative, count as 0, which means unknown.

#![allow(
    missing_docs,
    reason = "public for the tests of this package only: a doc says what a name and a type do not"
)]

pub mod by_score;
mod cheapest_cover;
pub mod cost_aware;
pub(crate) mod growth;
pub(crate) mod plan_builder;
pub(crate) mod removal;
mod request;
pub mod rescale;
pub(crate) mod votes;
pub mod water_fill;

pub use crate::report::{Addition, OptimizerStep, Vote};
pub use cheapest_cover::{Choice, Cover, cheapest_cover};
pub use request::{Candidate, Plan, Request, VariantTarget};
