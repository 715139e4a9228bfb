//! A server with the real engine, recorded while it serves: what `/debug/snapshots` and the files hold is replayed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures::future::BoxFuture;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tokio_util::sync::CancellationToken;
use wva::engine::{Clock, Collected, Engine, Leadership, MetricSource, Restored, Scope, SourceError};
use wva::record::{
    FileSettings, QueueRecorder, Recent, Recording, RecordingMetrics, keep_recent, write_files,
};
use wva::serve::auth::Attributes;
use wva_core::Policy;
use wva_core::model::Analyzer;
use wva_core::snapshot::Sample;

use super::material::{Folder, Said, wva};
use crate::engine::{OneVariant, PausedClock, idle, leading_parts, term};
use crate::serve::identity::eventually;
use crate::serve::pki::SERVICE;
use crate::serve::test_server::{TestServer, led_by};

const ALICE: &[&str] = &["X-Remote-User: alice"];

/// Idle at first, then full; every third collection fails.
struct Changing {
    clock: Arc<dyn Clock>,
    count: AtomicU32,
}

impl MetricSource for Changing {
    fn collect<'a>(&'a self, _: &'a Scope) -> BoxFuture<'a, Result<Collected, SourceError>> {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            if count % 3 == 2 {
                return Err(SourceError {
                    kind: "connect",
                    message: "Prometheus: connection refused".into(),
                });
            }
            let mut collected = idle(self.clock.now());
            for series in &mut collected.series {
                let share = f64::from(count) / 10.0 + 1.0 / 3.0;
                series.samples = [Sample { at: self.clock.now(), value: share }].into();
            }
            Ok(collected)
        })
    }
}

/// Everything that takes part in recording.
pub(super) struct Recorded {
    pub(super) server: TestServer,
    engine: Arc<Engine>,
    recent: Arc<Recent>,
    folder: Folder,
    stop: CancellationToken,
    keeping: JoinSet<()>,
    _leadership: watch::Sender<Leadership>,
}

pub(super) async fn recorded() -> Recorded {
    let (folder, stop, mut keeping) = (Folder::new(), CancellationToken::new(), JoinSet::new());
    let recent = Arc::new(Recent::new(100, 1 << 20));
    let metrics = RecordingMetrics::register(&mut Registry::default());
    let (keeper, queue) = QueueRecorder::default().to_recent();
    keeping.spawn(keep_recent(queue, recent.clone(), stop.clone()));
    let (keeper, queue) = keeper.to_files(metrics.clone());
    let settings =
        FileSettings { folder: folder.path().into(), total: 1 << 20, file: 4096, instance: "wva-0".into() };
    let recording = Recording::open(settings).unwrap();
    keeping.spawn(write_files(queue, recording, metrics, stop.clone()));
    let clock = PausedClock::begin();
    let source = Arc::new(Changing { clock: clock.clone(), count: AtomicU32::new(0) });
    let (parts, leadership) = leading_parts(Arc::new(OneVariant), source, clock);
    // One whose numbers follow the samples at once.
    let mut policy = Policy::default();
    policy.global.default.analyzer = Analyzer::SaturationPercent;
    let engine = Arc::new(Engine::new(parts, policy).with_recorder(Arc::new(keeper)));
    engine.take_over(Restored::default(), term(1));
    let server = TestServer::with(|options| options.recent = recent.clone()).await;
    Recorded { server, engine, recent, folder, stop, keeping, _leadership: leadership }
}

impl Recorded {
    /// Evaluates, and waits until each is kept and written, so that none is dropped.
    pub(super) async fn evaluate(&self, count: usize) {
        let before = self.recent.list().len();
        for total in before + 1..=before + count {
            self.engine.evaluate().await;
            eventually(|| async { self.recent.list().len() == total && self.written() == total }).await;
        }
    }

    /// Lines of all files.
    fn written(&self) -> usize {
        let files = self.folder.recordings();
        files.iter().map(|file| std::fs::read_to_string(file).unwrap_or_default().lines().count()).sum()
    }

    /// Reads as alice through the front proxy.
    async fn get(&self, path: &str) -> crate::serve::client::Answer {
        let mut answer = self.server.send(Some(&self.server.proxy), &format!("GET {path}"), ALICE).await;
        if answer.header("transfer-encoding") == Some("chunked") {
            answer.body = joined(&answer.body);
        }
        answer
    }
}

/// The parts of a body that was sent while it was made.
fn joined(mut chunks: &str) -> String {
    let mut body = String::new();
    while let Some((size, rest)) = chunks.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        body += &rest[..size];
        chunks = rest[size..].trim_start();
    }
    body
}

/// A command, while the server goes on.
async fn ran(words: Vec<String>) -> Said {
    spawn_blocking(move || wva(&words.iter().map(String::as_str).collect::<Vec<_>>())).await.unwrap()
}

#[tokio::test]
async fn what_was_recorded_while_serving_replays_to_the_byte_from_memory_and_files() {
    let mut recorded = recorded().await;
    recorded.evaluate(12).await;
    let answer = recorded.get("/debug/snapshots/all").await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/jsonl")));
    let served = recorded.folder.file("served", answer.body.as_bytes());
    recorded.stop.cancel();
    while recorded.keeping.join_next().await.is_some() {}

    let files = recorded.folder.recordings();
    assert!(files.len() >= 3, "rotated: {files:?}");
    let written = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect::<String>();
    assert_eq!(written, answer.body, "the same lines");
    let shown = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    for sources in [vec![shown(&served)], files.iter().map(|file| shown(file)).collect()] {
        let output = ran([vec!["replay".into()], sources.clone()].concat()).await;
        assert_eq!(output.out, "12 evaluations, 12 decisions: byte-identical\n", "{}", output.err);
        let policy = shown(&recorded.folder.file(
            "bold.yaml",
            b"global: {default: {analyzer: saturation-percent, saturation: {kvSpareTrigger: 0.79}}}",
        ));
        let output = ran([vec!["replay".into(), "--policy".into(), policy], sources].concat()).await;
        assert!(output.code == 0 && output.out.contains(" differ\n"), "{}{}", output.out, output.err);
    }
}

#[tokio::test]
async fn the_list_names_every_evaluation_and_each_can_be_had() {
    let recorded = recorded().await;
    let nothing = recorded.get("/debug/snapshots/latest").await;
    assert_eq!(nothing.status, 404);
    assert!(nothing.message().contains("nothing has been evaluated yet"), "{}", nothing.body);
    assert_eq!(recorded.get("/debug/snapshots").await.body, "[]");
    recorded.server.leadership.send_replace(led_by(None));
    let elsewhere = recorded.get("/debug/snapshots/latest").await.message();
    assert!(elsewhere.contains("instance wva-0 holds the lease"), "{elsewhere}");
    recorded.evaluate(3).await;
    let list: serde_json::Value = serde_json::from_str(&recorded.get("/debug/snapshots").await.body).unwrap();
    let list = list.as_array().unwrap();
    assert_eq!(list.len(), 3);
    let all = recorded.get("/debug/snapshots/all").await.body;
    for (entry, line) in list.iter().zip(all.lines()) {
        let at = entry["at"].as_str().unwrap();
        let answer = recorded.get(&format!("/debug/snapshots?at={at}")).await;
        assert_eq!(answer.body.trim_end(), line);
        assert_eq!(entry["bytes"].as_u64(), Some(answer.body.len() as u64));
        assert_eq!(entry["variants"], 1);
        assert_eq!(entry["term"], serde_json::json!({ "lease": "lease", "epoch": 1 }));
        assert!(line.contains(entry["outcome"].as_str().unwrap()));
    }
    assert_eq!(recorded.get("/debug/snapshots/latest").await.body.trim_end(), all.lines().last().unwrap());
    assert_eq!(recorded.get("/debug/snapshots?at=2020-01-01T00:00:00Z").await.status, 404);
    assert_eq!(recorded.get("/debug/snapshots?at=yesterday").await.status, 400);
}

#[tokio::test]
async fn only_who_may_get_the_path_sees_snapshots() {
    let recorded = recorded().await;
    recorded.evaluate(1).await;
    let server = &recorded.server;
    for path in ["/debug/snapshots", "/debug/snapshots/latest", "/debug/snapshots/all"] {
        let get = format!("GET {path}");
        assert_eq!(server.send(None, &get, &[]).await.status, 403, "{path}: nobody");
        assert_eq!(server.send(None, &get, &["Authorization: Bearer bad"]).await.status, 401, "{path}");
        let carol = server.send(Some(&server.proxy), &get, &["X-Remote-User: carol"]).await;
        assert_eq!(carol.status, 403, "{path}: {}", carol.body);
        assert!(carol.message().contains("snapshots") && !carol.body.contains("llama"), "{}", carol.body);
        assert_eq!(server.send(None, &get, &["Authorization: Bearer good"]).await.status, 200, "{path}");
        assert_eq!(recorded.get(path).await.status, 200, "{path}");
        let asked =
            server.reviewer.reviews.lock().iter().map(|(_, wanted)| wanted.clone()).collect::<Vec<_>>();
        assert!(asked.contains(&Attributes::Path { verb: "get", path }), "{path}: {asked:?}");
        let post = server.send(Some(&server.proxy), &format!("POST {path}"), ALICE).await;
        assert_eq!(post.status, 405, "{path}");
    }
    assert_eq!(recorded.get("/debug/snapshots/other").await.status, 404);
}

#[tokio::test]
async fn a_running_server_is_asked_for_an_explanation() {
    let recorded = recorded().await;
    recorded.evaluate(2).await;
    let folder = &recorded.folder;
    let file = |name: &str, content: &str| folder.file(name, content.as_bytes()).to_str().unwrap().to_owned();
    let server = format!("https://127.0.0.1:{}", recorded.server.address.port());
    let (ca, good) = (file("ca.crt", &recorded.server.shared_ca.pem()), file("token", "good\n"));
    let words = |token: &str, variant: &str| {
        let words = ["explain", variant, "--server", &server, "--server-name", SERVICE, "--ca-file", &ca];
        words.iter().map(ToString::to_string).chain(["--token-file".into(), token.into()]).collect::<Vec<_>>()
    };
    let output = ran(words(&good, "llm/llama")).await;
    assert_eq!(output.code, 0, "{}", output.err);
    assert!(output.out.starts_with("llm/llama: ") && output.out.contains("Evidence"), "{}", output.out);
    assert!(output.out.contains(&format!("from {server}/:1")), "{}", output.out);
    let at = recorded.recent.list()[0].at.to_string();
    let earlier = ran([words(&good, "llm/llama"), vec!["--at".into(), at.clone()]].concat()).await;
    assert!(earlier.out.contains(&at), "{}{}", earlier.out, earlier.err);
    let refused = ran(words(&file("bad", "bad"), "llm/llama")).await;
    assert_eq!(refused.code, 2);
    assert!(
        refused.err.contains("401 Unauthorized") && refused.err.contains("--token-file"),
        "{}",
        refused.err
    );
    let distrusted = ran(vec!["explain".into(), "llm/llama".into(), "--server".into(), server.clone()]).await;
    assert_eq!(distrusted.code, 2);
    assert!(distrusted.err.contains("--ca-file"), "{}", distrusted.err);
}
