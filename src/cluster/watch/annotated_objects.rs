//! HPAs and ScaledObjects that annotations make variants, and ScaledObjects that are paused, as their watches leave them. Pure.

use std::sync::Arc;

use kube::runtime::watcher::Event;

use super::kind_store::{ObjectStore, StoreEvent};
use super::pause::Pause;
use super::value_targets::NumberRead;
use crate::cluster::objects::VariantObject;

/// What is kept of an HPA or a ScaledObject.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WatchedAutoscaler {
    /// Where annotations make it a variant.
    pub(super) variant: Option<Arc<VariantObject>>,
    /// Where annotations pause it.
    pub(super) pause: Option<Box<Pause>>,
    /// How it reads the desired replicas; empty unless that is asked for.
    pub(super) reads: Box<[NumberRead]>,
}

/// The annotated objects of a kind whose list may be refused, and that may not exist.
#[derive(Debug, Default)]
pub(crate) struct AnnotatedObjects {
    pub(super) objects: ObjectStore<WatchedAutoscaler>,
    /// How the last request failed, unless it was answered.
    failure: Option<ListFailure>,
}

/// How a list of annotated objects failed.
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

impl AnnotatedObjects {
    /// Applies an event of the watch; true when something visible changed. What is known stays known while a watch fails.
    pub(crate) fn apply(&mut self, event: Result<StoreEvent<WatchedAutoscaler>, ListFailure>) -> bool {
        use ListFailure::{Absent, NotServed};
        match event {
            Ok(event) => {
                // A list begins, and may still fail.
                if !matches!(event, Event::Init) {
                    self.failure = None;
                }
                self.objects.apply(event)
            }
            Err(failure) => {
                let is_second = failure == NotServed && matches!(self.failure, Some(NotServed | Absent));
                let failure = Some(if is_second { Absent } else { failure });
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
        let mut objects = AnnotatedObjects::default();
        objects.apply(Err(ListFailure::Refused));
        assert!(objects.is_known(true) && !objects.is_known(false));
        objects.forget_refusal();
        assert!(!objects.is_known(true), "the right may have come back with the others");
        assert!(objects.apply(Err(ListFailure::Refused)), "a change");
        assert!(objects.is_known(true));
    }
}
