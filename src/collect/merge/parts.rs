//! Combines the parts of a metric, which an engine or scheduler splits by labels, into one series.
//!
//! Engines set labels of their own (SGLang splits counters by `is_streaming` and gauges by `priority`). In Prometheus, the scrape
//! configuration adds further labels, which tell copies of a series apart. A label that all series of a pod have is assumed to be
//! of that kind.
//!
//! - Of several scrape targets, all parts of the best one are used. Parts of different targets are never added up.
//! - Where there are parts by priority and a total (no priority, or an empty one), the total is used.
//! - Parts are added up at the times at which all of them were scraped. Before the first sample of a part, its first value is used,
//!   so that a part missing from a truncated page does not look like a jump.
//! - Ratios are not added up: the highest is used. Of cache sizes, the lowest is used.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use wva_core::snapshot::{Sample, Signal};

use super::raw::RawSeries;
use crate::collect::signals::{MetricKind, MetricName};
use crate::engine::Samples;

/// Most sample times of one metric; the newest are kept. 10 min at one scrape a second by two jobs. A page that gives each series
/// a time of its own has as many times as samples, and all parts are searched for each.
const MAX_TIMES: usize = 1_200;

fn may_have_parts(series: &RawSeries) -> bool {
    !series.name.kind.is_scheduler() && series.name.kind != MetricKind::CacheConfig
}

/// Decides which of the undecided labels of a pod's series split metrics: those that not every series has. Then removes parts from
/// truncated answers, since others may be missing.
pub(super) fn resolve_undecided(raw: &mut Vec<RawSeries>) {
    let with_parts = || raw.iter().filter(|series| may_have_parts(series));
    if with_parts().any(|series| !series.labels.part.undecided.is_empty()) {
        let names = |series: &RawSeries| series.labels.part.undecided.iter().map(|(name, _)| *name).collect();
        let common: Option<BTreeSet<u64>> =
            with_parts().map(names).reduce(|common: BTreeSet<u64>, names| &common & &names);
        let common = common.unwrap_or_default();
        for series in raw.iter_mut().filter(|series| may_have_parts(series)) {
            let undecided = series.labels.part.undecided.iter().filter(|(name, _)| !common.contains(name));
            let Some(splitting) = undecided.map(|(_, pair)| *pair).reduce(u64::wrapping_add) else {
                continue;
            };
            // Both hashes are sums of hashed pairs, so that labels can be moved from one to the other.
            let labels = Arc::make_mut(&mut series.labels);
            labels.part.id = labels.part.id.wrapping_add(splitting);
            labels.source_hash = labels.source_hash.wrapping_sub(splitting);
        }
    }
    raw.retain(|series| !series.is_truncated || series.labels.part.id == 0 || !may_have_parts(series));
}

/// Combines all series of one name and key into one; `None` when no value is certain.
pub(super) fn combine(series: Vec<RawSeries>) -> Option<RawSeries> {
    let name = series.first()?.name;
    let mut parts = if name.kind.is_scheduler() { series } else { best_target(series) };
    // The best copy of each part.
    parts.sort_by_key(|series| (series.labels.part.id, Reverse(series.copy_rank())));
    parts.dedup_by_key(|series| series.labels.part.id);
    if !name.kind.is_scheduler() {
        keep_total_or_parts(&mut parts);
    }
    let samples = match &parts[..] {
        [_] => None,
        parts if name.kind.is_scheduler() => Some(combine_scheduler_parts(name.kind, parts)),
        parts => Some(combine_engine_parts(name, parts)),
    };
    let mut combined = parts.into_iter().next()?;
    combined.samples = samples.unwrap_or(combined.samples);
    (!combined.samples.is_empty()).then_some(combined)
}

/// The series of the scrape target with the newest sample.
fn best_target(series: Vec<RawSeries>) -> Vec<RawSeries> {
    if series.len() < 2 {
        return series;
    }
    let mut targets: BTreeMap<u64, Vec<RawSeries>> = BTreeMap::new();
    for series in series {
        targets.entry(series.labels.source_hash).or_default().push(series);
    }
    let rank = |series: &Vec<RawSeries>| series.iter().map(RawSeries::copy_rank).max();
    targets.into_values().max_by_key(rank).unwrap_or_default()
}

/// Where there are a total and parts by priority, keeps the total, unless the parts are newer.
fn keep_total_or_parts(series: &mut Vec<RawSeries>) {
    let newest = |has_priority: bool| {
        let matching = series.iter().filter(|series| series.labels.part.has_priority == has_priority);
        matching.map(RawSeries::newest).max()
    };
    if let (Some(total), Some(parts)) = (newest(false), newest(true)) {
        let drops_parts = total >= parts;
        series.retain(|series| series.labels.part.has_priority != drops_parts);
    }
}

/// All parts of a metric of an engine, at the times at which all were scraped.
fn combine_engine_parts(name: &MetricName, parts: &[RawSeries]) -> Samples {
    let combine: fn(f64, f64) -> f64 = match name.signal {
        Signal::KvUsage | Signal::Asleep => f64::max,
        Signal::KvCapacity => f64::min,
        _ => |sum, value| sum + value,
    };
    let times = times(parts);
    // A number of requests by a label is only reported while there are such requests.
    let starts_at_zero = matches!(name.signal, Signal::Waiting | Signal::Running);
    let before_first = |part: &RawSeries| {
        if starts_at_zero { Some(0.0) } else { part.samples.first().map(|first| first.value) }
    };
    let value_at = |part: &RawSeries, at: Timestamp| match part.samples.times().binary_search(&at) {
        Ok(index) => part.samples.get(index).map(|sample| sample.value),
        Err(0) => before_first(part),
        Err(_) => None,
    };
    let combined_at = |at| {
        let values: Option<Vec<f64>> = parts.iter().map(|part| value_at(part, at)).collect();
        let value = values?.into_iter().reduce(combine).filter(|value| value.is_finite())?;
        Some(Sample { at, value })
    };
    let combined: Samples = times.iter().filter_map(|at| combined_at(*at)).collect();
    // Series that were scraped at different times are not parts of one page.
    if combined.len() * 2 < times.len() { Samples::default() } else { combined }
}

/// The sum of a scheduler's parts at each time at which any was measured. A part without a sample at that time counts as 0 if it is
/// a gauge (the queue no longer exists), and with its last value if it is a counter.
fn combine_scheduler_parts(kind: MetricKind, parts: &[RawSeries]) -> Samples {
    let value_at = |part: &RawSeries, at: Timestamp| -> f64 {
        let count = part.samples.times().partition_point(|time| *time <= at);
        let newest = count.checked_sub(1).and_then(|index| part.samples.get(index));
        match newest {
            Some(sample) if sample.at == at || kind == MetricKind::SchedulerSuccesses => sample.value,
            _ => 0.0,
        }
    };
    let sum_at = |at| Sample { at, value: parts.iter().map(|part| value_at(part, at)).sum() };
    times(parts).into_iter().map(sum_at).filter(|sample| sample.value.is_finite()).collect()
}

/// The times at which any of the parts was measured, oldest first.
fn times(parts: &[RawSeries]) -> Vec<Timestamp> {
    let mut times: Vec<Timestamp> = parts.iter().flat_map(|part| part.samples.times()).copied().collect();
    times.sort_unstable();
    times.dedup();
    times.drain(..times.len().saturating_sub(MAX_TIMES));
    times
}
