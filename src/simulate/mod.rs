//! Simulations as people ask for them: scenario files, traces and policies become scenarios and controllers of the core's
//! closed-loop simulator ([`wva_sim`]), many of which run at once; measured tables become physics.
//!
//! Nothing here simulates and nothing is shown: the one is the core's, the other [`crate::cmd`]'s.

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

pub use plan::{Given, Plan, PlanError, plans};
pub use policy::{PolicyError, policy};
pub use run::{Job, Keep, Running, start};
pub use summary::{Figure, Line, Row, rows};
