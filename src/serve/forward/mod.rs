//! One decides, all answer: an instance that does not hold the lease asks the one that does, over mutual TLS from the
//! shared CA. Who may read was decided before; this only carries.

mod client;
mod guard;

use http::HeaderName;

pub(crate) use client::{ForwardError, Forwarder};
pub(crate) use guard::{Guard, answer, instances};

/// The inner path; the namespace, the metric and the query follow as they came.
pub(crate) const PATH: &str = "/internal/v1/external/";

/// Marks an answer of a holder, so that no other refusal is ever taken for one and passed on.
pub(crate) const ANSWERED: HeaderName = HeaderName::from_static("wva-answered-by");

/// The name of one request in the logs of all servers it passes.
pub(crate) const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
