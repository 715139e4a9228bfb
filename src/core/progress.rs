//! How far a decision has come, for whoever waits for it: which model keeps it, when it does not end.

use crate::model::GroupId;

/// Is told which model is worked on, on the thread that does. Nothing of a decision depends on it.
pub trait Progress {
    /// Work on `model` begins; `None`: what follows is of no single model.
    fn begins(&self, model: Option<&GroupId>);
}

/// Nobody waits.
impl Progress for () {
    fn begins(&self, _: Option<&GroupId>) {}
}
