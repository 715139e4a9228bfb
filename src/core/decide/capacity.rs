//! The analyzers of capacity: what each finds of a model, and the numbers that an optimizer makes of their findings.

use jiff::Timestamp;
use smol_str::{SmolStr, ToSmolStr};

use super::group::Wanting;
use super::member::{Draft, Member, Scene};
use super::role::newest;
use super::{latency, sequences, stand_in, words};
use crate::analyze::finding::{Analyzer, Finding};
use crate::analyze::reads::{self, Reads};
use crate::analyze::saturation_token::{
    self, EngineParameters, Inputs, Observation, SchedulerQueue, TokenPolicy, VariantInput,
};
use crate::analyze::throughput;
use crate::by_name::Index;
use crate::decision::Reason;
use crate::memory::Learned;
use crate::model::{Beside, Bounds, Role, Utilisation};
use crate::observe::held_by_scheduler;
use crate::optimize::{self, Candidate, Plan, Request};
use crate::quality::{Load, State, most_contradict, used};
use crate::report::{Direction, Side, Stage, Step, Turn, Value};
use crate::snapshot::{Signal, VariantState};
use crate::units::{Replicas, Requests, Seconds, Tokens, whole};

/// Cycles in which an analyzer that says nothing may still speak against a removal. Source: algorithm reference §4.5.
const LIVE_CYCLES: f64 = 3.0;

/// A model that waits for an optimizer.
pub(super) struct Asked {
    pub(super) request: Request,
    /// By role what the observations are worth.
    states: Vec<(Role, State)>,
    findings: SmolStr,
    evidence: Timestamp,
    /// Numbers of the members that need no optimizer; `None` where one is asked.
    settled: Option<Vec<Option<Replicas>>>,
    /// The scheduler has shown its queue and does not any more: what it holds is not known.
    queue_lost: bool,
}

/// What the analyzers read of one member.
pub(super) struct Seen<'m, 'a> {
    pub(super) member: &'m Member<'a>,
    /// What its engines were doing, those of pods that are not measured estimated by measured ones.
    loads: Vec<Load<'a, ()>>,
    /// Replicas that do not serve yet, or serve and were not seen yet.
    pub(super) pending: Replicas,
    /// Replicas that serve or will: those asked for, without those that will not come.
    pub(super) counted: Replicas,
}

/// What one analyzer is asked.
#[derive(Clone, Copy)]
pub(super) struct Question<'q, 'm, 'a> {
    pub(super) scene: Scene<'q>,
    /// The weight of its finding.
    pub(super) score: f64,
    pub(super) utilisation: Utilisation,
    pub(super) seen: &'q [Seen<'m, 'a>],
}

/// Asks every analyzer of the model's policy about `members`, of which those of the roles in `states` are seen.
pub(super) fn ask(
    scene: Scene<'_>,
    members: &[Member<'_>],
    states: Vec<(Role, State)>,
    learned: &mut Learned,
    steps: &mut Vec<Step>,
) -> Option<Asked> {
    let see_all = |estimate| -> Vec<Seen<'_, '_>> {
        members.iter().map(|member| see(scene, member, estimate)).collect()
    };
    let seen = see_all(Estimate::Alike);
    // For a removal, pods that are not measured are as loaded as the busiest that is.
    let estimated = states.iter().any(|(_, state)| *state == State::Estimated);
    let busiest = estimated.then(|| see_all(Estimate::Busiest));
    if scene.analyzer == Analyzer::Inferno {
        let wanted = latency::inferno(scene, &seen, busiest.as_deref(), learned)?;
        return Some(Asked::settled(scene, members, states, wanted));
    }
    let first = Beside { analyzer: scene.analyzer, score: scene.model.score, utilisation: None };
    let beside: &[Beside] = if scene.is_stand_in() { &[] } else { &scene.model.beside };
    let chosen = std::iter::once(&first).chain(beside);
    let (mut findings, mut said) = (Vec::with_capacity(1 + scene.model.beside.len()), None);
    for one in chosen {
        let utilisation = one.utilisation.unwrap_or(scene.model.utilisation);
        let question = Question { scene, score: one.score, utilisation, seen: &seen };
        let cautious = busiest.as_deref().and_then(|seen| {
            let mut learned = learned.clone();
            find(Question { seen, ..question }, one.analyzer, &mut learned)
        });
        let Some(finding) = find(question, one.analyzer, learned) else { continue };
        let finding = cautious.map_or(finding.clone(), |cautious| finding.sparing(&cautious));
        let finding = if scene.compat.is_upstream() { finding } else { in_pods(finding, &seen) };
        let finding =
            if scene.is_stand_in() { stand_in::beyond(finding, utilisation, learned) } else { finding };
        let words = words::found(&finding);
        steps.push(analyzed(utilisation, &finding, words.clone()));
        said = Some(said.map_or(words.clone(), |said: SmolStr| smol_str::format_smolstr!("{said}; {words}")));
        findings.push(finding);
    }
    let candidates = members.iter().map(|member| able(scene, member)).collect();
    let request = Request { id: scene.id.clone(), priority: scene.model.priority, candidates, findings };
    Some(Asked {
        request,
        states,
        findings: words::standing_in(&scene, said?),
        evidence: newest(members, scene.now),
        settled: None,
        queue_lost: queue_lost(scene),
    })
}

/// A candidate of the optimizers. What more pods of it would wait for too is asked of the next one: it gets none.
fn able(scene: Scene<'_>, member: &Member<'_>) -> Candidate {
    let own = candidate(member.state, member.scale.base());
    if scene.compat.is_upstream() || !member.is_full(scene.now) {
        return own;
    }
    let max = own.bounds.max.map_or(own.current, |max| max.min(own.current));
    Candidate { bounds: Bounds { max: Some(max), ..own.bounds }, ..own }
}

pub(super) fn candidate(state: &VariantState, current: Replicas) -> Candidate {
    let variant = &state.variant;
    Candidate {
        name: variant.id.name.clone(),
        role: variant.role,
        cost: variant.cost,
        accelerator: variant.accelerator.clone(),
        gpus: state.template.gpus,
        watts: None,
        current,
        bounds: variant.bounds,
    }
}

/// A group that asks nothing of an optimizer, with what it uses: what runs, and what it was promised.
pub(super) fn at_rest(wanting: &Wanting<'_>) -> Request {
    let used = |member: &Member<'_>| member.committed().unwrap_or_default().max(member.scale.base());
    Request {
        id: wanting.scene.id.clone(),
        priority: wanting.scene.model.priority,
        candidates: wanting.members.iter().map(|member| candidate(member.state, used(member))).collect(),
        findings: Vec::new(),
    }
}

/// Which measured pod stands for one that is not measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Estimate {
    /// All of its variant in turn: their mean.
    Alike,
    /// The busiest of its variant.
    Busiest,
}

/// What a member's engines were doing, and what those of pods without evidence are taken to have been doing.
fn loads<'a>(member: &Member<'a>, unmeasured: u32, estimate: Estimate) -> Vec<Load<'a, ()>> {
    let all = &member.seen.loads;
    let engines = unmeasured.saturating_mul(member.seen.engines_a_pod.max(1));
    let engines = usize::try_from(engines).unwrap_or(usize::MAX);
    let measured = || all.iter().filter(|load| !load.is_estimated());
    match estimate {
        Estimate::Alike => all.iter().chain(all.iter().cycle().take(engines)).copied().collect(),
        Estimate::Busiest => {
            let busiest = measured().max_by(|a, b| a.busyness().total_cmp(&b.busyness()));
            let engines = engines + all.len() - measured().count();
            measured().chain(busiest.into_iter().cycle().take(engines)).copied().collect()
        }
    }
}

fn see<'m, 'a>(scene: Scene<'_>, member: &'m Member<'a>, estimate: Estimate) -> Seen<'m, 'a> {
    // Who does not show anything yet may just not have been scraped; who did not for long does serve.
    let silent = member.seen.absent.min(member.seen.incomplete);
    let unmeasured = member.seen.unmeasured().saturating_sub(member.seen.estimated);
    let hidden = unmeasured.saturating_sub(member.seen.absent).saturating_add(silent);
    let hidden = if scene.compat.is_upstream() || member.seen.loads.is_empty() { 0 } else { hidden };
    let loads = loads(member, hidden, estimate);
    let unseen = Replicas::new(member.seen.absent.saturating_sub(if hidden > 0 { silent } else { 0 }));
    let starting =
        if scene.compat.is_upstream() { member.scale.pending() } else { member.credited(scene.now) };
    let pending = Replicas::new(starting.get().saturating_add(unseen.get())).min(member.scale.base());
    // What is neither on its way nor serves carries nothing.
    let lost = member.scale.pending().above(starting);
    Seen { member, loads, pending, counted: member.scale.base().above(lost) }
}

/// Analyzers count engines, and what is scaled are pods: with data parallelism a pod has several.
fn in_pods(mut finding: Finding, seen: &[Seen<'_, '_>]) -> Finding {
    let by_name = Index::new(seen, |one| one.member.name());
    for (at, capacity) in finding.variants.iter_mut().enumerate() {
        let of_variant = by_name.find(at, &capacity.name);
        let engines = of_variant.map_or(1, Seen::engines_a_pod);
        capacity.per_replica *= f64::from(engines);
        capacity.replicas = Replicas::new(capacity.replicas.get().div_ceil(engines));
        capacity.pending = Replicas::new(capacity.pending.get().div_ceil(engines));
    }
    finding
}

impl<'a> Seen<'_, 'a> {
    /// What its engines were doing, as `A` reads it.
    pub(super) fn loads<A: Reads>(&self) -> impl Iterator<Item = Load<'a, A>> {
        self.loads.iter().map(Load::by)
    }

    /// Serving processes of a pod, at least 1.
    pub(super) fn engines_a_pod(&self) -> u32 {
        self.member.seen.engines_a_pod.max(1)
    }

    /// `pods` counted as engines, where an analyzer counts these (ours).
    pub(super) fn engines(&self, scene: Scene<'_>, pods: Replicas) -> Replicas {
        let each = if scene.compat.is_upstream() { 1 } else { self.engines_a_pod() };
        Replicas::new(pods.get().saturating_mul(each))
    }
}

fn find(question: Question<'_, '_, '_>, analyzer: Analyzer, learned: &mut Learned) -> Option<Finding> {
    match analyzer {
        Analyzer::Saturation => Some(tokens(question, learned)),
        Analyzer::Throughput => Some(throughput(question, learned)),
        Analyzer::QueueingModel => latency::queueing(question, learned),
        Analyzer::Rate
        | Analyzer::SaturationPercent
        | Analyzer::Threshold
        | Analyzer::Weighted
        | Analyzer::Inferno => None,
    }
}

fn tokens(question: Question<'_, '_, '_>, learned: &mut Learned) -> Finding {
    let Question { scene, score, utilisation, seen } = question;
    let parameters: Vec<_> = seen.iter().map(|one| sequences::parameters(scene, one.member)).collect();
    let variants: Vec<_> =
        seen.iter().zip(&parameters).map(|(one, own)| variant_input(one, own.as_deref())).collect();
    let mut replicas = Vec::new();
    for (one, variant) in seen.iter().zip(&variants) {
        replicas.extend(one.loads().filter_map(|load| observation(variant, &load)));
    }
    let policy = TokenPolicy {
        kv_cache_threshold: scene.model.saturation.kv_cache_threshold,
        queue_length_threshold: scene.model.saturation.queue_length_threshold,
        scale_up_threshold: utilisation.up,
        scale_down_boundary: utilisation.down,
    };
    let inputs = Inputs { variants: &variants, replicas: &replicas, queue: held(scene) };
    let analysis = saturation_token::analyze(&inputs, &mut learned.tokens, &policy, scene.compat, scene.now);
    if analysis.informative() {
        learned.informative = Some(scene.now);
    }
    let silent = learned.informative.map(|at| Seconds::between(at, scene.now).get());
    let live = silent.is_some_and(|silent| silent <= LIVE_CYCLES * scene.cycle.get());
    analysis.into_finding(score, live)
}

fn variant_input<'v>(one: &'v Seen<'_, '_>, parameters: Option<&'v EngineParameters>) -> VariantInput<'v> {
    let state = one.member.state;
    VariantInput {
        name: &state.variant.id.name,
        role: state.variant.role,
        accelerator: state.variant.accelerator.as_deref().unwrap_or_default(),
        cost: state.variant.cost,
        gpus: state.template.gpus,
        current: one.counted,
        pending: one.pending,
        parameters,
    }
}

/// What one engine shows; `None` where its cache or its queue is not known. Of sizes 0 is none: nothing has finished.
fn observation<'a>(variant: &VariantInput<'a>, load: &Load<'_, reads::Tokens>) -> Option<Observation<'a>> {
    let (kv, queue, capacity) = (load.kv()?, load.queue()?, load.capacity());
    Some(Observation {
        replica: "",
        variant: variant.name,
        accelerator: variant.accelerator,
        cost: variant.cost,
        kv,
        in_use: Tokens::new(used(kv, capacity)),
        capacity: Tokens::new(capacity),
        queue: whole(queue),
        prompt: load.prompt().unwrap_or(0.0),
        output: load.generated().unwrap_or(0.0),
        prefix_hits: load.hits().unwrap_or(0.0),
    })
}

/// The scheduler has shown its queue, and does not any more.
pub(super) fn queue_lost(scene: Scene<'_>) -> bool {
    let shown = !scene.group.scheduler.get(Signal::SchedulerQueueSize).is_empty();
    shown && held_by_scheduler(scene.now, &scene.group.scheduler).is_none()
}

/// Requests that the scheduler holds for the model; none when that is not known.
pub(super) fn queued(scene: Scene<'_>) -> Requests {
    let held = held_by_scheduler(scene.now, &scene.group.scheduler);
    held.and_then(|sample| Requests::new(sample.value).ok()).unwrap_or_default()
}

/// What the scheduler holds for the model, when that is known.
fn held(scene: Scene<'_>) -> Option<SchedulerQueue> {
    let scheduler = &scene.group.scheduler;
    let requests = u64::from(whole(held_by_scheduler(scene.now, scheduler)?.value));
    let bytes = scheduler.newest(Signal::SchedulerQueueBytes);
    let bytes = bytes.and_then(|sample| u64::try_from(Tokens::trunc(sample.value).get()).ok()).unwrap_or(0);
    Some(SchedulerQueue { requests, bytes })
}

fn throughput(question: Question<'_, '_, '_>, learned: &mut Learned) -> Finding {
    let Question { scene, score, utilisation, seen } = question;
    // Of one whose cache is not known nothing is told; of the rest 0 is none, from which nothing is learned.
    let observed = |load: Load<'_, reads::Throughput>| {
        Some(throughput::Observation {
            stale: false,
            kv: load.kv_now()?,
            capacity: load.capacity(),
            latency: load.between_tokens().unwrap_or(0.0),
            prompt: load.prompt().unwrap_or(0.0),
            generated: load.generated().unwrap_or(0.0),
            hits: load.hits().unwrap_or(0.0),
            arriving: load.arriving().unwrap_or(0.0),
            finished: load.finished().unwrap_or(0.0),
            generating: load.finishing().unwrap_or(0.0),
        })
    };
    let variant = |one: &Seen<'_, '_>| throughput::Observed {
        name: one.member.name().clone(),
        role: one.member.state.variant.role,
        accelerator: one.member.state.variant.accelerator.clone(),
        cost: one.member.state.variant.cost,
        pending: one.engines(scene, one.pending),
        ready: one.engines(scene, one.counted.above(one.pending)),
        replicas: one.loads().filter_map(observed).collect(),
    };
    let look = throughput::Look {
        now: scene.now,
        variants: seen.iter().map(variant).collect(),
        arrival: arrival(scene, seen),
        queue: queued(scene),
        rules: throughput::Rules { up: utilisation.up, down: utilisation.down, score, period: scene.cycle },
    };
    throughput::analyze(&look, &mut learned.throughput, scene.compat).finding
}

/// Requests a second that arrive for the model: what the scheduler gives out, else (ours) the first tokens of all
/// engines, which differ from it by what waits. What most engines contradict of it is not believed of their sum either.
fn arrival(scene: Scene<'_>, seen: &[Seen<'_, '_>]) -> Option<f64> {
    let doubted = || {
        most_contradict(seen.iter().map(|variant| &variant.member.seen), Signal::SchedulerAttempts, scene.now)
    };
    let given = Load::<reads::Scheduler>::read(&scene.group.scheduler, scene.now).arriving();
    let given = given.filter(|_| scene.compat.is_upstream() || !doubted());
    let own = || {
        let loads = seen.iter().flat_map(Seen::loads::<reads::Throughput>);
        let started = loads.filter_map(|load| load.starting());
        started.reduce(|sum, rate| sum + rate)
    };
    given.or_else(|| if scene.compat.is_upstream() { None } else { own() })
}

fn analyzed(utilisation: Utilisation, finding: &Finding, words: SmolStr) -> Step {
    let total = finding.total;
    let capacities = finding.variants.iter().map(|one| Value {
        name: words::sentence(format_args!("capacity of a replica of {} ({})", one.name, one.reason)),
        value: one.per_replica,
    });
    let sums = [
        Value::new("demand", total.demand),
        Value::new("supply", total.supply),
        Value::new("supply with what starts", total.anticipated),
        Value::new("missing", total.required),
        Value::new("spare", total.spare),
    ];
    let of_roles = finding.roles.iter().flat_map(|(role, totals)| {
        let named =
            |what: &str, value| Value { name: smol_str::format_smolstr!("{what} in role {role:?}"), value };
        [named("missing", totals.required), named("spare", totals.spare)]
    });
    // Where roles are told apart, each is decided by its own sums.
    let turns = if finding.roles.is_empty() {
        turns(utilisation, finding, None)
    } else {
        finding.roles.keys().flat_map(|role| turns(utilisation, finding, Some(*role))).collect()
    };
    Step {
        values: sums.into_iter().chain(of_roles).chain(capacities).collect(),
        turns,
        ..Step::new(Stage::Analyze, None, words)
    }
}

/// At which demand of `role`, or of the model, the finding would be another one.
fn turns(Utilisation { up, down }: Utilisation, finding: &Finding, role: Option<Role>) -> Vec<Turn> {
    let now = role.and_then(|role| finding.roles.get(&role)).unwrap_or(&finding.total).demand;
    let turning = finding.turning_points(role, up, down);
    let turn = |to, is, at: Option<f64>| at.map(|at| Turn { to, when: words::demand(role), is, at, now });
    let more = turn(Direction::More, Side::Above, turning.required_above.filter(|at| now <= *at));
    let fewer = turn(Direction::Fewer, Side::Below, turning.spare_below.filter(|at| now >= *at));
    more.into_iter().chain(fewer).collect()
}

impl Asked {
    /// Numbers that are wanted as they are: no optimizer makes others of them.
    fn settled(
        scene: Scene<'_>,
        members: &[Member<'_>],
        states: Vec<(Role, State)>,
        wanted: Vec<Option<Replicas>>,
    ) -> Self {
        let request = Request {
            id: scene.id.clone(),
            priority: scene.model.priority,
            candidates: members.iter().map(|member| candidate(member.state, member.scale.base())).collect(),
            findings: Vec::new(),
        };
        let findings =
            SmolStr::new_static("inferno: the cheapest allocation that keeps its class's latencies");
        let evidence = newest(members, scene.now);
        Self { request, states, findings, evidence, settled: Some(wanted), queue_lost: queue_lost(scene) }
    }

    /// No analyzer knows what a replica carries.
    pub(super) fn is_silent(&self) -> bool {
        let silent = self.request.findings.iter().all(Finding::is_silent);
        self.settled.as_ref().map_or(silent, |numbers| numbers.iter().all(Option::is_none))
    }

    /// Puts the numbers of `plan` into the drafts of the members that are seen.
    pub(super) fn take(
        &self,
        plan: &Plan,
        members: &[Member<'_>],
        drafts: &mut [Draft],
        steps: &mut Vec<Step>,
    ) {
        let said = |step: &optimize::Step| words::sentence(format_args!("{step}"));
        steps.extend(plan.steps.iter().map(|step| Step::new(Stage::Optimize, None, said(step))));
        let grows = plan.targets.iter().any(|planned| planned.target > planned.current);
        let places = members.iter().zip(drafts).zip(&plan.targets).enumerate();
        for (at, ((member, draft), planned)) in places {
            let (target, bound) = match &self.settled {
                None => (planned.target, planned.bound.as_ref()),
                Some(settled) => match settled.get(at).copied().flatten() {
                    Some(number) => (number, None),
                    None => continue,
                },
            };
            let role = member.state.variant.role;
            let Some((_, state)) = self.states.iter().find(|(of, _)| *of == role) else { continue };
            if !member.active() && target == Replicas::ZERO {
                continue;
            }
            let binding = bound.map(ToSmolStr::to_smolstr);
            *draft = self.draft(member, *state, target);
            if !grows && draft.reason == Reason::Steady && self.is_short() && self.is_full(at) {
                draft.message = words::no_room(member, &self.findings);
                draft.reason = Reason::Bounded;
            }
            if let Some(binding) = &binding {
                draft.message = words::held_back(&draft.message, binding);
                draft.reason = if draft.reason == Reason::Steady { Reason::Bounded } else { draft.reason };
            }
            let step = Step::new(Stage::Target, Some(member.name()), draft.message.clone());
            steps.push(Step { binding, ..step });
        }
    }

    /// More is missing than there is.
    fn is_short(&self) -> bool {
        self.request.findings.iter().any(|finding| finding.total.required > 0.0)
    }

    /// The candidate at this place can get no more.
    fn is_full(&self, at: usize) -> bool {
        let own = self.request.candidates.get(at);
        own.is_some_and(|own| own.bounds.max.is_some_and(|max| max <= own.current))
    }

    fn draft(&self, member: &Member<'_>, state: State, wanted: Replicas) -> Draft {
        let base = member.scale.base();
        let held = member.committed().unwrap_or(base);
        let denied = (!state.rights().down || self.queue_lost) && wanted < held;
        let holds = denied || (wanted == base && member.is_withdrawn() && state.is_incomplete());
        let number = if holds { held } else { wanted };
        let reason = match number.cmp(&base) {
            _ if denied || state == State::Partial => Reason::Partial,
            std::cmp::Ordering::Greater => Reason::ScaleUp,
            std::cmp::Ordering::Equal => Reason::Steady,
            std::cmp::Ordering::Less => Reason::ScaleDown,
        };
        let message = words::analyzed(member, number, &self.findings);
        let look = Some(state.rights());
        Draft { number: Some(number), reason, message, evidence: self.evidence, blind: false, look }
    }
}
