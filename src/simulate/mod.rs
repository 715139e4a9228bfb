//! Turns scenario files, traces and policy names into scenarios and controllers of the closed-loop simulator ([`wva_sim`]), runs
//! many of them at once, and fits physics to tables of measurements. [`crate::cmd`] shows the results.

pub mod calibrate;
mod fields;
pub mod file;
mod input;
pub mod plan;
mod policy;
mod run;
mod summary;
pub mod trace;
pub mod values;

pub use plan::{Plan, PlanError, TraceOverride, plans};
pub use policy::{PolicyError, policy};
pub use run::{Job, RunDetail, RunningJobs, start};
pub use summary::{Figure, Figures, SummaryLine, summarize};
