//! The answer before there is one: what nobody has evaluated or restored yet, why not, since when, and what to do.

use std::fmt;

use jiff::Timestamp;
use wva_core::units::Seconds;

use super::answer::{NAMES, Question};
use super::show::WholeSeconds;
use crate::serve::status::{Reason, Status};

/// How far this process has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Beginning {
    /// When the process started.
    pub(crate) since: Timestamp,
    /// What it waits for.
    pub(crate) waits_for: WaitsFor,
}

/// What a process without any result waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WaitsFor {
    /// The first listing of its watches.
    Listing,
    /// Somebody to hold the lease.
    Holder,
    /// What this holder has written down.
    State(String),
    /// Its own first evaluation.
    Evaluation,
}

impl fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listing => f.write_str(
                "its watches of the API server have not all listed once; check that the CustomResourceDefinition of \
                 VariantAutoscaling is installed and that this server may list and watch what it needs: its log names \
                 what is missing",
            ),
            Self::Holder => f.write_str(
                "no instance of wva holds the lease; check that this server reaches the API server and may get, create \
                 and update its Lease",
            ),
            Self::State(holder) => write!(
                f,
                "instance {holder} decides, and what it has published is not known here; check that {holder} runs and \
                 evaluates, and that this server may read the state that it writes"
            ),
            Self::Evaluation => f.write_str(
                "its first evaluation has not ended; that takes seconds, so ask again, and see this server's log if it \
                 stays",
            ),
        }
    }
}

/// The refusal, in the name of the variants that the selector asks for, when it names any.
pub(super) fn nothing_yet(question: &Question<'_>) -> Status {
    let Question { group, namespace, metric, selector, beginning, now, .. } = question;
    let named = selector.required(&NAMES);
    let of = match named.as_slice() {
        [] if selector.is_empty() => format!("in namespace {namespace}"),
        [] => format!("in namespace {namespace} for selector {:?}", selector.to_string()),
        [one] => format!("of variant {namespace}/{one}"),
        many => format!("of variants {} in namespace {namespace}", many.join(", ")),
    };
    let age = Seconds::between(beginning.since, *now);
    let message = format!(
        "{metric} {of} is not known yet: this server has neither evaluated nor restored anything since it started (for \
         {age}, since {}): {}",
        WholeSeconds(beginning.since),
        beginning.waits_for
    );
    let name = if let [one] = named.as_slice() { *one } else { "" };
    Status::new(Reason::ServiceUnavailable, message).about(group, *metric, name)
}
