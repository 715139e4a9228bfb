//! The objects of a decision and their policies, validated by their constructors.

mod analyzer;
mod compat;
mod policy;
mod variant;

pub use analyzer::Analyzer;
pub use compat::Compat;
pub(crate) use policy::check_gpu_quota;
pub use policy::{
    ClassTarget, LatencyTargets, LimitPolicy, ModelPolicy, Policy, Power, QueueingPolicy, Quota, RatePolicy,
    SaturationPolicy, ScaleToZero, Scope, Scoring, SecondaryAnalyzer, ServiceClass, Stability, StepLimit,
    Steps, UnitCost, Utilisation,
};
pub use variant::{Bounds, GroupId, InvalidVariant, Role, TargetRef, Variant, VariantId};
