//! The number of one variant on its way through the stages, and why it is that number.

use jiff::Timestamp;

use super::context::VariantContext;
use crate::decision::Reason;
use crate::quality::AllowedMoves;
use crate::report::{
    Adjustment, AdjustmentReason, Analysis, Basis, Caveat, Explanation, Reasoning, Stage, Step,
};
use crate::units::Replicas;

/// The number of a variant that is about to be published.
#[derive(Debug, Clone)]
pub(super) struct Proposal {
    /// `None`: nothing is known.
    pub(super) number: Option<Replicas>,
    pub(super) reason: Reason,
    pub(super) explanation: Explanation,
    /// The newest sample that the number rests on.
    pub(super) evidence: Timestamp,
    /// No new evidence supports the number.
    pub(super) is_blind: bool,
    /// Which moves the observations allowed, where an analyzer has decided in this evaluation.
    pub(super) analyzed: Option<AllowedMoves>,
}

pub(super) struct Analyzed<'a> {
    pub(super) number: Replicas,
    pub(super) reason: Reason,
    pub(super) evidence: Timestamp,
    pub(super) allowed_moves: AllowedMoves,
    pub(super) analysis: &'a Analysis,
    pub(super) caveat: Option<Caveat>,
}

impl Proposal {
    pub(super) fn analyzed(variant: &VariantContext<'_>, analyzed: Analyzed<'_>) -> Self {
        let Analyzed { number, reason, evidence, allowed_moves, analysis, caveat } = analyzed;
        let explanation = Reasoning {
            running: Some(variant.scale.base()),
            number: Some(number),
            basis: Basis::Analyzed { caveat },
            analysis: Some(analysis.clone()),
            adjustments: Vec::new(),
            withheld: None,
            hindrance: None,
        };
        let explanation = explanation.into();
        Self {
            number: Some(number),
            reason,
            explanation,
            evidence,
            is_blind: false,
            analyzed: Some(allowed_moves),
        }
    }

    /// A number that stands without an analyzer.
    pub(super) fn standing(
        variant: &VariantContext<'_>,
        number: Option<Replicas>,
        reason: Reason,
        basis: Basis,
        evidence: Timestamp,
    ) -> Self {
        let explanation = Reasoning {
            running: Some(variant.scale.base()),
            number,
            ..Reasoning::clone(&Explanation::without_number(basis))
        };
        let explanation = explanation.into();
        Self { number, reason, explanation, evidence, is_blind: false, analyzed: None }
    }

    /// The last number, held without new evidence.
    pub(super) fn held(variant: &VariantContext<'_>, reason: Reason, basis: Basis, now: Timestamp) -> Self {
        let evidence = variant.old_evidence(now);
        Self { is_blind: true, ..Self::standing(variant, variant.committed(), reason, basis, evidence) }
    }

    /// Changes the number in a later stage, and returns the step that explains it. No stage changes it in another way.
    pub(super) fn set(
        &mut self,
        variant: &VariantContext<'_>,
        stage: Stage,
        number: Replicas,
        reason: Reason,
        why: AdjustmentReason,
    ) -> Step {
        let adjustment = Adjustment { stage, from: self.number, to: number, why };
        self.number = Some(number);
        self.reason = reason;
        let reasoning = self.explanation.to_mut();
        reasoning.number = self.number;
        reasoning.adjustments.push(adjustment.clone());
        Step::adjustment(variant.name(), adjustment)
    }

    /// Replaces the number and its explanation: the reasons of earlier stages do not matter at zero.
    pub(super) fn replace(
        &mut self,
        variant: &VariantContext<'_>,
        number: Replicas,
        reason: Reason,
        basis: Basis,
    ) {
        let replaced = Self::standing(variant, Some(number), reason, basis, self.evidence);
        *self = Self { is_blind: self.is_blind, analyzed: self.analyzed, ..replaced };
    }
}
