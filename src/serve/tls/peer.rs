//! Who is at the other end of a connection, as far as TLS can tell.

use std::net::SocketAddr;
use std::sync::Arc;

use futures::future::BoxFuture;

use crate::serve::auth::Chain;

/// The other end of a connection; in the extensions of every request.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Where it connects from.
    pub address: SocketAddr,
    /// The certificates it proved to have the key of, leaf first and at most five; not verified against any
    /// CA. Empty without any.
    pub chain: Arc<Chain>,
}

/// Who vouches for a peer, and so what place its connection has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vouched {
    /// The front proxy's CA, or the one that instances share: the connections that everything depends on.
    ForTheCluster,
    /// The CA of the cluster's users.
    ForAUser,
    /// Nobody: probes, scrapes with a token, anybody in the network.
    No,
}

/// Says who vouches for a peer.
pub(crate) trait Vouches: Send + Sync + 'static {
    /// Who issued the peer's certificate.
    fn vouched<'a>(&'a self, peer: &'a Peer) -> BoxFuture<'a, Vouched>;
}
