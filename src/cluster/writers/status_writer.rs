//! Writes the status of `VariantAutoscaling` objects: by server-side apply, only what changed, only while this instance is the
//! leader. Records changes as events. The content of a status is in `status`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Resource;
use kube::api::{Api, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::events::{Event, EventType, Reporter};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use wva_core::{Decision, GroupId, VariantId};

use super::events::{MAX_NOTE_BYTES, publish, variant_reference};
use super::signal_gap::SeriesOf;
use super::status::{Difference, StatusInput, difference, has_same_reasons, render};
use crate::cluster::crd::{
    LIMIT_ENFORCED, METRICS_AVAILABLE, OPTIMIZATION_READY, SIGNALS_COMPLETE, VariantAutoscaling,
    VariantAutoscalingStatus,
};
use crate::cluster::objects::VariantObject;
use crate::cluster::requests::{FIELD_MANAGER, RequestError, bounded};
use crate::cluster::text::{plain, shortened};
use crate::cluster::watch::{ClusterReader, ClusterState};
use crate::engine::{Leadership, Origin, Published};

/// Writes at a time.
const MAX_CONCURRENT_WRITES: usize = 8;
/// How long each of them pauses after a write: at most 100 writes a second in all, so that 1,000 variants which change
/// together are written in 10 s and the API server hardly notices.
const WRITE_INTERVAL: Duration = Duration::from_millis(80);
/// How long an object that differs only in figures of its messages is left alone: 1,000 variants cause at most 3.3 writes a
/// second.
const FIGURES_INTERVAL: Duration = Duration::from_secs(300);
/// How long an object whose messages have another text is left alone: what limits a number is seen soon, and 1,000 variants
/// whose message changes with every evaluation cause 33 writes a second.
const TEXT_INTERVAL: Duration = Duration::from_secs(30);
/// How long a written status counts as stored until the watch shows it.
const SETTLE_WINDOW: Duration = Duration::from_secs(10);
/// How long an object whose status was refused is left alone.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// The same where the object is invalid by its definition: until somebody changes one of the two, every write is refused.
const INVALID_INTERVAL: Duration = Duration::from_secs(600);
/// Longest cause of a refusal in the log and in an event: it may repeat what the object's author wrote.
const MAX_CAUSE_BYTES: usize = 512;
/// Most events of one variant in [`EVENT_WINDOW`]: one every 10 s. A number that changes with each evaluation (5 s) makes
/// half as many events as changes, and 1,000 such variants 100 a second.
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

/// What was written to an object before.
#[derive(Default)]
struct StatusHistory {
    written: Option<WrittenStatus>,
    refusal: Option<Refusal>,
    events: EventBudget,
}

/// A status that was not written.
struct Refusal {
    at: Instant,
    cause: String,
    /// The generation of the object that is invalid by its definition.
    invalid: Option<i64>,
}

impl Refusal {
    fn new(error: &RequestError, generation: i64) -> Self {
        let invalid = (error.code() == Some(422)).then_some(generation);
        Self { at: Instant::now(), cause: plain(&error.to_string(), MAX_CAUSE_BYTES), invalid }
    }

    /// The object of this generation is left alone.
    fn holds(&self, generation: i64) -> bool {
        let age = self.at.elapsed();
        match self.invalid {
            Some(invalid) if invalid == generation => age < INVALID_INTERVAL,
            Some(_) => false,
            None => age < RETRY_INTERVAL,
        }
    }
}

/// What was written last.
struct WrittenStatus {
    at: Instant,
    status: VariantAutoscalingStatus,
    /// Its reasons are compared with the next ones.
    decision: Decision,
}

/// The events of a variant: when the last ones were written, and how many were dropped since.
#[derive(Debug, Clone, Default)]
struct EventBudget {
    written: Vec<Instant>,
    dropped: usize,
}

impl EventBudget {
    /// Those of `events` that may be written now. The next one that is written says how many before it were dropped.
    fn take(&mut self, events: Vec<Event>) -> Vec<Event> {
        self.written.retain(|at| at.elapsed() < EVENT_WINDOW);
        let mut taken = Vec::new();
        for mut event in events {
            if self.written.len() >= MAX_EVENTS {
                self.dropped += 1;
                continue;
            }
            if self.dropped > 0 {
                let note = event.note.unwrap_or_default();
                let dropped = format!(" ({} earlier events were dropped)", self.dropped);
                event.note = Some(shortened(&note, MAX_NOTE_BYTES - dropped.len()).to_owned() + &dropped);
                self.dropped = 0;
            }
            self.written.push(Instant::now());
            taken.push(event);
        }
        taken
    }
}

/// A status to be written.
struct StatusUpdate {
    id: VariantId,
    object: Arc<VariantObject>,
    new: VariantAutoscalingStatus,
    decision: Decision,
    events: Vec<Event>,
    /// What is left of the budget after these events.
    budget: EventBudget,
}

impl StatusWriter {
    /// A writer that has not started. `identity` is this instance's, for the events it reports; `series` names the series
    /// of missing signals.
    #[must_use]
    pub fn new(
        client: kube::Client,
        cluster: ClusterReader,
        published: watch::Receiver<Arc<Published>>,
        leadership: watch::Receiver<Leadership>,
        identity: String,
        series: SeriesOf,
    ) -> Self {
        let reporter = Reporter { controller: FIELD_MANAGER.into(), instance: Some(identity) };
        Self { client, cluster, published, leadership, reporter, series }
    }

    /// Writes after every new result until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut histories = BTreeMap::new();
        while let Some(Ok(())) = cancel.run_until_cancelled(self.published.changed()).await {
            let published = self.published.borrow_and_update().clone();
            if published.origin == Origin::Computed && self.is_leader() {
                cancel.run_until_cancelled(self.write_all(&published, &mut histories)).await;
            }
        }
    }

    fn is_leader(&self) -> bool {
        self.leadership.borrow().is_mine()
    }

    /// Writes what differs.
    async fn write_all(&self, published: &Published, histories: &mut BTreeMap<VariantId, StatusHistory>) {
        let state = self.cluster.state();
        histories.retain(|id, _| state.objects.contains_key(id));
        let updates = updates(published, &state, histories, self.series);
        let mut results = futures::stream::iter(updates)
            .map(|update| async {
                let result = self.write(&update).await;
                sleep(WRITE_INTERVAL).await;
                (update, result)
            })
            .buffer_unordered(MAX_CONCURRENT_WRITES);
        while let Some((update, result)) = results.next().await {
            let history = histories.entry(update.id.clone()).or_default();
            match result {
                Ok(true) => {
                    let (at, status, decision) = (Instant::now(), update.new, update.decision);
                    let written = Some(WrittenStatus { at, status, decision });
                    *history = StatusHistory { written, refusal: None, events: update.budget };
                }
                Ok(false) => {}
                Err(error) => {
                    let refusal = Refusal::new(&error, update.object.generation);
                    let known = history.refusal.as_ref().map(|known| &known.cause);
                    if known != Some(&refusal.cause) {
                        self.report(&refusal, &update).await;
                    }
                    history.refusal = Some(refusal);
                }
            }
        }
    }

    /// Reports a refusal that is new: in the log and, where the object has to be corrected, in an event about it.
    async fn report(&self, refusal: &Refusal, update: &StatusUpdate) {
        let VariantId { namespace, name } = &update.id;
        let cause = &refusal.cause;
        if refusal.invalid.is_none() {
            tracing::warn!(%namespace, %name, error = cause, "cannot write the status of a VariantAutoscaling: check its \
                definition, and that the service account may patch variantautoscalings/status");
            return;
        }
        tracing::warn!(%namespace, %name, error = cause, "the definition refuses the status of a VariantAutoscaling: correct \
            the field that it names");
        let note = format!(
            "the API server refuses the status of this object: {cause}; correct the field that it names"
        );
        let event = event(EventType::Warning, "StatusRefused", &note);
        let reference = variant_reference(&update.id, &update.object.uid);
        if let Err(error) = publish(&self.client, &self.reporter, &event, &reference).await {
            tracing::debug!(error, variant = %update.id, "an event was not written");
        }
    }

    /// Writes one status and its events; false when this instance is no longer the leader, or the object is gone.
    async fn write(&self, update: &StatusUpdate) -> Result<bool, RequestError> {
        if !self.is_leader() {
            return Ok(false);
        }
        // Only the metadata of the answer is parsed: the object itself may be unreadable.
        let api: Api<PartialObjectMeta<VariantAutoscaling>> =
            Api::namespaced(self.client.clone(), &update.id.namespace);
        let patch = Patch::Apply(body(&update.id, &update.object.uid, &update.new));
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        match bounded(api.patch_status(&update.id.name, &parameters, &patch)).await {
            Ok(_) => {}
            // Deleted, or recreated under the same name: the watch will show it.
            Err(error) if error.is_not_found() || error.is_conflict() => return Ok(false),
            Err(error) => return Err(error),
        }
        let reference = variant_reference(&update.id, &update.object.uid);
        for event in &update.events {
            if let Err(error) = publish(&self.client, &self.reporter, event, &reference).await {
                tracing::debug!(error, variant = %update.id, "an event was not written");
            }
        }
        Ok(true)
    }
}

fn updates(
    published: &Published,
    state: &ClusterState,
    histories: &BTreeMap<VariantId, StatusHistory>,
    series: SeriesOf,
) -> Vec<StatusUpdate> {
    let update = |(id, decision): (&VariantId, &Decision)| {
        let object = state.objects.get(id)?;
        let history = histories.get(id);
        let refusal = history.and_then(|history| history.refusal.as_ref());
        if refusal.is_some_and(|refusal| refusal.holds(object.generation)) {
            return None;
        }
        let written = history.and_then(|history| history.written.as_ref());
        // Of an object that cannot be parsed, only the status written here is known.
        let is_settling = |at: &Instant| at.elapsed() < SETTLE_WINDOW || object.status.is_none();
        let settling = written.filter(|written| is_settling(&written.at)).map(|written| &written.status);
        let empty = VariantAutoscalingStatus::default();
        let old = settling.or(object.status.as_ref()).unwrap_or(&empty);
        let group = GroupId::new(id.namespace.clone(), decision.model.clone());
        let input = StatusInput {
            decision,
            target: object.variant.as_ref().ok().map(|variant| &variant.target),
            generation: object.generation,
            at: published.at,
            series,
            limit: published.report.groups.get(&group).and_then(|group| group.limit_gaps.get(&id.name)),
        };
        let new = render(&input, old);
        let is_older_than = |interval| written.is_none_or(|written| written.at.elapsed() >= interval);
        let is_same = written.is_some_and(|written| has_same_reasons(&written.decision, decision));
        let is_due = match difference(old, &new, is_same) {
            Difference::Facts => true,
            Difference::Text => is_older_than(TEXT_INTERVAL),
            Difference::Figures => is_older_than(FIGURES_INTERVAL),
            Difference::None => false,
        };
        is_due.then(|| {
            let mut budget = history.map(|history| history.events.clone()).unwrap_or_default();
            let mut events = events(old, &new);
            // No other controller sets this condition: without it, the object is seen for the first time.
            if old.condition(SIGNALS_COMPLETE).is_none() {
                let notices = object.notices.iter();
                events.extend(notices.map(|notice| event(EventType::Normal, notice.reason, &notice.note)));
            }
            let events = budget.take(events);
            StatusUpdate {
                id: id.clone(),
                object: object.clone(),
                new,
                decision: decision.clone(),
                events,
                budget,
            }
        })
    };
    published.decisions.iter().filter_map(update).collect()
}

/// With the uid, so that a later object of the same name is never written to, and nothing is created.
fn body(id: &VariantId, uid: &str, status: &VariantAutoscalingStatus) -> serde_json::Value {
    json!({
        "apiVersion": VariantAutoscaling::api_version(&()),
        "kind": VariantAutoscaling::kind(&()),
        "metadata": { "namespace": id.namespace, "name": id.name, "uid": uid },
        "status": status,
    })
}

/// The events about what changed from `old` to `new`.
fn events(old: &VariantAutoscalingStatus, new: &VariantAutoscalingStatus) -> Vec<Event> {
    let desired = |status: &VariantAutoscalingStatus| {
        status.desired_optimized_alloc.as_ref().map(|alloc| alloc.num_replicas)
    };
    let mut events = Vec::new();
    if let (Some(from), Some(to)) = (desired(old), desired(new))
        && from != to
    {
        let why = new.condition(OPTIMIZATION_READY).map_or("", |condition| condition.message.as_str());
        let note = format!("desired replicas {from} → {to}: {why}");
        events.push(event(EventType::Normal, "DesiredReplicasChanged", &note));
    }
    if let Some(metrics) = new.condition(METRICS_AVAILABLE)
        && metrics.status == "False"
        && old.condition(METRICS_AVAILABLE).is_none_or(|before| before.status != "False")
    {
        events.push(event(EventType::Warning, &metrics.reason, &metrics.message));
    }
    events.extend(signals_event(old.condition(SIGNALS_COMPLETE), new.condition(SIGNALS_COMPLETE)));
    if let Some(limit) = new.condition(LIMIT_ENFORCED)
        && old.condition(LIMIT_ENFORCED).is_none_or(|before| before.reason != limit.reason)
    {
        events.push(event(EventType::Warning, &limit.reason, &limit.message));
    }
    events
}

/// The event that signals are missing, that the reason for it changed, or that they are complete again.
fn signals_event(old: Option<&Condition>, new: Option<&Condition>) -> Option<Event> {
    let new = new?;
    let was_incomplete = old.is_some_and(|old| old.status == "False");
    match new.status.as_str() {
        "False" if was_incomplete && old.is_some_and(|old| old.reason == new.reason) => None,
        "False" => {
            let note = format!("signals are incomplete: {}", new.message);
            Some(event(EventType::Warning, &new.reason, &note))
        }
        "True" if was_incomplete => Some(event(EventType::Normal, SIGNALS_COMPLETE, &new.message)),
        _ => None,
    }
}

fn event(type_: EventType, reason: &str, note: &str) -> Event {
    let note = Some(shortened(note, MAX_NOTE_BYTES).to_owned());
    Event { type_, reason: reason.into(), note, action: "Decide".into(), secondary: None }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use wva_core::decision::{GapCause, Reason, SignalGap, Target, Verdict};
    use wva_core::report::LimitGap;
    use wva_core::units::Replicas;

    use super::*;
    use crate::cluster::writers::signal_gap::gap;

    /// The status of a variant whose signals are incomplete because of `cause`, and the events about it after `old`.
    fn step(
        old: &VariantAutoscalingStatus,
        cause: Option<GapCause>,
        limit: Option<&LimitGap>,
    ) -> (VariantAutoscalingStatus, Vec<(EventType, String, String)>) {
        let incomplete = |cause| SignalGap {
            warning: (cause == GapCause::PartialSource).then(|| "a store is down".into()),
            ..gap(cause, 1, 2)
        };
        let at = Timestamp::UNIX_EPOCH;
        let desired = Replicas::new(2);
        let target = Target { desired, reason: Reason::Steady, explanation: "calm".into(), evidence: at };
        let decision = Decision {
            model: "m".into(),
            accelerator: None,
            current: Some(desired),
            verdict: Verdict::Target(target),
            gap: cause.map(incomplete),
        };
        let input = StatusInput {
            decision: &decision,
            target: None,
            generation: 1,
            at,
            series: |_| Vec::new(),
            limit,
        };
        let new = render(&input, old);
        let events = events(old, &new)
            .into_iter()
            .map(|event| (event.type_, event.reason, event.note.unwrap_or_default()));
        let events = events.collect();
        (new, events)
    }

    #[test]
    fn each_change_of_signals_complete_is_one_event_with_its_cause() {
        let (mut status, first) = step(&VariantAutoscalingStatus::default(), None, None);
        assert!(first.is_empty(), "complete from the beginning: {first:?}");
        for cause in GapCause::ALL {
            let (next, events) = step(&status, Some(cause), None);
            let [(EventType::Warning, reason, note)] = &events[..] else { panic!("{cause:?}: {events:?}") };
            assert_eq!(reason, cause.as_str());
            assert!(note.starts_with("signals are incomplete: "), "{note}");
            assert!(step(&next, Some(cause), None).1.is_empty(), "{cause:?} again");
            status = next;
        }
        let (_, partial) = step(&status, Some(GapCause::PartialSource), None);
        assert!(partial[0].2.contains("a store is down"), "{partial:?}");
        let (_, complete) = step(&status, None, None);
        let [(EventType::Normal, reason, note)] = &complete[..] else { panic!("{complete:?}") };
        assert_eq!((reason.as_str(), note.contains("every signal")), (SIGNALS_COMPLETE, true));
    }

    #[test]
    fn a_limit_that_is_not_enforced_is_one_event_for_each_cause() {
        let (calm, _) = step(&VariantAutoscalingStatus::default(), None, None);
        let named = LimitGap::NotInInventory { accelerator: "H100".into() };
        let (first, events) = step(&calm, None, Some(&LimitGap::NoInventory));
        let [(EventType::Warning, reason, note)] = &events[..] else { panic!("{events:?}") };
        assert_eq!((reason.as_str(), note.contains("no GPU of any node is known")), ("NoInventory", true));
        assert!(step(&first, None, Some(&LimitGap::NoInventory)).1.is_empty());
        let (second, events) = step(&first, None, Some(&named));
        assert!(events[0].1 == "NotInInventory" && events[0].2.contains("H100"), "{events:?}");
        assert!(step(&second, None, None).1.is_empty(), "the condition is removed without an event");
    }

    fn changed(from: usize) -> Vec<Event> {
        let note = format!("desired replicas {from} → {}", from + 1);
        vec![event(EventType::Normal, "DesiredReplicasChanged", &note)]
    }

    #[tokio::test(start_paused = true)]
    async fn a_number_that_keeps_changing_makes_few_events_that_count_the_dropped_ones() {
        let mut budget = EventBudget::default();
        let written = (0..12).map(|from| budget.take(changed(from)).len()).sum::<usize>();
        assert_eq!((written, budget.written.len()), (MAX_EVENTS, MAX_EVENTS));
        tokio::time::advance(EVENT_WINDOW).await;
        let notes: Vec<_> = budget.take(changed(12)).into_iter().filter_map(|event| event.note).collect();
        assert_eq!(notes, ["desired replicas 12 → 13 (6 earlier events were dropped)"]);
        assert_eq!(budget.take(changed(13))[0].note.as_deref(), Some("desired replicas 13 → 14"));
    }
}
