//! Measures the cost of evaluations: `cargo run --profile dist --example evaluation -- --help`. It starts a fake cluster of N variants
//! with two pods each and a fake Prometheus (`backend`, in a process of its own, so that its memory and time do not count), runs
//! the real watches, source and engine against them, and prints wall time by step, processor time and resident memory. Not a test:
//! it asserts nothing.

mod backend;
mod process;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use futures::future::BoxFuture;
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;
use serde::de::value::{Error as NameError, StrDeserializer};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use wva::cluster::{ClusterReader, ClusterWatch, WatchSettings};
use wva::collect::{PrometheusSettings, PrometheusSource};
use wva::engine::{
    Board, Clock, Cluster, Engine, Holder, Leadership, MetricSource, NamedModels, Parts, Restored, Scope,
    SystemClock, Term, assemble,
};
use wva::telemetry::EvaluationMetrics;
use wva_core::model::Analyzer;
use wva_core::{Memory, Policy};

use process::{Cost, resident_mib};

/// The allocator of wva.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measure evaluations of many variants against a fake cluster and a fake Prometheus.
#[derive(Debug, Clone, Parser)]
struct Args {
    /// Number of variants, each with a model of its own and two pods.
    #[arg(long, default_value_t = 1000)]
    variants: usize,
    /// Evaluations to measure, after two of warm-up.
    #[arg(long, default_value_t = 10)]
    rounds: u32,
    /// Seconds between two evaluations. Memory that is returned to the system in between shows in the steady memory.
    #[arg(long, default_value_t = 1.0)]
    pause: f64,
    /// Pods have all series of vLLM that wva reads, instead of the six of the reference figures.
    #[arg(long)]
    all_names: bool,
    /// The analyzer, by its name in a ConfigMap.
    #[arg(long, default_value = "saturation-percent")]
    analyzer: String,
    /// Query this Prometheus, which scrapes the example `exporter`, instead of a fake one.
    #[arg(long)]
    prometheus: Option<String>,
    /// Log the duration of every query.
    #[arg(long)]
    queries: bool,
    /// Run the fake cluster and Prometheus, and print their URL.
    #[arg(long, hide = true)]
    backend: bool,
}

/// A clock that stands at the time of the fake data.
struct FixedClock(Timestamp);

impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        self.0
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(sleep(duration))
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
        bail!("a second TLS provider is installed");
    }
    if args.backend {
        return backend::serve(args.variants, args.all_names).await;
    }
    if args.queries {
        let spans = tracing_subscriber::fmt::format::FmtSpan::CLOSE;
        tracing_subscriber::fmt().with_span_events(spans).with_env_filter("off,wva::collect=info").init();
    }
    let (_backend, url) = start_backend(&args)?;
    let before = resident_mib()?;
    let (cluster, stop) = watch_cluster(&url).await?;
    print_line(&format!("{} variants, {} pods", args.variants, 2 * args.variants));
    print_line(&format!(
        "memory: {before} MiB at the start, {} MiB with the watches synced",
        resident_mib()?
    ));
    let clock: Arc<dyn Clock> = match args.prometheus {
        Some(_) => Arc::new(SystemClock),
        None => Arc::new(FixedClock(backend::timestamp()?)),
    };
    let url = args.prometheus.clone().unwrap_or(url);
    let settings = PrometheusSettings::new(&url);
    let source: Arc<dyn MetricSource> = Arc::new(PrometheusSource::new(&settings)?);
    measure_evaluations(&args, &cluster, &source, &clock).await?;
    measure_steps(&args, &cluster, &source, &clock).await?;
    let start = Cost::now()?;
    let bytes = backend::fetch(&url).await?;
    print_line(&format!("  reading the answer without using it: {bytes} bytes in {}", start.until_now()?));
    stop.cancel();
    Ok(())
}

fn start_backend(args: &Args) -> anyhow::Result<(Child, String)> {
    let mut command = Command::new(Path::new("/proc/self/exe"));
    command.args(["--backend", "--variants", &args.variants.to_string()]);
    if args.all_names {
        command.arg("--all-names");
    }
    // It ends when its standard input is closed, with this process.
    let mut child = command.stdout(Stdio::piped()).stdin(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
    let url = lines.next().context("the backend did not start")??;
    Ok((child, url))
}

async fn watch_cluster(url: &str) -> anyhow::Result<(ClusterReader, CancellationToken)> {
    let client = kube::Client::try_from(kube::Config::new(url.parse()?))?;
    let (watching, cluster) = ClusterWatch::new(client, WatchSettings::default());
    let stop = CancellationToken::new();
    #[expect(clippy::disallowed_methods, reason = "ends with the program")]
    let _running = tokio::spawn(watching.run(stop.clone()));
    let mut observed = cluster.subscribe();
    observed.wait_for(|observed| observed.view.synced).await?;
    Ok((cluster, stop))
}

/// Measures whole evaluations, as the process runs them.
async fn measure_evaluations(
    args: &Args,
    cluster: &ClusterReader,
    source: &Arc<dyn MetricSource>,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<()> {
    let holder = Some(Holder { identity: "wva-0".into(), address: None, lease: "l".into(), epoch: 1 });
    let forever = Some(Instant::now() + Duration::from_secs(86_400));
    let leadership = watch::Sender::new(Leadership { holder, mine_until: forever });
    let parts = Parts {
        cluster: Arc::new(cluster.clone()),
        source: source.clone(),
        clock: clock.clone(),
        board: Board::new(),
        leadership: leadership.subscribe(),
        metrics: EvaluationMetrics::register(&mut Registry::default()),
    };
    let engine = Arc::new(Engine::new(parts, policy(&args.analyzer)?));
    engine.take_over(Restored::default(), Term { lease: "l".into(), epoch: 1 });
    for _ in 0..2 {
        engine.evaluate().await;
    }
    process::reset_peak()?;
    let mut total = Cost::default();
    let mut steady = 0;
    for _ in 0..args.rounds {
        sleep(Duration::from_secs_f64(args.pause)).await;
        steady = steady.max(resident_mib()?);
        let start = Cost::now()?;
        let published = engine.evaluate().await;
        total = total + start.until_now()?;
        if published.decisions.len() != args.variants {
            bail!("{} decisions", published.decisions.len());
        }
    }
    let mean = total / args.rounds;
    let peak = process::peak_mib()?;
    print_line(&format!("evaluation: {mean}"));
    print_line(&format!("memory: {steady} MiB steady, {peak} MiB peak"));
    Ok(())
}

/// The default policy with another analyzer.
fn policy(analyzer: &str) -> anyhow::Result<Policy> {
    let mut policy = Policy::default();
    let name: StrDeserializer<'_, NameError> = analyzer.into_deserializer();
    policy.global.default.analyzer = Analyzer::deserialize(name).context("--analyzer")?;
    Ok(policy)
}

/// Measures the steps of an evaluation.
async fn measure_steps(
    args: &Args,
    cluster: &ClusterReader,
    source: &Arc<dyn MetricSource>,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<()> {
    let steps = ["view and scope", "collect", "assemble", "observe", "decide", "drop"];
    let mut costs = [Cost::default(); 6];
    let mut memory = Memory::default();
    let policy = policy(&args.analyzer)?;
    let mut series = 0;
    for _ in 0..args.rounds {
        let mut marks = vec![Cost::now()?];
        let view = cluster.view();
        let namespaces = view.variants.iter().map(|state| state.variant.id.namespace.to_string()).collect();
        let variants = view.variants.iter().map(|state| &state.variant);
        let needs = Some(wva_core::required_signals(&policy, variants));
        let scope = Scope { namespaces, endpoints: view.endpoints.clone(), schedulers: Vec::new(), needs };
        marks.push(Cost::now()?);
        let collected = source.collect(&scope).await?;
        series = collected.series.len();
        marks.push(Cost::now()?);
        let snapshot = assemble(&view, &NamedModels::new(), Ok(collected), clock.now()).snapshot;
        marks.push(Cost::now()?);
        let observed = wva_core::observe(&snapshot, memory);
        marks.push(Cost::now()?);
        let outcome = wva_core::decide(&snapshot, &observed, &policy);
        memory = outcome.memory;
        marks.push(Cost::now()?);
        drop((snapshot, observed, outcome.decisions, outcome.report));
        marks.push(Cost::now()?);
        for ((cost, from), to) in costs.iter_mut().zip(&marks).zip(marks.iter().skip(1)) {
            *cost = *cost + (*to - *from);
        }
    }
    for (step, cost) in steps.iter().zip(costs) {
        print_line(&format!("  {step:<15} {}", cost / args.rounds));
    }
    print_line(&format!("  {series} series"));
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the result")]
fn print_line(line: &str) {
    println!("{line}");
}
