//! The rate policy, asked from what a decision knows. It looks at every evaluation: it has clocks of its own for moving.

use smol_str::SmolStr;

use super::capacity::queue_lost;
use super::fits::Removal;
use super::member::{Draft, Member, Scene};
use super::role::newest;
use super::{words, zero};
use crate::analyze::rate::{
    Answer, Control, Look, Memory, Process, Replica, Request, Variant, analyze, binding, finding, turns,
    values,
};
use crate::analyze::reads;
use crate::decision::Reason;
use crate::learn::{Knowledge, Moment, RoleKnowledge, VariantKnowledge, starts_of};
use crate::memory::Learned;
use crate::model::Role;
use crate::observe::held_by_scheduler;
use crate::quality::{Load, OVERDUE, Prospect, State, engines_of, is_full};
use crate::report::{Stage, Step};
use crate::sequences::by_device;
use crate::snapshot::{Phase, Signal, newest_confirmed};
use crate::units::{Replicas, Seconds, count};

/// Arrivals older than this, seconds, say nothing of what may be removed: two scrapes of the slowest usual interval, a minute.
const ARRIVALS_MAX_AGE: f64 = 120.0;

/// A variant that a limit has denied something is asked again after this time, seconds.
const RETRY: f64 = 60.0;

/// Looks at `members`, of which at least one is seen; `None` while nothing is known of what arrives, or of what a replica carries.
pub(super) fn look_and_move(
    scene: Scene<'_>,
    (role, state): (Role, State),
    members: &[Member<'_>],
    learned: &mut Learned,
    steps: &mut Vec<Step>,
) -> Option<Vec<Draft>> {
    let removal = Removal::new(scene, members);
    let (answer, finding) = ask(scene, (role, state), &removal, learned, steps)?;
    let finding = removal.told(&finding);
    let view = View { scene, state, answer: &answer, finding: &finding };
    let drafts =
        members.iter().zip(&answer.targets).map(|(member, target)| view.draft(members, member, *target));
    let drafts: Vec<Draft> = drafts.collect();
    for (member, draft) in members.iter().zip(&drafts) {
        steps.push(Step::new(Stage::Target, Some(member.name()), draft.message.clone()));
    }
    Some(drafts)
}

/// While nothing serves, the requests that the gateway holds may ask for more than `drafts` do.
pub(super) fn raise(
    scene: Scene<'_>,
    (role, state): (Role, State),
    members: &[Member<'_>],
    learned: &mut Learned,
    (drafts, steps): (&mut [Draft], &mut Vec<Step>),
) {
    let held = held_by_scheduler(scene.now, &scene.group.scheduler);
    let Some(queue) = held.filter(|queue| queue.value > 0.0) else { return };
    let removal = Removal::new(scene, members);
    let Some((answer, finding)) = ask(scene, (role, state), &removal, learned, steps) else { return };
    for ((member, draft), target) in members.iter().zip(drafts).zip(answer.targets) {
        if draft.number.is_some_and(|number| target > number) {
            let message = words::analyzed(member, target, &finding);
            steps.push(Step::new(Stage::Target, Some(member.name()), message.clone()));
            let reason = if state == State::Zero { Reason::ScaleFromZero } else { Reason::ScaleUp };
            let (number, look) = (Some(target), Some(State::Aging.rights()));
            *draft = Draft { number, reason, message, evidence: queue.at, blind: false, look };
        }
    }
}

fn ask(
    scene: Scene<'_>,
    (role, state): (Role, State),
    removal: &Removal<'_, '_>,
    learned: &mut Learned,
    steps: &mut Vec<Step>,
) -> Option<(Answer, SmolStr)> {
    let members = removal.members();
    let memory = learned.rate.get_or_insert_with(|| {
        let mut memory = Memory::default();
        memory.observe(scene.group, scene.evidence, scene.now);
        Box::new(memory)
    });
    let Memory { knowledge, control, .. } = &mut **memory;
    let recent = is_recent(scene.now.into(), members, knowledge, role);
    let known = knowledge.roles.entry(role).or_default();
    let variants = members.iter().map(|member| {
        let own = knowledge.variants.or_default(member.name());
        variant(scene, role, member, (known, own))
    });
    let mut variants: Vec<Variant> = variants.collect();
    pass_on(scene, &mut variants, |name| knowledge.variants.get(name).and_then(|own| own.denied));
    let held = held_by_scheduler(scene.now, &scene.group.scheduler).map_or(0.0, |queue| queue.value);
    let in_pods = |signal| members.iter().map(|member| in_pods(member, signal)).sum::<f64>();
    let look = Look {
        now: Moment::from(scene.now),
        role,
        variants,
        waiting: held + in_pods(Signal::Waiting),
        running: in_pods(Signal::Running),
        may_remove: state.rights().down && !queue_lost(scene) && !scene.saturated && recent,
        hidden: hidden_load(members),
        tolerance: scene.model.stability.tolerance,
        policy: &scene.model.rate,
    };
    let control: &mut Control = control.entry(role).or_default();
    let answer = analyze(&look, known, control, &|targets| removal.fits(targets))?;
    let said = finding(&answer.found);
    steps.push(Step {
        values: values(&look, &answer.found),
        binding: Some(binding(&answer.found)),
        turns: turns(&answer.found),
        ..Step::new(Stage::Analyze, None, words::of_role(role, &said))
    });
    Some((answer, said))
}

/// Arrivals are known until lately, and what replicas carry was learned not too long ago: what is older may raise a number
/// and not lower it.
fn is_recent(now: Moment, members: &[Member<'_>], knowledge: &Knowledge, role: Role) -> bool {
    let Some(known) = knowledge.roles.get(&role) else { return false };
    let bins = known.arrivals.bins();
    if bins.last().is_none_or(|newest| newest.end.until(now) > ARRIVALS_MAX_AGE) {
        return false;
    }
    let learned = |member: &Member<'_>| {
        knowledge.variants.get(member.name()).is_none_or(|own| own.may_lower(role, now))
    };
    // Where nothing arrives, any replica carries it.
    let idle = bins.iter().all(|bin| bin.count().arrivals <= 0.0);
    idle || (known.shape.may_lower(now) && members.iter().filter(|member| member.active()).all(learned))
}

/// How much more than is estimated may arrive, as a factor of at least 1: each pod that is not measured may be as loaded as the
/// busiest that is, where the estimate takes it for the mean.
fn hidden_load(members: &[Member<'_>]) -> f64 {
    let active = || members.iter().filter(|member| member.active());
    let unmeasured = f64::from(active().map(|member| member.seen.unmeasured()).sum::<u32>());
    if unmeasured <= 0.0 {
        return 1.0;
    }
    let loads = active().flat_map(|member| &member.seen.loads).map(|load| load.by::<reads::Rate>());
    // Of whose requests nothing is known, nothing is compared.
    let requests = |load: Load<'_, reads::Rate>| Some(load.running()? + load.queue()?);
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
fn pass_on(scene: Scene<'_>, variants: &mut [Variant], denied: impl Fn(&SmolStr) -> Option<Moment>) {
    let lately = |one: &Variant| denied(&one.name).is_some_and(|at| at.until(scene.now.into()) < RETRY);
    let able = |one: &Variant| !one.full && one.bounds.max.is_none_or(|max| one.target < max);
    if variants.iter().any(|one| able(one) && !lately(one)) {
        variants.iter_mut().for_each(|one| one.full |= lately(one));
    }
}

/// The newest values of a gauge of requests, of all processes that serve.
fn in_pods(member: &Member<'_>, signal: Signal) -> f64 {
    let serving = member.state.replicas.iter().filter(|replica| replica.phase == Phase::Ready);
    let newest = serving.flat_map(engines_of).filter_map(|(_, engine)| newest_confirmed(engine.get(signal)));
    newest.map(|sample| sample.value).sum()
}

fn variant(
    scene: Scene<'_>,
    role: Role,
    member: &Member<'_>,
    (known, own): (&RoleKnowledge, &mut VariantKnowledge),
) -> Variant {
    let (state, scale) = (member.state, member.scale);
    let policy = &scene.model.rate;
    // What was learned while another analyzer decided counts as long as the policy's own has seen no start.
    let learned = own.starts.longest().or_else(|| member.memory.starts.longest());
    let start = learned.unwrap_or_else(|| own.starts.expected(policy.start_up.get(), &starts_of(state)));
    let by_argument = state.template.sequences().map(f64::from);
    let request = known.shape.prompt().map(|prompt| Request { prompt, output: known.shape.output() });
    // It learns what limits an engine, of whatever kind, and begins with what vLLM would run.
    let default = f64::from(by_device(state.variant.accelerator.as_deref()));
    let process = Process::of(role, own, by_argument, default, scene.now.into());
    let replica =
        process.zip(request).and_then(|(process, request)| Replica::of(role, &process, request, policy));
    let processes = own.processes.unwrap_or(1.0);
    let overdue = |since| Seconds::between(since, scene.now).get() > OVERDUE * start;
    let [whole_start, patience] =
        [start, OVERDUE * start].map(|seconds| Seconds::new(seconds).unwrap_or_default());
    let (mut pods, mut failing, mut never) = (Vec::new(), 0, 0);
    for replica in &state.replicas {
        match Prospect::of(replica, patience, scene.now) {
            Prospect::Ready => pods.push(Seconds::ZERO),
            Prospect::Starting => {
                let left = start - Seconds::between(replica.created, scene.now).get();
                pods.push(Seconds::new(left.max(0.0)).unwrap_or_default());
            }
            Prospect::Failing => failing += 1,
            Prospect::Broken | Prospect::Unschedulable | Prospect::Asleep => never += 1,
            Prospect::Terminating => {}
        }
    }
    let first = || member.state.last_status.unwrap_or_default().max(scale.spec);
    let target = member.memory.target.unwrap_or_else(first);
    // An HPA with another maximum, a quota on pods: what was ordered never came to be.
    let ordered = member.memory.target_since.is_some_and(overdue);
    let unmade = if ordered { target.above(scale.base()) } else { Replicas::ZERO };
    let replaced = own.replaced.settle(failing, start, scene.now.into());
    let lost = Replicas::new(unmade.get().saturating_add(never).saturating_add(replaced));
    // A rolling update has pods beside those that are asked for: what is missing of it is missing of nothing else.
    let served = Replicas::new(count(pods.len()).saturating_add(failing - replaced));
    Variant {
        name: member.name().clone(),
        cost: state.variant.cost,
        bounds: state.variant.bounds,
        target,
        running: scale.base(),
        lost: lost.min(target.above(served)),
        full: unmade > Replicas::ZERO || is_full(state, whole_start, patience, scene.now),
        pods,
        start: whole_start,
        replica: replica.map(|one| one.times(processes)),
    }
}

/// A look that can be put into drafts.
struct View<'v> {
    scene: Scene<'v>,
    state: State,
    answer: &'v Answer,
    finding: &'v str,
}

impl View<'_> {
    fn draft(&self, members: &[Member<'_>], member: &Member<'_>, target: Replicas) -> Draft {
        if !member.active() && target == Replicas::ZERO {
            return zero::asleep(self.scene, member);
        }
        let (base, held) = (member.scale.base(), member.committed().unwrap_or(member.scale.spec));
        let (reason, message) = match target.cmp(&held) {
            _ if self.state == State::Partial => {
                let incomplete = words::incomplete(member, &self.scene.group.source, self.finding);
                let grows = words::analyzed(member, target, self.finding);
                (Reason::Partial, if target > held { grows } else { incomplete })
            }
            std::cmp::Ordering::Greater if self.state == State::Estimated => {
                (Reason::Partial, words::analyzed(member, target, self.finding))
            }
            std::cmp::Ordering::Greater => (Reason::ScaleUp, words::analyzed(member, target, self.finding)),
            std::cmp::Ordering::Less => (Reason::ScaleDown, words::analyzed(member, target, self.finding)),
            std::cmp::Ordering::Equal if self.answer.found.short => {
                (Reason::Bounded, words::no_room(member, self.finding))
            }
            std::cmp::Ordering::Equal if target != base => {
                (Reason::Transition, words::on_its_way(member, target, self.finding))
            }
            std::cmp::Ordering::Equal if self.state == State::Estimated => {
                (Reason::Partial, words::estimated(member, self.finding))
            }
            std::cmp::Ordering::Equal => (Reason::Steady, words::steady(member, self.finding)),
        };
        let (evidence, look) = (newest(members, self.scene.now), Some(self.state.rights()));
        Draft { number: Some(target), reason, message, evidence, blind: false, look }
    }
}

/// Nothing is known yet of what arrives or of what a replica carries: what was promised stands.
pub(super) fn unknown(scene: Scene<'_>, state: State, member: &Member<'_>) -> Draft {
    if !member.active() {
        return zero::asleep(scene, member);
    }
    let number = member.committed().unwrap_or(member.scale.spec);
    let evidence = member.seen.newest.unwrap_or(scene.now);
    let reason = if state == State::Partial { Reason::Partial } else { Reason::Steady };
    let message = words::learning(member);
    let look = Some(state.rights());
    Draft { number: Some(number), reason, message, evidence, blind: false, look }
}
