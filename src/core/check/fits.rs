//! What runs fits into what a removal leaves: the peaks of the last minute take at most nine tenths of the sequences and of
//! the KV caches that remain. Derived from samples and arguments alone, and from nothing that was learned.

use jiff::Timestamp;

use super::{seconds, serving, usual_gap};
use crate::sequence_limit::MAX_SEEN;
use crate::snapshot::{Phase, Replica, Series, Signal, Signals, VariantState};

/// The last tenth is for chance. A billionth more, so that the order of a sum decides nothing.
const FILLED: f64 = 0.9 * (1.0 + 1e-9);

/// Peaks are those of this time, seconds, and of two scrapes where these are slower.
const WINDOW: f64 = 60.0;

/// A variant of the role that is judged, and how many replicas of it are to remain.
pub(super) struct Left<'a> {
    pub(super) state: &'a VariantState,
    pub(super) decided: u32,
    /// The most requests that are remembered to have run in one of its engines.
    pub(super) most_running: u32,
}

/// What does not fit into `left`, in words; `None` where all does, or where it is not known.
pub(super) fn overfull(left: &[Left<'_>], now: Timestamp) -> Option<String> {
    let too_much = |used: f64, there: f64| used > FILLED * there;
    let of_requests = load(left, |pod| requests(pod, now));
    if let (Some(used), Some(there)) = (of_requests, remaining(left, sequences))
        && too_much(used, there)
    {
        return Some(format!(
            "running + waiting requests peaked at {used:.0} of the {there:.0} sequences that remain"
        ));
    }
    let sizes = left
        .iter()
        .filter(|one| ready(one.state) > 0)
        .map(|one| cache(one.state))
        .collect::<Option<Vec<f64>>>();
    // The caches of one variant are alike, whatever their size.
    let size = |state: &VariantState| match &sizes {
        Some(_) => cache(state),
        None => (left.len() == 1).then_some(1.0),
    };
    let used: Option<f64> = {
        let all = left.iter().flat_map(|one| pods(one.state).map(move |pod| (one.state, pod)));
        let each: Vec<Option<f64>> = all.map(|(state, pod)| Some(share(pod, now)? * size(state)?)).collect();
        total(&each, left)
    };
    let (used, there) = (used?, remaining(left, |one| size(one.state))?);
    too_much(used, there).then(|| {
        if sizes.is_some() {
            format!("KV caches held {used:.0} tokens at their peaks, of the {there:.0} that remain")
        } else {
            format!("KV caches were filled {used:.2} times at their peaks, of the {there:.0} that remain")
        }
    })
}

fn pods(state: &VariantState) -> impl Iterator<Item = &Replica> {
    state.replicas.iter().filter(|replica| replica.phase == Phase::Ready)
}

/// Of so many replicas of `state` those that are awake, where sleepers stay: a sleeping pod is as ready as any to who removes one.
pub(super) fn awake(state: &VariantState, replicas: u32) -> u32 {
    let sleeping = state.replicas.iter().filter(|pod| pod.phase == Phase::Asleep).count();
    replicas.saturating_sub(u32::try_from(sleeping).unwrap_or(u32::MAX))
}

/// Pods that serve, as far as anybody counts them.
pub(super) fn ready(state: &VariantState) -> u32 {
    let counted = state.scale.map_or(0, |scale| scale.ready.get());
    u32::try_from(pods(state).count()).unwrap_or(u32::MAX).max(counted)
}

fn load(left: &[Left<'_>], of: impl Fn(&Replica) -> Option<f64>) -> Option<f64> {
    let each: Vec<Option<f64>> = left.iter().flat_map(|one| pods(one.state)).map(of).collect();
    total(&each, left)
}

/// The sum over all pods that serve; one that shows nothing does as much as the busiest that does.
fn total(each: &[Option<f64>], left: &[Left<'_>]) -> Option<f64> {
    let shown: Vec<f64> = each.iter().copied().flatten().collect();
    let busiest = shown
        .iter()
        .copied()
        .fold(None, |most: Option<f64>, one| Some(most.map_or(one, |most| most.max(one))))?;
    let serving = left.iter().fold(0_u32, |all, one| all.saturating_add(ready(one.state)));
    let silent = serving.saturating_sub(u32::try_from(shown.len()).unwrap_or(u32::MAX));
    Some(shown.iter().sum::<f64>() + f64::from(silent) * busiest)
}

/// What is left of it when each variant has as many as was decided, those that do not serve gone first.
fn remaining(left: &[Left<'_>], of_a_pod: impl Fn(&Left<'_>) -> Option<f64>) -> Option<f64> {
    let mut sum = 0.0;
    for one in left {
        let serving = ready(one.state);
        if serving > 0 {
            sum += of_a_pod(one)? * f64::from(serving.min(awake(one.state, one.decided)));
        }
    }
    Some(sum)
}

/// The highest value of the last minute.
fn highest(engine: &Signals, signal: Signal, now: Timestamp) -> Option<f64> {
    let series: Series<'_> = engine.get(signal);
    let back = |window: f64| {
        let within =
            series.iter().filter(|sample| seconds(sample.at, now) <= window).map(|sample| sample.value);
        within
            .filter(|value| value.is_finite() && *value >= 0.0)
            .fold(None, |most: Option<f64>, value| Some(most.map_or(value, |most| most.max(value))))
    };
    back((2.0 * usual_gap(series)).max(WINDOW))
}

fn requests(pod: &Replica, now: Timestamp) -> Option<f64> {
    let of = |engine: &Signals| {
        Some(highest(engine, Signal::Running, now)? + highest(engine, Signal::Waiting, now)?)
    };
    engines(pod)?.into_iter().map(of).sum()
}

/// The share of the pod's caches that is full.
fn share(pod: &Replica, now: Timestamp) -> Option<f64> {
    let engines = engines(pod)?;
    let ranks = u32::try_from(engines.len()).unwrap_or(u32::MAX);
    let full: Option<f64> = engines.into_iter().map(|engine| highest(engine, Signal::KvUsage, now)).sum();
    full.map(|full| full / f64::from(ranks))
}

fn engines(pod: &Replica) -> Option<Vec<&Signals>> {
    let engines: Vec<&Signals> = serving(pod).collect();
    (!engines.is_empty()).then_some(engines)
}

/// Sequences that a pod runs at once: as many as the argument lets each of its engines, or as were ever seen in one where that is
/// more. Nobody knows them without the argument: what a calm engine was seen running is no maximum.
fn sequences(left: &Left<'_>) -> Option<f64> {
    let Left { state, most_running, .. } = left;
    let most = f64::from(state.template.sequences()?.max(*most_running));
    let ranks = second(
        pods(state).map(|pod| f64::from(u32::try_from(serving(pod).count()).unwrap_or(u32::MAX))).collect(),
    )
    .unwrap_or(1.0)
    .max(1.0);
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
    let of = |pod: &Replica| -> f64 {
        let sizes =
            serving(pod).filter_map(|engine| engine.newest(Signal::KvCapacity)).map(|sample| sample.value);
        sizes.filter(|size| size.is_finite() && *size > 0.0).sum()
    };
    second(pods(state).map(of).filter(|size| *size > 0.0).collect())
}

/// The second highest of `values`, which is what one alone cannot raise; the only one where there is one.
fn second(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.iter().nth_back(1).or_else(|| values.first()).copied()
}
