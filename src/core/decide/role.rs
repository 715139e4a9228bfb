//! The variants of one role: which row of the observation table they are in, and what follows.

use jiff::Timestamp;

use super::member::{Draft, Member, Scene};
use super::{START_ALLOWANCE, rate, score, step, words, zero};
use crate::analyze::finding::Analyzer;
use crate::decision::Reason;
use crate::memory::Learned;
use crate::model::Role;
use crate::quality::{Seen, State, state_of};
use crate::report::Step;
use crate::snapshot::SourceHealth;
use crate::units::Seconds;

/// The drafts of a role's members, in their order.
pub(super) struct Decided {
    pub(super) drafts: Vec<Draft>,
    pub(super) steps: Vec<Step>,
    /// The analyzer has taken its look.
    pub(super) looked: bool,
    /// It has, and has found nothing: it does not know what a replica carries, or what arrives.
    pub(super) silent: bool,
    /// What the observations are worth to analyzers of capacity, which look at all roles together.
    pub(super) open: Option<State>,
}

/// Decides about `members`, which are all of one role.
pub(super) fn decide(scene: Scene<'_>, role: Role, members: &[Member<'_>], learned: &mut Learned) -> Decided {
    let active = members.iter().filter(|member| member.active());
    let seen: Vec<Seen<'_>> = active.map(|member| (member.state, &member.seen)).collect();
    let state = state_of(&scene.group.source, &seen, scene.now);
    // Who stands in for another decides about additions only.
    let state = if scene.is_stand_in() && state > State::Partial { State::Partial } else { state };
    // How good it is, what is found, and what becomes of each.
    let mut steps = Vec::with_capacity(2 + members.len());
    steps.push(words::quality_step(role, state, &seen));
    let (mut looked, mut silent, mut open) = (false, false, None);
    let own_clock = scene.analyzer == Analyzer::Rate;
    let mut drafts = match state {
        State::Down => all(members, |member| hold_down(scene, member)),
        State::Zero => zero::at_zero(scene, members, learned, &mut steps),
        State::Starting => start(scene, members),
        State::Missing | State::Stale => all(members, |member| hold_unseen(scene, state, member)),
        State::Partial | State::Aging | State::Estimated | State::Fresh if scene.due || own_clock => {
            looked = true;
            match scene.analyzer {
                Analyzer::Rate => {
                    let drafts = rate::look_and_move(scene, (role, state), members, learned, &mut steps);
                    silent = drafts.is_none();
                    drafts.unwrap_or_else(|| all(members, |member| rate::unknown(scene, state, member)))
                }
                Analyzer::SaturationPercent => step::look_and_step(scene, state, members, &mut steps),
                Analyzer::Threshold | Analyzer::Weighted => {
                    score::look_and_step(scene, state, members, &mut learned.bests, &mut steps)
                }
                Analyzer::Saturation | Analyzer::Throughput | Analyzer::QueueingModel | Analyzer::Inferno => {
                    open = Some(state);
                    between(scene, members)
                }
            }
        }
        State::Partial | State::Aging | State::Estimated | State::Fresh => between(scene, members),
    };
    if own_clock && matches!(state, State::Zero | State::Starting) {
        rate::raise(scene, (role, state), members, learned, (&mut drafts, &mut steps));
    }
    Decided { drafts, steps, looked, silent, open }
}

fn all(members: &[Member<'_>], draft: impl Fn(&Member<'_>) -> Draft) -> Vec<Draft> {
    members.iter().map(draft).collect()
}

fn hold_down(scene: Scene<'_>, member: &Member<'_>) -> Draft {
    let cause = match &scene.group.source {
        SourceHealth::Down { cause } => cause.as_str(),
        SourceHealth::Complete | SourceHealth::Partial { .. } => "",
    };
    member.hold(Reason::SourceDown, words::source_down(member, cause), scene.now)
}

/// Ready pods and nothing usable of any of them.
fn hold_unseen(scene: Scene<'_>, state: State, member: &Member<'_>) -> Draft {
    if !member.active() {
        return zero::asleep(scene, member);
    }
    let (reason, message) = match &scene.group.source {
        _ if state == State::Stale => (Reason::Stale, words::stale(member)),
        SourceHealth::Partial { warnings } => (Reason::Partial, words::partial(member, warnings)),
        SourceHealth::Complete | SourceHealth::Down { .. } => {
            (Reason::MetricsMissing, words::missing(member))
        }
    };
    member.hold(reason, message, scene.now)
}

/// Nothing is ready, so nothing can be measured and nothing is missing: the pods themselves are the evidence, as long
/// as the newest of them (or the wish for one) is younger than [`START_ALLOWANCE`]. When a pod becomes ready, the
/// clock runs from there.
fn start(scene: Scene<'_>, members: &[Member<'_>]) -> Vec<Draft> {
    let begun = |member: &Member<'_>| {
        member.seen.started_last.max(member.seen.ready_last).or(member.memory.target_since)
    };
    let newest = members.iter().filter(|member| member.active()).filter_map(begun).max();
    let alive = newest.is_none_or(|at| Seconds::between(at, scene.now) <= START_ALLOWANCE);
    all(members, |member| {
        if !member.active() {
            return zero::asleep(scene, member);
        }
        let held = member.hold(Reason::Starting, words::starting(member), scene.now);
        if alive { Draft { evidence: scene.now, blind: false, ..held } } else { held }
    })
}

/// The newest sample a measured decision rests on.
pub(super) fn newest(members: &[Member<'_>], now: Timestamp) -> Timestamp {
    let active = members.iter().filter(|member| member.active());
    active.filter_map(|member| member.seen.newest).max().unwrap_or(now)
}

fn between(scene: Scene<'_>, members: &[Member<'_>]) -> Vec<Draft> {
    let evidence = newest(members, scene.now);
    all(members, |member| between_looks(scene, evidence, member))
}

/// A read never moves a number: between two looks of the analyzer the committed target stands.
fn between_looks(scene: Scene<'_>, evidence: Timestamp, member: &Member<'_>) -> Draft {
    if !member.active() {
        return zero::asleep(scene, member);
    }
    if member.seen.observations.is_empty() {
        return unseen_among_seen(scene, evidence, member);
    }
    // A variant that has joined since the last look, measured: it starts from what runs.
    let number = Some(member.committed().unwrap_or(member.scale.base()));
    // The last look's words stand too; what was said while the variant was not seen does not.
    let said = member.memory.reason.zip(member.memory.message.clone());
    let said = said.filter(|(reason, _)| !matches!(reason, Reason::Starting | Reason::MetricsMissing));
    let (reason, message) = said.unwrap_or_else(|| (Reason::Steady, words::until_next_look(member)));
    Draft { number, reason, message, evidence, blind: false, look: None }
}

/// A variant without a usable sample, in a role where others have some: its own number stands, the decision about the
/// role rests on the others' samples.
pub(super) fn unseen_among_seen(scene: Scene<'_>, evidence: Timestamp, member: &Member<'_>) -> Draft {
    let (reason, message) = if member.seen.ready == 0 {
        (Reason::Starting, words::starting(member))
    } else if member.seen.stale > 0 {
        (Reason::Stale, words::stale(member))
    } else {
        (Reason::MetricsMissing, words::missing(member))
    };
    Draft { evidence, blind: false, ..member.hold(reason, message, scene.now) }
}
