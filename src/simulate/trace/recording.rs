//! Recordings of wva (`wva serve --record-dir`) as load. The number of requests follows from the first tokens that the engines
//! counted and from the growth of their queues, spread over the time between two samples. Tokens of requests are known only on
//! average.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use smol_str::SmolStr;
use wva_core::GroupId;
use wva_core::snapshot::{ModelGroup, Pod, Sample, Signal, Signals, Snapshot};

use super::super::input::InputError;
use super::load::{MAX_INTERVALS, RateInterval, TokenMeans};
use crate::record::Lines;

/// Length of an interval, seconds: the usual scrape interval of Prometheus.
const INTERVAL_S: f64 = 15.0;
/// Intervals over which mean tokens are taken: 5 minutes, because no request may finish in 15 s.
const TOKEN_WINDOW: usize = 20;

pub(super) fn read(
    input: Box<dyn BufRead>,
    path: &Path,
    series: Option<&str>,
) -> Result<Vec<RateInterval>, InputError> {
    let mut model: Option<GroupId> = None;
    let mut counts = RequestCounts::default();
    for found in Lines::new(input, path) {
        let found = found.map_err(|error| InputError::unreadable(path, &error))?;
        // A damaged line is skipped: the counters continue in the next one.
        let Ok(entry) = found.entry else { continue };
        let error = |cause: String| InputError::new(&found.location, cause);
        if model.is_none() {
            model = choose(&entry.snapshot, series).map_err(error)?;
        }
        let group = model.as_ref().and_then(|model| entry.snapshot.groups.get(model));
        if let Some(group) = group {
            counts.add_group(group);
        }
        if counts.intervals.len() > MAX_INTERVALS {
            return Err(error("longer than two years; cut the file".into()));
        }
    }
    Ok(counts.into_intervals())
}

/// The model that is named, or the only one; `None` while a snapshot has no model.
fn choose(snapshot: &Snapshot, series: Option<&str>) -> Result<Option<GroupId>, String> {
    let models = || snapshot.groups.keys().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match series {
        Some(name) => {
            let found = snapshot.groups.keys().find(|model| model.to_string() == name);
            found.cloned().map(Some).ok_or_else(|| format!("no model {name:?}; there are {}", models()))
        }
        None if snapshot.groups.len() <= 1 => Ok(snapshot.groups.keys().next().cloned()),
        None => Err(format!("several models: give --series with one of {}", models())),
    }
}

/// What happened in an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Activity {
    /// Requests that arrived.
    arrived: f64,
    first_tokens: f64,
    prompt: f64,
    finished: f64,
    generated: f64,
}

impl Activity {
    fn add(&mut self, activity: Self, share: f64) {
        self.arrived += activity.arrived * share;
        self.first_tokens += activity.first_tokens * share;
        self.prompt += activity.prompt * share;
        self.finished += activity.finished * share;
        self.generated += activity.generated * share;
    }
}

/// Counters and queue of an engine at one time.
#[derive(Debug, Clone, Copy)]
struct Counters {
    at: Timestamp,
    first_tokens: f64,
    prompt: f64,
    finished: f64,
    generated: f64,
    waiting: f64,
}

impl Counters {
    /// `None` for an engine that counts no first tokens.
    fn new(signals: &Signals) -> Option<Self> {
        let newest = |signal| signals.newest(signal).map_or(0.0, |sample| sample.value);
        Some(Self {
            at: signals.newest(Signal::TimeToFirstTokenCount)?.at,
            first_tokens: newest(Signal::TimeToFirstTokenCount),
            prompt: newest(Signal::PromptTokens),
            finished: newest(Signal::RequestGenerationTokensCount),
            generated: newest(Signal::RequestGenerationTokensSum),
            waiting: newest(Signal::Waiting),
        })
    }

    /// The counters of an engine that starts at `at`.
    fn zero(at: Timestamp) -> Self {
        Self { at, first_tokens: 0.0, prompt: 0.0, finished: 0.0, generated: 0.0, waiting: 0.0 }
    }

    /// The activity since `before`. A lower counter was reset to 0 in between.
    fn since(self, before: Self) -> Activity {
        let is_reset = self.first_tokens < before.first_tokens;
        let before = if is_reset { Self::zero(before.at) } else { before };
        let grown = |now: f64, then: f64| (now - then).max(0.0);
        let first_tokens = grown(self.first_tokens, before.first_tokens);
        Activity {
            arrived: first_tokens + self.waiting - before.waiting,
            first_tokens,
            prompt: grown(self.prompt, before.prompt),
            finished: grown(self.finished, before.finished),
            generated: grown(self.generated, before.generated),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct EngineId {
    variant: SmolStr,
    pod: SmolStr,
    engine: SmolStr,
}

#[derive(Debug, Default)]
struct RequestCounts {
    start: Option<Timestamp>,
    intervals: Vec<Activity>,
    last: BTreeMap<EngineId, Counters>,
    /// Requests held at the gateway.
    held: Option<Sample>,
}

impl RequestCounts {
    fn add_group(&mut self, group: &ModelGroup) {
        let is_first = self.start.is_none() && self.last.is_empty();
        for variant in &group.variants {
            for replica in &variant.pods {
                self.add_pod(&variant.variant.id.name, replica, is_first);
            }
        }
        self.add_scheduler(&group.scheduler);
    }

    fn add_pod(&mut self, variant: &SmolStr, replica: &Pod, is_first: bool) {
        for (engine, signals) in replica.engines.iter() {
            let Some(now) = Counters::new(signals) else { continue };
            let id = EngineId { variant: variant.clone(), pod: replica.name.clone(), engine: engine.clone() };
            // A new pod counts from when it became ready. In the first evaluation no pod is new.
            let start = replica.ready_since.filter(|_| !is_first).map(Counters::zero);
            let before = self.last.insert(id, now).or(start);
            if let Some(before) = before.filter(|before| before.at < now.at) {
                self.spread(before.at, now.at, now.since(before));
            }
        }
    }

    /// Requests that the gateway holds arrive when they are held, not when they are dispatched.
    fn add_scheduler(&mut self, signals: &Signals) {
        let Some(now) = signals.newest(Signal::SchedulerQueueSize) else { return };
        let before = self.held.replace(now);
        if let Some(before) = before.filter(|before| before.at < now.at) {
            let arrived = now.value - before.value;
            self.spread(before.at, now.at, Activity { arrived, ..Activity::default() });
        }
    }

    /// Spreads `activity` evenly over the time in which it happened.
    fn spread(&mut self, from: Timestamp, to: Timestamp, activity: Activity) {
        let start = *self.start.get_or_insert(from);
        let seconds = |at: Timestamp| at.duration_since(start).as_secs_f64().max(0.0);
        let from_s = seconds(from);
        let to_s = seconds(to);
        if to_s <= from_s {
            return;
        }
        let last = (to_s / INTERVAL_S).ceil() as usize;
        if last > MAX_INTERVALS + 1 {
            return;
        }
        if self.intervals.len() < last {
            self.intervals.resize(last, Activity::default());
        }
        let first = (from_s / INTERVAL_S) as usize;
        for (index, interval) in self.intervals.iter_mut().enumerate().take(last).skip(first) {
            let start_s = index as f64 * INTERVAL_S;
            let overlap_s = (start_s + INTERVAL_S).min(to_s) - start_s.max(from_s);
            interval.add(activity, overlap_s.max(0.0) / (to_s - from_s));
        }
    }

    fn into_intervals(self) -> Vec<RateInterval> {
        let mut tokens = None;
        let interval = |index: usize| {
            let window = &self.intervals[(index + 1).saturating_sub(TOKEN_WINDOW)..=index];
            let mut sum = Activity::default();
            window.iter().for_each(|activity| sum.add(*activity, 1.0));
            // Counts are spread over intervals, so that less than half a request is a remainder and gives no mean.
            if sum.first_tokens >= 0.5 && sum.finished >= 0.5 {
                let prompt = sum.prompt / sum.first_tokens;
                tokens = Some(TokenMeans { prompt, output: sum.generated / sum.finished });
            }
            let until = Duration::from_secs_f64((index + 1) as f64 * INTERVAL_S);
            RateInterval { until, rps: self.intervals[index].arrived.max(0.0) / INTERVAL_S, tokens }
        };
        (0..self.intervals.len()).map(interval).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn counters(first_tokens: f64, waiting: f64) -> Counters {
        Counters {
            at: at(0),
            first_tokens,
            prompt: first_tokens * 4000.0,
            finished: first_tokens,
            generated: first_tokens * 100.0,
            waiting,
        }
    }

    #[test]
    fn arrivals_are_first_tokens_plus_the_growth_of_the_queue() {
        let mut counts = RequestCounts::default();
        counts.spread(at(0), at(30), counters(60.0, 30.0).since(counters(0.0, 0.0)));
        counts.spread(at(30), at(60), counters(180.0, 0.0).since(counters(60.0, 30.0)));
        let intervals = counts.into_intervals();
        let rates: Vec<_> =
            intervals.iter().map(|interval| (interval.until.as_secs(), interval.rps)).collect();
        assert_eq!(rates, [(15, 3.0), (30, 3.0), (45, 3.0), (60, 3.0)]);
        assert_eq!(intervals[3].tokens, Some(TokenMeans { prompt: 4000.0, output: 100.0 }));
    }

    #[test]
    fn a_counter_that_was_reset_counts_from_zero() {
        let activity = counters(10.0, 0.0).since(counters(1000.0, 5.0));
        assert!((activity.arrived - 10.0).abs() < 1e-9, "{activity:?}");
        assert!((activity.prompt - 40_000.0).abs() < 1e-9, "{activity:?}");
    }
}
