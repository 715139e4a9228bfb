//! Seed 000, the weighted score: KV-cache usage, queue, and how much slower than its best a replica generates. Source:
//! algorithm reference §9.1; in one page: `docs/decisions/weighted.md`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::score::{Scored, queue_share, step};
use crate::model::{Bounds, Steps};
use crate::units::{Replicas, Seconds, float};
use smol_str::{SmolStr, format_smolstr};

/// Weights of KV-cache usage, queue and degradation. Source: algorithm reference §9.1.
const WEIGHTS: [f64; 3] = [0.5, 0.3, 0.2];

/// A queue of this length is a full one: V1's queue threshold.
pub const QUEUE_LIMIT: f64 = 5.0;

/// How long a best speed counts.
const REMEMBERED: Seconds = Seconds::whole(3600);

/// How long it counts against a removal: without it nothing is slow, and what is not slow lowers the score.
const REMEMBERED_FOR_REMOVALS: Seconds = Seconds::whole(7 * 86_400);

/// Of speeds seen within this time only the largest is kept, which bounds what is stored to one an interval.
const APART: Seconds = Seconds::whole(60);

/// What was seen of one serving process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observation {
    /// KV-cache usage, 0 to 1.
    pub kv: f64,
    /// Waiting requests.
    pub queue: u32,
    /// Tokens a second that one of its running requests gets; `None` while none runs. See [`speed`].
    pub speed: Option<f64>,
    /// The best such speed of the last hour on the same hardware; 0 when there is none. See [`Bests`].
    pub best: f64,
}

/// Tokens a second one running request gets: the replica's generation rate over the `running` requests, or without such
/// a series one over the seconds between two tokens. `None` while nothing runs or nothing is measured.
#[must_use]
pub fn speed(rate: Option<f64>, running: f64, latency: f64) -> Option<f64> {
    match rate {
        Some(rate) if running >= 1.0 => Some(rate / running),
        None if running >= 1.0 && latency > 0.0 => Some(1.0 / latency),
        _ => None,
    }
}

/// How much slower than its best: 0 not at all, 1 it stands still. 0 without a best to compare with.
#[must_use]
pub fn degradation(speed: Option<f64>, best: f64) -> f64 {
    match speed {
        Some(speed) if best > 0.0 => (1.0 - speed / best).clamp(0.0, 1.0),
        _ => 0.0,
    }
}

/// How loaded one replica is: 0 idle, 1 full and standing still.
#[must_use]
pub fn score(one: Observation, queue_limit: f64) -> f64 {
    let [kv, queue, slow] = WEIGHTS;
    kv * one.kv.clamp(0.0, 1.0)
        + queue * queue_share(one.queue, queue_limit)
        + slow * degradation(one.speed, one.best)
}

/// The number of replicas one variant wants.
#[must_use]
pub fn analyze(
    replicas: &[Observation],
    current: Replicas,
    bounds: Bounds,
    steps: Steps,
    queue_limit: f64,
) -> Scored {
    step(replicas.iter().map(|one| score(*one, queue_limit)).collect(), current, bounds, steps)
}

/// The best speeds of the last hour by [`hardware`], of one model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bests(BTreeMap<SmolStr, Best>);

impl Bests {
    /// Takes in a speed, and drops what no speed was seen of for a week.
    pub fn observe(&mut self, hardware: &str, now: Timestamp, speed: f64) {
        self.0.entry(hardware.into()).or_default().observe(now, speed);
        self.0.retain(|_, best| best.of(now, REMEMBERED_FOR_REMOVALS) > 0.0);
    }

    /// The largest speed of the hour before `now`; 0 when there is none.
    #[must_use]
    pub fn get(&self, hardware: &str, now: Timestamp) -> f64 {
        self.0.get(hardware).map_or(0.0, |best| best.of(now, REMEMBERED))
    }

    /// The same of the week before `now`: what a removal is judged by.
    #[must_use]
    pub fn for_removals(&self, hardware: &str, now: Timestamp) -> f64 {
        self.0.get(hardware).map_or(0.0, |best| best.of(now, REMEMBERED_FOR_REMOVALS))
    }
}

/// Which replicas of a model are compared with each other: those with the same accelerator and GPUs whose requests
/// generate about as many tokens. Source: algorithm reference §9.1 and the buckets of §3.1.
#[must_use]
pub fn hardware(accelerator: &str, gpus: u32, generated: f64) -> SmolStr {
    let bucket = match generated {
        long if long >= 500.0 => "long",
        medium if medium >= 100.0 => "medium",
        _ => "short",
    };
    format_smolstr!("{accelerator}|{gpus}|{bucket}")
}

/// The largest speed of a sliding hour, and that of the week before it, as milliseconds since the epoch and speed: ever later, ever slower. A speed that
/// an equal or larger one follows can never become the largest again and is not kept.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
struct Best(Vec<(i64, f64)>);

impl Best {
    /// Takes in a speed. One that is not a positive number is none.
    fn observe(&mut self, now: Timestamp, speed: f64) {
        let at = now.as_millisecond();
        // Of what is older than the hour the largest is enough: ever later is ever slower.
        let mut older = false;
        self.0.retain(|(kept, _)| {
            younger(*kept, at, REMEMBERED)
                || younger(*kept, at, REMEMBERED_FOR_REMOVALS) && !std::mem::replace(&mut older, true)
        });
        if !(speed.is_finite() && speed > 0.0) {
            return;
        }
        while self.0.pop_if(|(_, kept)| *kept <= speed).is_some() {}
        let close = |(kept, _): &(i64, f64)| younger(*kept, at, APART);
        if !self.0.last().is_some_and(close) {
            self.0.push((at, speed));
        }
    }

    fn of(&self, now: Timestamp, window: Seconds) -> f64 {
        let at = now.as_millisecond();
        let valid = self.0.iter().find(|(kept, _)| younger(*kept, at, window));
        valid.map_or(0.0, |(_, speed)| *speed)
    }
}

fn younger(at: i64, now: i64, than: Seconds) -> bool {
    float(now.saturating_sub(at)) < than.get() * 1000.0
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use proptest::prelude::*;

    use super::*;

    const PAGE: &str = include_str!("../../../docs/decisions/weighted.md");
    const TEN: Bounds = Bounds { min: Replicas::ONE, max: Some(Replicas::new(10)) };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::constant(1_800_000_000, 0) + SignedDuration::from_secs(seconds)
    }

    fn wanted(one: Observation, current: u32) -> Scored {
        analyze(&[one], Replicas::new(current), TEN, Steps::default(), QUEUE_LIMIT)
    }

    #[test]
    fn the_page_says_what_the_code_computes() {
        let one = Observation { kv: 0.95, queue: 5, speed: speed(Some(40.0), 10.0, 0.0), best: 10.0 };
        let found = wanted(one, 2);
        let slower = degradation(one.speed, one.best);
        let says = format_smolstr!(
            "degradation {slower}, score {:.3} and {} replicas",
            found.mean.unwrap(),
            found.wanted
        );
        assert!(PAGE.contains(says.as_str()), "the page does not say {says:?}");
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
        let keys = [0.0, 99.9, 100.0, 499.9, 500.0].map(|length| hardware("H100", 2, length));
        let short = ["H100|2|short", "H100|2|short", "H100|2|medium", "H100|2|medium", "H100|2|long"];
        assert_eq!(keys, short);
    }

    #[test]
    fn a_best_speed_counts_for_an_hour() {
        let mut best = Best::default();
        best.observe(at(0), 50.0);
        best.observe(at(120), 30.0);
        best.observe(at(240), 40.0);
        assert_eq!(
            [3599, 3600, 3839, 3840].map(|now| best.of(at(now), REMEMBERED).to_string()),
            ["50", "40", "40", "0"]
        );
    }

    #[test]
    fn what_is_no_positive_number_is_no_speed() {
        for odd in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let mut best = Best::default();
            best.observe(at(0), odd);
            assert_eq!(best, Best::default());
        }
    }

    #[test]
    fn hardware_of_which_nothing_was_seen_for_a_week_is_forgotten() {
        let mut bests = Bests::default();
        let week = 7 * 86_400;
        bests.observe("old", at(0), 50.0);
        bests.observe("new", at(week), 40.0);
        assert_eq!(serde_json::to_string(&bests).unwrap(), r#"{"new":[[1800604800000,40.0]]}"#);
        assert_eq!(["old", "new"].map(|key| bests.get(key, at(week + 1)).to_string()), ["0", "40"]);
    }

    #[test]
    fn a_best_that_is_older_than_an_hour_still_counts_against_a_removal_for_a_week() {
        let mut bests = Bests::default();
        for (second, speed) in [(0, 50.0), (120, 45.0), (5000, 10.0), (9000, 9.0)] {
            bests.observe("H100", at(second), speed);
        }
        let both = |second| {
            [bests.get("H100", at(second)), bests.for_removals("H100", at(second))].map(|one| one.to_string())
        };
        assert_eq!(both(9000), ["9", "50"]);
        assert_eq!(both(7 * 86_400 - 1), ["0", "50"]);
        assert_eq!(both(7 * 86_400 + 4999), ["0", "9"]);
        let stored = serde_json::to_string(&bests).unwrap();
        assert_eq!(serde_json::from_str::<Bests>(&stored).unwrap(), bests);
    }

    #[test]
    fn an_hour_of_falling_speeds_stays_small() {
        let mut best = Best::default();
        (0..4000)
            .for_each(|second| best.observe(at(second), 1e3 - 1.0 / 7.0 - f64::from(second as i32) / 9.0));
        let stored = serde_json::to_string(&best).unwrap();
        assert!(
            best.0.len() <= 62 && stored.len() < 2300,
            "{} entries, {} bytes",
            best.0.len(),
            stored.len()
        );
    }

    proptest! {
        #![proptest_config(crate::cases::quick())]

        #[test]
        fn a_score_is_between_0_and_1_and_grows_with_load_and_slowness(
            kv in 0.0..1.0_f64, queue in 0_u32..9, speed in 0.0..20.0_f64, best in 0.0..20.0_f64, less in 0.0..1.0_f64,
        ) {
            let one = Observation { kv, queue, speed: Some(speed), best };
            let base = score(one, QUEUE_LIMIT);
            prop_assert!((0.0..=1.0).contains(&base));
            let fuller = Observation { kv: kv + less, ..one };
            let queued = Observation { queue: queue + 1, ..one };
            let slower = Observation { speed: Some(speed * less), ..one };
            for worse in [fuller, queued, slower] {
                prop_assert!(score(worse, QUEUE_LIMIT) >= base);
            }
        }

        #[test]
        fn the_best_is_the_largest_of_the_hour_to_the_minute(
            speeds in proptest::collection::vec((0_i64..900, 0.1..100.0_f64), 1..30),
        ) {
            let (mut best, mut now, mut all) = (Best::default(), 0, Vec::new());
            for (gap, speed) in speeds {
                now += gap;
                best.observe(at(now), speed);
                all.push((now, speed));
            }
            let largest = |since: i64| {
                all.iter().filter(|(at, _)| *at > since).map(|(_, speed)| *speed).fold(0.0, f64::max)
            };
            let found = best.of(at(now), REMEMBERED);
            prop_assert!(found <= largest(now - 3600));
            prop_assert!(found >= largest(now - 3540));
        }
    }
}
