//! The analyzer's look at a role, and its one step. Starts from upstream's August rules
//! (`analyze::saturation_percent::targets`) and mends three things: a shrink on its way does not forbid growth, a
//! change has [`super::TRANSITION_PATIENCE`] and not for ever, and a step that meets a bound goes to the next variant.

use jiff::Timestamp;

use super::member::{Draft, Member, Scene};
use super::role::{newest, unseen_among_seen};
use super::{TRANSITION_PATIENCE, words, zero};
use crate::analyze::saturation_percent::{Analysis, analyze};
use crate::decision::{Reason, Step};
use crate::quality::{Rights, Sight, State};
use crate::units::Replicas;

/// What of a member's last change is still open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Movement {
    /// Nothing.
    Settled,
    /// Replicas are on their way.
    Growing,
    /// Replicas are about to go.
    Shrinking,
    /// Replicas should have come by now and have not.
    Overdue,
    /// Replicas wait for a node: more of them would wait too.
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
    sight: &Sight,
    members: &[Member<'_>],
    steps: &mut Vec<Step>,
) -> Vec<Draft> {
    let active = members.iter().filter(|member| member.active());
    let observations: Vec<_> = active.flat_map(|member| member.seen.observations.iter().cloned()).collect();
    let analysis = analyze(&observations, &scene.policy.saturation);
    let finding = words::finding(&analysis, &scene.policy.saturation);
    steps.push(words::step("analyze", None, &finding));
    let rights = sight.state.rights();
    let wish = wish(&analysis, rights);
    let runners = runners(scene, members);
    let evidence = newest(members, scene.now);
    if let Some(mover) = blocking(&runners, wish) {
        let waiting = words::transition(mover.member);
        steps.push(words::step("target", Some(mover.member.name()), &waiting));
        return members.iter().map(|member| wait(scene, evidence, &waiting, member)).collect();
    }
    let chosen = match wish {
        Wish::Up => grow(&runners),
        Wish::Down => shrink(&runners),
        Wish::DownDenied | Wish::Steady => None,
    };
    let look = Look { scene, sight, rights, wish, chosen, finding: &finding, evidence };
    let drafts: Vec<Draft> = runners.iter().map(|runner| look.draft(runner)).collect();
    for (member, draft) in members.iter().zip(&drafts) {
        steps.push(words::step("target", Some(member.name()), &draft.message));
    }
    drafts
}

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

fn movement(member: &Member<'_>, now: Timestamp) -> Movement {
    let current = member.scale.current;
    // A committed 0 that still runs was taken back or never meant: like upstream's, it is no number to wait for.
    // And what the bounds have taken from a promise will not come.
    let bounds = member.state.variant.bounds;
    let target =
        member.committed().map(|target| bounds.clamp(target)).filter(|target| *target > Replicas::ZERO);
    let target = target.unwrap_or(current);
    let pending = member.scale.pending();
    let credited = member.seen.credited(member.state, TRANSITION_PATIENCE, now);
    if !member.active() {
        Movement::Settled
    } else if credited > Replicas::ZERO || (target > current && member.patient(now)) {
        Movement::Growing
    } else if member.seen.unschedulable > 0 {
        Movement::Unschedulable
    } else if target > current || pending > Replicas::ZERO {
        Movement::Overdue
    } else if target < current && member.patient(now) {
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
    let able = |runner: &&Runner<'_, '_>| runner.member.allows(runner.member.scale.current.plus_one());
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
        let current = runner.member.scale.current;
        runner.seen && current > Replicas::ONE && current > runner.member.state.variant.bounds.min
    };
    let dearest = runners.iter().filter(able).max_by(|a, b| a.member.by_cost(b.member));
    dearest.map(|runner| runner.index)
}

/// In a transition everything stays as it was committed.
fn wait(scene: Scene<'_>, evidence: Timestamp, waiting: &str, member: &Member<'_>) -> Draft {
    if !member.active() {
        return zero::asleep(scene, member);
    }
    if member.committed().is_none() && member.seen.observations.is_empty() {
        return unseen_among_seen(scene, evidence, member);
    }
    let number = Some(member.committed().unwrap_or(member.scale.current));
    Draft { number, reason: Reason::Transition, message: waiting.to_owned(), evidence, blind: false }
}

/// A finished look, ready to be put into drafts.
struct Look<'l, 'a> {
    scene: Scene<'a>,
    sight: &'l Sight,
    rights: Rights,
    wish: Wish,
    chosen: Option<usize>,
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
        let number = self.never_lower_unseen(member, member.scale.current);
        let (reason, message) = self.why_not(member);
        Draft { number: Some(number), reason, message, evidence: self.evidence, blind: false }
    }

    fn stepped(&self, member: &Member<'_>) -> Draft {
        let current = member.scale.current;
        let (wanted, reason) = match self.wish {
            Wish::Down => (current.minus_one(), Reason::ScaleDown),
            _ if self.sight.state == State::Partial => (current.plus_one(), Reason::Partial),
            _ => (current.plus_one(), Reason::ScaleUp),
        };
        let number = self.never_lower_unseen(member, wanted);
        let message = words::stepped(member, number, self.finding, self.sight.state);
        Draft { number: Some(number), reason, message, evidence: self.evidence, blind: false }
    }

    /// What is not fully measured may not go below what was promised.
    fn never_lower_unseen(&self, member: &Member<'_>, wanted: Replicas) -> Replicas {
        if self.rights.down { wanted } else { wanted.max(member.committed().unwrap_or(wanted)) }
    }

    fn why_not(&self, member: &Member<'_>) -> (Reason, String) {
        let partial = self.sight.state == State::Partial;
        match self.wish {
            Wish::Up if self.chosen.is_none() => (Reason::Bounded, words::no_room(member, self.finding)),
            Wish::DownDenied if !partial => (Reason::Stale, words::denied(member, self.finding)),
            _ if partial => {
                (Reason::Partial, words::incomplete(member, &self.scene.group.source, self.finding))
            }
            _ => (Reason::Steady, words::steady(member, self.finding)),
        }
    }
}
