//! From raw series to one series a signal: who it is about, which of two copies counts, which of two names counts, and
//! what adds up. Pure; both sources end here.
//!
//! - *Who*: namespace, pod and engine. The engine is its `engine` label, else its port, else empty. Data-parallel
//!   processes at several ports of one pod may all call themselves engine 0: then the name is `port/engine`.
//!   Older vLLM leaves the label out of its cache configuration alone: that is the only engine's at the same port, and
//!   nobody's when there are several.
//! - *Copies*: series that say the same of the same process (an HA pair of Prometheus, two scrape jobs): the one with
//!   the newest sample counts, whole. Copies are never interleaved, because their clocks and offsets differ.
//! - *Hearsay*: what a pod, engine or scheduler, says of itself wins over what a collector says of it, before any room is
//!   taken.
//! - *Names*: a ratio's halves come from one generation of names; the newest name that is complete counts, unless an
//!   older one has a newer sample (an engine that was rolled back).
//! - *Parts*: what an engine or a scheduler divides by labels is one figure again ([`parts`]); what the scheduler counts by
//!   endpoint is, beside that, one figure an endpoint.
//! - *Ranks*: each data-parallel rank is an engine. What the process before them counts of all (`SGLang`'s tokens and latencies) is
//!   shared out evenly.
//! - *Sleep*: what an engine says while it sleeps is left out, so that it looks like one that isn't seen, and not like an idle one.

mod parts;
mod raw;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use wva_core::isolate;
use wva_core::snapshot::{Sample, Signal};

use super::bounds::{Dropped, Holder, Room};
use super::signals::{self, Kind, Name};
use crate::engine::{Collected, Gap, JoinFailure, MAX_ENGINES_OF_A_POD, Receiver, Series};

pub(super) use raw::{Part, RawSeries, hash, is_dividing};

/// Ports of one pod that a scheduler's series are told apart by: one an engine. What goes to any other one is of all engines.
const MAX_PORTS_OF_A_POD: usize = MAX_ENGINES_OF_A_POD;

/// What is left of all series.
#[derive(Debug, Default)]
pub(super) struct Merged {
    pub(super) series: Vec<Series>,
    /// What is beyond the bounds of a pod.
    pub(super) dropped: Dropped,
    /// Pods whose series broke, and their namespaces.
    broken: Vec<(Arc<str>, JoinFailure)>,
}

impl Merged {
    /// Adds everything but what was dropped, which the caller may know more of.
    pub(super) fn hand_over(self, collected: &mut Collected) -> Dropped {
        collected.series.extend(self.series);
        for (namespace, broken) in self.broken {
            let reason = format!("{broken}; its metrics are not read; please report this");
            collected.gaps.push(Gap { namespace: Some(namespace.to_string()), reason });
            collected.broken.push(broken);
        }
        self.dropped
    }
}

/// One series a signal and process; series without a sample are left out. Pods have nothing to do with each other, so
/// each is merged by itself, and one that breaks costs itself.
pub(super) fn merge(mut raw: Vec<RawSeries>) -> Merged {
    name_ports_of_engines(&mut raw);
    let mut pods: HashMap<(Arc<str>, Arc<str>), Vec<RawSeries>> = HashMap::new();
    for series in raw {
        pods.entry((series.namespace.clone(), series.pod.clone())).or_default().push(series);
    }
    let mut pods: Vec<_> = pods.into_iter().collect();
    pods.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    let mut merged = Merged::default();
    let mut schedulers: HashMap<Arc<str>, Room> = HashMap::new();
    for ((namespace, pod), raw) in pods {
        let raw = prefer_direct(raw);
        let all = raw.len();
        let raw = keep_bounded(raw, schedulers.entry(namespace.clone()).or_default());
        match isolate::caught(|| merge_pod(&namespace, &pod, raw)) {
            Ok((series, kept)) => {
                merged.dropped.add(&namespace, &pod, (all - kept) as u64);
                merged.series.extend(series);
            }
            Err(cause) => {
                let what = format!("pod {pod} in namespace {namespace}");
                merged.broken.push((namespace, JoinFailure { what, cause }));
            }
        }
    }
    merged
}

/// The series of one pod, and how many of a source's series stand behind them.
fn merge_pod(namespace: &Arc<str>, pod: &Arc<str>, raw: Vec<RawSeries>) -> (Vec<Series>, usize) {
    #[cfg(test)]
    tests::break_down(pod);
    let series = |(subject, named): (Subject, Named)| Series {
        namespace: namespace.clone(),
        pod: pod.clone(),
        engine: subject.engine,
        port: named.port,
        model: named.model,
        signal: named.name.signal,
        to: subject.to,
        samples: named.samples,
    };
    let (named, kept) = keep_engines(by_subject(raw));
    (without_sleepers(choose_names(one_each(named)).map(series).collect()), kept)
}

/// Of the ports that schedulers name, leaves those at which an engine of the pod is known. Whoever runs a scheduler can name
/// every port there is; what came to one at which nobody is known is of all engines of the pod.
fn name_ports_of_engines(raw: &mut [RawSeries]) {
    let mut ports: HashMap<(Arc<str>, Arc<str>), BTreeSet<u16>> = HashMap::new();
    for series in raw.iter() {
        if let Some(to) = series.to.as_ref().filter(|to| to.port.is_some()) {
            ports.entry((series.namespace.clone(), to.pod.clone())).or_default();
        }
    }
    if ports.is_empty() {
        return;
    }
    for series in raw.iter().filter(|series| !series.name.kind.is_scheduler()) {
        let known = ports.get_mut(&(series.namespace.clone(), series.pod.clone()));
        if let (Some(known), Some(port)) = (known, series.port)
            && known.len() < MAX_PORTS_OF_A_POD
        {
            known.insert(port);
        }
    }
    for series in raw {
        let RawSeries { namespace, to: Some(to), .. } = series else { continue };
        let known = ports.get(&(namespace.clone(), to.pod.clone()));
        to.port = to.port.filter(|port| known.is_some_and(|known| known.contains(port)));
    }
}

/// What a pod says of itself wins over what a collector says of it, whatever engine that names.
fn prefer_direct(mut raw: Vec<RawSeries>) -> Vec<RawSeries> {
    if raw.iter().all(|series| !series.is_relayed) {
        return raw;
    }
    for is_scheduler in [false, true] {
        let is_such = |series: &RawSeries| series.name.kind.is_scheduler() == is_scheduler;
        if raw.iter().any(|series| is_such(series) && !series.is_relayed && !series.samples.is_empty()) {
            raw.retain(|series| !is_such(series) || !series.is_relayed);
        }
    }
    raw
}

/// The process of a pod, or the scheduler's model, that a series is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Subject {
    engine: Arc<str>,
    model: Option<Arc<str>>,
    /// Of what the scheduler gave out, one receiver's share; `None` is all of it.
    to: Option<Receiver>,
}

/// As many series as one pod may have, and all schedulers of its namespace.
fn keep_bounded(mut raw: Vec<RawSeries>, schedulers: &mut Room) -> Vec<RawSeries> {
    let mut room = Room::default();
    raw.retain(|series| match series.name.kind.is_scheduler() {
        true => schedulers.take(Holder::Schedulers, series.text_bytes()),
        false => room.take(Holder::Pod, 0),
    });
    raw
}

/// The series with whom they are about, those of one name of one subject together; and how many of a source's series
/// stand behind them.
fn by_subject(raw: Vec<RawSeries>) -> (Vec<(Subject, RawSeries)>, usize) {
    let kept = raw.len();
    let several = at_several_ports(&raw);
    let mut raw = share_among_ranks(attach_cache_config(raw));
    parts::settle(&mut raw);
    let raw = raw.into_iter().filter(|series| !series.samples.is_empty());
    let named = raw.map(|mut series| {
        let to = series.to.take();
        (Subject { to, ..subject(&series, &several) }, series)
    });
    (named.collect(), kept)
}

/// Of more engines than a pod may have, the first by name.
fn keep_engines((mut named, kept): (Vec<(Subject, RawSeries)>, usize)) -> (Vec<(Subject, RawSeries)>, usize) {
    let engines = named.iter().filter(|(_, series)| !series.name.kind.is_scheduler());
    let engines: BTreeSet<&Arc<str>> = engines.map(|(subject, _)| &subject.engine).collect();
    let first_beyond = engines.into_iter().nth(MAX_ENGINES_OF_A_POD).cloned();
    let before = named.len();
    if let Some(first_beyond) = first_beyond {
        named.retain(|(subject, series)| series.name.kind.is_scheduler() || subject.engine < first_beyond);
    }
    let dropped = before - named.len();
    (named, kept.saturating_sub(dropped))
}

/// What names no engine, at a port where data-parallel ranks are, is counted by the process before them for all of them: each
/// gets an even share. In an answer that isn't whole nobody knows how many there are.
fn share_among_ranks(raw: Vec<RawSeries>) -> Vec<RawSeries> {
    if !raw.iter().any(|series| series.is_rank) {
        return raw;
    }
    let mut ranks: BTreeMap<Option<u16>, BTreeSet<Arc<str>>> = BTreeMap::new();
    for series in raw.iter().filter(|series| series.is_rank) {
        ranks.entry(series.port).or_default().extend(series.engine.clone());
    }
    let mut shared = Vec::with_capacity(raw.len());
    for series in raw {
        let is_orphan = series.engine.is_none() && series.name.kind == Kind::Counter;
        let Some(ranks) = ranks.get(&series.port).filter(|_| is_orphan) else {
            shared.push(series);
            continue;
        };
        if series.part.is_cut {
            continue;
        }
        let share = 1.0 / ranks.len() as f64;
        shared.extend(ranks.iter().map(|rank| {
            let samples = series.samples.iter().map(|one| Sample { value: one.value * share, ..*one });
            RawSeries { engine: Some(rank.clone()), samples: samples.collect(), ..series.clone() }
        }));
    }
    shared
}

/// The engine labels that were seen at several ports of the pod.
fn at_several_ports(raw: &[RawSeries]) -> BTreeSet<Arc<str>> {
    let mut ports: BTreeMap<&Arc<str>, u16> = BTreeMap::new();
    let mut several = BTreeSet::new();
    for series in raw {
        if let (Some(engine), Some(port)) = (&series.engine, series.port)
            && *ports.entry(engine).or_insert(port) != port
        {
            several.insert(engine.clone());
        }
    }
    several
}

/// Gives a cache configuration that names no engine to the only one at its port. Kept by itself it would be another
/// engine, of which nothing else is ever heard.
fn attach_cache_config(mut raw: Vec<RawSeries>) -> Vec<RawSeries> {
    let is_orphan = |series: &RawSeries| series.name.kind == Kind::CacheConfig && series.engine.is_none();
    let wanted: BTreeSet<_> = raw.iter().filter(|series| is_orphan(series)).map(|one| one.port).collect();
    if wanted.is_empty() {
        return raw;
    }
    let mut engines: BTreeMap<_, BTreeSet<Arc<str>>> = BTreeMap::new();
    for series in raw.iter().filter(|series| !series.name.kind.is_scheduler()) {
        if let Some(engine) = series.engine.as_ref().filter(|_| wanted.contains(&series.port)) {
            engines.entry(series.port).or_default().insert(engine.clone());
        }
    }
    raw.retain_mut(|series| {
        let known = engines.get(&series.port).filter(|_| is_orphan(series));
        if let Some(known) = known {
            series.engine = known.first().cloned();
        }
        known.is_none_or(|known| known.len() == 1)
    });
    raw
}

fn subject(series: &RawSeries, several: &BTreeSet<Arc<str>>) -> Subject {
    if series.name.kind.is_scheduler() {
        return Subject { engine: Arc::default(), model: series.model.clone(), to: None };
    }
    let engine = match (&series.engine, series.port) {
        (Some(engine), Some(port)) if several.contains(engine) => format!("{port}/{engine}").into(),
        (Some(engine), _) => engine.clone(),
        (None, Some(port)) => port.to_string().into(),
        (None, None) => Arc::default(),
    };
    Subject { engine, model: None, to: None }
}

/// Everything known of one name of one subject.
struct Named {
    name: &'static Name,
    port: Option<u16>,
    model: Option<Arc<str>>,
    samples: Vec<Sample>,
}

/// One series a name of a subject. What a scheduler gave out is the sum of what it gave to each receiver.
fn one_each(named: Vec<(Subject, RawSeries)>) -> Vec<(Subject, Named)> {
    let (shares, mut totals): (Vec<_>, Vec<_>) =
        named.into_iter().partition(|(subject, _)| subject.to.is_some());
    let mut all = Vec::with_capacity(totals.len());
    for (subject, share) in each_whole(shares) {
        totals.push((Subject { to: None, ..subject.clone() }, share.clone()));
        all.push((subject, share));
    }
    all.extend(each_whole(totals));
    let named =
        |RawSeries { name, port, model, samples, .. }: RawSeries| Named { name, port, model, samples };
    all.into_iter().map(|(subject, series)| (subject, named(series))).collect()
}

fn each_whole(mut named: Vec<(Subject, RawSeries)>) -> Vec<(Subject, RawSeries)> {
    named.sort_by(|(one, a), (other, b)| (one, a.name.text).cmp(&(other, b.name.text)));
    let mut all = Vec::new();
    let mut named = named.into_iter().peekable();
    while let Some((subject, first)) = named.next() {
        let name = first.name;
        let mut series = vec![first];
        while let Some((_, next)) = named.next_if(|(other, next)| *other == subject && next.name == name) {
            series.push(next);
        }
        all.extend(parts::whole(series).map(|whole| (subject, whole)));
    }
    all
}

/// Leaves out what engines say since they fell asleep. That they sleep is kept where they do.
fn without_sleepers(mut series: Vec<Series>) -> Vec<Series> {
    let mut asleep: BTreeMap<Arc<str>, Timestamp> = BTreeMap::new();
    series.retain(|one| {
        if one.signal != Signal::Asleep {
            return true;
        }
        let since = one.samples.iter().rev().take_while(|sample| sample.value > 0.0).last();
        since.is_some_and(|since| asleep.insert(one.engine.clone(), since.at).is_none())
    });
    if asleep.is_empty() {
        return series;
    }
    series.retain_mut(|one| {
        let is_engines = !signals::is_schedulers(one.signal) && one.signal != Signal::Asleep;
        if let Some(since) = asleep.get(&one.engine).filter(|_| is_engines) {
            one.samples.retain(|sample| sample.at < *since);
        }
        !one.samples.is_empty()
    });
    series
}

/// Of every ratio (or single signal) of every subject, the generation of names that counts.
fn choose_names(mut named: Vec<(Subject, Named)>) -> impl Iterator<Item = (Subject, Named)> {
    fn ratio((subject, named): &(Subject, Named)) -> (&Subject, Signal) {
        (subject, signals::couple(named.name.signal))
    }
    named.sort_by(|a, b| (ratio(a), a.1.name.generation).cmp(&(ratio(b), b.1.name.generation)));
    let mut best = Vec::with_capacity(named.len());
    for names in named.chunk_by(|one, other| ratio(one) == ratio(other)) {
        let generation = best_generation(names);
        best.extend(names.iter().map(|(_, named)| Some(named.name.generation) == generation));
    }
    named.into_iter().zip(best).filter_map(|(named, best)| best.then_some(named))
}

/// The most complete generation, of these the one with the newest sample, of these the newest name.
fn best_generation(names: &[(Subject, Named)]) -> Option<u8> {
    let generations = names.chunk_by(|(_, one), (_, other)| one.name.generation == other.name.generation);
    let rank = |names: &&[(Subject, Named)]| {
        let newest = names.iter().filter_map(|(_, named)| named.samples.last()).map(|sample| sample.at).max();
        let age = names.first().map(|(_, named)| named.name.generation);
        (names.len(), newest, Reverse(age))
    };
    generations.max_by_key(rank).and_then(|names| names.first()).map(|(_, named)| named.name.generation)
}

#[cfg(test)]
mod tests;
