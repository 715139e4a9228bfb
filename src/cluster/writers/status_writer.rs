//! Writes the status of `VariantAutoscaling` objects: by server-side apply, only what changed, only while this instance
//! holds the lease. Tells changes as events. What a status says is in `status`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use kube::api::{Api, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use wva_core::{Decision, GroupId, VariantId};

use super::signal_gap::SeriesOf;
use super::status::{Difference, difference, render};
use crate::cluster::crd::{
    LIMIT_ENFORCED, METRICS_AVAILABLE, OPTIMIZATION_READY, SIGNALS_COMPLETE, VariantAutoscaling,
    VariantAutoscalingStatus,
};
use crate::cluster::objects::VariantObject;
use crate::cluster::text::shortened;
use crate::cluster::watch::ClusterReader;
use crate::cluster::watch::Observed;
use crate::cluster::watch::watch_health::said;
use crate::engine::{Leadership, Origin, Published};

/// The field manager of a status.
pub(crate) const FIELD_MANAGER: &str = "wva";
/// Writes at a time.
const CONCURRENCY: usize = 8;
/// How long a writer pauses after a write: 8 writers make at most 100 writes a second, so 1,000 variants that change
/// together are written in 10 s and the API server hardly notices.
const PAUSE: Duration = Duration::from_millis(80);
/// How long an object that differs in figures of its messages only is left alone: 1,000 variants cause at most 3.3
/// writes a second.
const FIGURES_EVERY: Duration = Duration::from_secs(300);
/// How long one whose messages say something else is left alone: what binds a number is seen soon, and 1,000 variants
/// that are told something else at every evaluation cause 33 writes a second.
const WORDS_EVERY: Duration = Duration::from_secs(30);
/// How long what was written counts as stored, until the watch shows it.
const SETTLE: Duration = Duration::from_secs(10);
/// How long an object whose status was refused is left alone.
const RETRY_AFTER: Duration = Duration::from_secs(30);
/// Longest wait for one answer of the API server.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest note of an event: the API's own limit is 1,024 bytes.
const NOTE_MAX_BYTES: usize = 1000;
/// Events of one variant in [`EVENT_WINDOW`]: one every 10 s. A number that changes at each evaluation (5 s) makes half as many
/// events as changes, and 1,000 such variants 100 a second.
const MAX_EVENTS: usize = 6;
/// The time in which the events of a variant are counted.
const EVENT_WINDOW: Duration = Duration::from_secs(60);

/// Keeps statuses in step with decisions. [`StatusWriter::run`] it in a task.
pub struct StatusWriter {
    client: kube::Client,
    cluster: ClusterReader,
    published: watch::Receiver<Arc<Published>>,
    leadership: watch::Receiver<Leadership>,
    reporter: Reporter,
    series: SeriesOf,
}

/// What was done to an object before.
#[derive(Default)]
struct Past {
    written: Option<(Instant, VariantAutoscalingStatus)>,
    refused: Option<Instant>,
    events: EventBudget,
}

/// How many events of a variant may be told, and how many were not.
#[derive(Debug, Clone, Default)]
struct EventBudget {
    told: Vec<Instant>,
    untold: usize,
}

impl EventBudget {
    /// Those of `events` that may be told now. The next event that is told says how many before it were not.
    fn take(&mut self, events: Vec<Event>) -> Vec<Event> {
        self.told.retain(|at| at.elapsed() < EVENT_WINDOW);
        let mut taken = Vec::new();
        for mut event in events {
            if self.told.len() >= MAX_EVENTS {
                self.untold += 1;
                continue;
            }
            if self.untold > 0 {
                let note = event.note.unwrap_or_default();
                let untold = format!(" ({} events before this one were not told)", self.untold);
                event.note = Some(shortened(&note, NOTE_MAX_BYTES - untold.len()).to_owned() + &untold);
                self.untold = 0;
            }
            self.told.push(Instant::now());
            taken.push(event);
        }
        taken
    }
}

/// A status to be written.
struct Work {
    id: VariantId,
    object: Arc<VariantObject>,
    new: VariantAutoscalingStatus,
    /// What is told of the change.
    events: Vec<Event>,
    /// What may be told after that.
    left: EventBudget,
}

/// Why something was not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    #[error("the API server did not answer within {} s", REQUEST_TIMEOUT.as_secs())]
    Timeout,
    #[error("{}", said(.0))]
    Api(#[from] kube::Error),
}

impl StatusWriter {
    /// A writer that has not started. `identity` is this instance's, for the events it reports.
    #[must_use]
    pub fn new(
        client: kube::Client,
        cluster: ClusterReader,
        published: watch::Receiver<Arc<Published>>,
        leadership: watch::Receiver<Leadership>,
        identity: String,
    ) -> Self {
        let reporter = Reporter { controller: FIELD_MANAGER.into(), instance: Some(identity) };
        Self { client, cluster, published, leadership, reporter, series: |_| Vec::new() }
    }

    /// The same writer, which names missing signals by the `series` that show them.
    #[must_use]
    pub fn naming(self, series: SeriesOf) -> Self {
        Self { series, ..self }
    }

    /// Writes after every new result until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut past = BTreeMap::new();
        while let Some(Ok(())) = cancel.run_until_cancelled(self.published.changed()).await {
            let published = self.published.borrow_and_update().clone();
            if published.origin == Origin::Computed && self.is_mine() {
                cancel.run_until_cancelled(self.pass(&published, &mut past)).await;
            }
        }
    }

    fn is_mine(&self) -> bool {
        self.leadership.borrow().is_mine()
    }

    /// Writes what differs.
    async fn pass(&self, published: &Published, past: &mut BTreeMap<VariantId, Past>) {
        let observed = self.cluster.observed();
        past.retain(|id, _| observed.objects.contains_key(id));
        let work = work(published, &observed, past, self.series);
        let mut done = futures::stream::iter(work)
            .map(|work| async {
                let result = self.write(&work).await;
                sleep(PAUSE).await;
                (work, result)
            })
            .buffer_unordered(CONCURRENCY);
        while let Some((work, result)) = done.next().await {
            let past = past.entry(work.id.clone()).or_default();
            match result {
                Ok(true) => {
                    let written = Some((Instant::now(), work.new));
                    *past = Past { written, refused: None, events: work.left };
                }
                Ok(false) => {}
                Err(error) => {
                    let (namespace, name) = (&work.id.namespace, &work.id.name);
                    tracing::warn!(%namespace, %name, %error, "cannot write the status of a VariantAutoscaling: \
                        check its definition and that the service account may patch variantautoscalings/status");
                    past.refused = Some(Instant::now());
                }
            }
        }
    }

    /// Writes one status; false when this instance may not write any more, or the object is gone.
    async fn write(&self, work: &Work) -> Result<bool, WriteError> {
        if !self.is_mine() {
            return Ok(false);
        }
        // Only the metadata of the answer is read: the object itself may be unreadable.
        let api: Api<PartialObjectMeta<VariantAutoscaling>> =
            Api::namespaced(self.client.clone(), &work.id.namespace);
        let body = body(&work.id, &work.object.uid, &work.new);
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let patch: Patch<_> = Patch::Apply(body);
        let patch = api.patch_status(&work.id.name, &parameters, &patch);
        match timeout(REQUEST_TIMEOUT, patch).await.map_err(|_| WriteError::Timeout)? {
            Ok(_) => {
                self.tell(work).await;
                Ok(true)
            }
            // Deleted, or made anew under the same name: the watch will say.
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Reports what changed as events. Losing one is no reason to stop.
    async fn tell(&self, work: &Work) {
        let reference = ObjectReference {
            api_version: Some(VariantAutoscaling::api_version(&()).into_owned()),
            kind: Some(VariantAutoscaling::kind(&()).into_owned()),
            namespace: Some(work.id.namespace.to_string()),
            name: Some(work.id.name.to_string()),
            uid: Some(work.object.uid.clone()),
            ..ObjectReference::default()
        };
        for event in &work.events {
            // A recorder of its own: a shared one takes "2 → 5" for a repetition of "1 → 2", and counts it under that text.
            let recorder = Recorder::new(self.client.clone(), self.reporter.clone());
            match timeout(REQUEST_TIMEOUT, recorder.publish(event, &reference)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, variant = %work.id, "an event was refused"),
                Err(_) => tracing::debug!(variant = %work.id, "an event timed out"),
            }
        }
    }
}

fn work(
    published: &Published,
    observed: &Observed,
    past: &BTreeMap<VariantId, Past>,
    series: SeriesOf,
) -> Vec<Work> {
    let one = |(id, decision): (&VariantId, &Decision)| {
        let object = observed.objects.get(id)?;
        let past = past.get(id);
        if past.and_then(|past| past.refused).is_some_and(|at| at.elapsed() < RETRY_AFTER) {
            return None;
        }
        let written = past.and_then(|past| past.written.as_ref());
        // Of an object that cannot be read only we know what we wrote.
        let settling = |at: &Instant| at.elapsed() < SETTLE || object.status.is_none();
        let ours = written.filter(|(at, _)| settling(at)).map(|(_, status)| status);
        let unread = VariantAutoscalingStatus::default();
        let old = ours.or(object.status.as_ref()).unwrap_or(&unread);
        let target = object.variant.as_ref().ok().map(|variant| variant.target.name.as_str());
        let group = GroupId::new(id.namespace.clone(), decision.model.clone());
        let limit = published.report.groups.get(&group).and_then(|group| group.limit_gaps.get(&id.name));
        let new = render(decision, target, object.generation, published.at, old, (series, limit));
        let every = |pause| written.is_none_or(|(at, _)| at.elapsed() >= pause);
        let due = match difference(old, &new) {
            Difference::Facts => true,
            Difference::Words => every(WORDS_EVERY),
            Difference::Figures => every(FIGURES_EVERY),
            Difference::None => false,
        };
        due.then(|| {
            let mut left = past.map(|past| past.events.clone()).unwrap_or_default();
            let events = left.take(events(old, &new));
            Work { id: id.clone(), object: object.clone(), new, events, left }
        })
    };
    published.decisions.iter().filter_map(one).collect()
}

/// With the uid, so that a namesake which was made later is never written to and nothing is ever created.
fn body(id: &VariantId, uid: &str, status: &VariantAutoscalingStatus) -> serde_json::Value {
    json!({
        "apiVersion": VariantAutoscaling::api_version(&()),
        "kind": VariantAutoscaling::kind(&()),
        "metadata": { "namespace": id.namespace, "name": id.name, "uid": uid },
        "status": status,
    })
}

fn events(old: &VariantAutoscalingStatus, new: &VariantAutoscalingStatus) -> Vec<Event> {
    let desired = |status: &VariantAutoscalingStatus| {
        status.desired_optimized_alloc.as_ref().map(|alloc| alloc.num_replicas)
    };
    let say = |status: &VariantAutoscalingStatus, type_: &str| {
        let condition = status.conditions.iter().find(|condition| condition.type_ == type_);
        condition
            .map(|condition| (condition.status.clone(), condition.reason.clone(), condition.message.clone()))
    };
    let mut events = Vec::new();
    if let (Some(from), Some(to)) = (desired(old), desired(new))
        && from != to
    {
        let why = say(new, OPTIMIZATION_READY).map(|(_, _, message)| message).unwrap_or_default();
        let note = format!("desired replicas {from} → {to}: {why}");
        events.push(event(EventType::Normal, "DesiredReplicasChanged", &note));
    }
    if let Some((status, reason, message)) = say(new, METRICS_AVAILABLE)
        && status == "False"
        && say(old, METRICS_AVAILABLE).is_none_or(|(before, ..)| before != "False")
    {
        events.push(event(EventType::Warning, &reason, &message));
    }
    events.extend(signals_event(say(old, SIGNALS_COMPLETE), say(new, SIGNALS_COMPLETE)));
    let (was, is) = (say(old, LIMIT_ENFORCED), say(new, LIMIT_ENFORCED));
    if let Some((_, reason, message)) = is
        && was.is_none_or(|(_, before, _)| before != reason)
    {
        events.push(event(EventType::Warning, &reason, &message));
    }
    events
}

/// Status, reason and message of a condition.
type Said = Option<(String, String, String)>;

/// That something is missing, that it is for another reason than before, or that nothing is any more.
fn signals_event(old: Said, new: Said) -> Option<Event> {
    let (status, reason, message) = new?;
    let before = old.map(|(status, reason, _)| (status, reason));
    match (status.as_str(), before) {
        ("False", Some((old, because))) if old == "False" && because == reason => None,
        ("False", _) => {
            Some(event(EventType::Warning, &reason, &format!("signals are incomplete: {message}")))
        }
        ("True", Some((old, _))) if old == "False" => {
            Some(event(EventType::Normal, SIGNALS_COMPLETE, &message))
        }
        _ => None,
    }
}

fn event(type_: EventType, reason: &str, note: &str) -> Event {
    let note = Some(shortened(note, NOTE_MAX_BYTES).to_owned());
    Event { type_, reason: reason.into(), note, action: "Decide".into(), secondary: None }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use wva_core::decision::{GapCause, Reason, SignalGap, Target, Verdict};
    use wva_core::report::LimitGap;
    use wva_core::units::Replicas;

    use super::*;

    /// What is told of a variant that lacks something because of `cause`, by a condition, and by an event after `old`.
    fn turn(
        old: &VariantAutoscalingStatus,
        cause: Option<GapCause>,
        limit: Option<&LimitGap>,
    ) -> (VariantAutoscalingStatus, Vec<(EventType, String, String)>) {
        let gap = |cause| SignalGap {
            cause,
            pods: 1,
            serving: 2,
            missing: Vec::new(),
            contradicted: Vec::new(),
            stand_in: None,
            warning: (cause == GapCause::PartialSource).then(|| "a store is down".into()),
        };
        let (desired, evidence) = (Replicas::new(2), Timestamp::UNIX_EPOCH);
        let target = Target { desired, reason: Reason::Steady, message: "calm".into(), evidence };
        let (model, verdict) = ("m".into(), Verdict::Target(target));
        let (accelerator, current, gap) = (None, Some(Replicas::new(2)), cause.map(gap));
        let decision = Decision { model, accelerator, current, verdict, gap };
        let new = render(&decision, Some("chat"), 1, evidence, old, (|_| Vec::new(), limit));
        let all = events(old, &new).into_iter();
        let all = all.map(|event| (event.type_, event.reason, event.note.unwrap_or_default()));
        (new, all.collect())
    }

    #[test]
    fn each_turn_of_signals_complete_is_an_event_with_its_cause_and_what_stays_so_is_none() {
        let (mut status, first) = turn(&VariantAutoscalingStatus::default(), None, None);
        assert!(first.is_empty(), "whole from the beginning: {first:?}");
        for cause in GapCause::ALL {
            let (next, events) = turn(&status, Some(cause), None);
            let [(EventType::Warning, reason, note)] = &events[..] else { panic!("{cause:?}: {events:?}") };
            assert_eq!(reason, cause.as_str());
            assert!(note.starts_with("signals are incomplete: "), "{note}");
            assert!(turn(&next, Some(cause), None).1.is_empty(), "{cause:?} again");
            status = next;
        }
        let (_, partial) = turn(&status, Some(GapCause::PartialSource), None);
        assert!(partial[0].2.contains("a store is down"), "{partial:?}");
        let (_, whole) = turn(&status, None, None);
        let [(EventType::Normal, reason, note)] = &whole[..] else { panic!("{whole:?}") };
        assert_eq!((reason.as_str(), note.contains("every signal")), (SIGNALS_COMPLETE, true));
    }

    #[test]
    fn a_limit_that_is_not_in_force_is_an_event_once_for_each_cause() {
        let (calm, _) = turn(&VariantAutoscalingStatus::default(), None, None);
        let named = LimitGap::NotInInventory { accelerator: "H100".into() };
        let (first, events) = turn(&calm, None, Some(&LimitGap::NoInventory));
        let [(EventType::Warning, reason, note)] = &events[..] else { panic!("{events:?}") };
        assert_eq!((reason.as_str(), note.contains("no GPU of any node is known")), ("NoInventory", true));
        assert!(turn(&first, None, Some(&LimitGap::NoInventory)).1.is_empty());
        let (second, events) = turn(&first, None, Some(&named));
        assert!(events[0].1 == "NotInInventory" && events[0].2.contains("H100"), "{events:?}");
        assert!(turn(&second, None, None).1.is_empty(), "the condition goes, and no event says so");
    }

    fn changed(from: usize) -> Vec<Event> {
        vec![event(
            EventType::Normal,
            "DesiredReplicasChanged",
            &format!("desired replicas {from} → {}", from + 1),
        )]
    }

    #[tokio::test(start_paused = true)]
    async fn a_number_that_changes_all_the_time_makes_few_events_and_the_next_one_says_how_many_are_missing()
    {
        let mut budget = EventBudget::default();
        let told = (0..12).map(|from| budget.take(changed(from)).len()).sum::<usize>();
        assert_eq!((told, budget.told.len()), (MAX_EVENTS, MAX_EVENTS));
        tokio::time::advance(EVENT_WINDOW).await;
        let notes: Vec<_> = budget.take(changed(12)).into_iter().filter_map(|event| event.note).collect();
        assert_eq!(notes, ["desired replicas 12 → 13 (6 events before this one were not told)"]);
        assert_eq!(budget.take(changed(13))[0].note.as_deref(), Some("desired replicas 13 → 14"));
    }
}
