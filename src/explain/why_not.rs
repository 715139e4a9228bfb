//! Why a number is not higher or lower, in one paragraph and as data.

use serde::Serialize;
use wva_core::decision::Verdict;
use wva_core::report::{BindingConstraint, ConstraintKind, Direction, Step};
use wva_core::{Decision, VariantId};

use super::format::{explanation_text, number_and_reason};
use crate::cluster::writers::signal_gap::describe_gap;
use crate::collect::current_series_names;

/// The most thresholds that the paragraph names.
const MAX_THRESHOLDS: usize = 3;

/// What keeps a number where it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WhyNot {
    /// What keeps it from being higher, the strongest first; empty where there is no number.
    pub(crate) higher: Vec<BindingConstraint>,
    /// What keeps it from being lower, the strongest first; empty where there is no number, or it is 0.
    pub(crate) lower: Vec<BindingConstraint>,
    /// The same, as a paragraph.
    pub(crate) text: String,
}

impl WhyNot {
    /// `steps` are those of the variant. `too_old` says why its number is not answered, if it is too old.
    pub(crate) fn new(
        variant: &VariantId,
        decision: &Decision,
        steps: &[Step],
        too_old: Option<String>,
    ) -> Self {
        let Verdict::Target(target) = &decision.verdict else {
            let text = format!(
                "{variant} has {}, and its autoscaler keeps what it has: {}.",
                number_and_reason(decision),
                explanation_text(decision)
            );
            return Self { higher: Vec::new(), lower: Vec::new(), text };
        };
        let constraints = |direction| target.explanation.binding_constraints(direction);
        let (mut higher, mut lower) = (constraints(Direction::More), constraints(Direction::Fewer));
        if let Some(gap) = &decision.gap {
            let text = format!("{}: {}", gap.cause.as_str(), describe_gap(gap, current_series_names)).into();
            let missing = BindingConstraint { kind: ConstraintKind::MissingSignal, text };
            // Where something else keeps the number already, complete signals would change nothing.
            let is_left = |kind| matches!(kind, ConstraintKind::Demand | ConstraintKind::Recorded);
            let is_held = lower.iter().any(|own| !is_left(own.kind));
            lower.insert(if is_held { lower.len() } else { 0 }, missing);
        }
        if let Some(cause) = too_old {
            let missing = BindingConstraint { kind: ConstraintKind::MissingSignal, text: cause.into() };
            higher.insert(0, missing.clone());
            lower.insert(0, missing);
        }
        if target.desired.get() == 0 {
            lower.clear();
        }
        let current = decision.current.map_or_else(String::new, |current| format!(", {current} now"));
        let mut text = format!("{variant}: {}{current}.", number_and_reason(decision));
        add_sentence(&mut text, "It is not higher", &higher);
        add_sentence(&mut text, "It is not lower", &lower);
        let thresholds: Vec<String> =
            steps.iter().flat_map(Step::thresholds).take(MAX_THRESHOLDS).map(ToString::to_string).collect();
        if !thresholds.is_empty() {
            text += &format!(" What would change it: {}.", thresholds.join("; "));
        }
        Self { higher, lower, text }
    }
}

fn add_sentence(text: &mut String, beginning: &str, constraints: &[BindingConstraint]) {
    if constraints.is_empty() {
        return;
    }
    let named =
        constraints.iter().map(|BindingConstraint { kind, text }| format!("{}: {text}", kind.as_str()));
    *text += &format!(" {beginning} ({}).", named.collect::<Vec<_>>().join("; "));
}
