//! The rules of prometheus-adapter: further external metrics, made of series of Prometheus. The format of the file and the answers are those
//! of its version 0.12; `docs/rules.md` lists what differs, and why.
//!
//! `config` reads the file, `rule` says which metrics the names of series make and what query a read becomes, `registry` keeps both up to
//! date, and `read` asks Prometheus.

mod config;
mod read;
mod registry;
mod rule;
mod template;

pub use read::AdapterRules;
pub use registry::RuleSettings;
