//! Flags, environment and files become one validated [`Config`]. The only reader of the environment.

mod args;
mod command_line;
mod document;
mod error;
mod fallback;
mod installations;
mod label_matchers;
mod lease;
mod legacy;
mod otlp;
mod parsers;
pub mod policy_config;
mod policy_file;
pub(crate) mod ranged;
mod resolve;
mod rules;
mod secret;
mod settings;
mod source;

pub use args::{
    ConfigMapArgs, LEASE_NAME, LogArgs, OtlpArgs, RecordArgs, RuleArgs, ServeArgs, SourceArgs, SourceKind,
};
pub use command_line::{CommandLine, NOT_A_SETTING};
pub use error::ConfigError;
pub use fallback::{Fallback, FallbackArgs, absolute_name};
pub use installations::{ForwarderCertificate, Installation, InstallationArgs};
pub use lease::LeaseTimes;
pub use legacy::{LegacyFlags, Unused};
pub use otlp::Otlp;
pub(crate) use parsers::lenient_bool;
pub use policy_file::{PolicyError, PolicyFile};
pub use resolve::{Config, RecordFiles, RecordSettings, config_map_names, default_policy};
pub use rules::Rules;
pub use secret::Secret;
pub use settings::{Settings, SettingsError};
pub use source::{Certificate, HeaderText, Prometheus, PrometheusHeader, Scrape, Source, source};
