//! The evaluation of sleeping models alone, because requests wait for them at schedulers: the same core decides as in an evaluation of all
//! models, which may run meanwhile and does not undo it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};
use tracing::error;
use wva_core::memory::GroupMemory;
use wva_core::model::Variant;
use wva_core::report::GroupReport;
use wva_core::snapshot::{Sample, Scale, Signal, Snapshot, VariantState};
use wva_core::units::Replicas;
use wva_core::{Decision, GroupId, Memory, Outcome, Policy, VariantId};

use super::Engine;
use crate::engine::assemble::{Assembled, assemble};
use crate::engine::board::{Origin, Published};
use crate::engine::changes::log_changes;
use crate::engine::model_names::{LearnedModels, NamedModels};
use crate::engine::overdue::CurrentModel;
use crate::engine::ports::{ClusterView, Collected, Labels, Revision, Series};
use crate::engine::term_state::{WaitingRequests, WakeOutcome, WokenGroup, has_shared_limits, number};

/// How often the result is decided anew because another evaluation has published meanwhile.
const MAX_ATTEMPTS: usize = 3;

/// The models to decide about, and what waits for each.
type Waiting = BTreeMap<GroupId, WaitingRequests>;

/// What was decided about one model.
struct ModelResult {
    decisions: BTreeMap<VariantId, Decision>,
    report: GroupReport,
    memory: GroupMemory,
}

/// How often a limit may deny the variant that is to be woken before the next evaluation tries again: a model has a few variants.
const MAX_DENIALS: usize = 3;
/// From one decision to the next one in one evaluation.
const NEXT_MOMENT: SignedDuration = SignedDuration::from_millis(1);

impl Engine {
    /// Decides about the models for which requests wait, all together, and publishes what wakes a variant. One at a time: the caller
    /// waits for the end.
    pub(in crate::engine) async fn wake(self: &Arc<Self>, mut waiting: Waiting) -> WakeOutcome {
        for stuck in self.abandoned.stuck_models() {
            waiting.remove(&stuck);
        }
        let current = Arc::new(CurrentModel::new(self.observer.clone()));
        let (engine, progress) = (Arc::clone(self), current.clone());
        let deadline = Instant::now() + self.decision_timeout;
        let mut waking = spawn_blocking(move || {
            let mut attempts = (0..MAX_ATTEMPTS).map(|_| engine.try_wake(&waiting, &progress, deadline));
            attempts.find(|outcome| *outcome != WakeOutcome::Superseded).unwrap_or(WakeOutcome::Superseded)
        });
        let none = || WakeOutcome::Decided(BTreeSet::new());
        match timeout(self.decision_timeout, &mut waking).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(failure)) => {
                error!(failure = failure.to_string().as_str(), "waking models panicked");
                none()
            }
            // Its thread cannot be ended, and what it decides is too late. While it runs, the model is held.
            Err(_) => {
                self.parts.metrics.overdue();
                let stuck = current.stuck_model(self.decision_timeout);
                let model = stuck.as_ref().map(ToString::to_string).unwrap_or_default();
                error!(model, "the decision to wake a model is overdue; please report this");
                if !self.abandoned.add(waking.abort_handle(), stuck) {
                    drop(waking.await);
                }
                none()
            }
        }
    }

    /// One attempt.
    fn try_wake(&self, waiting: &Waiting, progress: &CurrentModel, deadline: Instant) -> WakeOutcome {
        let none = WakeOutcome::Decided(BTreeSet::new());
        let previous = self.parts.board.newest();
        let Some(term) = self.current_term() else { return none };
        if previous.origin != Origin::Computed || previous.term.as_ref() != Some(&term) {
            // All models are about to be evaluated for the first time in this term.
            return WakeOutcome::Superseded;
        }
        let (view, before) = (self.parts.cluster.view(), self.memory.borrow().clone());
        let results = self.decide_together(waiting, &view, (&before, &previous), progress);
        if results.is_empty() {
            return none;
        }
        let mut after = Memory::clone(&before);
        let mut published = Published::clone(&previous);
        for (id, result) in &results {
            after.groups.insert(id.clone(), result.memory.clone());
            replace(&mut published, id, result);
            follow_revisions(&mut published, &revisions_of(&result.decisions, &view));
        }
        let mut term_state = self.term_state.lock();
        if Instant::now() >= deadline || term_state.term.as_ref() != Some(&term) || !self.is_mine(&term) {
            return none;
        }
        let is_newest = Arc::ptr_eq(&previous, &self.parts.board.newest());
        let sleeps = results
            .values()
            .flat_map(|result| result.decisions.keys())
            .all(|id| is_at_zero(&self.parts.cluster.view(), id));
        if !is_newest || !sleeps || !Arc::ptr_eq(&before, &self.memory.borrow()) {
            return WakeOutcome::Superseded;
        }
        let (pass, woken) = (term_state.current, results.keys().cloned().collect());
        for (id, ModelResult { decisions, report, memory }) in results {
            let revisions = revisions_of(&decisions, &view);
            term_state.woken.insert(id, WokenGroup { pass, decisions, report, memory, revisions });
        }
        self.memory.send_replace(Arc::new(after));
        let newest = self.parts.board.publish(published);
        drop(term_state);
        log_changes(&previous, &newest);
        WakeOutcome::Decided(woken)
    }

    /// What the core decides about the models `waiting` alone, of those of which that wakes a variant.
    fn decide_together(
        &self,
        waiting: &Waiting,
        view: &ClusterView,
        (before, previous): (&Memory, &Published),
        progress: &CurrentModel,
    ) -> BTreeMap<GroupId, ModelResult> {
        let (now, policy) = (self.parts.clock.now(), self.policy());
        let in_force = self.models.in_force();
        let group = |variant: &Variant| group_of(variant, &in_force).filter(|id| waiting.contains_key(id));
        let is_awake = |state: &VariantState| {
            let decision = previous.decisions.get(&state.variant.id);
            !sleeps(state) || decision.and_then(number).is_some_and(|number| number > Replicas::ZERO)
        };
        // They are woken already, or by something else: what their pods show was not read here. What they use counts like that of all others.
        let awake: BTreeSet<GroupId> = view
            .variants
            .iter()
            .filter(|state| is_awake(state))
            .filter_map(|state| group(&state.variant))
            .collect();
        let is_own = |state: &&VariantState| group(&state.variant).is_some_and(|id| !awake.contains(&id));
        let (own, others): (Vec<&VariantState>, Vec<&VariantState>) = view.variants.iter().partition(is_own);
        let models: NamedModels = own
            .iter()
            .filter(|state| !state.variant.names_model())
            .filter_map(|state| Some((state.variant.id.clone(), Ok(group(&state.variant)?.model))))
            .collect();
        let alone = ClusterView {
            variants: own.into_iter().cloned().collect(),
            inventory: view.inventory.clone(),
            elsewhere: view.elsewhere.clone(),
            unlabelled: view.unlabelled.clone(),
            limits: Arc::clone(&view.limits),
            is_inventory_stale: view.is_inventory_stale,
            ..ClusterView::default()
        };
        let series = waiting.iter().map(|(id, waiting)| queue(id, waiting, now)).collect();
        let answer = Ok(Collected { series, ..Collected::default() });
        let Assembled { mut snapshot, .. } = assemble(&alone, &models, answer, now);
        if has_shared_limits(&policy, view) {
            // Nothing is decided about them; what they use counts.
            snapshot.undecided = others.into_iter().map(|state| with_published(state, previous)).collect();
        }
        let known = |id: &GroupId| Some((id.clone(), before.groups.get(id)?.clone()));
        let memory =
            Memory { groups: snapshot.groups.keys().filter_map(known).collect(), ..Memory::default() };
        let memory = wva_core::observe_watched(&snapshot, memory, progress);
        let mut outcome = decide_until_woken(&mut snapshot, &memory, &policy, progress);
        // Logged by the next evaluation of all models, which finds the same.
        let unsound = outcome.report.violations.iter().map(|violation| violation.variant.clone());
        let unsound: BTreeSet<VariantId> = unsound.collect();
        let failed: BTreeSet<GroupId> =
            outcome.report.failed.iter().map(|failure| failure.group.clone()).collect();
        let results =
            snapshot.groups.iter().filter(|(id, _)| !failed.contains(id)).filter_map(|(id, group)| {
                let ids = group.variants.iter().map(|state| &state.variant.id);
                let decisions: BTreeMap<VariantId, Decision> =
                    ids.filter_map(|id| outcome.decisions.remove_entry(id)).collect();
                let is_woken = decisions.values().filter_map(number).any(|number| number > Replicas::ZERO);
                if !is_woken || decisions.keys().any(|id| unsound.contains(id)) {
                    return None;
                }
                let memory = outcome.memory.groups.remove(id)?;
                let report = outcome.report.groups.remove(id).unwrap_or_default();
                Some((id.clone(), ModelResult { decisions, report, memory }))
            });
        results.collect()
    }
}

/// Decides until each model has a number above 0, or a limit has denied too many: what it has denied comes last from the next moment on.
fn decide_until_woken(
    snapshot: &mut Snapshot,
    memory: &Memory,
    policy: &Policy,
    progress: &CurrentModel,
) -> Outcome {
    let mut outcome = wva_core::decide_watched(snapshot, memory, policy, progress);
    for _ in 0..MAX_DENIALS {
        let wakes = |state: &VariantState| {
            let decision = outcome.decisions.get(&state.variant.id);
            decision.and_then(number).is_some_and(|number| number > Replicas::ZERO)
        };
        if snapshot.groups.values().all(|group| group.variants.iter().any(wakes)) {
            break;
        }
        snapshot.now = snapshot.now.checked_add(NEXT_MOMENT).unwrap_or(snapshot.now);
        outcome = wva_core::decide_watched(snapshot, &outcome.memory, policy, progress);
    }
    outcome
}

/// The model of a variant, by its own or by a learned name.
fn group_of(variant: &Variant, in_force: &LearnedModels) -> Option<GroupId> {
    if variant.names_model() {
        return Some(variant.group());
    }
    let learned = in_force.get(&variant.id).filter(|learned| learned.is_decided)?;
    Some(GroupId::new(variant.id.namespace.clone(), learned.name.clone()))
}

/// Nothing of it runs, as far as its scale target is known.
fn sleeps(state: &VariantState) -> bool {
    state.scale.is_none_or(|scale| scale.spec == Replicas::ZERO)
}

fn is_at_zero(view: &ClusterView, id: &VariantId) -> bool {
    view.variant(id).is_some_and(sleeps)
}

/// `state`, as if its published number ran already, where that is more than what runs: it was granted.
fn with_published(state: &VariantState, previous: &Published) -> VariantState {
    let granted = previous.decisions.get(&state.variant.id).and_then(number).unwrap_or_default();
    let mut state = state.clone();
    if granted > state.scale.map_or(Replicas::ZERO, Scale::base) {
        let ready = state.scale.map_or(Replicas::ZERO, |scale| scale.ready);
        state.scale = Some(Scale { spec: granted, current: granted, ready });
    }
    state
}

fn queue(model: &GroupId, waiting: &WaitingRequests, now: Timestamp) -> Series {
    let labels = Labels {
        namespace: model.namespace.as_str().into(),
        pod: waiting.scheduler.pod.as_str().into(),
        engine: "".into(),
        port: waiting.scheduler.port,
        model: Some(model.model.as_str().into()),
        destination: None,
    };
    let sample = Sample { at: now, value: waiting.requests };
    Series { labels: Arc::new(labels), signal: Signal::SchedulerQueueSize, samples: [sample].into() }
}

/// Replaces the decisions about one model. The time and the number of `published` stay those of the last evaluation of all models, so that the
/// next one comes when it would have come, and readers that wait for it go on waiting for the same one.
fn replace(published: &mut Published, model: &GroupId, result: &ModelResult) {
    published.decisions.extend(result.decisions.clone());
    published.report.groups.insert(model.clone(), result.report.clone());
}

/// Notes the objects that were decided about, where they have changed.
fn follow_revisions(published: &mut Published, newer: &BTreeMap<VariantId, Revision>) {
    if newer.iter().any(|(id, revision)| published.revisions.get(id) != Some(revision)) {
        let mut revisions = BTreeMap::clone(&published.revisions);
        revisions.extend(newer.clone());
        published.revisions = Arc::new(revisions);
    }
}

fn revisions_of(
    decisions: &BTreeMap<VariantId, Decision>,
    view: &ClusterView,
) -> BTreeMap<VariantId, Revision> {
    decisions.keys().filter_map(|id| Some((id.clone(), view.revisions.get(id)?.clone()))).collect()
}
