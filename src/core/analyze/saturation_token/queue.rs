//! The requests in the scheduler's queue, in tokens.

use super::input::{SchedulerQueue, TokenObservation};
use crate::model::Role;
use crate::units::{count, to_f64};

/// Means over the replicas that finished requests, each with the same weight; 0 if none did.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Workload {
    /// Prompt tokens a request.
    pub prompt: f64,
    /// Generated tokens a request.
    pub output: f64,
    /// Share of prompt tokens found in the prefix cache, 0 to 1.
    pub prefix_hits: f64,
}

impl Workload {
    /// The mean of all replicas of the model, in input order.
    pub(crate) fn mean(replicas: &[TokenObservation<'_>]) -> Self {
        let mut sum = Self::default();
        let mut busy = 0_usize;
        let sanitized = replicas.iter().map(|replica| replica.sanitized());
        for replica in sanitized.filter(|replica| replica.prompt > 0.0 || replica.output > 0.0) {
            busy += 1;
            sum.prompt += replica.prompt;
            sum.output += replica.output;
            sum.prefix_hits += replica.prefix_hits;
        }
        let count = f64::from(count(busy.max(1)));
        Self { prompt: sum.prompt / count, output: sum.output / count, prefix_hits: sum.prefix_hits / count }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct QueueDemand {
    /// Tokens of their prompts, without those that the prefix cache saves.
    pub prompt: f64,
    pub output: f64,
}

impl QueueDemand {
    /// Upstream's estimate for English prompts.
    const BYTES_PER_TOKEN: f64 = 4.0;

    /// The prompts by their bytes or by the mean prompt, whichever is more, and the outputs by the mean output.
    pub(crate) fn new(queue: SchedulerQueue, workload: Workload) -> Self {
        let nearest = |count: u64| to_f64(i64::try_from(count).unwrap_or(i64::MAX));
        let requests = nearest(queue.requests);
        let bytes = nearest(queue.bytes);
        let prompt = (bytes / Self::BYTES_PER_TOKEN).max(requests * workload.prompt);
        Self { prompt: prompt * (1.0 - workload.prefix_hits), output: requests * workload.output }
    }

    pub(crate) fn total(self) -> f64 {
        self.prompt + self.output
    }

    /// The demand on replicas of one role. The demands overlap, because replicas that generate hold the prompt too.
    pub(crate) fn of_role(self, role: Role) -> f64 {
        match role {
            Role::Prefill => self.prompt,
            Role::Decode | Role::Both => self.total(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp, reason = "exact by construction")]

    use super::*;

    #[test]
    fn prompts_are_the_larger_of_two_guesses_less_what_the_prefix_cache_saves() {
        let workload = Workload { prompt: 100.0, output: 30.0, prefix_hits: 0.25 };
        let demand = |requests, bytes| {
            let QueueDemand { prompt, output } =
                QueueDemand::new(SchedulerQueue { requests, bytes }, workload);
            (prompt, output)
        };
        assert_eq!(demand(10, 0), (750.0, 300.0));
        assert_eq!(demand(10, 8000), (1500.0, 300.0));
        assert_eq!(demand(10, 3000), (750.0, 300.0));
        assert_eq!(demand(0, 0), (0.0, 0.0));
    }

    #[test]
    fn who_computes_prompts_holds_no_answers() {
        let demand = QueueDemand { prompt: 70.0, output: 30.0 };
        assert_eq!(
            [Role::Prefill, Role::Decode, Role::Both].map(|role| demand.of_role(role)),
            [70.0, 100.0, 100.0]
        );
    }
}
