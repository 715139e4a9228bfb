//! What upstream's analyzers are told about pods and signals. Source: WVA v0.9,
//! `internal/collector` and `internal/engines/saturation`.

use crate::analyze::input_rules::InputRules;
use crate::snapshot::VariantState;

pub(crate) static UPSTREAM: InputRules = InputRules {
    engines_per_pod: |_| 1,
    starting: |pending, _| pending,
    can_estimate_from: |_| false,
    max_sequences: argument,
    arrivals: |dispatched, _| dispatched,
    trusts_dispatched: |_| true,
    // Defect: unknown arrivals count as none.
    is_load_known: |_| true,
    may_lower: |_, _| true,
    may_grow: |_| true,
    replaces_silent_analyzer: false,
};

/// The engine's argument; the reader of arguments assumes 256 without one.
fn argument(state: &VariantState, _: u32) -> Option<i64> {
    state.template.engine.as_ref().map(|engine| engine.max_sequences)
}
