//! Asks the metrics server that owned `external.metrics.k8s.io` before for what is not served here (`docs/pass-through.md`).
//!
//! `server` asks and lists in the background, `exchange` is one request over TLS with the token of this program, `list` reads the names that
//! discovery shows, and `outage` keeps a server or a metric that does not answer from holding up those who read.

mod exchange;
mod list;
mod outage;
mod server;

pub use exchange::FallbackSettings;
pub use server::{FallbackApi, ListState};
