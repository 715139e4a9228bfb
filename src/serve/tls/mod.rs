//! TLS: certificates, the accept loop, and what the handshake asks of clients. Knows no route and no user.

pub(crate) mod accept;
mod activity;
pub(crate) mod certificates;
mod connection;
mod door;
mod frames;
mod heads;
pub(crate) mod ledger;
mod peer;
pub mod pem;
mod sending;
mod shares;
mod stall;
mod verifier;

pub use certificates::{CertificateError, RECHECK, Serving, SharedPki};
pub use peer::Peer;
pub(crate) use peer::{Vouched, Vouches};
pub(crate) use sending::UntilSent;
