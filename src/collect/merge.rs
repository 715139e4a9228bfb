//! From raw series to one series a signal: who it is about, which of two copies counts, which of two names counts, and
//! what adds up. Pure; both sources end here.
//!
//! - *Who*: namespace, pod and engine. The engine is its `engine` label, else its port, else empty. Data-parallel
//!   processes at several ports of one pod may all call themselves engine 0: then the name is `port/engine`.
//!   Older vLLM leaves the label out of its cache configuration alone: that is the only engine's at the same port, and
//!   nobody's when there are several.
//! - *Copies*: series that say the same of the same process (an HA pair of Prometheus, two scrape jobs): the one with
//!   the newest sample counts, whole. Copies are never interleaved, because their clocks and offsets differ.
//! - *Hearsay*: what a pod says of itself wins over what a collector says of it.
//! - *Names*: a ratio's halves come from one generation of names; the newest name that is complete counts, unless an
//!   older one has a newer sample (an engine that was rolled back).
//! - *Parts*: what the scheduler counts by flow, priority or endpoint is added up to one series a model; what it counts by
//!   endpoint, beside that, to one an endpoint.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use wva_core::snapshot::{Sample, Signal};

use super::signals::{self, Kind, Name};
use crate::engine::{Receiver, Series};

/// One series as a source found it; its samples are oldest first and possible. Names are shared: there are many series
/// of each.
#[derive(Debug, Clone)]
pub(super) struct RawSeries {
    pub(super) name: &'static Name,
    pub(super) namespace: Arc<str>,
    pub(super) pod: Arc<str>,
    /// The `engine` label.
    pub(super) engine: Option<Arc<str>>,
    /// The port it was scraped at.
    pub(super) port: Option<u16>,
    pub(super) model: Option<Arc<str>>,
    /// The scheduler's own labels that distinguish parts of one total; empty for engines.
    pub(super) part: Box<str>,
    /// Whom the scheduler counts it for.
    pub(super) to: Option<Receiver>,
    /// A collector says it of a pod that it isn't.
    pub(super) is_relayed: bool,
    /// Every other label, hashed, so that equal copies are chosen the same way each time.
    pub(super) origin: u64,
    pub(super) samples: Vec<Sample>,
}

impl RawSeries {
    fn newest(&self) -> Option<Timestamp> {
        self.samples.last().map(|sample| sample.at)
    }

    /// Which of two copies counts: more wins.
    fn rank(&self) -> (Option<Timestamp>, usize, u64) {
        (self.newest(), self.samples.len(), self.origin)
    }
}

/// One series a signal and process; series without a sample are left out. Pods have nothing to do with each other, so
/// each is merged by itself.
pub(super) fn merge(raw: Vec<RawSeries>) -> Vec<Series> {
    let mut pods: HashMap<(Arc<str>, Arc<str>), Vec<RawSeries>> = HashMap::new();
    for series in raw {
        pods.entry((series.namespace.clone(), series.pod.clone())).or_default().push(series);
    }
    let mut pods: Vec<_> = pods.into_iter().collect();
    pods.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    let mut merged = Vec::new();
    for ((namespace, pod), raw) in pods {
        let raw = prefer_direct(raw);
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
        merged.extend(choose_names(add_parts(choose_copies(raw))).map(series));
    }
    merged
}

/// What a pod says of itself wins over what a collector says of it, whatever engine that names.
fn prefer_direct(mut raw: Vec<RawSeries>) -> Vec<RawSeries> {
    let is_engine = |series: &RawSeries| !series.name.kind.is_scheduler();
    let direct = |series: &RawSeries| is_engine(series) && !series.is_relayed && !series.samples.is_empty();
    if raw.iter().any(|series| series.is_relayed) && raw.iter().any(direct) {
        raw.retain(|series| !series.is_relayed);
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

/// The series that count, with whom they are about; those of one name of one subject together.
fn choose_copies(raw: Vec<RawSeries>) -> Vec<(Subject, RawSeries)> {
    let several = at_several_ports(&raw);
    let raw = attach_cache_config(raw).into_iter().filter(|series| !series.samples.is_empty());
    let mut copies: Vec<_> = raw
        .flat_map(|series| {
            let all = subject(&series, &several);
            let share = series.to.clone().map(|to| (Subject { to: Some(to), ..all.clone() }, series.clone()));
            share.into_iter().chain([(all, series)])
        })
        .collect();
    let same = |(one, a): &(Subject, RawSeries), (other, b): &(Subject, RawSeries)| {
        (one, a.name.text, &a.part).cmp(&(other, b.name.text, &b.part))
    };
    copies.sort_by(|a, b| same(a, b).then_with(|| b.1.rank().cmp(&a.1.rank())));
    copies.dedup_by(|later, first| same(later, first) == Ordering::Equal);
    copies
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

fn add_parts(copies: Vec<(Subject, RawSeries)>) -> Vec<(Subject, Named)> {
    let mut named = Vec::with_capacity(copies.len());
    let mut copies = copies.into_iter().peekable();
    while let Some((subject, first)) = copies.next() {
        let (name, port, model) = (first.name, first.port, first.model.clone());
        let mut parts = vec![first];
        while let Some((_, part)) = copies.next_if(|(other, next)| *other == subject && next.name == name) {
            parts.push(part);
        }
        let samples = match &mut parts[..] {
            [alone] => std::mem::take(&mut alone.samples),
            parts => total(name.kind, parts),
        };
        named.push((subject, Named { name, port, model, samples }));
    }
    named
}

/// The sum of parts at every moment that any of them was measured. A part without a sample at that moment counts as
/// nothing when it is a gauge (the queue is gone), and with its last value when it is a counter (it still counts).
fn total(kind: Kind, parts: &[RawSeries]) -> Vec<Sample> {
    let moments: BTreeSet<Timestamp> = parts.iter().flat_map(|p| p.samples.iter().map(|s| s.at)).collect();
    let value_at = |part: &RawSeries, at: Timestamp| -> f64 {
        let known = part.samples.partition_point(|sample| sample.at <= at);
        let newest = known.checked_sub(1).and_then(|index| part.samples.get(index));
        match newest {
            Some(sample) if sample.at == at || kind == Kind::SchedulerSuccesses => sample.value,
            _ => 0.0,
        }
    };
    let sum = |at| Sample { at, value: parts.iter().map(|part| value_at(part, at)).sum() };
    moments.into_iter().map(sum).collect()
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
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn raw(name: &str, engine: Option<&str>, port: Option<u16>, samples: &[(i64, f64)]) -> RawSeries {
        RawSeries {
            name: signals::find(name).unwrap(),
            namespace: "llm".into(),
            pod: "pod-0".into(),
            engine: engine.map(Into::into),
            port,
            model: Some("m".into()),
            part: Box::default(),
            to: None,
            is_relayed: false,
            origin: 0,
            samples: samples.iter().map(|&(s, value)| Sample { at: at(s), value }).collect(),
        }
    }

    fn values(series: &[Series], signal: Signal) -> Vec<f64> {
        let found = series.iter().filter(|series| series.signal == signal);
        found.flat_map(|series| series.samples.iter().map(|sample| sample.value)).collect()
    }

    #[test]
    fn of_two_copies_the_one_with_the_newest_sample_counts_and_is_not_mixed_with_the_other() {
        let mut first = raw("vllm:num_requests_waiting", Some("0"), Some(8000), &[(0, 1.0), (15, 2.0)]);
        let mut second = raw("vllm:num_requests_waiting", Some("0"), Some(8000), &[(7, 10.0), (22, 20.0)]);
        first.origin = 1;
        second.origin = 2;
        for order in [[first.clone(), second.clone()], [second, first]] {
            let merged = merge(order.into());
            assert_eq!(merged.len(), 1);
            assert_eq!(values(&merged, Signal::Waiting), [10.0, 20.0]);
        }
    }

    #[test]
    fn the_new_name_counts_when_an_engine_exposes_both() {
        let merged = merge(vec![
            raw("vllm:gpu_cache_usage_perc", Some("0"), None, &[(0, 0.2)]),
            raw("vllm:kv_cache_usage_perc", Some("0"), None, &[(0, 0.4)]),
        ]);
        assert_eq!(values(&merged, Signal::KvUsage), [0.4]);
    }

    #[test]
    fn an_old_name_alone_is_enough_and_counts_again_after_a_roll_back() {
        let old = raw("vllm:gpu_cache_usage_perc", Some("0"), None, &[(30, 0.2)]);
        assert_eq!(values(&merge(vec![old.clone()]), Signal::KvUsage), [0.2]);
        let before = raw("vllm:kv_cache_usage_perc", Some("0"), None, &[(0, 0.9)]);
        assert_eq!(values(&merge(vec![before, old]), Signal::KvUsage), [0.2]);
    }

    #[test]
    fn the_halves_of_a_ratio_never_come_from_two_names() {
        let merged = merge(vec![
            raw("vllm:prefix_cache_hits_total", Some("0"), None, &[(0, 1.0)]),
            raw("vllm:gpu_prefix_cache_hits", Some("0"), None, &[(0, 50.0)]),
            raw("vllm:gpu_prefix_cache_queries", Some("0"), None, &[(0, 100.0)]),
        ]);
        assert_eq!(values(&merged, Signal::PrefixCacheHits), [50.0]);
        assert_eq!(values(&merged, Signal::PrefixCacheQueries), [100.0]);
    }

    #[test]
    fn engines_with_one_number_at_several_ports_stay_apart() {
        let merged = merge(vec![
            raw("vllm:num_requests_waiting", Some("0"), Some(8000), &[(0, 1.0)]),
            raw("vllm:num_requests_waiting", Some("0"), Some(8001), &[(0, 2.0)]),
        ]);
        let engines: Vec<_> = merged.iter().map(|series| &*series.engine).collect();
        assert_eq!(engines, ["8000/0", "8001/0"]);
    }

    #[test]
    fn an_engine_without_a_label_is_named_by_its_port() {
        let merged = merge(vec![raw("vllm:num_requests_waiting", None, Some(8000), &[(0, 1.0)])]);
        assert_eq!(&*merged[0].engine, "8000");
    }

    #[test]
    fn a_cache_configuration_without_an_engine_is_the_only_engines_at_its_port_and_no_engine_of_its_own() {
        let config = |port| raw("vllm:cache_config_info", None, Some(port), &[(0, 432_000.0)]);
        let waiting = |engine, port| raw("vllm:num_requests_waiting", Some(engine), Some(port), &[(0, 1.0)]);
        let engines = |raw| -> Vec<(Signal, String)> {
            merge(raw).into_iter().map(|series| (series.signal, series.engine.to_string())).collect()
        };
        let mut found = engines(vec![config(8000), waiting("0", 8000)]);
        found.sort();
        let mut wanted = [(Signal::KvCapacity, "0".to_owned()), (Signal::Waiting, "0".to_owned())];
        wanted.sort();
        assert_eq!(found, wanted);
        let ranks = engines(vec![config(8000), waiting("0", 8000), config(8001), waiting("0", 8001)]);
        let names: BTreeSet<_> = ranks.into_iter().map(|(_, engine)| engine).collect();
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["8000/0", "8001/0"]);
        let several = engines(vec![config(8000), waiting("0", 8000), waiting("1", 8000)]);
        assert!(several.iter().all(|(signal, _)| *signal == Signal::Waiting), "whose it is can't be known");
        let alone = raw("vllm:num_requests_waiting", None, Some(8000), &[(0, 1.0)]);
        assert!(engines(vec![config(8000), alone]).iter().all(|(_, engine)| *engine == *"8000"));
    }

    #[test]
    fn the_schedulers_parts_add_up_by_model_and_a_counter_keeps_what_it_had() {
        let part = |text, name: &str, samples: &[(i64, f64)]| RawSeries {
            part: Box::from(text),
            ..raw(name, None, Some(9090), samples)
        };
        let queue = "inference_extension_flow_control_queue_size";
        let attempts = "inference_extension_scheduler_attempts_total";
        let merged = merge(vec![
            part("priority=0", queue, &[(0, 3.0), (15, 3.0)]),
            part("priority=1", queue, &[(0, 2.0)]),
            part("pod_name=a", attempts, &[(0, 100.0), (15, 110.0)]),
            part("pod_name=b", attempts, &[(0, 7.0)]),
        ]);
        assert_eq!(values(&merged, Signal::SchedulerQueueSize), [5.0, 3.0]);
        assert_eq!(values(&merged, Signal::SchedulerAttempts), [107.0, 117.0]);
        assert!(merged.iter().all(|series| series.model.as_deref() == Some("m")));
    }

    #[test]
    fn what_the_scheduler_gave_out_is_counted_for_the_model_and_for_each_receiver() {
        let to = |pod: &str, priority: &str, value| RawSeries {
            part: format!("{pod} {priority}").into(),
            to: Some(Receiver { pod: pod.into(), port: Some(8000) }),
            ..raw("llm_d_epp_scheduler_attempts_total", None, Some(9090), &[(0, value)])
        };
        let mut copy = to("a", "0", 99.0);
        copy.samples.insert(0, Sample { at: at(-15), value: 98.0 });
        let merged = merge(vec![to("a", "0", 1.0), copy, to("a", "1", 2.0), to("b", "0", 4.0)]);
        let counted = |pod: Option<&str>| {
            let about = |one: &&Series| one.to.as_ref().map(|to| &*to.pod) == pod;
            let found: Vec<_> = merged.iter().filter(about).collect();
            assert_eq!(found.len(), 1, "{pod:?}");
            found[0].samples.last().unwrap().value
        };
        assert_eq!((counted(Some("a")), counted(Some("b")), counted(None)), (101.0, 4.0, 105.0));
    }
}
