//! Fits physics to measurements: reads a table of prefill and decode times and finds the four parameters of a step that fit it
//! best.

mod fit;
mod table;

pub use fit::{Errors, Fit, Worst, fit};
pub use table::{BatchSize, Group, Measurement, read};
