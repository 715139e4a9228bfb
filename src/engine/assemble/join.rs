//! Gives series to the replicas and models they belong to. A model is joined by itself, so that one that breaks costs itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use smol_str::SmolStr;
use wva_core::isolate;
use wva_core::model::GroupId;
use wva_core::quality::judged_engines;
use wva_core::snapshot::{ModelGroup, Replica, Sample, Signal, Signals, SourceHealth};
use wva_core::units::Seconds;

use crate::engine::breaks::Broken;
use crate::engine::ports::{MAX_ENGINES_OF_A_POD, Series};

/// Gives every series to the replica or the group it belongs to; what belongs to nobody is dropped. The models whose series
/// could not be joined have none, and a source that is not complete.
pub(super) fn join(groups: &mut BTreeMap<GroupId, ModelGroup>, series: Vec<Series>) -> Vec<Broken> {
    let mut shares: Vec<Vec<Placed>> = groups.iter().map(|_| Vec::new()).collect();
    let addresses = addresses(groups);
    for one in series {
        let Some((group, pod)) = addresses.get(&*one.namespace).and_then(|names| names.place(&one)) else {
            continue;
        };
        if let Some(share) = shares.get_mut(group) {
            share.push(Placed { pod, series: one });
        }
    }
    let mut broken = Vec::new();
    for ((id, group), share) in groups.iter_mut().zip(shares) {
        let joined = isolate::caught(|| {
            #[cfg(test)]
            super::tests::break_down(id);
            join_group(&id.model, group, share);
        });
        if let Err(cause) = joined {
            give_up(group, &cause);
            broken.push(Broken { what: format!("model {} in namespace {}", id.model, id.namespace), cause });
        }
    }
    broken
}

/// Nothing is known of a model whose series break; half of it would look like the whole.
fn give_up(group: &mut ModelGroup, cause: &str) {
    for replica in group.variants.iter_mut().flat_map(|state| &mut state.replicas) {
        replica.engines = wva_core::name_map::NameMap::default();
    }
    group.scheduler = Signals::default();
    let warning = format!("the metrics of the model could not be put together ({cause}); please report this");
    match &mut group.source {
        SourceHealth::Partial { warnings } => warnings.push(warning),
        source @ SourceHealth::Complete => *source = SourceHealth::Partial { warnings: vec![warning] },
        SourceHealth::Down { .. } => {}
    }
}

/// A series of a model.
struct Placed {
    /// The pod it is about, by its place among those of the model; none of a scheduler's totals.
    pod: Option<usize>,
    series: Series,
}

/// Where the pods and the models of a namespace are.
#[derive(Default)]
struct Addresses {
    /// The group of a pod, and its place in it.
    pods: HashMap<SmolStr, (usize, usize)>,
    /// The group of a model.
    models: HashMap<SmolStr, usize>,
}

impl Addresses {
    /// The group of a series, and the place of its pod there.
    fn place(&self, series: &Series) -> Option<(usize, Option<usize>)> {
        let pod = |name: &str| self.pods.get(name).map(|(group, pod)| (*group, Some(*pod)));
        match &series.to {
            Some(to) => pod(&to.pod),
            None if is_scheduler(series.signal) => {
                self.models.get(series.model.as_deref().unwrap_or_default()).map(|group| (*group, None))
            }
            None => pod(&series.pod),
        }
    }
}

fn addresses(groups: &BTreeMap<GroupId, ModelGroup>) -> HashMap<SmolStr, Addresses> {
    let mut namespaces: HashMap<SmolStr, Addresses> = HashMap::new();
    for (at, (id, group)) in groups.iter().enumerate() {
        let addresses = namespaces.entry(id.namespace.clone()).or_default();
        addresses.models.insert(id.model.clone(), at);
        let replicas = group.variants.iter().flat_map(|state| &state.replicas);
        addresses.pods.extend(replicas.enumerate().map(|(pod, replica)| (replica.pod.clone(), (at, pod))));
    }
    namespaces
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

fn join_group(model: &str, group: &mut ModelGroup, share: Vec<Placed>) {
    let replicas = group.variants.iter_mut().flat_map(|state| &mut state.replicas);
    let mut pods: Vec<Pod<'_>> = replicas
        .map(|replica| Pod {
            model,
            names_its_model: false,
            replica,
            ports: BTreeMap::new(),
            given: BTreeMap::new(),
        })
        .collect();
    for Placed { pod, series } in share.iter().filter(|placed| placed.series.to.is_none()) {
        if let Some(pod) = pod.and_then(|pod| pods.get_mut(pod)) {
            pod.names_its_model |= series.model.as_deref() == Some(model);
        }
    }
    let mut queues: BTreeMap<Signal, Parts> = BTreeMap::new();
    for Placed { pod, series } in share {
        let Some(pod) = pod else {
            queues.entry(series.signal).or_default().push(series.samples);
            continue;
        };
        let Some(pod) = pods.get_mut(pod) else { continue };
        match &series.to {
            None => pod.add(series),
            Some(to) if series.model.as_deref() == Some(model) => {
                pod.given.entry(to.port).or_default().push(series.samples);
            }
            Some(_) => {}
        }
    }
    pods.into_iter().for_each(Pod::share);
    for (signal, parts) in queues {
        group.scheduler.add(signal, queue_of(&parts));
    }
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
    /// at which no engine is known is that of a proxy in the pod, which sends to all of them: whoever runs a scheduler can name
    /// every port there is, so what came to these is added up once, and not for each engine.
    fn share(self) {
        let Self { replica, ports, given, .. } = self;
        if given.is_empty() {
            return;
        }
        let all: Vec<SmolStr> = judged_engines(replica).map(|(name, _)| name.clone()).collect();
        let mut shares: BTreeMap<&SmolStr, Parts> = BTreeMap::new();
        let mut of_all = Parts::new();
        for (port, given) in given {
            let here = port.and_then(|port| ports.get(&port));
            let is_own =
                |here: &BTreeSet<SmolStr>| all.iter().filter(|name| here.contains(*name)).collect::<Vec<_>>();
            let own = here.map(is_own).unwrap_or_default();
            if own.is_empty() {
                of_all.extend(given);
            } else {
                give(&mut shares, &own, &given);
            }
        }
        give(&mut shares, &all.iter().collect::<Vec<_>>(), &of_all);
        for (engine, parts) in shares {
            if let Some(signals) = replica.engines.get_mut(engine) {
                signals.add(Signal::SchedulerAttempts, sum_of(&parts));
            }
        }
    }
}

/// Gives each of these engines an even share of the sum of `parts`, which is made once.
fn give<'e>(shares: &mut BTreeMap<&'e SmolStr, Parts>, engines: &[&'e SmolStr], parts: &Parts) {
    if parts.is_empty() {
        return;
    }
    let (sum, share) = (sum_of(parts), 1.0 / engines.len() as f64);
    for engine in engines {
        shares.entry(engine).or_default().push(scaled(&sum, share));
    }
}

fn scaled(samples: &[Sample], share: f64) -> Vec<Sample> {
    samples.iter().map(|sample| Sample { value: sample.value * share, ..*sample }).collect()
}

fn is_scheduler(signal: Signal) -> bool {
    matches!(signal, Signal::SchedulerQueueSize | Signal::SchedulerQueueBytes | Signal::SchedulerAttempts)
}

/// A scheduler whose newest sample is so much older than that of another one has stopped, or is not scraped.
const BEHIND: Seconds = Seconds::whole(30);

/// What all schedulers hold. While one is behind and the others hold something, at least that is held now, with what it held when it
/// was last seen; while they hold nothing, nobody knows what it holds, and the sum is as old as its samples.
fn queue_of(parts: &Parts) -> Vec<Sample> {
    let newest = |part: &Vec<Sample>| part.last().map(|sample| sample.at);
    let Some(last) = parts.iter().filter_map(newest).max() else { return Vec::new() };
    let is_behind = |part: &&Vec<Sample>| newest(part).is_some_and(|at| Seconds::between(at, last) > BEHIND);
    let (behind, live): (Vec<_>, Vec<_>) = parts.iter().partition(is_behind);
    let held: f64 = behind.iter().filter_map(|part| part.last()).map(|sample| sample.value).sum();
    let live: Parts = live.into_iter().cloned().collect();
    let mut sum = sum_of(&live);
    if behind.is_empty() || sum.last().is_none_or(|newest| newest.value <= 0.0) {
        return sum_of(parts);
    }
    sum.iter_mut().for_each(|sample| sample.value += held);
    sum
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
