//! The analyzer's look at a role, and its one step. Starts from upstream's August rules
//! (`analyze::saturation_percent::targets`) and mends four things: a shrink on its way does not forbid growth, a
//! change has [`super::TRANSITION_PATIENCE`] and not for ever, a step that meets a bound goes to the next variant, and
//! a step goes past an HPA's tolerance, which would swallow one replica of ten or more.

use jiff::Timestamp;
use smol_str::SmolStr;

use super::member::{Draft, Member, Scene};
use super::role::{newest, unseen_among_seen};
use super::{words, zero};
use crate::analyze::saturation_percent::{Analysis, Observation, analyze};
use crate::decision::Reason;
use crate::model::SaturationPolicy;
use crate::quality::{Rights, State};
use crate::report::{Direction, Side, Stage, Step, Turn, Value};
use crate::units::{Replicas, count};

/// What of a member's last change is still open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Movement {
    /// Nothing.
    Settled,
    /// Replicas are on their way.
    Growing,
    /// Replicas are about to go.
    Shrinking,
    /// Replicas should have come by now and have not.
    Overdue,
    /// Replicas wait for a node, or what was ordered twice never became ready: more of them would wait too.
    Unschedulable,
}

/// A member as the step sees it.
struct Runner<'m, 'a> {
    index: usize,
    member: &'m Member<'a>,
    movement: Movement,
    /// It has observations.
    seen: bool,
}

/// Which way the analyzer wants to go, after what the sight allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Up,
    Down,
    /// Fewer would do, but not everything is known.
    DownDenied,
    Steady,
}

/// The analyzer's look at `members`, of which at least one is seen.
pub(super) fn look_and_step(
    scene: Scene<'_>,
    state: State,
    members: &[Member<'_>],
    steps: &mut Vec<Step>,
) -> Vec<Draft> {
    let active = members.iter().filter(|member| member.active());
    let observations = active.flat_map(|member| &member.seen.observations);
    let mut analysis = analyze(observations.clone(), &scene.model.saturation);
    let removal = cautious(scene, state, members, &analysis);
    analysis.scale_down_safe &= removal.scale_down_safe;
    let finding = words::standing_in(&scene, words::finding(&analysis, &scene.model.saturation));
    steps.push(analyzed(&analysis, &scene.model.saturation, finding.clone()));
    let rights = state.rights();
    let wish = wish(&analysis, rights);
    let runners = runners(scene, members);
    let evidence = newest(members, scene.now);
    if let Some(mover) = blocking(&runners, wish) {
        let waiting = words::transition(mover.member);
        steps.push(Step::new(Stage::Target, Some(mover.member.name()), waiting.clone()));
        return members.iter().map(|member| wait(scene, evidence, &waiting, member)).collect();
    }
    let (chosen, unsafe_step) = match wish {
        Wish::Up => (grow(&runners), None),
        Wish::Down => safely(shrink(&runners), members, &removal, scene),
        Wish::DownDenied | Wish::Steady => (None, None),
    };
    let look = Look { scene, state, rights, wish, chosen, unsafe_step, finding: &finding, evidence };
    let drafts: Vec<Draft> = runners.iter().map(|runner| look.draft(runner)).collect();
    for (member, draft) in members.iter().zip(&drafts) {
        steps.push(Step::new(Stage::Target, Some(member.name()), draft.message.clone()));
    }
    drafts
}

/// What a removal is judged by: pods that are not measured count as loaded like the busiest that is.
fn cautious(scene: Scene<'_>, state: State, members: &[Member<'_>], measured: &Analysis) -> Analysis {
    let unmeasured: u32 =
        members.iter().filter(|member| member.active()).map(|member| member.seen.unmeasured()).sum();
    if state != State::Estimated || unmeasured == 0 {
        return measured.clone();
    }
    let observations =
        || members.iter().filter(|member| member.active()).flat_map(|member| &member.seen.observations);
    let policy = &scene.model.saturation;
    let load = |one: &Observation<'_>| {
        (one.kv / policy.kv_cache_threshold).max(f64::from(one.queue) / policy.queue_length_threshold)
    };
    let busiest = observations().max_by(|a, b| load(a).total_cmp(&load(b)));
    let engines = members.iter().map(|member| member.seen.engines_a_pod.max(1)).max().unwrap_or(1);
    let copies = usize::try_from(unmeasured.saturating_mul(engines)).unwrap_or(usize::MAX);
    analyze(observations().chain(busiest.into_iter().cycle().take(copies)), policy)
}

/// The analyzer's numbers, and the spare capacities at which it would want something else.
fn analyzed(analysis: &Analysis, policy: &SaturationPolicy, finding: SmolStr) -> Step {
    let (kv, queue) = (analysis.avg_spare_kv, analysis.avg_spare_queue);
    let turn = |to, is, when, at, now| Turn { to, is, when: SmolStr::new_static(when), at, now };
    let (least_kv, least_queue) = analysis.spare_of_one_fewer(policy);
    let mut turns = Vec::with_capacity(4);
    if !analysis.scale_up {
        turns.push(turn(Direction::More, Side::Below, SPARE_KV, policy.kv_spare_trigger, kv));
        turns.push(turn(Direction::More, Side::Below, SPARE_QUEUE, policy.queue_spare_trigger, queue));
    }
    if !analysis.scale_down_safe && analysis.non_saturated > 1 {
        turns.push(turn(Direction::Fewer, Side::Above, SPARE_KV, least_kv, kv));
        turns.push(turn(Direction::Fewer, Side::Above, SPARE_QUEUE, least_queue, queue));
    }
    let values = vec![
        Value::new("replicas", f64::from(analysis.total)),
        Value::new("replicas below saturation", f64::from(analysis.non_saturated)),
        Value::new(SPARE_KV, kv),
        Value::new(SPARE_QUEUE, queue),
    ];
    Step { values, turns, ..Step::new(Stage::Analyze, None, finding) }
}

const SPARE_KV: &str = "mean spare KV cache";
const SPARE_QUEUE: &str = "mean spare queue";

fn wish(analysis: &Analysis, rights: Rights) -> Wish {
    match (analysis.scale_up, analysis.scale_down_safe) {
        (true, _) => Wish::Up,
        (false, true) if rights.down => Wish::Down,
        (false, true) => Wish::DownDenied,
        (false, false) => Wish::Steady,
    }
}

fn runners<'m, 'a>(scene: Scene<'_>, members: &'m [Member<'a>]) -> Vec<Runner<'m, 'a>> {
    let runner = |(index, member): (usize, &'m Member<'a>)| {
        let seen = member.active() && !member.seen.observations.is_empty();
        Runner { index, member, movement: movement(member, scene.now), seen }
    };
    members.iter().enumerate().map(runner).collect()
}

pub(super) fn movement(member: &Member<'_>, now: Timestamp) -> Movement {
    let base = member.scale.base();
    // A committed 0 that still runs was taken back or never meant: like upstream's, it is no number to wait for.
    // And what the bounds have taken from a promise will not come.
    let bounds = member.state.variant.bounds;
    let target =
        member.committed().map(|target| bounds.clamp(target)).filter(|target| *target > Replicas::ZERO);
    let target = target.unwrap_or(base);
    let pending = member.scale.pending();
    let credited = member.credited(now);
    if !member.active() {
        Movement::Settled
    } else if credited > Replicas::ZERO || (target > base && member.patient(now)) {
        Movement::Growing
    } else if member.is_full(now) {
        Movement::Unschedulable
    } else if target > base || pending > Replicas::ZERO {
        Movement::Overdue
    } else if target < base && member.patient(now) {
        Movement::Shrinking
    } else {
        Movement::Settled
    }
}

/// The member everybody waits for. A shrink on its way is no reason not to grow: it may be the mistake.
fn blocking<'r, 'm, 'a>(runners: &'r [Runner<'m, 'a>], wish: Wish) -> Option<&'r Runner<'m, 'a>> {
    let growing = runners.iter().find(|runner| runner.movement == Movement::Growing);
    growing.or_else(|| {
        let shrinking = runners.iter().find(|runner| runner.movement == Movement::Shrinking);
        shrinking.filter(|_| wish != Wish::Up)
    })
}

/// Who gets one more: the cheapest that runs and can grow, else the cheapest that sleeps, else one whose last change
/// is overdue. One whose replicas fit on no node gets none.
fn grow(runners: &[Runner<'_, '_>]) -> Option<usize> {
    let able = |runner: &&Runner<'_, '_>| runner.member.allows(runner.member.scale.base().plus_one());
    let settled =
        |runner: &&Runner<'_, '_>| !matches!(runner.movement, Movement::Overdue | Movement::Unschedulable);
    let running = || runners.iter().filter(|runner| runner.seen).filter(able);
    let asleep = || runners.iter().filter(|runner| !runner.member.active()).filter(able);
    let overdue = || running().filter(|runner| runner.movement == Movement::Overdue);
    cheapest(running().filter(settled)).or_else(|| cheapest(asleep())).or_else(|| cheapest(overdue()))
}

fn cheapest<'r>(runners: impl Iterator<Item = &'r Runner<'r, 'r>>) -> Option<usize> {
    runners.min_by(|a, b| a.member.by_cost(b.member)).map(|runner| runner.index)
}

/// Who loses one: the dearest that has more than one and more than its minimum; of equals the name that sorts last.
fn shrink(runners: &[Runner<'_, '_>]) -> Option<usize> {
    let able = |runner: &&Runner<'_, '_>| {
        let base = runner.member.scale.base();
        runner.seen && base > Replicas::ONE && base > runner.member.state.variant.bounds.min
    };
    let dearest = runners.iter().filter(able).max_by(|a, b| a.member.by_cost(b.member));
    dearest.map(|runner| runner.index)
}

/// The variant to shrink if the others can carry what its whole step takes away; else `(None, that variant)`. The
/// analyzer's own test is about one engine, and a step may be several pods of several engines.
fn safely(
    chosen: Option<usize>,
    members: &[Member<'_>],
    analysis: &Analysis,
    scene: Scene<'_>,
) -> (Option<usize>, Option<usize>) {
    let safe = |index: &usize| {
        let member = &members[*index];
        let (base, fewer) = (member.scale.base(), fewer(member));
        let engines = |pods: Replicas| pods.get().saturating_mul(member.seen.engines_a_pod);
        // Pods beyond the base (a rolling update's) are measured too and leave as well.
        let observed = count(member.seen.observations.len());
        let removed = observed.saturating_sub(engines(fewer)).max(engines(base.above(fewer)));
        analysis.safe_without(removed, &scene.model.saturation)
    };
    match chosen {
        Some(index) if safe(&index) => (chosen, None),
        _ => (None, chosen),
    }
}

/// The next number above: at least one more, and outside the tolerance of an HPA, which takes anything up to
/// 11 tenths of what runs for equal. A maximum on the way is as far as it goes.
fn more(member: &Member<'_>) -> Replicas {
    let base = u64::from(member.scale.base().get());
    let beyond = (base + 1).max(base * 11 / 10 + 1);
    let wanted = Replicas::new(u32::try_from(beyond).unwrap_or(u32::MAX));
    member.state.variant.bounds.max.map_or(wanted, |max| wanted.min(max))
}

/// The next number below: at least one fewer, and outside the tolerance of an HPA, which takes anything down to
/// 9 tenths of what runs for equal. A minimum on the way is as far as it goes.
fn fewer(member: &Member<'_>) -> Replicas {
    let base = u64::from(member.scale.base().get());
    let beyond = (base * 9).div_ceil(10).saturating_sub(1);
    let wanted = Replicas::new(u32::try_from(beyond).unwrap_or(u32::MAX));
    wanted.max(member.state.variant.bounds.min)
}

/// In a transition everything stays as it was committed.
fn wait(scene: Scene<'_>, evidence: Timestamp, waiting: &SmolStr, member: &Member<'_>) -> Draft {
    if !member.active() {
        return zero::asleep(scene, member);
    }
    if member.committed().is_none() && member.seen.observations.is_empty() {
        return unseen_among_seen(scene, evidence, member);
    }
    let number = Some(member.committed().unwrap_or(member.scale.base()));
    Draft { number, reason: Reason::Transition, message: waiting.clone(), evidence, blind: false, look: None }
}

/// A finished look, ready to be put into drafts.
struct Look<'l, 'a> {
    scene: Scene<'a>,
    state: State,
    rights: Rights,
    wish: Wish,
    chosen: Option<usize>,
    /// Would have lost replicas, but its step is too large to be safe.
    unsafe_step: Option<usize>,
    finding: &'l str,
    evidence: Timestamp,
}

impl Look<'_, '_> {
    fn draft(&self, runner: &Runner<'_, '_>) -> Draft {
        let member = runner.member;
        if self.chosen == Some(runner.index) {
            return self.stepped(member);
        }
        if !member.active() {
            return zero::asleep(self.scene, member);
        }
        if !runner.seen {
            return unseen_among_seen(self.scene, self.evidence, member);
        }
        let number = self.never_lower_unseen(member, member.scale.base());
        let (reason, message) = self.why_not(runner);
        self.looked(number, reason, message)
    }

    fn stepped(&self, member: &Member<'_>) -> Draft {
        let (wanted, reason) = match self.wish {
            Wish::Down => (fewer(member), Reason::ScaleDown),
            _ if self.state.is_incomplete() => (more(member), Reason::Partial),
            _ => (more(member), Reason::ScaleUp),
        };
        let number = self.never_lower_unseen(member, wanted);
        let message = words::stepped(member, number, self.finding, self.state);
        self.looked(number, reason, message)
    }

    fn looked(&self, number: Replicas, reason: Reason, message: SmolStr) -> Draft {
        let (evidence, look) = (self.evidence, Some(self.rights));
        Draft { number: Some(number), reason, message, evidence, blind: false, look }
    }

    /// What is not fully measured may not go below what was promised.
    fn never_lower_unseen(&self, member: &Member<'_>, wanted: Replicas) -> Replicas {
        let promised = member.committed().unwrap_or(wanted);
        if self.rights.down {
            wanted
        } else if wanted == member.scale.base() && member.is_withdrawn() {
            promised
        } else {
            wanted.max(promised)
        }
    }

    fn why_not(&self, runner: &Runner<'_, '_>) -> (Reason, SmolStr) {
        let member = runner.member;
        let partial = self.state == State::Partial;
        match self.wish {
            Wish::Up if self.chosen.is_none() => (Reason::Bounded, words::no_room(member, self.finding)),
            Wish::Down if self.unsafe_step == Some(runner.index) => {
                (Reason::Steady, words::unsafe_step(member, fewer(member), self.finding))
            }
            Wish::DownDenied if !partial => (Reason::Stale, words::denied(member, self.finding)),
            _ if partial => {
                (Reason::Partial, words::incomplete(member, &self.scene.group.source, self.finding))
            }
            _ if self.state == State::Estimated => (Reason::Partial, words::estimated(member, self.finding)),
            _ => (Reason::Steady, words::steady(member, self.finding)),
        }
    }
}
