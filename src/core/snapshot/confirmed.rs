//! Gauges of requests that are confirmed by two scrapes. One scrape alone may be wrong: a queue of a billion on one pod would order the
//! maximum of replicas. A real queue is in the next scrape too.

use super::{Sample, Series};

/// Requests that one scrape may add to what another one confirms.
const MAX_UNCONFIRMED: f64 = 8.0;

/// The newest sample of `series`, limited by the one before it.
pub(crate) fn newest_confirmed(series: Series<'_>) -> Option<Sample> {
    let mut newest = series.iter().rev();
    let last = newest.next()?;
    let before = newest.next().map_or(0.0, |sample| sample.value.max(0.0));
    Some(Sample { value: last.value.min(before + MAX_UNCONFIRMED), ..last })
}

/// The highest value of `series`, limited by the second highest.
pub(crate) fn highest_confirmed(series: Series<'_>) -> Option<f64> {
    let [mut most, mut second] = [None, None];
    for value in series.iter().map(|sample| sample.value) {
        if most.is_none_or(|most| value > most) {
            (most, second) = (Some(value), most);
        } else if second.is_none_or(|second| value > second) {
            second = Some(value);
        }
    }
    most.map(|most| most.min(second.unwrap_or(0.0) + MAX_UNCONFIRMED))
}
