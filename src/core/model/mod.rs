//! What is decided about, validated where it is made.

mod compat;
mod policy;
mod variant;

pub use compat::Compat;
pub use policy::{
    Beside, LatencyTargets, LimitPolicy, ModelPolicy, Policy, Power, QueueingPolicy, Quota, SaturationPolicy,
    ScaleToZero, Scope, Scoring, Stability, StepLimit, Utilisation,
};
pub use variant::{Bounds, GroupId, InvalidVariant, Role, TargetRef, Variant, VariantId};
