//! What a finding says, in parts.

use std::fmt;

use serde::Serialize;

/// How much a finding matters. The worst comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The number is not followed, or is wrong.
    Error,
    /// It costs money, or somebody waits.
    Warning,
    /// Worth knowing.
    Note,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        })
    }
}

/// A rendered issue, without its object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Words {
    pub(super) severity: Severity,
    /// In CamelCase, as conditions and events have it.
    pub(super) reason: &'static str,
    /// What is set.
    pub(super) set: String,
    /// What happens because of it.
    pub(super) effect: String,
    /// The YAML that mends it, or what to do where no YAML does.
    pub(super) fix: String,
}

impl Words {
    pub(super) fn new(
        (severity, reason): (Severity, &'static str),
        set: impl Into<String>,
        effect: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { severity, reason, set: set.into(), effect: effect.into(), fix: fix.into() }
    }
}

/// The autoscaler whose fields a fix names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    /// A HorizontalPodAutoscaler.
    Hpa,
    /// A ScaledObject of KEDA.
    ScaledObject,
}

impl Host {
    /// Its field of the smallest number of replicas.
    pub(super) const fn min_field(self) -> &'static str {
        match self {
            Self::Hpa => "minReplicas",
            Self::ScaledObject => "minReplicaCount",
        }
    }

    /// Its field of the largest number of replicas.
    pub(super) const fn max_field(self) -> &'static str {
        match self {
            Self::Hpa => "maxReplicas",
            Self::ScaledObject => "maxReplicaCount",
        }
    }

    /// YAML that sets `rules`, which begin in the first column, in its `behavior`.
    pub(super) fn behavior(self, rules: &str) -> String {
        let (path, indent) = match self {
            Self::Hpa => ("spec:\n  behavior:", 4),
            Self::ScaledObject => {
                ("spec:\n  advanced:\n    horizontalPodAutoscalerConfig:\n      behavior:", 8)
            }
        };
        rules.lines().fold(path.to_owned(), |yaml, line| format!("{yaml}\n{:indent$}{line}", ""))
    }
}
