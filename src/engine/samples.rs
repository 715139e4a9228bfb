//! The samples of one series. All series of a fleet are in memory together, so they are small: the times of one scrape target, which its
//! series have in common, can be shared.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;
use wva_core::snapshot::Sample;

/// Samples, oldest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples {
    times: Arc<[Timestamp]>,
    /// One for each time.
    values: Box<[f64]>,
}

impl Samples {
    /// The number of samples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The samples, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Sample> + ExactSizeIterator + Clone {
        let samples = self.times.iter().zip(&*self.values);
        samples.map(|(at, value)| Sample { at: *at, value: *value })
    }

    /// The times of the samples.
    #[must_use]
    pub fn times(&self) -> &[Timestamp] {
        &self.times
    }

    /// The sample at `index`, counted from the oldest.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Sample> {
        let (at, value) = (*self.times.get(index)?, *self.values.get(index)?);
        Some(Sample { at, value })
    }

    /// The oldest sample.
    #[must_use]
    pub fn first(&self) -> Option<Sample> {
        self.get(0)
    }

    /// The newest sample.
    #[must_use]
    pub fn last(&self) -> Option<Sample> {
        self.get(self.len().checked_sub(1)?)
    }

    /// The samples with every value multiplied by `factor`.
    #[must_use]
    pub(crate) fn scaled(&self, factor: f64) -> Self {
        let values = self.values.iter().map(|value| value * factor);
        Self { times: Arc::clone(&self.times), values: values.collect() }
    }

    /// The samples before `end`.
    #[must_use]
    pub(crate) fn before(&self, end: Timestamp) -> Self {
        self.iter().filter(|sample| sample.at < end).collect()
    }
}

impl FromIterator<Sample> for Samples {
    fn from_iter<I: IntoIterator<Item = Sample>>(samples: I) -> Self {
        let (times, values): (Vec<_>, Vec<_>) =
            samples.into_iter().map(|sample| (sample.at, sample.value)).unzip();
        Self { times: times.into(), values: values.into() }
    }
}

impl<const N: usize> From<[Sample; N]> for Samples {
    fn from(samples: [Sample; N]) -> Self {
        samples.into_iter().collect()
    }
}

/// Stores equal times once.
#[derive(Debug, Default)]
pub(crate) struct SharedTimes(HashSet<Arc<[Timestamp]>>);

impl SharedTimes {
    /// Makes `samples` share their times with all that have the same ones.
    pub(crate) fn share(&mut self, samples: &mut Samples) {
        match self.0.get(&samples.times) {
            Some(stored) => samples.times = Arc::clone(stored),
            None => {
                self.0.insert(Arc::clone(&samples.times));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(times: &[i64], value: f64) -> Samples {
        times.iter().map(|second| Sample { at: Timestamp::from_second(*second).unwrap(), value }).collect()
    }

    #[test]
    fn series_of_one_target_share_their_times_and_keep_their_values() {
        let mut shared = SharedTimes::default();
        let mut all = [samples(&[0, 15], 1.0), samples(&[0, 15], 2.0), samples(&[0, 30], 3.0)];
        let before = all.clone();
        all.iter_mut().for_each(|samples| shared.share(samples));
        assert_eq!(all, before);
        assert!(Arc::ptr_eq(&all[0].times, &all[1].times) && !Arc::ptr_eq(&all[0].times, &all[2].times));
    }

    #[test]
    fn ends_and_parts_are_those_of_a_list() {
        let list = samples(&[0, 15, 30], 2.0);
        assert_eq!(list.iter().rev().map(|sample| sample.at.as_second()).collect::<Vec<_>>(), [30, 15, 0]);
        assert_eq!((list.first(), list.last()), (list.get(0), list.get(2)));
        assert_eq!(list.before(list.times()[2]), samples(&[0, 15], 2.0));
        assert_eq!(list.scaled(0.5), samples(&[0, 15, 30], 1.0));
        assert_eq!((Samples::default().first(), Samples::default().last()), (None, None));
    }
}
