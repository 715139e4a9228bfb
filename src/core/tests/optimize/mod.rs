//! Optimizers and limits: differences from upstream, and properties that hold for any input.

mod corrected;
mod fleet;
mod properties;
mod removals;
mod rescaled;
mod turns;
