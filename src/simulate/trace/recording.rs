//! A recording of ours (`wva serve --record-dir`) as load: how many requests came is told by the first tokens that the engines
//! counted and by how their queues grew, and spread over the time between two samples. What a request had of tokens is
//! known on average only.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use smol_str::SmolStr;
use wva_core::GroupId;
use wva_core::snapshot::{ModelGroup, Replica, Signal, Signals, Snapshot};

use super::{MOST_STRETCHES, Series, Stretch, TraceError};
use crate::record::Lines;

/// How long a stretch is: the usual scrape interval of a Prometheus.
const STRETCH_S: f64 = 15.0;
/// Mean tokens are those of the last five minutes: a quarter of a minute may see no request finish.
const TOKENS_OVER: usize = 20;

pub(super) fn read(
    input: Box<dyn BufRead>,
    path: &Path,
    series: &Series,
) -> Result<Vec<Stretch>, TraceError> {
    let mut model: Option<GroupId> = None;
    let mut counted = Counted::default();
    for found in Lines::new(input, path) {
        let found = found.map_err(|source| TraceError::Unreadable { path: path.into(), source })?;
        // A damaged line costs itself: counters go on in the next one.
        let Ok(entry) = found.entry else { continue };
        let wrong = |cause| TraceError::Line { path: path.into(), line: found.place.line, cause };
        if model.is_none() {
            model = choose(&entry.snapshot, series).map_err(wrong)?;
        }
        let group = model.as_ref().and_then(|model| entry.snapshot.groups.get(model));
        if let Some(group) = group {
            counted.see(group);
        }
        if counted.bins.len() > MOST_STRETCHES {
            return Err(wrong("longer than two years; cut the file".into()));
        }
    }
    Ok(counted.stretches())
}

/// Which model is meant: the one that is named, or the only one; none while a snapshot has none.
fn choose(snapshot: &Snapshot, series: &Series) -> Result<Option<GroupId>, String> {
    let models = || snapshot.groups.keys().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match &series.0 {
        Some(wanted) => {
            let found = snapshot.groups.keys().find(|model| model.to_string() == *wanted);
            found.cloned().map(Some).ok_or_else(|| format!("no model {wanted:?}; there are {}", models()))
        }
        None if snapshot.groups.len() <= 1 => Ok(snapshot.groups.keys().next().cloned()),
        None => Err(format!("several models: give --series with one of {}", models())),
    }
}

/// What happened in some time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sums {
    came: f64,
    first_tokens: f64,
    prompt: f64,
    finished: f64,
    generated: f64,
}

impl Sums {
    fn add(&mut self, other: Self, share: f64) {
        self.came += other.came * share;
        self.first_tokens += other.first_tokens * share;
        self.prompt += other.prompt * share;
        self.finished += other.finished * share;
        self.generated += other.generated * share;
    }
}

/// Counters and the queue as they stood.
#[derive(Debug, Clone, Copy, Default)]
struct Stand {
    first_tokens: f64,
    prompt: f64,
    finished: f64,
    generated: f64,
    waiting: f64,
}

impl Stand {
    fn of(signals: &Signals) -> Option<(Timestamp, Self)> {
        let newest = |signal| signals.newest(signal).map_or(0.0, |sample| sample.value);
        let at = signals.newest(Signal::TimeToFirstTokenCount)?.at;
        let stand = Self {
            first_tokens: newest(Signal::TimeToFirstTokenCount),
            prompt: newest(Signal::PromptTokens),
            finished: newest(Signal::RequestGenerationTokensCount),
            generated: newest(Signal::RequestGenerationTokensSum),
            waiting: newest(Signal::Waiting),
        };
        Some((at, stand))
    }

    /// What happened since `before`. A counter that is lower began again at 0.
    fn since(self, before: Self) -> Sums {
        let restarted = self.first_tokens < before.first_tokens;
        let before = if restarted { Self::default() } else { before };
        let grown = |now: f64, then: f64| (now - then).max(0.0);
        let first_tokens = grown(self.first_tokens, before.first_tokens);
        Sums {
            came: first_tokens + self.waiting - before.waiting,
            first_tokens,
            prompt: grown(self.prompt, before.prompt),
            finished: grown(self.finished, before.finished),
            generated: grown(self.generated, before.generated),
        }
    }
}

/// An engine of a pod of a variant.
type EngineId = (SmolStr, SmolStr, SmolStr);

#[derive(Debug, Default)]
struct Counted {
    start: Option<Timestamp>,
    bins: Vec<Sums>,
    last: BTreeMap<EngineId, (Timestamp, Stand)>,
    held: Option<(Timestamp, f64)>,
}

impl Counted {
    fn see(&mut self, group: &ModelGroup) {
        let first_look = self.start.is_none() && self.last.is_empty();
        for variant in &group.variants {
            for replica in &variant.replicas {
                self.see_pod(&variant.variant.id.name, replica, first_look);
            }
        }
        self.see_scheduler(&group.scheduler);
    }

    fn see_pod(&mut self, variant: &SmolStr, replica: &Replica, first_look: bool) {
        for (engine, signals) in replica.engines.iter() {
            let Some((at, stand)) = Stand::of(signals) else { continue };
            let id = (variant.clone(), replica.pod.clone(), engine.clone());
            // A pod that was not there before counts from its beginning; in the first evaluation nobody knows since when.
            let fresh = replica.ready_since.filter(|_| !first_look).map(|since| (since, Stand::default()));
            let before = self.last.insert(id, (at, stand)).or(fresh);
            if let Some((then, before)) = before.filter(|(then, _)| *then < at) {
                self.spread(then, at, stand.since(before));
            }
        }
    }

    /// Requests that the gateway held come as they are held, not as they are let go.
    fn see_scheduler(&mut self, signals: &Signals) {
        let Some(now) = signals.newest(Signal::SchedulerQueueSize) else { return };
        let before = self.held.replace((now.at, now.value));
        if let Some((then, held)) = before.filter(|(then, _)| *then < now.at) {
            self.spread(then, now.at, Sums { came: now.value - held, ..Sums::default() });
        }
    }

    /// Shares out what happened evenly over the time in which it happened.
    fn spread(&mut self, from: Timestamp, to: Timestamp, sums: Sums) {
        let start = *self.start.get_or_insert(from);
        let at = |moment: Timestamp| moment.duration_since(start).as_secs_f64().max(0.0);
        let (from, to) = (at(from), at(to));
        let length = to - from;
        if length <= 0.0 {
            return;
        }
        let last = (to / STRETCH_S).ceil() as usize;
        if last > MOST_STRETCHES + 1 {
            return;
        }
        if self.bins.len() < last {
            self.bins.resize(last, Sums::default());
        }
        for (index, bin) in self.bins.iter_mut().enumerate().take(last).skip((from / STRETCH_S) as usize) {
            let begins = index as f64 * STRETCH_S;
            let overlap = (begins + STRETCH_S).min(to) - begins.max(from);
            bin.add(sums, overlap.max(0.0) / length);
        }
    }

    fn stretches(self) -> Vec<Stretch> {
        let mut tokens = None;
        let of = |index: usize| {
            let mut sums = Sums::default();
            let window = self.bins.get((index + 1).saturating_sub(TOKENS_OVER)..=index).unwrap_or_default();
            window.iter().for_each(|bin| sums.add(*bin, 1.0));
            let known = sums.first_tokens >= 0.5 && sums.finished >= 0.5;
            tokens =
                known.then(|| (sums.prompt / sums.first_tokens, sums.generated / sums.finished)).or(tokens);
            let until = Duration::from_secs_f64((index + 1) as f64 * STRETCH_S);
            Stretch { until, rps: self.bins[index].came.max(0.0) / STRETCH_S, tokens }
        };
        (0..self.bins.len()).map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn stand(first_tokens: f64, waiting: f64) -> Stand {
        let (prompt, generated) = (first_tokens * 4000.0, first_tokens * 100.0);
        Stand { first_tokens, prompt, finished: first_tokens, generated, waiting }
    }

    #[test]
    fn arrivals_are_first_tokens_and_what_the_queue_grew_by() {
        let mut counted = Counted::default();
        counted.spread(at(0), at(30), stand(60.0, 30.0).since(stand(0.0, 0.0)));
        counted.spread(at(30), at(60), stand(180.0, 0.0).since(stand(60.0, 30.0)));
        let found = counted.stretches();
        let rates: Vec<_> = found.iter().map(|one| (one.until.as_secs(), one.rps)).collect();
        assert_eq!(rates, [(15, 3.0), (30, 3.0), (45, 3.0), (60, 3.0)]);
        assert_eq!(found[3].tokens, Some((4000.0, 100.0)));
    }

    #[test]
    fn a_counter_that_began_again_counts_from_zero() {
        let sums = stand(10.0, 0.0).since(stand(1000.0, 5.0));
        assert!((sums.came - 10.0).abs() < 1e-9 && (sums.prompt - 40_000.0).abs() < 1e-9, "{sums:?}");
    }
}
