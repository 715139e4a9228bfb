//! The lines of a history. Times are seconds since its start, by the clock of the recording process.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One event of a history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    /// The instance.
    pub(crate) instance: String,
    /// When the request was sent.
    #[serde(rename = "asked")]
    pub(crate) sent_s: f64,
    /// When the response was complete.
    #[serde(rename = "answered")]
    pub(crate) received_s: f64,
    /// The event.
    #[serde(flatten)]
    pub(crate) event: Event,
}

/// What a poll of an instance found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub(crate) enum Event {
    /// The start of the history. The first line, without an instance.
    #[serde(rename = "began")]
    Start {
        /// Unix seconds.
        #[serde(rename = "clock")]
        unix_s: f64,
    },
    /// An answer with numbers.
    Answer {
        /// By variant, `namespace/name`.
        numbers: BTreeMap<String, Number>,
        /// The Warning header, if any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        warning: Option<String>,
    },
    /// An answer without numbers.
    Refusal {
        /// The HTTP status.
        status: u16,
        /// The message.
        message: String,
    },
    /// No answer.
    #[serde(rename = "silence")]
    NoAnswer {
        /// The error.
        error: String,
    },
    /// An evaluation that was not listed at `since_s`, but in this response.
    Evaluation {
        /// The last poll before it was listed; `None` if the first poll listed it.
        #[serde(rename = "since", default, skip_serializing_if = "Option::is_none")]
        since_s: Option<f64>,
        /// Its time, by the instance's clock.
        at: String,
        /// Its sequence number in its process.
        sequence: u64,
        /// Its term.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        term: Option<Term>,
        /// By variant, `namespace/name`.
        numbers: BTreeMap<String, Number>,
    },
}

/// A number and its evidence.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Number {
    /// Desired replicas, as a Kubernetes quantity.
    pub(crate) value: String,
    /// The time of its evidence, in whole seconds.
    pub(crate) evidence: i64,
}

/// A term: one period in which an instance holds a Lease.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Term {
    /// The Lease's uid.
    pub(crate) lease: String,
    /// `leaseTransitions`.
    pub(crate) epoch: i64,
}
