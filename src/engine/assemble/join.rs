//! Joins series to the replicas and models they belong to. Each model is joined separately, so that a failure affects only it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use smol_str::SmolStr;
use wva_core::model::GroupId;
use wva_core::quality::{MIN_FRESH_LIMIT, judged_engines};
use wva_core::snapshot::{ModelGroup, Pod, Sample, Signal, Signals, SourceHealth, VariantState};
use wva_core::units::Seconds;
use wva_core::{Snapshot, isolate};

use crate::engine::join_failure::JoinFailure;
use crate::engine::ports::{Labels, MAX_ENGINES_OF_A_POD, Series};
use crate::engine::samples::Samples;

/// Joins every series to its replica or group; those of other pods are dropped. The pods of no variant are counted in `unattributed`,
/// by namespace, where the source still measures them: it keeps the series of a deleted pod for minutes. A model whose series could not
/// be joined has none, and counts as measured incompletely.
pub(super) fn join(
    snapshot: &mut Snapshot,
    series: Vec<Series>,
    unattributed: &mut BTreeMap<SmolStr, u64>,
) -> Vec<JoinFailure> {
    let now = snapshot.now;
    let groups = &mut snapshot.groups;
    let addresses = addresses(groups);
    let place = |series: &Series| addresses.get(&*series.labels.namespace)?.place(series);
    // Counted first, because half of a list that grows is unused, and all series of a fleet are in memory here.
    let mut counts = vec![0; groups.len()];
    for (group, _) in series.iter().filter_map(place) {
        counts.get_mut(group).into_iter().for_each(|count| *count += 1);
    }
    let mut by_group: Vec<Vec<PlacedSeries>> = counts.into_iter().map(Vec::with_capacity).collect();
    let mut unknown = BTreeSet::new();
    let is_fresh = |sample: &Sample| Seconds::between(sample.at, now) <= MIN_FRESH_LIMIT;
    for series in series {
        let Some((group, pod)) = place(&series) else {
            if series.is_of_engine() && series.samples.last().is_some_and(|newest| is_fresh(&newest)) {
                unknown.insert((series.labels.namespace.clone(), series.labels.pod.clone()));
            }
            continue;
        };
        if let Some(placed) = by_group.get_mut(group) {
            placed.push(PlacedSeries { pod, series });
        }
    }
    let own: HashSet<(&str, &str)> = snapshot.undecided.iter().flat_map(named_pods).collect();
    for (namespace, pod) in &unknown {
        if let Some(count) = unattributed.get_mut(&**namespace)
            && !own.contains(&(&**namespace, &**pod))
        {
            *count += 1;
        }
    }
    let mut failures = Vec::new();
    for ((id, group), placed) in groups.iter_mut().zip(by_group) {
        let joined = isolate::caught(|| {
            #[cfg(test)]
            super::tests::break_down(id);
            join_group(&id.model, group, placed);
        });
        if let Err(cause) = joined {
            clear_series(group, &cause);
            let what = format!("model {} in namespace {}", id.model, id.namespace);
            failures.push(JoinFailure { what, cause });
        }
    }
    failures
}

/// The pods of a variant by namespace and name.
fn named_pods(state: &VariantState) -> impl Iterator<Item = (&str, &str)> {
    let namespace = state.variant.id.namespace.as_str();
    state.pods.iter().map(move |pod| (namespace, pod.name.as_str()))
}

/// Removes all series of a model whose join failed: a part of them would look complete.
fn clear_series(group: &mut ModelGroup, cause: &str) {
    for replica in group.variants.iter_mut().flat_map(|state| &mut state.pods) {
        replica.engines = wva_core::name_map::NameMap::default();
    }
    group.scheduler = Signals::default();
    let warning = format!("the metrics of the model could not be joined ({cause}); please report this");
    match &mut group.source {
        SourceHealth::Partial { warnings } => warnings.push(warning),
        source @ SourceHealth::Complete => *source = SourceHealth::Partial { warnings: vec![warning] },
        SourceHealth::Down { .. } => {}
    }
}

/// A series of a model.
struct PlacedSeries {
    /// The index of its pod among those of the model; `None` for a scheduler's totals.
    pod: Option<usize>,
    series: Series,
}

/// The pods and models of a namespace.
#[derive(Default)]
struct Addresses {
    /// The group of a pod, and its index there.
    pods: HashMap<SmolStr, (usize, usize)>,
    /// The group of a model.
    models: HashMap<SmolStr, usize>,
}

impl Addresses {
    /// The group of a series, and the index of its pod there.
    fn place(&self, series: &Series) -> Option<(usize, Option<usize>)> {
        let pod = |name: &str| self.pods.get(name).map(|(group, pod)| (*group, Some(*pod)));
        let labels = &series.labels;
        match &labels.destination {
            Some(destination) => pod(&destination.pod),
            None if series.is_of_scheduler() => {
                self.models.get(labels.model.as_deref().unwrap_or_default()).map(|group| (*group, None))
            }
            None => pod(&labels.pod),
        }
    }
}

fn addresses(groups: &BTreeMap<GroupId, ModelGroup>) -> HashMap<SmolStr, Addresses> {
    let mut namespaces: HashMap<SmolStr, Addresses> = HashMap::new();
    for (at, (id, group)) in groups.iter().enumerate() {
        let addresses = namespaces.entry(id.namespace.clone()).or_default();
        addresses.models.insert(id.model.clone(), at);
        let replicas = group.variants.iter().flat_map(|state| &state.pods);
        addresses.pods.extend(replicas.enumerate().map(|(pod, replica)| (replica.name.clone(), (at, pod))));
    }
    namespaces
}

/// A pod while its series are joined.
struct PodJoin<'a> {
    /// The model of its variant.
    model: &'a str,
    /// True when one of its series names that model. Then series of another model (of a second engine in the pod) are ignored;
    /// otherwise all count, because a served name may differ from `modelID`.
    names_its_model: bool,
    replica: &'a mut Pod,
    /// The engines whose port is known, by port.
    ports: BTreeMap<u16, BTreeSet<SmolStr>>,
    /// Requests that schedulers sent to it, by port.
    received: BTreeMap<Option<u16>, SampleLists>,
}

/// The samples of several series, to be added up.
type SampleLists = Vec<Samples>;

fn join_group(model: &str, group: &mut ModelGroup, placed: Vec<PlacedSeries>) {
    let replicas = group.variants.iter_mut().flat_map(|state| &mut state.pods);
    let mut pods: Vec<PodJoin<'_>> = replicas
        .map(|replica| PodJoin {
            model,
            names_its_model: false,
            replica,
            ports: BTreeMap::new(),
            received: BTreeMap::new(),
        })
        .collect();
    for PlacedSeries { pod, series } in
        placed.iter().filter(|placed| placed.series.labels.destination.is_none())
    {
        if let Some(pod) = pod.and_then(|pod| pods.get_mut(pod)) {
            pod.names_its_model |= series.labels.model.as_deref() == Some(model);
        }
    }
    let mut queues: BTreeMap<Signal, SampleLists> = BTreeMap::new();
    for PlacedSeries { pod, series } in placed {
        let Some(pod) = pod else {
            queues.entry(series.signal).or_default().push(series.samples);
            continue;
        };
        let Some(pod) = pods.get_mut(pod) else { continue };
        match &series.labels.destination {
            None => pod.add(series),
            Some(destination) if series.labels.model.as_deref() == Some(model) => {
                pod.received.entry(destination.port).or_default().push(series.samples);
            }
            Some(_) => {}
        }
    }
    pods.into_iter().for_each(PodJoin::attribute_requests);
    for (signal, lists) in queues {
        group.scheduler.add(signal, queue_of(&lists));
    }
}

impl PodJoin<'_> {
    fn add(&mut self, Series { labels, signal, samples }: Series) {
        let Labels { engine, port, model, .. } = &*labels;
        let is_of_other_model = model.as_ref().is_some_and(|model| **model != *self.model);
        if is_of_other_model && self.names_its_model {
            return;
        }
        // Sources report pods with more engines; here the limit bounds the work.
        if self.replica.engines.len() >= MAX_ENGINES_OF_A_POD && self.replica.engines.get(engine).is_none() {
            return;
        }
        if let Some(port) = port {
            let engines = self.ports.entry(*port).or_default();
            if !engines.contains(&**engine) {
                engines.insert((&**engine).into());
            }
        }
        self.replica.engines.or_default(engine).add(signal, samples.iter());
    }

    /// Attributes the pod's requests to its engines: to those at the port, evenly if there are several. A port without a known
    /// engine is that of a proxy in the pod, which sends to all engines. A scheduler may name any number of ports, so the requests
    /// to such ports are added up once, not for each engine.
    fn attribute_requests(self) {
        let Self { replica, ports, received, .. } = self;
        if received.is_empty() {
            return;
        }
        let all: Vec<SmolStr> = judged_engines(replica).map(|(name, _)| name.clone()).collect();
        let mut shares: BTreeMap<&SmolStr, SampleLists> = BTreeMap::new();
        let mut for_all = SampleLists::new();
        for (port, lists) in received {
            let at_port = port.and_then(|port| ports.get(&port));
            let engines: Vec<_> =
                all.iter().filter(|name| at_port.is_some_and(|names| names.contains(*name))).collect();
            if engines.is_empty() {
                for_all.extend(lists);
            } else {
                add_shares(&mut shares, &engines, &lists);
            }
        }
        add_shares(&mut shares, &all.iter().collect::<Vec<_>>(), &for_all);
        for (engine, lists) in shares {
            if let Some(signals) = replica.engines.get_mut(engine) {
                signals.add(Signal::SchedulerAttempts, sum_of(&lists));
            }
        }
    }
}

/// Adds an even share of the sum of `lists` to each of these engines.
fn add_shares<'e>(
    shares: &mut BTreeMap<&'e SmolStr, SampleLists>,
    engines: &[&'e SmolStr],
    lists: &SampleLists,
) {
    if lists.is_empty() {
        return;
    }
    let sum: Samples = sum_of(lists).into_iter().collect();
    let share = 1.0 / engines.len() as f64;
    for engine in engines {
        shares.entry(engine).or_default().push(sum.scaled(share));
    }
}

/// A scheduler whose newest sample is this much older than that of another one has stopped, or is not scraped.
const MAX_SCHEDULER_LAG: Seconds = Seconds::whole(30);

/// The queue of all schedulers. While one lags and the others hold requests, its last value is added to theirs; while they hold
/// none, its queue is unknown, and the sum is as old as its samples.
fn queue_of(lists: &SampleLists) -> Vec<Sample> {
    let newest = |list: &Samples| list.last().map(|sample| sample.at);
    let Some(last) = lists.iter().filter_map(newest).max() else { return Vec::new() };
    let is_behind =
        |list: &&Samples| newest(list).is_some_and(|at| Seconds::between(at, last) > MAX_SCHEDULER_LAG);
    let (behind, live): (Vec<_>, Vec<_>) = lists.iter().partition(is_behind);
    let held: f64 = behind.iter().filter_map(|list| list.last()).map(|sample| sample.value).sum();
    let live: SampleLists = live.into_iter().cloned().collect();
    let mut sum = sum_of(&live);
    if behind.is_empty() || sum.last().is_none_or(|newest| newest.value <= 0.0) {
        return sum_of(lists);
    }
    sum.iter_mut().for_each(|sample| sample.value += held);
    sum
}

/// The sums of the newest samples of all lists, of those before them and so on, each as old as its oldest sample.
fn sum_of(lists: &SampleLists) -> Vec<Sample> {
    let shortest = lists.iter().map(Samples::len).min().unwrap_or_default();
    let sum = |back: usize| {
        let sample = |list: &Samples| list.get(list.len().checked_sub(back + 1)?);
        let samples = || lists.iter().filter_map(sample);
        let at = samples().map(|sample| sample.at).min()?;
        Some(Sample { at, value: samples().map(|sample| sample.value).sum() })
    };
    (0..shortest).rev().filter_map(sum).collect()
}
