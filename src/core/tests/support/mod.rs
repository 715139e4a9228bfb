//! What tests share.

pub(crate) mod cases;
pub(crate) mod matrix;
pub(crate) mod odd;
pub(crate) mod plant;
pub(crate) mod steady;
pub(crate) mod vectors;
pub(crate) mod world;
