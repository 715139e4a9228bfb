//! Flags, environment and files become one validated [`Config`]. The only reader of the environment.

mod args;
mod document;
mod error;
mod legacy;
mod parsers;
pub mod policy_config;
mod policy_file;
pub(crate) mod ranged;
mod resolve;

pub use args::{LEASE_DURATION, LEASE_NAME, LogArgs, RecordArgs, ServeArgs, SourceKind};
pub use error::ConfigError;
pub use legacy::ignored_environment;
pub use policy_file::{PolicyError, PolicyFile};
pub use resolve::{Certificate, Config, Prometheus, RecordFiles, RecordSettings, Scrape, Source};
