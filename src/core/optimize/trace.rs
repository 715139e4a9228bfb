//! What an optimizer did, as data for the report.

use serde::{Deserialize, Serialize};

use crate::analyze::finding::Analyzer;
use crate::limit::Binding;
use crate::model::Role;

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
        variant: String,
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
        variant: String,
        /// How many the spare capacity allowed.
        allowed: i64,
        /// How many were removed.
        removed: i64,
    },
    /// Priority rescaling set the model's GPUs.
    Rescaled {
        /// GPUs of the accelerator in the model's scope, used and free.
        budget: i64,
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
    pub variant: String,
    /// How many.
    pub replicas: i64,
}
