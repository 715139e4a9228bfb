//! What has happened to an APIService that is to be taken over: whether somebody else keeps writing it, and whether the API server reaches us.

use std::time::Duration;

use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use tokio::time::Instant;

use super::apiservice::ServiceRef;
use super::self_check::condition;
use super::taken::{given_up_by, is_taken};
use crate::cluster::requests::LogOnce;

/// How long after the start it is not taken over: instances become Ready, and the API server learns of their endpoints.
const MIN_UPTIME: Duration = Duration::from_secs(15);
/// How long it is left alone after somebody has changed it back, such as an upgrade of the other program, or whoever is about to uninstall
/// this one.
pub(super) const LOST_GRACE: Duration = Duration::from_secs(300);
/// Shortest time between two writes.
const MIN_WRITE_INTERVAL: Duration = Duration::from_secs(5);
/// How long a change is awaited in the watch.
const MAX_WATCH_LAG: Duration = Duration::from_secs(10);
/// How long nobody else must write it, so that the next write counts as the first: longer than GitOps tools wait between two.
const QUIET_WINDOW: Duration = Duration::from_secs(6 * 3600);
/// How long the API server may not reach us. It looks every 30 s, and at each change of our endpoints.
const MAX_UNREACHED: Duration = Duration::from_secs(60);
/// The same once it has reached us for [`MAX_UNREACHED`]: then no firewall is in the way, and a change of nodes or networks is over by then.
const MAX_BREAK: Duration = Duration::from_secs(900);

/// What has happened to the object.
pub(super) struct History {
    /// When it may be taken over.
    pub(super) not_before: Instant,
    pub(super) was_ours: bool,
    pub(super) is_lost: bool,
    /// The CAs with which it was as it is to be.
    pub(super) right_with: Option<String>,
    /// When it was last written for lack of what is to be there.
    written: Option<Instant>,
    /// Since when the API server has not reached us, as seen here without a break.
    pub(super) unreached_since: Option<Instant>,
    /// Since when it has, and whether it ever did for long enough.
    reached_since: Option<Instant>,
    has_reached: bool,
    /// The version that was last changed here, and when.
    pub(super) changed: Option<(Option<String>, Instant)>,
    pub(super) foreign_writes: u32,
    last_foreign: Option<Instant>,
    /// When the condition was last written.
    pub(super) reported: Option<Instant>,
    pub(super) logged: LogOnce,
}

impl History {
    pub(super) fn new() -> Self {
        Self {
            not_before: Instant::now() + MIN_UPTIME,
            was_ours: false,
            is_lost: false,
            right_with: None,
            written: None,
            unreached_since: None,
            reached_since: None,
            has_reached: false,
            changed: None,
            foreign_writes: 0,
            last_foreign: None,
            reported: None,
            logged: LogOnce::default(),
        }
    }

    /// True while a change that was made here is not seen yet: nobody else has changed this version.
    pub(super) fn awaits(&self, object: &APIService) -> bool {
        let version = &object.metadata.resource_version;
        self.changed.as_ref().is_some_and(|(changed, at)| changed == version && at.elapsed() < MAX_WATCH_LAG)
    }

    /// Somebody else has written it.
    pub(super) fn count_foreign_write(&mut self) {
        if self.last_foreign.is_some_and(|at| at.elapsed() > QUIET_WINDOW) {
            self.foreign_writes = 0;
        }
        self.foreign_writes += 1;
        self.last_foreign = Some(Instant::now());
    }

    /// Sees on every instance when the object points to us no longer.
    pub(super) fn notice(&mut self, object: &APIService, ours: &ServiceRef) {
        if self.changed.as_ref().is_some_and(|(changed, _)| *changed == object.metadata.resource_version) {
            return; // As it was before what was written here.
        }
        let is_ours = ours.other_owner(object).is_none();
        if self.was_ours && !is_ours {
            self.not_before = self.not_before.max(Instant::now() + LOST_GRACE);
            // Without the annotation it was given back on purpose, or replaced.
            self.is_lost = is_taken(object);
            self.count_foreign_write();
        }
        if given_up_by(object).is_some() {
            self.foreign_writes = 0;
        }
        self.is_lost &= !is_ours;
        self.was_ours = is_ours;
        if !is_ours {
            self.unreached_since = None;
        }
        // On every instance: the next leader is to know it.
        let is_reached = condition(object, "Available").is_some_and(|found| found.status == "True");
        if !(is_ours && is_reached) {
            self.reached_since = None;
        } else if self.reached_since.get_or_insert_with(Instant::now).elapsed() >= MAX_UNREACHED {
            // What it says right after the take-over may be about the other server.
            self.has_reached = true;
        }
        self.has_reached &= is_ours;
    }

    /// True if it may be written again, which counts as a write.
    pub(super) fn may_write(&mut self) -> bool {
        let may = self.written.is_none_or(|at| at.elapsed() >= MIN_WRITE_INTERVAL);
        if may {
            self.written = Some(Instant::now());
        }
        may
    }

    /// Why the API server does not reach us, once it has said so for [`MAX_UNREACHED`], or for [`MAX_BREAK`].
    pub(super) fn unreached<'a>(&mut self, object: &'a APIService) -> Option<&'a str> {
        let Some(unavailable) = condition(object, "Available").filter(|found| found.status == "False") else {
            self.unreached_since = None;
            return None;
        };
        let since = *self.unreached_since.get_or_insert_with(Instant::now);
        let message = unavailable.message.as_deref().unwrap_or("it gives no reason");
        let limit = if self.has_reached { MAX_BREAK } else { MAX_UNREACHED };
        (since.elapsed() >= limit).then_some(message)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(version: &str, service: &str) -> APIService {
        serde_json::from_value(json!({
            "metadata": { "resourceVersion": version, "annotations": { "wva.llmd.ai/before-take-over": "{}" } },
            "spec": {
                "group": "external.metrics.k8s.io", "groupPriorityMinimum": 100, "versionPriority": 100,
                "service": { "namespace": "wva", "name": service },
            },
        }))
        .unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_controller_that_reset_it_before_the_watch_showed_the_take_over_was_not_counted() {
        let ours = ServiceRef { namespace: "wva".into(), name: "wva".into() };
        let mut history = History::new();
        history.notice(&object("1", "keda"), &ours);
        // It was taken over at version 1, and the next version that the watch shows is reset already.
        history.was_ours = true;
        history.changed = Some((Some("1".to_owned()), Instant::now()));
        history.notice(&object("1", "keda"), &ours);
        assert_eq!((history.foreign_writes, history.is_lost), (0, false), "our own write is awaited");
        history.notice(&object("3", "keda"), &ours);
        assert_eq!((history.foreign_writes, history.is_lost), (1, true));
        assert_eq!(history.not_before, Instant::now() + LOST_GRACE);
    }
}
