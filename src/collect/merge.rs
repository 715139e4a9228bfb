//! From raw series to one series a signal: who it is about, which of two copies counts, which of two names counts, and
//! what adds up. Pure; both sources end here.
//!
//! - *Who*: namespace, pod and engine. The engine is its `engine` label, else its port, else empty. Data-parallel
//!   processes at several ports of one pod may all call themselves engine 0: then the name is `port/engine`.
//!   Older vLLM leaves the label out of its cache configuration alone: that is the only engine's at the same port, and
//!   nobody's when there are several.
//! - *Copies*: series that say the same of the same process (an HA pair of Prometheus, two scrape jobs): the one with
//!   the newest sample counts, whole. Copies are never interleaved, because their clocks and offsets differ.
//! - *Names*: a ratio's halves come from one generation of names; the newest name that is complete counts, unless an
//!   older one has a newer sample (an engine that was rolled back).
//! - *Parts*: what the scheduler counts by flow, priority or endpoint is added up to one series a model.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use wva_core::snapshot::{Sample, Signal};

use super::signals::{self, Kind, Name};
use crate::engine::Series;

/// One series as a source found it; its samples are oldest first and possible.
#[derive(Debug, Clone)]
pub(super) struct RawSeries {
    pub(super) name: &'static Name,
    pub(super) namespace: String,
    pub(super) pod: String,
    /// The `engine` label.
    pub(super) engine: Option<String>,
    /// The port it was scraped at.
    pub(super) port: Option<u16>,
    pub(super) model: Option<String>,
    /// The scheduler's own labels that distinguish parts of one total; empty for engines.
    pub(super) part: String,
    /// Every other label, so that equal copies are chosen the same way each time.
    pub(super) origin: String,
    pub(super) samples: Vec<Sample>,
}

impl RawSeries {
    fn newest(&self) -> Option<Timestamp> {
        self.samples.last().map(|sample| sample.at)
    }

    /// Which of two copies counts: more wins.
    fn rank(&self) -> (Option<Timestamp>, usize, &str) {
        (self.newest(), self.samples.len(), &self.origin)
    }
}

/// The process or the scheduler's model that a series is about.
type Subject = (String, String, String, Option<String>);

/// One series a signal and process; series without a sample are left out.
pub(super) fn merge(raw: Vec<RawSeries>) -> Vec<Series> {
    let ports = ports_by_engine(&raw);
    let raw = attach_cache_config(raw);
    let mut copies: BTreeMap<(Subject, &'static str, String), RawSeries> = BTreeMap::new();
    for series in raw.into_iter().filter(|series| !series.samples.is_empty()) {
        let key = (subject(&series, &ports), series.name.text, series.part.clone());
        match copies.get_mut(&key) {
            Some(known) if known.rank() >= series.rank() => {}
            Some(known) => *known = series,
            None => {
                copies.insert(key, series);
            }
        }
    }
    choose_names(add_parts(copies))
}

type Ports = BTreeMap<(String, String, String), BTreeSet<u16>>;

/// The ports at which each (namespace, pod, engine label) was seen.
fn ports_by_engine(raw: &[RawSeries]) -> Ports {
    let mut ports = Ports::new();
    for series in raw {
        if let (Some(engine), Some(port)) = (&series.engine, series.port) {
            let key = (series.namespace.clone(), series.pod.clone(), engine.clone());
            ports.entry(key).or_default().insert(port);
        }
    }
    ports
}

/// Gives a cache configuration that names no engine to the only one at its port. Kept by itself it would be another
/// engine, of which nothing else is ever heard.
fn attach_cache_config(mut raw: Vec<RawSeries>) -> Vec<RawSeries> {
    let place = |series: &RawSeries| (series.namespace.clone(), series.pod.clone(), series.port);
    let is_orphan = |series: &RawSeries| series.name.kind == Kind::CacheConfig && series.engine.is_none();
    let wanted: BTreeSet<_> = raw.iter().filter(|series| is_orphan(series)).map(place).collect();
    if wanted.is_empty() {
        return raw;
    }
    let mut engines: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
    for series in raw.iter().filter(|series| !series.name.kind.is_scheduler()) {
        let at = place(series);
        if let Some(engine) = series.engine.as_ref().filter(|_| wanted.contains(&at)) {
            engines.entry(at).or_default().insert(engine.clone());
        }
    }
    raw.retain_mut(|series| {
        let known = engines.get(&place(series)).filter(|_| is_orphan(series));
        if let Some(known) = known {
            series.engine = known.first().cloned();
        }
        known.is_none_or(|known| known.len() == 1)
    });
    raw
}

fn subject(series: &RawSeries, ports: &Ports) -> Subject {
    let (namespace, pod) = (series.namespace.clone(), series.pod.clone());
    if series.name.kind.is_scheduler() {
        return (namespace, pod, String::new(), series.model.clone());
    }
    let engine = match (&series.engine, series.port) {
        (Some(engine), Some(port)) => {
            let key = (namespace.clone(), pod.clone(), engine.clone());
            let several = ports.get(&key).is_some_and(|ports| ports.len() > 1);
            if several { format!("{port}/{engine}") } else { engine.clone() }
        }
        (Some(engine), None) => engine.clone(),
        (None, Some(port)) => port.to_string(),
        (None, None) => String::new(),
    };
    (namespace, pod, engine, None)
}

/// Everything known of one name of one subject.
struct Named {
    name: &'static Name,
    model: Option<String>,
    samples: Vec<Sample>,
}

fn add_parts(copies: BTreeMap<(Subject, &'static str, String), RawSeries>) -> Vec<(Subject, Named)> {
    let mut groups: BTreeMap<(Subject, &'static str), Vec<RawSeries>> = BTreeMap::new();
    for ((subject, text, _), series) in copies {
        groups.entry((subject, text)).or_default().push(series);
    }
    let named = |((subject, _), mut parts): ((Subject, &'static str), Vec<RawSeries>)| {
        let first = parts.pop()?;
        let (name, model) = (first.name, first.model.clone());
        let samples = if parts.is_empty() {
            first.samples
        } else {
            parts.push(first);
            total(name.kind, &parts)
        };
        Some((subject, Named { name, model, samples }))
    };
    groups.into_iter().filter_map(named).collect()
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

/// The halves of one ratio (or one single signal) in one generation of names.
type Generation = BTreeMap<Signal, Named>;

fn choose_names(named: Vec<(Subject, Named)>) -> Vec<Series> {
    let mut choices: BTreeMap<(Subject, Signal), BTreeMap<u8, Generation>> = BTreeMap::new();
    for (subject, named) in named {
        let couple = signals::couple(named.name.signal);
        let generations = choices.entry((subject, couple)).or_default();
        generations.entry(named.name.generation).or_default().insert(named.name.signal, named);
    }
    let mut series = Vec::new();
    for (((namespace, pod, engine, _), _), generations) in choices {
        let Some(best) = best_generation(generations) else { continue };
        series.extend(best.into_values().map(|named| Series {
            namespace: namespace.clone(),
            pod: pod.clone(),
            engine: engine.clone(),
            model: named.model,
            signal: named.name.signal,
            samples: named.samples,
        }));
    }
    series
}

/// The most complete generation, of these the one with the newest sample, of these the newest name.
fn best_generation(generations: BTreeMap<u8, Generation>) -> Option<Generation> {
    let newest = |generation: &Generation| {
        generation.values().filter_map(|named| named.samples.last()).map(|sample| sample.at).max()
    };
    let rank = |(age, generation): &(u8, Generation)| {
        (generation.len(), newest(generation), std::cmp::Reverse(*age))
    };
    generations.into_iter().max_by_key(rank).map(|(_, generation)| generation)
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
            part: String::new(),
            origin: String::new(),
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
        first.origin = "a".into();
        second.origin = "b".into();
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
        let engines: Vec<_> = merged.iter().map(|series| series.engine.as_str()).collect();
        assert_eq!(engines, ["8000/0", "8001/0"]);
    }

    #[test]
    fn an_engine_without_a_label_is_named_by_its_port() {
        let merged = merge(vec![raw("vllm:num_requests_waiting", None, Some(8000), &[(0, 1.0)])]);
        assert_eq!(merged[0].engine, "8000");
    }

    #[test]
    fn a_cache_configuration_without_an_engine_is_the_only_engines_at_its_port_and_no_engine_of_its_own() {
        let config = |port| raw("vllm:cache_config_info", None, Some(port), &[(0, 432_000.0)]);
        let waiting = |engine, port| raw("vllm:num_requests_waiting", Some(engine), Some(port), &[(0, 1.0)]);
        let engines = |raw| -> Vec<(Signal, String)> {
            merge(raw).into_iter().map(|series| (series.signal, series.engine)).collect()
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
        assert!(engines(vec![config(8000), alone]).iter().all(|(_, engine)| engine == "8000"));
    }

    #[test]
    fn the_schedulers_parts_add_up_by_model_and_a_counter_keeps_what_it_had() {
        let part = |text, name: &str, samples: &[(i64, f64)]| RawSeries {
            part: String::from(text),
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
}
