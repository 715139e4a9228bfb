//! Output edges: the metrics API on TLS. Reads the board; computes nothing.
//!
//! A request comes in through [`tls`], is named and counted, passes the gate of its route (see [`auth`]) and is
//! answered from memory: by `discovery` from static bytes, by `external_metrics` from the published decisions, by
//! `forward` from those of the holder, by `admin` for operators.

mod accept;
mod admin;
pub mod auth;
mod custom_metrics;
mod discovery;
mod external_metrics;
mod forward;
#[cfg(test)]
mod fuzz;
mod observe;
mod reading;
mod represent;
mod router;
mod server;
mod state;
mod status;
pub mod tls;

pub use router::router;
pub use server::{ServeError, Server};
pub use state::{AddsUp, AppState, NoNotices, Notices, Ports, Reads, Settings};
pub use status::{Reason, Status};

/// The answer to what should not happen. The cause goes to the log: it is of no use to a caller.
fn internal_error(error: &dyn std::error::Error) -> Status {
    tracing::error!(%error, "an answer could not be made; this is a bug");
    Status::new(
        Reason::InternalError,
        "the answer could not be made; this is a bug, and this server's log says more",
    )
}
