//! Flags, environment and files become one validated [`Config`]. The only reader of the environment.

mod args;
mod legacy;
mod maps;
pub mod models;
mod resolve;

pub use args::{LogArgs, ServeArgs, SourceKind};
pub use legacy::ignored_environment;
pub use resolve::{Certificate, Config, ConfigError, Prometheus, Scrape, Source};
