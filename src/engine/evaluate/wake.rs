//! The evaluation of one sleeping model alone, because a request waits for it at a scheduler: the same core decides as in an
//! evaluation of all models, which may run meanwhile and does not undo it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};
use tracing::error;
use wva_core::memory::GroupMemory;
use wva_core::model::Variant;
use wva_core::report::GroupReport;
use wva_core::snapshot::{Sample, Scale, Signal, VariantState};
use wva_core::units::Replicas;
use wva_core::{Decision, GroupId, Memory, Policy, VariantId};

use super::Engine;
use crate::engine::assemble::{Assembled, assemble};
use crate::engine::board::{Origin, Published};
use crate::engine::changes::log_changes;
use crate::engine::model_names::{LearnedModels, NamedModels};
use crate::engine::overdue::CurrentModel;
use crate::engine::ports::{ClusterView, Collected, Endpoint, Labels, Series};
use crate::engine::term_state::{Woken, WokenGroup, number};

/// How often the result is decided anew because another evaluation has published meanwhile.
const MAX_ATTEMPTS: usize = 3;

/// What was decided about one model.
struct ModelResult {
    decisions: BTreeMap<VariantId, Decision>,
    report: GroupReport,
    memory: GroupMemory,
    variants: Vec<(Variant, Replicas)>,
}

impl Engine {
    /// Decides about `model`, for which `waiting` requests wait at `scheduler`, and publishes the result if a variant is woken.
    /// `None` if none is: a limit holds it back, say, or this instance may not decide.
    pub(in crate::engine) async fn wake(
        self: &Arc<Self>,
        model: &GroupId,
        scheduler: &Endpoint,
        waiting: f64,
    ) -> Option<Woken> {
        if self.abandoned.stuck_models().contains(model) {
            return None;
        }
        let current = Arc::new(CurrentModel::new(self.observer.clone()));
        let (engine, model, scheduler, progress) =
            (Arc::clone(self), model.clone(), scheduler.clone(), current.clone());
        let stuck = model.clone();
        // Models that wake at once would supersede each other, and each has to count what the others get.
        let _turn = self.waking.lock().await;
        let deadline = Instant::now() + self.decision_timeout;
        let mut waking = spawn_blocking(move || {
            let mut attempts =
                (0..MAX_ATTEMPTS).map(|_| engine.try_wake(&model, &scheduler, waiting, &progress, deadline));
            attempts.find_map(Result::ok).flatten()
        });
        match timeout(self.decision_timeout, &mut waking).await {
            Ok(Ok(woken)) => woken,
            Ok(Err(failure)) => {
                error!(failure = failure.to_string().as_str(), "waking a model panicked");
                None
            }
            // Its thread cannot be ended, and what it decides is too late. While it runs, the model is held.
            Err(_) => {
                self.parts.metrics.overdue();
                error!(
                    model = stuck.to_string().as_str(),
                    "the decision to wake a model is overdue; please report this"
                );
                if !self.abandoned.add(waking.abort_handle(), Some(stuck)) {
                    drop(waking.await);
                }
                None
            }
        }
    }

    /// One attempt; an error if another evaluation has published meanwhile.
    fn try_wake(
        &self,
        model: &GroupId,
        scheduler: &Endpoint,
        waiting: f64,
        progress: &CurrentModel,
        deadline: Instant,
    ) -> Result<Option<Woken>, Superseded> {
        let previous = self.parts.board.newest();
        let Some(term) = self.current_term() else { return Ok(None) };
        if previous.origin != Origin::Computed || previous.term.as_ref() != Some(&term) {
            // All models are about to be evaluated for the first time in this term.
            return Ok(None);
        }
        let (view, before) = (self.parts.cluster.view(), self.memory.borrow().clone());
        let Some(result) =
            self.decide_alone(model, &view, (&before, &previous), (scheduler, waiting), progress)
        else {
            return Ok(None);
        };
        let variants = result.variants.clone();
        let mut after = Memory::clone(&before);
        after.groups.insert(model.clone(), result.memory.clone());
        let published = published(&previous, model, &result, &view);
        let mut term_state = self.term_state.lock();
        if Instant::now() >= deadline || term_state.term.as_ref() != Some(&term) || !self.is_mine(&term) {
            return Ok(None);
        }
        let is_newest = Arc::ptr_eq(&previous, &self.parts.board.newest());
        if !is_newest || !Arc::ptr_eq(&before, &self.memory.borrow()) {
            return Err(Superseded);
        }
        let ModelResult { decisions, report, memory, .. } = result;
        let pass = term_state.current;
        term_state.woken.insert(model.clone(), WokenGroup { pass, decisions, report, memory });
        self.memory.send_replace(Arc::new(after));
        let newest = self.parts.board.publish(published);
        drop(term_state);
        log_changes(&previous, &newest);
        Ok(Some(Woken { term, variants }))
    }

    /// What the core decides about `model` alone; `None` if that wakes no variant.
    fn decide_alone(
        &self,
        model: &GroupId,
        view: &ClusterView,
        (before, previous): (&Memory, &Published),
        (scheduler, waiting): (&Endpoint, f64),
        progress: &CurrentModel,
    ) -> Option<ModelResult> {
        let (now, policy) = (self.parts.clock.now(), self.policy());
        let in_force = self.models.in_force();
        let (own, others): (Vec<&VariantState>, Vec<&VariantState>) =
            view.variants.iter().partition(|state| is_of_model(&state.variant, model, &in_force));
        let asleep: Vec<Variant> = own
            .iter()
            .filter(|state| state.scale.is_some_and(|scale| scale.spec == Replicas::ZERO))
            .map(|state| state.variant.clone())
            .collect();
        let models: NamedModels = own
            .iter()
            .filter(|state| !state.variant.names_model())
            .map(|state| (state.variant.id.clone(), Ok(model.model.clone())))
            .collect();
        let alone = ClusterView {
            variants: own.into_iter().cloned().collect(),
            inventory: view.inventory.clone(),
            elsewhere: view.elsewhere.clone(),
            unlabelled: view.unlabelled.clone(),
            ..ClusterView::default()
        };
        let series = vec![queue(model, scheduler, Sample { at: now, value: waiting })];
        let answer = Ok(Collected { series, ..Collected::default() });
        let Assembled { mut snapshot, .. } = assemble(&alone, &models, answer, now);
        if has_shared_limits(&policy) {
            // Nothing is decided about them; what they use counts.
            snapshot.undecided = others.into_iter().map(|state| with_published(state, previous)).collect();
        }
        let own_memory = before.groups.get(model).cloned();
        let memory = Memory {
            groups: own_memory.map(|own| (model.clone(), own)).into_iter().collect(),
            ..Memory::default()
        };
        let memory = wva_core::observe_watched(&snapshot, memory, progress);
        let mut outcome = wva_core::decide_watched(&snapshot, &memory, &policy, progress);
        if !outcome.report.violations.is_empty() || !outcome.report.failed.is_empty() {
            return None; // logged by the next evaluation of all models, which finds the same
        }
        let woken = |variant: Variant| {
            let number = number(outcome.decisions.get(&variant.id)?)?;
            (number > Replicas::ZERO).then_some((variant, number))
        };
        let variants: Vec<_> = asleep.into_iter().filter_map(woken).collect();
        (!variants.is_empty()).then_some(ModelResult {
            memory: outcome.memory.groups.remove(model)?,
            report: outcome.report.groups.remove(model).unwrap_or_default(),
            decisions: outcome.decisions,
            variants,
        })
    }
}

/// Another evaluation has published since this one began.
struct Superseded;

fn is_of_model(variant: &Variant, model: &GroupId, in_force: &LearnedModels) -> bool {
    let name =
        || in_force.get(&variant.id).is_some_and(|learned| learned.is_decided && learned.name == model.model);
    variant.id.namespace == model.namespace
        && if variant.names_model() { variant.model == model.model } else { name() }
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

fn has_shared_limits(policy: &Policy) -> bool {
    let limits = &policy.limits;
    limits.inventory || !limits.quotas.is_empty() || limits.power.is_some() || limits.spend.is_some()
}

fn queue(model: &GroupId, scheduler: &Endpoint, sample: Sample) -> Series {
    let labels = Labels {
        namespace: model.namespace.as_str().into(),
        pod: scheduler.pod.as_str().into(),
        engine: "".into(),
        port: scheduler.port,
        model: Some(model.model.as_str().into()),
        destination: None,
    };
    Series { labels: Arc::new(labels), signal: Signal::SchedulerQueueSize, samples: [sample].into() }
}

/// `previous`, with the decisions about one model replaced. Its time and its number stay those of the last evaluation of all models,
/// so that the next one comes when it would have come, and readers that wait for it go on waiting for the same one.
fn published(previous: &Published, model: &GroupId, result: &ModelResult, view: &ClusterView) -> Published {
    let mut published = previous.clone();
    let ids = result.decisions.keys();
    let is_newer = |id: &&VariantId| view.revisions.get(*id) != previous.revisions.get(*id);
    if ids.clone().any(|id| is_newer(&id)) {
        let newer = ids.filter_map(|id| Some((id.clone(), view.revisions.get(id)?.clone())));
        let mut revisions = BTreeMap::clone(&previous.revisions);
        revisions.extend(newer);
        published.revisions = Arc::new(revisions);
    }
    published.decisions.extend(result.decisions.clone());
    published.report.groups.insert(model.clone(), result.report.clone());
    published
}
