//! Overload and hanging evaluations: the answer comes within a second and says what is wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use wva::engine::{
    Clock, Collected, Engine, Leadership, MetricSource, ReadSettings, Reader, Restored, Scope, SourceError,
    run,
};
use wva_core::Policy;

use super::client::{Answer, H2};
use super::golden::golden;
use super::identity::eventually;
use super::test_server::{TestServer, advance_clock};
use super::{READ, path};
use crate::engine::{OneVariant, PausedClock, idle, leading_parts, term};

/// A Prometheus that answers, until it hangs.
struct Prometheus {
    clock: Arc<dyn Clock>,
    hangs: AtomicBool,
    open: AtomicUsize,
    max_open: AtomicUsize,
}

struct Open<'a>(&'a AtomicUsize);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl MetricSource for Prometheus {
    fn collect<'a>(&'a self, _: &'a Scope) -> BoxFuture<'a, Result<Collected, SourceError>> {
        Box::pin(async move {
            let open = self.open.fetch_add(1, Ordering::SeqCst) + 1;
            let _open = Open(&self.open);
            self.max_open.fetch_max(open, Ordering::SeqCst);
            if self.hangs.load(Ordering::SeqCst) {
                return futures::future::pending().await;
            }
            Ok(idle(self.clock.now()))
        })
    }
}

/// The server with the real engine, which evaluates in the background as in production.
struct ServerWithEngine {
    server: TestServer,
    prometheus: Arc<Prometheus>,
    _evaluating: JoinSet<()>,
    _leadership: watch::Sender<Leadership>,
}

async fn server_with_engine(hangs: bool) -> ServerWithEngine {
    let clock = PausedClock::begin();
    let hangs = AtomicBool::new(hangs);
    let open = AtomicUsize::new(0);
    let max_open = AtomicUsize::new(0);
    let prometheus = Arc::new(Prometheus { clock: clock.clone(), hangs, open, max_open });
    let (parts, leadership) = leading_parts(Arc::new(OneVariant), prometheus.clone(), clock);
    let engine = Arc::new(Engine::new(parts, Policy::default()));
    engine.take_over(Restored::default(), term(1));
    let reader = Reader::new(engine, ReadSettings::default());
    let mut evaluating = JoinSet::new();
    evaluating.spawn(run(reader.clone(), Duration::from_secs(5), CancellationToken::new()));
    let server = TestServer::with(|options| options.reads = Some(Arc::new(reader))).await;
    ServerWithEngine { server, prometheus, _evaluating: evaluating, _leadership: leadership }
}

/// A read and its duration.
async fn timed(server: &TestServer) -> (Answer, Duration) {
    let began = Instant::now();
    (server.proxied("hpa", READ).await, began.elapsed())
}

#[tokio::test]
async fn during_a_hanging_evaluation_reads_get_the_last_number_until_max_stale() {
    let ServerWithEngine { server, prometheus, .. } = server_with_engine(false).await;
    let first = server.proxied("hpa", READ).await;
    assert_eq!(first.value(), "1");
    prometheus.hangs.store(true, Ordering::SeqCst);
    advance_clock(Duration::from_secs(6)).await;
    let reads = timeout(Duration::from_secs(3), join_all((0..20).map(|_| timed(&server)))).await;
    for (answer, took) in reads.expect("well before the aggregator's 60 s") {
        assert_eq!(answer.value(), "1");
        assert!(
            answer.body.contains(r#""timestamp":"2026-11-21T12:00:00Z""#),
            "its age is told: {}",
            answer.body
        );
        assert!(took < Duration::from_secs(2), "{took:?}");
    }
    assert_eq!(prometheus.max_open.load(Ordering::SeqCst), 1, "all readers wait for one evaluation");
    let open = || prometheus.open.load(Ordering::SeqCst);
    assert_eq!(open(), 1);
    advance_clock(Duration::from_secs(20)).await;
    eventually(async || open() == 0).await;
    assert_eq!(server.proxied("hpa", READ).await.value(), "1");
    advance_clock(Duration::from_secs(280)).await;
    let (old, took) = timed(&server).await;
    assert_eq!(old.status, 503);
    let message = old.message();
    assert!(message.contains("llm/llama") && message.contains("old"), "{message}");
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_eq!(prometheus.max_open.load(Ordering::SeqCst), 1);
    prometheus.hangs.store(false, Ordering::SeqCst);
    // The evaluation under way is cut, and the loop pauses three times as long: it evaluates at most a quarter of the time.
    for seconds in [21, 90] {
        sleep(Duration::from_millis(50)).await;
        advance_clock(Duration::from_secs(seconds)).await;
    }
    eventually(async || server.proxied("hpa", READ).await.status == 200).await;
}

#[tokio::test]
async fn a_first_evaluation_that_hangs_is_an_error_within_a_second() {
    let ServerWithEngine { server, .. } = server_with_engine(true).await;
    let (answer, took) = timed(&server).await;
    assert_eq!(answer.status, 503);
    assert!(!answer.message().is_empty());
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_eq!(server.get("/readyz").await.status, 200);
    assert_eq!(server.get_as_proxy("/apis").await.status, 200);
}

#[tokio::test]
async fn above_the_limit_of_reads_the_answer_is_429_at_once() {
    let server = TestServer::new().await;
    assert_eq!(server.metrics().await.status, 200);
    *server.reads.hangs.lock() = true;
    let mut connections = Vec::new();
    for _ in 0..3 {
        connections.push(H2::connect(&server, Some(&server.proxy)).await);
    }
    let waiting: Vec<_> = (0..512).map(|n| connections[n % 3].read()).collect();
    eventually(async || server.reads.count.load(Ordering::SeqCst) == 512).await;
    let (rejected, took) = timed(&server).await;
    // message() asserts that there is no Retry-After.
    assert_eq!(
        (rejected.status, rejected.message().as_str()),
        (
            429,
            "wva_desired_replicas in namespace llm cannot be read now: too many reads are waiting on this server; retry \
             later"
        )
    );
    golden("edge-too-many-reads", &rejected);
    assert!(took < Duration::from_millis(300), "{took:?}");
    assert!(rejected.body.contains(r#""reason":"TooManyRequests""#), "{}", rejected.body);
    for path in
        ["/apis", "/apis/external.metrics.k8s.io/v1beta1", "/openapi/v3", "/livez", "/readyz", "/version"]
    {
        assert_eq!(server.get_as_proxy(path).await.status, 200, "{path}");
    }
    assert_eq!(server.metrics().await.status, 200);
    let reviews = server.reviewer.reviews.lock().len();
    assert_eq!(server.proxied("mallory", &path("x", "y")).await.status, 429);
    assert_eq!(server.reviewer.reviews.lock().len(), reviews, "a refusal costs no review");
    let answers = join_all(waiting).await;
    assert!(answers.iter().all(|result| result.as_ref().is_ok_and(|answer| answer.status() == 200)));
    *server.reads.hangs.lock() = false;
    assert_eq!(server.proxied("hpa", READ).await.value(), "5", "and then there is room again");
}

#[tokio::test]
async fn reads_of_own_metrics_have_their_own_limit() {
    let server = TestServer::new().await;
    assert_eq!(server.proxied("hpa", READ).await.status, 200);
    *server.reviewer.hangs.lock() = true;
    let scrape = |n: usize| {
        let server = &server;
        async move { server.send(None, "GET /metrics", &[&format!("Authorization: Bearer token-{n}")]).await }
    };
    let others = async {
        sleep(Duration::from_millis(200)).await;
        let rejected = scrape(99).await;
        assert_eq!(rejected.status, 429);
        assert!(
            rejected.message().starts_with("too many clients are reading this server"),
            "{}",
            rejected.body
        );
        golden("edge-too-many-scrapes", &rejected);
        assert_eq!(server.proxied("hpa", READ).await.value(), "5");
        advance_clock(Duration::from_secs(6)).await;
    };
    let (scrapes, ()) = tokio::join!(join_all((0..16).map(scrape)), others);
    assert!(scrapes.iter().all(|answer| answer.status == 503), "their reviews time out");
}
