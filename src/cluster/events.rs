//! Events that people see with `kubectl describe`: told from anywhere without waiting, written by one task. An event that
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

use super::crd::VariantAutoscaling;
use super::status::shortened;
use super::status_writer::FIELD_MANAGER;
use super::trouble::said;
use super::watch::ClusterReader;

/// The same event of the same object is told once in this time. Shorter than the hour that the API server keeps an event,
/// so what lasts is always to be seen.
const REPEAT_AFTER: Duration = Duration::from_secs(600);
/// Events that wait to be written: a burst of one each for a quarter of a thousand variants; each has at most 1 kB.
const QUEUE: usize = 256;
/// Events remembered so that they are not repeated: 16 queues, about 4 MB at the most; beyond, new ones are lost.
const REMEMBERED: usize = 4096;
/// Longest note: the API's own limit is 1,024 bytes.
const NOTE_MAX_BYTES: usize = 1000;
/// Variants that a note names; the rest are counted.
const NAMED: usize = 8;
/// Longest wait for one answer of the API server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// One event.
#[derive(Debug, Clone)]
pub struct News {
    object: ObjectReference,
    kind: EventType,
    reason: &'static str,
    note: String,
    /// What tells it from another of the same object and reason.
    topic: String,
}

impl News {
    /// About a cluster object that was read: its name, and its uid, by which `kubectl describe` finds the event.
    pub(crate) fn about<K: Resource<DynamicType = ()>>(
        object: &K,
        kind: EventType,
        reason: &'static str,
        note: String,
    ) -> Self {
        Self { object: object.object_ref(&()), kind, reason, topic: note.clone(), note }
    }
}

/// What makes two events the same: uid of the object, reason, topic.
type Key = (Option<String>, &'static str, String);

/// Tells events. Cheap to clone.
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<News>,
    told: Arc<Mutex<HashMap<Key, Instant>>>,
    lost: Counter,
    cluster: ClusterReader,
}

/// Writes them. [`EventWriter::run`] it in a task.
pub struct EventWriter {
    client: kube::Client,
    reporter: Reporter,
    queue: mpsc::Receiver<News>,
    lost: Counter,
}

impl Events {
    /// Nothing is told yet. `instance` is this instance's identity, `cluster` knows the objects by name.
    #[must_use]
    pub fn new(
        client: kube::Client,
        cluster: ClusterReader,
        instance: String,
        registry: &mut Registry,
    ) -> (Self, EventWriter) {
        let (tell, queue) = mpsc::channel(QUEUE);
        let lost = Counter::default();
        let help = "Kubernetes events that could not be queued or written";
        registry.register("wva_events_lost", help, lost.clone());
        let reporter = Reporter { controller: FIELD_MANAGER.into(), instance: Some(instance) };
        let events = Self { queue: tell, told: Arc::default(), lost: lost.clone(), cluster };
        (events, EventWriter { client, reporter, queue, lost })
    }

    /// Queues an event, unless the same was told a short time ago. Never waits.
    pub fn tell(&self, mut news: News) {
        news.note = shortened(&news.note, NOTE_MAX_BYTES).to_owned();
        let key = (news.object.uid.clone(), news.reason, std::mem::take(&mut news.topic));
        let mut told = self.told.lock();
        if told.get(&key).is_some_and(|at| at.elapsed() < REPEAT_AFTER) {
            return;
        }
        if told.len() >= REMEMBERED {
            told.retain(|_, at| at.elapsed() < REPEAT_AFTER);
        }
        if told.len() < REMEMBERED && self.queue.try_send(news).is_ok() {
            told.insert(key, Instant::now());
        } else {
            self.lost.inc();
        }
    }

    /// One selector matched several variants, which the HPA controller adds up: told on the first of `variants`, naming all.
    pub fn adds_up(&self, metric: &str, selector: &str, variants: &[&VariantId]) {
        let Some(&first) = variants.first() else { return };
        let observed = self.cluster.observed();
        let Some(known) = observed.objects.get(first) else { return };
        let object = ObjectReference {
            api_version: Some(VariantAutoscaling::api_version(&()).into_owned()),
            kind: Some(VariantAutoscaling::kind(&()).into_owned()),
            namespace: Some(first.namespace.clone()),
            name: Some(first.name.clone()),
            uid: Some(known.uid.clone()),
            ..ObjectReference::default()
        };
        let note = adds_up(metric, selector, variants);
        // Not by the selector: a caller could make up new ones without end.
        let topic = metric.to_owned();
        self.tell(News { object, kind: EventType::Warning, reason: "SelectorMatchesSeveral", note, topic });
    }
}

fn adds_up(metric: &str, selector: &str, variants: &[&VariantId]) -> String {
    let named: Vec<_> = variants.iter().take(NAMED).map(|id| id.name.as_str()).collect();
    let more = variants.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(
        "{metric} was read with selector {selector:?}, which matches {} variants ({}{more}): an HPA adds their numbers \
         up. Select one with variant_name=NAME",
        variants.len(),
        named.join(", ")
    )
}

impl EventWriter {
    /// Writes what is told until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        while let Some(Some(news)) = cancel.run_until_cancelled(self.queue.recv()).await {
            if let Err(cause) = self.write(news).await {
                self.lost.inc();
                tracing::debug!(cause, "an event was not written");
            }
        }
        cancel.cancelled().await;
    }

    async fn write(&self, news: News) -> Result<(), String> {
        let News { object, kind, reason, note, .. } = news;
        let (reason, note) = (reason.to_owned(), Some(note));
        let event = Event { type_: kind, reason, note, action: "Check".into(), secondary: None };
        // A recorder of its own: a shared one takes another text for a repetition, and counts it under the first text.
        let recorder = Recorder::new(self.client.clone(), self.reporter.clone());
        match timeout(REQUEST_TIMEOUT, recorder.publish(&event, &object)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(said(&error)),
            Err(_) => Err(format!("no answer within {} s", REQUEST_TIMEOUT.as_secs())),
        }
    }
}
