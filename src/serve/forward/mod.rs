//! Forwarding of reads: an instance without the lease asks the lease holder, over mutual TLS from the shared CA. Who may read
//! has been decided before.

mod client;
mod instances;

pub(crate) use client::{ForwardError, Forwarder};
pub(crate) use instances::InstanceVerifier;
