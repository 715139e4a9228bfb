//! The running requests fit into what a removal leaves: the peaks of the last minute take at most nine tenths of the remaining sequences
//! and KV caches. Derived from samples and arguments only, never from what was learned.

use jiff::Timestamp;

use super::{seconds, serving, usual_gap};
use crate::quality::Shortfall;
use crate::report::Breach;
use crate::sequence_limit::MAX_SEEN;
use crate::snapshot::{Phase, Pod, Series, Signal, Signals, VariantState};
use crate::units::{count, figure};

/// A tenth is kept for chance. A billionth more may be used, so that the rounding error of a sum decides nothing.
const MAX_SHARE: f64 = 0.9 * (1.0 + 1e-9);

/// Peaks are those of this time, seconds, and of two scrapes where these are slower.
const WINDOW: f64 = 60.0;

/// A variant of the role that is judged, and how many replicas of it are to remain.
pub(super) struct RemainingVariant<'a> {
    pub(super) state: &'a VariantState,
    pub(super) decided: u32,
    /// The most requests that are remembered to have run in one of its engines.
    pub(super) most_running: u32,
}

/// What does not fit into `left`; `None` if everything does, or if that is not known.
pub(super) fn find_overflow(left: &[RemainingVariant<'_>], now: Timestamp) -> Option<Breach> {
    let too_much = |used: f64, remaining: f64| used > MAX_SHARE * remaining;
    let requests = load(left, |pod| requests(pod, now));
    if let (Some(used), Some(sequences)) = (requests, remaining(left, sequences))
        && too_much(used, sequences)
    {
        let (used, remaining) = (figure(used), figure(sequences));
        return Some(Breach::Overfull { limit: Shortfall::Sequences { used, remaining } });
    }
    let serving = left.iter().filter(|variant| ready(variant.state) > 0);
    let sizes: Option<Vec<f64>> = serving.map(|variant| cache(variant.state)).collect();
    // The caches of one variant are alike, whatever their size.
    let size = |state: &VariantState| match &sizes {
        Some(_) => cache(state),
        None => (left.len() == 1).then_some(1.0),
    };
    let used: Option<f64> = {
        let serving =
            left.iter().flat_map(|variant| pods(variant.state).map(move |pod| (variant.state, pod)));
        let usages: Vec<Option<f64>> =
            serving.map(|(state, pod)| Some(share(pod, now)? * size(state)?)).collect();
        total(&usages, left)
    };
    let (used, capacity) = (used?, remaining(left, |variant| size(variant.state))?);
    let (is_overfull, used, remaining) = (too_much(used, capacity), figure(used), figure(capacity));
    is_overfull.then_some(if sizes.is_some() {
        Breach::Overfull { limit: Shortfall::KvCache { used, remaining } }
    } else {
        Breach::OverfullCaches { used, remaining }
    })
}

fn pods(state: &VariantState) -> impl Iterator<Item = &Pod> {
    state.pods.iter().filter(|pod| pod.phase == Phase::Ready)
}

/// How many of `replicas` are awake if the sleeping pods stay: a ReplicaSet takes a sleeping pod for a ready one.
pub(super) fn awake(state: &VariantState, replicas: u32) -> u32 {
    let sleeping = state.pods.iter().filter(|pod| pod.phase == Phase::Asleep).count();
    replicas.saturating_sub(count(sleeping))
}

/// Serving pods: those that are listed, or that the scale target counts if these are more.
pub(super) fn ready(state: &VariantState) -> u32 {
    let counted = state.scale.map_or(0, |scale| scale.ready.get());
    count(pods(state).count()).max(counted)
}

fn load(left: &[RemainingVariant<'_>], load_of: impl Fn(&Pod) -> Option<f64>) -> Option<f64> {
    let loads: Vec<Option<f64>> = left.iter().flat_map(|variant| pods(variant.state)).map(load_of).collect();
    total(&loads, left)
}

/// The sum over all serving pods; a pod that shows nothing counts like the busiest that shows something.
fn total(values: &[Option<f64>], left: &[RemainingVariant<'_>]) -> Option<f64> {
    let shown: Vec<f64> = values.iter().copied().flatten().collect();
    let busiest = shown.iter().copied().reduce(f64::max)?;
    let serving = left.iter().map(|variant| ready(variant.state)).fold(0, u32::saturating_add);
    let silent = serving.saturating_sub(count(shown.len()));
    Some(shown.iter().sum::<f64>() + f64::from(silent) * busiest)
}

/// What remains with the decided numbers; pods that do not serve are removed first.
fn remaining(
    left: &[RemainingVariant<'_>],
    of_a_pod: impl Fn(&RemainingVariant<'_>) -> Option<f64>,
) -> Option<f64> {
    let mut sum = 0.0;
    for variant in left {
        let serving = ready(variant.state);
        if serving > 0 {
            sum += of_a_pod(variant)? * f64::from(serving.min(awake(variant.state, variant.decided)));
        }
    }
    Some(sum)
}

/// The highest value of the last minute.
fn highest(engine: &Signals, signal: Signal, now: Timestamp) -> Option<f64> {
    let series: Series<'_> = engine.get(signal);
    let back = |window: f64| {
        let within = series.iter().filter(|sample| seconds(sample.at, now) <= window);
        let values = within.map(|sample| sample.value).filter(|value| value.is_finite() && *value >= 0.0);
        values.reduce(f64::max)
    };
    back((2.0 * usual_gap(series)).max(WINDOW))
}

fn requests(pod: &Pod, now: Timestamp) -> Option<f64> {
    let of = |engine: &Signals| {
        Some(highest(engine, Signal::Running, now)? + highest(engine, Signal::Waiting, now)?)
    };
    engines(pod)?.into_iter().map(of).sum()
}

/// The share of the pod's caches that is full.
fn share(pod: &Pod, now: Timestamp) -> Option<f64> {
    let engines = engines(pod)?;
    let ranks = count(engines.len());
    let full: Option<f64> = engines.into_iter().map(|engine| highest(engine, Signal::KvUsage, now)).sum();
    full.map(|full| full / f64::from(ranks))
}

fn engines(pod: &Pod) -> Option<Vec<&Signals>> {
    let engines: Vec<&Signals> = serving(pod).collect();
    (!engines.is_empty()).then_some(engines)
}

/// Sequences that a pod runs at once: the argument of its engines, or the most that were ever seen in one if that is more. Unknown without
/// the argument, because what a calm engine was seen running is no maximum.
fn sequences(left: &RemainingVariant<'_>) -> Option<f64> {
    let RemainingVariant { state, most_running, .. } = left;
    let most = f64::from(state.template.sequences()?.max(*most_running));
    let ranks = pods(state).map(|pod| f64::from(count(serving(pod).count())));
    let ranks = second(ranks.collect()).unwrap_or(1.0).max(1.0);
    // Twice, by two engines or in two scrapes: what one shows says nothing of the others.
    let values = |engine: &Signals| -> Vec<f64> {
        let values = engine.get(Signal::Running).iter().map(|sample| sample.value.floor());
        values.filter(|value| value.is_finite()).collect()
    };
    let engines: Vec<Vec<f64>> = pods(state).flat_map(|pod| pod.engines.values()).map(values).collect();
    let shown = match &engines[..] {
        [alone] => second(alone.clone()).filter(|_| alone.len() > 1),
        _ => second(engines.into_iter().filter_map(|values| values.into_iter().reduce(f64::max)).collect()),
    };
    let shown = shown.unwrap_or(0.0).min(f64::from(MAX_SEEN));
    Some(most.max(shown) * ranks)
}

/// Tokens that the KV caches of a pod hold.
fn cache(state: &VariantState) -> Option<f64> {
    let of = |pod: &Pod| -> f64 {
        let sizes =
            serving(pod).filter_map(|engine| engine.newest(Signal::KvCapacity)).map(|sample| sample.value);
        sizes.filter(|size| size.is_finite() && *size > 0.0).sum()
    };
    second(pods(state).map(of).filter(|size| *size > 0.0).collect())
}

/// The second highest of `values`, which no single value can raise; the only one if there is just one.
fn second(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.iter().nth_back(1).or_else(|| values.first()).copied()
}
