//! How many tokens were resident when requests began to queue, remembered by hardware, role and length of output.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::model::Role;
use crate::units::{Tokens, count};

/// How much a request generates. Source: algorithm reference §3.1.
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
    /// By the mean number of generated tokens.
    #[must_use]
    pub fn of(output: f64) -> Self {
        if output >= 500.0 {
            Self::Long
        } else if output >= 100.0 {
            Self::Medium
        } else {
            Self::Short
        }
    }
}

/// What one history is about: replicas with this hardware and role, while requests generate this much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Setting<'a> {
    /// The accelerator's name; empty when not known.
    pub accelerator: &'a str,
    /// Accelerators of a replica.
    pub gpus: u32,
    /// Their role: those that only compute prompts hold other numbers of tokens. Upstream does not tell roles apart, and
    /// under its rules all are [`Role::Both`].
    pub role: Role,
    /// How much requests generate.
    pub length: OutputLength,
}

/// The last observations of one setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// [`Setting::accelerator`].
    pub accelerator: SmolStr,
    /// [`Setting::gpus`].
    pub gpus: u32,
    /// [`Setting::role`].
    pub role: Role,
    /// [`Setting::length`].
    pub length: OutputLength,
    /// Resident tokens, oldest first, at most ten.
    pub values: Vec<Tokens>,
    /// When the newest was seen, in whole seconds.
    pub updated: Timestamp,
}

impl History {
    /// So many observations are kept.
    const MOST_VALUES: usize = 10;

    fn setting(&self) -> Setting<'_> {
        Setting { accelerator: &self.accelerator, gpus: self.gpus, role: self.role, length: self.length }
    }

    /// The mean without its fraction; `None` when nothing is known.
    fn mean(&self) -> Option<Tokens> {
        let sum: f64 = self.values.iter().map(|value| value.float()).sum();
        Some(Tokens::trunc(sum / f64::from(count(self.values.len())))).filter(|mean| *mean > Tokens::ZERO)
    }
}

/// All histories, by setting.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Histories(Vec<History>);

impl Histories {
    /// A history that was not added to for longer is dropped.
    const KEPT: SignedDuration = SignedDuration::from_hours(24);

    /// Every history, in the order of settings.
    pub fn iter(&self) -> impl Iterator<Item = &History> {
        self.0.iter()
    }

    fn place(&self, setting: Setting<'_>) -> Result<usize, usize> {
        self.0.binary_search_by(|one| one.setting().cmp(&setting))
    }

    fn entry(&mut self, setting: Setting<'_>, now: Timestamp) -> Option<&mut History> {
        let index = self.place(setting).unwrap_or_else(|index| {
            let Setting { accelerator, gpus, role, length } = setting;
            let (accelerator, values) = (accelerator.into(), Vec::new());
            self.0.insert(index, History { accelerator, gpus, role, length, values, updated: now });
            index
        });
        self.0.get_mut(index)
    }

    /// Adds an observation, as upstream does for each replica.
    pub(super) fn add(&mut self, setting: Setting<'_>, value: Tokens, now: Timestamp) {
        if let Some(history) = self.entry(setting, now) {
            history.values.push(value);
            let surplus = history.values.len().saturating_sub(History::MOST_VALUES);
            history.values.drain(..surplus);
            history.updated = now;
        }
    }

    /// Adds the mean of what was seen at one moment: the order of replicas does not matter, many replicas do not push
    /// earlier moments out, and a second look at the same moment changes nothing.
    pub(super) fn add_moment<'a>(
        &mut self,
        seen: impl Iterator<Item = (Setting<'a>, Tokens)>,
        now: Timestamp,
    ) {
        let mut sums: BTreeMap<Setting<'_>, (Tokens, i64)> = BTreeMap::new();
        for (setting, value) in seen {
            let (sum, among) = sums.entry(setting).or_default();
            (*sum, *among) = (sum.plus(value), *among + 1);
        }
        for (setting, (sum, among)) in sums {
            let known = self.place(setting).ok().and_then(|index| self.0.get_mut(index));
            if let Some(history) = known.filter(|history| history.updated == now) {
                history.values.pop();
            }
            self.add(setting, Tokens::new(sum.get() / among.max(1)), now);
        }
    }

    /// What was seen in this setting.
    pub(super) fn mean(&self, setting: Setting<'_>) -> Option<Tokens> {
        self.place(setting).ok().and_then(|index| self.0.get(index)).and_then(History::mean)
    }

    /// The least that was seen with the same hardware and role and other lengths of output.
    pub(super) fn least_of_other_lengths(&self, setting: Setting<'_>) -> Option<Tokens> {
        let other = |one: &&History| {
            let length = one.length;
            length != setting.length && one.setting() == Setting { length, ..setting }
        };
        self.0.iter().filter(other).filter_map(History::mean).min()
    }

    /// Drops what is too old.
    pub(super) fn forget(&mut self, now: Timestamp) {
        self.0.retain(|one| now.duration_since(one.updated) <= Self::KEPT);
    }

    /// Drops the oldest beyond `most`.
    pub(super) fn limit(&mut self, most: usize) {
        while self.0.len() > most {
            let by_age = |(_, a): &(usize, &History), (_, b): &(usize, &History)| -> Ordering {
                a.updated.cmp(&b.updated)
            };
            if let Some((oldest, _)) = self.0.iter().enumerate().min_by(by_age) {
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
        let lengths = [0.0, 99.9, 100.0, 499.9, 500.0, 1e9].map(OutputLength::of);
        assert_eq!(lengths, [Short, Short, Medium, Medium, Long, Long]);
        assert_eq!(OutputLength::of(f64::NAN), Short);
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
        assert_eq!(mean(&all, SHORT), Some(30), "the second look at a moment replaces the first");
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
        assert_eq!(all.least_of_other_lengths(SHORT), Some(Tokens::new(50)));
        assert_eq!(all.least_of_other_lengths(with(OutputLength::Medium)), Some(Tokens::new(10)));
        assert_eq!(all.least_of_other_lengths(Setting { gpus: 9, ..SHORT }), None);
    }

    #[test]
    fn beyond_the_limit_the_oldest_go_and_at_it_nothing_goes() {
        let mut all = Histories::default();
        for (gpus, age) in [(1, 20), (2, 40), (3, 10), (4, 30)] {
            all.add(Setting { gpus, ..SHORT }, Tokens::new(1), NOW - SignedDuration::from_secs(age));
        }
        let gpus = |all: &Histories| all.iter().map(|one| one.gpus).collect::<Vec<_>>();
        all.limit(4);
        assert_eq!(gpus(&all), [1, 2, 3, 4]);
        all.limit(2);
        assert_eq!(gpus(&all), [1, 3]);
    }
}
