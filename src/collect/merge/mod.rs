//! Merges the series that a source read: the result has one series per signal, engine and, for schedulers, model. Pure.
//!
//! - *Engines.* An engine is named by its `engine` label, else by its port, else by the empty string. Data-parallel processes at
//!   several ports of one pod may all have the label 0; they are named `port/engine`. Older vLLM sets no label on its cache
//!   configuration: that belongs to the only engine at its port, and is ignored if there are several.
//! - *Copies.* Several series may report the same of the same process (an HA pair of Prometheus, two scrape jobs). The one with the
//!   newest sample is used, whole: copies are never interleaved, because their clocks and offsets differ.
//! - *Relayed series.* If a pod, engine or scheduler, is scraped directly, what a collector reports about it is ignored.
//! - *Names.* Both halves of a ratio come from one generation of names. The newest complete one is used, unless an older one has a
//!   newer sample (an engine that was rolled back).
//! - *Parts.* What an engine or a scheduler splits by labels is combined ([`parts`]). The requests that a scheduler sent to one
//!   destination are also a series of their own.
//! - *Ranks.* Each data-parallel rank is an engine. Counters of the process in front of all ranks (`SGLang`'s tokens and latencies)
//!   are divided equally among them, and so are those of the server in front of several engines (the requests that it refused).
//! - *Sleep.* What an engine reports while it sleeps is dropped, so that it looks like an engine without data, not like an idle one.

mod parts;
mod raw;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use wva_core::isolate;
use wva_core::snapshot::Signal;

use super::limits::{DroppedSeries, LimitScope, LimitUsage};
use super::metric_names::Generation;
use super::signals::{self, MetricKind, MetricName};
use crate::engine::{
    Collected, Destination, Gap, JoinFailure, Labels, MAX_ENGINES_OF_A_POD, Samples, Series,
};

pub(super) use raw::{Part, RawLabels, RawSeries, SharedParts, hash, is_part_label};

/// Most ports of one pod by which a scheduler's series are told apart: one for each engine. Requests to other ports count for all
/// engines of the pod.
const MAX_PORTS_OF_A_POD: usize = MAX_ENGINES_OF_A_POD;

/// The result of a merge.
#[derive(Debug, Default)]
pub(super) struct Merged {
    pub(super) series: Vec<Series>,
    /// Series beyond the limits of their pod.
    pub(super) dropped: DroppedSeries,
    /// Pods whose series could not be merged, with their namespaces.
    failures: Vec<(Arc<str>, JoinFailure)>,
}

impl Merged {
    /// Puts series and failures into `collected`, and returns the dropped series, to which the caller may add others.
    pub(super) fn put_into(self, collected: &mut Collected) -> DroppedSeries {
        collected.series = self.series; // moved, not copied: it is the largest list of an evaluation
        for (namespace, failure) in self.failures {
            let reason = format!("{failure}; its metrics are not read; please report this");
            collected.gaps.push(Gap { namespace: Some(namespace.to_string()), reason });
            collected.failures.push(failure);
        }
        self.dropped
    }
}

/// Merges the series of several answers. Each pod is merged separately, so that a failure affects only that pod.
pub(super) fn merge(mut answers: Vec<Vec<RawSeries>>) -> Merged {
    forget_unknown_ports(&mut answers);
    let count = answers.iter().map(Vec::len).sum();
    let mut merged = Merged { series: Vec::with_capacity(count), ..Merged::default() };
    let mut schedulers: HashMap<Arc<str>, LimitUsage> = HashMap::new();
    for ((namespace, pod), raw) in by_pod(answers) {
        let raw = prefer_direct(raw);
        let total = raw.len();
        let raw = keep_within_limits(raw, schedulers.entry(namespace.clone()).or_default());
        let beyond_limits = total - raw.len();
        match isolate::caught(|| merge_pod(&namespace, &pod, raw)) {
            Ok((series, of_surplus_engines)) => {
                merged.dropped.add(&namespace, &pod, (beyond_limits + of_surplus_engines) as u64);
                merged.series.extend(series);
            }
            Err(cause) => {
                let what = format!("pod {pod} in namespace {namespace}");
                merged.failures.push((namespace, JoinFailure { what, cause }));
            }
        }
    }
    merged
}

/// The series by namespace and pod. The lists have no unused capacity.
fn by_pod(answers: Vec<Vec<RawSeries>>) -> BTreeMap<(Arc<str>, Arc<str>), Vec<RawSeries>> {
    let pod_of = |series: &RawSeries| (series.labels.namespace.clone(), series.labels.pod.clone());
    let mut counts: HashMap<_, usize> = HashMap::new();
    answers.iter().flatten().for_each(|series| *counts.entry(pod_of(series)).or_default() += 1);
    let mut pods: HashMap<_, _> =
        counts.into_iter().map(|(pod, count)| (pod, Vec::with_capacity(count))).collect();
    for series in answers.into_iter().flatten() {
        pods.entry(pod_of(&series)).or_default().push(series);
    }
    pods.into_iter().collect()
}

/// The series of one pod, and the number of raw series that were dropped because the pod has too many engines.
fn merge_pod(namespace: &Arc<str>, pod: &Arc<str>, raw: Vec<RawSeries>) -> (Vec<Series>, usize) {
    #[cfg(test)]
    tests::break_down(pod);
    let read = raw.len();
    let mut keyed = with_keys(raw);
    let dropped = keep_first_engines(&mut keyed);
    let mut last: Option<Arc<Labels>> = None;
    let series =
        choose_generations(combine_parts(keyed)).map(|Candidate { key, name, port, model, samples }| {
            let (namespace, pod) = (namespace.clone(), pod.clone());
            let SeriesKey { engine, destination, .. } = key;
            let labels = Labels { namespace, pod, engine, port, model, destination };
            // The candidates are sorted by their keys, so that those with the same labels mostly follow each other.
            let labels = last.take().filter(|last| **last == labels).unwrap_or_else(|| Arc::new(labels));
            last = Some(Arc::clone(&labels));
            Series { labels, signal: name.signal, samples }
        });
    // Of a counter divided among ranks, each share may have been dropped, but only one series was read.
    (drop_asleep(series.collect()), dropped.min(read))
}

/// Forgets the ports that schedulers name, except those at which an engine of the pod is known. A scheduler can name any number of
/// ports; requests to an unknown one count for all engines of the pod.
fn forget_unknown_ports(answers: &mut [Vec<RawSeries>]) {
    let mut ports: HashMap<(Arc<str>, Arc<str>), BTreeSet<u16>> = HashMap::new();
    for series in answers.iter().flatten() {
        if let Some(destination) = series.labels.destination.as_ref().filter(|to| to.port.is_some()) {
            ports.entry((series.labels.namespace.clone(), destination.pod.clone())).or_default();
        }
    }
    if ports.is_empty() {
        return;
    }
    for series in answers.iter().flatten().filter(|series| !series.name.kind.is_scheduler()) {
        let known = ports.get_mut(&(series.labels.namespace.clone(), series.labels.pod.clone()));
        if let (Some(known), Some(port)) = (known, series.labels.port)
            && known.len() < MAX_PORTS_OF_A_POD
        {
            known.insert(port);
        }
    }
    for series in answers.iter_mut().flatten() {
        let RawLabels { namespace, destination: Some(destination), .. } = &*series.labels else { continue };
        let Some(port) = destination.port else { continue };
        let known = ports.get(&(namespace.clone(), destination.pod.clone()));
        if !known.is_some_and(|known| known.contains(&port)) {
            let destination = Some(Destination { port: None, ..destination.clone() });
            Arc::make_mut(&mut series.labels).destination = destination;
        }
    }
}

/// Drops the relayed series of a pod that is scraped directly, whatever engines they name.
fn prefer_direct(mut raw: Vec<RawSeries>) -> Vec<RawSeries> {
    if raw.iter().all(|series| !series.labels.is_relayed) {
        return raw;
    }
    for is_scheduler in [false, true] {
        let matches = |series: &RawSeries| series.name.kind.is_scheduler() == is_scheduler;
        if raw.iter().any(|series| matches(series) && !series.labels.is_relayed && !series.samples.is_empty())
        {
            raw.retain(|series| !matches(series) || !series.labels.is_relayed);
        }
    }
    raw
}

/// Drops series beyond the limits of the pod, and of all schedulers of its namespace.
fn keep_within_limits(mut raw: Vec<RawSeries>, schedulers: &mut LimitUsage) -> Vec<RawSeries> {
    let mut usage = LimitUsage::default();
    raw.retain(|series| match series.name.kind.is_scheduler() {
        true => schedulers.try_add(LimitScope::Schedulers, series.labels.label_bytes()),
        // The bytes were limited when the series were read.
        false => usage.try_add(LimitScope::Pod, 0),
    });
    raw
}

/// What a series of a pod is about. All series with one key and signal are merged into one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct SeriesKey {
    /// The engine; empty for a scheduler.
    engine: Arc<str>,
    /// The model of a scheduler's series.
    model: Option<Arc<str>>,
    /// For a scheduler's counter of requests to one destination; `None` for its total.
    destination: Option<Destination>,
}

/// A series with its key.
struct KeyedSeries {
    key: SeriesKey,
    series: RawSeries,
}

/// Assigns the series to engines, and gives each its key. Series without a sample are dropped.
fn with_keys(raw: Vec<RawSeries>) -> Vec<KeyedSeries> {
    let ambiguous = engines_at_several_ports(&raw);
    let mut raw = divide_among_engines(attach_cache_config(raw));
    parts::resolve_undecided(&mut raw);
    let raw = raw.into_iter().filter(|series| !series.samples.is_empty());
    raw.map(|series| KeyedSeries { key: key(&series, &ambiguous), series }).collect()
}

/// If a pod has too many engines, keeps the first ones by name, and returns the number of series dropped.
fn keep_first_engines(keyed: &mut Vec<KeyedSeries>) -> usize {
    let of_engines = keyed.iter().filter(|keyed| !keyed.series.name.kind.is_scheduler());
    let engines: BTreeSet<&Arc<str>> = of_engines.map(|keyed| &keyed.key.engine).collect();
    let Some(first_surplus) = engines.into_iter().nth(MAX_ENGINES_OF_A_POD).cloned() else { return 0 };
    let before = keyed.len();
    keyed.retain(|keyed| keyed.series.name.kind.is_scheduler() || keyed.key.engine < first_surplus);
    before - keyed.len()
}

/// Divides what counts for all engines at a port equally among them: counters of SGLang without a data-parallel rank where there are
/// ranks, and counters of the server. In a truncated answer the number of engines is unknown, so that they are dropped. A counter of a
/// server at whose port there is no engine is dropped, too: it would look like an engine without any other data.
fn divide_among_engines(raw: Vec<RawSeries>) -> Vec<RawSeries> {
    let is_of_server = |series: &RawSeries| series.name.kind == MetricKind::ServerCounter;
    if !raw.iter().any(|series| series.labels.is_rank || is_of_server(series)) {
        return raw;
    }
    let mut ranks: BTreeMap<Option<u16>, BTreeSet<Arc<str>>> = BTreeMap::new();
    let mut engines: BTreeMap<Option<u16>, BTreeSet<Arc<str>>> = BTreeMap::new();
    for series in raw.iter().filter(|series| !series.name.kind.is_scheduler() && !is_of_server(series)) {
        let RawLabels { engine, is_rank, port, .. } = &*series.labels;
        engines.entry(*port).or_default().extend(engine.clone());
        if *is_rank {
            ranks.entry(*port).or_default().extend(engine.clone());
        }
    }
    let mut divided = Vec::with_capacity(raw.len());
    for series in raw {
        let shares = match (&series.labels.engine, series.name.kind) {
            (None, MetricKind::Counter) => ranks.get(&series.labels.port),
            (None, MetricKind::ServerCounter) => match engines.get(&series.labels.port) {
                None => continue,
                // Shares of engines beyond the limit would be dropped, after a copy of each part for each of them.
                Some(named) if named.len() > MAX_ENGINES_OF_A_POD => continue,
                // The only engine, which has no label.
                Some(named) => Some(named).filter(|named| !named.is_empty()),
            },
            _ => None,
        };
        let Some(shares) = shares else {
            divided.push(series);
            continue;
        };
        if series.is_truncated {
            continue;
        }
        let share = 1.0 / shares.len() as f64;
        divided.extend(shares.iter().map(|engine| {
            let share = RawSeries { samples: series.samples.scaled(share), ..series.clone() };
            share.relabelled(|labels| labels.engine = Some(engine.clone()))
        }));
    }
    divided
}

/// The engine labels that occur at several ports of the pod.
fn engines_at_several_ports(raw: &[RawSeries]) -> BTreeSet<Arc<str>> {
    let mut ports: BTreeMap<&Arc<str>, u16> = BTreeMap::new();
    let mut several = BTreeSet::new();
    for series in raw {
        if let (Some(engine), Some(port)) = (&series.labels.engine, series.labels.port)
            && *ports.entry(engine).or_insert(port) != port
        {
            several.insert(engine.clone());
        }
    }
    several
}

/// Assigns a cache configuration without an engine to the only engine at its port, and drops it if there are several. Otherwise it
/// would look like another engine without any other data.
fn attach_cache_config(mut raw: Vec<RawSeries>) -> Vec<RawSeries> {
    let is_unassigned =
        |series: &RawSeries| series.name.kind == MetricKind::CacheConfig && series.labels.engine.is_none();
    let ports: BTreeSet<_> =
        raw.iter().filter(|series| is_unassigned(series)).map(|series| series.labels.port).collect();
    if ports.is_empty() {
        return raw;
    }
    let mut engines: BTreeMap<_, BTreeSet<Arc<str>>> = BTreeMap::new();
    for series in raw.iter().filter(|series| !series.name.kind.is_scheduler()) {
        let RawLabels { engine, port, .. } = &*series.labels;
        if let Some(engine) = engine.as_ref().filter(|_| ports.contains(port)) {
            engines.entry(*port).or_default().insert(engine.clone());
        }
    }
    raw.retain_mut(|series| {
        let engines = engines.get(&series.labels.port).filter(|_| is_unassigned(series));
        if let Some(engines) = engines {
            Arc::make_mut(&mut series.labels).engine = engines.first().cloned();
        }
        engines.is_none_or(|engines| engines.len() == 1)
    });
    raw
}

fn key(series: &RawSeries, ambiguous: &BTreeSet<Arc<str>>) -> SeriesKey {
    let labels = &series.labels;
    let destination = labels.destination.clone();
    if series.name.kind.is_scheduler() {
        return SeriesKey { engine: Arc::default(), model: labels.model.clone(), destination };
    }
    let engine = match (&labels.engine, labels.port) {
        (Some(engine), Some(port)) if ambiguous.contains(engine) => format!("{port}/{engine}").into(),
        (Some(engine), _) => engine.clone(),
        (None, Some(port)) => port.to_string().into(),
        (None, None) => Arc::default(),
    };
    SeriesKey { engine, model: None, destination }
}

/// A combined series under one of the names of its signal. Smaller than a raw series, because candidates are sorted.
struct Candidate {
    key: SeriesKey,
    name: &'static MetricName,
    port: Option<u16>,
    model: Option<Arc<str>>,
    samples: Samples,
}

impl Candidate {
    /// The key and the ratio (or single signal), within which one generation of names is chosen.
    fn ratio(&self) -> (&SeriesKey, Signal) {
        (&self.key, signals::numerator(self.name.signal))
    }
}

/// Combines the parts of each metric. The total of a scheduler's counter is the sum over its destinations.
fn combine_parts(keyed: Vec<KeyedSeries>) -> Vec<Candidate> {
    let (by_destination, mut totals): (Vec<_>, Vec<_>) =
        keyed.into_iter().partition(|keyed| keyed.key.destination.is_some());
    let mut combined = Vec::with_capacity(totals.len());
    for KeyedSeries { key, series } in combine_each(by_destination) {
        totals.push(KeyedSeries {
            key: SeriesKey { destination: None, ..key.clone() },
            series: series.clone(),
        });
        combined.push(KeyedSeries { key, series });
    }
    combined.extend(combine_each(totals));
    let candidate = |KeyedSeries { key, series }: KeyedSeries| {
        let RawSeries { name, labels, samples, .. } = series;
        Candidate { key, name, port: labels.port, model: labels.model.clone(), samples }
    };
    combined.into_iter().map(candidate).collect()
}

/// Combines the series of each key and name.
fn combine_each(mut keyed: Vec<KeyedSeries>) -> Vec<KeyedSeries> {
    keyed
        .sort_by(|left, right| (&left.key, left.series.name.text).cmp(&(&right.key, right.series.name.text)));
    let mut combined = Vec::new();
    let mut keyed = keyed.into_iter().peekable();
    while let Some(KeyedSeries { key, series: first }) = keyed.next() {
        let name = first.name;
        let mut parts = vec![first];
        while let Some(next) = keyed.next_if(|next| next.key == key && next.series.name == name) {
            parts.push(next.series);
        }
        combined.extend(parts::combine(parts).map(|series| KeyedSeries { key, series }));
    }
    combined
}

/// Drops the samples of engines that sleep, from the time since which they do, and the sleep signal of engines that do not.
fn drop_asleep(mut series: Vec<Series>) -> Vec<Series> {
    let mut asleep: BTreeMap<Arc<str>, Timestamp> = BTreeMap::new();
    series.retain(|series| {
        if series.signal != Signal::Asleep {
            return true;
        }
        let first = series.samples.iter().rev().take_while(|sample| sample.value > 0.0).last();
        first.is_some_and(|first| asleep.insert(series.labels.engine.clone(), first.at).is_none())
    });
    if asleep.is_empty() {
        return series;
    }
    series.retain_mut(|series| {
        let is_affected = !signals::is_scheduler_signal(series.signal) && series.signal != Signal::Asleep;
        if let Some(since) = asleep.get(&series.labels.engine).filter(|_| is_affected) {
            series.samples = series.samples.before(*since);
        }
        !series.samples.is_empty()
    });
    series
}

/// Keeps the candidates of the best generation of names of each ratio.
fn choose_generations(mut candidates: Vec<Candidate>) -> impl Iterator<Item = Candidate> {
    candidates.sort_by(|left, right| {
        (left.ratio(), left.name.generation).cmp(&(right.ratio(), right.name.generation))
    });
    let mut is_chosen = Vec::with_capacity(candidates.len());
    for of_ratio in candidates.chunk_by(|left, right| left.ratio() == right.ratio()) {
        let best = best_generation(of_ratio);
        is_chosen.extend(of_ratio.iter().map(|candidate| Some(candidate.name.generation) == best));
    }
    candidates.into_iter().zip(is_chosen).filter_map(|(candidate, is_chosen)| is_chosen.then_some(candidate))
}

/// The most complete generation, of these the one with the newest sample, of these the newest names.
fn best_generation(candidates: &[Candidate]) -> Option<Generation> {
    let generations = candidates.chunk_by(|left, right| left.name.generation == right.name.generation);
    let rank = |of_generation: &&[Candidate]| {
        let newest = of_generation.iter().filter_map(|candidate| candidate.samples.last());
        let newest = newest.map(|sample| sample.at).max();
        let generation = of_generation.first().map(|candidate| candidate.name.generation);
        (of_generation.len(), newest, Reverse(generation))
    };
    generations.max_by_key(rank).and_then(|best| best.first()).map(|candidate| candidate.name.generation)
}

#[cfg(test)]
mod tests;
