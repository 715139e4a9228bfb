//! A load client for metrics API servers: N connections ask for the metric of one variant after another, and the
//! latencies are printed. Works against `wva` and against any other server of external.metrics.k8s.io, so that both
//! can be measured in one run. Not a test: it asserts nothing.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use reqwest::header::{ACCEPT, HeaderMap, HeaderValue};
use reqwest::{Certificate, Client, Identity};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Ask a metrics API server as fast as it answers, and print the latencies.
#[derive(Debug, Clone, Parser)]
struct Args {
    /// The server, as https://host:port.
    #[arg(long)]
    server: String,
    /// The name in its certificate, when it differs from the host; the address is then where to connect.
    #[arg(long, requires = "address")]
    name: Option<String>,
    /// Where to connect, as ip:port.
    #[arg(long, requires = "name")]
    address: Option<std::net::SocketAddr>,
    /// Its CA, PEM.
    #[arg(long)]
    ca: PathBuf,
    /// Our certificate (the front proxy's), PEM.
    #[arg(long)]
    cert: PathBuf,
    /// Its key, PEM.
    #[arg(long)]
    key: PathBuf,
    /// The user in whose name the front proxy asks.
    #[arg(long, default_value = "system:serviceaccount:kube-system:horizontal-pod-autoscaler")]
    user: String,
    /// The namespace of the variants.
    #[arg(long, default_value = "default")]
    namespace: String,
    /// The variant; `{}` is replaced by 0, 1, 2 … below --variants.
    #[arg(long, default_value = "llama")]
    variant: String,
    /// How many variants to go round.
    #[arg(long, default_value_t = 1)]
    variants: usize,
    /// Connections at once.
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Seconds to measure, after one second of warming up.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
        bail!("a second TLS provider is installed");
    }
    let start = Instant::now() + Duration::from_secs(1);
    let end = start + Duration::from_secs(args.seconds);
    let mut asking = JoinSet::new();
    for number in 0..args.connections {
        let (client, args) = (client(&args)?, args.clone());
        asking.spawn(async move { ask(&client, &args, number, start, end).await });
    }
    let mut latencies = Vec::new();
    while let Some(asked) = asking.join_next().await {
        latencies.extend(asked??);
    }
    latencies.sort_unstable();
    report(&args, &latencies);
    Ok(())
}

fn client(args: &Args) -> anyhow::Result<Client> {
    let read = |path: &PathBuf| std::fs::read(path).with_context(|| path.display().to_string());
    let mut identity = read(&args.cert)?;
    identity.extend(read(&args.key)?);
    let mut headers = HeaderMap::new();
    headers.insert("X-Remote-User", HeaderValue::from_str(&args.user)?);
    headers.insert("X-Remote-Group", HeaderValue::from_static("system:authenticated"));
    headers.insert(ACCEPT, HeaderValue::from_static("application/vnd.kubernetes.protobuf, */*"));
    let mut builder = Client::builder()
        .tls_certs_only(Certificate::from_pem_bundle(&read(&args.ca)?)?)
        .identity(Identity::from_pem(&identity)?)
        .default_headers(headers)
        .no_proxy();
    if let (Some(name), Some(address)) = (&args.name, args.address) {
        builder = builder.resolve(name, address);
    }
    Ok(builder.build()?)
}

/// One connection: asks until `end`; what began after `start` counts.
async fn ask(
    client: &Client,
    args: &Args,
    first: usize,
    start: Instant,
    end: Instant,
) -> anyhow::Result<Vec<Duration>> {
    let mut latencies = Vec::new();
    for turn in first.. {
        let variant = args.variant.replace("{}", &(turn % args.variants).to_string());
        let url = format!(
            "{}/apis/external.metrics.k8s.io/v1beta1/namespaces/{}/wva_desired_replicas?labelSelector=variant_name%3D{variant}",
            args.server, args.namespace
        );
        let asked = Instant::now();
        if asked >= end {
            break;
        }
        let answer = client.get(url).send().await?;
        let status = answer.status();
        let body = answer.bytes().await?;
        if !status.is_success() {
            bail!("{variant}: {status}: {}", String::from_utf8_lossy(&body));
        }
        if asked >= start {
            latencies.push(asked.elapsed());
        }
    }
    Ok(latencies)
}

#[expect(clippy::print_stdout, reason = "the result")]
fn report(args: &Args, sorted: &[Duration]) {
    let at = |permille: usize| {
        let place = (sorted.len() * permille / 1000).min(sorted.len().saturating_sub(1));
        sorted.get(place).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1000.0)
    };
    println!(
        "{} variants, {} connections: {:.0} answers/s, p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms",
        args.variants,
        args.connections,
        sorted.len() as f64 / args.seconds as f64,
        at(500),
        at(990),
        at(999)
    );
}
