//! What breaks before anything is decided: a pod or a model whose series make the program panic costs itself, and is told once.

use std::collections::BTreeSet;
use std::fmt;

use parking_lot::Mutex;
use smol_str::SmolStr;
use tracing::{error, info};

/// A pod or a model whose series could not be put together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Broken {
    /// Which one, for people.
    pub what: String,
    /// What the panic said.
    pub cause: SmolStr,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.cause)
    }
}

/// What is known to be broken, and was logged.
#[derive(Debug, Default)]
pub(super) struct Breaks(Mutex<BTreeSet<Broken>>);

impl Breaks {
    /// Logs what is new among `broken`, and that what was broken is whole again. Texts of tenants are in it: as values of fields
    /// they are escaped.
    pub(super) fn tell(&self, broken: Vec<Broken>) {
        let now: BTreeSet<Broken> = broken.into_iter().collect();
        let mut known = self.0.lock();
        for broken in now.difference(&known) {
            error!(
                failure = broken.to_string().as_str(),
                "metrics cannot be put together; the numbers of this model are not lowered; please report this"
            );
        }
        for whole in known.iter().filter(|known| now.iter().all(|broken| broken.what != known.what)) {
            info!(what = whole.what.as_str(), "metrics can be put together again");
        }
        *known = now;
    }
}
