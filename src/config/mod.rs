//! Flags, environment and files become one validated [`Config`]. The only reader of the environment.

mod args;
mod legacy;
mod maps;
pub mod models;
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
