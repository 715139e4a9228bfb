//! The model servers of the end-to-end tests: simulates every pod of a real cluster that has the label `llm-d.ai/model`, serves
//! their vLLM `/metrics`, and takes the load over HTTP. It speaks as an endpoint picker (EPP) too, whose queues a test fills. It runs in
//! real time and is not part of wva.

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
use wva_core::snapshot::Phase;
use wva_core::units::{Cost, Replicas};
use wva_sim::{EMULATED_4RPS, EMULATED_4RPS_SIZES, Fleet, Pattern, RequestSizes, SimVariant, TP1};

/// The label of model servers, with the model.
const MODEL_LABEL: &str = "llm-d.ai/model";
/// The model id where it is not a valid label value.
const MODEL_ANNOTATION: &str = "wva.test/model-id";
/// How often the simulation catches up with real time.
const TICK_INTERVAL: Duration = Duration::from_millis(100);
/// Models at once: far more than any test has, so that a loop in a script cannot exhaust the memory.
const MAX_MODELS: usize = 2000;

#[derive(Parser)]
struct Args {
    /// The kubeconfig of the cluster.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Address to serve on.
    #[arg(long)]
    listen: SocketAddr,
    /// Seed of the random arrivals.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The kind of servers.
    #[arg(long, value_enum, default_value_t = ServerKind::Batching)]
    physics: ServerKind,
    /// Mean tokens of a prompt (batching).
    #[arg(long, default_value_t = 4000)]
    prompt_tokens: u32,
    /// Mean tokens of an answer (batching).
    #[arg(long, default_value_t = 1000)]
    output_tokens: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ServerKind {
    /// An H100 that carries 2.99 requests/s of 4000/1000 tokens.
    Batching,
    /// The emulated server of the published comparison: 4 requests/s, arriving evenly.
    Emulated,
}

/// The identity of a pod. The uid tells it from a later pod of the same name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct PodKey {
    namespace: String,
    name: String,
    uid: String,
}

impl PodKey {
    /// Its name in the simulation.
    fn sim_name(&self) -> String {
        format!("{}/{}/{}", self.namespace, self.name, self.uid)
    }
}

struct Simulation {
    kind: ServerKind,
    seed: u64,
    sizes: RequestSizes,
    variant: SimVariant,
    started: Instant,
    fleets: BTreeMap<String, Fleet>,
    /// The model of every pod that has been Ready and has not left the simulation.
    pods: BTreeMap<PodKey, String>,
    /// The endpoint pickers, by the namespace and name of their pods.
    schedulers: BTreeMap<(String, String), Scheduler>,
}

/// An endpoint picker with flow control: it holds the requests for models without pods.
#[derive(Default)]
struct Scheduler {
    era: SchedulerEra,
    /// Requests that wait, and those that have ever arrived, by model.
    queues: BTreeMap<String, (u64, u64)>,
}

/// How an endpoint picker names its metrics.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SchedulerEra {
    #[default]
    Current,
    Earlier,
    /// It answers with something else than metrics.
    Broken,
}

impl Scheduler {
    /// Its metrics page. A queue is split by the requests' fairness and priority; the test's requests have one of each.
    fn page(&self) -> String {
        let prefix = match self.era {
            SchedulerEra::Current => "llm_d_epp",
            SchedulerEra::Earlier => "inference_extension",
            SchedulerEra::Broken => return "<html>502 Bad Gateway</html>\n".repeat(1000),
        };
        let mut page = format!(
            "# TYPE {prefix}_flow_control_queue_size gauge\n# TYPE {prefix}_flow_control_queue_bytes gauge\n\
             # TYPE {prefix}_scheduler_attempts_total counter\n"
        );
        for (model, (waiting, arrived)) in &self.queues {
            let labels = format!(
                "fairness_id=\"default-flow\",priority=\"0\",model_name=\"{model}\",target_model_name=\"{model}\""
            );
            page += &format!("{prefix}_flow_control_queue_size{{{labels}}} {waiting}\n");
            page += &format!("{prefix}_flow_control_queue_bytes{{{labels}}} {}\n", waiting * 2000);
            page += &format!(
                "{prefix}_scheduler_attempts_total{{status=\"success\",model_name=\"{model}\",target_model_name=\"{model}\"}} {}\n",
                arrived - waiting
            );
        }
        page
    }
}

type Shared = Arc<Mutex<Simulation>>;

impl Simulation {
    fn new(args: &Args) -> Self {
        let (physics, sizes) = match args.physics {
            ServerKind::Batching => {
                let (prompt, output) = (f64::from(args.prompt_tokens), f64::from(args.output_tokens));
                (TP1, RequestSizes::uniform(prompt, output, 0.1))
            }
            ServerKind::Emulated => (EMULATED_4RPS, EMULATED_4RPS_SIZES),
        };
        let variant =
            SimVariant { replicas: Replicas::ZERO, ..SimVariant::new("pod", physics, Cost::default()) };
        Self {
            kind: args.physics,
            seed: args.seed,
            sizes,
            variant,
            started: Instant::now(),
            fleets: BTreeMap::new(),
            pods: BTreeMap::new(),
            schedulers: BTreeMap::new(),
        }
    }

    /// The fleet of `model`, made when it is first named; `None` above the limit.
    fn fleet(&mut self, model: &str) -> Option<&mut Fleet> {
        if self.fleets.len() >= MAX_MODELS && !self.fleets.contains_key(model) {
            return None;
        }
        let seed =
            model.bytes().fold(self.seed, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
        let pattern = match self.kind {
            ServerKind::Batching => Pattern::Poisson,
            ServerKind::Emulated => Pattern::Even,
        };
        Some(self.fleets.entry(model.to_owned()).or_insert_with(|| {
            let mut fleet = Fleet::new(self.variant.clone(), self.sizes, seed).with_pattern(pattern);
            fleet.advance(self.started.elapsed());
            fleet
        }))
    }

    /// Catches up with real time and with the cluster.
    fn tick(&mut self, pods: &[Arc<Pod>]) {
        let now = self.started.elapsed();
        self.fleets.values_mut().for_each(|fleet| fleet.advance(now));
        let serving: BTreeMap<PodKey, String> = pods.iter().filter_map(|pod| serving(pod)).collect();
        for (key, model) in &serving {
            if !self.pods.contains_key(key)
                && let Some(fleet) = self.fleet(model)
                && fleet.add_ready_pod(&key.sim_name())
            {
                self.pods.insert(key.clone(), model.clone());
            }
        }
        let fleets = &mut self.fleets;
        self.pods.retain(|key, model| {
            let Some(fleet) = fleets.get_mut(model) else { return false };
            if !serving.contains_key(key) {
                // Also when the object is gone already: a fake kubelet does not wait for the process.
                fleet.delete_pod(&key.sim_name());
            }
            fleet.pod(&key.sim_name()).is_some()
        });
    }

    /// The metrics page of a pod. While an older pod of the same name drains, the newer one answers.
    fn page(&self, namespace: &str, pod: &str) -> Option<String> {
        if let Some(scheduler) = self.schedulers.get(&(namespace.to_owned(), pod.to_owned())) {
            return Some(scheduler.page());
        }
        let named = self.pods.iter().filter(|(key, _)| key.namespace == namespace && key.name == pod);
        let pods =
            named.filter_map(|(key, model)| Some((model, self.fleets.get(model)?.pod(&key.sim_name())?)));
        let (model, pod) = pods.min_by_key(|(_, pod)| pod.phase() == Phase::Terminating)?;
        Some(exposition(pod.readings()?, model))
    }

    fn stats(&self) -> BTreeMap<String, ModelStats> {
        self.fleets.iter().map(|(model, fleet)| (model.clone(), ModelStats::new(fleet))).collect()
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
    let key = PodKey { namespace: pod.namespace()?, name: pod.name_any(), uid: pod.uid()? };
    Some((key, model.clone()))
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
    completed: u64,
    failed: u64,
}

impl ModelStats {
    fn new(fleet: &Fleet) -> Self {
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
            completed: now.finished,
            failed: now.failed,
        }
    }
}

#[derive(Deserialize)]
struct Load {
    model: String,
    rps: f64,
}

/// Requests that wait in the queue of an endpoint picker for a model.
#[derive(Deserialize)]
struct Queue {
    namespace: String,
    pod: String,
    model: String,
    waiting: u64,
    #[serde(default)]
    era: SchedulerEra,
}

async fn metrics(
    State(simulation): State<Shared>,
    Path((namespace, pod)): Path<(String, String)>,
) -> Response {
    match simulation.lock().page(&namespace, &pod) {
        Some(page) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], page).into_response(),
        None => (StatusCode::NOT_FOUND, format!("pod {namespace}/{pod} does not serve\n")).into_response(),
    }
}

async fn load(State(simulation): State<Shared>, Query(load): Query<Load>) -> Response {
    let mut simulation = simulation.lock();
    match simulation.fleet(&load.model) {
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

async fn queue(State(simulation): State<Shared>, Query(queue): Query<Queue>) -> StatusCode {
    let Queue { namespace, pod, model, waiting, era } = queue;
    let mut simulation = simulation.lock();
    let scheduler = simulation.schedulers.entry((namespace, pod)).or_default();
    scheduler.era = era;
    let (now, arrived) = scheduler.queues.entry(model).or_default();
    *arrived += waiting.saturating_sub(*now);
    *now = waiting;
    StatusCode::NO_CONTENT
}

async fn stats(State(simulation): State<Shared>) -> Json<BTreeMap<String, ModelStats>> {
    Json(simulation.lock().stats())
}

async fn reset(State(simulation): State<Shared>) -> StatusCode {
    simulation.lock().fleets.values_mut().for_each(Fleet::reset_stats);
    StatusCode::NO_CONTENT
}

/// Watches the pods and advances the simulation until the watch ends, which it does not by itself.
async fn simulate(simulation: Shared, client: Client) -> anyhow::Result<()> {
    let (store, writer) = reflector::store::<Pod>();
    let config = watcher::Config::default().labels(MODEL_LABEL);
    let events = reflector(writer, watcher(Api::all(client), config).default_backoff());
    let mut events = std::pin::pin!(events);
    let mut ticks = tokio::time::interval(TICK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut listed = false;
    loop {
        tokio::select! {
            event = events.next() => match event.context("the pod watch ended")? {
                Ok(watcher::Event::InitDone) => listed = true,
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "pod watch: trying again"),
            },
            _ = ticks.tick(), if listed => simulation.lock().tick(&store.state()),
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
    let simulation: Shared = Arc::new(Mutex::new(Simulation::new(&args)));
    let routes = Router::new()
        .route("/pods/{namespace}/{pod}/metrics", get(metrics))
        .route("/load", post(load))
        .route("/queue", post(queue))
        .route("/stats", get(stats))
        .route("/stats/reset", post(reset))
        .with_state(simulation.clone());
    let listener = tokio::net::TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("--listen {}: choose a free port", args.listen))?;
    tracing::info!(listen = %args.listen, "fleet");
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        served = axum::serve(listener, routes) => served?,
        ended = simulate(simulation, client) => ended?,
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    Ok(())
}
