//! What is decided about a model that broke: each of its variants keeps its number, with its true age, and says so.

use jiff::Timestamp;
use smol_str::ToSmolStr;

use super::messages;
use super::model_group::{Decided, decision};
use crate::decision::{Cause, Reason, Target, Unknown, Verdict};
use crate::isolate::Failed;
use crate::memory::{GroupMemory, VariantMemory};
use crate::model::Policy;
use crate::normalize::not_after;
use crate::report::{GroupReport, Stage, Step};
use crate::snapshot::{ModelGroup, VariantState};
use crate::units::Seconds;

/// Holds all of `group`, of which `memory` is remembered, the break included.
pub(super) fn hold(
    now: Timestamp,
    group: &ModelGroup,
    mut memory: GroupMemory,
    failed: &Failed,
    policy: &Policy,
) -> Decided {
    not_after(&mut memory, now);
    let decide = |state: &VariantState| {
        let before = memory.variants.get(&state.variant.id.name);
        let verdict = verdict(now, state, before, failed, policy.max_stale);
        (state.variant.id.clone(), decision(state, verdict))
    };
    let decisions = group.variants.iter().map(decide).collect();
    let steps = vec![Step::new(Stage::Check, None, messages::model_failed(failed))];
    Decided { decisions, report: GroupReport { steps, ..GroupReport::default() }, memory }
}

fn verdict(
    now: Timestamp,
    state: &VariantState,
    before: Option<&VariantMemory>,
    failed: &Failed,
    max_stale: Seconds,
) -> Verdict {
    let unknown = |cause, message, since| Verdict::Unknown(Unknown { cause, message, since });
    if state.scale.is_none() {
        return unknown(Cause::TargetNotFound, messages::target_not_found(state), failed.at.min(now));
    }
    let message = messages::model_failed(failed).to_smolstr();
    let known = before.and_then(|before| Some((before.target?, before.evidence.or(before.target_since)?)));
    match known {
        Some((target, evidence)) if Seconds::between(evidence, now) <= max_stale => {
            let desired = state.variant.bounds.clamp(target);
            Verdict::Target(Target { desired, reason: Reason::CheckFailed, message, evidence })
        }
        Some((_, evidence)) => unknown(Cause::TooOld, message, evidence),
        None => unknown(Cause::NothingKnown, message, failed.at.min(now)),
    }
}
