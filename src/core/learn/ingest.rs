//! Takes the samples of one model into what is known of it: each sample once, in the order of time, whether they come one
//! by one from the pods or by the dozen from a Prometheus.

use jiff::Timestamp;
use smol_str::{SmolStr, format_smolstr};

use super::arrivals::{HOLE, Queue};
use super::counter_snapshot::{APART, CounterSnapshot, Growth};
use super::knowledge::{ModelKnowledge, Pod, RoleKnowledge, VariantKnowledge};
use super::start_up::start_up_times;
use super::token_shape::RequestSizes;
use crate::model::{Analyzer, Role};
use crate::moment::Moment;
use crate::name_map::NameMap;
use crate::quality::{EngineAssessor, SignalHistory, judged_engines, stale_limit};
use crate::snapshot::{
    ModelGroup, Phase, Replica, Sample, Series, Signal, SignalSet, Signals, VariantState, median_gap,
};
use crate::units::count;

/// Readings within this time are one round, seconds: a thousand pods are read in a third of a second.
const ROUND: f64 = 1.0;

/// By these arrivals are counted.
const COUNTED: SignalSet =
    SignalSet::of(&[Signal::TimeToFirstTokenCount, Signal::RequestGenerationTokensCount]);

/// By these requests are sized.
const SIZES: SignalSet = SignalSet::of(&[Signal::PromptTokens, Signal::RequestGenerationTokensSum]);

/// A process has served for so long, seconds, before what it shows is believed against what others have shown: a contradiction
/// shows within a minute and two scrapes.
const SETTLED: f64 = 120.0;

/// Of so many processes one has to be found out before arrivals are forgotten.
const ONE_OF: usize = 3;

/// A serving process with the samples that are new.
struct Source<'a> {
    variant: &'a VariantState,
    /// Its name among those of its variant.
    key: SmolStr,
    signals: &'a Signals,
    ready: Moment,
    /// Serving processes of its variant.
    pods: f64,
    /// What is learned from and missing or contradicted.
    lacks: SignalSet,
    /// Of these, the contradicted ones.
    contradicted: SignalSet,
    /// The size that it shows of its cache is contradicted.
    resized: bool,
}

impl Source<'_> {
    /// It shows what arrives.
    fn is_counted(&self) -> bool {
        let shows = |signals: &[Signal]| self.lacks.and(SignalSet::of(signals)).is_empty();
        shows(&[Signal::TimeToFirstTokenCount])
            || shows(&[Signal::RequestGenerationTokensCount, Signal::Running])
    }
}

/// One new reading of a source.
struct Reading {
    at: Moment,
    source: usize,
    /// The same moment, to the nanosecond.
    scraped: Timestamp,
}

/// Takes in what is new in `group`. Twice with the same samples is the same as once.
pub fn ingest(
    group: &ModelGroup,
    evidence: Option<&SignalHistory>,
    now: Timestamp,
    knowledge: &mut ModelKnowledge,
) {
    knowledge.variants.retain(|name, _| group.variants.iter().any(|one| one.variant.id.name == *name));
    let roles = [Role::Both, Role::Decode, Role::Prefill];
    for role in roles {
        let variants: Vec<&VariantState> =
            group.variants.iter().filter(|one| one.variant.role == role).collect();
        if variants.is_empty() {
            knowledge.roles.remove(&role);
            continue;
        }
        variants.iter().for_each(|one| begin(one, now.into(), knowledge));
        fold_role(role, group, (&variants, evidence, now), knowledge);
    }
    for state in &group.variants {
        let known = knowledge.variants.or_default(&state.variant.id.name);
        known.pods.retain(|key, _| state.replicas.iter().any(|one| is_of(key, &one.pod)));
    }
}

/// Looks at what is known of a variant's pods without their samples.
fn begin(state: &VariantState, now: Moment, knowledge: &mut ModelKnowledge) {
    let known = knowledge.variants.or_default(&state.variant.id.name);
    let serving: Vec<_> = state.replicas.iter().filter(|one| one.phase == Phase::Ready).collect();
    let starts = start_up_times(state);
    let VariantKnowledge { starts: learned, pods, .. } = known;
    learned.learn(now, &starts, |at| {
        let (pod, (_, ready)) = (&serving[at].pod, starts[at]);
        pods.iter().any(|(key, last)| is_of(key, pod) && last.frame.at < ready)
    });
    let processes = serving.iter().map(|one| judged_engines(one).count()).max().filter(|most| *most > 0);
    known.processes = processes.map(|most| f64::from(count(most))).or(known.processes);
}

/// The size of a variant's caches: of different ones the smallest, since a request may go to any of them. What a pod shows that
/// has not served long enough to be contradicted counts where nothing else is known.
fn learn_capacity<'s>(
    known: &mut VariantKnowledge,
    sources: impl Iterator<Item = &'s Source<'s>>,
    now: Moment,
) {
    let VariantKnowledge { pods, capacity, capacity_at, .. } = known;
    let believed =
        |source: &&Source<'_>| capacity.is_none() || source.ready.until(now) >= SETTLED && !source.resized;
    let cache = |source: &Source<'_>| {
        let first = pods.get(&source.key).and_then(|pod| pod.cache);
        first.or_else(|| Some(source.signals.newest(Signal::KvCapacity)?.value))
    };
    let caches = sources.filter(believed).filter_map(cache).filter(|tokens| *tokens > 0.0);
    if let Some(tokens) = caches.reduce(f64::min) {
        (*capacity, *capacity_at) = (Some(tokens), Some(now));
    }
}

/// The name of an engine of `replica` among the serving processes of its variant.
fn key_of(replica: &Replica, engine: &SmolStr) -> SmolStr {
    let several = replica.engines.len() > 1;
    if several { format_smolstr!("{}:{engine}", replica.pod) } else { replica.pod.clone() }
}

/// `key` is a serving process of `pod`.
fn is_of(key: &str, pod: &str) -> bool {
    key.strip_prefix(pod).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

fn sources<'a>(
    role: Role,
    variants: &[&'a VariantState],
    evidence: Option<&SignalHistory>,
    now: Timestamp,
) -> Vec<Source<'a>> {
    let declared = Analyzer::Rate.declared(role);
    let mut sources = Vec::new();
    for variant in variants.iter().copied() {
        let first = sources.len();
        let assessor = EngineAssessor::new(variant, declared, evidence, now);
        for replica in variant.replicas.iter().filter(|one| one.phase == Phase::Ready) {
            let ready = replica.ready_or_created().into();
            sources.extend(judged_engines(replica).map(|(engine, signals)| {
                let coverage = assessor.assess(replica, engine, signals).coverage;
                let contradicted = coverage.contradicted.and(declared.needed);
                Source {
                    variant,
                    key: key_of(replica, engine),
                    signals,
                    ready,
                    pods: 0.0,
                    lacks: coverage.missing.with(contradicted),
                    contradicted,
                    resized: coverage.contradicted.has(Signal::KvCapacity),
                }
            }));
        }
        let pods = f64::from(count(sources.len() - first));
        sources[first..].iter_mut().for_each(|one| one.pods = pods);
    }
    sources
}

/// The readings of all sources that are new, in the order of time.
fn readings(sources: &[Source<'_>], knowledge: &ModelKnowledge) -> Vec<Reading> {
    let mut readings = Vec::new();
    for (source, one) in sources.iter().enumerate().filter(|(_, one)| one.is_counted()) {
        let known = knowledge.variants.get(&one.variant.variant.id.name);
        let known = known.and_then(|known| known.pods.get(&one.key));
        let mut last = known.map(|pod| pod.frame.at);
        let times = one.signals.rows().times();
        // What was not believed is not read later either, but for where it stands now.
        let lacked = known.is_some_and(|pod| !pod.lacked.is_empty());
        let newest = times.len().saturating_sub(1);
        for scraped in &times[if lacked { newest } else { 0 }..] {
            let at = Moment::from(*scraped);
            if last.is_none_or(|last| last.until(at) >= APART) {
                readings.push(Reading { at, source, scraped: *scraped });
                last = Some(at);
            }
        }
    }
    readings.sort_by_key(|reading| (reading.at, reading.source));
    readings
}

fn fold_role(
    role: Role,
    group: &ModelGroup,
    (variants, evidence, now): (&[&VariantState], Option<&SignalHistory>, Timestamp),
    knowledge: &mut ModelKnowledge,
) {
    let sources = sources(role, variants, evidence, now);
    let readings = readings(&sources, knowledge);
    let unread = variants.iter().flat_map(|one| &one.replicas);
    let unread: Vec<Moment> = unread
        .filter(|one| one.phase == Phase::Ready && judged_engines(one).next().is_none())
        .map(|replica| replica.ready_or_created().into())
        .collect();
    let serving: Vec<Moment> = sources.iter().map(|one| one.ready).chain(unread).collect();
    let served = |from: Moment, to: Moment| serving.iter().map(|ready| ready.max(&from).until(to)).sum();
    let queue = group.scheduler.get(Signal::SchedulerQueueSize);
    let ModelKnowledge { roles, variants: known } = knowledge;
    let known_role = roles.entry(role).or_default();
    take_back(&sources, known, known_role);
    for variant in variants {
        let name = &variant.variant.id.name;
        let own = sources.iter().filter(|source| source.variant.variant.id.name == *name);
        learn_capacity(known.or_default(name), own, now.into());
    }
    // Who was counted and is no more will not be soon, and may get more than it did. Who never was may get nothing yet.
    let was_read = |source: &Source<'_>| {
        known.get(&source.variant.variant.id.name).is_some_and(|known| known.pods.get(&source.key).is_some())
    };
    let silenced = sources.iter().any(|source| !source.is_counted() && was_read(source));
    let mut rest = &readings[..];
    while let Some(first) = rest.first() {
        let length = rest.iter().take_while(|one| first.at.until(one.at) <= ROUND).count();
        let (round, later) = rest.split_at(length);
        let end = round.last().map_or(first.at, |last| last.at);
        let mut sizes = RequestSizes::default();
        for reading in round {
            let source = &sources[reading.source];
            let variant = known.or_default(&source.variant.variant.id.name);
            take(role, reading, source, variant, known_role, &mut sizes);
        }
        known_role.keep(end);
        known_role.shape.learn(end, &sizes);
        let level = known_role.level.filter(|_| !silenced);
        known_role.arrivals.close(end, held(queue, end), level, served);
        known_role.dispersion.take(known_role.arrivals.bins());
        rest = later;
    }
    if serving.is_empty() {
        from_queue(queue, known_role);
    }
}

/// Forgets what was learned lately of `sources` whose signals are contradicted and were not before.
fn take_back(sources: &[Source<'_>], known: &mut NameMap<VariantKnowledge>, known_role: &mut RoleKnowledge) {
    // One that lies changes a sum by little, and may do so while it really changes.
    let many = |signals: SignalSet| {
        let doubted = sources.iter().filter(|source| !source.contradicted.and(signals).is_empty());
        doubted.count().saturating_mul(ONE_OF) >= sources.len()
    };
    let (sized, counted) = (many(COUNTED.with(SIZES)), many(COUNTED));
    for source in sources {
        let variant = known.or_default(&source.variant.variant.id.name);
        // Of one that was never read nothing was learned.
        let Some(pod) = variant.pods.get_mut(&source.key) else { continue };
        let lacked = pod.lacked;
        if source.resized {
            // What it shows of its cache counts no more: a process cannot change that.
            pod.cache = Some(0.0);
        }
        if !source.is_counted() {
            pod.lacked = lacked.with(source.lacks);
        }
        let contradicted = source.contradicted.without(lacked);
        if !contradicted.is_empty() {
            variant.take_back();
            let anew = |signals| !contradicted.and(signals).is_empty();
            known_role.take_back(sized && anew(COUNTED.with(SIZES)), counted && anew(COUNTED));
        }
    }
}

/// One reading of one process.
fn take(
    role: Role,
    reading: &Reading,
    source: &Source<'_>,
    variant: &mut VariantKnowledge,
    known: &mut RoleKnowledge,
    sizes: &mut RequestSizes,
) {
    let last = variant.pods.get(&source.key).copied();
    let bridged = last.filter(|last| {
        let gap = last.frame.at.until(reading.at);
        gap <= HOLE || gap <= stale_limit(source.signals.interval()).get()
    });
    let lacked = source.lacks;
    let lacking = last.map_or(lacked, |last| last.lacked.with(lacked));
    let frame =
        CounterSnapshot::read(source.signals, reading.scraped, bridged.as_ref().map(|last| &last.frame));
    let shown = || {
        let newest = source.signals.newest(Signal::KvCapacity)?;
        (!source.resized).then_some(newest.value)
    };
    let cache =
        last.filter(|last| !frame.is_restart_of(&last.frame)).and_then(|last| last.cache).or_else(shown);
    let young = source.ready <= reading.at && source.ready.until(reading.at) <= HOLE;
    let (before, watched) = match bridged {
        Some(last) => (last.frame, true),
        // A pod that has just begun has counted from 0.
        None if young && last.is_none() => (CounterSnapshot::blank(source.ready), false),
        None => {
            known.arrivals.begin(reading.at);
            known.shape.begin(
                reading.at,
                &RequestSizes::of(role, &frame.since(&CounterSnapshot::blank(reading.at))),
            );
            variant.pods.insert(source.key.clone(), Pod { frame, full: 0, most: 0.0, lacked, cache });
            return;
        }
    };
    let growth = frame.since(&before);
    variant.keep(reading.at);
    let mut row = bridged.map_or((0, 0.0), |last| (last.full, last.most));
    let measured = lacking.is_empty();
    if measured {
        if watched {
            row = variant.learn(role, &growth, row);
        }
        variant.occupancy.learn(&growth, source.pods);
        variant.steps.learn(&growth, source.pods);
    }
    if let Some(arrivals) = growth.arrivals(lacking) {
        known.arrivals.add(growth.from, growth.to, arrivals);
    }
    if measured {
        sizes.add(&RequestSizes::of(role, &growth));
    }
    let (full, most) = row;
    variant.pods.insert(source.key.clone(), Pod { frame, full, most, lacked, cache });
}

/// What the gateway held at `at`.
fn held(queue: Series<'_>, at: Moment) -> Option<Queue> {
    let by_then = |sample: &Sample| Moment::from(sample.at) <= at.plus(ROUND);
    queue.iter().rev().find(by_then).map(|sample| Queue { read: sample.at.into(), held: sample.value })
}

/// While nothing serves, what arrives is what the gateway holds more.
fn from_queue(queue: Series<'_>, known: &mut RoleKnowledge) {
    let times: Vec<Timestamp> = queue.iter().map(|sample| sample.at).collect();
    let hole = stale_limit(median_gap(&times)).get();
    for sample in queue.iter() {
        let at = Moment::from(sample.at);
        if known.arrivals.ended().is_some_and(|ended| ended >= at) {
            continue;
        }
        if known.arrivals.ended().is_none_or(|ended| ended.until(at) > hole) {
            known.arrivals.restart(at, Some(sample.value));
        }
        let held = Queue { read: at, held: sample.value };
        known.arrivals.close(at, Some(held), known.level, |_, _| 0.0);
        known.dispersion.take(known.arrivals.bins());
    }
}

impl RequestSizes {
    fn of(role: Role, growth: &Growth) -> Self {
        let counted = &growth.counted;
        // Prompts come to a decoding process with their cache computed: what it holds of them is all of them.
        let prompt = if role == Role::Decode { counted.prompt } else { counted.computed() };
        Self { prompt, firsts: counted.firsts, output: counted.finished_tokens, finished: counted.finished }
    }

    /// Adds what `other` has read: a sum without its count, or the other way round, is no mean, and one pod's
    /// is none of another's either.
    fn add(&mut self, other: &Self) {
        if (other.prompt + other.firsts).is_finite() {
            self.prompt += other.prompt;
            self.firsts += other.firsts;
        }
        let (output, finished) = (other.output, other.finished);
        if (output + finished).is_finite() && (output > 0.0) == (finished > 0.0) {
            self.output += output;
            self.finished += finished;
        }
    }
}
