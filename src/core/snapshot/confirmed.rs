//! Gauges of requests, as far as two scrapes show them: one alone may be a slip, and a queue of a billion that one scrape of one pod
//! shows would order as many replicas as there may be. What is real the next scrape shows too.

use super::{Sample, Series};

/// Requests that one scrape alone may add to what another one shows.
const ALONE: f64 = 8.0;

/// The newest sample of `series`, as far as the one before it bears it out.
#[must_use]
pub fn newest_confirmed(series: Series<'_>) -> Option<Sample> {
    let mut newest = series.iter().rev();
    let last = newest.next()?;
    let before = newest.next().map_or(0.0, |sample| sample.value.max(0.0));
    Some(Sample { value: last.value.min(before + ALONE), ..last })
}

/// The highest value of `series`, as far as another one bears it out.
#[must_use]
pub fn highest_confirmed(series: Series<'_>) -> Option<f64> {
    let [mut most, mut second] = [None, None];
    for value in series.iter().map(|sample| sample.value) {
        if most.is_none_or(|most| value > most) {
            (most, second) = (Some(value), most);
        } else if second.is_none_or(|second| value > second) {
            second = Some(value);
        }
    }
    most.map(|most| most.min(second.unwrap_or(0.0) + ALONE))
}
