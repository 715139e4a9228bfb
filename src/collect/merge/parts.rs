//! What comes in parts: one figure of one process in several series, divided by labels, and how these become one again.
//!
//! A page divides a figure by labels of its own (SGLang its counters by `is_streaming`, its gauges by `priority`). Of a series
//! of Prometheus, labels come from the scrape configuration too, and tell copies apart instead: a label that every series
//! of the pod has is taken for one of these.
//!
//! - Copies are chosen whole, by where they were scraped; parts of two copies are never added up.
//! - Of parts by priority and their total (no priority, or an empty one) the total counts.
//! - Parts add up at moments at which all of them were scraped. A part that is seen later for the first time counts before
//!   that as it was first seen, so that a page that was cut never looks like a jump.
//! - A share isn't added up: the fullest counts. Nor is the size of a cache: the smallest counts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use wva_core::snapshot::{Sample, Signal};

use super::raw::RawSeries;
use crate::collect::signals::{Kind, Name};

/// Moments of one figure that are kept, the newest: 10 min of a scrape a second, by two jobs. A page that gives every series a
/// time of its own has as many moments as samples, and each takes a look at every part.
const MAX_MOMENTS: usize = 1_200;

fn may_be_divided(series: &RawSeries) -> bool {
    !series.name.kind.is_scheduler() && series.name.kind != Kind::CacheConfig
}

/// Settles which labels of the series of one pod divide: those that not every series has. Parts of answers that aren't whole
/// are left out, since nobody knows what is missing.
pub(super) fn settle(raw: &mut Vec<RawSeries>) {
    let divisible = || raw.iter().filter(|series| may_be_divided(series));
    if divisible().any(|series| !series.part.unsure.is_empty()) {
        let names = |series: &RawSeries| series.part.unsure.iter().map(|(name, _)| *name).collect();
        let common: Option<BTreeSet<u64>> =
            divisible().map(names).reduce(|one: BTreeSet<u64>, next| &one & &next);
        let common = common.unwrap_or_default();
        for series in raw.iter_mut().filter(|series| may_be_divided(series)) {
            for (_, pair) in series.part.unsure.iter().filter(|(name, _)| !common.contains(name)) {
                series.part.id = series.part.id.wrapping_add(*pair);
                series.origin = series.origin.wrapping_sub(*pair);
            }
        }
    }
    raw.retain(|series| !series.part.is_cut || series.part.id == 0 || !may_be_divided(series));
}

/// One series of all `series` of one name and subject; `None` when nothing is known for sure.
pub(super) fn whole(series: Vec<RawSeries>) -> Option<RawSeries> {
    let name = series.first()?.name;
    let mut parts = if name.kind.is_scheduler() { series } else { best_copy(series) };
    // Of one part, the copy that counts.
    parts.sort_by_key(|series| (series.part.id, Reverse(series.rank())));
    parts.dedup_by_key(|series| series.part.id);
    if !name.kind.is_scheduler() {
        leave_total_or_parts(&mut parts);
    }
    let samples = match &parts[..] {
        [_] => None,
        parts if name.kind.is_scheduler() => Some(scheduler_total(name.kind, parts)),
        parts => Some(together(name, parts)),
    };
    let mut first = parts.into_iter().next()?;
    first.samples = samples.unwrap_or(first.samples);
    (!first.samples.is_empty()).then_some(first)
}

/// The series of the scrape target that counts: the one with the newest sample.
fn best_copy(series: Vec<RawSeries>) -> Vec<RawSeries> {
    if series.len() < 2 {
        return series;
    }
    let mut targets: BTreeMap<u64, Vec<RawSeries>> = BTreeMap::new();
    for series in series {
        targets.entry(series.origin).or_default().push(series);
    }
    let rank = |series: &Vec<RawSeries>| series.iter().map(RawSeries::rank).max();
    targets.into_values().max_by_key(rank).unwrap_or_default()
}

/// Of a total and its parts by priority leaves the total, unless the parts are newer.
fn leave_total_or_parts(parts: &mut Vec<RawSeries>) {
    let newest = |has_priority: bool| {
        let those = parts.iter().filter(|series| series.part.has_priority == has_priority);
        those.map(RawSeries::newest).max()
    };
    if let (Some(total), Some(divided)) = (newest(false), newest(true)) {
        let drops_parts = total >= divided;
        parts.retain(|series| series.part.has_priority != drops_parts);
    }
}

/// All parts of a figure of an engine.
fn together(name: &Name, parts: &[RawSeries]) -> Vec<Sample> {
    let add: fn(f64, f64) -> f64 = match name.signal {
        Signal::KvUsage | Signal::Asleep => f64::max,
        Signal::KvCapacity => f64::min,
        _ => |one, next| one + next,
    };
    let moments = moments(parts);
    let is_count = matches!(name.signal, Signal::Waiting | Signal::Running);
    let before_first = |part: &RawSeries| {
        if is_count { Some(0.0) } else { part.samples.first().map(|first| first.value) }
    };
    let value_at = |part: &RawSeries, at: Timestamp| match part.samples.binary_search_by_key(&at, |s| s.at) {
        Ok(place) => part.samples.get(place).map(|sample| sample.value),
        Err(0) => before_first(part),
        Err(_) => None,
    };
    let sum = |at| {
        let values: Option<Vec<f64>> = parts.iter().map(|part| value_at(part, at)).collect();
        let value = values?.into_iter().reduce(add).filter(|value| value.is_finite())?;
        Some(Sample { at, value })
    };
    let kept: Vec<Sample> = moments.iter().filter_map(|at| sum(*at)).collect();
    // Parts that were scraped at different times are no parts of one page.
    if kept.len() * 2 < moments.len() { Vec::new() } else { kept }
}

/// The sum of the scheduler's parts at every moment that any of them was measured. A part without a sample at that moment
/// counts as nothing when it is a gauge (the queue is gone), and with its last value when it is a counter (it still counts).
fn scheduler_total(kind: Kind, parts: &[RawSeries]) -> Vec<Sample> {
    let value_at = |part: &RawSeries, at: Timestamp| -> f64 {
        let known = part.samples.partition_point(|sample| sample.at <= at);
        let newest = known.checked_sub(1).and_then(|index| part.samples.get(index));
        match newest {
            Some(sample) if sample.at == at || kind == Kind::SchedulerSuccesses => sample.value,
            _ => 0.0,
        }
    };
    let sum = |at| Sample { at, value: parts.iter().map(|part| value_at(part, at)).sum() };
    moments(parts).into_iter().map(sum).filter(|sample| sample.value.is_finite()).collect()
}

/// When any of the parts was measured, oldest first.
fn moments(parts: &[RawSeries]) -> Vec<Timestamp> {
    let mut moments: Vec<Timestamp> =
        parts.iter().flat_map(|part| part.samples.iter().map(|sample| sample.at)).collect();
    moments.sort_unstable();
    moments.dedup();
    moments.drain(..moments.len().saturating_sub(MAX_MOMENTS));
    moments
}
