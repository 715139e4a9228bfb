//! Writes the status of `VariantAutoscaling` objects: by server-side apply, only what changed, only while this instance is the
//! leader. Records changes as events. The content of a status is in `status`.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use kube::Resource;
use kube::api::{Api, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::events::{Event, EventType};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use wva_core::units::{count, truncated_u32};
use wva_core::{Decision, GroupId, VariantId};

use super::events::{EventPublisher, EventRecorder, variant_reference};
use super::signal_gap::SeriesOf;
use super::status::{Difference, StatusInput, difference, has_same_reasons, render};
use super::status_events::{EventBudget, ToldFindings, event, events};
use super::status_history::{Histories, Refusal, StatusHistory, WrittenStatus};
use crate::cluster::crd::{SIGNALS_COMPLETE, VariantAutoscaling, VariantAutoscalingStatus};
use crate::cluster::objects::VariantObject;
use crate::cluster::requests::{FIELD_MANAGER, RequestError, bounded};
use crate::cluster::watch::{ClusterReader, ClusterState, VerdictContext};
use crate::engine::{Leadership, Origin, Published};
use crate::lint::{Advice, ExternalMetrics};
use crate::telemetry::{ErrorMetrics, QueueMetrics};

/// Writes at a time.
pub(super) const MAX_CONCURRENT_WRITES: usize = 8;
/// How long each of them pauses after a status or an event: at most 20 of these a second in all, whatever the variants do, so
/// that the API server hardly notices. 1,000 variants that change together take 50 s.
pub(super) const WRITE_INTERVAL: Duration = Duration::from_millis(400);
/// How long an object that differs only in figures of its messages is left alone: 1,000 variants cause at most 3.3 writes a
/// second.
const FIGURES_INTERVAL: Duration = Duration::from_secs(300);
/// How long an object whose messages have another text is left alone: what limits a number is seen soon, and 600 variants
/// whose message changes with every evaluation cause 20 writes a second. More of them are written less often.
const TEXT_INTERVAL: Duration = Duration::from_secs(30);
/// An unchanged status is written again when its `lastRunTime` is this old: it shows that its number is still being decided.
const REFRESH_INTERVAL: Duration = Duration::from_secs(60);
/// Unchanged statuses that are written in a second, the oldest first: those of 600 variants once a minute, and those of 10,000
/// within 17 minutes, with half of all writes.
const REFRESHES_PER_SECOND: f64 = 10.0;
/// Most of them at a time: those of 5 s, the usual time between two evaluations. What is not used is not saved for later.
const MAX_REFRESHES: f64 = 5.0 * REFRESHES_PER_SECOND;
/// Changed statuses that are rendered at a time: those that are written in 10 s. Rendered together, the statuses of 10,000 variants
/// would wait for minutes, take 20 MB, and be old when they are written.
const MAX_RENDERED: usize = 200;

/// Keeps statuses in step with decisions. [`StatusWriter::run`] it in a task.
pub struct StatusWriter {
    client: kube::Client,
    cluster: ClusterReader,
    published: watch::Receiver<Arc<Published>>,
    leadership: watch::Receiver<Leadership>,
    events: EventPublisher,
    failures: Option<EventRecorder>,
    series: SeriesOf,
    external: ExternalOf,
    queue: QueueMetrics,
    errors: ErrorMetrics,
}

/// How many unchanged statuses may be written now.
struct RefreshBudget {
    left: f64,
    at: Instant,
}

impl RefreshBudget {
    /// That of one second.
    fn new() -> Self {
        Self { left: REFRESHES_PER_SECOND, at: Instant::now() }
    }

    /// The oldest of `unchanged`, which have the `lastRunTime` of their status, within the budget.
    fn take<T>(&mut self, mut unchanged: Vec<(Timestamp, T)>) -> impl Iterator<Item = T> {
        let elapsed = std::mem::replace(&mut self.at, Instant::now()).elapsed();
        self.left = (self.left + REFRESHES_PER_SECOND * elapsed.as_secs_f64()).min(MAX_REFRESHES);
        unchanged.sort_by_key(|(last_run, _)| *last_run);
        unchanged.truncate(usize::try_from(truncated_u32(self.left)).unwrap_or_default());
        self.left -= f64::from(count(unchanged.len()));
        unchanged.into_iter().map(|(_, update)| update)
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
    /// The findings that have an event after these.
    told: ToldFindings,
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
        let events = EventPublisher::new(client.clone(), identity);
        Self {
            client,
            cluster,
            published,
            leadership,
            events,
            failures: None,
            series,
            external: no_external(),
            queue: QueueMetrics::default(),
            errors: ErrorMetrics::default(),
        }
    }

    /// The same writer, which counts the statuses that wait, and those that cannot be written.
    #[must_use]
    pub fn with_metrics(self, queue: QueueMetrics, errors: ErrorMetrics) -> Self {
        Self { queue, errors, ..self }
    }

    /// The same writer, which says where another program serves external metrics.
    #[must_use]
    pub fn with_external(self, external: ExternalOf) -> Self {
        Self { external, ..self }
    }

    /// The same writer, which records on a variant that the API server refuses its status.
    #[must_use]
    pub fn with_failures(self, failures: EventRecorder) -> Self {
        Self { failures: Some(failures), ..self }
    }

    /// Writes after every new result until cancelled: all variants in batches, each from the newest result.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut histories = Histories::new();
        let mut refreshes = RefreshBudget::new();
        while let Some(Ok(())) = cancel.run_until_cancelled(self.published.changed()).await {
            let first = self.published.borrow().sequence;
            let mut next = Bound::Unbounded;
            loop {
                let published = self.published.borrow_and_update().clone();
                let newest = published.sequence;
                if published.origin != Origin::Computed || !self.is_leader() {
                    // Another leader tells what is found meanwhile.
                    histories.values_mut().for_each(|history| history.told = ToldFindings::default());
                    break;
                }
                let write = self.write_batch(published, next, &mut histories, &mut refreshes);
                match cancel.run_until_cancelled(write).await.flatten() {
                    Some(last) => next = Bound::Excluded(last),
                    None if newest == first => break,
                    // The first batches have not been compared with it.
                    None => break self.published.mark_changed(),
                }
            }
        }
    }

    fn is_leader(&self) -> bool {
        self.leadership.borrow().is_mine()
    }

    /// Writes what differs, of the variants from `first` on. Returns the last one, if others are left.
    async fn write_batch(
        &self,
        published: Arc<Published>,
        first: Bound<VariantId>,
        histories: &mut Histories,
        refreshes: &mut RefreshBudget,
    ) -> Option<VariantId> {
        let state = self.cluster.state();
        histories.retain(|id, history| match state.objects.get(id) {
            Some(object) => {
                history.forget_stored(object);
                true
            }
            None => false,
        });
        let external = (self.external)();
        let context = StatusContext {
            published: &published,
            state: &state,
            series: self.series,
            external: external.as_ref(),
        };
        let round = Round { context, histories };
        let (updates, last) = updates(round, first, refreshes);
        // There are newer ones of both while this is written.
        drop((published, state));
        self.queue.added(updates.len());
        let mut results = futures::stream::iter(updates)
            .map(|update| async {
                let result = self.write(&update).await;
                sleep(WRITE_INTERVAL).await;
                (update, result)
            })
            .buffer_unordered(MAX_CONCURRENT_WRITES);
        while let Some((update, result)) = results.next().await {
            self.queue.taken();
            let history = histories.entry(update.id.clone()).or_default();
            match result {
                Ok(true) => {
                    let (uid, at) = (update.object.uid.clone(), Instant::now());
                    let (status, decision) = (Some(update.new), update.decision);
                    let written = Some(WrittenStatus { uid, at, status, decision });
                    **history =
                        StatusHistory { written, refusal: None, events: update.budget, told: update.told };
                }
                Ok(false) => {}
                Err(error) => {
                    let refusal = Refusal::new(&error, &update.object);
                    let is_known =
                        |known: &Refusal| (&known.uid, &known.cause) == (&refusal.uid, &refusal.cause);
                    let is_new = !history.refusal.as_ref().is_some_and(is_known);
                    self.report_failure(&update, &error, &refusal, is_new);
                    history.refusal = Some(refusal);
                }
            }
        }
        last
    }

    /// Counts a status that was not written. Where the cause is new, it is in the log and, if it is a matter of the object, in an
    /// event.
    fn report_failure(&self, update: &StatusUpdate, error: &RequestError, refusal: &Refusal, is_new: bool) {
        self.errors.count("controller", "status_update", 1);
        self.queue.retried();
        if !is_new {
            return;
        }
        let VariantId { namespace, name } = &update.id;
        let (cause, remedy) = (&refusal.cause, refusal.remedy());
        tracing::warn!(%namespace, %name, error = cause, "cannot write the status of a VariantAutoscaling: {remedy}");
        // An API server that is overloaded needs no events as well.
        let is_refused = matches!(error.code(), Some(400 | 403 | 422));
        if let Some(failures) = self.failures.as_ref().filter(|_| is_refused) {
            let note = format!("the status cannot be written: {cause}; {remedy}");
            failures.record_refused_status(&update.id, &update.object, note);
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
        let reference = variant_reference(&update.id, &update.object);
        for event in &update.events {
            sleep(WRITE_INTERVAL).await;
            if let Err(error) = self.events.publish(event, &reference).await {
                tracing::debug!(error, variant = %update.id, "an event was not written");
            }
        }
        Ok(true)
    }
}

/// Says who serves external metrics instead of this program.
pub type ExternalOf = Arc<dyn Fn() -> Option<ExternalMetrics> + Send + Sync>;

/// Nobody does, as far as is known.
pub(super) fn no_external() -> ExternalOf {
    Arc::new(|| None)
}

/// What statuses are made from.
#[derive(Clone, Copy)]
pub(super) struct StatusContext<'a> {
    pub(super) published: &'a Published,
    pub(super) state: &'a ClusterState,
    pub(super) series: SeriesOf,
    /// Who serves external metrics instead of this program.
    pub(super) external: Option<&'a ExternalMetrics>,
}

/// The status of an object after `old`, and the findings about its autoscalers if these are known; `None` for an object that has been created again since: it is decided about next.
pub(super) fn new_status(
    context: StatusContext<'_>,
    (id, decision): (&VariantId, &Decision),
    object: &VariantObject,
    old: &VariantAutoscalingStatus,
) -> Option<(VariantAutoscalingStatus, Option<Vec<Advice>>)> {
    let StatusContext { published, state, series, external } = context;
    let decided = published.revisions.get(id).filter(|revision| *revision.uid == *object.uid)?;
    let group = GroupId::new(id.namespace.clone(), decision.model.clone());
    let context = VerdictContext { policy: &published.policy, external };
    let autoscaler = state.autoscaler((id, object.kind), context);
    let input = StatusInput {
        decision,
        target: object.variant.as_ref().ok().map(|variant| &variant.target),
        generation: decided.generation,
        at: published.at,
        series,
        limit: published.report.groups.get(&group).and_then(|group| group.limit_gaps.get(&id.name)),
        pause: state.pauses.get(id).map(AsRef::as_ref),
        autoscaler: autoscaler.as_ref(),
    };
    let status = render(&input, old);
    Some((status, autoscaler.map(|verdict| verdict.findings)))
}

/// The statuses that change, of the variants from `first` on. If they are too many, only those up to the variant that is returned. The
/// first batch contains the unchanged ones of all variants whose `lastRunTime` is old, within the budget of these.
fn updates(
    round: Round<'_>,
    first: Bound<VariantId>,
    refreshes: &mut RefreshBudget,
) -> (Vec<StatusUpdate>, Option<VariantId>) {
    let is_first = first == Bound::Unbounded;
    let (mut changed, mut unchanged, mut last) = (Vec::new(), Vec::new(), None);
    let decisions = &round.context.published.decisions;
    for (id, decision) in decisions.range((first, Bound::Unbounded)) {
        let is_full = changed.len() == MAX_RENDERED;
        if is_full && !is_first {
            break;
        }
        match round.due(id, decision) {
            Some(DueStatus { unchanged_since: Some(last_run), .. }) if is_first => {
                unchanged.push((last_run, (id, decision)));
            }
            Some(due) if due.unchanged_since.is_none() && !is_full => changed.push(due.update(id, decision)),
            _ => {}
        }
        last = if is_full { last } else { Some(id) };
    }
    // Rendered again: a large fleet has thousands that are not chosen.
    let chosen = refreshes.take(unchanged);
    changed.extend(chosen.filter_map(|(id, decision)| Some(round.due(id, decision)?.update(id, decision))));
    let is_last = last == decisions.keys().next_back();
    (changed, last.filter(|_| !is_last).cloned())
}

/// What the statuses of one result are compared with.
#[derive(Clone, Copy)]
struct Round<'a> {
    context: StatusContext<'a>,
    histories: &'a Histories,
}

/// A status that is to be written.
struct DueStatus<'a> {
    object: &'a Arc<VariantObject>,
    history: Option<&'a StatusHistory>,
    old: Option<&'a VariantAutoscalingStatus>,
    new: VariantAutoscalingStatus,
    /// About its autoscalers, if these are known.
    findings: Option<Vec<Advice>>,
    /// The old `lastRunTime`, where nothing else changes.
    unchanged_since: Option<Timestamp>,
}

impl<'a> Round<'a> {
    fn due(self, id: &VariantId, decision: &Decision) -> Option<DueStatus<'a>> {
        let Self { context, histories } = self;
        let StatusContext { published, state, .. } = context;
        let object = state.objects.get(id).filter(|object| !object.kind.is_annotated())?;
        let history = histories.get(id).map(AsRef::as_ref);
        let refusal = history.and_then(|history| history.refusal.as_ref());
        if refusal.is_some_and(|refusal| refusal.holds(object)) {
            return None;
        }
        let written = history.and_then(|history| history.written.as_ref());
        let written = written.filter(|written| written.uid == object.uid);
        let settling = written.filter(|written| written.is_settling(object));
        let old = settling.and_then(|written| written.status.as_ref()).or(object.status.as_ref());
        let empty = VariantAutoscalingStatus::default();
        let known = old.unwrap_or(&empty);
        let (new, findings) = new_status(context, (id, decision), object, known)?;
        let is_older_than = |interval| written.is_none_or(|written| written.at.elapsed() >= interval);
        let is_same = written.is_some_and(|written| has_same_reasons(&written.decision, decision));
        let is_due = match difference(known, &new, is_same) {
            Difference::Facts => true,
            Difference::Text => is_older_than(TEXT_INTERVAL),
            Difference::Figures => is_older_than(FIGURES_INTERVAL),
            Difference::None => false,
        };
        let unchanged_since = known.last_run().filter(|last_run| {
            let age = published.at.duration_since(*last_run).unsigned_abs();
            !is_due && new.last_run() > Some(*last_run) && age >= REFRESH_INTERVAL
        });
        let is_written = is_due || unchanged_since.is_some();
        is_written.then_some(DueStatus { object, history, old, new, findings, unchanged_since })
    }
}

impl DueStatus<'_> {
    fn update(self, id: &VariantId, decision: &Decision) -> StatusUpdate {
        let Self { object, history, old, new, findings, .. } = self;
        // Of an object of this name that is gone, nothing counts.
        let is_same = |history: &&StatusHistory| {
            history.written.as_ref().is_none_or(|written| written.uid == object.uid)
        };
        let history = history.filter(is_same);
        let (mut budget, mut told) =
            history.map(|history| (history.events.clone(), history.told.clone())).unwrap_or_default();
        let mut events = events(old.unwrap_or(&VariantAutoscalingStatus::default()), &new);
        // No other controller sets this condition: without it, the object is seen for the first time.
        if old.and_then(|old| old.condition(SIGNALS_COMPLETE)).is_none() {
            let notices = object.notices.iter();
            events.extend(notices.map(|notice| event(EventType::Normal, notice.reason, &notice.note)));
        }
        if let Some(findings) = findings {
            events.extend(told.take(&findings, budget.room(&events)));
        }
        let events = budget.take(events);
        let (id, object, decision) = (id.clone(), object.clone(), decision.clone());
        StatusUpdate { id, object, new, decision, events, budget, told }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn unchanged_statuses_of_a_large_fleet_are_written_ten_a_second_the_oldest_first() {
        let at = |second: i64| (Timestamp::from_second(second).unwrap(), second);
        let fleet = || (0..10_000).rev().map(at).collect::<Vec<_>>();
        let mut budget = RefreshBudget::new();
        assert_eq!(budget.take(fleet()).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
        assert_eq!(budget.take(fleet()).count(), 0, "in the same moment");
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(budget.take(fleet()).count(), 50);
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(budget.take(fleet()).count(), 50, "what an hour left unused was written in one burst");
    }
}
