//! One decides, all answer: an instance that does not hold the lease asks the one that does, over mutual TLS from the
//! shared CA. Who may read was decided before; this only carries.

mod client;
mod guard;

use http::{HeaderName, HeaderValue};

pub(crate) use client::{ForwardError, Forwarder};
pub(crate) use guard::{Guard, answer, instances};

/// The inner path; the namespace, the metric and the query follow as they came.
pub(crate) const PATH: &str = "/internal/v1/external/";

/// Marks what comes from a holder, so that no other refusal is ever taken for one and passed on.
pub(crate) const ANSWERED: HeaderName = HeaderName::from_static("wva-answered-by");

/// Its answer, to be passed on.
const HOLDER: HeaderValue = HeaderValue::from_static("holder");

/// It holds the lease and knows nothing yet: no answer.
const NOTHING_YET: HeaderValue = HeaderValue::from_static("holder-without-anything");

/// The name of one request in the logs of all servers it passes.
pub(crate) const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
