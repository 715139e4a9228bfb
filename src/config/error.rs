//! What can be wrong with a command line.

use jiff::SignedDuration;

/// A command line that cannot be run, with the flag and the next step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A duration below its minimum.
    #[error("{flag} {given:#} is too short: must be at least {min:#}{note}")]
    TooShort {
        /// The flag.
        flag: &'static str,
        /// What was given.
        given: SignedDuration,
        /// The shortest that is allowed.
        min: SignedDuration,
        /// Why, if that helps.
        note: &'static str,
    },
    /// A source that needs a URL.
    #[error(
        "--source prometheus needs a URL: set --prometheus-url or PROMETHEUS_BASE_URL, or use --source scrape"
    )]
    NoPrometheusUrl,
    /// An invalid address.
    #[error("POD_IP {0:?} is not an IP address")]
    PodIp(String),
    /// Files so large that deleting the oldest leaves hardly any.
    #[error(
        "--record-file-size {file} is more than a quarter of --record-max-size {total}: lower the first or raise the second"
    )]
    RecordFileSize {
        /// What was given.
        file: u64,
        /// What all files may have.
        total: u64,
    },
    /// Two flags with one name.
    #[error("{first} and {second} are both {name:?}: give each ConfigMap a name of its own")]
    SameConfigMap {
        /// One flag.
        first: &'static str,
        /// The other.
        second: &'static str,
        /// The name.
        name: String,
    },
    /// Half of a pair.
    #[error("{given} needs {missing} as well")]
    HalfPair {
        /// The flag that was given.
        given: &'static str,
        /// The one that is missing.
        missing: &'static str,
    },
}
