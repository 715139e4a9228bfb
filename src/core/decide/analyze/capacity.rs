//! The analyzers of capacity: what each finds of a model, and the numbers that an optimizer makes of their findings.

use jiff::Timestamp;
use smol_str::{SmolStr, ToSmolStr};

use super::{latency, sequences, stand_in};
use crate::analyze::finding::Finding;
use crate::analyze::saturation_token::{
    SchedulerQueue, TokenInput, TokenObservation, TokenPolicy, TokenVariant,
};
use crate::analyze::throughput;
use crate::arithmetic;
use crate::decide::classify::newest;
use crate::decide::context::{ModelContext, Proposal, VariantContext};
use crate::decide::messages;
use crate::decide::model_group::PendingModel;
use crate::decision::Reason;
use crate::memory::Learned;
use crate::model::{Analyzer, Beside, Bounds, Role, Utilisation};
use crate::name_map::NameIndex;
use crate::observe::scheduler_queue;
use crate::optimize::{Candidate, OptimizerStep, Plan, Request};
use crate::quality::analyzer_signals::{self as reads, Reads};
use crate::quality::{CoverageState, EngineLoad, is_distrusted_on_most_engines, used_tokens};
use crate::report::{Direction, Side, Stage, Step, Turn, Value};
use crate::snapshot::{EngineParameters, Signal, VariantState};
use crate::units::{Replicas, Requests, Seconds, Tokens, truncated_u32};

/// Cycles in which an analyzer that says nothing may still speak against a removal. As upstream (WVA v0.9).
const LIVE_CYCLES: f64 = 3.0;

/// A model that waits for an optimizer.
pub(crate) struct OptimizerInput {
    pub(crate) request: Request,
    /// By role what the observations are worth.
    states: Vec<(Role, CoverageState)>,
    findings: SmolStr,
    evidence: Timestamp,
    /// Numbers of the variants that need no optimizer; `None` where one is asked.
    settled: Option<Vec<Option<Replicas>>>,
    /// The scheduler has shown its queue and does not any more: what it holds is not known.
    queue_lost: bool,
}

/// What the analyzers read of one variant.
pub(crate) struct VariantObservation<'m, 'a> {
    pub(crate) variant: &'m VariantContext<'a>,
    /// What its engines were doing, those of pods that are not measured estimated by measured ones.
    loads: Vec<EngineLoad<'a, ()>>,
    /// Replicas that do not serve yet, or serve and were not observed yet.
    pub(crate) pending: Replicas,
    /// Replicas that serve or will: those asked for, without those that will not come.
    pub(crate) counted: Replicas,
}

/// What one analyzer is asked.
#[derive(Clone, Copy)]
pub(crate) struct AnalyzerInput<'q, 'm, 'a> {
    pub(crate) context: ModelContext<'q>,
    /// The weight of its finding.
    pub(crate) score: f64,
    pub(crate) utilisation: Utilisation,
    pub(crate) observations: &'q [VariantObservation<'m, 'a>],
}

/// Asks every analyzer of the model's policy about `variants`, of which those of the roles in `states` are observed.
pub(crate) fn ask(
    context: ModelContext<'_>,
    variants: &[VariantContext<'_>],
    states: Vec<(Role, CoverageState)>,
    learned: &mut Learned,
    steps: &mut Vec<Step>,
) -> Option<OptimizerInput> {
    let see_all = |estimate| -> Vec<VariantObservation<'_, '_>> {
        variants.iter().map(|variant| see(context, variant, estimate)).collect()
    };
    let observations = see_all(Estimate::Alike);
    // For a removal, pods that are not measured are as loaded as the busiest that is.
    let estimated = states.iter().any(|(_, state)| *state == CoverageState::Estimated);
    let busiest = estimated.then(|| see_all(Estimate::Busiest));
    if context.analyzer == Analyzer::Inferno {
        let wanted = latency::inferno(context, &observations, busiest.as_deref(), learned)?;
        return Some(OptimizerInput::settled(context, variants, states, wanted));
    }
    let first = Beside { analyzer: context.analyzer, score: context.policy.score, utilisation: None };
    let beside: &[Beside] = if context.is_stand_in() { &[] } else { &context.policy.beside };
    let chosen = std::iter::once(&first).chain(beside);
    let (mut findings, mut said) = (Vec::with_capacity(1 + context.policy.beside.len()), None);
    for one in chosen {
        let utilisation = one.utilisation.unwrap_or(context.policy.utilisation);
        let input = AnalyzerInput { context, score: one.score, utilisation, observations: &observations };
        let cautious = busiest.as_deref().and_then(|observations| {
            let mut learned = learned.clone();
            find(AnalyzerInput { observations, ..input }, one.analyzer, &mut learned)
        });
        let Some(finding) = find(input, one.analyzer, learned) else { continue };
        let finding = cautious.map_or(finding.clone(), |cautious| finding.with_spare_of(&cautious));
        let finding = if context.compat.is_upstream() { finding } else { in_pods(finding, &observations) };
        let finding =
            if context.is_stand_in() { stand_in::beyond(finding, utilisation, learned) } else { finding };
        let words = messages::found(&finding);
        steps.push(analyzed(utilisation, &finding, words.clone()));
        said = Some(said.map_or(words.clone(), |said: SmolStr| smol_str::format_smolstr!("{said}; {words}")));
        findings.push(finding);
    }
    let candidates = variants.iter().map(|variant| able(context, variant)).collect();
    let request = Request { id: context.id.clone(), priority: context.policy.priority, candidates, findings };
    Some(OptimizerInput {
        request,
        states,
        findings: messages::standing_in(&context, said?),
        evidence: newest(variants, context.now),
        settled: None,
        queue_lost: queue_lost(context),
    })
}

/// A candidate of the optimizers. What more pods of it would wait for too is asked of the next one: it gets none.
fn able(context: ModelContext<'_>, variant: &VariantContext<'_>) -> Candidate {
    let own = candidate(variant.state, variant.scale.base());
    if context.compat.is_upstream() || !variant.is_growth_futile(context.now) {
        return own;
    }
    let max = own.bounds.max.map_or(own.current, |max| max.min(own.current));
    Candidate { bounds: Bounds { max: Some(max), ..own.bounds }, ..own }
}

pub(crate) fn candidate(state: &VariantState, current: Replicas) -> Candidate {
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
pub(crate) fn at_rest(pending: &PendingModel<'_>) -> Request {
    let used =
        |variant: &VariantContext<'_>| variant.committed().unwrap_or_default().max(variant.scale.base());
    Request {
        id: pending.context.id.clone(),
        priority: pending.context.policy.priority,
        candidates: pending.variants.iter().map(|variant| candidate(variant.state, used(variant))).collect(),
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

/// What a variant's engines were doing, and what those of pods without evidence are taken to have been doing.
fn loads<'a>(variant: &VariantContext<'a>, unmeasured: u32, estimate: Estimate) -> Vec<EngineLoad<'a, ()>> {
    let all = &variant.coverage.loads;
    let engines = unmeasured.saturating_mul(variant.coverage.engines_per_pod.max(1));
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

fn see<'m, 'a>(
    context: ModelContext<'_>,
    variant: &'m VariantContext<'a>,
    estimate: Estimate,
) -> VariantObservation<'m, 'a> {
    // Who does not show anything yet may just not have been scraped; who did not for long does serve.
    let silent = variant.coverage.absent.min(variant.coverage.incomplete);
    let unmeasured = variant.coverage.unmeasured().saturating_sub(variant.coverage.estimated);
    let hidden = unmeasured.saturating_sub(variant.coverage.absent).saturating_add(silent);
    let hidden = if context.compat.is_upstream() || variant.coverage.loads.is_empty() { 0 } else { hidden };
    let loads = loads(variant, hidden, estimate);
    let unseen = Replicas::new(variant.coverage.absent.saturating_sub(if hidden > 0 { silent } else { 0 }));
    let starting =
        if context.compat.is_upstream() { variant.scale.pending() } else { variant.credited(context.now) };
    let pending = Replicas::new(starting.get().saturating_add(unseen.get())).min(variant.scale.base());
    // What is neither on its way nor serves carries nothing.
    let lost = variant.scale.pending().saturating_sub(starting);
    VariantObservation { variant, loads, pending, counted: variant.scale.base().saturating_sub(lost) }
}

/// Analyzers count engines, and what is scaled are pods: with data parallelism a pod has several.
fn in_pods(mut finding: Finding, observations: &[VariantObservation<'_, '_>]) -> Finding {
    let by_name = NameIndex::new(observations, |observation| observation.variant.name());
    for (at, capacity) in finding.variants.iter_mut().enumerate() {
        let of_variant = by_name.find(at, &capacity.name);
        let engines = of_variant.map_or(1, VariantObservation::engines_per_pod);
        capacity.per_replica *= f64::from(engines);
        capacity.replicas = Replicas::new(capacity.replicas.get().div_ceil(engines));
        capacity.pending = Replicas::new(capacity.pending.get().div_ceil(engines));
    }
    finding
}

impl<'a> VariantObservation<'_, 'a> {
    /// What its engines were doing, as `A` reads it.
    pub(crate) fn loads<A: Reads>(&self) -> impl Iterator<Item = EngineLoad<'a, A>> {
        self.loads.iter().map(EngineLoad::for_analyzer)
    }

    /// Serving processes of a pod, at least 1.
    pub(crate) fn engines_per_pod(&self) -> u32 {
        self.variant.coverage.engines_per_pod.max(1)
    }

    /// `pods` counted as engines, where an analyzer counts these (ours).
    pub(crate) fn engines(&self, context: ModelContext<'_>, pods: Replicas) -> Replicas {
        let each = if context.compat.is_upstream() { 1 } else { self.engines_per_pod() };
        Replicas::new(pods.get().saturating_mul(each))
    }
}

fn find(input: AnalyzerInput<'_, '_, '_>, analyzer: Analyzer, learned: &mut Learned) -> Option<Finding> {
    match analyzer {
        Analyzer::Saturation => Some(tokens(input, learned)),
        Analyzer::Throughput => Some(throughput(input, learned)),
        Analyzer::QueueingModel => latency::queueing(input, learned),
        Analyzer::Rate
        | Analyzer::SaturationPercent
        | Analyzer::Threshold
        | Analyzer::Weighted
        | Analyzer::Inferno => None,
    }
}

fn tokens(input: AnalyzerInput<'_, '_, '_>, learned: &mut Learned) -> Finding {
    let AnalyzerInput { context, score, utilisation, observations } = input;
    let parameters: Vec<_> =
        observations.iter().map(|one| sequences::parameters(context, one.variant)).collect();
    let variants: Vec<_> =
        observations.iter().zip(&parameters).map(|(one, own)| variant_input(one, own.as_deref())).collect();
    let mut replicas = Vec::new();
    for (one, variant) in observations.iter().zip(&variants) {
        replicas.extend(one.loads().filter_map(|load| observation(variant, &load)));
    }
    let policy = TokenPolicy {
        kv_cache_threshold: context.policy.saturation.kv_cache_threshold,
        queue_length_threshold: context.policy.saturation.queue_length_threshold,
        scale_up_threshold: utilisation.up,
        scale_down_boundary: utilisation.down,
    };
    let inputs = TokenInput { variants: &variants, replicas: &replicas, queue: held(context) };
    let analysis =
        arithmetic::analyze_tokens(&inputs, &mut learned.tokens, &policy, context.compat, context.now);
    if analysis.is_informative() {
        learned.informative = Some(context.now);
    }
    let silent = learned.informative.map(|at| Seconds::between(at, context.now).get());
    let live = silent.is_some_and(|silent| silent <= LIVE_CYCLES * context.cycle.get());
    analysis.into_finding(score, live)
}

fn variant_input<'v>(
    one: &'v VariantObservation<'_, '_>,
    parameters: Option<&'v EngineParameters>,
) -> TokenVariant<'v> {
    let state = one.variant.state;
    TokenVariant {
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
fn observation<'a>(
    variant: &TokenVariant<'a>,
    load: &EngineLoad<'_, reads::Tokens>,
) -> Option<TokenObservation<'a>> {
    let (kv, queue, capacity) = (load.kv()?, load.queue()?, load.capacity());
    Some(TokenObservation {
        replica: "",
        variant: variant.name,
        accelerator: variant.accelerator,
        cost: variant.cost,
        kv,
        in_use: Tokens::new(used_tokens(kv, capacity)),
        capacity: Tokens::new(capacity),
        queue: truncated_u32(queue),
        prompt: load.prompt().unwrap_or(0.0),
        output: load.generated().unwrap_or(0.0),
        prefix_hits: load.hits().unwrap_or(0.0),
    })
}

/// The scheduler has shown its queue, and does not any more.
pub(crate) fn queue_lost(context: ModelContext<'_>) -> bool {
    let shown = !context.group.scheduler.get(Signal::SchedulerQueueSize).is_empty();
    shown && scheduler_queue(context.now, &context.group.scheduler).is_none()
}

/// Requests that the scheduler holds for the model; none when that is not known.
pub(crate) fn queued(context: ModelContext<'_>) -> Requests {
    let held = scheduler_queue(context.now, &context.group.scheduler);
    held.and_then(|sample| Requests::new(sample.value).ok()).unwrap_or_default()
}

/// What the scheduler holds for the model, when that is known.
fn held(context: ModelContext<'_>) -> Option<SchedulerQueue> {
    let scheduler = &context.group.scheduler;
    let requests = u64::from(truncated_u32(scheduler_queue(context.now, scheduler)?.value));
    let bytes = scheduler.newest(Signal::SchedulerQueueBytes);
    let bytes =
        bytes.and_then(|sample| u64::try_from(Tokens::truncated(sample.value).get()).ok()).unwrap_or(0);
    Some(SchedulerQueue { requests, bytes })
}

fn throughput(input: AnalyzerInput<'_, '_, '_>, learned: &mut Learned) -> Finding {
    let AnalyzerInput { context, score, utilisation, observations } = input;
    // Of one whose cache is not known nothing is told; of the rest 0 is none, from which nothing is learned.
    let observed = |load: EngineLoad<'_, reads::Throughput>| {
        Some(throughput::ThroughputObservation {
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
    let variant = |one: &VariantObservation<'_, '_>| throughput::ThroughputVariant {
        name: one.variant.name().clone(),
        role: one.variant.state.variant.role,
        accelerator: one.variant.state.variant.accelerator.clone(),
        cost: one.variant.state.variant.cost,
        pending: one.engines(context, one.pending),
        ready: one.engines(context, one.counted.saturating_sub(one.pending)),
        replicas: one.loads().filter_map(observed).collect(),
    };
    let input = throughput::ThroughputInput {
        now: context.now,
        variants: observations.iter().map(variant).collect(),
        arrival: arrival(context, observations),
        queue: queued(context),
        settings: throughput::ThroughputSettings {
            up: utilisation.up,
            down: utilisation.down,
            score,
            period: context.cycle,
        },
    };
    arithmetic::analyze_throughput(&input, &mut learned.throughput, context.compat).finding
}

/// Requests a second that arrive for the model: what the scheduler gives out, else (ours) the first tokens of all
/// engines, which differ from it by what waits. What most engines contradict of it is not believed of their sum either.
fn arrival(context: ModelContext<'_>, observations: &[VariantObservation<'_, '_>]) -> Option<f64> {
    let doubted = || {
        is_distrusted_on_most_engines(
            observations.iter().map(|variant| &variant.variant.coverage),
            Signal::SchedulerAttempts,
            context.now,
        )
    };
    let given = EngineLoad::<reads::Scheduler>::read(&context.group.scheduler, context.now).arriving();
    let given = given.filter(|_| context.compat.is_upstream() || !doubted());
    let own = || {
        let loads = observations.iter().flat_map(VariantObservation::loads::<reads::Throughput>);
        let started = loads.filter_map(|load| load.starting());
        started.reduce(|sum, rate| sum + rate)
    };
    given.or_else(|| if context.compat.is_upstream() { None } else { own() })
}

fn analyzed(utilisation: Utilisation, finding: &Finding, words: SmolStr) -> Step {
    let total = finding.total;
    let capacities = finding.variants.iter().map(|one| Value {
        name: messages::sentence(format_args!("capacity of a replica of {} ({})", one.name, one.reason)),
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
    let turn = |to, is, at: Option<f64>| at.map(|at| Turn { to, when: messages::demand(role), is, at, now });
    let more = turn(Direction::More, Side::Above, turning.required_above.filter(|at| now <= *at));
    let fewer = turn(Direction::Fewer, Side::Below, turning.spare_below.filter(|at| now >= *at));
    more.into_iter().chain(fewer).collect()
}

impl OptimizerInput {
    /// Numbers that are wanted as they are: no optimizer makes others of them.
    fn settled(
        context: ModelContext<'_>,
        variants: &[VariantContext<'_>],
        states: Vec<(Role, CoverageState)>,
        wanted: Vec<Option<Replicas>>,
    ) -> Self {
        let request = Request {
            id: context.id.clone(),
            priority: context.policy.priority,
            candidates: variants
                .iter()
                .map(|variant| candidate(variant.state, variant.scale.base()))
                .collect(),
            findings: Vec::new(),
        };
        let findings =
            SmolStr::new_static("inferno: the cheapest allocation that keeps its class's latencies");
        let evidence = newest(variants, context.now);
        Self { request, states, findings, evidence, settled: Some(wanted), queue_lost: queue_lost(context) }
    }

    /// No analyzer knows what a replica carries.
    pub(crate) fn is_silent(&self) -> bool {
        let silent = self.request.findings.iter().all(Finding::is_silent);
        self.settled.as_ref().map_or(silent, |numbers| numbers.iter().all(Option::is_none))
    }

    /// Puts the numbers of `plan` into the proposals of the variants that are observed.
    pub(crate) fn take(
        &self,
        plan: &Plan,
        variants: &[VariantContext<'_>],
        proposals: &mut [Proposal],
        steps: &mut Vec<Step>,
    ) {
        let said = |step: &OptimizerStep| messages::sentence(format_args!("{step}"));
        steps.extend(plan.steps.iter().map(|step| Step::new(Stage::Optimize, None, said(step))));
        let grows = plan.targets.iter().any(|planned| planned.target > planned.current);
        let places = variants.iter().zip(proposals).zip(&plan.targets).enumerate();
        for (at, ((variant, proposal), planned)) in places {
            let (target, bound) = match &self.settled {
                None => (planned.target, planned.binding.as_ref()),
                Some(settled) => match settled.get(at).copied().flatten() {
                    Some(number) => (number, None),
                    None => continue,
                },
            };
            let role = variant.state.variant.role;
            let Some((_, state)) = self.states.iter().find(|(of, _)| *of == role) else { continue };
            if !variant.active() && target == Replicas::ZERO {
                continue;
            }
            let binding = bound.map(ToSmolStr::to_smolstr);
            *proposal = self.proposal(variant, *state, target);
            if !grows && proposal.reason == Reason::Steady && self.is_short() && self.is_full(at) {
                proposal.message = messages::no_room(variant, &self.findings);
                proposal.reason = Reason::Bounded;
            }
            if let Some(binding) = &binding {
                proposal.message = messages::held_back(&proposal.message, binding);
                proposal.reason =
                    if proposal.reason == Reason::Steady { Reason::Bounded } else { proposal.reason };
            }
            let step = Step::new(Stage::Target, Some(variant.name()), proposal.message.clone());
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

    fn proposal(&self, variant: &VariantContext<'_>, state: CoverageState, wanted: Replicas) -> Proposal {
        let base = variant.scale.base();
        let held = variant.committed().unwrap_or(base);
        let denied = (!state.allowed_moves().down || self.queue_lost) && wanted < held;
        let holds = denied || (wanted == base && variant.is_withdrawn() && state.is_incomplete());
        let number = if holds { held } else { wanted };
        let reason = match number.cmp(&base) {
            _ if denied || state == CoverageState::Partial => Reason::Partial,
            std::cmp::Ordering::Greater => Reason::ScaleUp,
            std::cmp::Ordering::Equal => Reason::Steady,
            std::cmp::Ordering::Less => Reason::ScaleDown,
        };
        let message = messages::analyzed(variant, number, &self.findings);
        let look = Some(state.allowed_moves());
        Proposal { number: Some(number), reason, message, evidence: self.evidence, blind: false, look }
    }
}
