//! Repeats a recorded decision, to explain it.

use std::collections::BTreeMap;

use wva_core::{Decision, Outcome, VariantId};

use super::input::DecisionInput;
use crate::explain::Explanation;
use crate::record::decide_recorded;

/// The most variants that are listed when the requested one does not exist.
const MAX_LISTED_VARIANTS: usize = 5;

/// Repeats the decision and explains that of `variant`. The error lists the variants of the input.
pub(super) fn explain(input: DecisionInput, variant: &VariantId) -> Result<Explanation, String> {
    let DecisionInput { origin, snapshot, memory, policy, recorded } = input;
    let Outcome { mut decisions, report, memory } = decide_recorded(&snapshot, &memory, &policy);
    let Some(decision) = decisions.remove(variant) else {
        return Err(unknown_variant(variant, &origin, &decisions));
    };
    let mut explanation = Explanation::new(variant, origin, snapshot.now, decision, &report);
    explanation.add_inputs(&snapshot, &memory, &policy);
    explanation.recorded_by = recorded.as_ref().map(|recorded| recorded.wva.clone());
    let recorded = recorded.and_then(|mut recorded| recorded.decisions.remove(variant));
    explanation.recorded = recorded.filter(|recorded| *recorded != explanation.decision);
    Ok(explanation)
}

fn unknown_variant(variant: &VariantId, origin: &str, known: &BTreeMap<VariantId, Decision>) -> String {
    let names: Vec<_> = known.keys().take(MAX_LISTED_VARIANTS).map(ToString::to_string).collect();
    let names = if names.is_empty() { "none".into() } else { names.join(", ") };
    let more = match known.len().saturating_sub(MAX_LISTED_VARIANTS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let hint = "Give NAMESPACE/NAME as `kubectl get va -A` shows them";
    format!("{origin} has no variant {variant}; it has {names}{more}. {hint}")
}
