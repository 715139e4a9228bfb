//! One model group: its variants by role, the numbers their analyzer wants, bounds, zero, and what is published and
//! remembered. In two halves, since between them models may have to share what is limited.

use std::borrow::Cow;

use jiff::Timestamp;
use smol_str::SmolStr;

use super::analyze::capacity::{self, OptimizerInput};
use super::analyze::stand_in;
use super::context::{ModelContext, Proposal, VariantContext};
use super::{bound, classify, messages, removal_guard, safety_net, withdrawn_orders, zero};
use crate::decision::{Cause, Decision, SignalGap, Target, Unknown, Verdict};
use crate::memory::{GroupMemory, Learned, VariantMemory};
use crate::model::{Analyzer, Role, VariantId};
use crate::name_map::NameMap;
use crate::normalize::remembered;
use crate::optimize::Plan;
use crate::quality::analyzer_signals::WITNESSES;
use crate::quality::{SignalHistory, assess_variant};
use crate::report::{GroupReport, Stage, Step};
use crate::snapshot::VariantState;
use crate::units::{Replicas, Seconds};

/// A group whose analyzers have spoken.
pub(super) struct PendingModel<'a> {
    pub(super) context: ModelContext<'a>,
    pub(super) variants: Vec<VariantContext<'a>>,
    pub(super) proposals: Vec<Proposal>,
    /// The model, when an optimizer is to make numbers of what its analyzers found.
    pub(super) asked: Option<OptimizerInput>,
    pub(super) steps: Vec<Step>,
    /// The roles that are saturated.
    saturated: Vec<(Role, safety_net::Evidence)>,
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

impl<'a> PendingModel<'a> {
    /// Asks the analyzers of the group about it.
    pub(super) fn new(context: ModelContext<'a>, before: Option<&'a GroupMemory>) -> Self {
        let until_now = |moment: Option<Timestamp>| moment.map(|at| at.min(context.now));
        let memory = before.map(|before| GroupMemory {
            cycle_at: before.cycle_at,
            idle_since: until_now(before.idle_since),
            observed_at: until_now(before.observed_at),
            learned: before.learned.clone(),
            evidence: None,
            failed: None,
            variants: NameMap::with_capacity(context.group.variants.len()),
        });
        let memory = memory.unwrap_or_default();
        let (variants, proposals, steps) = (Vec::new(), Vec::new(), Vec::new());
        let (saturated, stand_ins) = (Vec::new(), Vec::new());
        let mut pending =
            Self { context, variants, proposals, asked: None, steps, saturated, stand_ins, memory, before };
        pending.propose_all();
        pending
    }

    /// The variants of every role and their proposals, role by role: each is blocked on its own.
    fn propose_all(&mut self) {
        let mut variants = Vec::with_capacity(self.context.group.variants.len());
        for state in &self.context.group.variants {
            let Some(scale) = state.scale else { continue };
            let memory = self.remembered(&state.variant.id.name);
            let declared = self.context.declared(state.variant.role);
            let seen = assess_variant(state, declared, self.context.evidence, self.context.now);
            variants.push(VariantContext::new(self.context, (state, scale), memory, seen));
        }
        self.memory.evidence = self.evidence_after(&variants);
        let role = |variant: &VariantContext<'_>| variant.state.variant.role;
        variants.sort_by_key(role);
        let mut learned = self.memory.learned.take().unwrap_or_default();
        self.saturated = safety_net::find(self.context, &variants);
        self.steps = withdrawn_orders::withdraw(self.context, &self.saturated, &mut variants, &mut learned);
        self.stand_ins = stand_in::choose(self.context, &mut variants);
        if !self.stand_ins.is_empty() {
            stand_in::ask_all(self.context, &mut learned);
        }
        let first = self.steps.len();
        let mut pass = self.pass(&variants, &mut learned);
        let unlearned = stand_in::choose_unlearned(self.context, &mut variants, &pass.roles, &mut learned);
        if unlearned.is_empty() {
            self.stand_ins.extend(stand_in::between_looks(self.context, &pass.roles, &learned));
        } else {
            // Who has nothing to say is asked first at every look: so it learns, and says more one day.
            self.stand_ins.extend(unlearned);
            self.steps.truncate(first);
            // What the others see they have learned already; of who stands in only the token analyzer learns.
            let mut again = learned.clone();
            pass = self.pass(&variants, &mut again);
            if self.context.analyzer != Analyzer::Saturation {
                learned.tokens = again.tokens;
            }
            learned.stand_in_share = again.stand_in_share;
        }
        if pass.looked {
            self.memory.cycle_at = Some(self.context.now);
        }
        if self.context.policy.analyzer != Analyzer::Rate {
            // Who decides by something else need not go on learning for it.
            learned.rate = None;
        }
        if self.stand_ins.is_empty() {
            learned.stand_in_share = None;
        }
        learned.checkpoint(self.context.now);
        self.variants = variants;
        self.memory.learned = Some(learned).filter(|learned| **learned != Learned::default());
    }

    /// Decides about each role of `variants` by its analyzer; those of capacity are asked about all of them together.
    fn pass(&mut self, variants: &[VariantContext<'a>], learned: &mut Learned) -> Pass {
        let role = |variant: &VariantContext<'_>| variant.state.variant.role;
        let (mut pass, mut open, mut decides) = (Pass::default(), Vec::new(), self.context.analyzer);
        (self.proposals, self.asked) = (Vec::new(), None);
        for variants in variants.chunk_by(|one, next| role(one) == role(next)) {
            let Some(role) = variants.first().map(role) else { continue };
            let saturated = self.saturated.iter().any(|(of, _)| *of == role);
            let analyzer = self.stand_in(role).unwrap_or(self.context.analyzer);
            let context = ModelContext { saturated, analyzer, ..self.context };
            let outcome = classify::decide(context, role, variants, learned);
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
            if self.proposals.is_empty() {
                self.proposals = outcome.proposals;
            } else {
                self.proposals.extend(outcome.proposals);
            }
        }
        if !open.is_empty() {
            let (context, roles) = (self.context.by(decides), open.clone());
            self.asked = capacity::ask(context, variants, open, learned, &mut self.steps);
            if !context.is_stand_in() {
                let silent = self.asked.as_ref().is_none_or(OptimizerInput::is_silent);
                pass.roles.extend(roles.into_iter().map(|(role, _)| (role, silent)));
            }
        }
        pass
    }

    /// What is remembered of the evidence after this look.
    fn evidence_after(&self, variants: &[VariantContext<'_>]) -> Option<Box<SignalHistory>> {
        let reads = self.context.declared(Role::Both).all().with(WITNESSES);
        let none = SignalHistory::default();
        let before = self.context.evidence.unwrap_or(&none);
        let seen = variants.iter().map(|variant| (variant.state, &variant.coverage));
        Some(Box::new(before.after(seen, reads, self.context.now))).filter(|after| !after.is_empty())
    }

    /// Who decides about `role` instead of the model's analyzer.
    fn stand_in(&self, role: Role) -> Option<Analyzer> {
        self.stand_ins.iter().find(|(of, _)| *of == role).map(|(_, analyzer)| *analyzer)
    }

    fn remembered(&self, variant: &SmolStr) -> Cow<'a, VariantMemory> {
        let before = self.before.and_then(|before| before.variants.get(variant));
        before.map_or_else(Cow::default, |before| remembered(before, self.context.now))
    }

    /// What the analyzer lacks of `variant`'s pods.
    fn gap(&self, variant: &VariantContext<'_>) -> Option<SignalGap> {
        let role = variant.state.variant.role;
        let learned = self.memory.learned.as_deref();
        stand_in::gap(self.context, &self.variants, variant, (self.stand_in(role), learned))
    }

    /// Takes the numbers of an optimizer.
    pub(super) fn take(&mut self, plan: &Plan) {
        if let Some(asked) = self.asked.take() {
            asked.take(plan, &self.variants, &mut self.proposals, &mut self.steps);
        }
    }

    /// A limit leaves the variant at `at` less than is wanted, `granted`: the rate policy asks another one, and so does the
    /// safety net. True when the fleet is saturated.
    pub(super) fn denied(&mut self, at: usize, granted: Replicas) -> bool {
        let rate = self.memory.learned.as_mut().and_then(|learned| learned.rate.as_mut());
        if let Some(rate) = rate {
            let known = rate.knowledge.variants.or_default(self.variants[at].name());
            known.denied = Some(self.context.now.into());
        }
        let variant = &mut self.variants[at];
        safety_net::denied(variant, granted, self.context.now);
        self.saturated.iter().any(|(role, _)| *role == variant.state.variant.role)
    }

    /// Puts what analyzers have wanted under the model's rules of stability, and the two guards above all that: what runs
    /// fits into what a removal leaves, and what is saturated grows.
    pub(super) fn settle(&mut self) {
        self.steps.extend(bound::settle(self.context, &mut self.variants, &mut self.proposals));
        self.steps.extend(withdrawn_orders::hold_reorders(self.context, &self.variants, &mut self.proposals));
        self.steps.extend(removal_guard::hold(self.context, &self.variants, &mut self.proposals));
        if !self.saturated.is_empty() {
            let (variants, proposals) = (&mut self.variants, &mut self.proposals);
            let learned = &mut self.memory.learned;
            self.steps.extend(safety_net::relieve(
                self.context,
                &self.saturated,
                variants,
                proposals,
                learned,
            ));
        }
    }

    /// The group's decision. Of what is remembered, a variant that is not in the group keeps its place if `keep` says so.
    pub(super) fn finish(self, keep: impl Fn(&SmolStr) -> bool) -> Decided {
        let lost = self.context.group.variants.iter().filter(|variant| variant.scale.is_none());
        let lost: Vec<_> = lost.map(|one| (one, self.remembered(&one.variant.id.name))).collect();
        let gaps: Vec<Option<SignalGap>> = self.variants.iter().map(|variant| self.gap(variant)).collect();
        let Self { context, variants, mut proposals, mut steps, memory, before, .. } = self;
        steps.extend(bound::clamp(&variants, &mut proposals));
        steps.extend(zero::settle(context, &memory, &variants, &mut proposals));
        steps.extend(bound::tell_swallowed(context, &variants, &mut proposals));
        let mut decided = Decided {
            decisions: Vec::with_capacity(variants.len()),
            report: GroupReport { steps, ..GroupReport::default() },
            memory,
        };
        for ((variant, proposal), gap) in variants.into_iter().zip(proposals).zip(gaps) {
            let (verdict, memory) = publish(context, &variant, proposal);
            let decision = Decision { gap, ..decision(variant.state, verdict) };
            decided.decisions.push((variant.id().clone(), decision));
            decided.memory.variants.insert(variant.name().clone(), memory);
        }
        for (lost, memory) in lost {
            without_target(context, lost, memory.into_owned(), &mut decided);
        }
        for (name, memory) in before.into_iter().flat_map(|before| before.variants.iter()) {
            if decided.memory.variants.get(name).is_none() && keep(name) {
                decided.memory.variants.insert(name.clone(), remembered(memory, context.now).into_owned());
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
fn publish(
    context: ModelContext<'_>,
    variant: &VariantContext<'_>,
    proposal: Proposal,
) -> (Verdict, VariantMemory) {
    let (now, before) = (context.now, &variant.memory);
    let blind_since = proposal.blind.then(|| before.blind_since.unwrap_or(now));
    let unlisted_since = (variant.unlisted() > 0).then(|| before.unlisted_since.unwrap_or(now));
    let Some(desired) = proposal.number else {
        let since = before.blind_since.unwrap_or(now);
        let message = messages::nothing_known(variant, &proposal.message);
        let memory =
            VariantMemory { blind_since: Some(since), unlisted_since, ..VariantMemory::clone(before) };
        return (Verdict::Unknown(Unknown { cause: Cause::NothingKnown, message, since }), memory);
    };
    let moved = before.target != Some(desired);
    // What nobody followed was given up; an analyzer that wants it again has it waited for again.
    let renewed = proposal.look.is_some() && !variant.active() && !variant.patient(now);
    let evidence = proposal.evidence.min(now);
    let sampled = (!proposal.blind).then_some(evidence);
    let memory = VariantMemory {
        target: Some(desired),
        target_since: if moved || renewed { Some(now) } else { before.target_since.or(Some(now)) },
        evidence: before.evidence.max(sampled),
        reason: if proposal.blind { before.reason } else { Some(proposal.reason) },
        message: if proposal.blind { before.message.clone() } else { Some(proposal.message.clone()) },
        blind_since,
        unlisted_since,
        wanted: before.wanted.clone(),
        safety_net: before.safety_net,
        starts: before.starts.clone(),
        ordered_from: withdrawn_orders::ordered_from(before, desired, context),
        withdrawn_at: before.withdrawn_at,
        most_running: before.most_running,
    };
    let age = Seconds::between(evidence, now);
    if age > context.max_stale {
        let message = messages::too_old(variant, age, context.max_stale, &proposal.message);
        return (Verdict::Unknown(Unknown { cause: Cause::TooOld, message, since: evidence }), memory);
    }
    let target = Target { desired, reason: proposal.reason, message: proposal.message, evidence };
    (Verdict::Target(target), memory)
}

/// A variant whose scale target does not exist: no number, but its memory stays for when it comes back.
fn without_target(
    context: ModelContext<'_>,
    state: &VariantState,
    mut memory: VariantMemory,
    decided: &mut Decided,
) {
    let since = *memory.blind_since.get_or_insert(context.now);
    let message = messages::target_not_found(state);
    let verdict = Verdict::Unknown(Unknown { cause: Cause::TargetNotFound, message, since });
    decided.decisions.push((state.variant.id.clone(), decision(state, verdict)));
    decided.memory.variants.insert(state.variant.id.name.clone(), memory);
    let finding = messages::no_target(state);
    decided.report.steps.push(Step::new(Stage::Quality, Some(&state.variant.id.name), finding));
}
