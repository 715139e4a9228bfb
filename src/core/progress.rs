//! The progress of a decision: shows which model it hangs on if it does not end.

use crate::model::GroupId;

/// Receives the model that is being worked on, on the same thread. No decision depends on it.
pub trait Progress {
    /// Work on `model` begins; `None`: what follows is of no single model.
    fn begins(&self, model: Option<&GroupId>);
}

/// Ignores progress.
impl Progress for () {
    fn begins(&self, _: Option<&GroupId>) {}
}
