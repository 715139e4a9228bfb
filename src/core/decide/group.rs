//! One model group: its variants by role, the numbers their analyzer wants, bounds, zero, and what is published and
//! remembered. In two halves, since between them models may have to share what is limited.

use std::borrow::Cow;

use jiff::Timestamp;
use smol_str::SmolStr;

use super::capacity::{self, Asked};
use super::member::{Draft, Member, Scene};
use super::{bounds, fits, role, saturated, stand_in, withdraw, words, zero};
use crate::analyze::finding::Analyzer;
use crate::analyze::reads::WITNESSES;
use crate::by_name::ByName;
use crate::clean::remembered;
use crate::decision::{Cause, Decision, SignalGap, Target, Unknown, Verdict};
use crate::memory::{GroupMemory, Learned, VariantMemory};
use crate::model::{Role, VariantId};
use crate::optimize::Plan;
use crate::quality::{Evidence, look_at};
use crate::report::{GroupReport, Stage, Step};
use crate::snapshot::VariantState;
use crate::units::{Replicas, Seconds};

/// A group whose analyzers have spoken.
pub(super) struct Wanting<'a> {
    pub(super) scene: Scene<'a>,
    pub(super) members: Vec<Member<'a>>,
    pub(super) drafts: Vec<Draft>,
    /// The model, when an optimizer is to make numbers of what its analyzers found.
    pub(super) asked: Option<Asked>,
    pub(super) steps: Vec<Step>,
    /// The roles that are saturated.
    saturated: Vec<(Role, saturated::Evidence)>,
    /// The roles whose analyzer cannot be measured, and who decides instead.
    stand_ins: Vec<(Role, Analyzer)>,
    /// What will be remembered, until now without the variants.
    memory: GroupMemory,
    /// What was remembered before.
    pub(super) before: Option<&'a GroupMemory>,
}

/// What came of asking the analyzers.
#[derive(Default)]
struct Pass {
    /// One has taken its look of the cycle.
    looked: bool,
    /// The roles about which the model's own was asked, each with whether it found nothing.
    roles: Vec<(Role, bool)>,
}

/// What one group's decision leaves.
pub(super) struct Decided {
    pub(super) decisions: Vec<(VariantId, Decision)>,
    pub(super) report: GroupReport,
    pub(super) memory: GroupMemory,
}

impl<'a> Wanting<'a> {
    /// Asks the analyzers of the group about it.
    pub(super) fn new(scene: Scene<'a>, before: Option<&'a GroupMemory>) -> Self {
        let until_now = |moment: Option<Timestamp>| moment.map(|at| at.min(scene.now));
        let memory = before.map(|before| GroupMemory {
            cycle_at: before.cycle_at,
            idle_since: until_now(before.idle_since),
            observed_at: until_now(before.observed_at),
            learned: before.learned.clone(),
            evidence: None,
            failed: None,
            variants: ByName::with_capacity(scene.group.variants.len()),
        });
        let memory = memory.unwrap_or_default();
        let (members, drafts, steps) = (Vec::new(), Vec::new(), Vec::new());
        let (saturated, stand_ins) = (Vec::new(), Vec::new());
        let mut wanting =
            Self { scene, members, drafts, asked: None, steps, saturated, stand_ins, memory, before };
        wanting.draft_all();
        wanting
    }

    /// The members of every role and their drafts, role by role: each is blocked on its own.
    fn draft_all(&mut self) {
        let mut members = Vec::with_capacity(self.scene.group.variants.len());
        for state in &self.scene.group.variants {
            let Some(scale) = state.scale else { continue };
            let memory = self.remembered(&state.variant.id.name);
            let declared = self.scene.declared(state.variant.role);
            let seen = look_at(state, declared, self.scene.evidence, self.scene.now);
            members.push(Member::new(self.scene, (state, scale), memory, seen));
        }
        self.memory.evidence = self.evidence_after(&members);
        let role = |member: &Member<'_>| member.state.variant.role;
        members.sort_by_key(role);
        let mut learned = self.memory.learned.take().unwrap_or_default();
        self.saturated = saturated::find(self.scene, &members);
        self.steps = withdraw::withdraw(self.scene, &self.saturated, &mut members, &mut learned);
        self.stand_ins = stand_in::choose(self.scene, &mut members);
        if !self.stand_ins.is_empty() {
            stand_in::ask_all(self.scene, &mut learned);
        }
        let first = self.steps.len();
        let mut pass = self.pass(&members, &mut learned);
        let unlearned = stand_in::choose_unlearned(self.scene, &mut members, &pass.roles, &mut learned);
        if unlearned.is_empty() {
            self.stand_ins.extend(stand_in::between_looks(self.scene, &pass.roles, &learned));
        } else {
            // Who has nothing to say is asked first at every look: so it learns, and says more one day.
            self.stand_ins.extend(unlearned);
            self.steps.truncate(first);
            // What the others see they have learned already; of who stands in only the token analyzer learns.
            let mut again = learned.clone();
            pass = self.pass(&members, &mut again);
            if self.scene.analyzer != Analyzer::Saturation {
                learned.tokens = again.tokens;
            }
            learned.stand_in_share = again.stand_in_share;
        }
        if pass.looked {
            self.memory.cycle_at = Some(self.scene.now);
        }
        if self.scene.model.analyzer != Analyzer::Rate {
            // Who decides by something else need not go on learning for it.
            learned.rate = None;
        }
        if self.stand_ins.is_empty() {
            learned.stand_in_share = None;
        }
        learned.keep(self.scene.now);
        self.members = members;
        self.memory.learned = Some(learned).filter(|learned| **learned != Learned::default());
    }

    /// Decides about each role of `members` by its analyzer; those of capacity are asked about all of them together.
    fn pass(&mut self, members: &[Member<'a>], learned: &mut Learned) -> Pass {
        let role = |member: &Member<'_>| member.state.variant.role;
        let (mut pass, mut open, mut decides) = (Pass::default(), Vec::new(), self.scene.analyzer);
        (self.drafts, self.asked) = (Vec::new(), None);
        for members in members.chunk_by(|one, next| role(one) == role(next)) {
            let Some(role) = members.first().map(role) else { continue };
            let saturated = self.saturated.iter().any(|(of, _)| *of == role);
            let analyzer = self.stand_in(role).unwrap_or(self.scene.analyzer);
            let scene = Scene { saturated, analyzer, ..self.scene };
            let outcome = role::decide(scene, role, members, learned);
            if self.steps.is_empty() {
                self.steps = outcome.steps;
            } else {
                self.steps.extend(outcome.steps);
            }
            // The rate policy looks at every evaluation, and who stands in for it in another role once a cycle.
            pass.looked |= outcome.looked && (analyzer != Analyzer::Rate || self.stand_ins.is_empty());
            if analyzer == Analyzer::Rate && outcome.looked {
                pass.roles.push((role, outcome.silent));
            }
            if let Some(state) = outcome.open {
                open.push((role, state));
                decides = analyzer;
            }
            if self.drafts.is_empty() {
                self.drafts = outcome.drafts;
            } else {
                self.drafts.extend(outcome.drafts);
            }
        }
        if !open.is_empty() {
            let (scene, roles) = (self.scene.by(decides), open.clone());
            self.asked = capacity::ask(scene, members, open, learned, &mut self.steps);
            if !scene.is_stand_in() {
                let silent = self.asked.as_ref().is_none_or(Asked::is_silent);
                pass.roles.extend(roles.into_iter().map(|(role, _)| (role, silent)));
            }
        }
        pass
    }

    /// What is remembered of the evidence after this look.
    fn evidence_after(&self, members: &[Member<'_>]) -> Option<Box<Evidence>> {
        let reads = self.scene.declared(Role::Both).all().with(WITNESSES);
        let none = Evidence::default();
        let before = self.scene.evidence.unwrap_or(&none);
        let seen = members.iter().map(|member| (member.state, &member.seen));
        Some(Box::new(before.after(seen, reads, self.scene.now))).filter(|after| !after.is_empty())
    }

    /// Who decides about `role` instead of the model's analyzer.
    fn stand_in(&self, role: Role) -> Option<Analyzer> {
        self.stand_ins.iter().find(|(of, _)| *of == role).map(|(_, analyzer)| *analyzer)
    }

    fn remembered(&self, variant: &SmolStr) -> Cow<'a, VariantMemory> {
        let before = self.before.and_then(|before| before.variants.get_shared(variant));
        before.map_or_else(Cow::default, |before| remembered(before, self.scene.now))
    }

    /// What the analyzer lacks of `member`'s pods.
    fn gap(&self, member: &Member<'_>) -> Option<SignalGap> {
        let role = member.state.variant.role;
        let learned = self.memory.learned.as_deref();
        stand_in::gap(self.scene, &self.members, member, (self.stand_in(role), learned))
    }

    /// Takes the numbers of an optimizer.
    pub(super) fn take(&mut self, plan: &Plan) {
        if let Some(asked) = self.asked.take() {
            asked.take(plan, &self.members, &mut self.drafts, &mut self.steps);
        }
    }

    /// A limit leaves the member at `at` less than is wanted, `granted`: the rate policy asks another one, and so does the
    /// safety net. True when the fleet is saturated.
    pub(super) fn denied(&mut self, at: usize, granted: Replicas) -> bool {
        let rate = self.memory.learned.as_mut().and_then(|learned| learned.rate.as_mut());
        if let Some(rate) = rate {
            let known = rate.knowledge.variants.or_default(self.members[at].name());
            known.denied = Some(self.scene.now.into());
        }
        let member = &mut self.members[at];
        saturated::denied(member, granted, self.scene.now);
        self.saturated.iter().any(|(role, _)| *role == member.state.variant.role)
    }

    /// Puts what analyzers have wanted under the model's rules of stability, and the two guards above all that: what runs
    /// fits into what a removal leaves, and what is saturated grows.
    pub(super) fn settle(&mut self) {
        self.steps.extend(bounds::settle(self.scene, &mut self.members, &mut self.drafts));
        self.steps.extend(withdraw::hold_reorders(self.scene, &self.members, &mut self.drafts));
        self.steps.extend(fits::hold(self.scene, &self.members, &mut self.drafts));
        if !self.saturated.is_empty() {
            let (members, drafts) = (&mut self.members, &mut self.drafts);
            let learned = &mut self.memory.learned;
            self.steps.extend(saturated::relieve(self.scene, &self.saturated, members, drafts, learned));
        }
    }

    /// The group's decision. Of what is remembered, a variant that is not in the group keeps its place if `keep` says so.
    pub(super) fn finish(self, keep: impl Fn(&SmolStr) -> bool) -> Decided {
        let lost = self.scene.group.variants.iter().filter(|variant| variant.scale.is_none());
        let lost: Vec<_> = lost.map(|one| (one, self.remembered(&one.variant.id.name))).collect();
        let gaps: Vec<Option<SignalGap>> = self.members.iter().map(|member| self.gap(member)).collect();
        let Self { scene, members, mut drafts, mut steps, memory, before, .. } = self;
        steps.extend(bounds::clamp(&members, &mut drafts));
        steps.extend(zero::settle(scene, &memory, &members, &mut drafts));
        steps.extend(bounds::tell_swallowed(scene, &members, &mut drafts));
        let mut decided = Decided {
            decisions: Vec::with_capacity(members.len()),
            report: GroupReport { steps, ..GroupReport::default() },
            memory,
        };
        for ((member, draft), gap) in members.into_iter().zip(drafts).zip(gaps) {
            let (verdict, memory) = publish(scene, &member, draft);
            let decision = Decision { gap, ..decision(member.state, verdict) };
            decided.decisions.push((member.id().clone(), decision));
            decided.memory.variants.insert(member.name().clone(), memory);
        }
        for (lost, memory) in lost {
            without_target(scene, lost, memory.into_owned(), &mut decided);
        }
        for (name, memory) in before.into_iter().flat_map(|before| before.variants.iter()) {
            if decided.memory.variants.get(name).is_none() && keep(name) {
                decided.memory.variants.insert(name.clone(), remembered(memory, scene.now).into_owned());
            }
        }
        decided
    }
}

pub(super) fn decision(state: &VariantState, verdict: Verdict) -> Decision {
    Decision {
        model: state.variant.model.clone(),
        accelerator: state.variant.accelerator.clone(),
        current: state.scale.map(|scale| scale.current),
        verdict,
        gap: None,
    }
}

/// The verdict, and what is remembered of it. A number whose evidence is too old is not published but remembered, so
/// that it can go on when evidence returns.
fn publish(scene: Scene<'_>, member: &Member<'_>, draft: Draft) -> (Verdict, VariantMemory) {
    let (now, before) = (scene.now, &member.memory);
    let blind_since = draft.blind.then(|| before.blind_since.unwrap_or(now));
    let unlisted_since = (member.unlisted() > 0).then(|| before.unlisted_since.unwrap_or(now));
    let Some(desired) = draft.number else {
        let since = before.blind_since.unwrap_or(now);
        let message = words::nothing_known(member, &draft.message);
        let memory =
            VariantMemory { blind_since: Some(since), unlisted_since, ..VariantMemory::clone(before) };
        return (Verdict::Unknown(Unknown { cause: Cause::NothingKnown, message, since }), memory);
    };
    let moved = before.target != Some(desired);
    // What nobody followed was given up; an analyzer that wants it again has it waited for again.
    let renewed = draft.look.is_some() && !member.active() && !member.patient(now);
    let evidence = draft.evidence.min(now);
    let sampled = (!draft.blind).then_some(evidence);
    let memory = VariantMemory {
        target: Some(desired),
        target_since: if moved || renewed { Some(now) } else { before.target_since.or(Some(now)) },
        evidence: before.evidence.max(sampled),
        reason: if draft.blind { before.reason } else { Some(draft.reason) },
        message: if draft.blind { before.message.clone() } else { Some(draft.message.clone()) },
        blind_since,
        unlisted_since,
        wanted: before.wanted.clone(),
        safety_net: before.safety_net,
        starts: before.starts.clone(),
        ordered_from: withdraw::ordered_from(before, desired, scene),
        withdrawn_at: before.withdrawn_at,
        most_running: before.most_running,
    };
    let age = Seconds::between(evidence, now);
    if age > scene.max_stale {
        let message = words::too_old(member, age, scene.max_stale, &draft.message);
        return (Verdict::Unknown(Unknown { cause: Cause::TooOld, message, since: evidence }), memory);
    }
    let target = Target { desired, reason: draft.reason, message: draft.message, evidence };
    (Verdict::Target(target), memory)
}

/// A variant whose scale target does not exist: no number, but its memory stays for when it comes back.
fn without_target(scene: Scene<'_>, state: &VariantState, mut memory: VariantMemory, decided: &mut Decided) {
    let since = *memory.blind_since.get_or_insert(scene.now);
    let message = words::target_not_found(state);
    let verdict = Verdict::Unknown(Unknown { cause: Cause::TargetNotFound, message, since });
    decided.decisions.push((state.variant.id.clone(), decision(state, verdict)));
    decided.memory.variants.insert(state.variant.id.name.clone(), memory);
    let finding = words::no_target(state);
    decided.report.steps.push(Step::new(Stage::Quality, Some(&state.variant.id.name), finding));
}
