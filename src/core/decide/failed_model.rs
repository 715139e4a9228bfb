//! A model whose decision failed: each of its variants keeps its number, with its true age, and says so.

use jiff::Timestamp;

use super::publish::{ModelOutcome, decision, without_target};
use crate::decision::{Cause, Reason, Target, Unknown, Verdict};
use crate::isolate::Failed;
use crate::memory::{GroupMemory, VariantMemory};
use crate::model::Policy;
use crate::normalize::not_after;
use crate::report::{Basis, Detail, Explanation, GroupReport, Reasoning, Step};
use crate::snapshot::{ModelGroup, VariantState};
use crate::units::{Replicas, Seconds};

/// Holds all of `group`, of which `memory` is remembered, the failure included.
pub(super) fn hold(
    now: Timestamp,
    group: &ModelGroup,
    mut memory: GroupMemory,
    failed: &Failed,
    policy: &Policy,
) -> ModelOutcome {
    not_after(&mut memory, now);
    let decide = |state: &VariantState| {
        let before = memory.variants.get(&state.variant.id.name);
        let verdict = verdict(now, state, before, failed, policy.max_stale);
        (state.variant.id.clone(), decision(state, verdict))
    };
    let decisions = group.variants.iter().map(decide).collect();
    let steps = vec![Step::of_group(Detail::DecisionFailed(failed.clone()))];
    ModelOutcome { decisions, report: GroupReport { steps, ..GroupReport::default() }, memory }
}

fn verdict(
    now: Timestamp,
    state: &VariantState,
    before: Option<&VariantMemory>,
    failed: &Failed,
    max_stale: Seconds,
) -> Verdict {
    let Some(scale) = state.scale else { return without_target(state, failed.at.min(now)) };
    let explanation = |number: Option<Replicas>| -> Explanation {
        let basis = Basis::DecisionFailed { cause: failed.cause.clone(), retry_at: failed.retry_at };
        let reasoning = Reasoning::clone(&Explanation::without_number(basis));
        Reasoning { running: Some(scale.base()), number, ..reasoning }.into()
    };
    let known = before.and_then(|before| Some((before.target?, before.evidence.or(before.target_since)?)));
    match known {
        Some((target, evidence)) if Seconds::between(evidence, now) <= max_stale => {
            let desired = state.variant.bounds.clamp(target);
            let explanation = explanation(Some(desired));
            Verdict::Target(Target { desired, reason: Reason::CheckFailed, explanation, evidence })
        }
        Some((_, since)) => {
            Verdict::Unknown(Unknown { cause: Cause::TooOld, explanation: explanation(None), since })
        }
        None => {
            let (explanation, since) = (explanation(None), failed.at.min(now));
            Verdict::Unknown(Unknown { cause: Cause::NothingKnown, explanation, since })
        }
    }
}
