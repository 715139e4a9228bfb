//! Requests that the scheduler in front of the model still holds, in tokens (algorithm reference §1.7 and §3.6).

use super::replica::Observation;
use crate::model::Role;
use crate::units::count;

/// What the scheduler holds for the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SchedulerQueue {
    /// Requests.
    pub requests: u64,
    /// Bytes of their prompts.
    pub bytes: u64,
}

/// Means over the replicas that finished requests, each counting once; all 0 when none did.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Workload {
    /// Prompt tokens a request.
    pub prompt: f64,
    /// Generated tokens a request.
    pub output: f64,
    /// Share of prompt tokens found in the prefix cache, 0 to 1.
    pub prefix_hits: f64,
}

impl Workload {
    /// Of all replicas of the model, in input order.
    #[must_use]
    pub fn of(replicas: &[Observation<'_>]) -> Self {
        let mut sum = Self::default();
        let mut busy = 0_usize;
        let cleaned = replicas.iter().map(|one| one.cleaned());
        for one in cleaned.filter(|one| one.prompt > 0.0 || one.output > 0.0) {
            busy += 1;
            sum.prompt += one.prompt;
            sum.output += one.output;
            sum.prefix_hits += one.prefix_hits;
        }
        let among = f64::from(count(busy.max(1)));
        Self { prompt: sum.prompt / among, output: sum.output / among, prefix_hits: sum.prefix_hits / among }
    }
}

/// What the held requests will take, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct QueueDemand {
    /// For their prompts, without what the prefix cache saves.
    pub prompt: f64,
    /// For what they generate.
    pub output: f64,
}

impl QueueDemand {
    /// A token of prompt in bytes.
    const BYTES_PER_TOKEN: f64 = 4.0;

    /// The larger of two guesses at the prompts, and the usual output.
    #[must_use]
    pub fn of(queue: SchedulerQueue, workload: Workload) -> Self {
        let (requests, bytes) = (nearest(queue.requests), nearest(queue.bytes));
        let prompt = (bytes / Self::BYTES_PER_TOKEN).max(requests * workload.prompt);
        Self { prompt: prompt * (1.0 - workload.prefix_hits), output: requests * workload.output }
    }

    /// For the whole model.
    #[must_use]
    pub fn total(self) -> f64 {
        self.prompt + self.output
    }

    /// For the replicas of one role. The shares overlap: those who generate hold the prompt as well.
    #[must_use]
    pub fn of_role(self, role: Role) -> f64 {
        match role {
            Role::Prefill => self.prompt,
            Role::Decode | Role::Both => self.total(),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "the nearest float will do")]
const fn nearest(value: u64) -> f64 {
    value as f64
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
                QueueDemand::of(SchedulerQueue { requests, bytes }, workload);
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
