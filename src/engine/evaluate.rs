//! One pass from metrics to a published result.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tracing::{Instrument, debug, error, info, info_span, warn};
use wva_core::pod_deletion_order::DeletionOrder;
use wva_core::{GroupId, Memory, Outcome, Policy, Progress, Snapshot, VariantId, pod_deletion_order};

use super::assemble::{Assembled, assemble};
use super::board::{Board, Origin, Published};
use super::breaks::Breaks;
use super::changes::log_changes;
use super::duty_cycle::DutyCycle;
use super::leadership::{Leadership, Term};
use super::overdue::{Abandoned, Current};
use super::ports::{Clock, Cluster, ClusterView, Collected, MetricSource, Scope, SourceError};
use super::recorder::{Evaluation, Recorder};
use super::restored::{Restored, adopt};
use crate::telemetry::EvaluationMetrics;

/// A source that has not answered by then is cut off: a third of the aggregator's 60 s, with room for a retry.
const COLLECT_TIMEOUT: Duration = Duration::from_secs(20);

/// What an evaluation without an answer counts as at most: waiting is no work, and with 15 s of rest (one sync of an HPA)
/// a source that is back is soon asked again.
const FAILED: Duration = Duration::from_secs(5);

/// A decision that has not ended by then is given up: 10,000 variants take a tenth of a second, and whoever reads gets the
/// last good number meanwhile.
const DECISION_TIMEOUT: Duration = Duration::from_secs(30);

/// What an evaluation works with.
pub struct Parts {
    /// Variants and pods.
    pub cluster: Arc<dyn Cluster>,
    /// Signals.
    pub source: Arc<dyn MetricSource>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Where results go.
    pub board: Board,
    /// Who may evaluate.
    pub leadership: watch::Receiver<Leadership>,
    /// What is counted.
    pub metrics: EvaluationMetrics,
}

/// The one place that evaluates.
pub struct Engine {
    parts: Parts,
    policy: ArcSwap<Policy>,
    /// What is remembered, for whoever keeps it.
    memory: watch::Sender<Arc<Memory>>,
    /// Locked while what was decided is published, never while anything is decided: threads that answer come by here.
    office: Mutex<Office>,
    abandoned: Abandoned,
    decision_timeout: Duration,
    /// What is wrong with the source, as last logged.
    trouble: Mutex<Option<String>>,
    breaks: Breaks,
    duty: DutyCycle,
    /// Who keeps evaluations, if anybody does.
    recorder: Option<Arc<dyn Recorder>>,
    /// Whether anybody wants to know which pods go first.
    names_victims: bool,
    /// Who is told which model is decided about, if anybody is.
    observer: Option<Arc<dyn Progress + Send + Sync>>,
}

/// In whose name decisions are made.
#[derive(Default)]
struct Office {
    /// The term whose memory this is; `None` until one was taken over.
    term: Option<Term>,
    /// True when there will be no other term.
    resigned: bool,
    /// The term that was ended while the lease was still ours: its numbers are the last ones until somebody else has it.
    handed_over: Option<Term>,
    /// The evaluation that may publish: the last one that was begun, unless it was given up.
    current: u64,
}

/// One evaluation under way.
struct Pass {
    number: u64,
    term: Option<Term>,
    started: Instant,
    /// What is asked for and what is decided by are one policy, whatever is set meanwhile.
    policy: Arc<Policy>,
    /// What it is working on.
    current: Arc<Current>,
}

/// What came out of a decision.
struct Made {
    outcome: Outcome,
    victims: BTreeMap<VariantId, DeletionOrder>,
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
            memory: watch::Sender::default(),
            office: Mutex::default(),
            abandoned: Abandoned::default(),
            decision_timeout: DECISION_TIMEOUT,
            trouble: Mutex::default(),
            breaks: Breaks::default(),
            duty: DutyCycle::default(),
            recorder: None,
            names_victims: false,
            observer: None,
        }
    }

    /// The same engine, which hands every evaluation to `recorder`.
    #[must_use]
    pub fn recorded_by(self, recorder: Arc<dyn Recorder>) -> Self {
        Self { recorder: Some(recorder), ..self }
    }

    /// The same engine, which says of every evaluation which pods go first, and reads the metrics that this takes.
    #[must_use]
    pub fn naming_victims(self, names_victims: bool) -> Self {
        Self { names_victims, ..self }
    }

    /// The same engine, which gives a decision up after this long instead of 30 s.
    #[must_use]
    pub fn giving_up_after(self, decision_timeout: Duration) -> Self {
        Self { decision_timeout, ..self }
    }

    /// The same engine, which tells `observer` on the thread of each decision which model it is about.
    #[must_use]
    pub fn observed_by(self, observer: Arc<dyn Progress + Send + Sync>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// The current policy.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    /// Replaces the policy: the next evaluation has it.
    pub fn set_policy(&self, policy: Policy) {
        self.policy.store(Arc::new(policy));
    }

    /// What is remembered, after every decision.
    #[must_use]
    pub fn memory(&self) -> watch::Receiver<Arc<Memory>> {
        self.memory.subscribe()
    }

    /// Starts `term` from what an earlier holder left. Nothing is evaluated in a term before this. The board shows what was
    /// left, so that a restart hides no number until the first evaluation is done, and who had the lease before shows no number
    /// of then: somebody else may have decided since.
    pub fn take_over(&self, restored: Restored, term: Term) {
        let mut office = self.office.lock();
        if office.resigned {
            return;
        }
        let newest = self.parts.board.newest();
        let left = Published { sequence: newest.sequence + 1, ..Published::empty() };
        if !restored.decisions.is_empty() {
            let (at, decisions) = (self.parts.clock.now(), restored.decisions.clone());
            self.parts.board.publish(Published { at, origin: Origin::Restored, decisions, ..left });
        } else if newest.origin == Origin::Computed && newest.term.as_ref() != Some(&term) {
            self.parts.board.publish(left);
        }
        self.memory.send_replace(Arc::new(adopt(restored)));
        office.term = Some(term);
    }

    /// Ends the term, for good: nothing is decided any more, and reads get the newest result. What is published when this
    /// returns is the last of it; the next holder can start from that.
    pub fn resign(&self) {
        let mut office = self.office.lock();
        let term = office.term.take();
        if !office.resigned {
            office.handed_over = term.filter(|term| self.is_mine(term));
        }
        office.resigned = true;
    }

    /// True while this instance may answer with `published`. A number of its own it may answer in the term that made it, as
    /// long as the lease is its own by its own clock, and after it has given the lease up. When the lease ran out, somebody
    /// else may decide otherwise: then neither that number nor what was written down of it is an answer, until it is known who
    /// decides. What others have written down is one.
    #[must_use]
    pub fn may_answer(&self, published: &Published) -> bool {
        let office = self.office.lock();
        let leadership = self.parts.leadership.borrow();
        let (holds, made, now) = (leadership.is_mine(), published.term.as_ref(), leadership.term());
        match published.origin {
            Origin::Empty => true,
            Origin::Computed => {
                (holds && (made.is_none() || made == now.as_ref()))
                    || (made.is_some() && made == office.handed_over.as_ref())
            }
            Origin::Restored => {
                let own = made.is_some() && made == office.term.as_ref();
                holds || !own || now.is_some_and(|now| Some(&now) != made)
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

    /// The term this instance may decide in now.
    fn current_term(&self) -> Option<Term> {
        let taken_over = self.office.lock().term.clone();
        taken_over.filter(|term| self.is_mine(term))
    }

    /// True while the lease is ours in `term`.
    fn is_mine(&self, term: &Term) -> bool {
        let leadership = self.parts.leadership.borrow();
        leadership.is_mine() && leadership.term().as_ref() == Some(term)
    }

    /// One pass. Publishes nothing when the lease was lost on the way.
    pub async fn evaluate(self: &Arc<Self>) -> Arc<Published> {
        let (started, term, policy) = (Instant::now(), self.current_term(), self.policy());
        let number = {
            let mut office = self.office.lock();
            office.current += 1;
            office.current
        };
        let answer = self.collect(&self.parts.cluster.view(), &policy).await;
        let current = Arc::new(Current::new(self.observer.clone()));
        let (engine, pass) =
            (Arc::clone(self), Pass { number, term, started, policy, current: current.clone() });
        // Away from the threads that answer reads: thousands of variants are tens of milliseconds.
        let mut concluding = tokio::task::spawn_blocking(move || engine.conclude(answer, pass));
        let concluded = match timeout(self.decision_timeout, &mut concluding).await {
            Ok(concluded) => concluded,
            Err(_) => match self.abandon(concluding, current.keeper(self.decision_timeout)) {
                Ok(()) => {
                    // The next one is about all other models, and they have waited long enough.
                    self.duty.rest_from(started.elapsed().min(FAILED));
                    return self.parts.board.newest();
                }
                Err(concluding) => concluding.await,
            },
        };
        concluded.unwrap_or_else(|failure| {
            error!(failure = failure.to_string().as_str(), "evaluation died");
            self.duty.rest_from(started.elapsed());
            self.parts.board.newest()
        })
    }

    /// Gives a decision up that takes too long, so that the next evaluation can begin: whatever it comes to is not published.
    /// `keeper`, the model that keeps it, is held from now on as one that broke.
    fn abandon(
        &self,
        deciding: JoinHandle<Arc<Published>>,
        keeper: Option<GroupId>,
    ) -> Result<(), JoinHandle<Arc<Published>>> {
        self.parts.metrics.overdue();
        let seconds = self.decision_timeout.as_secs_f64();
        let model = keeper.as_ref().map(ToString::to_string).unwrap_or_default();
        if let Err(deciding) = self.abandoned.leave(deciding, keeper.clone()) {
            error!(
                seconds,
                model,
                "a decision is overdue, and so are several before it: it is waited for; please report this"
            );
            return Err(deciding);
        }
        error!(
            seconds,
            model, "a decision is overdue and given up; the last numbers are held; please report this"
        );
        let mut office = self.office.lock();
        office.current += 1;
        if let Some(keeper) = keeper
            && office.term.is_some()
        {
            self.parts.metrics.failed(1);
            let mut memory = Memory::clone(&self.memory.borrow());
            self.hold_overdue(&mut memory, &keeper, self.parts.clock.now());
            self.memory.send_replace(Arc::new(memory));
        }
        Ok(())
    }

    fn hold_overdue(&self, memory: &mut Memory, keeper: &GroupId, now: Timestamp) {
        let cause = format!("it had not ended after {} s", self.decision_timeout.as_secs_f64());
        wva_core::give_up(memory, keeper, now, &cause);
    }

    /// What is remembered, where models whose decision still keeps a thread are held.
    fn remembered(&self, now: Timestamp) -> Arc<Memory> {
        let before = self.memory.borrow().clone();
        let keepers = self.abandoned.keepers();
        if keepers.is_empty() {
            return before;
        }
        let mut memory = Memory::clone(&before);
        keepers.iter().for_each(|keeper| self.hold_overdue(&mut memory, keeper, now));
        Arc::new(memory)
    }

    /// From what the source answered to what is published.
    fn conclude(&self, answer: Result<Collected, SourceError>, pass: Pass) -> Arc<Published> {
        let error = answer.as_ref().err().map(|error| error.kind);
        // Looked at again: pods that went while the source was answering are ghosts now.
        let view = self.parts.cluster.view();
        let Assembled { snapshot, broken } = assemble(&view, answer, self.parts.clock.now());
        self.parts.metrics.failed(broken.len());
        self.breaks.tell(broken);
        let still = self.current_term().filter(|now| Some(now) == pass.term.as_ref());
        let made = still.is_some().then(|| self.decide(&snapshot, &pass));
        let took = pass.started.elapsed();
        let office = self.office.lock();
        if office.current != pass.number {
            // Given up, or overtaken by one that was begun since.
            return self.parts.board.newest();
        }
        self.parts.metrics.evaluated(took, error);
        // Before anybody can see the result and ask for a newer one.
        self.duty.rest_from(if error.is_none() { took } else { took.min(FAILED) });
        let previous = self.parts.board.newest();
        // The term may have ended meanwhile: its memory is somebody else's then.
        let may_publish = office.term.is_some() && office.term == still;
        let Some(made) =
            made.filter(|_| may_publish && office.term.as_ref().is_some_and(|term| self.is_mine(term)))
        else {
            return previous;
        };
        self.memory.send_replace(made.after.clone());
        let newest = self.parts.board.publish(Published {
            sequence: previous.sequence + 1,
            at: snapshot.now,
            took,
            origin: Origin::Computed,
            term: still,
            decisions: made.outcome.decisions,
            report: made.outcome.report,
            victims: made.victims,
        });
        drop(office);
        self.tell(&newest);
        log_changes(&previous, &newest);
        if let Some(recorder) = &self.recorder {
            let (before, after, published) = (made.before, made.after, newest.clone());
            recorder.record(Arc::new(Evaluation { snapshot, before, policy: pass.policy, published, after }));
        }
        newest
    }

    async fn collect(&self, view: &ClusterView, policy: &Policy) -> Result<Collected, SourceError> {
        let namespaces: BTreeSet<_> = view.variants.iter().map(|state| &state.variant.id.namespace).collect();
        let namespaces = namespaces.into_iter().map(ToString::to_string).collect();
        let variants = view.variants.iter().map(|state| &state.variant);
        let mut needs = wva_core::required_signals(policy, variants);
        if self.names_victims {
            needs.signals.extend(pod_deletion_order::REQUIRED_SIGNALS);
        }
        let scope = Scope { namespaces, endpoints: view.endpoints.clone(), needs: Some(needs) };
        let reading = self.parts.source.collect(&scope).instrument(info_span!("collect"));
        let answer = timeout(COLLECT_TIMEOUT, reading).await.unwrap_or_else(|_| {
            let seconds = COLLECT_TIMEOUT.as_secs();
            let message = format!("the metric source did not answer within {seconds} s");
            Err(SourceError { kind: "timeout", message })
        });
        if let Ok(collected) = &answer {
            self.parts.metrics.bad_samples(collected.bad_samples);
            self.parts.metrics.dropped_series(collected.dropped_series);
            for gap in &collected.gaps {
                debug!(namespace = gap.namespace, reason = gap.reason, "partial answer");
            }
        }
        self.log_trouble(answer.as_ref().err());
        answer
    }

    /// One line when the source fails, fails otherwise or recovers; none for every failed pass of an outage.
    fn log_trouble(&self, error: Option<&SourceError>) {
        let now = error.map(|error| error.message.clone());
        let mut told = self.trouble.lock();
        if *told == now {
            return;
        }
        match error {
            Some(error) => warn!(kind = error.kind, error = error.message.as_str(), "metric source failed"),
            None => info!("metric source answers again"),
        }
        *told = now;
    }

    /// Decides. What was remembered is replaced by what it is with `snapshot` observed: to observe it again changes nothing, and
    /// there is one copy fewer while what comes out is made.
    fn decide(&self, snapshot: &Snapshot, pass: &Pass) -> Made {
        let before = self.remembered(snapshot.now);
        let observed = wva_core::observe_watched(snapshot, Memory::clone(&before), &*pass.current);
        let before = self.keep_observed(before, Arc::new(observed), pass);
        let mut outcome = wva_core::decide_watched(snapshot, &before, &pass.policy, &*pass.current);
        let after = Arc::new(std::mem::take(&mut outcome.memory));
        let victims =
            self.names_victims.then(|| pod_deletion_order::deletion_orders(snapshot, &outcome.decisions));
        Made { outcome, victims: victims.unwrap_or_default(), before, after }
    }

    /// `observed`, remembered from now on in the place of `before`, unless something else is remembered meanwhile: then the pass
    /// comes to nothing.
    fn keep_observed(&self, before: Arc<Memory>, observed: Arc<Memory>, pass: &Pass) -> Arc<Memory> {
        let office = self.office.lock();
        self.memory.send_if_modified(|memory| {
            if office.current == pass.number && Arc::ptr_eq(memory, &before) {
                *memory = observed.clone();
            }
            false // nobody is told: nothing was decided
        });
        observed
    }

    /// Logs and counts what went wrong in an evaluation. Texts of tenants are in it: as values of fields they are escaped.
    fn tell(&self, Published { at, report, .. }: &Published) {
        for what in &report.dropped {
            warn!(what = what.as_str(), "memory dropped");
        }
        for violation in &report.violations {
            warn!(violation = violation.to_string().as_str(), "decision withheld by the checker");
        }
        let now: Vec<_> = report.failed.iter().filter(|model| model.failed.at == *at).collect();
        for failure in &now {
            error!(
                failure = failure.to_string().as_str(),
                "a model cannot be decided about; its numbers are held"
            );
        }
        self.parts.metrics.dropped(report.dropped.len());
        self.parts.metrics.violations(report.violations.len());
        self.parts.metrics.failed(now.len());
    }
}
