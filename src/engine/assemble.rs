//! Joins what the source answered with what the cluster looks like into one snapshot. Pure.
//!
//! A series of a pod that no longer exists is a ghost: the join with the pod list drops it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;
use smol_str::SmolStr;
use wva_core::Snapshot;
use wva_core::model::GroupId;
use wva_core::quality::engines_of;
use wva_core::snapshot::{ModelGroup, Replica, Sample, Signal, Signals, SourceHealth};

use super::ports::{ClusterView, Collected, MAX_ENGINES_OF_A_POD, Series, SourceError};

/// The snapshot of one evaluation.
#[must_use]
pub fn assemble(view: &ClusterView, answer: Result<Collected, SourceError>, now: Timestamp) -> Snapshot {
    let mut groups = groups_of(view, &answer);
    if let Ok(collected) = answer {
        join(&mut groups, collected.series);
    }
    let (invalid, inventory, elsewhere) =
        (view.invalid.clone(), view.inventory.clone(), view.elsewhere.clone());
    Snapshot { now, groups, invalid, inventory, elsewhere }
}

fn groups_of(view: &ClusterView, answer: &Result<Collected, SourceError>) -> BTreeMap<GroupId, ModelGroup> {
    let mut groups: BTreeMap<GroupId, ModelGroup> = BTreeMap::new();
    for state in &view.variants {
        let id = state.variant.group();
        let group = groups.entry(id).or_insert_with_key(|id| ModelGroup {
            source: health(answer, &id.namespace),
            variants: Vec::new(),
            scheduler: Signals::default(),
        });
        group.variants.push(state.clone());
    }
    groups.values_mut().for_each(ModelGroup::sort);
    groups
}

fn health(answer: &Result<Collected, SourceError>, namespace: &str) -> SourceHealth {
    match answer {
        Err(error) => SourceHealth::Down { cause: error.message.clone() },
        Ok(collected) => {
            let concerns = |gap_namespace: Option<&str>| gap_namespace.is_none_or(|name| name == namespace);
            let gaps = collected.gaps.iter().filter(|gap| concerns(gap.namespace.as_deref()));
            let warnings: Vec<_> = gaps.map(|gap| gap.reason.clone()).collect();
            if warnings.is_empty() { SourceHealth::Complete } else { SourceHealth::Partial { warnings } }
        }
    }
}

/// A pod's place in the snapshot.
struct Pod<'a> {
    /// The model of its variant.
    model: &'a str,
    /// A series of it names that model. Then series of another one (a second engine in the pod) are left out; else every
    /// series counts, since a served name that differs from `modelID` is cosmetic.
    names_its_model: bool,
    replica: &'a mut Replica,
    /// The engines whose port is known, by port.
    ports: BTreeMap<u16, BTreeSet<SmolStr>>,
    /// What schedulers gave it, by port.
    given: BTreeMap<Option<u16>, Parts>,
}

/// The samples of what adds up.
type Parts = Vec<Vec<Sample>>;

/// A model's scheduler in the snapshot, and the parts that its queues are the sums of.
struct Scheduler<'a> {
    signals: &'a mut Signals,
    parts: BTreeMap<Signal, Parts>,
}

/// Pods and schedulers of a namespace, by pod and by model.
#[derive(Default)]
struct Places<'a> {
    pods: HashMap<SmolStr, Pod<'a>>,
    schedulers: HashMap<&'a str, Scheduler<'a>>,
}

/// Gives every series to the replica or the group it belongs to.
fn join(groups: &mut BTreeMap<GroupId, ModelGroup>, series: Vec<Series>) {
    let mut namespaces = places(groups);
    for one in &series {
        let pods = namespaces.get_mut(&*one.namespace).map(|places| &mut places.pods);
        if let Some(pod) = pods.and_then(|pods| pods.get_mut(&*one.pod)) {
            pod.names_its_model |= one.model.as_deref() == Some(pod.model);
        }
    }
    for one in series {
        let Some(places) = namespaces.get_mut(&*one.namespace) else { continue };
        if let Some(to) = &one.to {
            if let Some(pod) = places.pods.get_mut(&*to.pod)
                && one.model.as_deref() == Some(pod.model)
            {
                pod.given.entry(to.port).or_default().push(one.samples);
            }
        } else if is_scheduler(one.signal) {
            let model = one.model.as_deref().unwrap_or_default();
            if let Some(scheduler) = places.schedulers.get_mut(model) {
                scheduler.parts.entry(one.signal).or_default().push(one.samples);
            }
        } else if let Some(pod) = places.pods.get_mut(&*one.pod) {
            pod.add(one);
        }
    }
    for Places { pods, schedulers } in namespaces.into_values() {
        pods.into_values().for_each(Pod::share);
        for Scheduler { signals, parts } in schedulers.into_values() {
            for (signal, parts) in parts {
                signals.add(signal, sum_of(&parts));
            }
        }
    }
}

fn places(groups: &mut BTreeMap<GroupId, ModelGroup>) -> HashMap<&str, Places<'_>> {
    let mut namespaces: HashMap<&str, Places<'_>> = HashMap::new();
    for (id, group) in groups {
        let places = namespaces.entry(&id.namespace).or_default();
        for replica in group.variants.iter_mut().flat_map(|state| &mut state.replicas) {
            let name = replica.pod.clone();
            let (ports, given) = (BTreeMap::new(), BTreeMap::new());
            let pod = Pod { model: &id.model, names_its_model: false, replica, ports, given };
            places.pods.insert(name, pod);
        }
        let scheduler = Scheduler { signals: &mut group.scheduler, parts: BTreeMap::new() };
        places.schedulers.insert(&id.model, scheduler);
    }
    namespaces
}

impl Pod<'_> {
    fn add(&mut self, one: Series) {
        let foreign = one.model.is_some_and(|model| *model != *self.model);
        if foreign && self.names_its_model {
            return;
        }
        // A source says which pods show more, and drops the rest; here it is the bound of the work.
        if self.replica.engines.len() >= MAX_ENGINES_OF_A_POD
            && self.replica.engines.get(&one.engine).is_none()
        {
            return;
        }
        if let Some(port) = one.port {
            let engines = self.ports.entry(port).or_default();
            if !engines.contains(&*one.engine) {
                engines.insert((&*one.engine).into());
            }
        }
        self.replica.engines.or_default(&one.engine).add(one.signal, one.samples);
    }

    /// Gives its engines what the pod was given: each what came to its port, evenly where several answer at one. A port
    /// at which no engine is known is that of a proxy in the pod, which sends to all of them.
    fn share(self) {
        let Self { replica, ports, given, .. } = self;
        if given.is_empty() {
            return;
        }
        let all: Vec<SmolStr> = engines_of(replica).map(|(name, _)| name.clone()).collect();
        let mut parts: BTreeMap<&SmolStr, Parts> = BTreeMap::new();
        for (port, given) in given {
            let here = port.and_then(|port| ports.get(&port));
            let own: Vec<&SmolStr> =
                all.iter().filter(|name| here.is_some_and(|here| here.contains(*name))).collect();
            let engines = if own.is_empty() { all.iter().collect() } else { own };
            let share = 1.0 / engines.len() as f64;
            for engine in engines {
                let shares = given.iter().map(|samples| scaled(samples, share));
                parts.entry(engine).or_default().extend(shares);
            }
        }
        for (engine, parts) in parts {
            if let Some(signals) = replica.engines.get_mut(engine) {
                signals.add(Signal::SchedulerAttempts, sum_of(&parts));
            }
        }
    }
}

fn scaled(samples: &[Sample], share: f64) -> Vec<Sample> {
    samples.iter().map(|sample| Sample { value: sample.value * share, ..*sample }).collect()
}

fn is_scheduler(signal: Signal) -> bool {
    matches!(signal, Signal::SchedulerQueueSize | Signal::SchedulerQueueBytes | Signal::SchedulerAttempts)
}

/// One scheduler pod: its samples. Several: the sums of their newest values, of those before them and so on, each as
/// old as the oldest that it is made of.
fn sum_of(parts: &Parts) -> Vec<Sample> {
    let shortest = parts.iter().map(Vec::len).min().unwrap_or_default();
    let sum = |back: usize| {
        let samples = || parts.iter().filter_map(|one| one.iter().rev().nth(back));
        let at = samples().map(|sample| sample.at).min()?;
        Some(Sample { at, value: samples().map(|sample| sample.value).sum() })
    };
    (0..shortest).rev().filter_map(sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Gap, Receiver};
    use wva_core::analyze::finding::Analyzer;
    use wva_core::model::{Bounds, Compat, LatencyTargets, Role, TargetRef, Variant};
    use wva_core::snapshot::{Phase, Scale, Template, VariantState};
    use wva_core::units::{Cost, Replicas};
    use wva_core::{Memory, Policy, VariantId, decide, observe};

    fn now() -> Timestamp {
        "2026-11-21T12:00:00Z".parse().unwrap()
    }

    fn view() -> ClusterView {
        let variant = Variant {
            id: VariantId::new("llm", "llama"),
            model: "meta/llama".into(),
            target: TargetRef { kind: "Deployment".into(), name: "llama".into() },
            cost: Cost::new(10.0).unwrap(),
            bounds: Bounds::default(),
            accelerator: None,
            role: Role::Both,
        };
        let replica = Replica {
            pod: "llama-0".into(),
            phase: Phase::Ready,
            created: now(),
            ready_since: Some(now()),
            engines: wva_core::by_name::ByName::default(),
        };
        let state = VariantState {
            variant,
            scale: Some(Scale { spec: Replicas::ONE, current: Replicas::ONE, ready: Replicas::ONE }),
            replicas: vec![replica],
            last_status: None,
            template: Template::default(),
        };
        ClusterView { synced: true, variants: vec![state], ..ClusterView::default() }
    }

    fn series(pod: &str, model: &str, value: f64) -> Series {
        Series {
            namespace: "llm".into(),
            pod: pod.into(),
            engine: "0".into(),
            port: Some(8000),
            model: Some(model.into()),
            signal: Signal::KvUsage,
            to: None,
            samples: vec![Sample { at: now(), value }],
        }
    }

    fn engines(collected: Collected) -> Vec<f64> {
        let snapshot = assemble(&view(), Ok(collected), now());
        let group = snapshot.groups.values().next().unwrap();
        let engines = group.variants[0].replicas[0].engines.values();
        engines.filter_map(|signals| signals.newest(Signal::KvUsage)).map(|sample| sample.value).collect()
    }

    #[test]
    fn a_series_of_a_pod_that_is_gone_is_dropped() {
        let collected =
            Collected { series: vec![series("llama-9", "meta/llama", 0.9)], ..Collected::default() };
        assert_eq!(engines(collected), Vec::<f64>::new());
    }

    #[test]
    fn a_served_name_that_differs_from_the_model_id_does_not_hide_the_signal() {
        let collected = Collected { series: vec![series("llama-0", "llama", 0.5)], ..Collected::default() };
        assert_eq!(engines(collected), vec![0.5]);
    }

    #[test]
    fn a_second_model_in_the_same_pod_is_not_mixed_in() {
        let mut other = series("llama-0", "embedder", 0.9);
        other.engine = "1".into();
        let collected =
            Collected { series: vec![series("llama-0", "meta/llama", 0.5), other], ..Collected::default() };
        assert_eq!(engines(collected), vec![0.5]);
    }

    #[test]
    fn a_snapshot_has_the_inventory_of_the_view_and_what_others_use_of_it() {
        let gpus = |count| BTreeMap::from([("H100".into(), count)]);
        let view = ClusterView { inventory: Some(gpus(16)), elsewhere: gpus(3), ..view() };
        let snapshot = assemble(&view, Ok(Collected::default()), now());
        assert_eq!((snapshot.inventory, snapshot.elsewhere), (Some(gpus(16)), gpus(3)));
    }

    #[test]
    fn a_gap_makes_only_its_own_namespace_partial() {
        let gap = |namespace: &str| Gap { namespace: Some(namespace.into()), reason: "store is down".into() };
        let source_with = |gap| {
            let collected = Collected { gaps: vec![gap], ..Collected::default() };
            let snapshot = assemble(&view(), Ok(collected), now());
            snapshot.groups.into_values().next().unwrap().source
        };
        assert_eq!(source_with(gap("elsewhere")), SourceHealth::Complete);
        assert_eq!(source_with(gap("llm")), SourceHealth::Partial { warnings: vec!["store is down".into()] });
    }

    #[test]
    fn a_source_that_does_not_answer_is_down_for_every_group() {
        let error = SourceError { kind: "connect", message: "Prometheus at http://p: refused".into() };
        let snapshot = assemble(&view(), Err(error), now());
        let source = &snapshot.groups.values().next().unwrap().source;
        assert_eq!(*source, SourceHealth::Down { cause: "Prometheus at http://p: refused".into() });
    }

    #[test]
    fn queues_of_several_schedulers_add_up_and_are_as_old_as_the_oldest() {
        let queue = |pod: &str, age: i64, value| Series {
            signal: Signal::SchedulerQueueSize,
            samples: vec![Sample { at: now() - jiff::SignedDuration::from_secs(age), value }],
            ..series(pod, "meta/llama", 0.0)
        };
        let collected = Collected {
            series: vec![queue("epp-a", 1, 3.0), queue("epp-b", 9, 4.0)],
            ..Collected::default()
        };
        let snapshot = assemble(&view(), Ok(collected), now());
        let queue = snapshot.groups.values().next().unwrap().scheduler.newest(Signal::SchedulerQueueSize);
        let expected = Sample { at: now() - jiff::SignedDuration::from_secs(9), value: 7.0 };
        assert_eq!(queue, Some(expected));
    }

    /// A counter that has grown by `rate` a second for a minute and a half.
    fn grown(rate: f64) -> Vec<Sample> {
        let sample = |back: i32| {
            let at = now() - jiff::SignedDuration::from_secs(15 * i64::from(back));
            Sample { at, value: 1000.0 + rate * f64::from(15 * (6 - back)) }
        };
        (0..=6).rev().map(sample).collect()
    }

    /// What the scheduler gave to `pod`, two a second.
    fn given(pod: &str, port: u16, model: &str) -> Series {
        Series {
            port: Some(9090),
            signal: Signal::SchedulerAttempts,
            to: Some(Receiver { pod: pod.into(), port: Some(port) }),
            samples: grown(2.0),
            ..series("epp-0", model, 0.0)
        }
    }

    fn at_port(engine: &str, port: u16) -> Series {
        Series { engine: engine.into(), port: Some(port), ..series("llama-0", "meta/llama", 0.5) }
    }

    /// By engine, what it had been given last.
    fn arrivals(series: Vec<Series>) -> Vec<(String, f64)> {
        let snapshot = assemble(&view(), Ok(Collected { series, ..Collected::default() }), now());
        let group = snapshot.groups.into_values().next().unwrap();
        let engines = &group.variants[0].replicas[0].engines;
        let newest = |(name, signals): (&SmolStr, &Signals)| {
            Some((name.to_string(), signals.newest(Signal::SchedulerAttempts)?.value))
        };
        engines.iter().filter_map(newest).collect()
    }

    #[test]
    fn what_a_scheduler_gave_to_a_port_is_of_the_engine_that_answers_there() {
        let engines = || [at_port("8000/0", 8000), at_port("8001/0", 8001)];
        let mut one = vec![given("llama-0", 8001, "meta/llama")];
        one.extend(engines());
        assert_eq!(arrivals(one), [("8001/0".to_owned(), 1180.0)]);
        let mut both = vec![given("llama-0", 8001, "meta/llama"), given("llama-0", 8000, "meta/llama")];
        both.extend(engines());
        assert_eq!(arrivals(both).len(), 2);
    }

    #[test]
    fn several_engines_behind_one_port_share_what_came_to_it_and_so_do_all_behind_a_proxy() {
        let halves = [("0".to_owned(), 590.0), ("1".to_owned(), 590.0)];
        for port in [8000, 443] {
            let behind = vec![at_port("0", 8000), at_port("1", 8000), given("llama-0", port, "meta/llama")];
            assert_eq!(arrivals(behind), halves, "port {port}");
        }
        let two = vec![
            at_port("0", 8000),
            given("llama-0", 443, "meta/llama"),
            given("llama-0", 444, "meta/llama"),
        ];
        assert_eq!(arrivals(two), [("0".to_owned(), 2360.0)], "two ports of the proxy add up");
    }

    #[test]
    fn what_was_given_to_another_pod_or_for_another_model_is_not_the_pods() {
        for other in [given("llama-9", 8000, "meta/llama"), given("llama-0", 8000, "embedder")] {
            assert_eq!(arrivals(vec![at_port("0", 8000), other]), []);
        }
        assert_eq!(arrivals(vec![given("llama-0", 8000, "meta/llama")]), [], "no engine is seen");
    }

    #[test]
    fn under_upstreams_rules_the_queueing_model_sees_what_the_scheduler_gave_to_each_replica() {
        let counters = [
            (Signal::RequestPromptTokensSum, 2000.0),
            (Signal::RequestPromptTokensCount, 2.0),
            (Signal::RequestGenerationTokensSum, 400.0),
            (Signal::RequestGenerationTokensCount, 2.0),
            (Signal::InterTokenLatencySum, 8.0),
            (Signal::InterTokenLatencyCount, 400.0),
            (Signal::TimeToFirstTokenSum, 0.2),
            (Signal::TimeToFirstTokenCount, 2.0),
        ];
        let counter = |(signal, rate)| Series { signal, samples: grown(rate), ..at_port("0", 8000) };
        let mut policy = Policy { compat: Compat::Upstream, ..Policy::default() };
        policy.global.default.analyzer = Analyzer::QueueingModel;
        policy.global.default.queueing.targets = Some(LatencyTargets { ttft_ms: 2000.0, itl_ms: 100.0 });
        let demand = |attempts: Series| {
            let mut series = vec![at_port("0", 8000), attempts];
            series.push(Series { signal: Signal::Waiting, ..at_port("0", 8000) });
            series.extend(counters.map(counter));
            let snapshot = assemble(&view(), Ok(Collected { series, ..Collected::default() }), now());
            let outcome = decide(&snapshot, &observe(&snapshot, Memory::default()), &policy);
            let steps = outcome.report.groups.into_values().flat_map(|group| group.steps);
            let mut values = steps.flat_map(|step| step.values);
            values.find(|value| value.name == "demand").map(|value| value.value)
        };
        let whole = Series { to: None, ..given("llama-0", 8000, "meta/llama") };
        assert_eq!(demand(whole), Some(0.0), "nobody says to whom it went");
        assert_eq!(demand(given("llama-0", 8000, "meta/llama")), Some(2.0));
    }

    #[test]
    fn a_pod_with_a_hundred_thousand_engines_delays_nobody() {
        let mut all: Vec<Series> = (0..100_000).map(|n| at_port(&format!("{n:06}"), 8000)).collect();
        all.push(given("llama-0", 8000, "meta/llama"));
        let started = tokio::time::Instant::now();
        let arrivals = arrivals(all);
        let took = started.elapsed();
        assert!(took < std::time::Duration::from_secs(1), "{took:?}");
        assert_eq!(arrivals.len(), MAX_ENGINES_OF_A_POD);
    }
}
