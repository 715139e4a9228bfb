//! The metrics API on TLS, the output edge. It reads published results and computes nothing.
//!
//! A request arrives through [`tls`], gets an audit id and is counted in `middleware`, is authorised by [`auth`] with the
//! attributes that its route provides, and is answered from memory: by `discovery` from static bytes, by `external_metrics` and
//! `custom_metrics` from the published decisions (which `data_read` takes from this instance or, through `forward`, from the
//! leader), by `installations` also from the variants of other installations, by `resource_metrics` from `rules`, by `decisions` as text, by `explanations` with
//! reasons, and by `admin` for operators. `external_scaler` answers KEDA on a port of its own, by reading the same routes.

mod admin;
pub mod auth;
mod custom_metrics;
mod data_read;
mod decisions;
mod discovery;
mod encoding;
mod explanations;
mod external_metrics;
mod external_scaler;
mod forward;
#[cfg(test)]
mod fuzz;
mod installations;
mod middleware;
mod namespace_permits;
mod paths;
mod ports;
mod request_metrics;
mod resource_metrics;
mod router;
mod server;
mod state;
pub mod tls;

pub(crate) use external_metrics::selector::LabelSelector;
pub(crate) use external_metrics::{Labels, Metric};
pub use installations::{AcceptedForwarder, InstallationSettings, OtherInstallation};
pub(crate) use paths::{AUDIT_ID, PASSED_ON, is_segment};
pub use ports::{
    AmbiguousSelector, ContainerUsage, EventSink, FallbackAnswer, FallbackError, FallbackServer,
    LabelOperator, LabelRequirement, NoEvents, ObjectAnswer, ObjectError, ObjectRead, ObjectUsage,
    ObjectValue, ObjectValues, Objects, PublishedReader, ResourceMetrics, RuleAnswer, RuleError, RuleMetrics,
    RuleValue, ScaledObjectCalls, UsageAnswer, UsageOf, UsageRead, Usages,
};
pub use server::{ServeError, Server};
pub use state::{AppState, ServerPorts, ServerSettings};
