//! Mean request sizes over the last half minute or the last hundred requests, whichever is longer. The mean of a hundred sizes with a
//! coefficient of variation of 1 has an error of 10 %.

use serde::{Deserialize, Serialize};

use super::numeric::{is_default, six_digits};
use crate::moment::{Moment, may_lower};

/// Time constant, seconds.
const TIME_CONSTANT: f64 = 30.0;
/// The same in requests.
const REQUEST_CONSTANT: f64 = 100.0;

/// A sum of sizes and how many there were.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(from = "(f64, f64, Option<Moment>)", into = "(f64, f64, Option<Moment>)")]
struct Mean {
    sum: f64,
    count: f64,
    at: Option<Moment>,
}

impl From<(f64, f64, Option<Moment>)> for Mean {
    fn from((sum, count, at): (f64, f64, Option<Moment>)) -> Self {
        Self { sum, count, at }
    }
}

impl From<Mean> for (f64, f64, Option<Moment>) {
    fn from(own: Mean) -> Self {
        (own.sum, own.count, own.at)
    }
}

impl Mean {
    /// Old values only decay when new ones come. A count without a sum says that the sum was not read.
    fn learn(&mut self, at: Moment, sum: f64, count: f64) {
        if !(count > 0.0 && sum > 0.0) {
            return;
        }
        let seconds = self.at.map_or(0.0, |before| before.until(at));
        let remaining = (-(seconds / TIME_CONSTANT).min(count / REQUEST_CONSTANT)).exp();
        *self = Self {
            sum: self.sum * remaining + sum,
            count: self.count * remaining + count,
            at: self.at.max(Some(at)),
        };
    }

    fn get(self) -> Option<f64> {
        (self.count > 0.0 && self.sum > 0.0).then(|| self.sum / self.count)
    }
}

/// Request sizes, in one round of readings or in the life of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct RequestSizes {
    /// Prompt tokens that were computed.
    pub prompt: f64,
    pub(crate) firsts: f64,
    /// Tokens of requests that finished.
    pub output: f64,
    /// Requests that finished.
    pub finished: f64,
}

/// The mean request of one role.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct TokenShape {
    #[serde(skip_serializing_if = "is_default")]
    prompt: Mean,
    #[serde(skip_serializing_if = "is_default")]
    output: Mean,
}

impl TokenShape {
    pub(crate) fn learn(&mut self, at: Moment, new: &RequestSizes) {
        self.prompt.learn(at, new.prompt, new.firsts);
        self.output.learn(at, new.output, new.finished);
    }

    /// Starts from what a pod has done in its life, where nothing else is known: with the weight of a hundred requests at most, since
    /// most of it may be long ago.
    pub(crate) fn begin(&mut self, at: Moment, life: &RequestSizes) {
        let limited = |sum: f64, count: f64| {
            let share = if count > REQUEST_CONSTANT { REQUEST_CONSTANT / count } else { 1.0 };
            (sum * share, count * share)
        };
        let RequestSizes { prompt, firsts, output, finished } = *life;
        let start = |mean: &mut Mean, (sum, count): (f64, f64)| {
            if mean.count <= 0.0 && sum > 0.0 && count > 0.0 {
                *mean = Mean { sum, count, at: Some(at) };
            }
        };
        start(&mut self.prompt, limited(prompt, firsts));
        start(&mut self.output, limited(output, finished));
    }

    pub(crate) fn compacted(&self) -> Self {
        let compact =
            |mean: Mean| Mean { sum: six_digits(mean.sum), count: six_digits(mean.count), at: mean.at };
        Self { prompt: compact(self.prompt), output: compact(self.output) }
    }

    /// Each known mean was learned recently enough to lower a number.
    pub(crate) fn may_lower(&self, now: Moment) -> bool {
        let recent = |mean: Mean| mean.get().is_none() || may_lower(mean.at, now);
        recent(self.prompt) && recent(self.output)
    }

    /// Mean computed prompt tokens; `None` when none was seen.
    pub(crate) fn prompt(&self) -> Option<f64> {
        self.prompt.get()
    }

    /// Mean generated tokens; `None` when nothing has finished.
    pub(crate) fn output(&self) -> Option<f64> {
        self.output.get()
    }
}
