//! The rate policy, asked from what a decision knows. It looks at every evaluation: it has clocks of its own for moving.

use smol_str::SmolStr;

use super::capacity::queue_lost;
use crate::analyze::rate::{
    EngineModel, RateInput, RateMemory, RatePlan, RateVariant, ReplicaCapacity, RequestSize, analyze,
    binding, finding, turns, values,
};
use crate::decide::classify::newest;
use crate::decide::context::{ModelContext, Proposal, VariantContext};
use crate::decide::removal_guard::RemovalGuard;
use crate::decide::{messages, zero};
use crate::decision::Reason;
use crate::learn::{ModelKnowledge, RoleKnowledge, VariantKnowledge, start_up_times};
use crate::memory::Learned;
use crate::model::Role;
use crate::moment::Moment;
use crate::observe::scheduler_queue;
use crate::quality::analyzer_signals as reads;
use crate::quality::{
    CoverageState, EngineLoad, OVERDUE_FACTOR, PodOutlook, is_growth_futile, judged_engines,
};
use crate::report::{Stage, Step};
use crate::sequence_limit::default_for_device;
use crate::snapshot::{Phase, Signal, newest_confirmed};
use crate::units::{Replicas, Seconds, count};

/// Arrivals older than this, seconds, say nothing of what may be removed: two scrapes of the slowest usual interval, a minute.
const ARRIVALS_MAX_AGE: f64 = 120.0;

/// A variant that a limit has denied something is asked again after this time, seconds.
const RETRY: f64 = 60.0;

/// Looks at `variants`, of which at least one is seen; `None` while nothing is known of what arrives, or of what a replica carries.
pub(crate) fn look_and_move(
    context: ModelContext<'_>,
    (role, state): (Role, CoverageState),
    variants: &[VariantContext<'_>],
    learned: &mut Learned,
    steps: &mut Vec<Step>,
) -> Option<Vec<Proposal>> {
    let removal = RemovalGuard::new(context, variants);
    let (answer, finding) = ask(context, (role, state), &removal, learned, steps)?;
    let finding = removal.told(&finding);
    let view = View { context, state, answer: &answer, finding: &finding };
    let proposals = variants
        .iter()
        .zip(&answer.targets)
        .map(|(variant, target)| view.proposal(variants, variant, *target));
    let proposals: Vec<Proposal> = proposals.collect();
    for (variant, proposal) in variants.iter().zip(&proposals) {
        steps.push(Step::new(Stage::Target, Some(variant.name()), proposal.message.clone()));
    }
    Some(proposals)
}

/// While nothing serves, the requests that the gateway holds may ask for more than `proposals` do.
pub(crate) fn raise(
    context: ModelContext<'_>,
    (role, state): (Role, CoverageState),
    variants: &[VariantContext<'_>],
    learned: &mut Learned,
    (proposals, steps): (&mut [Proposal], &mut Vec<Step>),
) {
    let held = scheduler_queue(context.now, &context.group.scheduler);
    let Some(queue) = held.filter(|queue| queue.value > 0.0) else { return };
    let removal = RemovalGuard::new(context, variants);
    let Some((answer, finding)) = ask(context, (role, state), &removal, learned, steps) else { return };
    for ((variant, proposal), target) in variants.iter().zip(proposals).zip(answer.targets) {
        if proposal.number.is_some_and(|number| target > number) {
            let message = messages::analyzed(variant, target, &finding);
            steps.push(Step::new(Stage::Target, Some(variant.name()), message.clone()));
            let reason = if state == CoverageState::Zero { Reason::ScaleFromZero } else { Reason::ScaleUp };
            let (number, look) = (Some(target), Some(CoverageState::Aging.allowed_moves()));
            *proposal = Proposal { number, reason, message, evidence: queue.at, blind: false, look };
        }
    }
}

fn ask(
    context: ModelContext<'_>,
    (role, state): (Role, CoverageState),
    removal: &RemovalGuard<'_, '_>,
    learned: &mut Learned,
    steps: &mut Vec<Step>,
) -> Option<(RatePlan, SmolStr)> {
    let variants = removal.variants();
    let memory = learned.rate.get_or_insert_with(|| {
        let mut memory = RateMemory::default();
        memory.observe(context.group, context.evidence, context.now);
        Box::new(memory)
    });
    let RateMemory { knowledge, cooldowns, .. } = &mut **memory;
    let recent = is_recent(context.now.into(), variants, knowledge, role);
    let known = knowledge.roles.entry(role).or_default();
    let inputs = variants.iter().map(|variant| {
        let own = knowledge.variants.or_default(variant.name());
        rate_variant(context, role, variant, (known, own))
    });
    let mut inputs: Vec<RateVariant> = inputs.collect();
    pass_on(context, &mut inputs, |name| knowledge.variants.get(name).and_then(|own| own.denied));
    let held = scheduler_queue(context.now, &context.group.scheduler).map_or(0.0, |queue| queue.value);
    let in_pods = |signal| variants.iter().map(|variant| in_pods(variant, signal)).sum::<f64>();
    let input = RateInput {
        now: Moment::from(context.now),
        role,
        variants: inputs,
        waiting: held + in_pods(Signal::Waiting),
        running: in_pods(Signal::Running),
        can_remove: state.allowed_moves().down && !queue_lost(context) && !context.saturated && recent,
        unmeasured_factor: hidden_load(variants),
        tolerance: context.policy.stability.tolerance,
        policy: &context.policy.rate,
    };
    let cooldown = cooldowns.entry(role).or_default();
    let answer = analyze(&input, known, cooldown, &|targets| removal.fits(targets))?;
    let said = finding(&answer.found);
    steps.push(Step {
        values: values(&input, &answer.found),
        binding: Some(binding(&answer.found)),
        turns: turns(&answer.found),
        ..Step::new(Stage::Analyze, None, messages::of_role(role, &said))
    });
    Some((answer, said))
}

/// Arrivals are known until lately, and what replicas carry was learned not too long ago: what is older may raise a number
/// and not lower it.
fn is_recent(now: Moment, variants: &[VariantContext<'_>], knowledge: &ModelKnowledge, role: Role) -> bool {
    let Some(known) = knowledge.roles.get(&role) else { return false };
    let bins = known.arrivals.bins();
    if bins.last().is_none_or(|newest| newest.end.until(now) > ARRIVALS_MAX_AGE) {
        return false;
    }
    let learned = |variant: &VariantContext<'_>| {
        knowledge.variants.get(variant.name()).is_none_or(|own| own.may_lower(role, now))
    };
    // Where nothing arrives, any replica carries it.
    let idle = bins.iter().all(|bin| bin.count().arrivals <= 0.0);
    idle || (known.shape.may_lower(now) && variants.iter().filter(|variant| variant.active()).all(learned))
}

/// How much more than is estimated may arrive, as a factor of at least 1: each pod that is not measured may be as loaded as the
/// busiest that is, where the estimate takes it for the mean.
fn hidden_load(variants: &[VariantContext<'_>]) -> f64 {
    let active = || variants.iter().filter(|variant| variant.active());
    let unmeasured = f64::from(active().map(|variant| variant.coverage.unmeasured()).sum::<u32>());
    if unmeasured <= 0.0 {
        return 1.0;
    }
    let loads =
        active().flat_map(|variant| &variant.coverage.loads).map(|load| load.for_analyzer::<reads::Rate>());
    // Of whose requests nothing is known, nothing is compared.
    let requests = |load: EngineLoad<'_, reads::Rate>| Some(load.running()? + load.queue()?);
    let requests: Vec<f64> = loads.filter_map(requests).collect();
    let (sum, count) = (requests.iter().sum::<f64>(), f64::from(count(requests.len())));
    let busiest = requests.iter().copied().fold(0.0, f64::max);
    if sum <= 0.0 {
        return 1.0;
    }
    let ratio = busiest * count / sum;
    (count + unmeasured * ratio) / (count + unmeasured)
}

/// What a limit has lately denied one variant is asked of another, if there is one that can.
fn pass_on(
    context: ModelContext<'_>,
    variants: &mut [RateVariant],
    denied: impl Fn(&SmolStr) -> Option<Moment>,
) {
    let lately = |one: &RateVariant| denied(&one.name).is_some_and(|at| at.until(context.now.into()) < RETRY);
    let able = |one: &RateVariant| !one.is_full && one.bounds.max.is_none_or(|max| one.committed < max);
    if variants.iter().any(|one| able(one) && !lately(one)) {
        variants.iter_mut().for_each(|one| one.is_full |= lately(one));
    }
}

/// The newest values of a gauge of requests, of all processes that serve.
fn in_pods(variant: &VariantContext<'_>, signal: Signal) -> f64 {
    let serving = variant.state.replicas.iter().filter(|replica| replica.phase == Phase::Ready);
    let newest =
        serving.flat_map(judged_engines).filter_map(|(_, engine)| newest_confirmed(engine.get(signal)));
    newest.map(|sample| sample.value).sum()
}

fn rate_variant(
    context: ModelContext<'_>,
    role: Role,
    variant: &VariantContext<'_>,
    (known, own): (&RoleKnowledge, &mut VariantKnowledge),
) -> RateVariant {
    let (state, scale) = (variant.state, variant.scale);
    let policy = &context.policy.rate;
    // What was learned while another analyzer decided counts as long as the policy's own has seen no start.
    let learned = own.starts.longest().or_else(|| variant.memory.starts.longest());
    let start = learned.unwrap_or_else(|| own.starts.expected(policy.start_up.get(), &start_up_times(state)));
    let by_argument = state.template.sequences().map(f64::from);
    let request = known.shape.prompt().map(|prompt| RequestSize { prompt, output: known.shape.output() });
    // It learns what limits an engine, of whatever kind, and begins with what vLLM would run.
    let default = f64::from(default_for_device(state.variant.accelerator.as_deref()));
    let process = EngineModel::from_knowledge(role, own, by_argument, default, context.now.into());
    let replica = process
        .zip(request)
        .and_then(|(process, request)| ReplicaCapacity::new(role, &process, request, policy));
    let processes = own.engines_per_pod.unwrap_or(1.0);
    let overdue = |since| Seconds::between(since, context.now).get() > OVERDUE_FACTOR * start;
    let [whole_start, patience] =
        [start, OVERDUE_FACTOR * start].map(|seconds| Seconds::new(seconds).unwrap_or_default());
    let (mut pods, mut failing, mut never) = (Vec::new(), 0, 0);
    for replica in &state.replicas {
        match PodOutlook::assess(replica, patience, context.now) {
            PodOutlook::Ready => pods.push(Seconds::ZERO),
            PodOutlook::Starting => {
                let left = start - Seconds::between(replica.created, context.now).get();
                pods.push(Seconds::new(left.max(0.0)).unwrap_or_default());
            }
            PodOutlook::Failing => failing += 1,
            PodOutlook::Broken | PodOutlook::Unschedulable | PodOutlook::Asleep => never += 1,
            PodOutlook::Terminating => {}
        }
    }
    let first = || variant.state.last_status.unwrap_or_default().max(scale.spec);
    let target = variant.memory.target.unwrap_or_else(first);
    // An HPA with another maximum, a quota on pods: what was ordered never came to be.
    let ordered = variant.memory.target_since.is_some_and(overdue);
    let unmade = if ordered { target.saturating_sub(scale.base()) } else { Replicas::ZERO };
    let replaced = own.replaced.update(failing, start, context.now.into());
    let lost = Replicas::new(unmade.get().saturating_add(never).saturating_add(replaced));
    // A rolling update has pods beside those that are asked for: what is missing of it is missing of nothing else.
    let served = Replicas::new(count(pods.len()).saturating_add(failing - replaced));
    RateVariant {
        name: variant.name().clone(),
        cost: state.variant.cost,
        bounds: state.variant.bounds,
        committed: target,
        requested: scale.base(),
        unavailable: lost.min(target.saturating_sub(served)),
        is_full: unmade > Replicas::ZERO || is_growth_futile(state, whole_start, patience, context.now),
        ready_in: pods,
        start_up: whole_start,
        capacity: replica.map(|one| one.times(processes)),
    }
}

/// A look that can be put into proposals.
struct View<'v> {
    context: ModelContext<'v>,
    state: CoverageState,
    answer: &'v RatePlan,
    finding: &'v str,
}

impl View<'_> {
    fn proposal(
        &self,
        variants: &[VariantContext<'_>],
        variant: &VariantContext<'_>,
        target: Replicas,
    ) -> Proposal {
        if !variant.active() && target == Replicas::ZERO {
            return zero::asleep(self.context, variant);
        }
        let (base, held) = (variant.scale.base(), variant.committed().unwrap_or(variant.scale.spec));
        let (reason, message) = match target.cmp(&held) {
            _ if self.state == CoverageState::Partial => {
                let incomplete = messages::incomplete(variant, &self.context.group.source, self.finding);
                let grows = messages::analyzed(variant, target, self.finding);
                (Reason::Partial, if target > held { grows } else { incomplete })
            }
            std::cmp::Ordering::Greater if self.state == CoverageState::Estimated => {
                (Reason::Partial, messages::analyzed(variant, target, self.finding))
            }
            std::cmp::Ordering::Greater => {
                (Reason::ScaleUp, messages::analyzed(variant, target, self.finding))
            }
            std::cmp::Ordering::Less => {
                (Reason::ScaleDown, messages::analyzed(variant, target, self.finding))
            }
            std::cmp::Ordering::Equal if self.answer.found.is_short => {
                (Reason::Bounded, messages::no_room(variant, self.finding))
            }
            std::cmp::Ordering::Equal if target != base => {
                (Reason::Transition, messages::on_its_way(variant, target, self.finding))
            }
            std::cmp::Ordering::Equal if self.state == CoverageState::Estimated => {
                (Reason::Partial, messages::estimated(variant, self.finding))
            }
            std::cmp::Ordering::Equal => (Reason::Steady, messages::steady(variant, self.finding)),
        };
        let (evidence, look) = (newest(variants, self.context.now), Some(self.state.allowed_moves()));
        Proposal { number: Some(target), reason, message, evidence, blind: false, look }
    }
}

/// Nothing is known yet of what arrives or of what a replica carries: what was promised stands.
pub(crate) fn unknown(
    context: ModelContext<'_>,
    state: CoverageState,
    variant: &VariantContext<'_>,
) -> Proposal {
    if !variant.active() {
        return zero::asleep(context, variant);
    }
    let number = variant.committed().unwrap_or(variant.scale.spec);
    let evidence = variant.coverage.newest.unwrap_or(context.now);
    let reason = if state == CoverageState::Partial { Reason::Partial } else { Reason::Steady };
    let message = messages::learning(variant);
    let look = Some(state.allowed_moves());
    Proposal { number: Some(number), reason, message, evidence, blind: false, look }
}
