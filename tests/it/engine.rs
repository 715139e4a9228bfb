//! Reads and evaluations: which instance computes, how often, and what a reader gets while the source is slow.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use wva::engine::{
    Board, Clock, Cluster, ClusterView, Collected, Engine, Holder, Labels, Leadership, MetricSource, Parts,
    ReadSettings, Reader, Restored, Scope, Series, SourceError, Term, run,
};
use wva::telemetry::EvaluationMetrics;
use wva_core::decision::Verdict;
use wva_core::model::{Analyzer, TargetRef, Variant};
use wva_core::name_map::NameMap;
use wva_core::snapshot::{Phase, Pod, Sample, Scale, Signal, VariantState};
use wva_core::units::Replicas;
use wva_core::{Policy, VariantId};

/// Follows tokio's clock, which the tests pause.
pub(crate) struct PausedClock {
    pub(crate) started: Instant,
}

impl PausedClock {
    pub(crate) fn begin() -> Arc<dyn Clock> {
        Arc::new(Self { started: Instant::now() })
    }

    pub(crate) fn start() -> Timestamp {
        "2026-11-21T12:00:00Z".parse().unwrap()
    }
}

impl Clock for PausedClock {
    fn now(&self) -> Timestamp {
        Self::start() + self.started.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// One variant with one idle pod; every collection takes `delay` and is counted.
struct Fleet {
    clock: Arc<dyn Clock>,
    delay: Duration,
    queries: AtomicU64,
    starts: Mutex<Vec<Instant>>,
    /// The signals of the last query.
    signals: Mutex<BTreeSet<Signal>>,
}

impl MetricSource for Fleet {
    fn collect<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Collected, SourceError>> {
        Box::pin(async move {
            self.queries.fetch_add(1, Ordering::Relaxed);
            self.starts.lock().unwrap().push(Instant::now());
            *self.signals.lock().unwrap() = scope.needs.clone().unwrap().signals;
            tokio::time::sleep(self.delay).await;
            Ok(idle(self.clock.now()))
        })
    }
}

/// The metrics of the idle pod of [`OneVariant`].
pub(crate) fn idle(at: Timestamp) -> Collected {
    let series = |signal, value| Series {
        labels: Arc::new(Labels {
            namespace: "llm".into(),
            pod: "llama-0".into(),
            engine: "0".into(),
            port: Some(8000),
            model: Some("llama".into()),
            destination: None,
        }),
        signal,
        samples: [Sample { at, value }].into(),
    };
    let series = vec![series(Signal::KvUsage, 0.1), series(Signal::Waiting, 0.0)];
    Collected { series, ..Collected::default() }
}

pub(crate) struct OneVariant;

impl Cluster for OneVariant {
    fn view(&self) -> Arc<ClusterView> {
        let id = VariantId::new("llm", "llama");
        let variant = Variant::new(id, "llama", TargetRef::deployment("llama"));
        let created = PausedClock::start();
        let replica = Pod {
            name: "llama-0".into(),
            phase: Phase::Ready,
            created,
            ready_since: Some(created),
            engines: NameMap::default(),
        };
        let one = Replicas::ONE;
        let scale = Some(Scale { spec: one, current: one, ready: one });
        let state = VariantState { scale, ..VariantState::new(variant, vec![replica]) };
        Arc::new(ClusterView { synced: true, variants: vec![state], ..ClusterView::default() })
    }
}

pub(crate) fn term(epoch: i64) -> Term {
    Term { lease: "lease".into(), epoch }
}

/// The lease, held by another instance or by this one, wva-0.
pub(crate) fn held(by: &str, epoch: i64) -> Option<Holder> {
    Some(Holder { identity: by.into(), address: None, lease: "lease".into(), epoch })
}

/// This instance leads for ten hours.
pub(crate) fn mine(epoch: i64) -> Leadership {
    Leadership {
        holder: held("wva-0", epoch),
        mine_until: Some(Instant::now() + Duration::from_secs(36_000)),
    }
}

/// The parts of an engine of the leader, and its leadership.
pub(crate) fn leading_parts(
    cluster: Arc<dyn Cluster>,
    source: Arc<dyn MetricSource>,
    clock: Arc<dyn Clock>,
) -> (Parts, watch::Sender<Leadership>) {
    let leadership = watch::Sender::new(mine(1));
    let metrics = EvaluationMetrics::register(&mut Registry::default());
    let (board, subscribed) = (Board::new(), leadership.subscribe());
    (Parts { cluster, source, clock, board, leadership: subscribed, metrics }, leadership)
}

struct Fixture {
    fleet: Arc<Fleet>,
    engine: Arc<Engine>,
    reader: Reader,
    leadership: watch::Sender<Leadership>,
}

fn fixture(delay: Duration) -> Fixture {
    fixture_with(delay, false)
}

fn fixture_with(delay: Duration, needs_deletion_orders: bool) -> Fixture {
    let clock = PausedClock::begin();
    let (queries, starts, signals) = (AtomicU64::new(0), Mutex::default(), Mutex::default());
    let fleet = Arc::new(Fleet { clock: clock.clone(), delay, queries, starts, signals });
    let (parts, leadership) = leading_parts(Arc::new(OneVariant), fleet.clone(), clock);
    let engine = Arc::new(Engine::new(parts, Policy::default()).with_deletion_orders(needs_deletion_orders));
    engine.take_over(Restored::default(), term(1));
    let reader = Reader::new(engine.clone(), ReadSettings::default());
    Fixture { fleet, engine, reader, leadership }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_readers_at_once_cause_one_query() {
    let fixture = fixture(Duration::from_millis(50));
    let answers = join_all((0..1000).map(|_| fixture.reader.current())).await;
    assert_eq!(fixture.fleet.queries.load(Ordering::Relaxed), 1);
    assert!(answers.iter().all(|published| published.sequence == 1));
}

#[tokio::test(start_paused = true)]
async fn the_pod_deletion_order_is_measured_and_published_only_if_enabled() {
    for is_enabled in [false, true] {
        let fixture = fixture_with(Duration::ZERO, is_enabled);
        let mut percent = Policy::default();
        percent.global.default.analyzer = Analyzer::SaturationPercent;
        fixture.engine.set_policy(percent);
        let published = fixture.reader.current().await;
        assert_eq!(published.deletion_orders.contains_key(&VariantId::new("llm", "llama")), is_enabled);
        // It shows whether the gauges are plausible, and is queried for every analyzer.
        assert!(fixture.fleet.signals.lock().unwrap().contains(&Signal::Running));
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_of_a_young_result_computes_nothing() {
    let fixture = fixture(Duration::ZERO);
    fixture.reader.current().await;
    tokio::time::advance(Duration::from_millis(1900)).await;
    fixture.reader.current().await;
    assert_eq!(fixture.fleet.queries.load(Ordering::Relaxed), 1);
    tokio::time::advance(Duration::from_millis(200)).await;
    assert_eq!(fixture.reader.current().await.sequence, 2);
}

#[tokio::test(start_paused = true)]
async fn a_read_during_a_slow_first_evaluation_waits_no_longer_than_read_wait() {
    let slow = fixture(Duration::from_secs(5));
    let started = Instant::now();
    let answer = slow.reader.current().await;
    assert_eq!(started.elapsed(), ReadSettings::default().read_wait);
    assert_eq!(answer.sequence, 0, "nothing yet, and the answer will say so");
}

#[tokio::test(start_paused = true)]
async fn a_read_does_not_wait_for_evaluations_that_take_longer_than_read_wait() {
    let slow = fixture(Duration::from_secs(5));
    slow.reader.refresh().await;
    tokio::time::advance(Duration::from_secs(60)).await;
    let started = Instant::now();
    let answer = slow.reader.current().await;
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!(answer.sequence, 1, "the last good number, with its true age");
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_disconnects_does_not_stop_the_evaluation_it_started() {
    let fixture = fixture(Duration::from_millis(500));
    drop(tokio::time::timeout(Duration::from_millis(10), fixture.reader.current()).await);
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(fixture.reader.newest().sequence, 1);
    assert_eq!(fixture.fleet.queries.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn readers_that_disconnect_during_a_slow_evaluation_do_not_start_another() {
    let fixture = fixture(Duration::from_secs(5));
    let readers = (0..300).map(|number| {
        let reader = fixture.reader.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(15) * number).await;
            reader.current().await
        }
    });
    join_all(readers).await;
    assert_eq!(fixture.fleet.queries.load(Ordering::Relaxed), 1, "N readers, one query");
}

#[tokio::test(start_paused = true)]
async fn the_next_evaluation_waits_three_times_as_long_and_no_read_waits_for_it() {
    let slow = fixture(Duration::from_secs(4));
    slow.reader.refresh().await;
    let ended = Instant::now();
    while ended.elapsed() < Duration::from_millis(11_900) {
        let started = Instant::now();
        assert_eq!(slow.reader.current().await.sequence, 1);
        assert_eq!(started.elapsed(), Duration::ZERO);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(slow.fleet.queries.load(Ordering::Relaxed), 1);
    tokio::time::sleep(Duration::from_millis(200)).await;
    slow.reader.refresh().await;
    assert_eq!(slow.fleet.queries.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn the_loop_and_reads_together_evaluate_a_quarter_of_the_time_at_most() {
    let slow = fixture(Duration::from_secs(4));
    let (stop, began) = (CancellationToken::new(), Instant::now());
    let reads = async {
        while began.elapsed() < Duration::from_secs(100) {
            slow.reader.current().await;
            tokio::time::sleep(Duration::from_millis(130)).await;
        }
        stop.cancel();
    };
    tokio::join!(run(slow.reader.clone(), Duration::from_secs(5), stop.clone()), reads);
    let starts: Vec<_> =
        slow.fleet.starts.lock().unwrap().iter().map(|at| at.duration_since(began)).collect();
    let apart = starts.windows(2).map(|pair| pair[1] - pair[0]).min();
    assert!(apart.is_some_and(|apart| apart >= Duration::from_secs(16)), "{starts:?}");
    assert!(starts.len() >= 6, "and not much less: {starts:?}");
}

#[tokio::test(start_paused = true)]
async fn where_no_read_waits_the_loop_evaluates_as_often_as_the_duty_cycle_allows() {
    let slow = fixture(Duration::from_millis(1_100));
    let (stop, began) = (CancellationToken::new(), Instant::now());
    let end = async {
        tokio::time::sleep(Duration::from_secs(30)).await;
        stop.cancel();
    };
    tokio::join!(run(slow.reader.clone(), Duration::from_secs(5), stop.clone()), end);
    let starts: Vec<_> =
        slow.fleet.starts.lock().unwrap().iter().map(|at| at.duration_since(began)).collect();
    let apart: Vec<_> = starts.windows(2).map(|pair| (pair[1] - pair[0]).as_millis()).collect();
    assert!(apart.len() >= 5 && apart.iter().all(|apart| (4_400..4_600).contains(apart)), "{starts:?}");
}

#[tokio::test(start_paused = true)]
async fn the_loop_does_not_evaluate_again_what_a_read_has_just_evaluated() {
    let fixture = fixture(Duration::ZERO);
    let (stop, began) = (CancellationToken::new(), Instant::now());
    let reads = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        fixture.reader.current().await;
        tokio::time::sleep(Duration::from_millis(9_900)).await;
        stop.cancel();
    };
    tokio::join!(run(fixture.reader.clone(), Duration::from_secs(5), stop.clone()), reads);
    let starts: Vec<_> =
        fixture.fleet.starts.lock().unwrap().iter().map(|at| at.duration_since(began)).collect();
    assert_eq!(starts.iter().map(Duration::as_secs).collect::<Vec<_>>(), [0, 3, 8]);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_recovers_is_queried_within_one_sync_of_an_hpa() {
    let hung = fixture(Duration::from_secs(3600));
    hung.reader.refresh().await;
    assert_eq!(hung.fleet.queries.load(Ordering::Relaxed), 1);
    tokio::time::advance(Duration::from_millis(15_100)).await;
    drop(tokio::time::timeout(Duration::from_millis(10), hung.reader.refresh()).await);
    assert_eq!(hung.fleet.queries.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn an_instance_without_the_lease_neither_computes_nor_publishes() {
    let fixture = fixture(Duration::from_millis(100));
    let evaluating = fixture.engine.evaluate();
    fixture.leadership.send_replace(Leadership::default());
    assert_eq!(evaluating.await.sequence, 0, "the lease was lost on the way");
    fixture.reader.current().await;
    assert_eq!(fixture.fleet.queries.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn after_resigning_nothing_is_published_and_reads_get_the_newest_result() {
    let fixture = fixture(Duration::from_millis(500));
    fixture.reader.refresh().await;
    tokio::time::advance(Duration::from_secs(60)).await;
    let memory = fixture.engine.memory();
    let resigning = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        fixture.engine.resign();
    };
    let (evaluated, ()) = tokio::join!(fixture.engine.evaluate(), resigning);
    assert_eq!(evaluated.sequence, 1, "the one in flight is for nobody");
    assert!(!memory.has_changed().unwrap(), "what is written down is what was published");

    let started = Instant::now();
    let queries = fixture.fleet.queries.load(Ordering::Relaxed);
    assert_eq!(fixture.reader.current().await.sequence, 1, "though the lease is still ours");
    assert_eq!(started.elapsed(), Duration::ZERO);
    fixture.engine.take_over(Restored::default(), term(1));
    fixture.reader.current().await;
    assert_eq!(fixture.fleet.queries.load(Ordering::Relaxed), queries, "nor in another term");
}

#[tokio::test(start_paused = true)]
async fn a_new_lease_with_an_old_number_is_another_term() {
    let fixture = fixture(Duration::ZERO);
    fixture.leadership.send_modify(|leadership| {
        leadership.holder.as_mut().unwrap().lease = "made anew".into();
    });
    assert!(!fixture.engine.can_evaluate(), "what is remembered belongs to the lease that was deleted");
}

#[tokio::test(start_paused = true)]
async fn a_source_that_never_answers_is_a_timeout_that_is_reported() {
    let fixture = fixture(Duration::from_secs(3600));
    let published = fixture.engine.evaluate().await;
    let verdict = &published.decisions[&VariantId::new("llm", "llama")].verdict;
    let Verdict::Unknown(unknown) = verdict else { panic!("nothing was measured: {verdict:?}") };
    assert!(unknown.explanation.to_string().contains("did not answer"), "{}", unknown.explanation);
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_starts_from_the_published_target_not_from_the_current_count() {
    let first = fixture(Duration::ZERO);
    let mut decisions = first.engine.evaluate().await.decisions.clone();
    let decision = decisions.get_mut(&VariantId::new("llm", "llama")).unwrap();
    let Verdict::Target(target) = &mut decision.verdict else { panic!("measured") };
    target.desired = Replicas::new(7);

    let second = fixture(Duration::from_secs(3600));
    second.engine.take_over(Restored { decisions, ..Restored::default() }, term(1));
    let shown = &second.reader.newest().decisions[&VariantId::new("llm", "llama")].verdict;
    assert!(
        matches!(shown, Verdict::Target(target) if target.desired.get() == 7),
        "before any evaluation: {shown:?}"
    );
    let published = second.engine.evaluate().await;
    let verdict = &published.decisions[&VariantId::new("llm", "llama")].verdict;
    let Verdict::Target(target) = verdict else { panic!("held: {verdict:?}") };
    assert_eq!(target.desired, Replicas::new(7));
}
