//! Flags, environment and files become one validated [`Config`]. The only reader of the environment.

mod args;
mod command_line;
mod document;
mod error;
mod lease;
mod legacy;
mod parsers;
pub mod policy_config;
mod policy_file;
pub(crate) mod ranged;
mod resolve;
mod settings;

pub use args::{LEASE_NAME, LogArgs, RecordArgs, ServeArgs, SourceKind};
pub use command_line::CommandLine;
pub use error::ConfigError;
pub use lease::LeaseTimes;
pub use legacy::{LegacyFlags, Unused};
pub use policy_file::{PolicyError, PolicyFile};
pub use resolve::{Certificate, Config, Prometheus, RecordFiles, RecordSettings, Scrape, Source};
pub use settings::{Settings, SettingsError};
