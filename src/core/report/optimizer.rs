//! What an optimizer did, as data for the report.

use serde::{Deserialize, Serialize};

use crate::limit::Binding;
use crate::model::{Analyzer, Role};
use smol_str::SmolStr;

/// One step of an optimizer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerStep {
    /// What every analyzer misses in a role, and what it could spare. Left out for one analyzer of a model with one role, whose
    /// finding says the same.
    Votes {
        /// The role.
        role: Role,
        /// One for each finding.
        votes: Vec<Vote>,
    },
    /// A need was covered at the least cost.
    Covered {
        /// The role.
        role: Role,
        /// The share of the need that the maxima of all roles allow, 0 to 1.
        share: f64,
        /// What was added.
        added: Vec<Addition>,
        /// Cost units an hour that this adds.
        cost: f64,
        /// Nothing cheaper exists; otherwise the search was cut short.
        is_cheapest: bool,
    },
    /// A round of the fair sharing: a model may fill `target` of its remaining weight.
    Round {
        /// The model's remaining weight.
        remaining: f64,
        /// The mean of the remaining weights of all models that still need something.
        mean: f64,
        /// The part of its weight that it may fill in this round.
        target: f64,
    },
    /// Replicas were added in all roles together.
    Added {
        /// The share of its need that every role got.
        share: f64,
        /// What was added.
        added: Vec<Addition>,
    },
    /// A limit allowed fewer replicas than were proposed.
    Limited {
        /// The variant.
        variant: SmolStr,
        /// Replicas that were to be added.
        proposed: i64,
        /// Replicas that fit.
        fit: i64,
        /// The limit.
        binding: Binding,
    },
    /// No variant of the role can take a replica: nothing was added in any role.
    Blocked {
        /// The role.
        role: Role,
    },
    /// Nothing was removed in this role: an analyzer needs its capacity, or no analyzer could tell.
    Kept {
        /// The role.
        role: Role,
    },
    /// Replicas were removed.
    Removed {
        /// The variant.
        variant: SmolStr,
        /// How many the spare capacity allowed.
        allowed: i64,
        /// How many were removed.
        removed: i64,
    },
    /// Priority rescaling set the model's GPUs.
    Rescaled {
        /// GPUs of the accelerator in the model's scope, used and free.
        budget: i64,
        /// The model's demand. Its weight is the demand times its priority.
        demand: f64,
        /// GPUs of its minimum replicas.
        floor: i64,
        /// GPUs it needs, within its maximum replicas.
        cap: i64,
        /// GPUs it gets.
        gpus: i64,
        /// The minimum replicas of all models exceed the budget.
        is_over_budget: bool,
    },
}

/// What one analyzer says of a role, in its own unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Vote {
    pub(crate) analyzer: Analyzer,
    pub(crate) missing: f64,
    pub(crate) spare: f64,
}

/// Replicas that were added to a variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Addition {
    /// The variant.
    pub variant: SmolStr,
    /// How many.
    pub replicas: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(pairs: &[(&str, i64)]) -> Vec<Addition> {
        pairs
            .iter()
            .map(|(variant, replicas)| Addition { variant: (*variant).into(), replicas: *replicas })
            .collect()
    }

    #[test]
    fn each_step_of_an_optimizer_has_its_text() {
        let (role, both) = (Role::Decode, Role::Both);
        let grew = |all| OptimizerStep::Added { share: 0.25, added: added(all) };
        let covered = |is_cheapest| {
            let added = added(&[("a", 2)]);
            OptimizerStep::Covered { role, share: 0.5, added, cost: 7.0, is_cheapest }
        };
        let vote = |analyzer, missing, spare| Vote { analyzer, missing, spare };
        let votes = vec![vote(Analyzer::Saturation, 10.0, 0.0), vote(Analyzer::Throughput, 0.0, 2.5)];
        let (limit, key) = ("power".into(), "cluster".into());
        let binding = Binding { limit, key, budget: 9.0, used: 8.0, free: 1.0, elsewhere: 0.0 };
        let rescaled = |is_over_budget| OptimizerStep::Rescaled {
            budget: 8,
            demand: 4000.0,
            floor: 1,
            cap: 6,
            gpus: 5,
            is_over_budget,
        };
        let cases = [
            (grew(&[]), "0 replicas cover 25 % of the need of every role"),
            (grew(&[("a", 2)]), "2 of a cover 25 % of the need of every role"),
            (grew(&[("a", 2), ("b", 1)]), "2 of a and 1 of b cover 25 % of the need of every role"),
            (covered(true), "role decode: 2 of a cover 50 % of the need at a cost of 7.00"),
            (
                covered(false),
                "role decode: 2 of a cover 50 % of the need at a cost of 7.00, not proven to be the cheapest",
            ),
            (
                OptimizerStep::Votes { role: both, votes },
                "role both: saturation needs 10.0 more and has 0.0 spare, throughput needs 0.0 more and has 2.5 spare",
            ),
            (
                OptimizerStep::Round { remaining: 10.0, mean: 4.0, target: 6.0 },
                "may fill 6.0 of 10.0 (mean of all models 4.0)",
            ),
            (
                OptimizerStep::Limited { variant: "a".into(), proposed: 5, fit: 2, binding },
                "a: 2 of 5 more fit: power of cluster: 1.0 of 9.0 free, 8.0 used",
            ),
            (
                OptimizerStep::Blocked { role: both },
                "role both: no variant can take a replica, so none is added",
            ),
            (
                OptimizerStep::Kept { role: both },
                "role both: no replica is removed, because not every analyzer has capacity to spare",
            ),
            (
                OptimizerStep::Removed { variant: "a".into(), allowed: 3, removed: 2 },
                "a: 2 fewer, where spare capacity allows 3",
            ),
            (rescaled(false), "rescaled to 5 of 8 GPUs (between 1 and 6, for a demand of 4000.0)"),
            (
                rescaled(true),
                "rescaled to 5 of 8 GPUs, although the minima alone exceed that (between 1 and 6, for a demand of 4000.0)",
            ),
        ];
        for (step, text) in cases {
            assert_eq!(step.to_string(), text);
        }
    }
}
