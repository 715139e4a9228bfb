//! One sleeping model, its scheduler, and what may go wrong between them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::task::JoinSet;
use wva_core::Policy;
use wva_core::decision::{Reason, Verdict};
use wva_core::model::{Bounds, Role, ScaleToZero, TargetRef};
use wva_core::snapshot::{Scale, Template, VariantLimit, VariantState};
use wva_core::units::{Cost, Seconds};

use super::*;
use crate::engine::{
    Board, Clock, Cluster, Collected, Holder, Leadership, MetricSource, Parts, Pool, Restored, Scope,
    SourceError, Term,
};
use crate::telemetry::EvaluationMetrics;

const MODEL: &str = "org/chat";

/// Follows tokio's clock, which the tests pause.
struct PausedClock(Instant);

impl Clock for PausedClock {
    fn now(&self) -> Timestamp {
        "2026-11-21T12:00:00Z".parse::<Timestamp>().unwrap() + self.0.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        tokio::time::sleep(duration).boxed()
    }
}

struct TestCluster(Mutex<Arc<ClusterView>>);

impl Cluster for TestCluster {
    fn view(&self) -> Arc<ClusterView> {
        self.0.lock().clone()
    }
}

/// A source whose answers take a while, and show nothing.
struct SlowSource(Duration);

impl MetricSource for SlowSource {
    fn collect<'a>(&'a self, _: &'a Scope) -> BoxFuture<'a, Result<Collected, SourceError>> {
        async {
            tokio::time::sleep(self.0).await;
            Ok(Collected::default())
        }
        .boxed()
    }
}

/// What the scheduler answers, and how often it was asked.
#[derive(Default)]
struct TestQueues {
    reads: AtomicU64,
    answer: Mutex<Option<Vec<(&'static str, f64)>>>,
    hangs: Mutex<bool>,
}

impl QueueSource for TestQueues {
    fn read<'a>(&'a self, _: &'a Scheduler) -> BoxFuture<'a, QueueAnswer> {
        async {
            self.reads.fetch_add(1, Ordering::Relaxed);
            if *self.hangs.lock() {
                tokio::time::sleep(Duration::from_secs(1)).await;
                return Err(SourceError { kind: "timeout", message: "no answer in time".into() });
            }
            match &*self.answer.lock() {
                Some(queues) => {
                    Ok(queues.iter().map(|(model, requests)| ((*model).into(), *requests)).collect())
                }
                None => Err(SourceError { kind: "connect", message: "refused".into() }),
            }
        }
        .boxed()
    }
}

fn endpoint() -> Endpoint {
    let ip = "10.0.0.9".parse().unwrap();
    Endpoint { namespace: "llm".into(), pod: "epp-0".into(), ip, port: Some(9090), path: None }
}

fn state(name: &str, cost: f64, replicas: u32) -> VariantState {
    let replicas = Replicas::new(replicas);
    VariantState {
        variant: Variant {
            id: VariantId::new("llm", name),
            model: MODEL.into(),
            target: TargetRef::deployment(name),
            cost: Cost::new(cost).unwrap(),
            bounds: Bounds { min: Replicas::ZERO, max: None },
            accelerator: None,
            role: Role::Both,
            woken_by: None,
        },
        scale: Some(Scale { spec: replicas, current: replicas, ready: Replicas::ZERO }),
        target_problem: None,
        pods: Vec::new(),
        last_status: None,
        unschedulable: None,
        template: Template::default(),
    }
}

/// `chat`, which sleeps, and `other`, which costs more, in one pool.
fn view() -> ClusterView {
    let variants = vec![state("chat", 10.0, 0), state("other", 20.0, 0)];
    let members = variants.iter().map(|state| state.variant.id.clone()).collect();
    let pool = Pool {
        namespace: "llm".into(),
        name: "pool".into(),
        variants: members,
        has_others: false,
        schedulers: vec![endpoint()],
    };
    ClusterView { synced: true, variants, pools: vec![pool], ..ClusterView::default() }
}

struct Fixture {
    engine: Arc<Engine>,
    cluster: Arc<TestCluster>,
    queues: Arc<TestQueues>,
    leadership: watch::Sender<Leadership>,
    _tasks: JoinSet<()>,
}

/// Everything, with a scheduler that holds nothing, after the first evaluation.
async fn fixture(source_delay: Duration) -> Fixture {
    let cluster = Arc::new(TestCluster(Mutex::new(Arc::new(view()))));
    let holder = Some(Holder { identity: "wva-0".into(), address: None, lease: "lease".into(), epoch: 1 });
    let mine = Leadership { holder, mine_until: Some(Instant::now() + Duration::from_secs(3600)) };
    let leadership = watch::Sender::new(mine);
    let parts = Parts {
        cluster: cluster.clone(),
        source: Arc::new(SlowSource(source_delay)),
        clock: Arc::new(PausedClock(Instant::now())),
        board: Board::new(),
        leadership: leadership.subscribe(),
        metrics: EvaluationMetrics::register(&mut Registry::default()),
    };
    let mut policy = Policy::default();
    policy.global.default.scale_to_zero = Some(ScaleToZero { enabled: true, retention: Seconds::whole(60) });
    let engine = Arc::new(Engine::new(parts, policy));
    engine.take_over(Restored::default(), Term { lease: "lease".into(), epoch: 1 });
    engine.evaluate().await;
    let queues = Arc::new(TestQueues::default());
    *queues.answer.lock() = Some(vec![(MODEL, 0.0)]);
    let metrics = WakeMetrics::register(&mut Registry::default());
    let mut tasks = JoinSet::new();
    let watching = watch_queues(engine.clone(), queues.clone(), metrics, CancellationToken::new());
    tasks.spawn(watching);
    Fixture { engine, cluster, queues, leadership, _tasks: tasks }
}

impl Fixture {
    fn newest(&self) -> Arc<Published> {
        self.engine.parts().board.newest()
    }

    fn numbers(&self) -> BTreeMap<String, u32> {
        let newest = self.newest();
        let numbers = newest.decisions.iter().filter_map(|(id, decision)| Some((id, number(decision)?)));
        numbers.map(|(id, number)| (id.name.to_string(), number.get())).collect()
    }

    fn request_arrives(&self) {
        *self.queues.answer.lock() = Some(vec![(MODEL, 2.0), ("foreign", 9.0)]);
    }
}

fn awake() -> BTreeMap<String, u32> {
    [("chat".to_owned(), 1), ("other".to_owned(), 0)].into()
}

async fn pass(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}

#[tokio::test(start_paused = true)]
async fn a_waiting_request_wakes_the_cheapest_variant_in_a_fraction_of_a_second() {
    let fixture = fixture(Duration::ZERO).await;
    pass(1_000).await;
    let before = fixture.newest();
    assert!((9..=12).contains(&fixture.queues.reads.load(Ordering::Relaxed)), "ten reads a second");
    fixture.request_arrives();
    pass(250).await;
    assert_eq!(fixture.numbers(), awake());
    let newest = fixture.newest();
    let decision = &newest.decisions[&VariantId::new("llm", "chat")];
    assert!(matches!(&decision.verdict, Verdict::Target(target) if target.reason == Reason::ScaleFromZero));
    assert_eq!(
        (newest.sequence, newest.at),
        (before.sequence, before.at),
        "the next evaluation comes when it would"
    );
    // A model with a number is not asked about again, although its autoscaler is late.
    pass(500).await;
    let reads = fixture.queues.reads.load(Ordering::Relaxed);
    pass(2_000).await;
    assert!(fixture.queues.reads.load(Ordering::Relaxed) <= reads + 1);
    assert!(Arc::ptr_eq(&fixture.newest(), &newest), "nor decided about again");
}

#[tokio::test(start_paused = true)]
async fn where_a_limit_denies_the_cheapest_variant_the_next_one_wakes_at_once() {
    let fixture = fixture(Duration::ZERO).await;
    let closed = VariantLimit {
        limit: VariantLimit::CLOSED_QUEUE.into(),
        key: "llm/team (stopPolicy Hold)".into(),
        gpus: 0,
        elsewhere: 0,
        variants: [VariantId::new("llm", "chat")].into(),
    };
    *fixture.cluster.0.lock() = Arc::new(ClusterView { limits: vec![closed].into(), ..view() });
    fixture.request_arrives();
    pass(250).await;
    assert_eq!(fixture.numbers(), [("chat".to_owned(), 0), ("other".to_owned(), 1)].into());
}

#[tokio::test(start_paused = true)]
async fn an_evaluation_that_started_before_does_not_put_a_woken_model_to_sleep_again() {
    let fixture = fixture(Duration::from_secs(5)).await;
    let before = fixture.newest().sequence;
    let engine = fixture.engine.clone();
    let mut evaluating = JoinSet::new();
    evaluating.spawn(async move { engine.evaluate().await });
    pass(1_000).await;
    fixture.request_arrives();
    pass(250).await;
    assert_eq!((fixture.numbers(), fixture.newest().sequence), (awake(), before));
    // The request is gone, and the source shows nothing of it.
    *fixture.queues.answer.lock() = Some(vec![(MODEL, 0.0)]);
    evaluating.join_next().await;
    assert_eq!((fixture.numbers(), fixture.newest().sequence), (awake(), before + 1), "it was not discarded");
    fixture.engine.evaluate().await;
    assert_eq!(fixture.numbers(), awake(), "nor does a later one");
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_has_lost_the_lease_wakes_nothing_and_asks_nobody() {
    let fixture = fixture(Duration::ZERO).await;
    pass(500).await;
    fixture.leadership.send_replace(Leadership::default());
    fixture.request_arrives();
    pass(250).await;
    let reads = fixture.queues.reads.load(Ordering::Relaxed);
    pass(5_000).await;
    assert_eq!(fixture.queues.reads.load(Ordering::Relaxed), reads);
    assert_ne!(fixture.numbers(), awake());
}

#[tokio::test(start_paused = true)]
async fn a_term_that_ended_while_a_model_was_being_woken_publishes_nothing() {
    let fixture = fixture(Duration::ZERO).await;
    let group = GroupId::new("llm", MODEL);
    let holder = Some(Holder { identity: "wva-0".into(), address: None, lease: "lease".into(), epoch: 2 });
    let mine_until = Some(Instant::now() + Duration::from_secs(3600));
    fixture.leadership.send_replace(Leadership { holder, mine_until });
    let wake = || {
        let waiting = WaitingRequests { scheduler: endpoint(), requests: 1.0, seen: Instant::now() };
        fixture.engine.wake([(group.clone(), waiting)].into())
    };
    assert_eq!(wake().await, WakeOutcome::Decided(BTreeSet::new()), "the memory is of another term");
    fixture.engine.take_over(Restored::default(), Term { lease: "lease".into(), epoch: 2 });
    assert_eq!(wake().await, WakeOutcome::Superseded, "nothing is evaluated in this one yet");
    fixture.engine.evaluate().await;
    assert_eq!(wake().await, WakeOutcome::Decided([group.clone()].into()));
}

#[tokio::test(start_paused = true)]
async fn a_model_that_something_else_has_scaled_up_is_not_decided_by_its_queue() {
    let fixture = fixture(Duration::ZERO).await;
    fixture.request_arrives();
    let variants = vec![state("chat", 10.0, 5), state("other", 20.0, 0)];
    *fixture.cluster.0.lock() = Arc::new(ClusterView { variants, ..view() });
    let before = fixture.newest();
    pass(2_000).await;
    assert!(Arc::ptr_eq(&fixture.newest(), &before), "what its pods show was not read");
}

#[tokio::test(start_paused = true)]
async fn a_scheduler_that_does_not_answer_is_asked_less_and_less() {
    for hangs in [false, true] {
        let fixture = fixture(Duration::ZERO).await;
        *fixture.queues.answer.lock() = None;
        *fixture.queues.hangs.lock() = hangs;
        pass(60_000).await;
        let reads = fixture.queues.reads.load(Ordering::Relaxed);
        assert!((5..20).contains(&reads), "{reads}");
        *fixture.queues.hangs.lock() = false;
        fixture.request_arrives();
        pass(11_000).await;
        assert_eq!(fixture.numbers(), awake());
    }
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_is_deleted_while_its_models_sleep_is_not_read_any_more() {
    let fixture = fixture(Duration::ZERO).await;
    pass(500).await;
    *fixture.cluster.0.lock() = Arc::new(ClusterView { pools: Vec::new(), ..view() });
    pass(600).await;
    let reads = fixture.queues.reads.load(Ordering::Relaxed);
    fixture.request_arrives();
    pass(5_000).await;
    assert_eq!(fixture.queues.reads.load(Ordering::Relaxed), reads);
    assert_ne!(fixture.numbers(), awake());
}

#[tokio::test(start_paused = true)]
async fn a_model_of_which_a_variant_runs_is_not_asked_about() {
    let fixture = fixture(Duration::ZERO).await;
    let variants = vec![state("chat", 10.0, 0), state("other", 20.0, 1)];
    *fixture.cluster.0.lock() = Arc::new(ClusterView { variants, ..view() });
    pass(600).await;
    let reads = fixture.queues.reads.load(Ordering::Relaxed);
    pass(5_000).await;
    assert_eq!(fixture.queues.reads.load(Ordering::Relaxed), reads);
}

#[tokio::test(start_paused = true)]
async fn what_a_scheduler_says_of_models_that_are_not_of_its_pools_wakes_nothing() {
    let fixture = fixture(Duration::ZERO).await;
    let mut foreign = state("foreign", 1.0, 0);
    foreign.variant.model = "foreign".into();
    let mut all = view();
    all.variants.insert(1, foreign);
    *fixture.cluster.0.lock() = Arc::new(all);
    fixture.engine.evaluate().await;
    *fixture.queues.answer.lock() = Some(vec![("foreign", 9.0)]);
    pass(2_000).await;
    assert_eq!(fixture.numbers().get("foreign").copied().unwrap_or_default(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_model_that_a_limit_keeps_at_zero_is_not_decided_about_ten_times_a_second() {
    let fixture = fixture(Duration::ZERO).await;
    let mut policy = Policy::clone(&fixture.engine.policy());
    policy.limits.spend = Some(Cost::new(1.0).unwrap());
    fixture.engine.set_policy(policy);
    fixture.request_arrives();
    pass(3_000).await;
    assert_ne!(fixture.numbers(), awake());
    fixture.engine.set_policy(Policy::default());
}

/// Sleeping models `model-0`, `model-1` and so on, of one variant each, in the pool.
fn sleeping_models(count: usize) -> ClusterView {
    let names: Vec<String> = (0..count).map(|index| format!("model-{index:02}")).collect();
    let variant = |name: &String| {
        let mut state = state(name, 10.0, 0);
        state.variant.model = name.as_str().into();
        state
    };
    let mut all = view();
    all.variants = names.iter().map(variant).collect();
    all.pools[0].variants = all.variants.iter().map(|state| state.variant.id.clone()).collect();
    all
}

#[tokio::test(start_paused = true)]
async fn many_models_that_requests_wait_for_at_once_are_all_woken_at_once() {
    const NAMES: [&str; 8] =
        ["model-00", "model-01", "model-02", "model-03", "model-04", "model-05", "model-06", "model-07"];
    let fixture = fixture(Duration::ZERO).await;
    *fixture.cluster.0.lock() = Arc::new(sleeping_models(NAMES.len()));
    fixture.engine.evaluate().await;
    *fixture.queues.answer.lock() = Some(NAMES.map(|name| (name, 1.0)).into());
    pass(1_000).await;
    assert_eq!(fixture.numbers().into_values().sum::<u32>(), 8, "none waits for the next evaluation");
}

#[tokio::test(start_paused = true)]
async fn of_two_models_that_wake_at_once_a_limit_with_room_for_one_keeps_the_other_at_zero() {
    let fixture = fixture(Duration::ZERO).await;
    *fixture.cluster.0.lock() = Arc::new(sleeping_models(2));
    let mut policy = Policy::clone(&fixture.engine.policy());
    policy.limits.spend = Some(Cost::new(15.0).unwrap());
    fixture.engine.set_policy(policy);
    fixture.engine.evaluate().await;
    for queues in [vec![("model-00", 1.0)], vec![("model-00", 1.0), ("model-01", 1.0)]] {
        *fixture.queues.answer.lock() = Some(queues);
        pass(7_000).await;
        assert_eq!(fixture.numbers().into_values().sum::<u32>(), 1, "the number counts before anything runs");
    }
}

#[tokio::test(start_paused = true)]
async fn a_model_that_is_decided_about_beside_one_that_is_awake_already_was_granted_what_that_uses() {
    let fixture = fixture(Duration::ZERO).await;
    *fixture.cluster.0.lock() = Arc::new(sleeping_models(2));
    let mut policy = Policy::clone(&fixture.engine.policy());
    policy.limits.spend = Some(Cost::new(15.0).unwrap());
    fixture.engine.set_policy(policy);
    fixture.engine.evaluate().await;
    // A scheduler is read until it is seen that its model is awake, so that the second time both are waited for.
    for models in [&["model-00"][..], &["model-00", "model-01"]] {
        let waits = || WaitingRequests { scheduler: endpoint(), requests: 1.0, seen: Instant::now() };
        let waiting = models.iter().map(|model| (GroupId::new("llm", *model), waits())).collect();
        fixture.engine.wake(waiting).await;
        let expected = [("model-00".to_owned(), 1), ("model-01".to_owned(), 0)];
        assert_eq!(fixture.numbers(), expected.into());
    }
}

/// A watch of this many schedulers in each namespace, none of which has been read.
async fn watch_of(schedulers: &[(&str, usize)]) -> QueueWatch {
    let Fixture { engine, queues, .. } = fixture(Duration::ZERO).await;
    let metrics = WakeMetrics::register(&mut Registry::default());
    let now = Instant::now();
    let endpoint_of = |namespace: &str, index: usize| Endpoint {
        namespace: namespace.into(),
        pod: format!("epp-{index}"),
        ..endpoint()
    };
    let reader = |endpoint: Endpoint| {
        let scheduler = Scheduler { endpoint, models: BTreeSet::new(), has_one_model: false };
        QueueReader { scheduler, due: now, is_reading: false, backoff: Duration::ZERO }
    };
    let endpoints = schedulers
        .iter()
        .flat_map(|(namespace, count)| (0..*count).map(move |index| endpoint_of(namespace, index)));
    QueueWatch {
        engine,
        queues,
        metrics,
        computed_from: None,
        refresh_at: now,
        readers: endpoints.map(|endpoint| (endpoint.clone(), reader(endpoint))).collect(),
        retry_at: HashMap::new(),
        waiting: BTreeMap::new(),
    }
}

impl QueueWatch {
    /// The schedulers that are being read.
    fn reading(&self) -> Vec<Endpoint> {
        let reading = self.readers.iter().filter(|(_, reader)| reader.is_reading);
        reading.map(|(endpoint, _)| endpoint.clone()).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn schedulers_of_one_tenant_that_do_not_answer_delay_only_its_own() {
    let mut watch = watch_of(&[("hanging", 60), ("llm", 5)]).await;
    for _ in 0..10 {
        let started = watch.start_reads(MAX_READS_OF_INTERVAL).len();
        let (hanging, answering): (Vec<_>, Vec<_>) =
            watch.reading().into_iter().partition(|endpoint| endpoint.namespace == "hanging");
        assert_eq!((hanging.len(), answering.len()), (MAX_CONCURRENT_READS_OF_NAMESPACE, 5), "{started}");
        for endpoint in answering {
            watch.end_read(&endpoint, Ok(BTreeMap::new()));
        }
        tokio::time::advance(READ_INTERVAL).await;
    }
}

#[tokio::test(start_paused = true)]
async fn many_schedulers_are_read_in_turn_and_at_most_five_hundred_times_a_second() {
    let namespaces: Vec<String> = (0..12).map(|index| format!("n{index}")).collect();
    let schedulers: Vec<_> = namespaces.iter().map(|namespace| (namespace.as_str(), 10)).collect();
    let mut watch = watch_of(&schedulers).await;
    let mut reads: HashMap<Endpoint, usize> = HashMap::new();
    for _ in 0..10 {
        let started = watch.start_reads(MAX_READS_OF_INTERVAL).len();
        assert_eq!(started, MAX_READS_OF_INTERVAL);
        for endpoint in watch.reading() {
            watch.end_read(&endpoint, Ok(BTreeMap::new()));
            *reads.entry(endpoint).or_default() += 1;
        }
        tokio::time::advance(READ_INTERVAL).await;
    }
    assert_eq!((reads.len(), reads.values().sum::<usize>()), (120, 500));
    assert!(reads.values().all(|count| (3..=5).contains(count)), "{reads:?}");
}
