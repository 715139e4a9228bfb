//! Adds the samples of one model to what is learned about it: each sample once, in the order of time, whether they come one by one from
//! the pods or by the dozen from Prometheus.

use jiff::Timestamp;
use smol_str::SmolStr;

use super::arrivals::{MAX_READING_GAP, Queue};
use super::counter_snapshot::{CounterSnapshot, Growth, MIN_READING_GAP};
use super::gauged::GAUGES;
use super::knowledge::{LastReading, LimitedReadings, ModelKnowledge, RoleKnowledge, VariantKnowledge};
use super::start_up::start_up_times;
use super::token_shape::RequestSizes;
use crate::model::{Analyzer, Role};
use crate::moment::Moment;
use crate::name_map::NameMap;
use crate::quality::{EngineAssessor, SignalHistory, engine_key, judged_engines, stale_limit};
use crate::snapshot::{
    ModelGroup, Phase, Sample, Series, Signal, SignalSet, Signals, VariantState, median_gap,
};
use crate::units::count;

/// Readings within this time, seconds, form one round: a thousand pods are scraped in a third of a second.
const ROUND_SECONDS: f64 = 1.0;

/// Signals by which arrivals are counted.
const COUNTED: SignalSet =
    SignalSet::new(&[Signal::TimeToFirstTokenCount, Signal::RequestGenerationTokensCount]);

/// Signals by which requests are sized.
const SIZES: SignalSet = SignalSet::new(&[Signal::PromptTokens, Signal::RequestGenerationTokensSum]);

/// An engine has served for this long, seconds, before its cache size is trusted against that of others: a contradiction shows within a
/// minute and two scrapes of 15 s.
const MIN_TRUSTED_AGE: f64 = 120.0;

/// Arrivals are only undone if at least one in this many engines is contradicted: a single wrong one changes a sum by little, and may do
/// so while the load really changes.
const MAX_ENGINES_PER_CONTRADICTED: usize = 3;

struct Source<'a> {
    variant: &'a VariantState,
    /// Its name among the engines of its variant.
    key: SmolStr,
    signals: &'a Signals,
    ready_since: Moment,
    /// Serving engines of its variant.
    engines: f64,
    /// Signals that are learned from and are missing or contradicted.
    lacking: SignalSet,
    /// Of these, the contradicted ones.
    contradicted: SignalSet,
    is_capacity_contradicted: bool,
    /// Its arrivals are estimated from its gauges: it has lost the counters that would tell.
    is_gauged: bool,
}

impl Source<'_> {
    fn variant_name(&self) -> &SmolStr {
        &self.variant.variant.id.name
    }

    fn is_counted(&self) -> bool {
        self.shows(&[Signal::TimeToFirstTokenCount])
            || self.shows(&[Signal::RequestGenerationTokensCount, Signal::Running])
    }

    /// Its arrivals are known, be it by its gauges.
    fn is_read(&self) -> bool {
        self.is_counted() || self.is_gauged
    }

    fn shows(&self, signals: &[Signal]) -> bool {
        self.lacking.and(SignalSet::new(signals)).is_empty()
    }

    /// It counts nothing and shows what it holds. Where signals contradict each other, gauges may be wrong too. The histograms of an engine
    /// that was never read may come with its first requests.
    fn has_lost_counters(&self, knowledge: &ModelKnowledge, now: Moment) -> bool {
        let gauge = |signal| self.signals.newest(signal).map(|sample| sample.value);
        let [Some(running), Some(waiting), Some(_)] = GAUGES.map(gauge) else { return false };
        let known = knowledge.variants.get(self.variant_name());
        let was_read = known.is_some_and(|known| known.engines.get(&self.key).is_some());
        let is_busy = running + waiting > 0.0 && self.ready_since.until(now) >= MAX_READING_GAP;
        self.lacking.contains(COUNTED)
            && self.contradicted.is_empty()
            && self.shows(&GAUGES)
            && (was_read || is_busy)
    }

    fn snapshot(
        &self,
        scraped: Timestamp,
        before: Option<&CounterSnapshot>,
        known: &VariantKnowledge,
    ) -> CounterSnapshot {
        let read = CounterSnapshot::read(self.signals, scraped, before);
        if self.is_gauged {
            read.with_confirmed_running(self.signals, scraped, self.variant, known)
        } else {
            read
        }
    }

    /// Its cache size, unless that is contradicted.
    fn trusted_capacity(&self) -> Option<f64> {
        let newest = self.signals.newest(Signal::KvCapacity)?;
        (!self.is_capacity_contradicted).then_some(newest.value)
    }
}

struct Reading {
    at: Moment,
    source: usize,
    /// The same time, to the nanosecond.
    scraped: Timestamp,
}

/// Adds what is new in `group`. Twice with the same samples is the same as once.
pub(crate) fn ingest(
    group: &ModelGroup,
    history: Option<&SignalHistory>,
    now: Timestamp,
    knowledge: &mut ModelKnowledge,
) {
    knowledge.variants.retain(|name, _| group.variants.iter().any(|state| state.variant.id.name == *name));
    for role in Role::ALL {
        let variants: Vec<&VariantState> =
            group.variants.iter().filter(|state| state.variant.role == role).collect();
        if variants.is_empty() {
            knowledge.roles.remove(&role);
            continue;
        }
        variants.iter().for_each(|state| learn_pods(state, now.into(), knowledge));
        let sources = sources(role, &variants, history, knowledge, now);
        ingest_role(role, group, &variants, &sources, now, knowledge);
    }
    for state in &group.variants {
        let known = knowledge.variants.or_default(&state.variant.id.name);
        known.engines.retain(|key, _| state.pods.iter().any(|pod| is_of_pod(key, &pod.name)));
    }
}

/// Learns from a variant's pods without their samples.
fn learn_pods(state: &VariantState, now: Moment, knowledge: &mut ModelKnowledge) {
    let known = knowledge.variants.or_default(&state.variant.id.name);
    let ready: Vec<_> = state.pods.iter().filter(|pod| pod.phase == Phase::Ready).collect();
    let times = start_up_times(state);
    let VariantKnowledge { starts, engines, predictions, .. } = known;
    let took = starts.learn(now, &times, |index| {
        let (pod, (_, ready_since)) = (&ready[index].name, times[index]);
        engines.iter().any(|(key, last)| is_of_pod(key, pod) && last.snapshot.at < ready_since)
    });
    took.into_iter().for_each(|seconds| predictions.started(seconds));
    let engines_per_pod = ready.iter().map(|pod| judged_engines(pod).count()).max();
    let engines_per_pod = engines_per_pod.filter(|engines| *engines > 0);
    known.engines_per_pod =
        engines_per_pod.map(|engines| f64::from(count(engines))).or(known.engines_per_pod);
}

/// Learns the cache size of a variant's engines: the smallest if they differ, because a request may go to any of them. Engines that have
/// not served long enough to be contradicted count if nothing else is known.
fn learn_capacity<'s>(
    known: &mut VariantKnowledge,
    sources: impl Iterator<Item = &'s Source<'s>>,
    now: Moment,
) {
    let VariantKnowledge { engines, capacity, capacity_at, .. } = known;
    let is_trusted = |source: &&Source<'_>| {
        let is_settled = source.ready_since.until(now) >= MIN_TRUSTED_AGE;
        capacity.is_none() || is_settled && !source.is_capacity_contradicted
    };
    let engine_capacity = |source: &Source<'_>| {
        let first = engines.get(&source.key).and_then(|last| last.capacity);
        first.or_else(|| Some(source.signals.newest(Signal::KvCapacity)?.value))
    };
    let capacities = sources.filter(is_trusted).filter_map(engine_capacity).filter(|tokens| *tokens > 0.0);
    if let Some(tokens) = capacities.reduce(f64::min) {
        *capacity = Some(tokens);
        *capacity_at = Some(now);
    }
}

fn is_of_pod(key: &str, pod: &str) -> bool {
    key.strip_prefix(pod).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

fn sources<'a>(
    role: Role,
    variants: &[&'a VariantState],
    history: Option<&SignalHistory>,
    knowledge: &ModelKnowledge,
    now: Timestamp,
) -> Vec<Source<'a>> {
    let declared = Analyzer::Rate.declared(role);
    let mut sources = Vec::new();
    for variant in variants.iter().copied() {
        let first = sources.len();
        let assessor = EngineAssessor::new(variant, declared, history, now);
        for pod in variant.pods.iter().filter(|pod| pod.phase == Phase::Ready) {
            let ready_since = pod.ready_or_created().into();
            sources.extend(judged_engines(pod).map(|(engine, signals)| {
                let coverage = assessor.assess(pod, engine, signals).coverage;
                let contradicted = coverage.contradicted.and(declared.needed);
                Source {
                    variant,
                    key: engine_key(pod, engine),
                    signals,
                    ready_since,
                    engines: 0.0,
                    lacking: coverage.missing.with(contradicted),
                    contradicted,
                    is_capacity_contradicted: coverage.contradicted.has(Signal::KvCapacity),
                    is_gauged: false,
                }
            }));
        }
        let engines = f64::from(count(sources.len() - first));
        sources[first..].iter_mut().for_each(|source| source.engines = engines);
    }
    // While at least as many engines count, those that do not are taken to get as much, and a replica may be removed.
    let counted = sources.iter().filter(|source| source.is_counted()).count();
    let has_lost = |source: &Source<'_>| source.has_lost_counters(knowledge, now.into());
    if sources.iter().filter(|source| has_lost(source)).count() > counted {
        for source in &mut sources {
            source.is_gauged = has_lost(source);
        }
    }
    sources
}

/// The new readings of all sources whose arrivals are known, in the order of time.
fn new_readings(sources: &[Source<'_>], knowledge: &ModelKnowledge) -> Vec<Reading> {
    let mut readings = Vec::new();
    for (index, source) in sources.iter().enumerate().filter(|(_, source)| source.is_read()) {
        let known = knowledge.variants.get(source.variant_name());
        let last = known.and_then(|known| known.engines.get(&source.key));
        let mut last_at = last.map(|last| last.snapshot.at);
        let times = source.signals.rows().times();
        // What was distrusted is not read afterwards either, except for its current value.
        let was_lacking = last.is_some_and(|last| !last.lacked.is_empty());
        let first = if was_lacking { times.len().saturating_sub(1) } else { 0 };
        for scraped in &times[first..] {
            let at = Moment::from(*scraped);
            if last_at.is_none_or(|last| last.until(at) >= MIN_READING_GAP) {
                readings.push(Reading { at, source: index, scraped: *scraped });
                last_at = Some(at);
            }
        }
    }
    readings.sort_by_key(|reading| (reading.at, reading.source));
    readings
}

fn ingest_role(
    role: Role,
    group: &ModelGroup,
    variants: &[&VariantState],
    sources: &[Source<'_>],
    now: Timestamp,
    knowledge: &mut ModelKnowledge,
) {
    let readings = new_readings(sources, knowledge);
    let serving = serving_since(variants, sources);
    let served = |from: Moment, to: Moment| serving.iter().map(|ready| ready.max(&from).until(to)).sum();
    let queue = group.scheduler.get(Signal::SchedulerQueueSize);
    let ModelKnowledge { roles, variants: known } = knowledge;
    let known_role = roles.entry(role).or_default();
    roll_back(sources, known, known_role);
    for variant in variants {
        let name = &variant.variant.id.name;
        let own = sources.iter().filter(|source| source.variant_name() == name);
        learn_capacity(known.or_default(name), own, now.into());
    }
    // An engine that was read and no longer is may now get more requests than its share. One that never was may get none yet.
    let was_read = |source: &Source<'_>| {
        known.get(source.variant_name()).is_some_and(|known| known.engines.get(&source.key).is_some())
    };
    let has_lost_engine = sources.iter().any(|source| !source.is_read() && was_read(source));
    let mut rest = &readings[..];
    while let Some(first) = rest.first() {
        let length = rest.iter().take_while(|reading| first.at.until(reading.at) <= ROUND_SECONDS).count();
        let (round, later) = rest.split_at(length);
        let end = round.last().map_or(first.at, |last| last.at);
        let mut sizes = RequestSizes::default();
        for reading in round {
            let source = &sources[reading.source];
            let variant = known.or_default(source.variant_name());
            ingest_reading(role, reading, source, variant, known_role, &mut sizes);
        }
        known_role.checkpoint(end);
        known_role.shape.learn(end, &sizes);
        let level = known_role.level.filter(|_| !has_lost_engine);
        known_role.arrivals.close(end, held_at(queue, end), level, served);
        if known_role.gauged_at.is_none() {
            known_role.dispersion.add(known_role.arrivals.bins());
        }
        rest = later;
    }
    if !sources.iter().any(|source| source.is_gauged) {
        known_role.forget_gauged();
    }
    if serving.is_empty() {
        count_queue_growth(queue, known_role);
    }
}

/// When each engine became ready; a pod without engines counts as one.
fn serving_since(variants: &[&VariantState], sources: &[Source<'_>]) -> Vec<Moment> {
    let pods = variants.iter().flat_map(|variant| &variant.pods);
    let without_engines = pods
        .filter(|pod| pod.phase == Phase::Ready && judged_engines(pod).next().is_none())
        .map(|pod| pod.ready_or_created().into());
    sources.iter().map(|source| source.ready_since).chain(without_engines).collect()
}

/// Undoes what was recently learned from `sources` with signals that are contradicted and were not before.
fn roll_back(sources: &[Source<'_>], known: &mut NameMap<VariantKnowledge>, known_role: &mut RoleKnowledge) {
    let are_many_contradicted = |signals: SignalSet| {
        let contradicted = sources.iter().filter(|source| !source.contradicted.and(signals).is_empty());
        contradicted.count().saturating_mul(MAX_ENGINES_PER_CONTRADICTED) >= sources.len()
    };
    let are_sizes_wrong = are_many_contradicted(COUNTED.with(SIZES));
    let are_counts_wrong = are_many_contradicted(COUNTED);
    for source in sources {
        let variant = known.or_default(source.variant_name());
        // Nothing was learned from an engine that was never read.
        let Some(last) = variant.engines.get_mut(&source.key) else { continue };
        let lacked = last.lacked;
        if source.is_capacity_contradicted {
            // Its cache size is never trusted again: an engine cannot change it.
            last.capacity = Some(0.0);
        }
        if !source.is_read() {
            last.lacked = lacked.with(source.lacking);
        }
        let contradicted = source.contradicted.without(lacked);
        if !contradicted.is_empty() {
            variant.roll_back();
            let is_new = |signals| !contradicted.and(signals).is_empty();
            known_role.roll_back(
                are_sizes_wrong && is_new(COUNTED.with(SIZES)),
                are_counts_wrong && is_new(COUNTED),
            );
        }
    }
}

fn ingest_reading(
    role: Role,
    reading: &Reading,
    source: &Source<'_>,
    variant: &mut VariantKnowledge,
    known: &mut RoleKnowledge,
    sizes: &mut RequestSizes,
) {
    let last = variant.engines.get(&source.key).copied();
    let bridged = last.filter(|last| {
        let gap = last.snapshot.at.until(reading.at);
        gap <= MAX_READING_GAP || gap <= stale_limit(source.signals.interval()).get()
    });
    let lacked = source.lacking;
    let lacking = last.map_or(lacked, |last| last.lacked.with(lacked));
    let before = bridged.as_ref().map(|last| &last.snapshot);
    let snapshot = source.snapshot(reading.scraped, before, variant);
    let capacity = last
        .filter(|last| !snapshot.is_restart_of(&last.snapshot))
        .and_then(|last| last.capacity)
        .or_else(|| source.trusted_capacity());
    let latest = |limited: LimitedReadings, saturated_for: u8| LastReading {
        snapshot,
        limited_readings: limited.count,
        limited_running: limited.most_running,
        saturated_for,
        lacked,
        capacity,
    };
    let is_young =
        source.ready_since <= reading.at && source.ready_since.until(reading.at) <= MAX_READING_GAP;
    let before = match bridged {
        Some(last) => last.snapshot,
        // An engine that has just started has counted from 0.
        None if is_young && last.is_none() => CounterSnapshot::at_start(source.ready_since),
        None => {
            known.arrivals.begin(reading.at);
            let life = snapshot.since(&CounterSnapshot::at_start(reading.at));
            known.shape.begin(reading.at, &RequestSizes::from_growth(role, &life));
            variant.engines.insert(source.key.clone(), latest(LimitedReadings::default(), 0));
            return;
        }
    };
    let growth = snapshot.since(&before);
    variant.checkpoint(reading.at);
    let mut limited = bridged.map_or(LimitedReadings::default(), |last| LimitedReadings {
        count: last.limited_readings,
        most_running: last.limited_running,
    });
    let is_measured = lacking.is_empty();
    let mut saturated_for = 0;
    if is_measured {
        if let Some(last) = bridged {
            limited = variant.learn(role, &growth, limited);
            saturated_for = variant.predictions.observe(role, &growth, last.saturated_for);
        }
        variant.occupancy.learn(&growth, source.engines);
        variant.steps.learn(&growth, source.engines);
    }
    let gauged = || source.is_gauged.then(|| known.estimate_arrivals(role, &growth, variant))?;
    if let Some(arrivals) = growth.all_arrivals(lacking).or_else(gauged) {
        known.arrivals.add(growth.from, growth.to, arrivals);
    }
    if is_measured {
        sizes.add(&RequestSizes::from_growth(role, &growth));
    }
    variant.engines.insert(source.key.clone(), latest(limited, saturated_for));
}

/// What the gateway held at `at`, or up to a round later.
fn held_at(queue: Series<'_>, at: Moment) -> Option<Queue> {
    let is_by_then = |sample: &Sample| Moment::from(sample.at) <= at.plus(ROUND_SECONDS);
    let sample = queue.iter().rev().find(is_by_then)?;
    Some(Queue { read: sample.at.into(), held: sample.value })
}

/// While nothing serves, arrivals are the growth of the gateway's queue.
fn count_queue_growth(queue: Series<'_>, known: &mut RoleKnowledge) {
    let times: Vec<Timestamp> = queue.iter().map(|sample| sample.at).collect();
    let max_gap = stale_limit(median_gap(&times)).get();
    for sample in queue.iter() {
        let at = Moment::from(sample.at);
        if known.arrivals.ended().is_some_and(|ended| ended >= at) {
            continue;
        }
        if known.arrivals.ended().is_none_or(|ended| ended.until(at) > max_gap) {
            known.arrivals.restart(at, Some(sample.value));
        }
        let held = Queue { read: at, held: sample.value };
        known.arrivals.close(at, Some(held), known.level, |_, _| 0.0);
        if known.gauged_at.is_none() {
            known.dispersion.add(known.arrivals.bins());
        }
    }
}

impl RequestSizes {
    fn from_growth(role: Role, growth: &Growth) -> Self {
        let counted = &growth.counted;
        // A decoding engine gets prompts with their cache computed: it holds all of their tokens.
        let prompt = if role == Role::Decode { counted.prompt } else { counted.computed() };
        Self { prompt, firsts: counted.firsts, output: counted.finished_tokens, finished: counted.finished }
    }

    /// Adds the sizes of one engine. A sum without its count, or the other way round, gives no mean and is left out.
    fn add(&mut self, other: &Self) {
        if (other.prompt + other.firsts).is_finite() {
            self.prompt += other.prompt;
            self.firsts += other.firsts;
        }
        let is_pair = (other.output > 0.0) == (other.finished > 0.0);
        if (other.output + other.finished).is_finite() && is_pair {
            self.output += other.output;
            self.finished += other.finished;
        }
    }
}
