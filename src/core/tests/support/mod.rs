//! Fixtures, strategies and names that the tests share.

#[allow(dead_code, reason = "shared with the simulator and with unit tests")]
pub(crate) mod cases;
pub(crate) mod closed_form_fleet;
pub(crate) mod fixture;
pub(crate) mod prelude;
pub(crate) mod recorded;
pub(crate) mod scenarios;
pub(crate) mod steady;
pub(crate) mod strategies;
pub(crate) mod vectors;
