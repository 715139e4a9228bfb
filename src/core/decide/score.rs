//! The policies of the seed documents: each variant on its own, by the mean score of its engines, a step at a time.

use smol_str::SmolStr;

use super::member::{Draft, Member, Scene};
use super::role::{newest, unseen_among_seen};
use super::step::{Movement, movement};
use super::{words, zero};
use crate::analyze::finding::Analyzer;
use crate::analyze::reads::{Percent, Reads, Weighted};
use crate::analyze::score::{Scored, Steps, step};
use crate::analyze::weighted::{Bests, hardware, speed};
use crate::analyze::{threshold, weighted};
use crate::decision::Reason;
use crate::quality::{Load, Rights, State};
use crate::report::{Direction, Side, Stage, Step, Turn, Value};
use crate::units::{Replicas, whole};

/// Looks at each of `members`, of which at least one is seen.
pub(super) fn look_and_step(
    scene: Scene<'_>,
    state: State,
    members: &[Member<'_>],
    bests: &mut Bests,
    steps: &mut Vec<Step>,
) -> Vec<Draft> {
    let evidence = newest(members, scene.now);
    if scene.model.analyzer == Analyzer::Weighted {
        members.iter().filter(|member| member.active()).for_each(|member| learn(scene, member, bests));
    }
    let mut draft = |member: &Member<'_>| {
        if !member.active() {
            return zero::asleep(scene, member);
        }
        let loads = &member.seen.loads;
        if loads.is_empty() {
            return unseen_among_seen(scene, evidence, member);
        }
        let scored = score(scene, member, loads, &|key| bests.get(key, scene.now));
        let scored = cautious(scene, state, member, scored);
        let scored = against_old_bests(scene, state, member, scored, bests);
        let finding = words::scored(&scored);
        steps.push(analyzed(member, &scored, finding.clone()));
        let (number, reason) = settle(scene, state.rights(), member, scored.wanted);
        let message = words::analyzed(member, number, &finding);
        let look = Some(state.rights());
        Draft { number: Some(number), reason, message, evidence, blind: false, look }
    };
    members.iter().map(&mut draft).collect()
}

/// Fewer only if that would do with the engines that have no score as loaded as the busiest that has one: those of pods that are not
/// measured, and those whose cache or queue is not known.
fn cautious(scene: Scene<'_>, state: State, member: &Member<'_>, scored: Scored) -> Scored {
    let base = member.scale.base();
    let of_pods = member.seen.unmeasured().saturating_mul(member.seen.engines_a_pod.max(1));
    let of_pods = if state == State::Estimated { of_pods } else { 0 };
    let unscored = member.seen.loads.len().saturating_sub(scored.each.len());
    let unscored = unscored.saturating_add(usize::try_from(of_pods).unwrap_or(usize::MAX));
    if unscored == 0 || scored.wanted >= base {
        return scored;
    }
    let Some(busiest) = scored.each.iter().copied().reduce(f64::max) else {
        return Scored { wanted: base, ..scored };
    };
    let rules = scene.model.scoring;
    let steps = Steps { up: rules.up, down: rules.down, more: rules.more, fewer: rules.fewer };
    let copies = std::iter::repeat_n(busiest, unscored);
    let all = scored.each.iter().copied().chain(copies).collect();
    let wanted = step(all, base, member.state.variant.bounds, steps).wanted;
    Scored { wanted: scored.wanted.max(wanted.min(base)), ..scored }
}

/// Takes in what every engine does before any is compared with the best: the order of variants does not matter.
fn learn(scene: Scene<'_>, member: &Member<'_>, bests: &mut Bests) {
    for load in &member.seen.loads {
        let (key, speed) = seen(member, load);
        speed.into_iter().for_each(|speed| bests.observe(&key, scene.now, speed));
    }
}

/// With which engines one is compared, and how fast one of its requests is: not at all as long as nobody knows how long its answers
/// are.
fn seen(member: &Member<'_>, load: &Load<'_, ()>) -> (SmolStr, Option<f64>) {
    let load = load.by::<Weighted>();
    let accelerator = member.state.variant.accelerator.as_deref().unwrap_or_default();
    let Some(generated) = load.generated() else { return (SmolStr::default(), None) };
    let key = hardware(accelerator, member.state.template.gpus, generated);
    let (running, latency) = (load.running().unwrap_or(0.0), load.between_tokens().unwrap_or(0.0));
    (key, speed(load.generating(), running, latency))
}

/// Fewer only if that would do by the best speeds of the last week, too: who forgets that a replica was faster takes a slow one for a
/// calm one.
fn against_old_bests(
    scene: Scene<'_>,
    state: State,
    member: &Member<'_>,
    scored: Scored,
    bests: &Bests,
) -> Scored {
    if scene.model.analyzer != Analyzer::Weighted || scored.wanted >= member.scale.base() {
        return scored;
    }
    let strict = score(scene, member, &member.seen.loads, &|key| bests.for_removals(key, scene.now));
    let least = cautious(scene, state, member, strict).wanted.min(member.scale.base());
    Scored { wanted: scored.wanted.max(least), ..scored }
}

/// What is wanted of `member`, each engine compared with what `best` says of its hardware.
fn score(
    scene: Scene<'_>,
    member: &Member<'_>,
    loads: &[Load<'_, ()>],
    best: &dyn Fn(&str) -> f64,
) -> Scored {
    let rules = scene.model.scoring;
    let steps = Steps { up: rules.up, down: rules.down, more: rules.more, fewer: rules.fewer };
    let (current, bounds) = (member.scale.base(), member.state.variant.bounds);
    // An engine whose cache or queue is not known has no score.
    fn read<A: Reads>(load: Load<'_, A>) -> Option<(f64, u32)> {
        Some((load.kv()?, whole(load.queue()?)))
    }
    if scene.model.analyzer == Analyzer::Weighted {
        let limit = rules.queue_limit.unwrap_or(weighted::QUEUE_LIMIT);
        let observed = |load: &Load<'_, ()>| {
            let (key, speed) = seen(member, load);
            let (best, (kv, queue)) = (best(&key), read(load.by::<Weighted>())?);
            Some(weighted::Observation { kv, queue, speed, best })
        };
        let observed: Vec<_> = loads.iter().filter_map(observed).collect();
        return weighted::analyze(&observed, current, bounds, steps, limit);
    }
    let usual = threshold::Rules::default().queue_limit;
    let rules = threshold::Rules { steps, queue_limit: rules.queue_limit.unwrap_or(usual) };
    let observed = |load: &Load<'_, ()>| {
        let (kv, queue) = read(load.by::<Percent>())?;
        Some(threshold::Observation { kv, queue })
    };
    let observed: Vec<_> = loads.iter().filter_map(observed).collect();
    threshold::analyze(&observed, current, bounds, &rules)
}

/// `wanted`, unless the last step is still on its way or the sight does not allow it.
fn settle(scene: Scene<'_>, rights: Rights, member: &Member<'_>, wanted: Replicas) -> (Replicas, Reason) {
    let (base, promised) = (member.scale.base(), member.committed());
    let movement = movement(member, scene.now);
    let waits = match movement {
        Movement::Growing | Movement::Unschedulable => wanted > base,
        Movement::Shrinking => wanted < base,
        Movement::Settled | Movement::Overdue => false,
    };
    let held = promised.unwrap_or(base);
    if waits || (movement == Movement::Growing && wanted >= base) {
        return (held, Reason::Transition);
    }
    if wanted < held && !rights.down {
        return (held, Reason::Partial);
    }
    let reason = match wanted.cmp(&base) {
        std::cmp::Ordering::Greater => Reason::ScaleUp,
        std::cmp::Ordering::Equal => Reason::Steady,
        std::cmp::Ordering::Less => Reason::ScaleDown,
    };
    (wanted, reason)
}

fn analyzed(member: &Member<'_>, scored: &Scored, finding: SmolStr) -> Step {
    let mean = scored.mean.unwrap_or(0.0);
    let turn = |to, is, at: Option<f64>| {
        at.map(|at| Turn { to, when: SmolStr::new_static(MEAN), is, at, now: mean })
    };
    let more = turn(Direction::More, Side::Above, scored.more_above.filter(|at| mean <= *at));
    let fewer = turn(Direction::Fewer, Side::Below, scored.fewer_below.filter(|at| mean >= *at));
    let each = scored.each.iter().map(|score| Value::new("score of an engine", *score));
    Step {
        values: std::iter::once(Value::new(MEAN, mean)).chain(each).collect(),
        turns: more.into_iter().chain(fewer).collect(),
        ..Step::new(Stage::Analyze, Some(member.name()), finding)
    }
}

const MEAN: &str = "mean score";
