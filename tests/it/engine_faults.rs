//! Decisions that hang, and leases that expire: what a reader gets, and that no thread waits.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{ThreadId, current};
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use wva::engine::{
    Board, Clock, Cluster, ClusterView, Collected, Engine, Labels, Leadership, MetricSource, Origin, Parts,
    Published, ReadSettings, Reader, Restored, Scope, Series, SourceError, run,
};
use wva::telemetry::EvaluationMetrics;
use wva_core::decision::{Reason, Target, Verdict};
use wva_core::units::Replicas;
use wva_core::{Decision, GroupId, Policy, Progress, VariantId};

use crate::engine::{OneVariant, PausedClock, held, idle, leading_parts, mine, term};

/// A clock at which decisions hang while it is closed: only they read the time on another thread than the test's.
struct Gate {
    home: ThreadId,
    started: Instant,
    closed: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn set(&self, closed: bool) {
        *self.closed.lock().unwrap() = closed;
        self.opened.notify_all();
    }
}

impl Clock for Gate {
    fn now(&self) -> Timestamp {
        if current().id() != self.home {
            let closed = self.closed.lock().unwrap();
            drop(self.opened.wait_while(closed, |closed| *closed).unwrap());
        }
        PausedClock::start() + self.started.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(sleep(duration))
    }
}

/// Answers at once.
struct Quick(Arc<Gate>);

impl MetricSource for Quick {
    fn collect<'a>(&'a self, _: &'a Scope) -> BoxFuture<'a, Result<Collected, SourceError>> {
        Box::pin(async { Ok(idle(self.0.now())) })
    }
}

struct Fixture {
    gate: Arc<Gate>,
    board: Board,
    engine: Arc<Engine>,
    reader: Reader,
    leadership: watch::Sender<Leadership>,
    registry: Registry,
}

/// Runs on the thread of the test, which also answers reads: waiting for a decision there would stop everything.
fn fixture(giving_up_after: Duration) -> Fixture {
    let (home, started) = (current().id(), Instant::now());
    let gate = Arc::new(Gate { home, started, closed: Mutex::default(), opened: Condvar::new() });
    let mut registry = Registry::default();
    let (parts, leadership) =
        leading_parts(Arc::new(OneVariant), Arc::new(Quick(gate.clone())), gate.clone());
    let (board, metrics) = (parts.board.clone(), EvaluationMetrics::register(&mut registry));
    let parts = Parts { metrics, ..parts };
    let engine = Arc::new(Engine::new(parts, Policy::default()).with_decision_timeout(giving_up_after));
    engine.take_over(Restored::default(), term(1));
    let settings = ReadSettings { max_age: Duration::ZERO, read_wait: Duration::from_millis(50) };
    let reader = Reader::new(engine.clone(), settings);
    Fixture { gate, board, engine, reader, leadership, registry }
}

impl Fixture {
    fn metric(&self, name: &str) -> u64 {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().parse().unwrap()
    }
}

/// The decision "so many replicas".
fn decisions(desired: u32) -> BTreeMap<VariantId, Decision> {
    let target = Target {
        desired: Replicas::new(desired),
        reason: Reason::Steady,
        explanation: "".into(),
        evidence: PausedClock::start(),
    };
    let (model, current) = ("llama".into(), Some(Replicas::ONE));
    let decision =
        Decision { model, accelerator: None, current, verdict: Verdict::Target(target), gap: None };
    BTreeMap::from([(VariantId::new("llm", "llama"), decision)])
}

#[tokio::test]
async fn a_decision_that_takes_long_delays_no_read_no_renewal_and_no_end_of_the_term() {
    let fixture = fixture(Duration::from_secs(60));
    assert_eq!(fixture.reader.refresh().await.sequence, 1);
    fixture.gate.set(true);
    // Opens late, so that a test that waits for the decision fails instead of hanging.
    let gate = fixture.gate.clone();
    let opening = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(20));
        gate.set(false);
    });
    let (began, ticks) = (Instant::now(), AtomicU64::new(0));
    let renewing = async {
        loop {
            sleep(Duration::from_millis(10)).await;
            ticks.fetch_add(1, Ordering::Relaxed);
        }
    };
    let reading = async {
        while began.elapsed() < Duration::from_secs(1) {
            let started = Instant::now();
            let published = fixture.reader.current().await;
            assert_eq!(published.sequence, 1, "the last good number");
            assert!(fixture.engine.can_evaluate() && fixture.engine.may_answer(&published));
            assert!(started.elapsed() < Duration::from_millis(500), "{:?}", started.elapsed());
            sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! { () = renewing => {}, () = reading => {} }
    assert!(ticks.load(Ordering::Relaxed) >= 20, "{ticks:?} of a hundred renewals");
    let resigning = Instant::now();
    fixture.engine.resign();
    assert!(resigning.elapsed() < Duration::from_millis(500), "{:?}", resigning.elapsed());
    fixture.gate.set(false);
    sleep(Duration::from_millis(200)).await;
    assert_eq!(fixture.reader.newest().sequence, 1, "what was decided meanwhile is of a term that is over");
    drop(opening);
}

#[tokio::test]
async fn an_overdue_decision_is_abandoned_and_logged_and_at_most_four_are() {
    let fixture = fixture(Duration::from_millis(200));
    fixture.reader.refresh().await;
    fixture.gate.set(true);
    sleep(Duration::from_millis(100)).await;
    for overdue in 1..=4 {
        let kept = timeout(Duration::from_secs(5), fixture.engine.evaluate()).await.expect("abandoned");
        assert_eq!(kept.sequence, 1, "the last good number, with its true age");
        assert_eq!(fixture.metric("wva_evaluations_overdue_total"), overdue);
    }
    // The next decision hangs too: its thread is waited for, but no reader waits, nor the end of the process.
    sleep(Duration::from_secs(1)).await;
    let reader = fixture.reader.clone();
    let mut fifth = JoinSet::new();
    fifth.spawn(async move { reader.refresh().await });
    sleep(Duration::from_millis(500)).await;
    assert_eq!(fixture.metric("wva_evaluations_overdue_total"), 5);
    assert!(fifth.try_join_next().is_none(), "a sixth thread would follow, and so on");
    let answer =
        timeout(Duration::from_secs(1), fixture.reader.current()).await.expect("no reader waits for it");
    assert_eq!(answer.sequence, 1);
    let stop = CancellationToken::new();
    let stopping = async {
        sleep(Duration::from_millis(300)).await;
        stop.cancel();
    };
    let ending = async { tokio::join!(run(fixture.reader.clone(), Duration::ZERO, stop.clone()), stopping) };
    timeout(Duration::from_secs(2), ending).await.expect("the loop ends when it is told to");
    fixture.gate.set(false);
    let published = timeout(Duration::from_secs(5), fifth.join_next()).await.unwrap().unwrap().unwrap();
    assert_eq!(published.sequence, 2);
    sleep(Duration::from_millis(100)).await;
    let newest = fixture.reader.newest().sequence;
    assert!(newest <= 3, "an abandoned result is not published afterwards: {newest}");
    assert_eq!(fixture.engine.evaluate().await.sequence, newest + 1);
}

/// A clock that the test moves forward.
#[derive(Default)]
struct Forward(AtomicU64);

impl Clock for Forward {
    fn now(&self) -> Timestamp {
        PausedClock::start() + Duration::from_secs(self.0.load(Ordering::SeqCst))
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(sleep(duration))
    }
}

/// Two models, of which one never ends while the gate is closed.
struct TwoModels;

const ENDLESS: &str = "endless";

impl Cluster for TwoModels {
    fn view(&self) -> Arc<ClusterView> {
        let mut view = ClusterView::clone(&OneVariant.view());
        let mut endless = view.variants[0].clone();
        endless.variant.id = VariantId::new("llm", ENDLESS);
        endless.variant.model = ENDLESS.into();
        endless.variant.target.name = ENDLESS.into();
        endless.pods[0].name = "endless-0".into();
        view.variants.insert(0, endless);
        Arc::new(view)
    }
}

/// Both models are idle.
struct BothIdle(Arc<Forward>);

impl MetricSource for BothIdle {
    fn collect<'a>(&'a self, _: &'a Scope) -> BoxFuture<'a, Result<Collected, SourceError>> {
        let mut collected = idle(self.0.now());
        let of_endless = collected.series.iter().map(|series| Series {
            labels: Arc::new(Labels {
                pod: "endless-0".into(),
                model: Some(ENDLESS.into()),
                ..Labels::clone(&series.labels)
            }),
            ..series.clone()
        });
        let of_endless: Vec<_> = of_endless.collect();
        collected.series.extend(of_endless);
        Box::pin(async { Ok(collected) })
    }
}

/// Blocks the thread that decides about the endless model while it is closed.
#[derive(Default)]
struct Keeping {
    closed: Mutex<bool>,
    opened: Condvar,
    tries: AtomicU64,
}

impl Progress for Keeping {
    fn begins(&self, model: Option<&GroupId>) {
        if model.is_some_and(|id| id.model == ENDLESS) {
            let closed = self.closed.lock().unwrap();
            self.tries.fetch_add(u64::from(*closed), Ordering::SeqCst);
            drop(self.opened.wait_while(closed, |closed| *closed).unwrap());
        }
    }
}

#[tokio::test]
async fn a_model_that_never_ends_is_held_and_all_others_get_new_numbers() {
    let (clock, keeping) = (Arc::new(Forward::default()), Arc::new(Keeping::default()));
    let (parts, _leadership) =
        leading_parts(Arc::new(TwoModels), Arc::new(BothIdle(clock.clone())), clock.clone());
    let engine = Engine::new(parts, Policy::default()).with_decision_timeout(Duration::from_millis(200));
    let engine = Arc::new(engine.with_observer(keeping.clone()));
    engine.take_over(Restored::default(), term(1));
    let target = |published: &Published, name: &str| match &published.decisions[&VariantId::new("llm", name)]
        .verdict
    {
        Verdict::Target(target) => target.clone(),
        Verdict::Unknown(unknown) => panic!("{unknown:?}"),
    };
    let evaluate = async |seconds| {
        clock.0.fetch_add(seconds, Ordering::SeqCst);
        timeout(Duration::from_secs(5), engine.evaluate()).await.expect("it is not waited for")
    };
    let good = evaluate(0).await;
    assert_eq!((good.sequence, good.report.failed.len()), (1, 0));

    *keeping.closed.lock().unwrap() = true;
    assert_eq!(evaluate(15).await.sequence, 1, "abandoned");
    // Also when a retry is due: its thread still runs.
    for (sequence, seconds) in (2..).zip([1, 15, 15, 60, 60]) {
        let now = evaluate(seconds).await;
        assert_eq!(now.sequence, sequence);
        let (llama, endless) = (target(&now, "llama"), target(&now, ENDLESS));
        assert_eq!(llama.evidence, now.at, "a new number");
        assert_eq!(endless.reason, Reason::CheckFailed);
        assert_eq!(endless.desired, target(&good, ENDLESS).desired);
        assert_eq!(endless.evidence, good.at, "its true age");
        assert!(
            endless.explanation.to_string().contains("had not ended after 0.2 s"),
            "{}",
            endless.explanation
        );
        let failed = &now.report.failed[0];
        assert_eq!(failed.group, GroupId::new("llm", ENDLESS));
        assert!(failed.failed.retry_at > now.at);
    }
    assert_eq!(keeping.tries.load(Ordering::SeqCst), 1);

    *keeping.closed.lock().unwrap() = false;
    keeping.opened.notify_all();
    sleep(Duration::from_millis(300)).await;
    let again = evaluate(300).await;
    assert!(again.report.failed.is_empty(), "{:?}", again.report.failed);
    assert_eq!(target(&again, ENDLESS).evidence, again.at);
}

#[tokio::test]
async fn an_instance_whose_lease_expired_answers_no_number_of_its_own() {
    let fixture = fixture(Duration::from_secs(60));
    let own = fixture.reader.refresh().await;
    assert!(own.term == Some(term(1)) && fixture.engine.may_answer(&own));
    // The lease has expired by its own clock, though the object still names it; then it names nobody; then another instance.
    let over = Some(Instant::now());
    for leadership in [
        Leadership { holder: held("wva-0", 1), mine_until: over },
        Leadership::default(),
        Leadership { holder: held("wva-1", 2), mine_until: None },
    ] {
        fixture.leadership.send_replace(leadership.clone());
        assert!(!fixture.engine.may_answer(&own), "{leadership:?}");
        // The number in its state object is its own too, unless another leader starts from it.
        let known = leadership.holder.is_some_and(|holder| holder.epoch == 2);
        let written = Published { origin: Origin::Restored, ..Published::clone(&own) };
        assert_eq!(fixture.engine.may_answer(&written), known);
        assert!(fixture.engine.may_answer(&Published { term: Some(term(2)), ..written }));
    }
}

#[tokio::test]
async fn an_instance_that_gets_the_lease_back_never_answers_its_number_of_the_old_term() {
    let fixture = fixture(Duration::from_secs(60));
    let own = fixture.reader.refresh().await;
    fixture.leadership.send_replace(mine(3));
    assert!(!fixture.engine.may_answer(&own), "somebody else had the lease in between");
    assert!(!fixture.engine.can_evaluate());
    let restored = Restored { decisions: decisions(4), ..Restored::default() };
    fixture.engine.take_over(restored, term(3));
    let shown = fixture.reader.newest();
    let Verdict::Target(target) = &shown.decisions[&VariantId::new("llm", "llama")].verdict else {
        panic!("a number")
    };
    assert_eq!((shown.origin, target.desired.get()), (Origin::Restored, 4));
    assert!(fixture.engine.may_answer(&shown));

    // Nothing could be read: no answer is better than a number of the old term.
    let own = fixture.engine.evaluate().await;
    assert_eq!(own.term, Some(term(3)));
    fixture.leadership.send_replace(mine(5));
    fixture.engine.take_over(Restored::default(), term(5));
    assert_eq!(fixture.reader.newest().origin, Origin::Empty);
}

#[tokio::test]
async fn after_a_release_the_last_number_is_answered_until_there_is_a_leader() {
    for lost in [false, true] {
        let fixture = fixture(Duration::from_secs(60));
        let own = fixture.reader.refresh().await;
        if lost {
            fixture.leadership.send_replace(Leadership::default());
        }
        fixture.engine.resign();
        fixture.leadership.send_replace(Leadership::default());
        assert_eq!(fixture.engine.may_answer(&own), !lost);
        assert_eq!(fixture.board.newest().sequence, own.sequence);
    }
}
