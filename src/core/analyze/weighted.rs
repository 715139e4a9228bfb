//! The weighted score: KV-cache usage, queue, and how much slower a replica generates than at its best. `docs/decisions/weighted.md` explains
//! it on one page.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::saturation_token::history::OutputLength;
use super::score::{Scored, queue_share, step};
use crate::model::{Bounds, Steps};
use crate::units::{Replicas, Seconds, to_f64};
use smol_str::{SmolStr, format_smolstr};

/// The weight of KV-cache usage. The weights sum to 1, so that a score is between 0 and 1.
const KV_WEIGHT: f64 = 0.5;
const QUEUE_WEIGHT: f64 = 0.3;
const DEGRADATION_WEIGHT: f64 = 0.2;

/// Requests in a full queue: V1's queue threshold.
pub(crate) const QUEUE_LIMIT: f64 = 5.0;

const BEST_SPEED_WINDOW: Seconds = Seconds::whole(3600);

/// How long a best speed counts against a removal. Without one no engine is slow, which lowers the score.
const REMOVAL_SPEED_WINDOW: Seconds = Seconds::whole(7 * 86_400);

/// Of the speeds within this interval only the largest is kept, so that at most one is stored for each.
const SPEED_INTERVAL: Seconds = Seconds::whole(60);

/// What one engine shows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct WeightedObservation {
    /// KV-cache usage, 0 to 1.
    pub kv: f64,
    /// Waiting requests.
    pub queue: u32,
    /// Tokens a second that a running request gets; `None` while none runs. See [`speed`].
    pub speed: Option<f64>,
    /// The best such speed of the last hour on the same hardware; 0 if there is none. See [`BestSpeeds`].
    pub best: f64,
}

/// Tokens/s that one running request gets: the engine's generation `rate` divided by its `running` requests, or the inverse of the `latency`
/// between two tokens if the rate is not measured. `None` while nothing runs or nothing is measured.
pub(crate) fn speed(rate: Option<f64>, running: f64, latency: f64) -> Option<f64> {
    match rate {
        Some(rate) if running >= 1.0 => Some(rate / running),
        None if running >= 1.0 && latency > 0.0 => Some(1.0 / latency),
        _ => None,
    }
}

/// How much slower it is than at its best, 0 to 1: 1 is no progress. 0 if there is no best speed.
pub(crate) fn degradation(speed: Option<f64>, best: f64) -> f64 {
    match speed {
        Some(speed) if best > 0.0 => (1.0 - speed / best).clamp(0.0, 1.0),
        _ => 0.0,
    }
}

/// How loaded one engine is: 0 idle, 1 full and without progress.
pub(crate) fn score(observation: WeightedObservation, queue_limit: f64) -> f64 {
    KV_WEIGHT * observation.kv.clamp(0.0, 1.0)
        + QUEUE_WEIGHT * queue_share(observation.queue, queue_limit)
        + DEGRADATION_WEIGHT * degradation(observation.speed, observation.best)
}

pub(crate) fn analyze(
    replicas: &[WeightedObservation],
    current: Replicas,
    bounds: Bounds,
    steps: Steps,
    queue_limit: f64,
) -> Scored {
    let scores = replicas.iter().map(|observation| score(*observation, queue_limit)).collect();
    step(scores, current, bounds, steps)
}

/// The best speeds of the last hour by [`hardware_key`], of one model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BestSpeeds(BTreeMap<SmolStr, SpeedWindow>);

impl BestSpeeds {
    /// Adds a speed, and drops hardware that has shown none for a week.
    pub fn observe(&mut self, hardware: &str, now: Timestamp, speed: f64) {
        self.0.entry(hardware.into()).or_default().observe(now, speed);
        self.0.retain(|_, best| best.largest(now, REMOVAL_SPEED_WINDOW) > 0.0);
    }

    /// The largest speed of the hour before `now`; 0 if there is none.
    pub fn get(&self, hardware: &str, now: Timestamp) -> f64 {
        self.0.get(hardware).map_or(0.0, |best| best.largest(now, BEST_SPEED_WINDOW))
    }

    /// The same of the week before `now`, by which a removal is judged.
    pub fn for_removals(&self, hardware: &str, now: Timestamp) -> f64 {
        self.0.get(hardware).map_or(0.0, |best| best.largest(now, REMOVAL_SPEED_WINDOW))
    }
}

/// The key of engines that are compared with each other: the same accelerator and number of GPUs, and answers of about the same length (in V2's
/// classes).
pub(crate) fn hardware_key(accelerator: &str, gpus: u32, generated: f64) -> SmolStr {
    let bucket = match OutputLength::from_mean(generated) {
        OutputLength::Short => "short",
        OutputLength::Medium => "medium",
        OutputLength::Long => "long",
    };
    format_smolstr!("{accelerator}|{gpus}|{bucket}")
}

/// The largest speed of a sliding hour, and that of the week before it, as (milliseconds since the epoch, tokens/s). Each entry is later and
/// slower than the one before: a speed that is followed by an equal or larger one can never become the largest again, and is not kept.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
struct SpeedWindow(Vec<(i64, f64)>);

impl SpeedWindow {
    /// Adds a speed, if it is a positive number.
    fn observe(&mut self, now: Timestamp, speed: f64) {
        let at = now.as_millisecond();
        // Of the entries older than the hour the largest is enough, which is the first one.
        let mut has_older = false;
        self.0.retain(|(seen_at, _)| {
            is_younger(*seen_at, at, BEST_SPEED_WINDOW)
                || is_younger(*seen_at, at, REMOVAL_SPEED_WINDOW) && !std::mem::replace(&mut has_older, true)
        });
        if !(speed.is_finite() && speed > 0.0) {
            return;
        }
        while self.0.pop_if(|(_, slower)| *slower <= speed).is_some() {}
        let is_close = |(seen_at, _): &(i64, f64)| is_younger(*seen_at, at, SPEED_INTERVAL);
        if !self.0.last().is_some_and(is_close) {
            self.0.push((at, speed));
        }
    }

    fn largest(&self, now: Timestamp, window: Seconds) -> f64 {
        let at = now.as_millisecond();
        let first = self.0.iter().find(|(seen_at, _)| is_younger(*seen_at, at, window));
        first.map_or(0.0, |(_, speed)| *speed)
    }
}

fn is_younger(at: i64, now: i64, than: Seconds) -> bool {
    to_f64(now.saturating_sub(at)) < than.get() * 1000.0
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use proptest::prelude::*;

    use super::*;

    const PAGE: &str = include_str!("../../../docs/decisions/weighted.md");

    fn at(seconds: i64) -> Timestamp {
        Timestamp::constant(1_800_000_000, 0) + SignedDuration::from_secs(seconds)
    }

    #[test]
    fn the_page_says_what_the_code_computes() {
        let bounds = Bounds { min: Replicas::ONE, max: Some(Replicas::new(10)) };
        let (kv, queue, speed, best) = (0.95, 5, speed(Some(40.0), 10.0, 0.0), 10.0);
        let observed = [WeightedObservation { kv, queue, speed, best }];
        let Scored { mean, proposed, .. } =
            analyze(&observed, Replicas::new(2), bounds, Steps::default(), QUEUE_LIMIT);
        let (slower, mean) = (degradation(speed, best), mean.unwrap());
        let says = format!("degradation {slower}, score {mean:.3} and {proposed} replicas");
        assert!(PAGE.contains(&says), "the page does not say {says:?}");
    }

    #[test]
    fn without_a_generation_rate_the_latency_gives_the_speed() {
        assert_eq!(speed(None, 3.0, 0.02), Some(50.0));
        assert_eq!(speed(None, 3.0, 0.0), None);
        assert_eq!(speed(Some(30.0), 0.0, 0.02), None);
    }

    #[test]
    fn without_a_best_speed_nothing_is_slow_not_even_what_stands_still() {
        let slower = |speed, best| degradation(speed, best).to_string();
        assert_eq!([slower(Some(0.0), 0.0), slower(Some(5.0), 0.0), slower(None, 10.0)], ["0", "0", "0"]);
        assert_eq!([slower(Some(0.0), 10.0), slower(Some(20.0), 10.0)], ["1", "0"]);
    }

    #[test]
    fn hardware_and_length_of_answers_keep_speeds_apart() {
        let keys = [0.0, 99.9, 100.0, 499.9, 500.0].map(|length| hardware_key("H100", 2, length));
        let lengths = ["short", "short", "medium", "medium", "long"];
        assert_eq!(keys, lengths.map(|length| format!("H100|2|{length}")));
    }

    #[test]
    fn a_best_speed_is_a_positive_number_and_counts_for_an_hour() {
        let mut best = SpeedWindow::default();
        for no_speed in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            best.observe(at(0), no_speed);
            assert_eq!(best, SpeedWindow::default());
        }
        for (second, speed) in [(0, 50.0), (120, 30.0), (240, 40.0)] {
            best.observe(at(second), speed);
        }
        let largest =
            [3599, 3600, 3839, 3840].map(|now| best.largest(at(now), BEST_SPEED_WINDOW).to_string());
        assert_eq!(largest, ["50", "40", "40", "0"]);
    }

    #[test]
    fn hardware_of_which_nothing_was_seen_for_a_week_is_forgotten() {
        let mut bests = BestSpeeds::default();
        let week = 7 * 86_400;
        bests.observe("old", at(0), 50.0);
        bests.observe("new", at(week), 40.0);
        assert_eq!(serde_json::to_string(&bests).unwrap(), r#"{"new":[[1800604800000,40.0]]}"#);
        assert_eq!(["old", "new"].map(|key| bests.get(key, at(week + 1)).to_string()), ["0", "40"]);
    }

    #[test]
    fn a_best_that_is_older_than_an_hour_still_counts_against_a_removal_for_a_week() {
        let mut bests = BestSpeeds::default();
        for (second, speed) in [(0, 50.0), (120, 45.0), (5000, 10.0), (9000, 9.0)] {
            bests.observe("H100", at(second), speed);
        }
        let both = |second| {
            let now = at(second);
            [bests.get("H100", now), bests.for_removals("H100", now)].map(|speed| speed.to_string())
        };
        assert_eq!(both(9000), ["9", "50"]);
        assert_eq!(both(7 * 86_400 - 1), ["0", "50"]);
        assert_eq!(both(7 * 86_400 + 4999), ["0", "9"]);
        let stored = serde_json::to_string(&bests).unwrap();
        assert_eq!(serde_json::from_str::<BestSpeeds>(&stored).unwrap(), bests);
    }

    #[test]
    fn an_hour_of_falling_speeds_stays_small() {
        let mut best = SpeedWindow::default();
        for second in 0..4000_i32 {
            best.observe(at(second.into()), 1e3 - 1.0 / 7.0 - f64::from(second) / 9.0);
        }
        let (entries, bytes) = (best.0.len(), serde_json::to_string(&best).unwrap().len());
        assert!(entries <= 62 && bytes < 2300, "{entries} entries, {bytes} bytes");
    }

    proptest! {
        #![proptest_config(crate::tests::support::cases::quick())]

        #[test]
        fn a_score_is_between_0_and_1_and_grows_with_load_and_slowness(
            kv in 0.0..1.0_f64, queue in 0_u32..9, speed in 0.0..20.0_f64, best in 0.0..20.0_f64, less in 0.0..1.0_f64,
        ) {
            let usual = WeightedObservation { kv, queue, speed: Some(speed), best };
            let base = score(usual, QUEUE_LIMIT);
            prop_assert!((0.0..=1.0).contains(&base));
            let fuller = WeightedObservation { kv: kv + less, ..usual };
            let queued = WeightedObservation { queue: queue + 1, ..usual };
            let slower = WeightedObservation { speed: Some(speed * less), ..usual };
            for worse in [fuller, queued, slower] {
                prop_assert!(score(worse, QUEUE_LIMIT) >= base);
            }
        }

        #[test]
        fn the_best_is_the_largest_of_the_hour_to_the_minute(
            speeds in proptest::collection::vec((0_i64..900, 0.1..100.0_f64), 1..30),
        ) {
            let (mut best, mut now, mut all) = (SpeedWindow::default(), 0, Vec::new());
            for (gap, speed) in speeds {
                now += gap;
                best.observe(at(now), speed);
                all.push((now, speed));
            }
            let largest = |since: i64| {
                all.iter().filter(|(at, _)| *at > since).map(|(_, speed)| *speed).fold(0.0, f64::max)
            };
            let found = best.largest(at(now), BEST_SPEED_WINDOW);
            prop_assert!(found <= largest(now - 3600));
            prop_assert!(found >= largest(now - 3540));
        }
    }
}
