//! How large the requests are now: means of the last half minute or of the last hundred, whichever is longer. A hundred sizes
//! with a coefficient of variation of 1 are known to 10 %.

use serde::{Deserialize, Serialize};

use super::{is_default, short};
use crate::moment::{Moment, may_lower};

/// Forgetting by time, seconds.
const SPAN: f64 = 30.0;
/// Forgetting by requests.
const REQUESTS: f64 = 100.0;

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
    /// Only what is new makes what is old forgotten. A count without a sum says that the sum was not read.
    fn learn(&mut self, at: Moment, sum: f64, count: f64) {
        if !(count > 0.0 && sum > 0.0) {
            return;
        }
        let seconds = self.at.map_or(0.0, |before| before.until(at));
        let kept = (-(seconds / SPAN).min(count / REQUESTS)).exp();
        *self =
            Self { sum: self.sum * kept + sum, count: self.count * kept + count, at: self.at.max(Some(at)) };
    }

    fn get(self) -> Option<f64> {
        (self.count > 0.0 && self.sum > 0.0).then(|| self.sum / self.count)
    }
}

/// What requests were, in one round of readings or in the life of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RequestSizes {
    /// Prompt tokens that were computed.
    pub prompt: f64,
    /// First tokens.
    pub firsts: f64,
    /// Tokens of requests that finished.
    pub output: f64,
    /// Requests that finished.
    pub finished: f64,
}

/// The mean request of one role.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenShape {
    #[serde(skip_serializing_if = "is_default")]
    prompt: Mean,
    #[serde(skip_serializing_if = "is_default")]
    output: Mean,
}

impl TokenShape {
    /// Takes in what came by `at`.
    pub fn learn(&mut self, at: Moment, new: &RequestSizes) {
        self.prompt.learn(at, new.prompt, new.firsts);
        self.output.learn(at, new.output, new.finished);
    }

    /// Takes in what a pod has done in its life, where nothing else is known: as much as a hundred requests, since most of
    /// it may be long ago.
    pub fn begin(&mut self, at: Moment, life: &RequestSizes) {
        let most = |sum: f64, count: f64| {
            let share = if count > REQUESTS { REQUESTS / count } else { 1.0 };
            (sum * share, count * share)
        };
        let RequestSizes { prompt, firsts, output, finished } = *life;
        let begins = |mean: &mut Mean, (sum, count): (f64, f64)| {
            if mean.count <= 0.0 && sum > 0.0 && count > 0.0 {
                *mean = Mean { sum, count, at: Some(at) };
            }
        };
        begins(&mut self.prompt, most(prompt, firsts));
        begins(&mut self.output, most(output, finished));
    }

    /// What is worth keeping over a restart.
    #[must_use]
    pub fn kept(&self) -> Self {
        let kept = |own: Mean| Mean { sum: short(own.sum), count: short(own.count), at: own.at };
        Self { prompt: kept(self.prompt), output: kept(self.output) }
    }

    /// Each mean that is known was learned lately enough to lower a number.
    #[must_use]
    pub fn may_lower(&self, now: Moment) -> bool {
        let recent = |mean: Mean| mean.get().is_none() || may_lower(mean.at, now);
        recent(self.prompt) && recent(self.output)
    }

    /// Mean prompt tokens that are computed; `None` when none was seen.
    #[must_use]
    pub fn prompt(&self) -> Option<f64> {
        self.prompt.get()
    }

    /// Mean generated tokens; `None` when nothing has finished.
    #[must_use]
    pub fn output(&self) -> Option<f64> {
        self.output.get()
    }
}
