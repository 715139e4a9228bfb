//! ScaledObjects that annotations pause: KEDA does not follow the number, or only in one direction.

use std::sync::Arc;

use wva_core::model::TargetRef;

/// A pause of a ScaledObject: at most 1 kB, whatever its author wrote, and nothing for one that is not paused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pause {
    /// What is not scaled.
    pub(super) target: TargetRef,
    /// What it means, for people.
    pub(super) note: Arc<str>,
}
