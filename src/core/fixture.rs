//! A variant for unit tests of several rooms.

use crate::model::{Bounds, Role, TargetRef, Variant, VariantId};
use crate::snapshot::{Pod, Template, VariantState};
use crate::units::Cost;

/// `default/llama` of model `m` with `pods`, without a scale target.
pub(crate) fn variant_state(pods: Vec<Pod>) -> VariantState {
    let variant = Variant {
        id: VariantId::new("default", "llama"),
        model: "m".into(),
        target: TargetRef::deployment("llama"),
        cost: Cost::ZERO,
        bounds: Bounds::default(),
        accelerator: None,
        role: Role::Both,
        woken_by: None,
    };
    VariantState {
        variant,
        scale: None,
        target_problem: None,
        pods,
        last_status: None,
        unschedulable: None,
        template: Template::default(),
    }
}
