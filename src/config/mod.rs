//! Flags, environment and files become one validated [`Config`]. The only reader of the environment.

mod args;
mod config_map_args;
mod legacy;
pub mod policy_config;
mod policy_file;
mod record_args;
mod resolve;

pub use args::{LogArgs, ServeArgs, SourceKind};
pub use legacy::ignored_environment;
pub use policy_file::{PolicyError, PolicyFile};
pub use record_args::RecordArgs;
pub use resolve::{
    Certificate, Config, ConfigError, Prometheus, RecordFiles, RecordSettings, Scrape, Source,
};
