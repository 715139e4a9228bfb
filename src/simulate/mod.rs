//! Turns scenario files, traces and policy names into scenarios and controllers of the closed-loop simulator ([`wva_sim`]), runs
//! many of them at once, and fits physics to tables of measurements. [`crate::cmd`] shows the results.

pub mod arena;
pub mod calibrate;
pub mod file;
mod input;
pub mod plan;
mod policy;
mod run;
mod summary;
pub mod trace;
pub mod values;

pub use input::InputError;
pub use plan::{Plan, TraceOverride, plans};
pub use policy::controller_for;
pub use run::{Job, Progress, RunDetail, run_all};
pub use summary::{Figure, SummaryLine, summarize};
