//! Gaps between tokens of running requests, many steps at once.

/// Gaps between tokens over consecutive steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TokenGaps {
    /// Seconds of the first step.
    pub(crate) first_s: f64,
    /// By how many seconds each step is longer than the one before, at least 0.
    pub(crate) growth_s: f64,
    /// Number of steps, at least 1.
    pub(crate) steps: u64,
    /// Requests that got a token in each step.
    pub(crate) requests: f64,
}

impl TokenGaps {
    /// The gap of the last step, seconds.
    pub(crate) fn last_s(self) -> f64 {
        self.first_s + self.growth_s * (self.steps - 1) as f64
    }

    /// The sum over all requests and steps, seconds.
    pub(crate) fn sum_s(self) -> f64 {
        self.requests * self.steps as f64 * (self.first_s + self.last_s()) / 2.0
    }

    /// Number of gaps.
    pub(crate) fn count(self) -> f64 {
        self.requests * self.steps as f64
    }
}
