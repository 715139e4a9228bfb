//! What tests share.

#[allow(dead_code, reason = "shared with the simulator and with unit tests")]
pub(crate) mod cases;
pub(crate) mod odd;
pub(crate) mod plant;
pub(crate) mod steady;
pub(crate) mod vectors;
pub(crate) mod world;
