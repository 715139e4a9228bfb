//! The model servers of the end-to-end tests: plays every pod labelled `llm-d.ai/model` of a real cluster, serves their
//! vLLM `/metrics`, and takes its load from HTTP. Real time drives it. Not part of the product.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use clap::{Parser, ValueEnum};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Client, Config, ResourceExt as _};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, MissedTickBehavior};
use wva::cmd::fleet::{CONTENT_TYPE, exposition};
use wva_sim::{Fleet, LINEAR4, Physics, PodPhase, PodSpec, TP1, TokenShape};

/// Which pods are model servers, and of which model.
const MODEL_LABEL: &str = "llm-d.ai/model";
/// A model id that is not a valid label value stands here.
const MODEL_ANNOTATION: &str = "wva.test/model-id";
/// How often the simulation catches up with real time.
const TICK: Duration = Duration::from_millis(100);
/// Models at once: far more than any test has, so that a loop in a script cannot fill the memory.
const MAX_MODELS: usize = 2000;

#[derive(Parser)]
struct Args {
    /// The cluster.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Where to serve.
    #[arg(long)]
    listen: SocketAddr,
    /// Chance, repeatable.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How the servers behave.
    #[arg(long, value_enum, default_value_t = Kind::Batching)]
    physics: Kind,
    /// Mean tokens of a prompt (batching).
    #[arg(long, default_value_t = 4000)]
    prompt_tokens: u32,
    /// Mean tokens of an answer (batching).
    #[arg(long, default_value_t = 1000)]
    output_tokens: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Continuous batching on one H100: 2.99 requests/s of 4000/1000 tokens.
    Batching,
    /// The fluid of the published comparison: 4 requests/s.
    Linear4,
}

/// A pod's name in the simulation: the uid tells a pod from a later one of the same name.
type PodKey = (String, String, String);

struct World {
    kind: Kind,
    seed: u64,
    tokens: TokenShape,
    began: Instant,
    models: BTreeMap<String, Fleet>,
    /// The model of every pod that was seen Ready and has not left the simulation.
    pods: BTreeMap<PodKey, String>,
}

type Shared = Arc<Mutex<World>>;

impl World {
    fn new(args: &Args) -> Self {
        let tokens = match args.physics {
            Kind::Batching => TokenShape::varied(args.prompt_tokens, args.output_tokens, 0.1),
            Kind::Linear4 => LINEAR4.tokens,
        };
        let (models, pods) = (BTreeMap::new(), BTreeMap::new());
        Self { kind: args.physics, seed: args.seed, tokens, began: Instant::now(), models, pods }
    }

    /// The fleet of `model`, made when it is first named; `None` above the limit.
    fn model(&mut self, model: &str) -> Option<&mut Fleet> {
        if self.models.len() >= MAX_MODELS && !self.models.contains_key(model) {
            return None;
        }
        let (kind, tokens, now) = (self.kind, self.tokens, self.began.elapsed());
        let seed =
            model.bytes().fold(self.seed, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
        Some(self.models.entry(model.to_owned()).or_insert_with(|| {
            let mut fleet = match kind {
                Kind::Batching => Fleet::of_requests(seed, tokens),
                Kind::Linear4 => Fleet::of_fluid(seed, tokens),
            };
            fleet.advance(now);
            fleet
        }))
    }

    /// Catches up with real time and with the cluster.
    fn tick(&mut self, seen: &[Arc<Pod>]) {
        let now = self.began.elapsed();
        self.models.values_mut().for_each(|fleet| fleet.advance(now));
        let serving: BTreeMap<PodKey, String> = seen.iter().filter_map(|pod| serving(pod)).collect();
        for (key, model) in &serving {
            if !self.pods.contains_key(key) {
                self.start(key, model);
            }
        }
        let sim_name = |key: &PodKey| format!("{}/{}/{}", key.0, key.1, key.2);
        let (models, seen) = (&mut self.models, &serving);
        self.pods.retain(|key, model| {
            let Some(fleet) = models.get_mut(model) else { return false };
            if !seen.contains_key(key) {
                // Also when the object is gone already: a fake kubelet does not wait for the process.
                fleet.terminate(&sim_name(key));
            }
            fleet.pod(&sim_name(key)).is_some()
        });
    }

    fn start(&mut self, key: &PodKey, model: &str) {
        let physics = match self.kind {
            Kind::Batching => Physics::Batching(TP1),
            Kind::Linear4 => Physics::Linear(LINEAR4),
        };
        let name = format!("{}/{}/{}", key.0, key.1, key.2);
        let spec = PodSpec { name, group: key.0.clone(), physics, cost: 1.0 };
        if let Some(fleet) = self.model(model)
            && fleet.start(spec, Duration::ZERO).is_ok()
        {
            self.pods.insert(key.clone(), model.to_owned());
        }
    }

    /// The page of a pod: of the one that serves when an older one of the same name still drains.
    fn page(&self, namespace: &str, pod: &str) -> Option<String> {
        let mine = self.pods.iter().filter(|(key, _)| key.0 == namespace && key.1 == pod);
        let mut views: Vec<_> = mine
            .filter_map(|(key, model)| {
                let view = self.models.get(model)?.pod(&format!("{}/{}/{}", key.0, key.1, key.2))?;
                Some((view.phase == PodPhase::Terminating, model, view.server?))
            })
            .collect();
        views.sort_by_key(|view| view.0);
        views.first().map(|(_, model, server)| exposition(server.readings(), model))
    }

    fn stats(&self) -> BTreeMap<String, ModelStats> {
        self.models.iter().map(|(model, fleet)| (model.clone(), ModelStats::of(fleet))).collect()
    }
}

/// The key and model of a pod that serves: Ready and not being deleted.
fn serving(pod: &Pod) -> Option<(PodKey, String)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    if !ready || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let model = pod.annotations().get(MODEL_ANNOTATION).or_else(|| pod.labels().get(MODEL_LABEL))?;
    Some(((pod.namespace()?, pod.name_any(), pod.uid()?), model.clone()))
}

#[derive(Serialize)]
struct ModelStats {
    ready: usize,
    waiting: f64,
    running: f64,
    rps: f64,
    capacity_rps: f64,
    max_wait_s: f64,
    ttft_p50_s: Option<f64>,
    ttft_p95_s: Option<f64>,
    completed: f64,
    failed: f64,
}

impl ModelStats {
    fn of(fleet: &Fleet) -> Self {
        let now = fleet.summary();
        Self {
            ready: now.ready,
            waiting: now.waiting,
            running: now.running,
            rps: now.rps,
            capacity_rps: now.capacity_rps,
            max_wait_s: now.max_wait_s,
            ttft_p50_s: now.ttft_p50_s,
            ttft_p95_s: now.ttft_p95_s,
            completed: now.completed,
            failed: fleet.stats().failed(),
        }
    }
}

#[derive(Deserialize)]
struct Load {
    model: String,
    rps: f64,
}

async fn metrics(State(world): State<Shared>, Path((namespace, pod)): Path<(String, String)>) -> Response {
    match world.lock().page(&namespace, &pod) {
        Some(page) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], page).into_response(),
        None => (StatusCode::NOT_FOUND, format!("pod {namespace}/{pod} does not serve\n")).into_response(),
    }
}

async fn load(State(world): State<Shared>, Query(load): Query<Load>) -> Response {
    let mut world = world.lock();
    match world.model(&load.model) {
        _ if !(load.rps.is_finite() && load.rps >= 0.0) => {
            (StatusCode::BAD_REQUEST, "rps must be a number of at least 0\n").into_response()
        }
        Some(fleet) => {
            fleet.set_rate(load.rps);
            StatusCode::NO_CONTENT.into_response()
        }
        None => (StatusCode::INSUFFICIENT_STORAGE, "too many models\n").into_response(),
    }
}

async fn stats(State(world): State<Shared>) -> Json<BTreeMap<String, ModelStats>> {
    Json(world.lock().stats())
}

async fn reset(State(world): State<Shared>) -> StatusCode {
    world.lock().models.values_mut().for_each(Fleet::reset_stats);
    StatusCode::NO_CONTENT
}

/// Watches the pods and moves the world, until the watch ends (it does not by itself).
async fn play(world: Shared, client: Client) -> anyhow::Result<()> {
    let (store, writer) = reflector::store::<Pod>();
    let config = watcher::Config::default().labels(MODEL_LABEL);
    let events = reflector(writer, watcher(Api::all(client), config).default_backoff());
    let mut events = std::pin::pin!(events);
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut listed = false;
    loop {
        tokio::select! {
            event = events.next() => match event.context("the pod watch ended")? {
                Ok(watcher::Event::InitDone) => listed = true,
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "pod watch: trying again"),
            },
            _ = ticks.tick(), if listed => world.lock().tick(&store.state()),
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let kubeconfig = Kubeconfig::read_from(&args.kubeconfig)
        .with_context(|| format!("--kubeconfig {}", args.kubeconfig.display()))?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    let world: Shared = Arc::new(Mutex::new(World::new(&args)));
    let routes = Router::new()
        .route("/pods/{namespace}/{pod}/metrics", get(metrics))
        .route("/load", post(load))
        .route("/stats", get(stats))
        .route("/stats/reset", post(reset))
        .with_state(world.clone());
    let listener = tokio::net::TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("--listen {}: choose a free port", args.listen))?;
    tracing::info!(listen = %args.listen, "fleet");
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        served = axum::serve(listener, routes) => served?,
        played = play(world, client) => played?,
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    Ok(())
}
