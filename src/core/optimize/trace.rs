//! What an optimizer did, as data for the report.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::analyze::finding::Analyzer;
use crate::limit::Binding;
use crate::model::Role;
use smol_str::SmolStr;

/// One step of an optimizer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// What every analyzer misses, and could do without, in a role.
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
                of.iter().try_for_each(|(analyzer, missing, spare)| {
                    write!(f, " {} misses {missing:.1} and has {spare:.1} to spare", analyzer.as_str())
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
