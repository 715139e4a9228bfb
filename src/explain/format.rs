//! A decision as text, the same in every command and answer.

use wva_core::Decision;
use wva_core::decision::Verdict;

/// The number with its reason, such as `3 (ScaleUp)`, or why there is none.
pub(crate) fn number_and_reason(decision: &Decision) -> String {
    match &decision.verdict {
        Verdict::Target(target) => format!("{} ({})", target.desired, target.reason.as_str()),
        Verdict::Unknown(unknown) => format!("no number ({:?})", unknown.cause),
    }
}

/// The explanation of the number, or of why there is none. The number itself is shown beside it.
pub(crate) fn explanation_text(decision: &Decision) -> String {
    decision.verdict.explanation().reasons().to_string()
}
