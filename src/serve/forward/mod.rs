//! One decides, all answer: an instance that does not hold the lease asks the one that does, over mutual TLS from the
//! shared CA. Who may read was decided before; this only carries.

mod client;
mod guard;

use http::{HeaderName, HeaderValue};

pub(crate) use client::{ForwardError, Forwarder};
pub(crate) use guard::{Guard, custom, external, instances};

use super::custom_metrics::PREFIX;
use super::router::NAMESPACES;

/// The inner path of external metrics; the namespace, the metric and the query follow as they came.
pub(crate) const EXTERNAL: &str = "/internal/v1/external/";

/// The inner path of metrics of objects; the version and everything after it follow as they came.
pub(crate) const CUSTOM: &str = "/internal/v1/custom/";

/// Where the holder answers what was asked for by the path and query `asked`.
fn inner(asked: &str) -> String {
    let doors = [(NAMESPACES, EXTERNAL), (PREFIX, CUSTOM)];
    let mut inner = doors.into_iter().filter_map(|(outer, inner)| Some((inner, asked.strip_prefix(outer)?)));
    inner.next().map_or_else(String::new, |(inner, rest)| format!("{inner}{rest}"))
}

/// Marks what comes from a holder, so that no other refusal is ever taken for one and passed on.
pub(crate) const ANSWERED: HeaderName = HeaderName::from_static("wva-answered-by");

/// Its answer, to be passed on.
const HOLDER: HeaderValue = HeaderValue::from_static("holder");

/// It holds the lease and knows nothing yet: no answer.
const NOTHING_YET: HeaderValue = HeaderValue::from_static("holder-without-anything");

/// The name of one request in the logs of all servers it passes.
pub(crate) const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
