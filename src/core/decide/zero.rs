//! To zero, at zero and back: the only part that may take the last replica away, and the one that gives the first back.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::member::{Draft, Member, Scene};
use super::words;
use crate::analyze::finding::Analyzer;
use crate::analyze::scale_from_zero::{Candidate, woken};
use crate::bound::enforcer::{Action, Enforced, enforce};
use crate::decision::Reason;
use crate::memory::{GroupMemory, Learned};
use crate::model::Role;
use crate::observe::{Activity, activity, held_by_scheduler};
use crate::quality::State;
use crate::report::{Stage, Step, Value};
use crate::snapshot::{SourceHealth, VariantState};
use crate::units::{Replicas, Seconds};

/// A role of which nothing runs and nothing is asked to: it sleeps until the scheduler holds a request for the model.
pub(super) fn at_zero(
    scene: Scene<'_>,
    members: &[Member<'_>],
    learned: &Learned,
    steps: &mut Vec<Step>,
) -> Vec<Draft> {
    let mut drafts: Vec<Draft> = members.iter().map(|member| asleep(scene, member)).collect();
    let Some(queue) = held_by_scheduler(scene.now, &scene.group.scheduler) else {
        if nothing_else_wakes(scene, members) {
            let sleeping = members.iter().zip(&mut drafts);
            sleeping
                .filter(|(_, draft)| !draft.blind && draft.number == Some(Replicas::ZERO))
                .for_each(|(member, draft)| unwakeable(scene, member, draft));
        }
        return drafts;
    };
    if queue.value <= 0.0 {
        return drafts;
    }
    let candidates: Vec<Candidate> = members.iter().map(|member| sleeper(scene, member, learned)).collect();
    for chosen in woken(&candidates, scene.compat) {
        let member = &members[chosen];
        let message = words::from_zero(member, queue.value);
        let carried =
            candidates[chosen].per_replica.map(|carried| Value::new("tokens a replica carries", carried));
        let values =
            [Value::new("cost of a replica", member.state.variant.cost.get())].into_iter().chain(carried);
        let step = Step::new(Stage::Target, Some(member.name()), message.clone());
        steps.push(Step { values: values.collect(), ..step });
        let number = drafts[chosen].number.unwrap_or(Replicas::ZERO).max(Replicas::ONE);
        drafts[chosen] = Draft {
            number: Some(number),
            reason: Reason::ScaleFromZero,
            message,
            evidence: queue.at,
            blind: false,
            // Waking is an addition like any other, and is asked of the limits.
            look: Some(State::Aging.rights()),
        };
    }
    drafts
}

/// What it takes to wake `member`, and what that carries: as V2 has learned of its replicas, when that is in charge.
fn sleeper(scene: Scene<'_>, member: &Member<'_>, learned: &Learned) -> Candidate {
    let variant = &member.state.variant;
    let by_tokens = scene.model.analyzer == Analyzer::Saturation;
    Candidate {
        name: variant.id.name.clone(),
        role: variant.role,
        replicas: member.scale.spec,
        cost: variant.cost,
        per_replica: by_tokens.then(|| learned.tokens.carried_by(&variant.id.name)).flatten(),
        bounds: variant.bounds,
    }
}

/// Neither a minimum nor scaling to zero being off gives one of `members` a replica.
fn nothing_else_wakes(scene: Scene<'_>, members: &[Member<'_>]) -> bool {
    let sleeps = |one: &VariantState| one.variant.bounds.min == Replicas::ZERO;
    let one_is_kept = !scene.scale_to_zero.enabled && scene.group.variants.iter().all(sleeps);
    !one_is_kept && members.iter().all(|member| sleeps(member.state))
}

/// At zero and no request can be seen waiting: the number stays, but nothing renews what it rests on.
fn unwakeable(scene: Scene<'_>, member: &Member<'_>, draft: &mut Draft) {
    let (evidence, message) = (member.old_evidence(scene.now), words::unwakeable(member));
    *draft = Draft { reason: Reason::MetricsMissing, message, evidence, blind: true, ..draft.clone() };
}

/// A variant of which nobody asks for a replica. When the source answers completely, that is a measured zero.
pub(super) fn asleep(scene: Scene<'_>, member: &Member<'_>) -> Draft {
    if !matches!(scene.group.source, SourceHealth::Complete) {
        return member.hold(Reason::Partial, words::asleep_unsure(member), scene.now);
    }
    let on_its_way =
        member.memory.target.filter(|target| *target > Replicas::ZERO && member.patient(scene.now));
    let (number, reason, message) = match on_its_way {
        Some(target) => (target, Reason::Transition, words::awaited(member, target)),
        None => (Replicas::ZERO, Reason::Steady, words::asleep(member)),
    };
    Draft { number: Some(number), reason, message, evidence: scene.now, blind: false, look: None }
}

/// The last word on zero, for all roles of a model together: an idle model loses its replicas, a running one that is
/// not known to be idle keeps at least one of each variant, and where scaling to zero is off the cheapest keeps one.
pub(super) fn settle(
    scene: Scene<'_>,
    before: &GroupMemory,
    members: &[Member<'_>],
    drafts: &mut [Draft],
) -> Vec<Step> {
    let mut steps = Vec::new();
    let may_sleep = scene.group.variants.iter().all(|one| one.variant.bounds.min == Replicas::ZERO);
    let enabled = scene.scale_to_zero.enabled;
    let idle = may_sleep && enabled && idle_for_long(scene, before);
    let covered = covered(scene, members, drafts);
    for (member, draft) in members.iter().zip(drafts.iter_mut()) {
        let last = member.active() && draft.number == Some(Replicas::ZERO);
        let seen = draft.look.is_some_and(|rights| rights.zero);
        let settled = seen || member.committed() == Some(Replicas::ZERO);
        let covered = settled && covered.contains(&member.state.variant.role);
        if !idle && last && !covered && member.allows(Replicas::ONE) {
            stay_awake(member, draft, &mut steps);
        }
    }
    if !may_sleep || drafts.iter().any(|draft| draft.number.is_none()) {
        return steps;
    }
    let mut numbers: Vec<Enforced> = members.iter().zip(drafts.iter()).map(enforced).collect();
    match enforce(&mut numbers, enabled, idle.then_some(0.0)) {
        Action::Unchanged => {}
        Action::ToZero => fall_asleep(scene.now, before, members, drafts, &mut steps),
        Action::KeptOne(kept) if members[kept].allows(Replicas::ONE) => {
            let message = words::kept_one(&members[kept]);
            steps.push(Step::new(Stage::Bound, Some(members[kept].name()), message.clone()));
            drafts[kept] = Draft {
                number: Some(Replicas::ONE),
                reason: Reason::Bounded,
                message,
                ..drafts[kept].clone()
            };
        }
        Action::KeptOne(_) => {}
    }
    steps
}

/// Roles of which an optimizer may take one variant's last replica, since another keeps some.
fn covered(scene: Scene<'_>, members: &[Member<'_>], drafts: &[Draft]) -> BTreeSet<Role> {
    let optimized = scene.model.analyzer.is_of_capacity();
    let kept = |draft: &Draft| draft.number.is_some_and(|number| number > Replicas::ZERO);
    // What has never served keeps nobody's requests.
    let serves = |member: &Member<'_>| !member.seen.observations.is_empty();
    let keeping = members.iter().zip(drafts);
    let keeping = keeping.filter(|(member, draft)| optimized && kept(draft) && serves(member));
    keeping.map(|(member, _)| member.state.variant.role).collect()
}

fn enforced((member, draft): (&Member<'_>, &Draft)) -> Enforced {
    let target = draft.number.unwrap_or(Replicas::ZERO);
    Enforced { name: member.name().clone(), target, cost: member.state.variant.cost }
}

/// A zero that was right when it was decided is not any more: a request came, or idleness cannot be measured now.
fn stay_awake(member: &Member<'_>, draft: &mut Draft, steps: &mut Vec<Step>) {
    // An analyzer that has just measured a zero means as few as may be; what was decided earlier may have changed.
    let as_few = draft.look.is_some_and(|rights| rights.down);
    let measured = !member.seen.observations.is_empty() && !as_few;
    let number = if measured { member.scale.base().max(Replicas::ONE) } else { Replicas::ONE };
    let number = member.state.variant.bounds.clamp(number);
    let message = words::not_idle(member, number);
    steps.push(Step::new(Stage::Bound, Some(member.name()), message.clone()));
    let reason = if draft.blind { draft.reason } else { Reason::ScaleUp };
    *draft = Draft { number: Some(number), reason, message, ..draft.clone() };
}

fn fall_asleep(
    now: Timestamp,
    before: &GroupMemory,
    members: &[Member<'_>],
    drafts: &mut [Draft],
    steps: &mut Vec<Step>,
) {
    let idle = before.idle_since.map_or(Seconds::ZERO, |since| Seconds::between(since, now));
    for (member, draft) in members.iter().zip(drafts) {
        if member.active() || draft.number != Some(Replicas::ZERO) {
            let message = words::to_zero(member, idle);
            steps.push(Step::new(Stage::Bound, Some(member.name()), message.clone()));
            *draft =
                Draft { number: Some(Replicas::ZERO), reason: Reason::ScaleToZero, message, ..draft.clone() };
        }
    }
}

/// Idle now, by measurement, and for the retention period.
fn idle_for_long(scene: Scene<'_>, before: &GroupMemory) -> bool {
    let idle_now = matches!(activity(scene.now, scene.group, before.observed_at), Activity::Idle(_));
    let retention = scene.scale_to_zero.retention;
    idle_now && before.idle_since.is_some_and(|since| Seconds::between(since, scene.now) >= retention)
}
