//! A variant for unit tests of several rooms.

use crate::model::{TargetRef, Variant, VariantId};
use crate::snapshot::{Pod, VariantState};

/// `default/llama` of model `m` with `pods`, without a scale target.
pub(crate) fn variant_state(pods: Vec<Pod>) -> VariantState {
    let variant = Variant::new(VariantId::new("default", "llama"), "m", TargetRef::deployment("llama"));
    VariantState::new(variant, pods)
}
