//! What `fallback` of a ScaledObject makes of an error.

use super::input::{Fallback, ScaledObjectSpec};
use super::words::{Severity, Words};

/// What happens while there is no number.
#[derive(Debug, Clone, PartialEq)]
pub enum FallbackIssue {
    /// An error becomes a number.
    SetsNumber {
        /// That number.
        replicas: i32,
        /// Whether it counts only while more run.
        only_lowers: bool,
    },
    /// An error counts as inactivity.
    OfZero {
        /// Whether those that run are kept as long as KEDA takes the triggers for active.
        keeps: bool,
    },
    /// An error may add replicas.
    Raises {
        /// To this number.
        replicas: i32,
    },
}

/// What `fallback` does to a workload that may have `most` replicas.
pub(super) fn judge(fallback: &Fallback, spec: &ScaledObjectSpec, most: u32) -> Option<FallbackIssue> {
    let replicas = fallback.replicas;
    let removes = u32::try_from(replicas).is_ok_and(|replicas| replicas < most);
    let behavior = fallback.behavior.as_deref();
    match behavior {
        // Of an error, KEDA then takes the triggers for inactive.
        _ if replicas == 0 && spec.may_deactivate() => {
            let keeps = matches!(behavior, Some("currentReplicas" | "currentReplicasIfHigher"));
            Some(FallbackIssue::OfZero { keeps })
        }
        Some("currentReplicas") => None,
        Some("currentReplicasIfHigher") => Some(FallbackIssue::Raises { replicas }),
        Some("currentReplicasIfLower") => {
            removes.then_some(FallbackIssue::SetsNumber { replicas, only_lowers: true })
        }
        _ if removes => Some(FallbackIssue::SetsNumber { replicas, only_lowers: false }),
        _ => Some(FallbackIssue::Raises { replicas }),
    }
}

impl FallbackIssue {
    pub(super) fn words(&self) -> Words {
        match self {
            Self::SetsNumber { replicas, only_lowers } => Words::new(
                (Severity::Error, "FallbackHidesErrors"),
                format!("fallback.replicas is {replicas}"),
                format!(
                    "while there is no number, as when metrics are missing, KEDA sets {replicas} replicas{}: a saturated fleet shrinks \
                     exactly when nobody can see it",
                    if *only_lowers { " where more run" } else { " instead of keeping those that run" }
                ),
                "spec:\n  fallback:\n    behavior: currentReplicas # keeps those that run",
            ),
            Self::OfZero { keeps } => {
                let (severity, kept) = if *keeps {
                    (Severity::Warning, "keeps those that run")
                } else {
                    (Severity::Error, "lets one replica run, however many are needed")
                };
                Words::new(
                    (severity, "FallbackHidesErrors"),
                    "fallback.replicas is 0",
                    format!(
                        "while there is no number, as when metrics are missing, KEDA {kept}; where cooldownPeriod has passed, or the \
                         ScaledObject was never active, it removes all until failureThreshold errors are counted"
                    ),
                    "spec:\n  fallback:\n    behavior: currentReplicas # keeps those that run\n    replicas: 1 # above 0, so that an error counts as active",
                )
            }
            Self::Raises { replicas } => Words::new(
                (Severity::Note, "FallbackRaises"),
                format!("fallback raises the replicas to {replicas}"),
                format!("while there is no number, at least {replicas} replicas run"),
                "# nothing to mend, if that is meant",
            ),
        }
    }
}
