//! What is decided about, validated where it is made.

mod compat;
mod policy;
mod variant;

pub use compat::Compat;
pub use policy::{Policy, SaturationPolicy, ScaleToZero};
pub use variant::{Bounds, GroupId, InvalidVariant, Role, TargetRef, Variant, VariantId};
