//! What is known of scale targets of kinds that may be absent: it may be old, and has to say why nothing newer is known. Pure.

use std::time::Duration;

use kube::runtime::watcher::Event;
use smol_str::{SmolStr, format_smolstr};
use tokio::time::Instant;
use wva_core::model::TargetRef;

use super::kind_store::{ObjectStore, StoreEvent};
use super::scale_target::ScaleTarget;

/// Why objects are not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WatchProblem {
    /// The cause, and what to do.
    pub(crate) cause: SmolStr,
    /// The kind does not exist, so neither do its objects.
    pub(crate) is_not_served: bool,
}

/// Scale targets of a kind that is watched once a variant names it, and that may not be installed.
#[derive(Debug, Default)]
pub(crate) struct OptionalTargets {
    objects: ObjectStore<ScaleTarget>,
    /// Why they cannot be watched, and since when; `None` from the next list on.
    failure: Option<(SmolStr, Instant)>,
    /// The failure has lasted too long for what was known before it.
    is_expired: bool,
}

impl OptionalTargets {
    /// Applies an event of the watch, which lists again after each failure; true when something visible changed. What is known
    /// stays known while a watch fails, until [`Self::expire`].
    pub(crate) fn apply(
        &mut self,
        event: Result<StoreEvent<ScaleTarget>, WatchProblem>,
        now: Instant,
    ) -> bool {
        match event {
            Ok(event) => {
                let is_list = matches!(event, Event::InitDone);
                let was_expired = is_list && std::mem::take(&mut self.is_expired);
                if is_list {
                    self.failure = None;
                }
                self.objects.apply(event) || was_expired
            }
            Err(WatchProblem { cause, is_not_served }) => {
                if is_not_served {
                    self.objects = ObjectStore::default();
                }
                let known = self.failure.take();
                let is_new = known.as_ref().is_none_or(|(known, _)| *known != cause);
                self.failure = Some((cause, known.map_or(now, |(_, since)| since)));
                is_new || is_not_served
            }
        }
    }

    /// Forgets what has not been confirmed for longer than `max_stale`; true when something visible changed.
    pub(crate) fn expire(&mut self, now: Instant, max_stale: Duration) -> bool {
        let is_too_old = |(_, since): &(SmolStr, Instant)| now.duration_since(*since) > max_stale;
        let is_expired = self.failure.as_ref().is_some_and(is_too_old);
        std::mem::replace(&mut self.is_expired, is_expired) != is_expired
    }

    /// No answer of the API server has been seen.
    pub(crate) fn is_unread(&self) -> bool {
        !self.objects.has_listed() && self.failure.is_none()
    }

    /// The object that a variant names: `None` if it does not exist, or why that is not known.
    pub(crate) fn find(&self, namespace: &str, target: &TargetRef) -> Result<Option<&ScaleTarget>, SmolStr> {
        self.known(&target.kind).map(|objects| objects.get(namespace, &target.name))
    }

    /// All objects of this `kind`, or why they are not known.
    pub(crate) fn known(&self, kind: &str) -> Result<&ObjectStore<ScaleTarget>, SmolStr> {
        if self.objects.has_listed() && !self.is_expired {
            return Ok(&self.objects);
        }
        let failure = self.failure.as_ref().map(|(cause, _)| cause.clone());
        let listing = || format_smolstr!("the {kind}s of the cluster are being listed; wait for that");
        Err(failure.unwrap_or_else(listing))
    }
}

/// A scale target of another kind, with its namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TargetKey {
    pub(crate) namespace: SmolStr,
    pub(crate) target: TargetRef,
}

/// The answer to a read of a scale target: the target, `None` if there is no such object, or why neither is known.
pub(crate) type TargetAnswer = Result<Option<ScaleTarget>, WatchProblem>;

/// Why nothing is known of a target before the first answer.
pub(crate) const UNREAD: SmolStr = SmolStr::new_static("it has not been read yet; wait for that");

/// What the reads of a scale target have shown.
#[derive(Debug, Default, PartialEq)]
pub(crate) enum KnownTarget {
    /// Nothing so far.
    #[default]
    Unread,
    /// It exists.
    Found {
        target: Box<ScaleTarget>,
        /// When it was read.
        at: Instant,
        /// Why it could not be read since.
        failure: Option<SmolStr>,
    },
    /// There is no such object.
    Missing,
    /// Why it is not known whether there is.
    Unknown(SmolStr),
}

impl KnownTarget {
    /// Takes in an answer of `now`; true when something visible changed. An object that was found stays known while reads fail,
    /// until [`Self::expire`]. That there was none says nothing about later.
    pub(crate) fn update(&mut self, answer: TargetAnswer, now: Instant) -> bool {
        let after = match (answer, &mut *self) {
            (Ok(Some(target)), Self::Found { target: known, at, failure }) if target == **known => {
                (*at, *failure) = (now, None);
                return false;
            }
            (Ok(Some(target)), _) => Self::Found { target: Box::new(target), at: now, failure: None },
            (Ok(None), _) => Self::Missing,
            (Err(problem), Self::Found { failure, .. }) if !problem.is_not_served => {
                *failure = Some(problem.cause);
                return false;
            }
            (Err(problem), _) => Self::Unknown(problem.cause),
        };
        let is_new = *self != after;
        *self = after;
        is_new
    }

    /// Forgets a target that has not been read for longer than `max_stale`; true if it did.
    pub(crate) fn expire(&mut self, now: Instant, max_stale: Duration) -> bool {
        let Self::Found { at, failure, .. } = self else { return false };
        let age = now.duration_since(*at);
        if age <= max_stale {
            return false;
        }
        let cause = failure.take().unwrap_or_else(|| "too many objects are read one after the other".into());
        *self = Self::Unknown(format_smolstr!(
            "it was last read more than {} s ago: {cause}",
            max_stale.as_secs()
        ));
        true
    }

    /// The target: `None` if it does not exist, or why that is not known.
    pub(crate) fn find(&self) -> Result<Option<&ScaleTarget>, SmolStr> {
        match self {
            Self::Unread => Err(UNREAD),
            Self::Found { target, .. } => Ok(Some(target)),
            Self::Missing => Ok(None),
            Self::Unknown(cause) => Err(cause.clone()),
        }
    }
}
