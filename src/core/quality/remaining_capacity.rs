//! Whether what a fleet (one role of a model) holds now fits into fewer replicas: the peaks of the last minute against the
//! sequences and the KV caches that remain. A question that is asked before a removal, of signals and arguments only: nothing
//! that was learned goes into it.

use jiff::Timestamp;

use super::PEAK_WINDOW;
use super::freshness::judged_engines;
use crate::sequence_limit::second_highest;
use crate::snapshot::{Phase, Replica, Signal, Signals, VariantState, median_gap};
use crate::units::{Seconds, count};

/// What runs may fill this share of what remains: a tenth is for chance, as between two scrapes.
const MAX_SHARE: f64 = 0.9;

/// What one resource of a fleet holds, and what one pod of each variant has of it.
#[derive(Debug, Clone, PartialEq)]
struct Resource {
    /// At the peaks of the last minute, of all Ready pods.
    used: f64,
    /// By variant.
    of_a_pod: Vec<f64>,
}

/// A fleet before a removal.
#[derive(Debug, Clone, PartialEq)]
pub struct RemainingCapacity {
    /// Ready pods by variant: others serve nobody, and go first.
    ready: Vec<u32>,
    /// Pods that sleep: as ready as the others to who removes one, so that they may be those that stay.
    asleep: Vec<u32>,
    /// Running and waiting requests; `None` where that is not known.
    sequences: Option<Resource>,
    /// Tokens in the KV caches; shares of a pod's cache where a fleet has one variant and its size is not known.
    kv: Option<Resource>,
}

/// What does not fit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shortfall {
    /// Running and waiting requests at their peaks, and the sequences that remain.
    Sequences(f64, f64),
    /// Tokens in the KV caches at their peaks, and those that remain room for.
    Kv(f64, f64),
}

/// What one pod shows.
#[derive(Debug, Clone, Copy, Default)]
struct Pod {
    engines: u32,
    running: f64,
    waiting: f64,
    usage: f64,
    capacity: f64,
    /// Every engine shows running and waiting requests.
    counted: bool,
    /// Every engine shows its KV usage.
    filled: bool,
}

impl RemainingCapacity {
    /// Of these variants, which are all of one role, in their order, each with the most that was ever seen running in one of its
    /// engines.
    #[must_use]
    pub fn of<'a>(variants: impl IntoIterator<Item = (&'a VariantState, u32)>, now: Timestamp) -> Self {
        let (variants, seen): (Vec<&VariantState>, Vec<u32>) = variants.into_iter().unzip();
        let serving = |state: &VariantState| -> Vec<Pod> {
            let ready = state.replicas.iter().filter(|replica| replica.phase == Phase::Ready);
            ready.map(|replica| Pod::of(replica, now)).collect()
        };
        let pods: Vec<Vec<Pod>> = variants.iter().map(|state| serving(state)).collect();
        let ready = |(state, pods): (&&VariantState, &Vec<Pod>)| {
            state.scale.map_or(0, |scale| scale.ready.get()).max(count(pods.len()))
        };
        let ready: Vec<u32> = variants.iter().zip(&pods).map(ready).collect();
        let asleep: Vec<u32> = variants.iter().map(|state| sleeping(state)).collect();
        let sequences = variants.iter().zip(&seen).zip(&pods);
        let sequences = sequences.map(|((state, seen), pods)| sequences_of_a_pod(state, *seen, pods));
        let sequences = known(&ready, sequences.collect());
        let requests = |_: usize, pod: &Pod| pod.counted.then_some(pod.running + pod.waiting);
        let sequences = sequences.and_then(|of_a_pod| resource(&pods, &ready, of_a_pod, requests));
        // What one pod shows says nothing of all the others.
        let capacity = |pods: &Vec<Pod>| {
            second_highest(pods.iter().map(|pod| pod.capacity).filter(|capacity| *capacity > 0.0).collect())
        };
        let capacities = known(&ready, pods.iter().map(capacity).collect());
        // Of one variant all caches are alike: shares are enough.
        let alone = || (variants.len() == 1).then(|| vec![1.0]);
        let kv = capacities.or_else(alone).and_then(|of_a_pod| {
            let each = of_a_pod.clone();
            let tokens = |at: usize, pod: &Pod| {
                pod.filled.then(|| pod.usage / f64::from(pod.engines.max(1)) * each[at])
            };
            resource(&pods, &ready, of_a_pod, tokens)
        });
        Self { ready, asleep, sequences, kv }
    }

    /// A Ready pod of `from` goes: what is added elsewhere does not serve yet.
    #[must_use]
    pub fn takes_ready(&self, from: &[u32], targets: &[u32]) -> bool {
        let mut all = from.iter().zip(targets).zip(self.ready.iter().zip(&self.asleep));
        all.any(|((from, target), (ready, asleep))| {
            target.saturating_sub(*asleep) < from.saturating_sub(*asleep).min(*ready)
        })
    }

    /// What does not fit when `targets` of each variant are left; `None` when all does, or nothing is known.
    #[must_use]
    pub fn too_few(&self, targets: &[u32]) -> Option<Shortfall> {
        let left = |resource: &Resource| -> f64 {
            let awake =
                targets.iter().zip(&self.asleep).map(|(target, asleep)| target.saturating_sub(*asleep));
            let serving = awake.zip(&self.ready).map(|(target, ready)| f64::from(target.min(*ready)));
            serving.zip(&resource.of_a_pod).map(|(pods, each)| pods * each).sum()
        };
        let over = |resource: &&Resource| resource.used > left(resource) * MAX_SHARE;
        let sequences = self.sequences.as_ref().filter(over);
        let kv = self.kv.as_ref().filter(over);
        let sequences = sequences.map(|one| Shortfall::Sequences(one.used, left(one)));
        sequences.or_else(|| kv.map(|one| Shortfall::Kv(one.used, left(one))))
    }
}

fn sleeping(state: &VariantState) -> u32 {
    count(state.replicas.iter().filter(|replica| replica.phase == Phase::Asleep).count())
}

/// One value a variant, where all variants that serve have one.
fn known(ready: &[u32], values: Vec<Option<f64>>) -> Option<Vec<f64>> {
    let each = ready
        .iter()
        .zip(values)
        .map(|(ready, value)| if *ready == 0 { Some(value.unwrap_or(0.0)) } else { value });
    each.collect()
}

/// The sum over all Ready pods: one that does not show it counts like the busiest that does. `None` when none does.
fn resource(
    pods: &[Vec<Pod>],
    ready: &[u32],
    of_a_pod: Vec<f64>,
    used: impl Fn(usize, &Pod) -> Option<f64>,
) -> Option<Resource> {
    let of_variant = |(at, pods): (usize, &Vec<Pod>)| -> Vec<f64> {
        pods.iter().filter_map(|pod| used(at, pod)).collect()
    };
    let measured: Vec<f64> = pods.iter().enumerate().flat_map(of_variant).collect();
    let busiest = measured.iter().copied().reduce(f64::max)?;
    let all = ready.iter().copied().fold(0, u32::saturating_add);
    let unmeasured = all.saturating_sub(count(measured.len()));
    Some(Resource { used: measured.iter().sum::<f64>() + busiest * f64::from(unmeasured), of_a_pod })
}

/// Sequences that a pod of the variant runs at most: as many as its argument lets each engine, or as were `seen` in one where
/// that is more. What was seen alone is no maximum: a calm pod would count as full.
fn sequences_of_a_pod(state: &VariantState, seen: u32, pods: &[Pod]) -> Option<f64> {
    let engines = second_highest(pods.iter().map(|pod| f64::from(pod.engines)).collect());
    Some(f64::from(state.template.sequences()?.max(seen)) * engines.unwrap_or(1.0).max(1.0))
}

impl Pod {
    fn of(replica: &Replica, now: Timestamp) -> Self {
        let none = Self { counted: true, filled: true, ..Self::default() };
        let pod = judged_engines(replica).fold(none, |pod, (_, signals)| pod.with(signals, now));
        let shows = pod.engines > 0;
        Self { counted: pod.counted && shows, filled: pod.filled && shows, ..pod }
    }

    fn with(self, signals: &Signals, now: Timestamp) -> Self {
        let highest = |signal| highest(signals, signal, now);
        let (running, waiting) = (highest(Signal::Running), highest(Signal::Waiting));
        let usage = highest(Signal::KvUsage);
        let capacity = signals.newest(Signal::KvCapacity).map(|sample| sample.value);
        let capacity = capacity.filter(|value| value.is_finite() && *value > 0.0);
        Self {
            engines: self.engines + 1,
            running: self.running + running.unwrap_or(0.0),
            waiting: self.waiting + waiting.unwrap_or(0.0),
            usage: self.usage + usage.unwrap_or(0.0),
            capacity: self.capacity + capacity.unwrap_or(0.0),
            counted: self.counted && running.is_some() && waiting.is_some(),
            filled: self.filled && usage.is_some(),
        }
    }
}

/// The highest value of the window of the peaks, which holds two scrapes where they are slower than that.
fn highest(signals: &Signals, signal: Signal, now: Timestamp) -> Option<f64> {
    let series = signals.get(signal);
    let times: Vec<Timestamp> = series.iter().map(|sample| sample.at).collect();
    let window = (2.0 * median_gap(&times).get()).max(PEAK_WINDOW.get());
    let within = series.iter().rev().take_while(|sample| Seconds::between(sample.at, now).get() <= window);
    within.map(|sample| sample.value).filter(|value| value.is_finite() && *value >= 0.0).reduce(f64::max)
}
