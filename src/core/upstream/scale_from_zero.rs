//! Which variants are woken from zero. Source: WVA v0.9, `internal/engines/scalefromzero/engine.go`.
//!
//! `is_pending` is for comparison only: the code that reads samples assigns them to models.

use crate::analyze::scale_from_zero::WakeCandidate;

#[cfg(test)]
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct QueueSample {
    /// Its label `model_name`; empty if it has none.
    pub model: String,
    /// Its label `target_model_name`, the model after a rewrite of the name; empty if it has none.
    pub target_model: String,
    pub value: f64,
}

/// Whether a request for `model` waits. Defect: a sample without a target model is overlooked.
#[cfg(test)]
pub(crate) fn is_pending(model: &str, samples: &[QueueSample]) -> bool {
    samples.iter().any(|sample| sample.target_model == model && sample.value > 0.0)
}

/// The indices of the candidates to wake, ascending. Defect: all candidates at zero are woken.
pub(crate) fn woken(candidates: &[WakeCandidate]) -> Vec<usize> {
    (0..candidates.len()).filter(|index| candidates[*index].is_asleep()).collect()
}
