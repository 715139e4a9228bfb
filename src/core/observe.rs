//! Adds a snapshot to the memory: the idle clock of each model, and what the rate policy learns where it decides. Decides nothing.

use jiff::Timestamp;

use crate::isolate::guarded;
use crate::memory::{GroupMemory, Memory};
use crate::model::Role;
use crate::normalize::{normalize_group, not_after};
use crate::progress::Progress;
use crate::quality::analyzer_signals::Declared;
use crate::quality::{CoverageState, assess_coverage, fresh_limit, judged_engines};
use crate::snapshot::{
    ModelGroup, Phase, Sample, Series, Signal, Signals, Snapshot, SourceHealth, VariantState,
    newest_confirmed,
};
use crate::units::{Replicas, Seconds};

/// Whether a model serves requests, as far as that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// A signal that would tell is not measured.
    Unknown,
    /// A request is running, waiting or has just finished.
    Busy,
    /// No request since this time; `None` without any sign of an earlier request.
    Idle(Option<Timestamp>),
}

/// Counters that every request increments, whatever becomes of it: at least one of them must be measured. The last one is the scheduler's.
const TRACES: [Signal; 4] = [
    Signal::TimeToFirstTokenCount,
    Signal::RequestGenerationTokensCount,
    Signal::RequestPromptTokensCount,
    Signal::SchedulerAttempts,
];

/// Adds `snapshot` to `memory`. Twice with the same snapshot is the same as once.
#[must_use]
pub fn observe(snapshot: &Snapshot, memory: Memory) -> Memory {
    observe_watched(snapshot, memory, &())
}

/// The same, reporting each model to `progress`.
#[must_use]
pub fn observe_watched(snapshot: &Snapshot, memory: Memory, progress: &dyn Progress) -> Memory {
    let mut memory =
        if memory.version == Memory::VERSION { memory } else { memory.understood().into_owned() };
    for (id, remembered) in &mut memory.groups {
        if let Err(cause) = guarded(id, || not_after(remembered, snapshot.now)) {
            remembered.note_failure(snapshot.now, cause);
        }
    }
    memory.invalid.values_mut().for_each(|since| *since = (*since).min(snapshot.now));
    for (id, group) in &snapshot.groups {
        let remembered = memory.groups.entry(id.clone()).or_default();
        if remembered.failed.as_ref().is_some_and(|failed| failed.waits(snapshot.now)) {
            continue;
        }
        progress.begins(Some(id));
        if let Err(cause) =
            guarded(id, || fold(snapshot.now, &normalize_group(group, snapshot.now), remembered))
        {
            remembered.note_failure(snapshot.now, cause);
        }
    }
    progress.begins(None);
    memory
}

fn fold(now: Timestamp, group: &ModelGroup, remembered: &mut GroupMemory) {
    remembered.idle_since = idle_since(now, group, remembered);
    remembered.observed_at = Some(now);
    let doubted = remembered.signal_history.as_ref().is_some_and(|history| history.has_contradictions());
    for state in &group.variants {
        if let Some(own) = remembered.variants.get_mut(&state.variant.id.name) {
            own.most_running.observe(state, doubted, now);
        }
    }
    if let Some(rate) = remembered.learned.as_mut().and_then(|learned| learned.rate.as_mut()) {
        rate.observe(group, remembered.signal_history.as_deref(), now);
    }
}

/// The idle clock: it runs only while idleness is measured, and is reset by anything unknown. At zero it has not begun, so that a model
/// that something else has woken stays for as long as one that was woken here.
fn idle_since(now: Timestamp, group: &ModelGroup, before: &GroupMemory) -> Option<Timestamp> {
    let Activity::Idle(quiet) = activity(now, group, before.observed_at) else { return None };
    let is_at_zero = |state: &VariantState| state.scale.is_none_or(|scale| scale.spec == Replicas::ZERO);
    if group.variants.iter().all(is_at_zero) {
        return Some(now);
    }
    match before.idle_since {
        Some(since) => Some(quiet.map_or(since, |quiet| quiet.max(since))),
        // Until the last observation the model was busy or unknown, so the clock cannot start before that.
        None => Some(quiet.max(before.observed_at).unwrap_or(now)),
    }
}

/// Whether the model of `group` serves requests. Its counters were already read until `observed_at`.
#[must_use]
pub fn activity(now: Timestamp, group: &ModelGroup, observed_at: Option<Timestamp>) -> Activity {
    // Pods may serve although their scale target is gone.
    let known = group.variants.iter().filter(|state| state.scale.is_some() || !state.pods.is_empty());
    let known: Vec<_> = known.collect();
    // Pods of a scale target that is not known may serve too, and are not listed.
    let are_targets_known = group.variants.iter().all(|state| state.target_problem.is_none());
    if !are_targets_known || !matches!(group.source, SourceHealth::Complete) {
        return Activity::Unknown;
    }
    // Each role must be measured: one that serves says nothing about another whose pods do not serve yet.
    let measured = |role: Role| {
        let of_role: Vec<_> = known.iter().copied().filter(|state| state.variant.role == role).collect();
        of_role.is_empty()
            || matches!(
                assess_coverage(&group.source, &of_role, Declared::default(), now),
                CoverageState::Fresh | CoverageState::Zero
            )
    };
    if !Role::ALL.into_iter().all(measured) {
        return Activity::Unknown;
    }
    let serving = known.iter().flat_map(|variant| &variant.pods);
    let serving = serving.filter(|pod| pod.phase == Phase::Ready);
    let engines = serving.flat_map(judged_engines);
    let parts = engines.map(|(_, engine)| engine_activity(now, engine, observed_at));
    parts.fold(scheduler_activity(now, group), Activity::and)
}

/// Whether a request would start the model of `group` while it is at zero: its scheduler shows what waits there, or an object says that
/// something else starts it.
#[must_use]
pub fn can_be_woken(now: Timestamp, group: &ModelGroup) -> bool {
    scheduler_queue(now, &group.scheduler).is_some() || group.is_woken_otherwise()
}

impl Activity {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Busy, _) | (_, Self::Busy) => Self::Busy,
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::Idle(left), Self::Idle(right)) => Self::Idle(left.max(right)),
        }
    }
}

fn engine_activity(now: Timestamp, engine: &Signals, observed_at: Option<Timestamp>) -> Activity {
    let traces = TRACES.iter().map(|signal| engine.get(*signal)).filter(|series| !series.is_empty());
    let Some(traces) = traces.map(|series| counter(series, observed_at)).reduce(Activity::and) else {
        return Activity::Unknown;
    };
    let limit = fresh_limit(engine.interval());
    let gauges = [Signal::Running, Signal::Waiting];
    gauges.map(|signal| quiet_gauge(now, engine.get(signal), limit)).into_iter().fold(traces, Activity::and)
}

/// Without a scheduler that shows its queue, the engines alone say whether requests come. An old sample says nothing, unless the scheduler
/// need not be heard.
fn scheduler_activity(now: Timestamp, group: &ModelGroup) -> Activity {
    let queue = group.scheduler.get(Signal::SchedulerQueueSize);
    if queue.is_empty() || group.is_woken_otherwise() {
        return since_last(queue, |_, value| value > 0.0);
    }
    quiet_gauge(now, queue, fresh_limit(group.scheduler.interval()))
}

fn quiet_gauge(now: Timestamp, series: Series<'_>, limit: Seconds) -> Activity {
    match series.last() {
        Some(newest) if Seconds::between(newest.at, now) <= limit => {
            since_last(series, |_, value| value > 0.0)
        }
        _ => Activity::Unknown,
    }
}

fn counter(series: Series<'_>, observed_at: Option<Timestamp>) -> Activity {
    let changed =
        |before: Option<f64>, value: f64| before.is_some_and(|before| before.total_cmp(&value).is_ne());
    let found = since_last(series, changed);
    // A counter that was above zero at its first sample grew at an unknown time before it.
    let unseen =
        series.first().filter(|first| first.value > 0.0 && observed_at.is_none_or(|at| first.at > at));
    found.and(Activity::Idle(unseen.map(|first| first.at)))
}

/// Busy if the newest sample is active, or else idle since the first sample after the last active one.
fn since_last(series: Series<'_>, active: impl Fn(Option<f64>, f64) -> bool) -> Activity {
    let (mut newer, mut before) = (None, series.iter().rev().skip(1).map(|sample| sample.value));
    for sample in series.iter().rev() {
        if active(before.next(), sample.value) {
            return newer.map_or(Activity::Busy, |newer| Activity::Idle(Some(newer)));
        }
        newer = Some(sample.at);
    }
    Activity::Idle(None)
}

/// Requests that the scheduler holds for the model: the newest sample, if it is fresh.
#[must_use]
pub fn scheduler_queue(now: Timestamp, scheduler: &Signals) -> Option<Sample> {
    let limit = fresh_limit(scheduler.interval());
    newest_confirmed(scheduler.get(Signal::SchedulerQueueSize))
        .filter(|newest| Seconds::between(newest.at, now) <= limit)
}
