//! Consecutive engine steps without a scheduling decision between them: no request enters or leaves. The memory held
//! grows by the same amount in each step, and so does the time of a step: any number of steps is one arithmetic series.

/// Consecutive steps from `start_s` on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct StepSpan {
    /// When the first step begins.
    pub(super) start_s: f64,
    /// Number of steps, at least 1.
    pub(super) steps: u64,
    /// Seconds of the first step.
    pub(super) first_s: f64,
    /// By how many seconds each step is longer than the one before.
    pub(super) growth_s: f64,
}

impl StepSpan {
    /// Seconds that the first `steps` of them take.
    pub(super) fn duration_s(&self, steps: u64) -> f64 {
        let n = steps as f64;
        n * self.first_s + self.growth_s * (n * (n - 1.0) / 2.0)
    }

    /// When all steps are done.
    pub(super) fn end_s(&self) -> f64 {
        self.start_s + self.duration_s(self.steps)
    }

    /// How many steps are done at `at_s`.
    pub(super) fn done(&self, at_s: f64) -> u64 {
        let elapsed_s = at_s - self.start_s;
        if elapsed_s <= 0.0 {
            return 0;
        }
        // The root of n·first + growth·n(n − 1)/2 = elapsed. Written with the discriminant in the denominator, because
        // the usual form divides by zero without growth.
        let b = self.first_s - self.growth_s / 2.0;
        let root = 2.0 * elapsed_s / (b + (b * b + 2.0 * self.growth_s * elapsed_s).sqrt());
        let mut done = (root as u64).min(self.steps);
        // Rounding may put the root on the wrong side of a step's end.
        while done < self.steps && self.duration_s(done + 1) <= elapsed_s {
            done += 1;
        }
        while done > 0 && self.duration_s(done) > elapsed_s {
            done -= 1;
        }
        done
    }

    /// What is left after the first `done` steps, which are fewer than all.
    pub(super) fn after(&self, done: u64) -> Self {
        Self {
            start_s: self.start_s + self.duration_s(done),
            steps: self.steps - done,
            first_s: self.first_s + self.growth_s * done as f64,
            growth_s: self.growth_s,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_done_are_those_that_fit_at_every_moment() {
        for growth_s in [0.0, 1e-6, 3e-4] {
            let span = StepSpan { start_s: 100.0, steps: 500, first_s: 0.007, growth_s };
            let mut ends = vec![0.0];
            (0..500_u64).for_each(|i| ends.push(ends[i as usize] + 0.007 + growth_s * i as f64));
            assert!((span.end_s() - 100.0 - ends[500]).abs() < 1e-9);
            for (steps, end) in ends.iter().enumerate() {
                assert_eq!(span.done(100.0 + end + 1e-7), steps as u64, "{growth_s}");
                assert_eq!(span.done(100.0 + end - 1e-7), steps.saturating_sub(1) as u64, "{growth_s}");
            }
            let rest = span.after(123);
            assert!((rest.end_s() - span.end_s()).abs() < 1e-9 && rest.steps == 377);
        }
    }
}
