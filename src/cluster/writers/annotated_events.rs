//! Events about HPAs and ScaledObjects that annotations make variants. They have no status of ours, so that what conditions say of
//! a VariantAutoscaling is only said by events; those about a problem that lasts are therefore repeated.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::runtime::events::{Event, EventType};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::events::{EventPublisher, variant_reference};
use super::signal_gap::SeriesOf;
use super::status_events::{EventBudget, ToldFindings, event, events};
use super::status_history::RETRY_INTERVAL;
use super::status_writer::{
    ExternalOf, MAX_CONCURRENT_WRITES, StatusContext, WRITE_INTERVAL, new_status, no_external,
};
use crate::cluster::crd::{CAPACITY_CONSTRAINED, VariantAutoscalingStatus};
use crate::cluster::objects::Notice;
use crate::cluster::watch::ClusterReader;
use crate::engine::{Leadership, Origin, Published};
use crate::lint::Advice;
use crate::telemetry::ErrorMetrics;

/// How often the events about a lasting problem are repeated: the API server deletes events after an hour.
const REPEAT_INTERVAL: Duration = Duration::from_secs(1800);
/// Most objects of one namespace about which events are written after one result: those of others wait at most a second for them.
/// The rest is due after the next result.
const MAX_OBJECTS_PER_NAMESPACE: usize = 20;

/// Writes these events while this instance is the leader. [`AnnotatedEventWriter::run`] it in a task.
pub struct AnnotatedEventWriter {
    cluster: ClusterReader,
    published: watch::Receiver<Arc<Published>>,
    leadership: watch::Receiver<Leadership>,
    publisher: EventPublisher,
    errors: ErrorMetrics,
    series: SeriesOf,
    external: ExternalOf,
}

/// What was said about an object before.
#[derive(Clone, Default)]
struct EventHistory {
    /// As a VariantAutoscaling would have it, without the messages that no later event depends on.
    status: VariantAutoscalingStatus,
    notices: Vec<Notice>,
    /// When all problems were last named.
    repeated: Option<Instant>,
    budget: EventBudget,
    told: ToldFindings,
    /// Until when nothing is written because an event was refused, and how long that is; unless all have been written since.
    refused: Option<(Instant, Duration)>,
}

impl EventHistory {
    /// Waits twice as long as after the last refusal.
    fn refuse(&mut self) {
        let wait = self.refused.map_or(RETRY_INTERVAL, |(_, wait)| (2 * wait).min(REPEAT_INTERVAL));
        self.refused = Some((Instant::now() + wait, wait));
    }
}

/// The events about an object that are due.
struct DueEvents {
    uid: String,
    object: ObjectReference,
    events: Vec<Event>,
    /// Once they are written.
    history: EventHistory,
}

impl AnnotatedEventWriter {
    /// A writer that has not started. `identity` is this instance's; `series` names the series of missing signals.
    #[must_use]
    pub fn new(
        client: kube::Client,
        cluster: ClusterReader,
        published: watch::Receiver<Arc<Published>>,
        leadership: watch::Receiver<Leadership>,
        identity: String,
        series: SeriesOf,
    ) -> Self {
        let (publisher, errors) = (EventPublisher::new(client, identity), ErrorMetrics::default());
        Self { cluster, published, leadership, publisher, errors, series, external: no_external() }
    }

    /// The same writer, which counts the events that cannot be written.
    #[must_use]
    pub fn with_metrics(self, errors: ErrorMetrics) -> Self {
        Self { errors, ..self }
    }

    /// The same writer, which says where another program serves external metrics.
    #[must_use]
    pub fn with_external(self, external: ExternalOf) -> Self {
        Self { external, ..self }
    }

    /// Writes after every new result until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut histories = BTreeMap::new();
        while let Some(Ok(())) = cancel.run_until_cancelled(self.published.changed()).await {
            let due = self.due(&mut histories);
            cancel.run_until_cancelled(self.write_all(due, &mut histories)).await;
        }
    }

    /// The events that are due after the newest result. It is not kept: the writes may take minutes.
    fn due(&mut self, histories: &mut BTreeMap<String, EventHistory>) -> Vec<DueEvents> {
        let published = self.published.borrow_and_update().clone();
        if published.origin != Origin::Computed || !self.leadership.borrow().is_mine() {
            return Vec::new();
        }
        let (state, external) = (self.cluster.state(), (self.external)());
        let context = StatusContext {
            published: &published,
            state: &state,
            series: self.series,
            external: external.as_ref(),
        };
        due_events(context, histories)
    }

    /// Writes the events. One that is not written is due again after a while.
    async fn write_all(&self, due: Vec<DueEvents>, histories: &mut BTreeMap<String, EventHistory>) {
        let mut writes = futures::stream::iter(due)
            .map(|due| async move { (self.write(&due).await, due) })
            .buffer_unordered(MAX_CONCURRENT_WRITES);
        while let Some((are_written, DueEvents { uid, history, .. })) = writes.next().await {
            if are_written {
                histories.insert(uid, EventHistory { refused: None, ..history });
            } else {
                self.errors.count("controller", "event", 1);
                histories.entry(uid).or_default().refuse();
            }
        }
    }

    /// True when all events about an object are written.
    async fn write(&self, due: &DueEvents) -> bool {
        for event in &due.events {
            if !self.leadership.borrow().is_mine() {
                return false;
            }
            let result = self.publisher.publish(event, &due.object).await;
            sleep(WRITE_INTERVAL).await;
            if let Err(error) = result {
                tracing::debug!(error, name = ?due.object.name, "an event was not written");
                return false;
            }
        }
        true
    }
}

/// The events that are due, and what is said with them. `histories` are by the uid of the object.
fn due_events(context: StatusContext<'_>, histories: &mut BTreeMap<String, EventHistory>) -> Vec<DueEvents> {
    let StatusContext { published, state, .. } = context;
    let variants = state.objects.iter().filter(|(_, object)| object.kind.is_annotated());
    let variants = variants.map(|(id, object)| (id, object, None));
    let bystanders = state.bystanders.iter();
    let bystanders = bystanders.map(|bystander| (&bystander.id, &bystander.object, Some(&bystander.notice)));
    let annotated: Vec<_> = variants.chain(bystanders).collect();
    let uids: BTreeSet<_> = annotated.iter().map(|(_, object, _)| object.uid.as_str()).collect();
    histories.retain(|uid, _| uids.contains(uid.as_str()));
    let mut objects_with_events = BTreeMap::new();
    let due = annotated.into_iter().filter_map(|(id, object, notice)| {
        let mut history = histories.get(&object.uid).cloned().unwrap_or_default();
        if history.refused.is_some_and(|(until, _)| Instant::now() < until) {
            return None;
        }
        // The decision of this name is that of another object if this one makes no variant.
        let decided = notice.is_none().then(|| published.decisions.get_key_value(id)).flatten();
        let status = decided.and_then(|decided| new_status(context, decided, object, &history.status));
        let (status, findings) = status.unzip();
        let findings = findings.flatten();
        let notices = object.notices.iter().chain(notice).cloned().collect();
        let events = history.update(status, notices, findings.as_deref());
        if !events.is_empty() {
            let count = objects_with_events.entry(id.namespace.clone()).or_insert(0_usize);
            *count += 1;
            if *count > MAX_OBJECTS_PER_NAMESPACE {
                return None;
            }
        }
        Some(DueEvents { uid: object.uid.clone(), object: variant_reference(id, object), events, history })
    });
    due.collect()
}

impl EventHistory {
    /// The events about what has changed, and those about all problems if it is time to name them again.
    fn update(
        &mut self,
        status: Option<VariantAutoscalingStatus>,
        notices: Vec<Notice>,
        findings: Option<&[Advice]>,
    ) -> Vec<Event> {
        let is_repeated = self.repeated.is_none_or(|at| at.elapsed() >= REPEAT_INTERVAL);
        let mut due = Vec::new();
        if is_repeated || notices != self.notices {
            due.extend(notices.iter().map(|notice| event(EventType::Warning, notice.reason, &notice.note)));
            self.notices = notices;
        }
        if is_repeated {
            self.repeated = Some(Instant::now());
            self.status.conditions.clear();
        }
        if let Some(mut status) = status {
            due.extend(events(&self.status, &status));
            if let Some(findings) = findings {
                due.extend(self.told.take(findings, self.budget.room(&due)));
            }
            // A limit that is not asked again keeps its message, as in a status.
            let is_text_only = |condition: &&mut Condition| condition.type_ != CAPACITY_CONSTRAINED;
            let conditions = status.conditions.iter_mut().filter(is_text_only);
            conditions.for_each(|condition| condition.message.clear());
            self.status = status;
        }
        self.budget.take(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_problem_that_lasts_is_named_every_half_hour_and_a_new_one_at_once() {
        let mut history = EventHistory::default();
        let paused = Notice { reason: "Paused", note: "by its owner".into() };
        let taken = Notice { reason: "NameTaken", note: "by another object".into() };
        let mut reasons = |notices: &[&Notice]| -> Vec<String> {
            let events = history.update(None, notices.iter().copied().cloned().collect(), None);
            events.into_iter().map(|event| event.reason).collect()
        };
        assert_eq!(reasons(&[&paused]), ["Paused"]);
        assert!(reasons(&[&paused]).is_empty());
        assert_eq!(reasons(&[&taken]), ["NameTaken"]);
        assert!(reasons(&[]).is_empty());
        assert_eq!(reasons(&[&paused]), ["Paused"]);
        tokio::time::advance(REPEAT_INTERVAL).await;
        assert_eq!(reasons(&[&paused]), ["Paused"]);
        assert!(reasons(&[&paused]).is_empty());
    }
}
