//! The model servers of the measurements: every series of many pods on a few pages, each with the labels that a scrape
//! of the pod itself would have given it (`honor_labels`). 20,000 pages would measure Prometheus's scraper instead.
//! The load is steady for most variants, and too much or too little from time to time for some. Not part of the product.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use clap::Parser;
use tokio::time::Instant;
use wva::cmd::fleet::CONTENT_TYPE;

/// Serve the vLLM metrics of the pods `v-VARIANT-POD` under `/pages/PAGE`.
#[derive(Debug, Parser)]
struct Args {
    /// Where to serve.
    #[arg(long)]
    listen: SocketAddr,
    /// How many variants, each a model of its own.
    #[arg(long)]
    variants: usize,
    /// How many pods each has.
    #[arg(long, default_value_t = 2)]
    pods: usize,
    /// On how many pages; the pods of a variant are on one.
    #[arg(long, default_value_t = 20)]
    pages: usize,
    /// Their namespace.
    #[arg(long, default_value = "llm")]
    namespace: String,
    /// So many of the last variants are hostile: each pod has hundreds of engines, and a label of 4 KiB.
    #[arg(long, default_value_t = 0)]
    hostile: usize,
}

/// Engines of a hostile pod, and the bytes of its label: 200 × 6 names × 4 KiB are 5 MB a pod.
const HOSTILE_ENGINES: usize = 200;
const HOSTILE_LABEL: usize = 4096;

/// A name, its type, and what a pod says at a moment.
type Exported = (&'static str, &'static str, fn(Moment) -> f64);

/// What is on a page: the names that wva asks for.
const NAMES: [Exported; 6] = [
    ("kv_cache_usage_perc", "gauge", |at| 0.55 + at.swing() * at.wave()),
    ("num_requests_waiting", "gauge", |at| (1.0 + at.wave()).floor()),
    ("num_requests_running", "gauge", |at| (12.0 + 4.0 * at.wave()).floor()),
    ("time_to_first_token_seconds_count", "counter", |at| (at.seconds * 2.0).floor()),
    ("request_generation_tokens_count", "counter", |at| (at.seconds * 2.0).floor()),
    ("request_prompt_tokens_count", "counter", |at| (at.seconds * 2.0).floor()),
];

/// A pod at a time.
#[derive(Clone, Copy)]
struct Moment {
    variant: usize,
    pod: usize,
    seconds: f64,
}

impl Moment {
    /// Between -1 and 1, with a period of five minutes and each pod at its own place in it.
    fn wave(self) -> f64 {
        (self.seconds / 300.0 * std::f64::consts::TAU + (self.variant + self.pod) as f64).sin()
    }

    /// At 0.55 a load fits on two pods and not on one. One variant in twenty swings so far that its number changes.
    fn swing(self) -> f64 {
        if self.variant.is_multiple_of(20) { 0.25 } else { 0.05 }
    }
}

struct World {
    args: Args,
    began: Instant,
}

impl World {
    /// Which variants are on a page: as many on each, but for the last.
    fn variants(&self, page: usize) -> std::ops::Range<usize> {
        let each = self.args.variants.div_ceil(self.args.pages.max(1));
        let from = (page * each).min(self.args.variants);
        from..(from + each).min(self.args.variants)
    }

    fn page(&self, page: usize) -> String {
        // A line is about 150 bytes.
        let lines = self.variants(page).len() * self.args.pods * NAMES.len();
        let mut text = String::with_capacity(lines * 160);
        // A pod has been counting for an hour when the first scrape sees it.
        let seconds = 3600.0 + self.began.elapsed().as_secs_f64();
        for (name, kind, value) in NAMES {
            let _ = writeln!(text, "# TYPE vllm:{name} {kind}");
            for variant in self.variants(page) {
                for pod in 0..self.args.pods {
                    let hostile = variant + self.args.hostile >= self.args.variants;
                    let engines = if hostile { HOSTILE_ENGINES } else { 1 };
                    for engine in 0..engines {
                        let value = value(Moment { variant, pod, seconds });
                        self.line(&mut text, name, (variant, pod, engine), value);
                    }
                }
            }
        }
        text
    }

    /// Writing to a `String` cannot fail.
    fn line(&self, text: &mut String, name: &str, pod: (usize, usize, usize), value: f64) {
        let (variant, pod, engine) = pod;
        let namespace = &self.args.namespace;
        let (high, low) = (variant >> 8 & 0xff, variant & 0xff);
        let _ = write!(text, "vllm:{name}{{engine=\"{engine}\",model_name=\"v-{variant}\",");
        if variant + self.args.hostile >= self.args.variants {
            let _ = write!(text, "ballast=\"{:0HOSTILE_LABEL$}\",", 0);
        }
        let _ = writeln!(
            text,
            "namespace=\"{namespace}\",pod=\"v-{variant}-{pod}\",instance=\"10.{pod}.{high}.{low}:8000\"}} {value:?}"
        );
    }
}

async fn page(State(world): State<Arc<World>>, Path(page): Path<usize>) -> Response {
    if page >= world.args.pages {
        return (StatusCode::NOT_FOUND, format!("there are {} pages\n", world.args.pages)).into_response();
    }
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], world.page(page)).into_response()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let listener = tokio::net::TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("--listen {}: choose a free port", args.listen))?;
    let world = Arc::new(World { args, began: Instant::now() });
    let routes = Router::new().route("/pages/{page}", get(page)).with_state(world);
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        served = axum::serve(listener, routes) => served?,
        _ = terminate.recv() => {}
    }
    Ok(())
}
