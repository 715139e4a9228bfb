//! The model servers of the measurements: all series of many pods on a few pages, with the labels that a scrape of each pod would
//! add (`honor_labels`). 20,000 pages would measure the scraper of Prometheus instead. The load is steady for most variants, and
//! for some from time to time too high or too low. Not part of wva.

mod attacks;
mod families;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use clap::Parser;
use tokio::time::Instant;
use wva::cmd::fleet::CONTENT_TYPE;

/// Serve the vLLM metrics of the pods `v-VARIANT-POD` under `/pages/PAGE`, those of hostile servers under `/attacks/NAME` (ports,
/// labels, strangers, impostor), and other metrics of the pods `p-OBJECT` under `/families/PAGE`.
#[derive(Debug, Parser)]
struct Args {
    /// Address to serve on.
    #[arg(long)]
    listen: SocketAddr,
    /// Number of variants, each with a model of its own.
    #[arg(long, default_value_t = 0)]
    variants: usize,
    /// Pods of each variant.
    #[arg(long, default_value_t = 2)]
    pods: usize,
    /// Number of pages. The pods of a variant are on the same page.
    #[arg(long, default_value_t = 20)]
    pages: usize,
    /// Their namespace.
    #[arg(long, default_value = "llm")]
    namespace: String,
    /// Number of the last variants that are hostile: each of their pods has hundreds of engines and a label of 4 KiB.
    #[arg(long, default_value_t = 0)]
    hostile: usize,
    /// Number of other metrics: `app_0` …
    #[arg(long, default_value_t = 0)]
    families: usize,
    /// Number of pods that have all of these.
    #[arg(long, default_value_t = 1000)]
    objects: usize,
}

/// Engines of a hostile pod: 200 × 6 names × 4 KiB are 5 MB a pod.
const HOSTILE_ENGINES: usize = 200;
/// Bytes of its label.
const HOSTILE_LABEL_BYTES: usize = 4096;

/// A name, its type, and the value of a pod at a time. A tuple, so that the table below has a metric per line.
type ExportedMetric = (&'static str, &'static str, fn(PodState) -> f64);

/// The metrics of a page: those that the default policy needs, of engines that conserve requests and tokens. The size of the cache
/// is in labels: see [`CACHE_LABELS`].
const NAMES: [ExportedMetric; 17] = [
    ("kv_cache_usage_perc", "gauge", |at| at.running() * HELD_TOKENS / CACHE_TOKENS),
    ("num_requests_waiting", "gauge", |_| 0.0),
    ("num_requests_running", "gauge", |at| at.running()),
    ("cache_config_info", "gauge", |_| 1.0),
    ("time_to_first_token_seconds_count", "counter", |at| at.started()),
    ("time_to_first_token_seconds_sum", "counter", |at| at.started() * FIRST_TOKEN_S),
    ("prompt_tokens_total", "counter", |at| at.started() * PROMPT_TOKENS),
    ("prefix_cache_queries_total", "counter", |at| at.started() * PROMPT_TOKENS),
    ("prefix_cache_hits_total", "counter", |_| 0.0),
    ("request_prompt_tokens_count", "counter", |at| at.finished()),
    ("request_prompt_tokens_sum", "counter", |at| at.finished() * PROMPT_TOKENS),
    ("request_generation_tokens_count", "counter", |at| at.finished()),
    ("request_generation_tokens_sum", "counter", |at| at.finished() * OUTPUT_TOKENS),
    ("generation_tokens_total", "counter", |at| {
        (at.arrived(at.seconds - RESIDENCE_S / 2.0) * OUTPUT_TOKENS).floor()
    }),
    ("inter_token_latency_seconds_count", "counter", |at| {
        (at.arrived(at.seconds - RESIDENCE_S / 2.0) * (OUTPUT_TOKENS - 1.0)).floor()
    }),
    ("inter_token_latency_seconds_sum", "counter", |at| {
        at.arrived(at.seconds - RESIDENCE_S / 2.0) * (OUTPUT_TOKENS - 1.0) * STEP_S
    }),
    ("iteration_tokens_total_count", "counter", |at| (at.seconds / STEP_S).floor()),
];

/// Tokens of a prompt.
const PROMPT_TOKENS: f64 = 1000.0;
/// Tokens of an answer.
const OUTPUT_TOKENS: f64 = 200.0;
/// Seconds of a step, which gives every running request one token.
const STEP_S: f64 = 0.02;
/// Seconds from a request's arrival to its first token.
const FIRST_TOKEN_S: f64 = 0.06;
/// Seconds that a request runs.
const RESIDENCE_S: f64 = OUTPUT_TOKENS * STEP_S;
/// Tokens that a running request holds on average.
const HELD_TOKENS: f64 = PROMPT_TOKENS + OUTPUT_TOKENS / 2.0;
/// The size of the cache: twelve requests fill half of it.
const CACHE_TOKENS: f64 = 1650.0 * 16.0;
/// The same as labels of `cache_config_info`.
const CACHE_LABELS: &str = "block_size=\"16\",num_gpu_blocks=\"1650\",";
/// Mean requests a second of a pod.
const RPS: f64 = 3.0;
/// Seconds of a wave of load.
const PERIOD_S: f64 = 300.0;

/// An engine, by its indices.
#[derive(Clone, Copy)]
struct EngineId {
    variant: usize,
    pod: usize,
    engine: usize,
}

/// A pod at a time.
#[derive(Clone, Copy)]
struct PodState {
    variant: usize,
    pod: usize,
    seconds: f64,
}

impl PodState {
    /// Requests that had arrived by `seconds`: [`RPS`] with a wave of five minutes, in which each variant has its own phase. The
    /// amplitude of one variant in twenty is so large that its number of replicas changes.
    fn arrived(self, seconds: f64) -> f64 {
        let swing = if self.variant.is_multiple_of(20) { 0.5 } else { 0.1 };
        let angular_rate = std::f64::consts::TAU / PERIOD_S;
        let phase = self.variant as f64 + 0.1 * self.pod as f64;
        RPS * (seconds + swing * (phase.cos() - (seconds * angular_rate + phase).cos()) / angular_rate)
    }

    fn started(self) -> f64 {
        self.arrived(self.seconds).floor()
    }

    fn finished(self) -> f64 {
        self.arrived(self.seconds - RESIDENCE_S).floor()
    }

    fn running(self) -> f64 {
        self.started() - self.finished()
    }
}

struct Exporter {
    args: Args,
    started: Instant,
    attacks: BTreeMap<&'static str, Bytes>,
}

impl Exporter {
    /// The variants of a page.
    fn variants(&self, page: usize) -> std::ops::Range<usize> {
        self.part(page, self.args.variants)
    }

    /// What a page has of a `total`: the same number on each page but the last.
    fn part(&self, page: usize, total: usize) -> std::ops::Range<usize> {
        let per_page = total.div_ceil(self.args.pages.max(1));
        let from = (page * per_page).min(total);
        from..(from + per_page).min(total)
    }

    fn page(&self, page: usize) -> String {
        // A line is about 150 bytes.
        let lines = self.variants(page).len() * self.args.pods * NAMES.len();
        let mut text = String::with_capacity(lines * 160);
        // Pods have been counting for an hour before the first scrape.
        let seconds = 3600.0 + self.started.elapsed().as_secs_f64();
        for (name, kind, value) in NAMES {
            let _ = writeln!(text, "# TYPE vllm:{name} {kind}");
            for variant in self.variants(page) {
                for pod in 0..self.args.pods {
                    let is_hostile = variant + self.args.hostile >= self.args.variants;
                    let engines = if is_hostile { HOSTILE_ENGINES } else { 1 };
                    for engine in 0..engines {
                        let value = value(PodState { variant, pod, seconds });
                        self.write_line(&mut text, name, EngineId { variant, pod, engine }, value);
                    }
                }
            }
        }
        text
    }

    /// Writing to a `String` cannot fail.
    fn write_line(&self, text: &mut String, name: &str, engine: EngineId, value: f64) {
        let EngineId { variant, pod, engine } = engine;
        let namespace = &self.args.namespace;
        let (high, low) = (variant >> 8 & 0xff, variant & 0xff);
        let _ = write!(text, "vllm:{name}{{engine=\"{engine}\",model_name=\"v-{variant}\",");
        if name == "cache_config_info" {
            text.push_str(CACHE_LABELS);
        }
        if variant + self.args.hostile >= self.args.variants {
            let _ = write!(text, "ballast=\"{:0HOSTILE_LABEL_BYTES$}\",", 0);
        }
        let _ = writeln!(
            text,
            "namespace=\"{namespace}\",pod=\"v-{variant}-{pod}\",instance=\"10.{pod}.{high}.{low}:8000\"}} {value:?}"
        );
    }
}

async fn page(State(exporter): State<Arc<Exporter>>, Path(page): Path<usize>) -> Response {
    if page >= exporter.args.pages {
        return (StatusCode::NOT_FOUND, format!("there are {} pages\n", exporter.args.pages)).into_response();
    }
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], exporter.page(page)).into_response()
}

async fn family_page(State(exporter): State<Arc<Exporter>>, Path(page): Path<usize>) -> Response {
    let Args { families, objects, ref namespace, .. } = exporter.args;
    let objects = exporter.part(page, objects);
    let text = families::page(families, objects, namespace, exporter.started.elapsed().as_secs());
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response()
}

async fn attack(State(exporter): State<Arc<Exporter>>, Path(name): Path<String>) -> Response {
    match exporter.attacks.get(name.as_str()) {
        Some(page) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], page.clone()).into_response(),
        None => (StatusCode::NOT_FOUND, "there is no such attack\n").into_response(),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let listener = tokio::net::TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("--listen {}: choose a free port", args.listen))?;
    let exporter = Arc::new(Exporter { args, started: Instant::now(), attacks: attacks::pages() });
    let routes = Router::new()
        .route("/pages/{page}", get(page))
        .route("/families/{page}", get(family_page))
        .route("/attacks/{name}", get(attack))
        .with_state(exporter);
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        served = axum::serve(listener, routes) => served?,
        _ = terminate.recv() => {}
    }
    Ok(())
}
