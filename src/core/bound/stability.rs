//! Keeps a number from changing too fast: windows, steps, cooldown.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::{Stability, StepLimit};
use crate::units::{Replicas, Seconds};

/// Recently proposed numbers, as far as they can still matter.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ProposalHistory {
    /// Falling numbers, oldest first: none is followed by one as high.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    highs: Vec<(Timestamp, Replicas)>,
    /// Rising numbers, oldest first: none is followed by one as low.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    lows: Vec<(Timestamp, Replicas)>,
    /// When the published number last rose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rose_at: Option<Timestamp>,
}

/// Numbers that are kept on each side, so that the memory stays small. Of more, two neighbours are merged into one that is as extreme as the older
/// and as recent as the newer, so that a number is held rather longer than shorter.
const MAX_KEPT: usize = 8;

/// Where a number may move from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StabilityBase {
    /// The number published last, if any.
    pub published: Option<Replicas>,
    /// What runs.
    pub running: Replicas,
}

/// The number after every rule of [`Stability`].
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stabilised {
    pub(crate) number: Replicas,
    pub(crate) binding: Option<StabilityRule>,
}

/// A rule of [`Stability`] that moved a number.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum StabilityRule {
    /// The stabilization window, as an HPA's.
    Window { seconds: f64 },
    /// Nothing is removed for a while after an addition.
    Dwell { seconds: f64 },
    /// The most that one step may lead to.
    UpStep { max: Replicas, running: Replicas },
    /// The least that one step may lead to.
    DownStep { min: Replicas, running: Replicas },
}

impl ProposalHistory {
    /// Nothing is remembered.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.highs.is_empty() && self.lows.is_empty() && self.rose_at.is_none()
    }

    /// The highest number that is remembered.
    #[must_use]
    pub fn highest(&self) -> Option<Replicas> {
        self.highs.iter().chain(&self.lows).map(|(_, number)| *number).max()
    }

    pub(crate) fn not_after(&mut self, now: Timestamp) {
        let moments = self.highs.iter_mut().chain(&mut self.lows).map(|(at, _)| at);
        moments.chain(&mut self.rose_at).for_each(|at| *at = (*at).min(now));
    }

    /// Applies the rules of `stability` to `proposed`, and remembers it.
    pub(crate) fn apply(
        &mut self,
        now: Timestamp,
        proposed: Replicas,
        from: StabilityBase,
        stability: &Stability,
    ) -> Stabilised {
        let mut stabilised = Stabilised { number: proposed, binding: None };
        let published = from.published.unwrap_or(from.running);
        // Before anything is remembered, the published number counts as proposed now, as in an HPA that is new.
        if self.highs.is_empty() && stability.down_window > Seconds::ZERO {
            self.highs.push((now, published));
        }
        if self.lows.is_empty() && stability.up_window > Seconds::ZERO {
            self.lows.push((now, published));
        }
        stabilised.windows(self, now, published, stability);
        stabilised.dwell(self, now, published, stability);
        stabilised.steps(from.running, published, stability);
        self.remember(now, proposed, stability);
        if stability.dwell > Seconds::ZERO {
            if stabilised.number > published {
                self.rose_at = Some(now);
            }
        } else {
            self.rose_at = None;
        }
        stabilised
    }

    fn remember(&mut self, now: Timestamp, proposed: Replicas, stability: &Stability) {
        let young =
            |window: Seconds| move |(at, _): &(Timestamp, Replicas)| Seconds::between(*at, now) < window;
        self.highs.retain(young(stability.down_window));
        self.lows.retain(young(stability.up_window));
        if stability.down_window > Seconds::ZERO {
            self.highs.retain(|(_, high)| *high > proposed);
            self.highs.push((now, proposed));
        }
        if stability.up_window > Seconds::ZERO {
            self.lows.retain(|(_, low)| *low < proposed);
            self.lows.push((now, proposed));
        }
        for side in [&mut self.highs, &mut self.lows] {
            if side.len() > MAX_KEPT {
                let (at, _) = side.remove(MAX_KEPT - 1);
                side[MAX_KEPT - 2].0 = at;
            }
        }
    }

    /// The extreme of the numbers proposed within `window`.
    fn extreme(side: &[(Timestamp, Replicas)], now: Timestamp, window: Seconds) -> Option<Replicas> {
        side.iter().find(|(at, _)| Seconds::between(*at, now) < window).map(|(_, number)| *number)
    }
}

impl Stabilised {
    /// As an HPA's stabilization: a rise goes to the lowest, and a fall to the highest number of its window.
    fn windows(
        &mut self,
        history: &ProposalHistory,
        now: Timestamp,
        published: Replicas,
        stability: &Stability,
    ) {
        let low = ProposalHistory::extreme(&history.lows, now, stability.up_window);
        let high = ProposalHistory::extreme(&history.highs, now, stability.down_window);
        let up = low.map_or(self.number, |low| low.min(self.number));
        let down = high.map_or(self.number, |high| high.max(self.number));
        let window = if self.number > published { stability.up_window } else { stability.down_window };
        self.moved(published.max(up).min(down), StabilityRule::Window { seconds: window.get() });
    }

    fn dwell(
        &mut self,
        history: &ProposalHistory,
        now: Timestamp,
        published: Replicas,
        stability: &Stability,
    ) {
        let risen = history.rose_at.filter(|at| Seconds::between(*at, now) < stability.dwell);
        if risen.is_some() {
            let least = self.number.max(published);
            self.moved(least, StabilityRule::Dwell { seconds: stability.dwell.get() });
        }
    }

    /// Steps are counted from what runs. A number that is published already is no step.
    fn steps(&mut self, running: Replicas, published: Replicas, stability: &Stability) {
        let most = stability.up_step.map(|limit| running.get().saturating_add(max_change(limit, running)));
        let most = most.map(|most| most.max(published.get()));
        let least = stability.down_step.map(|limit| running.get().saturating_sub(max_change(limit, running)));
        let least = least.map(|least| least.min(published.get()));
        if let Some(max) = most.map(Replicas::new) {
            self.moved(self.number.min(max), StabilityRule::UpStep { max, running });
        }
        if let Some(min) = least.map(Replicas::new) {
            self.moved(self.number.max(min), StabilityRule::DownStep { min, running });
        }
    }

    fn moved(&mut self, number: Replicas, rule: StabilityRule) {
        if number != self.number {
            *self = Self { number, binding: Some(rule) };
        }
    }
}

/// How many replicas `limit` lets be added to or removed from `running`.
fn max_change(limit: StepLimit, running: Replicas) -> u32 {
    let share = Replicas::ceil(f64::from(running.get()) * limit.percent / 100.0);
    limit.replicas.max(share).max(Replicas::ONE).get()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    /// The published numbers for what is proposed every 15 s, with everything published at once running.
    fn published(stability: Stability, start: u32, proposed: &[u32]) -> Vec<u32> {
        let (mut memory, mut last) = (ProposalHistory::default(), Replicas::new(start));
        let step = |(index, proposed): (usize, &u32)| {
            let from = StabilityBase { published: Some(last), running: last };
            let now = at(15 * i64::try_from(index).unwrap());
            last = memory.apply(now, Replicas::new(*proposed), from, &stability).number;
            last.get()
        };
        proposed.iter().enumerate().map(step).collect()
    }

    #[test]
    fn without_rules_a_number_moves_at_once_and_nothing_is_remembered() {
        let mut memory = ProposalHistory::default();
        let from = StabilityBase { published: Some(Replicas::new(9)), running: Replicas::new(9) };
        let stabilised = memory.apply(at(0), Replicas::new(2), from, &Stability::default());
        assert_eq!((stabilised.number.get(), stabilised.binding), (2, None));
        assert!(memory.is_empty());
    }

    #[test]
    fn a_fall_waits_for_its_window_to_forget_the_last_high() {
        let stability = Stability { down_window: Seconds::whole(45), ..Stability::default() };
        assert_eq!(published(stability, 6, &[6, 2, 2, 2, 2]), [6, 6, 6, 2, 2]);
    }

    #[test]
    fn a_rise_waits_for_its_window_to_forget_the_last_low() {
        let stability = Stability { up_window: Seconds::whole(30), ..Stability::default() };
        assert_eq!(published(stability, 2, &[2, 9, 8, 9]), [2, 2, 8, 8]);
    }

    #[test]
    fn a_number_that_has_risen_dwells_before_it_falls() {
        let stability = Stability { dwell: Seconds::whole(60), ..Stability::default() };
        assert_eq!(published(stability, 2, &[5, 3, 3, 3, 3, 3]), [5, 5, 5, 5, 3, 3]);
    }

    #[test]
    fn a_change_goes_in_steps() {
        let up_step = Some(StepLimit { replicas: Replicas::new(4), percent: 100.0 });
        let down_step = Some(StepLimit { replicas: Replicas::ZERO, percent: 50.0 });
        let stability = Stability { up_step, down_step, ..Stability::default() };
        assert_eq!(published(stability, 1, &[30, 30, 30, 3, 3, 3]), [5, 10, 20, 10, 5, 3]);
    }

    #[test]
    fn many_highs_are_kept_as_few_and_a_fall_is_rather_late_than_early() {
        let stability = Stability { down_window: Seconds::whole(300), ..Stability::default() };
        let falling: Vec<u32> = (0..40).map(|index| 60 - index).collect();
        let exact = |index: usize| if index < 20 { 60 } else { falling[index - 19] };
        let got = published(stability, 60, &falling);
        assert!(got.iter().enumerate().all(|(index, got)| *got >= exact(index)), "{got:?}");
    }

    /// The rules of `stability` applied once, to somebody of whom nothing is remembered.
    fn once(stability: Stability, proposed: u32, published: u32, running: u32) -> (u32, String) {
        let from =
            StabilityBase { published: Some(Replicas::new(published)), running: Replicas::new(running) };
        let stabilised = ProposalHistory::default().apply(at(0), Replicas::new(proposed), from, &stability);
        (stabilised.number.get(), stabilised.binding.map(|rule| rule.to_string()).unwrap_or_default())
    }

    #[test]
    fn the_rule_that_moved_a_number_is_told() {
        let of = |replicas| Some(StepLimit { replicas: Replicas::new(replicas), percent: 0.0 });
        let none = Stability::default();
        let down = Stability { down_window: Seconds::whole(45), ..none };
        assert_eq!(once(down, 2, 6, 6), (6, "stabilization window of 45 s".into()));
        let up = Stability { up_window: Seconds::whole(30), ..none };
        assert_eq!(once(up, 9, 6, 6), (6, "stabilization window of 30 s".into()));
        let both = Stability { up_window: Seconds::whole(30), ..down };
        assert_eq!(once(both, 9, 6, 6), (6, "stabilization window of 30 s".into()));
        assert_eq!(once(both, 2, 6, 6), (6, "stabilization window of 45 s".into()));
        let steps = Stability { up_step: of(3), down_step: of(2), ..none };
        assert_eq!(once(steps, 9, 4, 4), (7, "at most 7 in one step from 4".into()));
        assert_eq!(once(steps, 1, 4, 4), (2, "at least 2 in one step from 4".into()));
        assert_eq!(once(steps, 7, 4, 4), (7, String::new()));
        assert_eq!(once(steps, 2, 4, 4), (2, String::new()));
    }

    #[test]
    fn what_is_published_already_is_no_step() {
        let of = |replicas| Some(StepLimit { replicas: Replicas::new(replicas), percent: 0.0 });
        let steps = Stability { up_step: of(3), down_step: of(2), ..Stability::default() };
        assert_eq!(once(steps, 12, 10, 2).0, 10);
        assert_eq!(once(steps, 1, 3, 10).0, 3);
    }

    #[test]
    fn a_step_of_nothing_is_one_replica() {
        let nothing = Some(StepLimit { replicas: Replicas::ZERO, percent: 0.0 });
        let steps = Stability { up_step: nothing, down_step: nothing, ..Stability::default() };
        assert_eq!([once(steps, 9, 4, 4).0, once(steps, 1, 4, 4).0], [5, 3]);
    }

    #[test]
    fn dwelling_counts_from_the_last_rise_and_only_where_a_policy_asks_for_it() {
        let dwell = Stability { dwell: Seconds::whole(60), ..Stability::default() };
        let mut memory = ProposalHistory::default();
        let mut apply = |second, proposed, published, stability: &Stability| {
            let from = StabilityBase {
                published: Some(Replicas::new(published)),
                running: Replicas::new(published),
            };
            let stabilised = memory.apply(at(second), Replicas::new(proposed), from, stability);
            (
                stabilised.number.get(),
                stabilised.binding.map(|rule| rule.to_string()).unwrap_or_default(),
                memory.is_empty(),
            )
        };
        assert_eq!(apply(0, 5, 2, &dwell), (5, String::new(), false));
        assert_eq!(apply(30, 5, 5, &dwell), (5, String::new(), false), "it stays: no rise");
        assert_eq!(apply(59, 2, 5, &dwell), (5, "cooldown of 60 s after the last increase".into(), false));
        assert_eq!(apply(60, 2, 5, &dwell), (2, String::new(), false));
        assert_eq!(apply(70, 5, 2, &dwell), (5, String::new(), false));
        assert_eq!(apply(71, 2, 5, &Stability::default()), (2, String::new(), true), "forgotten");
    }

    #[test]
    fn of_nine_highs_two_become_one_as_high_as_the_older_and_as_young_as_the_newer() {
        let stability = Stability {
            down_window: Seconds::whole(300),
            up_window: Seconds::whole(300),
            ..Stability::default()
        };
        let mut memory = ProposalHistory::default();
        let mut apply = |step: u32, proposed| {
            let from =
                StabilityBase { published: Some(Replicas::new(proposed)), running: Replicas::new(proposed) };
            memory.apply(at(15 * i64::from(step)), Replicas::new(proposed), from, &stability);
            memory.clone()
        };
        let numbers =
            |side: &[(Timestamp, Replicas)]| side.iter().map(|(_, number)| number.get()).collect::<Vec<_>>();
        let eight = (0..8).map(|step| apply(step, 60 - step)).last().unwrap();
        assert_eq!(numbers(&eight.highs), [60, 59, 58, 57, 56, 55, 54, 53]);
        assert_eq!(eight.lows, [(at(105), Replicas::new(53))]);
        let ten = (8..10).map(|step| apply(step, 60 - step)).last().unwrap();
        assert_eq!(numbers(&ten.highs), [60, 59, 58, 57, 56, 55, 54, 51]);
        assert_eq!(ten.highs[6].0, at(120));
        let rising = (10..20).map(|step| apply(step, 51 + step)).last().unwrap();
        assert_eq!(numbers(&rising.lows), [51, 61, 62, 63, 64, 65, 66, 70]);
        assert_eq!(numbers(&rising.highs), [70]);
    }

    #[test]
    fn what_is_remembered_of_a_later_time_is_of_now_after_a_clock_was_set_back() {
        let of = |second| (at(second), Replicas::ONE);
        let mut memory =
            ProposalHistory { highs: vec![of(10), of(90)], lows: vec![of(70)], rose_at: Some(at(80)) };
        memory.not_after(at(50));
        let expected =
            ProposalHistory { highs: vec![of(10), of(50)], lows: vec![of(50)], rose_at: Some(at(50)) };
        assert_eq!(memory, expected);
        assert!(!ProposalHistory { highs: vec![of(1)], ..ProposalHistory::default() }.is_empty());
        assert!(!ProposalHistory { lows: vec![of(1)], ..ProposalHistory::default() }.is_empty());
        assert!(!ProposalHistory { rose_at: Some(at(1)), ..ProposalHistory::default() }.is_empty());
    }
}
