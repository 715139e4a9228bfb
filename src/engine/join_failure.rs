//! Panics while series are joined: they affect only their pod or model, and are logged once.

use std::collections::BTreeSet;
use std::fmt;

use parking_lot::Mutex;
use smol_str::SmolStr;
use tracing::{error, info};

/// A pod or a model whose series could not be joined.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct JoinFailure {
    /// The pod or model, for people.
    pub what: String,
    /// The message of the panic.
    pub cause: SmolStr,
}

impl fmt::Display for JoinFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.cause)
    }
}

/// The failures that were logged.
#[derive(Debug, Default)]
pub(super) struct JoinFailureLog(Mutex<BTreeSet<JoinFailure>>);

impl JoinFailureLog {
    /// Logs new failures, and the end of earlier ones. Parts are texts of tenants: as values of fields they are escaped.
    pub(super) fn report(&self, failures: Vec<JoinFailure>) {
        let now: BTreeSet<JoinFailure> = failures.into_iter().collect();
        let mut known = self.0.lock();
        for failure in now.difference(&known) {
            error!(
                failure = failure.to_string().as_str(),
                "metrics cannot be joined; the numbers of this model are not lowered; please report this"
            );
        }
        let is_over = |known: &&JoinFailure| now.iter().all(|failure| failure.what != known.what);
        for recovered in known.iter().filter(is_over) {
            info!(what = recovered.what.as_str(), "metrics can be joined again");
        }
        *known = now;
    }
}
