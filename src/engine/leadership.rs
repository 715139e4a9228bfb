//! Who the leader is. `cluster::leadership` publishes it; the engine, the writers and the forwarder read it.

use serde::Serialize;
use tokio::time::Instant;

/// Who holds the lease, as far as this instance knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The holder; `None` while nobody holds an unexpired lease.
    pub holder: Option<Holder>,
    /// Until when this instance may act as the holder; `None` when it is not the holder.
    pub mine_until: Option<Instant>,
}

/// The instance that decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its identity (the pod's name).
    pub identity: String,
    /// Where it serves, as `https://host:port`, if the lease has that.
    pub address: Option<String>,
    /// uid of the Lease object: epochs of different leases cannot be compared. Empty where there is no object.
    pub lease: String,
    /// `leaseTransitions`: the epoch of its decisions, counted within this lease.
    pub epoch: i64,
}

/// One holding of one lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Term {
    /// The lease's uid.
    pub lease: String,
    /// `leaseTransitions`.
    pub epoch: i64,
}

impl Leadership {
    /// The holder, if it is another instance.
    #[must_use]
    pub fn other_holder(&self) -> Option<&Holder> {
        self.holder.as_ref().filter(|_| self.mine_until.is_none())
    }

    /// The holder's term.
    #[must_use]
    pub fn term(&self) -> Option<Term> {
        self.holder.as_ref().map(|holder| Term { lease: holder.lease.clone(), epoch: holder.epoch })
    }

    /// True while this instance may decide and write. Ask at the moment of acting, not before.
    #[must_use]
    pub fn is_mine(&self) -> bool {
        self.mine_until.is_some_and(|until| Instant::now() < until)
    }
}
