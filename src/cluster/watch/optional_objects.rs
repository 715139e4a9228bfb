//! The objects of a kind whose list may be refused, and that may not exist, as its watch leaves them. Pure.

use kube::runtime::watcher::Event;

use super::kind_store::{ObjectStore, StoreEvent};

/// The objects of a kind whose list may be refused, and that may not exist.
#[derive(Debug)]
pub(crate) struct OptionalObjects<V> {
    pub(super) objects: ObjectStore<V>,
    /// How the last request failed, unless it was answered.
    failure: Option<ListFailure>,
}

/// How a list of such objects failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListFailure {
    /// The API server said once that it has no such kind. One that starts may not serve every kind yet.
    NotServed,
    /// It said so twice: there are no such objects.
    Absent,
    /// The right is missing.
    Refused,
    /// Anything else, which says nothing about the objects.
    Unanswered,
}

impl<V> Default for OptionalObjects<V> {
    fn default() -> Self {
        Self { objects: ObjectStore::default(), failure: None }
    }
}

impl<V: PartialEq> OptionalObjects<V> {
    /// Applies an event of the watch; true when something visible changed. What is known stays known while a watch fails.
    pub(crate) fn apply(&mut self, event: Result<StoreEvent<V>, ListFailure>) -> bool {
        use ListFailure::{Absent, NotServed};
        match event {
            Ok(event) => {
                // A list that has begun may still fail.
                if !matches!(event, Event::Init | Event::InitApply(_)) {
                    self.failure = None;
                }
                self.objects.apply(event)
            }
            Err(failure) => {
                let is_second = failure == NotServed && matches!(self.failure, Some(NotServed | Absent));
                // A kind that does not exist is not there either while nobody answers.
                let stays_absent = failure == ListFailure::Unanswered && self.failure == Some(Absent);
                let failure = Some(if is_second || stays_absent { Absent } else { failure });
                if failure == Some(Absent) {
                    self.objects = ObjectStore::default();
                }
                std::mem::replace(&mut self.failure, failure) != failure
            }
        }
    }

    /// Forgets that a list was refused: it is to be refused once more.
    pub(super) fn forget_refusal(&mut self) {
        self.failure = self.failure.filter(|failure| *failure != ListFailure::Refused);
    }

    /// True when all objects are known, or there are none; with `ignores_refusals` also when they may not be listed.
    pub(super) fn is_known(&self, ignores_refusals: bool) -> bool {
        self.objects.has_listed()
            || match self.failure {
                Some(ListFailure::Absent) => true,
                Some(ListFailure::Refused) => ignores_refusals,
                Some(ListFailure::NotServed | ListFailure::Unanswered) | None => false,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_api_server_that_first_refused_everything_made_annotated_variants_forgotten() {
        let mut objects = OptionalObjects::<()>::default();
        objects.apply(Err(ListFailure::Refused));
        assert!(objects.is_known(true) && !objects.is_known(false));
        objects.forget_refusal();
        assert!(!objects.is_known(true), "the right may have come back with the others");
        assert!(objects.apply(Err(ListFailure::Refused)), "a change");
        assert!(objects.is_known(true));
    }
}
