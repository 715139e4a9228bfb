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

use super::status_writer::FIELD_MANAGER;
use crate::cluster::crd::VariantAutoscaling;
use crate::cluster::text::shortened;
use crate::cluster::watch::ClusterReader;
use crate::cluster::watch::config_maps::Found;
use crate::cluster::watch::watch_health::said;

/// The same event of the same object is told once in this time. Shorter than the hour that the API server keeps an event,
/// so what lasts is always to be seen.
const REPEAT_AFTER: Duration = Duration::from_secs(600);
/// Events of one cause that wait to be written: a burst of one each for a hundred variants; each has at most 1 kB.
const QUEUE: usize = 128;
/// Events of one cause remembered so that they are not repeated: 16 queues, about 2 MB at the most; beyond, new ones are
/// lost.
const REMEMBERED: usize = 2048;
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

/// Events of one cause, bounded apart from those of the other.
#[derive(Clone)]
struct Line {
    queue: mpsc::Sender<News>,
    told: Arc<Mutex<HashMap<Key, Instant>>>,
}

impl Line {
    fn new() -> (Self, mpsc::Receiver<News>) {
        let (queue, written) = mpsc::channel(QUEUE);
        (Self { queue, told: Arc::default() }, written)
    }

    /// False when there is no room.
    fn take(&self, mut news: News) -> bool {
        news.note = shortened(&news.note, NOTE_MAX_BYTES).to_owned();
        let key = (news.object.uid.clone(), news.reason, std::mem::take(&mut news.topic));
        let mut told = self.told.lock();
        if told.get(&key).is_some_and(|at| at.elapsed() < REPEAT_AFTER) {
            return true;
        }
        if told.len() >= REMEMBERED {
            told.retain(|_, at| at.elapsed() < REPEAT_AFTER);
        }
        let taken = told.len() < REMEMBERED && self.queue.try_send(news).is_ok();
        if taken {
            told.insert(key, Instant::now());
        }
        taken
    }
}

/// Tells events. Cheap to clone.
#[derive(Clone)]
pub struct Events {
    ours: Line,
    /// What any reader can cause, as often as it likes: it must not keep out what is wrong with us.
    readers: Line,
    lost: Counter,
    cluster: ClusterReader,
}

/// Writes them. [`EventWriter::run`] it in a task.
pub struct EventWriter {
    client: kube::Client,
    reporter: Reporter,
    ours: mpsc::Receiver<News>,
    readers: mpsc::Receiver<News>,
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
        let ((ours, of_ours), (readers, of_readers)) = (Line::new(), Line::new());
        let lost = Counter::default();
        let help = "Kubernetes events that could not be queued or written";
        registry.register("wva_events_lost", help, lost.clone());
        let reporter = Reporter { controller: FIELD_MANAGER.into(), instance: Some(instance) };
        let events = Self { ours, readers, lost: lost.clone(), cluster };
        (events, EventWriter { client, reporter, ours: of_ours, readers: of_readers, lost })
    }

    /// Queues an event, unless the same was told a short time ago. Never waits; false when it is lost.
    pub fn tell(&self, news: News) -> bool {
        self.count(self.ours.take(news))
    }

    /// An entry of a ConfigMap does not count as it is. Told on the ConfigMap.
    pub fn refused(&self, map: &Found, problem: String) {
        // One for each ConfigMap at a time: whoever writes it could make up new problems without end.
        let (object, topic) = (map.object.clone(), String::new());
        let reason = "InvalidConfiguration";
        // Whoever may write a ConfigMap causes these, like a reader those of his reads.
        let news = News { object, kind: EventType::Warning, reason, note: problem, topic };
        self.count(self.readers.take(news));
    }

    fn count(&self, taken: bool) -> bool {
        if !taken {
            self.lost.inc();
        }
        taken
    }

    /// One selector matched several variants, which the HPA controller adds up: told on the first of `variants`, naming all.
    pub fn adds_up(&self, metric: &str, selector: &str, variants: &[&VariantId]) {
        let Some(&first) = variants.first() else { return };
        let observed = self.cluster.observed();
        let Some(known) = observed.objects.get(first) else { return };
        let object = ObjectReference {
            api_version: Some(VariantAutoscaling::api_version(&()).into_owned()),
            kind: Some(VariantAutoscaling::kind(&()).into_owned()),
            namespace: Some(first.namespace.to_string()),
            name: Some(first.name.to_string()),
            uid: Some(known.uid.clone()),
            ..ObjectReference::default()
        };
        let note = adds_up(metric, selector, variants);
        // Not by the selector: a caller could make up new ones without end.
        let topic = metric.to_owned();
        let news = News { object, kind: EventType::Warning, reason: "SelectorMatchesSeveral", note, topic };
        self.count(self.readers.take(news));
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
        while let Some(Some(news)) = cancel.run_until_cancelled(self.next()).await {
            if let Err(cause) = self.write(news).await {
                self.lost.inc();
                tracing::debug!(cause, "an event was not written");
            }
        }
        cancel.cancelled().await;
    }

    /// Ours first. `None` when nobody can tell any more.
    async fn next(&mut self) -> Option<News> {
        tokio::select! {
            biased;
            Some(news) = self.ours.recv() => Some(news),
            Some(news) = self.readers.recv() => Some(news),
            else => None,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn news(topic: usize) -> News {
        let (object, note) = (ObjectReference::default(), "note".to_owned());
        News { object, kind: EventType::Warning, reason: "Reason", note, topic: topic.to_string() }
    }

    #[tokio::test]
    async fn who_is_told_that_there_was_no_room_is_told_the_truth() {
        let (line, mut written) = Line::new();
        assert!((0..QUEUE).all(|topic| line.take(news(topic))));
        assert!(!line.take(news(QUEUE)), "the queue is full");
        assert!(line.take(news(0)), "told already");
        written.recv().await.unwrap();
        assert!(line.take(news(QUEUE)), "what was lost is not taken for told");
    }

    #[tokio::test]
    async fn memory_is_bounded_however_fast_events_are_written() {
        let (line, mut written) = Line::new();
        let mut taken = 0;
        for topic in 0..2 * REMEMBERED {
            taken += usize::from(line.take(news(topic)));
            while written.try_recv().is_ok() {}
        }
        assert_eq!((taken, line.told.lock().len()), (REMEMBERED, REMEMBERED));
    }
}
