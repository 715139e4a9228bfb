//! What runs must fit into what a removal leaves. Asked of every analyzer's numbers before limits and bounds, so that a removal
//! of two that leaves too little becomes one of one; [`crate::check`] derives it again by itself.

use std::cell::{OnceCell, RefCell};

use smol_str::{SmolStr, format_smolstr};

use super::member::{Draft, Member, Scene};
use crate::decision::Reason;
use crate::model::Role;
use crate::quality::{Remaining, TooFew};
use crate::report::{Stage, Step};
use crate::units::{Replicas, whole};

/// A role whose replicas an analyzer may want to remove; what its pods hold is looked at when that happens.
pub(super) struct Removal<'m, 'a> {
    scene: Scene<'m>,
    members: &'m [Member<'a>],
    remaining: OnceCell<Remaining>,
    /// What did not fit last.
    refused: RefCell<Option<TooFew>>,
}

impl<'m, 'a> Removal<'m, 'a> {
    /// `members` are all of one role.
    pub(super) fn new(scene: Scene<'m>, members: &'m [Member<'a>]) -> Self {
        Self { scene, members, remaining: OnceCell::new(), refused: RefCell::new(None) }
    }

    /// What runs fits into `targets`, or it is not known that it does not.
    pub(super) fn fits(&self, targets: &[u32]) -> bool {
        let refused = self.too_few(targets);
        let fits = refused.is_none();
        if !fits {
            *self.refused.borrow_mut() = refused;
        }
        fits
    }

    /// Fewer in all are left of `from`, or fewer of those that serve, and what runs does not fit into `targets`.
    fn is_refused(&self, from: &[u32], targets: &[u32]) -> bool {
        let sum = |numbers: &[u32]| numbers.iter().map(|number| u64::from(*number)).sum::<u64>();
        let takes = sum(targets) < sum(from) || self.remaining().takes_ready(from, targets);
        takes && !self.fits(targets)
    }

    fn too_few(&self, targets: &[u32]) -> Option<TooFew> {
        self.remaining().too_few(targets)
    }

    fn remaining(&self) -> &Remaining {
        let seen = |member: &Member<'a>| member.memory.most_running.of(member.state);
        let states = || self.members.iter().map(|member| (member.state, seen(member)));
        self.remaining.get_or_init(|| Remaining::of(states(), self.scene.now))
    }

    pub(super) const fn members(&self) -> &'m [Member<'a>] {
        self.members
    }

    /// `finding`, and before it why no more is removed, if that was it.
    pub(super) fn told(&self, finding: &SmolStr) -> SmolStr {
        let refused = *self.refused.borrow();
        refused.map_or_else(
            || finding.clone(),
            |refused| {
                format_smolstr!("no more is removed: {}; {finding}", words(&refused, "that would leave"))
            },
        )
    }
}

/// Gives back what was to be removed of `members` (sorted by role) and leaves too little.
pub(super) fn hold(scene: Scene<'_>, members: &[Member<'_>], drafts: &mut [Draft]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut first = 0;
    for of_role in members.chunk_by(|one, next| role(one) == role(next)) {
        let end = first + of_role.len();
        hold_role(scene, of_role, &mut drafts[first..end], &mut steps);
        first = end;
    }
    steps
}

fn role(member: &Member<'_>) -> Role {
    member.state.variant.role
}

/// What a removal is measured by: what was promised, else what runs.
fn before(member: &Member<'_>) -> u32 {
    member.committed().unwrap_or(member.scale.base()).get()
}

fn hold_role(scene: Scene<'_>, members: &[Member<'_>], drafts: &mut [Draft], steps: &mut Vec<Step>) {
    let bounded =
        |member: &Member<'_>, number: u32| member.state.variant.bounds.clamp(Replicas::new(number)).get();
    // A lowered maximum is the user's.
    let lower = |(member, draft): (&Member<'_>, &Draft)| {
        let number = draft.number.map(|number| bounded(member, number.get()));
        member.active() && number.is_some_and(|number| number < bounded(member, before(member)))
    };
    // Nearly always nothing is removed, and then nothing else is looked at.
    if !members.iter().zip(drafts.iter()).any(lower) {
        return;
    }
    let from: Vec<u32> = members.iter().map(|member| bounded(member, before(member))).collect();
    let wanted = |(member, draft): (&Member<'_>, &Draft)| {
        draft.number.map_or(before(member), |number| bounded(member, number.get()))
    };
    let mut targets: Vec<u32> = members.iter().zip(drafts.iter()).map(wanted).collect();
    // What sleeps holds nothing, and what has no number stays as it is, outside its bounds too: neither makes up for a removal.
    let stays = members
        .iter()
        .zip(drafts.iter())
        .zip(&targets)
        .map(|((member, draft), target)| (!member.active() || draft.number.is_none()).then_some(*target));
    let from: Vec<u32> = stays.zip(&from).map(|(stays, from)| stays.unwrap_or(*from)).collect();
    if scene.limited {
        // What is added may be denied yet.
        targets.iter_mut().zip(&from).for_each(|(target, from)| *target = (*target).min(*from));
    }
    let removal = Removal::new(scene, members);
    if !removal.is_refused(&from, &targets) {
        return;
    }
    let mut order: Vec<usize> = (0..members.len()).filter(|at| targets[*at] < from[*at]).collect();
    order.sort_by(|one, next| members[*one].by_cost(&members[*next]));
    let Some(refused) = removal.too_few(&targets) else { return };
    for at in order {
        // The fewest that have to stay, found by halving: fitting only gets easier with more.
        let (mut least, mut most) = (targets[at], from[at]);
        while least < most {
            targets[at] = least + (most - least) / 2;
            if removal.is_refused(&from, &targets) {
                least = targets[at] + 1;
            } else {
                most = targets[at];
            }
        }
        targets[at] = most;
        give_back(&members[at], &mut drafts[at], most, &refused, steps);
        if !removal.is_refused(&from, &targets) {
            return;
        }
    }
}

fn give_back(member: &Member<'_>, draft: &mut Draft, number: u32, refused: &TooFew, steps: &mut Vec<Step>) {
    let wanted = draft.number.unwrap_or_default();
    if wanted.get() >= number {
        return;
    }
    let message = message(member, number, wanted, refused, &draft.message);
    steps.push(Step::new(Stage::Target, Some(member.name()), message.clone()));
    *draft = Draft { number: Some(Replicas::new(number)), reason: Reason::Bounded, message, ..draft.clone() };
}

fn message(member: &Member<'_>, number: u32, wanted: Replicas, refused: &TooFew, finding: &str) -> SmolStr {
    let id = member.id();
    let own = finding.strip_prefix(id.to_string().as_str()).unwrap_or(finding).trim_start_matches([':', ' ']);
    format_smolstr!(
        "{id}: held at {number}: {}; {own}",
        words(refused, &format_smolstr!("{wanted} replicas leave"))
    )
}

/// What is too much for what.
pub(super) fn words(refused: &TooFew, who: &str) -> SmolStr {
    match *refused {
        TooFew::Sequences(used, left) => format_smolstr!(
            "running + waiting requests peaked at {} of the {} sequences that {who}, and nine tenths may be used",
            whole(used.round()),
            whole(left.round())
        ),
        TooFew::Kv(used, left) => format_smolstr!(
            "KV caches were filled with {:.0} % of what {who} at the last minute's peaks, and nine tenths may be used",
            if left > 0.0 { 100.0 * used / left } else { 100.0 }
        ),
    }
}
