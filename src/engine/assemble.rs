//! Joins what the source answered with what the cluster looks like into one snapshot. Pure.
//!
//! A series of a pod that no longer exists is a ghost: the join with the pod list drops it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use wva_core::Snapshot;
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
    Snapshot { now, groups, invalid: view.invalid.clone() }
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

/// Gives every series to the replica or the group it belongs to.
fn join(groups: &mut BTreeMap<GroupId, ModelGroup>, series: Vec<Series>) {
    let places = places(groups);
    let own_model = pods_naming_their_model(&places, &series);
    let mut queues: BTreeMap<(GroupId, Signal), Vec<Series>> = BTreeMap::new();
    for one in series {
        if is_scheduler(one.signal) {
            if let Some(model) = &one.model {
                let group = GroupId::new(&one.namespace, model);
                queues.entry((group, one.signal)).or_default().push(one);
            }
            continue;
        }
        let key = (one.namespace.clone(), one.pod.clone());
        let Some(place) = places.get(&key) else { continue };
        let foreign = one.model.as_ref().is_some_and(|model| *model != place.group.model);
        if foreign && own_model.contains(&key) {
            continue;
        }
        let Some(group) = groups.get_mut(&place.group) else { continue };
        let replica = &mut group.variants[place.variant].replicas[place.replica];
        replica.engines.entry(one.engine).or_default().add(one.signal, one.samples);
    }
    for ((id, signal), parts) in queues {
        if let Some(group) = groups.get_mut(&id) {
            group.scheduler.add(signal, sum_of(parts));
        }
    }
}

/// Where a pod's replica stands.
struct Place {
    group: GroupId,
    variant: usize,
    replica: usize,
}

fn places(groups: &BTreeMap<GroupId, ModelGroup>) -> BTreeMap<(String, String), Place> {
    let mut places = BTreeMap::new();
    for (id, group) in groups {
        for (variant, state) in group.variants.iter().enumerate() {
            for (replica, one) in state.replicas.iter().enumerate() {
                let place = Place { group: id.clone(), variant, replica };
                places.insert((id.namespace.clone(), one.pod.clone()), place);
            }
        }
    }
    places
}

/// The pods with a series that names the model of their variant. Of these, series of another model (a second engine in
/// the pod) are left out; of the others every series counts, since a served name that differs from `modelID` is cosmetic.
fn pods_naming_their_model(
    places: &BTreeMap<(String, String), Place>,
    series: &[Series],
) -> BTreeSet<(String, String)> {
    let mut pods = BTreeSet::new();
    for one in series {
        let key = (one.namespace.clone(), one.pod.clone());
        if places.get(&key).is_some_and(|place| one.model.as_ref() == Some(&place.group.model)) {
            pods.insert(key);
        }
    }
    pods
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
    use wva_core::snapshot::{Phase, Replica, VariantState};
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
            engines: BTreeMap::new(),
        };
        let state = VariantState { variant, scale: None, replicas: vec![replica], last_status: None };
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
