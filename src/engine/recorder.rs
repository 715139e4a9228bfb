//! One evaluation with all its inputs and results: enough to repeat it elsewhere.

use std::sync::Arc;

use wva_core::{Memory, Snapshot};

use super::board::Published;

/// An evaluation that was published.
#[derive(Debug, Clone)]
pub struct Evaluation {
    /// Its input.
    pub snapshot: Snapshot,
    /// The memory before it.
    pub before: Arc<Memory>,
    /// The result, with its policy.
    pub published: Arc<Published>,
    /// The memory after it.
    pub after: Arc<Memory>,
}

/// Keeps evaluations.
pub trait Recorder: Send + Sync {
    /// Called before the waiting readers get the result: must return at once.
    fn record(&self, evaluation: Arc<Evaluation>);
}
