//! Remembers how many tokens were resident when requests began to queue, by hardware, role and length of output.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::model::Role;
use crate::units::{Tokens, count};

/// How much a request generates. The boundaries are upstream's (`saturation_v2`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputLength {
    /// Below 100 tokens; also when nothing is known.
    Short,
    /// 100 to below 500 tokens.
    Medium,
    /// 500 tokens and more.
    Long,
}

impl OutputLength {
    pub fn from_mean(output: f64) -> Self {
        if output >= 500.0 {
            Self::Long
        } else if output >= 100.0 {
            Self::Medium
        } else {
            Self::Short
        }
    }
}

/// The key of a history: hardware and role of replicas, and how much their requests generate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Setting<'a> {
    /// The accelerator's name; empty if it is unknown.
    pub accelerator: &'a str,
    pub gpus: u32,
    /// Their role: replicas that only compute prompts hold other numbers of tokens. Upstream does not distinguish roles; in its arithmetic all
    /// are [`Role::Both`].
    pub role: Role,
    pub length: OutputLength,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    pub accelerator: SmolStr,
    pub gpus: u32,
    pub role: Role,
    pub length: OutputLength,
    /// Resident tokens, oldest first, at most ten.
    pub values: Vec<Tokens>,
    /// When the newest was seen, in whole seconds.
    pub updated: Timestamp,
}

impl History {
    const MAX_VALUES: usize = 10;

    fn setting(&self) -> Setting<'_> {
        Setting { accelerator: &self.accelerator, gpus: self.gpus, role: self.role, length: self.length }
    }

    /// The mean without its fraction; `None` if it is 0.
    fn mean(&self) -> Option<Tokens> {
        let sum: f64 = self.values.iter().map(|value| value.to_f64()).sum();
        Some(Tokens::truncated(sum / f64::from(count(self.values.len())))).filter(|mean| *mean > Tokens::ZERO)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Histories(Vec<History>);

impl Histories {
    /// A history that was not added to for longer is dropped.
    const MAX_AGE: SignedDuration = SignedDuration::from_hours(24);

    /// Every history, in the order of settings.
    pub fn iter(&self) -> impl Iterator<Item = &History> {
        self.0.iter()
    }

    fn position(&self, setting: Setting<'_>) -> Result<usize, usize> {
        self.0.binary_search_by(|history| history.setting().cmp(&setting))
    }

    fn entry(&mut self, setting: Setting<'_>, now: Timestamp) -> Option<&mut History> {
        let index = self.position(setting).unwrap_or_else(|index| {
            let Setting { accelerator, gpus, role, length } = setting;
            let accelerator = accelerator.into();
            let history = History { accelerator, gpus, role, length, values: Vec::new(), updated: now };
            self.0.insert(index, history);
            index
        });
        self.0.get_mut(index)
    }

    /// Adds an observation, as upstream does for each replica.
    pub(crate) fn add(&mut self, setting: Setting<'_>, value: Tokens, now: Timestamp) {
        if let Some(history) = self.entry(setting, now) {
            history.values.push(value);
            let surplus = history.values.len().saturating_sub(History::MAX_VALUES);
            history.values.drain(..surplus);
            history.updated = now;
        }
    }

    /// Adds the mean of what replicas show at one moment. So their order does not matter, many replicas do not displace earlier moments, and a
    /// second call at the same moment replaces the first.
    pub(crate) fn add_moment<'a>(
        &mut self,
        shown: impl Iterator<Item = (Setting<'a>, Tokens)>,
        now: Timestamp,
    ) {
        let mut sums: BTreeMap<Setting<'_>, (Tokens, i64)> = BTreeMap::new();
        for (setting, value) in shown {
            let (sum, count) = sums.entry(setting).or_default();
            *sum = sum.plus(value);
            *count += 1;
        }
        for (setting, (sum, count)) in sums {
            let known = self.position(setting).ok().and_then(|index| self.0.get_mut(index));
            if let Some(history) = known.filter(|history| history.updated == now) {
                history.values.pop();
            }
            self.add(setting, Tokens::new(sum.get() / count.max(1)), now);
        }
    }

    pub(crate) fn mean(&self, setting: Setting<'_>) -> Option<Tokens> {
        self.position(setting).ok().and_then(|index| self.0.get(index)).and_then(History::mean)
    }

    /// The smallest mean of the same hardware and role with other lengths of output.
    pub(crate) fn min_of_other_lengths(&self, setting: Setting<'_>) -> Option<Tokens> {
        let has_other_length = |history: &&History| {
            let length = history.length;
            length != setting.length && history.setting() == Setting { length, ..setting }
        };
        self.0.iter().filter(has_other_length).filter_map(History::mean).min()
    }

    pub(crate) fn forget(&mut self, now: Timestamp) {
        self.0.retain(|history| now.duration_since(history.updated) <= Self::MAX_AGE);
    }

    /// Drops the oldest beyond `max`.
    pub(crate) fn limit(&mut self, max: usize) {
        while self.0.len() > max {
            let oldest = self.0.iter().enumerate().min_by_key(|(_, history)| history.updated);
            if let Some((oldest, _)) = oldest {
                self.0.remove(oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);
    const SHORT: Setting<'static> =
        Setting { accelerator: "H100", gpus: 2, role: Role::Both, length: OutputLength::Short };

    fn with(length: OutputLength) -> Setting<'static> {
        Setting { length, ..SHORT }
    }

    fn mean(all: &Histories, setting: Setting<'_>) -> Option<i64> {
        all.mean(setting).map(Tokens::get)
    }

    #[test]
    fn answers_are_medium_from_100_tokens_and_long_from_500() {
        use OutputLength::{Long, Medium, Short};
        let lengths = [0.0, 99.9, 100.0, 499.9, 500.0, 1e9].map(OutputLength::from_mean);
        assert_eq!(lengths, [Short, Short, Medium, Medium, Long, Long]);
        assert_eq!(OutputLength::from_mean(f64::NAN), Short);
    }

    #[test]
    fn a_mean_is_of_the_last_ten_and_loses_its_fraction() {
        let mut all = Histories::default();
        assert_eq!(mean(&all, SHORT), None);
        [10, 21].into_iter().for_each(|value| all.add(SHORT, Tokens::new(value), NOW));
        assert_eq!(mean(&all, SHORT), Some(15));
        (0..10).for_each(|value| all.add(SHORT, Tokens::new(100 + value), NOW));
        assert_eq!(mean(&all, SHORT), Some(104));
        (0..10).for_each(|_| all.add(SHORT, Tokens::ZERO, NOW));
        assert_eq!(mean(&all, SHORT), None, "nothing was resident");
    }

    #[test]
    fn a_moment_counts_once_with_its_mean() {
        let mut all = Histories::default();
        let later = NOW + SignedDuration::from_secs(30);
        all.add_moment([(SHORT, Tokens::new(10)), (SHORT, Tokens::new(20))].into_iter(), NOW);
        all.add_moment([(SHORT, Tokens::new(30))].into_iter(), NOW);
        assert_eq!(mean(&all, SHORT), Some(30), "the second call at a moment replaces the first");
        all.add_moment([(SHORT, Tokens::new(50))].into_iter(), later);
        assert_eq!(mean(&all, SHORT), Some(40));
    }

    #[test]
    fn other_lengths_are_those_of_the_same_hardware_and_role() {
        let mut all = Histories::default();
        let others = [
            (with(OutputLength::Long), 70),
            (with(OutputLength::Medium), 50),
            (SHORT, 10),
            (Setting { gpus: 1, ..with(OutputLength::Long) }, 20),
            (Setting { accelerator: "A100", ..with(OutputLength::Long) }, 30),
            (Setting { role: Role::Decode, ..with(OutputLength::Long) }, 40),
        ];
        others.into_iter().for_each(|(setting, value)| all.add(setting, Tokens::new(value), NOW));
        assert_eq!(all.min_of_other_lengths(SHORT), Some(Tokens::new(50)));
        assert_eq!(all.min_of_other_lengths(with(OutputLength::Medium)), Some(Tokens::new(10)));
        assert_eq!(all.min_of_other_lengths(Setting { gpus: 9, ..SHORT }), None);
    }

    #[test]
    fn beyond_the_limit_the_oldest_go_and_at_it_nothing_goes() {
        let mut all = Histories::default();
        for (gpus, age) in [(1, 20), (2, 40), (3, 10), (4, 30)] {
            all.add(Setting { gpus, ..SHORT }, Tokens::new(1), NOW - SignedDuration::from_secs(age));
        }
        let gpus = |all: &Histories| all.iter().map(|history| history.gpus).collect::<Vec<_>>();
        all.limit(4);
        assert_eq!(gpus(&all), [1, 2, 3, 4]);
        all.limit(2);
        assert_eq!(gpus(&all), [1, 3]);
    }
}
