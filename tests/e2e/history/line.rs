//! The lines of a history. Times are seconds since it began, by the clock of the one process that kept it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One thing that was seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    /// Which instance.
    pub(crate) instance: String,
    /// When it was asked.
    pub(crate) asked: f64,
    /// When its answer was there.
    pub(crate) answered: f64,
    /// What it said.
    #[serde(flatten)]
    pub(crate) seen: Seen,
}

/// What an instance said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub(crate) enum Seen {
    /// The history began, at this moment of the clock: Unix seconds. The first line, of no instance.
    Began {
        /// Unix seconds.
        clock: f64,
    },
    /// Numbers.
    Answer {
        /// By variant, `namespace/name`.
        numbers: BTreeMap<String, Number>,
        /// The answer's Warning, if it has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        warning: Option<String>,
    },
    /// No numbers.
    Refusal {
        /// The HTTP status.
        status: u16,
        /// What was said.
        message: String,
    },
    /// No answer.
    Silence {
        /// Why.
        error: String,
    },
    /// An evaluation that was not listed at `since` and was when this was answered.
    Evaluation {
        /// The last look before it was listed; none when it was there at the first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<f64>,
        /// When, by the instance's clock.
        at: String,
        /// Its number in its process.
        sequence: u64,
        /// The term it was made in.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        term: Option<Term>,
        /// By variant, `namespace/name`.
        numbers: BTreeMap<String, Number>,
    },
}

/// A number and what it rests on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Number {
    /// Desired replicas, as a Kubernetes quantity.
    pub(crate) value: String,
    /// When its evidence was measured, in whole seconds.
    pub(crate) evidence: i64,
}

/// One holding of one Lease.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Term {
    /// The Lease's uid.
    pub(crate) lease: String,
    /// `leaseTransitions`.
    pub(crate) epoch: i64,
}
