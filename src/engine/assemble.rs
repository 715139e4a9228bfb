//! Joins what the source answered with what the cluster looks like into one snapshot. Pure.
//!
//! A series of a pod that no longer exists is a ghost: the join with the pod list drops it.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use wva_core::Snapshot;
use wva_core::by_name::ByName;
use wva_core::model::GroupId;
use wva_core::snapshot::{ModelGroup, Sample, Signal, Signals, SourceHealth};

use super::ports::{ClusterView, Collected, Series, SourceError};

/// The snapshot of one evaluation.
#[must_use]
pub fn assemble(view: &ClusterView, answer: Result<Collected, SourceError>, now: Timestamp) -> Snapshot {
    let mut groups = groups_of(view, &answer);
    if let Ok(collected) = answer {
        join(&mut groups, collected.series);
    }
    Snapshot { now, groups, invalid: view.invalid.clone(), inventory: view.inventory.clone() }
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
    for group in groups.values_mut() {
        group.variants.sort_by(|a, b| a.variant.id.cmp(&b.variant.id));
    }
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
    engines: &'a mut ByName<Signals>,
}

/// A model's scheduler in the snapshot, and the parts that its queues are the sums of.
struct Scheduler<'a> {
    signals: &'a mut Signals,
    parts: BTreeMap<Signal, Vec<Series>>,
}

/// Pods and schedulers of a namespace, by pod and by model.
#[derive(Default)]
struct Places<'a> {
    pods: HashMap<&'a str, Pod<'a>>,
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
        if is_scheduler(one.signal) {
            let model = one.model.as_deref().unwrap_or_default();
            if let Some(scheduler) = places.schedulers.get_mut(model) {
                scheduler.parts.entry(one.signal).or_default().push(one);
            }
        } else if let Some(pod) = places.pods.get_mut(&*one.pod) {
            pod.add(one);
        }
    }
    let schedulers = namespaces.into_values().flat_map(|places| places.schedulers.into_values());
    for Scheduler { signals, parts } in schedulers {
        for (signal, parts) in parts {
            signals.add(signal, sum_of(parts));
        }
    }
}

fn places(groups: &mut BTreeMap<GroupId, ModelGroup>) -> HashMap<&str, Places<'_>> {
    let mut namespaces: HashMap<&str, Places<'_>> = HashMap::new();
    for (id, group) in groups {
        let places = namespaces.entry(&id.namespace).or_default();
        for replica in group.variants.iter_mut().flat_map(|state| &mut state.replicas) {
            let pod = Pod { model: &id.model, names_its_model: false, engines: &mut replica.engines };
            places.pods.insert(&replica.pod, pod);
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
        self.engines.or_default(&one.engine).add(one.signal, one.samples);
    }
}

fn is_scheduler(signal: Signal) -> bool {
    matches!(signal, Signal::SchedulerQueueSize | Signal::SchedulerQueueBytes | Signal::SchedulerAttempts)
}

/// One scheduler pod: its samples. Several: the sums of their newest values, of those before them and so on, each as
/// old as the oldest that it is made of.
fn sum_of(parts: Vec<Series>) -> Vec<Sample> {
    let shortest = parts.iter().map(|one| one.samples.len()).min().unwrap_or_default();
    let sum = |back: usize| {
        let samples = || parts.iter().filter_map(|one| one.samples.iter().rev().nth(back));
        let at = samples().map(|sample| sample.at).min()?;
        Some(Sample { at, value: samples().map(|sample| sample.value).sum() })
    };
    (0..shortest).rev().filter_map(sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Gap;
    use wva_core::VariantId;
    use wva_core::model::{Bounds, Role, TargetRef, Variant};
    use wva_core::snapshot::{Phase, Replica, Template, VariantState};
    use wva_core::units::Cost;

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
            engines: ByName::default(),
        };
        let state = VariantState {
            variant,
            scale: None,
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
            model: Some(model.into()),
            signal: Signal::KvUsage,
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
    fn a_snapshot_has_the_inventory_of_the_view() {
        let inventory = Some(BTreeMap::from([("H100".into(), 16)]));
        let view = ClusterView { inventory: inventory.clone(), ..view() };
        assert_eq!(assemble(&view, Ok(Collected::default()), now()).inventory, inventory);
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
}
