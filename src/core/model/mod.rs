//! What is decided about, validated where it is made.

mod compat;
mod policy;
mod variant;

pub use compat::Compat;
pub use policy::{
    Beside, ClassTarget, LatencyTargets, LimitPolicy, ModelPolicy, Policy, Power, QueueingPolicy, Quota,
    RatePolicy, SaturationPolicy, ScaleToZero, Scope, Scoring, ServiceClass, Stability, StepLimit, UnitCost,
    Utilisation,
};
pub use variant::{Bounds, GroupId, InvalidVariant, Role, TargetRef, Variant, VariantId};
