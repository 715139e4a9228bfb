//! Turns findings into replica counts. [`cost_aware`] plans one model at a time, [`by_score`] shares what limits leave among models, and
//! [`rescale`] moves GPUs between models by priority.
//!
//! Every optimizer returns one plan for each request, with exactly one target for each candidate and the steps that led there.
//! Without findings a target is the current number. Numbers that are not finite, or negative, count as 0, which means unknown.

pub(crate) mod by_score;
mod cheapest_cover;
pub(crate) mod cost_aware;
pub(crate) mod growth;
pub(crate) mod plan_builder;
pub(crate) mod removal;
mod request;
pub(crate) mod rescale;
pub(crate) mod votes;
pub(crate) mod water_fill;

pub(crate) use crate::report::{Addition, OptimizerStep};
#[cfg(test)]
pub(crate) use cheapest_cover::{Choice, cheapest_cover};
pub(crate) use request::{Candidate, Plan, Request, VariantTarget};
