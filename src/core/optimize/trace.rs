//! What an optimizer did, as data for the report.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::limit::Binding;
use crate::model::{Analyzer, Role};
use crate::units::tenths;
use smol_str::SmolStr;

/// One step of an optimizer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// What every analyzer misses, and could do without, in a role. Of one analyzer and one role its finding says that.
    Votes {
        /// The role.
        role: Role,
        /// Analyzer, what is missing, what is spare; each in the analyzer's unit.
        of: Vec<(Analyzer, f64, f64)>,
    },
    /// A need was covered as cheaply as possible.
    Covered {
        /// The role.
        role: Role,
        /// The share of the need that the maxima of all roles allow, 0 to 1.
        share: f64,
        /// What was added.
        added: Vec<Added>,
        /// What that costs.
        cost: f64,
        /// Nothing cheaper exists; otherwise the search was cut short.
        exact: bool,
    },
    /// A turn of the fair sharing: a model may fill `target` of what is left of its weight.
    Turn {
        /// What is left of its weight.
        left: f64,
        /// The mean of what is left over all models that still want some.
        mean: f64,
        /// What it may fill now.
        target: f64,
    },
    /// Replicas were added in all roles together.
    Grew {
        /// The share of its need that every role got.
        share: f64,
        /// What was added.
        added: Vec<Added>,
    },
    /// A limit allowed less than was wanted.
    Bound {
        /// The variant.
        variant: SmolStr,
        /// Replicas that were wanted.
        wanted: i64,
        /// Replicas that fit.
        fit: i64,
        /// The limit.
        by: Binding,
    },
    /// No variant of the role can take a replica: nothing was added in any role.
    Blocked {
        /// The role.
        role: Role,
    },
    /// No removal in this role: somebody wants its capacity, or nobody could tell.
    Kept {
        /// The role.
        role: Role,
    },
    /// Replicas were removed.
    Shrank {
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
        /// The model's demand; times its priority, that is its weight.
        demand: f64,
        /// GPUs of its minima.
        floor: i64,
        /// GPUs it wants, within its maxima.
        cap: i64,
        /// GPUs the model shall have.
        gpus: i64,
        /// The minima of all models exceed the budget.
        over: bool,
    },
}

/// Replicas that were added to a variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Added {
    /// The variant.
    pub variant: SmolStr,
    /// How many.
    pub replicas: i64,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Votes { role, of } => {
                write!(f, "role {role:?}:")?;
                of.iter().enumerate().try_for_each(|(at, (analyzer, missing, spare))| {
                    let comma = if at == 0 { "" } else { "," };
                    let (name, missing, spare) = (analyzer.as_str(), tenths(*missing), tenths(*spare));
                    write!(f, "{comma} {name} misses {missing} and has {spare} to spare")
                })
            }
            Self::Covered { role, share, added, cost, exact } => {
                let how = if *exact { "" } else { ", not proven to be the cheapest" };
                write!(f, "role {role:?}: {:.0} % of the need covered by {}", share * 100.0, Listed(added))?;
                write!(f, " at a cost of {cost:.2}{how}")
            }
            Self::Turn { left, mean, target } => {
                write!(f, "may fill {target:.1} of {left:.1} (mean of all models {mean:.1})")
            }
            Self::Grew { share, added } => {
                write!(f, "{:.0} % of the need of every role covered by {}", share * 100.0, Listed(added))
            }
            Self::Bound { variant, wanted, fit, by } => {
                write!(f, "{variant}: {fit} of {wanted} more fit: {by}")
            }
            Self::Blocked { role } => {
                write!(f, "role {role:?}: no variant can take a replica, so nothing is added")
            }
            Self::Kept { role } => write!(f, "role {role:?}: nothing is removed, since not everyone agrees"),
            Self::Shrank { variant, allowed, removed } => {
                write!(f, "{variant}: {removed} fewer, {allowed} by what is spare")
            }
            Self::Rescaled { budget, demand, floor, cap, gpus, over } => {
                let over = if *over { ", although the minima alone exceed that" } else { "" };
                write!(f, "rescaled to {gpus} of {budget} GPUs{over}")?;
                write!(f, " ({floor} to {cap}, for a demand of {demand:.1})")
            }
        }
    }
}

/// Additions in words.
struct Listed<'a>(&'a [Added]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("nothing");
        }
        self.0.iter().enumerate().try_for_each(|(at, one)| {
            let and = if at == 0 { "" } else { " and " };
            write!(f, "{and}{} of {}", one.replicas, one.variant)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(all: &[(&str, i64)]) -> Vec<Added> {
        all.iter()
            .map(|(variant, replicas)| Added { variant: (*variant).into(), replicas: *replicas })
            .collect()
    }

    #[test]
    fn what_was_added_is_told_by_variant() {
        let grew = |all| Step::Grew { share: 0.25, added: added(all) }.to_string();
        assert_eq!(grew(&[]), "25 % of the need of every role covered by nothing");
        assert_eq!(grew(&[("a", 2)]), "25 % of the need of every role covered by 2 of a");
        assert_eq!(
            grew(&[("a", 2), ("b", 1)]),
            "25 % of the need of every role covered by 2 of a and 1 of b"
        );
    }

    #[test]
    fn a_cover_is_told_with_its_cost_and_whether_it_is_the_cheapest() {
        let covered = |exact| {
            let (role, added) = (Role::Decode, added(&[("a", 2)]));
            Step::Covered { role, share: 0.5, added, cost: 7.0, exact }.to_string()
        };
        let said = "role Decode: 50 % of the need covered by 2 of a at a cost of 7.00";
        assert_eq!(covered(true), said);
        assert_eq!(covered(false), format!("{said}, not proven to be the cheapest"));
    }

    #[test]
    fn who_asked_whose_turn_it_was_and_what_a_limit_left_is_told() {
        let role = Role::Both;
        let of = vec![(Analyzer::Saturation, 10.0, 0.0), (Analyzer::Throughput, 0.0, 2.5)];
        let by = Binding {
            limit: "power".into(),
            key: "cluster".into(),
            budget: 9.0,
            used: 8.0,
            free: 1.0,
            elsewhere: 0.0,
        };
        let said = [
            Step::Votes { role, of },
            Step::Turn { left: 10.0, mean: 4.0, target: 6.0 },
            Step::Bound { variant: "a".into(), wanted: 5, fit: 2, by },
            Step::Blocked { role },
            Step::Kept { role },
            Step::Shrank { variant: "a".into(), allowed: 3, removed: 2 },
        ]
        .map(|step| step.to_string());
        let expected = [
            "role Both: saturation misses 10.0 and has 0.0 to spare, throughput misses 0.0 and has 2.5 to spare",
            "may fill 6.0 of 10.0 (mean of all models 4.0)",
            "a: 2 of 5 more fit: power of cluster: 1.0 of 9.0 free, 8.0 used",
            "role Both: no variant can take a replica, so nothing is added",
            "role Both: nothing is removed, since not everyone agrees",
            "a: 2 fewer, 3 by what is spare",
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn a_rescaling_tells_when_the_minima_alone_are_too_much() {
        let rescaled =
            |over| Step::Rescaled { budget: 8, demand: 4000.0, floor: 1, cap: 6, gpus: 5, over }.to_string();
        assert_eq!(rescaled(false), "rescaled to 5 of 8 GPUs (1 to 6, for a demand of 4000.0)");
        let said =
            "rescaled to 5 of 8 GPUs, although the minima alone exceed that (1 to 6, for a demand of 4000.0)";
        assert_eq!(rescaled(true), said);
    }
}
