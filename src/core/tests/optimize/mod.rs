//! Optimizers and limits: where the default differs from upstream, and what holds for every input.

mod corrected;
mod fleet;
mod properties;
mod removals;
mod rescaled;
mod turns;
