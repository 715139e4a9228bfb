//! What limits a number after every analyzer. Minimum and maximum are [`crate::model::Bounds`]; here is the rest.

pub(crate) mod enforcer;
pub(crate) mod stability;
