//! One evaluation as it happened: all that it was made from, beside what came out. Enough to make it again elsewhere.

use std::sync::Arc;

use wva_core::{Memory, Policy, Snapshot};

use super::board::Published;

/// An evaluation that was published.
#[derive(Debug, Clone)]
pub struct Evaluation {
    /// What was seen.
    pub snapshot: Snapshot,
    /// What was remembered before it.
    pub before: Arc<Memory>,
    /// What was wanted.
    pub policy: Arc<Policy>,
    /// What came out.
    pub published: Arc<Published>,
    /// What is remembered since.
    pub after: Arc<Memory>,
}

/// Keeps evaluations.
pub trait Recorder: Send + Sync {
    /// Called on the way of an evaluation to those who wait for it: must return at once, whatever it does with it.
    fn record(&self, evaluation: Arc<Evaluation>);
}
