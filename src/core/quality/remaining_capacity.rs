//! Whether the requests of a fleet (one role of a model) fit into fewer replicas: the peaks of the last minute against the sequences
//! and KV caches that remain. This is asked before every removal, and answered from signals and engine arguments only: nothing that
//! was learned is used.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::freshness::{PEAK_WINDOW, judged_engines};
use crate::sequence_limit::second_highest;
use crate::snapshot::{Phase, Pod, Signal, Signals, VariantState, median_gap};
use crate::units::{Seconds, count, figure};

/// Share of the remaining resource that the requests may fill: a tenth is kept for chance, as between two scrapes.
const MAX_SHARE: f64 = 0.9;

/// Use of one resource by a fleet, and what one pod of each variant has of it.
#[derive(Debug, Clone, PartialEq)]
struct Resource {
    /// Sum of the peaks of all ready pods.
    used: f64,
    /// By variant.
    per_pod: Vec<f64>,
}

/// What a fleet uses before a removal, and what its pods offer.
#[derive(Debug, Clone, PartialEq)]
pub struct RemainingCapacity {
    /// Ready pods by variant. Others serve nothing, and are removed first.
    ready: Vec<u32>,
    /// Sleeping pods by variant. Whoever removes pods takes them for ready ones, so they may be those that stay.
    asleep: Vec<u32>,
    /// Running and waiting requests; `None` where the limit is not known.
    sequences: Option<Resource>,
    /// Tokens in the KV caches, or shares of a pod's cache in a fleet of one variant whose cache size is not known.
    kv: Option<Resource>,
}

/// What does not fit, in figures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Shortfall {
    /// Running and waiting requests.
    Sequences {
        /// Requests at their peaks.
        used: f64,
        /// Sequences that remain.
        remaining: f64,
    },
    /// Tokens in the KV caches.
    KvCache {
        /// Tokens at their peaks.
        used: f64,
        /// Tokens that remain.
        remaining: f64,
    },
}

/// Peaks of one pod, summed over its engines.
#[derive(Debug, Clone, Copy, Default)]
struct PodPeaks {
    engines: u32,
    running: f64,
    waiting: f64,
    usage: f64,
    capacity: f64,
    /// Every engine shows running and waiting requests.
    has_requests: bool,
    /// Every engine shows its KV usage.
    has_usage: bool,
}

impl RemainingCapacity {
    /// Of `variants`, which are all of one role, each with the most requests that were ever seen running in one of its engines.
    #[must_use]
    pub fn new<'a>(variants: impl IntoIterator<Item = (&'a VariantState, u32)>, now: Timestamp) -> Self {
        let (variants, peak_running): (Vec<&VariantState>, Vec<u32>) = variants.into_iter().unzip();
        let ready_pods = |state: &VariantState| -> Vec<PodPeaks> {
            let ready = state.pods.iter().filter(|pod| pod.phase == Phase::Ready);
            ready.map(|pod| PodPeaks::of_pod(pod, now)).collect()
        };
        let pods: Vec<Vec<PodPeaks>> = variants.iter().map(|state| ready_pods(state)).collect();
        let ready = variants.iter().zip(&pods).map(|(state, pods)| {
            let counted = state.scale.map_or(0, |scale| scale.ready.get());
            counted.max(count(pods.len()))
        });
        let ready: Vec<u32> = ready.collect();
        let asleep = variants
            .iter()
            .map(|state| count(state.pods.iter().filter(|pod| pod.phase == Phase::Asleep).count()));
        let sequences = variants.iter().zip(&peak_running).zip(&pods);
        let sequences = sequences.map(|((state, peak), pods)| sequences_per_pod(state, *peak, pods));
        let sequences = all_known(&ready, sequences.collect()).and_then(|per_pod| {
            let requests = |_: usize, pod: &PodPeaks| pod.has_requests.then_some(pod.running + pod.waiting);
            sum_resource(&pods, &ready, per_pod, requests)
        });
        // One pod alone may show a wrong cache size.
        let capacity = |pods: &Vec<PodPeaks>| {
            let capacities = pods.iter().map(|pod| pod.capacity).filter(|capacity| *capacity > 0.0);
            second_highest(capacities.collect())
        };
        let capacities = all_known(&ready, pods.iter().map(capacity).collect());
        // The caches of one variant are alike, so shares are enough.
        let share_of_one_variant = || (variants.len() == 1).then(|| vec![1.0]);
        let kv = capacities.or_else(share_of_one_variant).and_then(|per_pod| {
            let sizes = per_pod.clone();
            let tokens = |variant: usize, pod: &PodPeaks| {
                let mean_usage = pod.usage / f64::from(pod.engines.max(1));
                pod.has_usage.then_some(mean_usage * sizes[variant])
            };
            sum_resource(&pods, &ready, per_pod, tokens)
        });
        Self { asleep: asleep.collect(), ready, sequences, kv }
    }

    /// Going from `current` to `targets` replicas of each variant removes a ready pod. What is added elsewhere does not serve yet.
    pub(crate) fn removes_ready_pod(&self, current: &[u32], targets: &[u32]) -> bool {
        let mut variants = current.iter().zip(targets).zip(self.ready.iter().zip(&self.asleep));
        variants.any(|((current, target), (ready, asleep))| {
            target.saturating_sub(*asleep) < current.saturating_sub(*asleep).min(*ready)
        })
    }

    /// What does not fit when `targets` of each variant are left; `None` when everything does, or nothing is known.
    #[must_use]
    pub fn find_shortfall(&self, targets: &[u32]) -> Option<Shortfall> {
        let remaining = |resource: &Resource| -> f64 {
            let awake =
                targets.iter().zip(&self.asleep).map(|(target, asleep)| target.saturating_sub(*asleep));
            let serving = awake.zip(&self.ready).map(|(target, ready)| f64::from(target.min(*ready)));
            serving.zip(&resource.per_pod).map(|(pods, per_pod)| pods * per_pod).sum()
        };
        let is_short = |resource: &&Resource| resource.used > remaining(resource) * MAX_SHARE;
        let sequences = self.sequences.as_ref().filter(is_short);
        let kv = || self.kv.as_ref().filter(is_short);
        let figures = |resource: &Resource| (figure(resource.used), figure(remaining(resource)));
        if let Some((used, remaining)) = sequences.map(figures) {
            return Some(Shortfall::Sequences { used, remaining });
        }
        kv().map(figures).map(|(used, remaining)| Shortfall::KvCache { used, remaining })
    }
}

/// The value of each variant, if it is known for all that serve.
fn all_known(ready: &[u32], values: Vec<Option<f64>>) -> Option<Vec<f64>> {
    let or_unused =
        |(ready, value): (&u32, Option<f64>)| if *ready == 0 { value.or(Some(0.0)) } else { value };
    ready.iter().zip(values).map(or_unused).collect()
}

/// The use of all ready pods: one that does not show it counts like the busiest that does. `None` when none does.
fn sum_resource(
    pods: &[Vec<PodPeaks>],
    ready: &[u32],
    per_pod: Vec<f64>,
    used: impl Fn(usize, &PodPeaks) -> Option<f64>,
) -> Option<Resource> {
    let measured: Vec<f64> = pods
        .iter()
        .enumerate()
        .flat_map(|(variant, pods)| pods.iter().map(move |pod| (variant, pod)))
        .filter_map(|(variant, pod)| used(variant, pod))
        .collect();
    let busiest = measured.iter().copied().reduce(f64::max)?;
    let total_ready = ready.iter().copied().fold(0, u32::saturating_add);
    let unmeasured = total_ready.saturating_sub(count(measured.len()));
    Some(Resource { used: measured.iter().sum::<f64>() + busiest * f64::from(unmeasured), per_pod })
}

/// Sequences that a pod of the variant runs at most: the configured number in each engine, or `peak_running` where more were seen. What
/// was seen alone is no maximum: a calm pod would count as full.
fn sequences_per_pod(state: &VariantState, peak_running: u32, pods: &[PodPeaks]) -> Option<f64> {
    let engines = second_highest(pods.iter().map(|pod| f64::from(pod.engines)).collect());
    Some(f64::from(state.template.sequences()?.max(peak_running)) * engines.unwrap_or(1.0).max(1.0))
}

impl PodPeaks {
    fn of_pod(pod: &Pod, now: Timestamp) -> Self {
        let empty = Self { has_requests: true, has_usage: true, ..Self::default() };
        let peaks = judged_engines(pod).fold(empty, |peaks, (_, signals)| peaks.with_engine(signals, now));
        let has_engines = peaks.engines > 0;
        Self {
            has_requests: peaks.has_requests && has_engines,
            has_usage: peaks.has_usage && has_engines,
            ..peaks
        }
    }

    fn with_engine(self, signals: &Signals, now: Timestamp) -> Self {
        let running = peak(signals, Signal::Running, now);
        let waiting = peak(signals, Signal::Waiting, now);
        let usage = peak(signals, Signal::KvUsage, now);
        let capacity = signals.newest(Signal::KvCapacity).map(|sample| sample.value);
        let capacity = capacity.filter(|value| value.is_finite() && *value > 0.0);
        Self {
            engines: self.engines + 1,
            running: self.running + running.unwrap_or(0.0),
            waiting: self.waiting + waiting.unwrap_or(0.0),
            usage: self.usage + usage.unwrap_or(0.0),
            capacity: self.capacity + capacity.unwrap_or(0.0),
            has_requests: self.has_requests && running.is_some() && waiting.is_some(),
            has_usage: self.has_usage && usage.is_some(),
        }
    }
}

/// The peak over the last minute, or over two scrapes where these are further apart.
fn peak(signals: &Signals, signal: Signal, now: Timestamp) -> Option<f64> {
    let series = signals.get(signal);
    let times: Vec<Timestamp> = series.iter().map(|sample| sample.at).collect();
    let window = (2.0 * median_gap(&times).get()).max(PEAK_WINDOW.get());
    let recent = series.iter().rev().take_while(|sample| Seconds::between(sample.at, now).get() <= window);
    recent.map(|sample| sample.value).filter(|value| value.is_finite() && *value >= 0.0).reduce(f64::max)
}
