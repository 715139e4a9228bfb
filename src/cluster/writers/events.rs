//! Kubernetes events that `kubectl describe` shows: queued from anywhere without waiting, written by one task. An event that
//! cannot be written is counted, never an error.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use wva_core::VariantId;

use crate::cluster::objects::VariantObject;
use crate::cluster::requests::{FIELD_MANAGER, REQUEST_TIMEOUT, error_text};
use crate::cluster::watch::ClusterReader;
use crate::cluster::watch::config_maps::WatchedConfigMap;
use wva_core::text::{first_names, shortened};

/// The same event of the same object is written once in this time. Shorter than the hour for which the API server keeps an
/// event, so that a lasting problem always has one.
pub(crate) const REPEAT_INTERVAL: Duration = Duration::from_secs(600);
/// Most events in a queue: one each for a hundred variants; each has at most 1 kB.
const MAX_QUEUED: usize = 128;
/// Most events of a queue that are remembered so that they are not repeated: 16 full queues, about 2 MB. Beyond that, new
/// ones are lost.
const MAX_REMEMBERED: usize = 2048;
/// Most objects with an event about a refused status in [`REPEAT_INTERVAL`]: what refuses one mostly refuses all, and their events
/// would displace others. The log has every one.
const MAX_REFUSED: usize = 16;
/// How long a repeated event is counted in the first one: for as long as kube's recorders remember it.
const COUNT_WINDOW: Duration = Duration::from_secs(360);
/// Most texts that are remembered so that repetitions are counted: 3 kB each, about 1.5 MB. Beyond that, each is an event of its own.
const MAX_RECORDERS: usize = 512;
/// Longest note: the API's own limit is 1,024 bytes.
pub(super) const MAX_NOTE_BYTES: usize = 1000;
/// Variants that a note names; the rest are counted.
const MAX_NAMED: usize = 8;

/// An event to be written.
#[derive(Debug, Clone)]
pub struct NewEvent {
    object: ObjectReference,
    type_: EventType,
    reason: &'static str,
    note: String,
    /// What distinguishes it from others of the same object and reason.
    topic: String,
}

impl NewEvent {
    /// About a cluster object that was read: its name, and its uid, by which `kubectl describe` finds the event.
    pub(crate) fn about<K: Resource<DynamicType = ()>>(
        object: &K,
        type_: EventType,
        reason: &'static str,
        note: String,
    ) -> Self {
        Self { object: object.object_ref(&()), type_, reason, topic: note.clone(), note }
    }
}

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// It will be written.
    Queued,
    /// It is dropped, because one of the same object and reason, which may have another text, was queued within the last 10 minutes.
    Repeated,
    /// There was no room.
    Lost,
}

/// What makes two events the same: uid of the object, reason, topic.
type EventKey = (Option<String>, &'static str, String);

/// A bounded queue that drops repetitions.
#[derive(Clone)]
struct EventQueue {
    queue: mpsc::Sender<NewEvent>,
    written: Arc<Mutex<HashMap<EventKey, Instant>>>,
}

impl EventQueue {
    fn new() -> (Self, mpsc::Receiver<NewEvent>) {
        let (queue, receiver) = mpsc::channel(MAX_QUEUED);
        (Self { queue, written: Arc::default() }, receiver)
    }

    /// Queues an event unless it is a repetition, or there is no room.
    fn push(&self, mut event: NewEvent) -> Recorded {
        event.note = shortened(&event.note, MAX_NOTE_BYTES).to_owned();
        let key = (event.object.uid.clone(), event.reason, std::mem::take(&mut event.topic));
        let mut written = self.written.lock();
        if written.get(&key).is_some_and(|at| at.elapsed() < REPEAT_INTERVAL) {
            return Recorded::Repeated;
        }
        if written.len() >= MAX_REMEMBERED {
            written.retain(|_, at| at.elapsed() < REPEAT_INTERVAL);
        }
        let queued = written.len() < MAX_REMEMBERED && self.queue.try_send(event).is_ok();
        if !queued {
            return Recorded::Lost;
        }
        written.insert(key, Instant::now());
        Recorded::Queued
    }

    /// The same, unless `most` objects have had an event of this reason lately. An event that is left out is not lost.
    fn push_at_most(&self, most: usize, event: NewEvent) -> Recorded {
        let is_recent = |((_, reason, _), at): &(&EventKey, &Instant)| {
            *reason == event.reason && at.elapsed() < REPEAT_INTERVAL
        };
        let recent = self.written.lock().iter().filter(is_recent).count();
        if recent >= most { Recorded::Repeated } else { self.push(event) }
    }
}

/// Queues events. Cheap to clone.
#[derive(Clone)]
pub struct EventRecorder {
    /// About our own certificates.
    own: EventQueue,
    /// Caused by others (reads, ConfigMaps) as often as they like: these must not displace events about ourselves.
    external: EventQueue,
    /// About the settings of variants, of which a tenant may have any number: these must not displace the others.
    variants: EventQueue,
    lost: Counter,
    cluster: ClusterReader,
}

/// Writes them. [`EventWriter::run`] it in a task.
pub struct EventWriter {
    publisher: EventPublisher,
    own: mpsc::Receiver<NewEvent>,
    external: mpsc::Receiver<NewEvent>,
    variants: mpsc::Receiver<NewEvent>,
    lost: Counter,
}

impl EventRecorder {
    /// A recorder and the writer of what it queues. `instance` is this instance's identity, `cluster` knows the variants.
    #[must_use]
    pub fn new(
        client: kube::Client,
        cluster: ClusterReader,
        instance: String,
        registry: &mut Registry,
    ) -> (Self, EventWriter) {
        let (own, own_events) = EventQueue::new();
        let (external, external_events) = EventQueue::new();
        let (variants, variant_events) = EventQueue::new();
        let lost = Counter::default();
        let help = "Kubernetes events that could not be queued or written";
        registry.register("wva_events_lost", help, lost.clone());
        let recorder = Self { own, external, variants, lost: lost.clone(), cluster };
        let publisher = EventPublisher::new(client, instance);
        let (own, external, variants) = (own_events, external_events, variant_events);
        (recorder, EventWriter { publisher, own, external, variants, lost })
    }

    /// Queues an event, unless the same one was queued within the last 10 minutes. Never waits; false when it is lost.
    pub fn record(&self, event: NewEvent) -> bool {
        self.count(self.own.push(event)) != Recorded::Lost
    }

    /// Records on a ConfigMap what is wrong with it or unexpected, as one of few reasons in CamelCase. False when it is lost.
    pub fn record_config_map(&self, map: &WatchedConfigMap, reason: &'static str, note: String) -> bool {
        let recorded = self.count(self.external.push(NewEvent {
            object: map.object.clone(),
            type_: EventType::Warning,
            reason,
            note,
            // One event of a reason a ConfigMap at a time: its author could make up new problems without end.
            topic: String::new(),
        }));
        recorded != Recorded::Lost
    }

    /// Records something about the settings in the spec of a variant, as one of few reasons in CamelCase. One that is gone needs none.
    pub fn record_settings(
        &self,
        id: &VariantId,
        type_: EventType,
        reason: &'static str,
        note: String,
    ) -> Recorded {
        let state = self.cluster.state();
        let Some(known) = state.objects.get(id) else { return Recorded::Queued };
        let object = variant_reference(id, known);
        // One event of a reason a variant at a time, as for ConfigMaps.
        self.count(self.variants.push(NewEvent { object, type_, reason, note, topic: String::new() }))
    }

    /// Records, on the variant, why the API server refused its status; on 16 variants in 10 minutes.
    pub(super) fn record_refused_status(&self, id: &VariantId, variant: &VariantObject, note: String) {
        let event = NewEvent {
            object: variant_reference(id, variant),
            type_: EventType::Warning,
            reason: "StatusUpdateFailed",
            note,
            // One event a variant at a time: the text may have a version of the object.
            topic: String::new(),
        };
        self.count(self.external.push_at_most(MAX_REFUSED, event));
    }

    /// Records, on the first of `variants`, that one selector matched all of them: the HPA controller adds their values.
    pub fn record_ambiguous_selector(&self, metric: &str, selector: &str, variants: &[&VariantId]) {
        let Some(&first) = variants.first() else { return };
        let state = self.cluster.state();
        let Some(known) = state.objects.get(first) else { return };
        self.count(self.external.push(NewEvent {
            object: variant_reference(first, known),
            type_: EventType::Warning,
            reason: "SelectorMatchesSeveral",
            note: ambiguous_selector(metric, selector, variants),
            // Without the selector: a caller could make up new ones without end.
            topic: metric.to_owned(),
        }));
    }

    fn count(&self, recorded: Recorded) -> Recorded {
        if recorded == Recorded::Lost {
            self.lost.inc();
        }
        recorded
    }
}

/// The object of a variant, which an event is about.
pub(super) fn variant_reference(id: &VariantId, object: &VariantObject) -> ObjectReference {
    ObjectReference {
        api_version: Some(object.kind.api_version().to_owned()),
        kind: Some(object.kind.as_str().to_owned()),
        namespace: Some(id.namespace.to_string()),
        name: Some(id.name.to_string()),
        uid: Some(object.uid.clone()),
        ..ObjectReference::default()
    }
}

fn ambiguous_selector(metric: &str, selector: &str, variants: &[&VariantId]) -> String {
    let names = first_names(variants.iter().map(|id| id.name.to_string()), MAX_NAMED, ", ");
    format!(
        "{metric} was read with selector {selector:?}, which matches {} variants ({names}): an HPA adds up their values. \
         Select one variant with variant_name=NAME",
        variants.len()
    )
}

impl EventWriter {
    /// Writes queued events until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        while let Some(Some(event)) = cancel.run_until_cancelled(self.next()).await {
            if let Err(error) = self.write(event).await {
                self.lost.inc();
                tracing::debug!(error, "an event was not written");
            }
        }
        cancel.cancelled().await;
    }

    /// Those about ourselves first. `None` when there is no recorder left.
    async fn next(&mut self) -> Option<NewEvent> {
        tokio::select! {
            biased;
            Some(event) = self.own.recv() => Some(event),
            Some(event) = self.external.recv() => Some(event),
            Some(event) = self.variants.recv() => Some(event),
            else => None,
        }
    }

    async fn write(&self, event: NewEvent) -> Result<(), String> {
        let NewEvent { object, type_, reason, note, .. } = event;
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note),
            action: "Check".into(),
            secondary: None,
        };
        self.publisher.publish(&event, &object).await
    }
}

/// Writes events. An event that an object has had within the last minutes is counted in the first one, not written again.
pub(super) struct EventPublisher {
    client: kube::Client,
    reporter: Reporter,
    recorders: Mutex<HashMap<TextKey, (Instant, Recorder)>>,
}

/// What makes two events one that is counted: uid of the object, reason, note.
type TextKey = (Option<String>, String, Option<String>);

impl EventPublisher {
    /// A publisher of events that `instance` reports.
    pub(super) fn new(client: kube::Client, instance: String) -> Self {
        let reporter = Reporter { controller: FIELD_MANAGER.into(), instance: Some(instance) };
        Self { client, reporter, recorders: Mutex::default() }
    }

    /// Writes one event.
    ///
    /// # Errors
    /// When the API server refuses it, or does not answer.
    pub(super) async fn publish(&self, event: &Event, object: &ObjectReference) -> Result<(), String> {
        let key = (object.uid.clone(), event.reason.clone(), event.note.clone());
        let recorder = self.recorder(&key);
        let result = timeout(REQUEST_TIMEOUT, recorder.publish(event, object)).await;
        let error = match result {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error_text(&error),
            Err(_) => format!("no answer within {} s", REQUEST_TIMEOUT.as_secs()),
        };
        // The event that would be counted may have been deleted: the next one is written anew.
        self.recorders.lock().remove(&key);
        Err(error)
    }

    /// A recorder that knows no other text: kube's own takes another note for a repetition, and counts it under the first one.
    fn recorder(&self, key: &TextKey) -> Recorder {
        let mut recorders = self.recorders.lock();
        recorders.retain(|_, (at, _)| at.elapsed() < COUNT_WINDOW);
        if let Some((at, recorder)) = recorders.get_mut(key) {
            *at = Instant::now();
            return recorder.clone();
        }
        let recorder = Recorder::new(self.client.clone(), self.reporter.clone());
        if recorders.len() < MAX_RECORDERS {
            recorders.insert(key.clone(), (Instant::now(), recorder.clone()));
        }
        recorder
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(topic: usize) -> NewEvent {
        NewEvent {
            object: ObjectReference::default(),
            type_: EventType::Warning,
            reason: "Reason",
            note: "note".to_owned(),
            topic: topic.to_string(),
        }
    }

    #[tokio::test]
    async fn an_event_that_was_lost_is_not_taken_for_a_repetition() {
        let (queue, mut events) = EventQueue::new();
        assert!((0..MAX_QUEUED).all(|topic| queue.push(event(topic)) == Recorded::Queued));
        assert_eq!(queue.push(event(MAX_QUEUED)), Recorded::Lost, "the queue is full");
        assert_eq!(queue.push(event(0)), Recorded::Repeated);
        events.recv().await.unwrap();
        assert_eq!(queue.push(event(MAX_QUEUED)), Recorded::Queued, "it was lost before");
    }

    #[tokio::test]
    async fn refused_statuses_of_a_fleet_displaced_all_other_events() {
        let (queue, mut events) = EventQueue::new();
        let refused = |topic| NewEvent { reason: "StatusUpdateFailed", ..event(topic) };
        let lost = |topic| queue.push_at_most(MAX_REFUSED, refused(topic)) == Recorded::Lost;
        assert!(!(0..1000).any(lost));
        assert_eq!(queue.push(event(0)), Recorded::Queued);
        let queued: Vec<_> =
            std::iter::from_fn(|| events.try_recv().ok()).map(|event| event.reason).collect();
        assert_eq!((queued.len(), queued.last()), (MAX_REFUSED + 1, Some(&"Reason")));
    }

    #[tokio::test]
    async fn memory_is_bounded_however_fast_events_are_written() {
        let (queue, mut events) = EventQueue::new();
        let mut queued = 0;
        for topic in 0..2 * MAX_REMEMBERED {
            queued += usize::from(queue.push(event(topic)) == Recorded::Queued);
            while events.try_recv().is_ok() {}
        }
        assert_eq!((queued, queue.written.lock().len()), (MAX_REMEMBERED, MAX_REMEMBERED));
    }
}
