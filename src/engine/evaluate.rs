//! One pass from metrics to a published result.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{Instrument, debug, error, info, info_span, warn};
use wva_core::decision::Verdict;
use wva_core::{Memory, Outcome, Policy, Snapshot, victims};

use super::assemble::assemble;
use super::board::{Board, Origin, Published};
use super::duty::Duty;
use super::leadership::{Leadership, Term};
use super::ports::{Clock, Cluster, ClusterView, Collected, MetricSource, Scope, SourceError};
use super::recorder::{Evaluation, Recorder};
use super::takeover::{Restored, adopt};
use crate::telemetry::EvaluationMetrics;

/// A source that has not answered by then is cut off: a third of the aggregator's 60 s, with room for a retry.
const COLLECT_TIMEOUT: Duration = Duration::from_secs(20);

/// What an evaluation without an answer counts as at most: waiting is no work, and with 15 s of rest (one sync of an HPA)
/// a source that is back is soon asked again.
const FAILED: Duration = Duration::from_secs(5);

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
    /// Locked from a decision that replaces the memory until it is published.
    office: Mutex<Office>,
    /// What is wrong with the source, as last logged.
    trouble: Mutex<Option<String>>,
    duty: Duty,
    /// Who keeps evaluations, if anybody does.
    recorder: Option<Arc<dyn Recorder>>,
    /// Whether anybody wants to know which pods go first.
    names_victims: bool,
}

/// In whose name decisions are made.
#[derive(Default)]
struct Office {
    /// The term whose memory this is; `None` until one was taken over.
    term: Option<Term>,
    /// True when there will be no other term.
    resigned: bool,
}

/// What a decision was made from beside the snapshot, and what it left.
struct MadeFrom {
    before: Arc<Memory>,
    policy: Arc<Policy>,
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
            trouble: Mutex::default(),
            duty: Duty::default(),
            recorder: None,
            names_victims: false,
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

    /// Starts `term` from what an earlier holder left. Nothing is evaluated in a term before this. An empty board
    /// shows what was left, so that a restart hides no number until the first evaluation is done.
    pub fn take_over(&self, restored: Restored, term: Term) {
        let mut office = self.office.lock();
        if office.resigned {
            return;
        }
        if self.parts.board.newest().origin == Origin::Empty && !restored.decisions.is_empty() {
            self.parts.board.publish(Published {
                at: self.parts.clock.now(),
                origin: Origin::Restored,
                decisions: restored.decisions.clone(),
                ..Published::empty()
            });
        }
        self.memory.send_replace(Arc::new(adopt(restored)));
        office.term = Some(term);
    }

    /// Ends the term, for good: nothing is decided any more, and reads get the newest result. What is published when this
    /// returns is the last of it; the next holder can start from that.
    pub fn resign(&self) {
        *self.office.lock() = Office { term: None, resigned: true };
    }

    /// When evaluations may start.
    pub(super) fn duty(&self) -> &Duty {
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
        let leadership = self.parts.leadership.borrow();
        leadership.term().filter(|term| leadership.is_mine() && taken_over.as_ref() == Some(term))
    }

    /// One pass. Publishes nothing when the lease was lost on the way.
    pub async fn evaluate(self: &Arc<Self>) -> Arc<Published> {
        let started = Instant::now();
        let term = self.current_term();
        // What is asked for and what is decided by are one policy, whatever is set meanwhile.
        let policy = self.policy();
        let answer = self.collect(&self.parts.cluster.view(), &policy).await;
        let engine = Arc::clone(self);
        // Away from the threads that answer reads: thousands of variants are tens of milliseconds.
        let concluded = tokio::task::spawn_blocking(move || engine.conclude(answer, term, started, policy));
        concluded.await.unwrap_or_else(|failure| {
            error!(%failure, "evaluation died");
            self.duty.rest_from(started.elapsed());
            self.parts.board.newest()
        })
    }

    /// From what the source answered to what is published.
    fn conclude(
        &self,
        answer: Result<Collected, SourceError>,
        term: Option<Term>,
        started: Instant,
        policy: Arc<Policy>,
    ) -> Arc<Published> {
        let error = answer.as_ref().err().map(|error| error.kind);
        // Looked at again: pods that went while the source was answering are ghosts now.
        let view = self.parts.cluster.view();
        let snapshot = assemble(&view, answer, self.parts.clock.now());
        let still = self.current_term().filter(|now| Some(now) == term.as_ref());
        // Until the result is published: whoever resigns meanwhile waits for it.
        let office = self.office.lock();
        let decided = (still.is_some() && office.term == still).then(|| self.decide(&snapshot, policy));
        let took = started.elapsed();
        self.parts.metrics.evaluated(took, error);
        // Before anybody can see the result and ask for a newer one.
        self.duty.rest_from(if error.is_none() { took } else { took.min(FAILED) });
        let previous = self.parts.board.newest();
        let (newest, made_from) = match decided {
            Some((outcome, made_from)) => {
                (self.publish(outcome, previous.sequence + 1, &snapshot, took, still), Some(made_from))
            }
            // The term ended meanwhile: its memory is somebody else's now.
            None => (previous.clone(), None),
        };
        drop(office);
        log_changes(&previous, &newest);
        if let Some((recorder, MadeFrom { before, policy, after })) = self.recorder.as_ref().zip(made_from) {
            let published = newest.clone();
            recorder.record(Arc::new(Evaluation { snapshot, before, policy, published, after }));
        }
        newest
    }

    async fn collect(&self, view: &ClusterView, policy: &Policy) -> Result<Collected, SourceError> {
        let namespaces: BTreeSet<_> = view.variants.iter().map(|state| &state.variant.id.namespace).collect();
        let namespaces = namespaces.into_iter().map(ToString::to_string).collect();
        let variants = view.variants.iter().map(|state| &state.variant);
        let mut needs = wva_core::needs(policy, variants);
        if self.names_victims {
            needs.signals.extend(victims::NEEDS);
        }
        let scope = Scope { namespaces, endpoints: view.endpoints.clone(), needs: Some(needs) };
        let reading = self.parts.source.collect(&scope).instrument(info_span!("collect"));
        let answer = tokio::time::timeout(COLLECT_TIMEOUT, reading).await.unwrap_or_else(|_| {
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
            Some(error) => warn!(kind = error.kind, %error, "metric source failed"),
            None => info!("metric source answers again"),
        }
        *told = now;
    }

    /// Decides, and remembers. With the office locked.
    fn decide(&self, snapshot: &Snapshot, policy: Arc<Policy>) -> (Outcome, MadeFrom) {
        let before = self.memory.borrow().clone();
        let observed = wva_core::observe(snapshot, Memory::clone(&before));
        let mut outcome = wva_core::decide(snapshot, &observed, &policy);
        let after = Arc::new(std::mem::take(&mut outcome.memory));
        self.memory.send_replace(after.clone());
        for what in &outcome.report.dropped {
            warn!(%what, "memory dropped");
        }
        for violation in &outcome.report.violations {
            warn!(%violation, "decision withheld by the checker");
        }
        self.parts.metrics.dropped(outcome.report.dropped.len());
        self.parts.metrics.violations(outcome.report.violations.len());
        (outcome, MadeFrom { before, policy, after })
    }

    fn publish(
        &self,
        outcome: Outcome,
        sequence: u64,
        snapshot: &Snapshot,
        took: Duration,
        term: Option<Term>,
    ) -> Arc<Published> {
        let victims = self.names_victims.then(|| victims::victims(snapshot, &outcome.decisions));
        self.parts.board.publish(Published {
            sequence,
            at: snapshot.now,
            took,
            origin: Origin::Computed,
            term,
            decisions: outcome.decisions,
            report: outcome.report,
            victims: victims.unwrap_or_default(),
        })
    }
}

/// One line for each variant whose number, or whose lack of one, is new.
fn log_changes(previous: &Published, now: &Published) {
    for (id, decision) in &now.decisions {
        let before = previous.decisions.get(id).map(|decision| &decision.verdict);
        match (before, &decision.verdict) {
            (Some(Verdict::Target(old)), Verdict::Target(new)) if old.desired == new.desired => {}
            (Some(Verdict::Unknown(old)), Verdict::Unknown(new)) if old.cause == new.cause => {}
            (_, Verdict::Target(new)) => {
                let (desired, reason) = (new.desired.get(), new.reason.as_str());
                info!(variant = %id, desired, reason, why = %new.message, "decision");
            }
            (_, Verdict::Unknown(new)) => {
                warn!(variant = %id, cause = ?new.cause, why = %new.message, "no decision");
            }
        }
    }
}
