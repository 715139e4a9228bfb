//! One evaluation: from metrics to a published result.

mod wake;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tracing::{Instrument, debug, error, info, info_span, warn};
use wva_core::isolate::caught;
use wva_core::pod_deletion_order::DeletionOrder;
use wva_core::usage::Usage;
use wva_core::{GroupId, Memory, Outcome, Policy, Progress, Snapshot, VariantId, pod_deletion_order};

use super::assemble::{Assembled, assemble};
use super::board::{Board, Origin, Published};
use super::changes::log_changes;
use super::duty_cycle::DutyCycle;
use super::join_failure::JoinFailureLog;
use super::leadership::{Leadership, Term};
use super::model_names::{LearnedModels, ModelNames, with_models};
use super::overdue::{AbandonedDecisions, CurrentModel};
use super::ports::{Clock, Cluster, ClusterView, Collected, MetricSource, Scope, SourceError};
use super::recorder::{Evaluation, Recorder};
use super::restored::{Restored, adopt};
use super::term_state::{Outcomes, TermState, has_shared_limits, keep_awake};
use crate::telemetry::EvaluationMetrics;

/// Longest wait for the metric source: a third of the aggregator's 60 s, so that a retry fits in.
const COLLECT_TIMEOUT: Duration = Duration::from_secs(20);

/// The most that an evaluation without an answer counts for the duty cycle: waiting is no work. It leads to 15 s of rest (one
/// sync of an HPA), so that a source that has recovered is soon queried again.
const MAX_FAILED_DURATION: Duration = Duration::from_secs(5);

/// A decision that takes longer is abandoned, and readers continue with the last good numbers. 10,000 variants take 0.1 s.
const DECISION_TIMEOUT: Duration = Duration::from_secs(30);

/// What an evaluation works with.
pub struct Parts {
    /// Variants and pods.
    pub cluster: Arc<dyn Cluster>,
    /// Signals.
    pub source: Arc<dyn MetricSource>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Where results are published.
    pub board: Board,
    /// Who may evaluate.
    pub leadership: watch::Receiver<Leadership>,
    /// The program's own metrics.
    pub metrics: EvaluationMetrics,
}

/// Evaluates. There is one in the program.
pub struct Engine {
    parts: Parts,
    policy: ArcSwap<Policy>,
    models: ModelNames,
    /// The memory after the last decision.
    memory: watch::Sender<Arc<Memory>>,
    /// Locked while a result is published, never while anything is decided: threads that answer requests lock it too.
    term_state: Mutex<TermState>,
    abandoned: AbandonedDecisions,
    decision_timeout: Duration,
    /// The error of the metric source that was logged last.
    source_error: Mutex<Option<String>>,
    join_failures: JoinFailureLog,
    duty: DutyCycle,
    recorder: Option<Arc<dyn Recorder>>,
    /// Whether results say which pods are deleted first.
    needs_deletion_orders: bool,
    /// Learns which model is being decided.
    observer: Option<Arc<dyn Progress + Send + Sync>>,
}

/// A running evaluation.
struct Pass {
    number: u64,
    term: Option<Term>,
    started: Instant,
    /// For both the query and the decision, whatever is set meanwhile.
    policy: Arc<Policy>,
    /// Read before the policy, which therefore contains the settings of their variants.
    models: Arc<LearnedModels>,
    current: Arc<CurrentModel>,
}

/// The result of a decision.
struct DecisionResult {
    outcome: Outcome,
    deletion_orders: BTreeMap<VariantId, DeletionOrder>,
    usage: BTreeMap<VariantId, Usage>,
    before: Arc<Memory>,
    after: Arc<Memory>,
}

impl Engine {
    /// An engine that remembers nothing yet.
    #[must_use]
    pub fn new(parts: Parts, policy: Policy) -> Self {
        Self {
            parts,
            policy: ArcSwap::from_pointee(policy),
            models: ModelNames::default(),
            memory: watch::Sender::default(),
            term_state: Mutex::default(),
            abandoned: AbandonedDecisions::default(),
            decision_timeout: DECISION_TIMEOUT,
            source_error: Mutex::default(),
            join_failures: JoinFailureLog::default(),
            duty: DutyCycle::default(),
            recorder: None,
            needs_deletion_orders: false,
            observer: None,
        }
    }

    /// The same engine, which passes every evaluation to `recorder`.
    #[must_use]
    pub fn with_recorder(self, recorder: Arc<dyn Recorder>) -> Self {
        Self { recorder: Some(recorder), ..self }
    }

    /// The same engine, whose results say which pods are deleted first if `needs_deletion_orders`; it queries the metrics for
    /// that too.
    #[must_use]
    pub fn with_deletion_orders(self, needs_deletion_orders: bool) -> Self {
        Self { needs_deletion_orders, ..self }
    }

    /// The same engine, which abandons a decision after this long instead of 30 s.
    #[must_use]
    pub fn with_decision_timeout(self, decision_timeout: Duration) -> Self {
        Self { decision_timeout, ..self }
    }

    /// The same engine, which reports to `observer`, on the thread of each decision, which model is being decided.
    #[must_use]
    pub fn with_observer(self, observer: Arc<dyn Progress + Send + Sync>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// The current policy.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    /// Replaces the policy from the next evaluation on.
    pub fn set_policy(&self, policy: Policy) {
        self.policy.store(Arc::new(policy));
    }

    /// The models of variants that name none.
    #[must_use]
    pub const fn models(&self) -> &ModelNames {
        &self.models
    }

    /// The memory after every decision.
    #[must_use]
    pub fn memory(&self) -> watch::Receiver<Arc<Memory>> {
        self.memory.subscribe()
    }

    /// Starts `term` from what an earlier leader left; nothing is evaluated in the term before this. Publishes what was left, so
    /// that no number is missing until the first evaluation ends. Where nothing was left, this instance's numbers from an earlier
    /// term are withdrawn: another leader may have decided since.
    pub fn take_over(&self, restored: Restored, term: Term) {
        let mut term_state = self.term_state.lock();
        if term_state.resigned {
            return;
        }
        let newest = self.parts.board.newest();
        let empty = Published { sequence: newest.sequence + 1, ..Published::empty() };
        if !restored.decisions.is_empty() {
            let (at, decisions) = (self.parts.clock.now(), restored.decisions.clone());
            self.parts.board.publish(Published { at, origin: Origin::Restored, decisions, ..empty });
        } else if newest.origin == Origin::Computed && newest.term.as_ref() != Some(&term) {
            self.parts.board.publish(empty);
        }
        self.memory.send_replace(Arc::new(adopt(restored)));
        term_state.woken.clear();
        term_state.term = Some(term);
    }

    /// Ends the term for good: nothing is decided any more, and reads get the newest result. What is published when this returns
    /// is final; the next leader can start from it.
    pub fn resign(&self) {
        let mut term_state = self.term_state.lock();
        let term = term_state.term.take();
        if !term_state.resigned {
            term_state.handed_over = term.filter(|term| self.is_mine(term));
        }
        term_state.resigned = true;
    }

    /// True while this instance may answer with `published`. With a number of its own it may while it holds the lease, by its own
    /// clock, in the term of that number, and after it has released the lease. When the lease has expired, another leader may
    /// decide differently: then neither that number nor its state object is an answer until the leader is known. State objects
    /// of other leaders always are.
    #[must_use]
    pub fn may_answer(&self, published: &Published) -> bool {
        let term_state = self.term_state.lock();
        let leadership = self.parts.leadership.borrow();
        let is_leader = leadership.is_mine();
        let computed_in = published.term.as_ref();
        let now = leadership.term();
        match published.origin {
            Origin::Empty => true,
            Origin::Computed => {
                (is_leader && (computed_in.is_none() || computed_in == now.as_ref()))
                    || (computed_in.is_some() && computed_in == term_state.handed_over.as_ref())
            }
            Origin::Restored => {
                let is_own = computed_in.is_some() && computed_in == term_state.term.as_ref();
                is_leader || !is_own || now.is_some_and(|now| Some(&now) != computed_in)
            }
        }
    }

    /// When evaluations may start.
    pub(super) fn duty(&self) -> &DutyCycle {
        &self.duty
    }

    pub(super) fn parts(&self) -> &Parts {
        &self.parts
    }

    /// True when this instance may decide and has seen the cluster.
    #[must_use]
    pub fn can_evaluate(&self) -> bool {
        self.current_term().is_some() && self.parts.cluster.view().synced
    }

    /// The term in which this instance may decide now.
    fn current_term(&self) -> Option<Term> {
        let taken_over = self.term_state.lock().term.clone();
        taken_over.filter(|term| self.is_mine(term))
    }

    /// True while the lease is ours in `term`.
    fn is_mine(&self, term: &Term) -> bool {
        let leadership = self.parts.leadership.borrow();
        leadership.is_mine() && leadership.term().as_ref() == Some(term)
    }

    /// Evaluates once. Publishes nothing if the lease is lost meanwhile.
    pub async fn evaluate(self: &Arc<Self>) -> Arc<Published> {
        let started = Instant::now();
        let term = self.current_term();
        let models = self.models.in_force();
        let policy = self.policy();
        let number = {
            let mut term_state = self.term_state.lock();
            term_state.current += 1;
            term_state.current
        };
        // Not the view itself: there are newer ones while the source answers.
        let scope = self.scope(&self.parts.cluster.view(), &policy, &models);
        let answer = self.collect(scope).await;
        let current = Arc::new(CurrentModel::new(self.observer.clone()));
        let engine = Arc::clone(self);
        let pass = Pass { number, term, started, policy, models, current: current.clone() };
        // Not on the threads that answer reads: thousands of variants take tens of milliseconds.
        let mut concluding = tokio::task::spawn_blocking(move || engine.conclude(answer, pass));
        let concluded = match timeout(self.decision_timeout, &mut concluding).await {
            Ok(concluded) => concluded,
            Err(_) => match self.abandon(concluding, current.stuck_model(self.decision_timeout)) {
                Ok(()) => {
                    // The next evaluation decides about all other models, which have waited long enough.
                    self.duty.rest_from(started.elapsed().min(MAX_FAILED_DURATION));
                    return self.parts.board.newest();
                }
                Err(concluding) => concluding.await,
            },
        };
        concluded.unwrap_or_else(|failure| {
            error!(failure = failure.to_string().as_str(), "an evaluation panicked");
            self.duty.rest_from(started.elapsed());
            self.parts.board.newest()
        })
    }

    /// Abandons a decision that takes too long, so that the next evaluation can start; its result is not published. The model
    /// it is stuck at is held from now on like one that failed.
    fn abandon(
        &self,
        deciding: JoinHandle<Arc<Published>>,
        stuck: Option<GroupId>,
    ) -> Result<(), JoinHandle<Arc<Published>>> {
        self.parts.metrics.overdue();
        let seconds = self.decision_timeout.as_secs_f64();
        let model = stuck.as_ref().map(ToString::to_string).unwrap_or_default();
        if !self.abandoned.add(deciding.abort_handle(), stuck.clone()) {
            error!(
                seconds,
                model,
                "a decision is overdue, and so are several earlier ones: waiting for it; please report this"
            );
            return Err(deciding);
        }
        error!(
            seconds,
            model, "a decision is overdue and abandoned; the last numbers are held; please report this"
        );
        let mut term_state = self.term_state.lock();
        term_state.current += 1;
        if let Some(stuck) = stuck
            && term_state.term.is_some()
        {
            self.parts.metrics.failed(1);
            let mut memory = Memory::clone(&self.memory.borrow());
            self.hold_overdue(&mut memory, &stuck, self.parts.clock.now());
            self.memory.send_replace(Arc::new(memory));
        }
        Ok(())
    }

    fn hold_overdue(&self, memory: &mut Memory, model: &GroupId, now: Timestamp) {
        let cause = format!("it had not ended after {} s", self.decision_timeout.as_secs_f64());
        wva_core::give_up(memory, model, now, &cause);
    }

    /// The memory, in which models are held whose abandoned decision still runs.
    fn memory_before(&self, now: Timestamp) -> Arc<Memory> {
        let before = self.memory.borrow().clone();
        let stuck = self.abandoned.stuck_models();
        if stuck.is_empty() {
            return before;
        }
        let mut memory = Memory::clone(&before);
        stuck.iter().for_each(|model| self.hold_overdue(&mut memory, model, now));
        Arc::new(memory)
    }

    /// Decides with the answer of the source, and publishes.
    fn conclude(&self, answer: Result<Collected, SourceError>, pass: Pass) -> Arc<Published> {
        let error = answer.as_ref().err().map(|error| error.kind);
        // The view again: pods may have been deleted while the source was answering.
        let view = self.parts.cluster.view();
        let models = self.models.learn(&view, &answer, &self.parts.board.newest(), &pass.models);
        let now = self.parts.clock.now();
        let Assembled { snapshot, failures, unattributed } = assemble(&view, &models, answer, now);
        self.parts.metrics.failed(failures.len());
        self.parts.metrics.unattributed(&unattributed);
        self.join_failures.report(failures);
        let term = self.current_term().filter(|now| Some(now) == pass.term.as_ref());
        let result = term.is_some().then(|| self.decide(&snapshot, &pass));
        let took = pass.started.elapsed();
        let mut term_state = self.term_state.lock();
        if term_state.current != pass.number {
            // Abandoned, or a later evaluation has started.
            return self.parts.board.newest();
        }
        self.parts.metrics.evaluated(took, error);
        // Before a reader can see the result and request a newer one.
        self.duty.rest_from(if error.is_none() { took } else { took.min(MAX_FAILED_DURATION) });
        let previous = self.parts.board.newest();
        // The term may have ended meanwhile, and the memory may be of another one.
        let may_publish = term_state.term.is_some() && term_state.term == term;
        let Some(mut result) =
            result.filter(|_| may_publish && term_state.term.as_ref().is_some_and(|term| self.is_mine(term)))
        else {
            return previous;
        };
        let woken = term_state.take_woken(pass.number, &result.outcome.decisions, &view.revisions);
        if term_state.repeats(&woken, has_shared_limits(&pass.policy, &view)) {
            return previous;
        }
        // With the decisions of another snapshot in it, it cannot be replayed.
        let recorder = self.recorder.as_ref().filter(|_| woken.is_empty());
        let Outcome { decisions, report, .. } = &mut result.outcome;
        keep_awake(woken, Outcomes { decisions, report, memory: &mut result.after });
        self.memory.send_replace(result.after.clone());
        let newest = self.parts.board.publish(Published {
            sequence: previous.sequence + 1,
            at: snapshot.now,
            took,
            origin: Origin::Computed,
            term,
            decisions: result.outcome.decisions,
            report: result.outcome.report,
            deletion_orders: result.deletion_orders,
            usage: result.usage,
            revisions: view.revisions.clone(),
            policy: pass.policy,
        });
        drop(term_state);
        self.report(&newest);
        log_changes(&previous, &newest);
        if let Some(recorder) = recorder {
            let DecisionResult { before, after, .. } = result;
            let evaluation = Evaluation { snapshot, before, published: newest.clone(), after };
            recorder.record(Arc::new(evaluation));
        }
        newest
    }

    /// What the evaluation needs of the source.
    fn scope(&self, view: &ClusterView, policy: &Policy, models: &LearnedModels) -> Scope {
        let namespaces = view.variants.iter().map(|state| state.variant.id.namespace.to_string()).collect();
        let variants = with_models(view, models);
        let mut needs = wva_core::required_signals(policy, variants.iter().map(AsRef::as_ref));
        if self.needs_deletion_orders {
            needs.signals.extend(pod_deletion_order::REQUIRED_SIGNALS);
        }
        let schedulers = super::schedulers::schedulers(view, &variants);
        Scope { namespaces, endpoints: view.endpoints.clone(), schedulers, needs: Some(needs) }
    }

    async fn collect(&self, scope: Scope) -> Result<Collected, SourceError> {
        let started = Instant::now();
        let query = self.parts.source.collect(&scope).instrument(info_span!("collect"));
        let answer = timeout(COLLECT_TIMEOUT, query).await.unwrap_or_else(|_| {
            let seconds = COLLECT_TIMEOUT.as_secs();
            let message = format!("the metric source did not answer within {seconds} s");
            Err(SourceError { kind: "timeout", message })
        });
        self.parts.metrics.collected(started.elapsed(), answer.as_ref().err().map(|error| error.kind));
        if let Ok(collected) = &answer {
            self.parts.metrics.bad_samples(collected.bad_samples);
            self.parts.metrics.dropped_series(collected.dropped_series);
            for gap in &collected.gaps {
                debug!(namespace = gap.namespace, reason = gap.reason, "partial answer");
            }
        }
        self.log_source_error(answer.as_ref().err());
        answer
    }

    /// Logs when the source fails, fails differently or recovers, not at every failed evaluation of an outage.
    fn log_source_error(&self, error: Option<&SourceError>) {
        let now = error.map(|error| error.message.clone());
        let mut logged = self.source_error.lock();
        if *logged == now {
            return;
        }
        match error {
            Some(error) => warn!(kind = error.kind, error = error.message.as_str(), "metric source failed"),
            None => info!("metric source answers again"),
        }
        *logged = now;
    }

    /// Decides. The memory is replaced by the one after observing `snapshot`: observing it again changes nothing, and this saves
    /// a copy of the memory.
    fn decide(&self, snapshot: &Snapshot, pass: &Pass) -> DecisionResult {
        let before = self.memory_before(snapshot.now);
        let observed = wva_core::observe_watched(snapshot, Memory::clone(&before), &*pass.current);
        let before = self.keep_observed(before, Arc::new(observed), pass);
        let mut outcome = wva_core::decide_watched(snapshot, &before, &pass.policy, &*pass.current);
        let after = Arc::new(std::mem::take(&mut outcome.memory));
        let deletion_orders = self
            .needs_deletion_orders
            .then(|| pod_deletion_order::deletion_orders(snapshot, &outcome.decisions));
        let deletion_orders = deletion_orders.unwrap_or_default();
        // For metrics only: whatever fails here, the numbers are published.
        let usage = caught(|| wva_core::usage::usage(snapshot, &pass.policy)).unwrap_or_default();
        DecisionResult { outcome, deletion_orders, usage, before, after }
    }

    /// Replaces the memory `before` by `observed`, unless the memory has changed meanwhile: then this evaluation will not be
    /// published.
    fn keep_observed(&self, before: Arc<Memory>, observed: Arc<Memory>, pass: &Pass) -> Arc<Memory> {
        let term_state = self.term_state.lock();
        self.memory.send_if_modified(|memory| {
            if term_state.current == pass.number && Arc::ptr_eq(memory, &before) {
                *memory = observed.clone();
            }
            false // wakes no reader: nothing was decided
        });
        observed
    }

    /// Logs and counts what went wrong in an evaluation. Parts are texts of tenants: as values of fields they are escaped.
    fn report(&self, Published { at, report, .. }: &Published) {
        for what in &report.dropped {
            warn!(what = what.as_str(), "memory dropped");
        }
        for violation in &report.violations {
            warn!(violation = violation.to_string().as_str(), "decision withheld by the checker");
        }
        let failed: Vec<_> = report.failed.iter().filter(|model| model.failed.at == *at).collect();
        for failure in &failed {
            error!(failure = failure.to_string().as_str(), "a model cannot be decided; its numbers are held");
        }
        self.parts.metrics.dropped(report.dropped.len());
        self.parts.metrics.violations(report.violations.len());
        self.parts.metrics.failed(failed.len());
    }
}
