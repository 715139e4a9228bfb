//! A load client for metrics API servers: connections that read the metric of one variant after another, and their latencies. It
//! works with `wva` and with any other server of the same paths, so that all can be measured in one run by the same client. Not a
//! test: it only asserts that every answer is a success.

mod age;
mod connection;
mod report;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use clap::{Parser, Subcommand, ValueEnum};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use self::connection::{ApiServer, ReadRequest, Sender};
use self::report::Latencies;

/// The first second is not measured: caches fill, and the client's own code is paged in.
const WARM_UP_DURATION: Duration = Duration::from_secs(1);
/// How long after its end a run fails because the server does not answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Parser)]
#[command(about = "Read from a metrics API server as fast as it answers, and print the latencies.")]
struct Args {
    #[command(subcommand)]
    measurement: Measurement,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Output::Text, global = true)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A line for people.
    Text,
    /// One flat JSON object.
    Json,
}

#[derive(Debug, Subcommand)]
enum Measurement {
    /// Read one variant after another, like the HPA controller, or one request of a file after another.
    Reads {
        #[command(flatten)]
        server: ApiServer,
        /// Number of variants.
        #[arg(long, default_value_t = 1)]
        variants: usize,
        /// File with one path and query per line, which are read instead of variants.
        #[arg(long)]
        requests: Option<PathBuf>,
        /// Concurrent connections, each with one request at a time.
        #[arg(long, default_value_t = 1)]
        connections: usize,
        /// Seconds to measure, after one second of warm-up.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
    /// Read all variants at once: requests without a selector on one connection.
    List {
        #[command(flatten)]
        server: ApiServer,
        /// Seconds to measure, after one unmeasured list; at least two lists.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
    /// Measure the age of the evidence behind answers, and how much of it is not the age of the scrape.
    Age(age::Args),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
        bail!("a second TLS provider is installed");
    }
    match args.measurement {
        Measurement::Reads { server, variants, requests, connections, seconds } => {
            let requests = match requests {
                Some(file) => server.listed_requests(&file)?,
                None => server.read_requests(variants.max(1))?,
            };
            let result = reads(&server, requests, connections, seconds).await?;
            print(args.output, &result.text(), &result);
        }
        Measurement::List { server, seconds } => {
            let result = list(&server, seconds).await?;
            print(args.output, &result.text(), &result);
        }
        Measurement::Age(age_args) => {
            let result = age::measure(age_args).await?;
            print(args.output, &result.text(), &result);
        }
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the result")]
fn print(output: Output, text: &str, result: &impl serde::Serialize) {
    match output {
        Output::Text => println!("{text}"),
        Output::Json => println!("{}", serde_json::json!(result)),
    }
}

async fn reads(
    server: &ApiServer,
    requests: Vec<ReadRequest>,
    connections: usize,
    seconds: u64,
) -> anyhow::Result<report::Reads> {
    let tls = server.tls()?;
    let requests = Arc::new(requests);
    let start = Instant::now() + WARM_UP_DURATION;
    let end = start + Duration::from_secs(seconds);
    let mut readers = JoinSet::new();
    for number in 0..connections {
        let server = server.clone();
        let tls = tls.clone();
        let requests = requests.clone();
        // Spread over the requests, so that connections do not read the same one at the same time.
        let first = number * requests.len() / connections;
        readers.spawn(async move {
            let run =
                server.with_connection(&tls, async |sender| read(sender, &requests, first, start, end).await);
            timeout_at(end + ANSWER_TIMEOUT, run).await?
        });
    }
    let mut all = Latencies::default();
    while let Some(latencies) = readers.join_next().await {
        all.extend(latencies??);
    }
    Ok(report::Reads::new(requests.len(), connections, seconds as f64, all))
}

/// Reads on one connection until `end`. Requests from `start` on are measured.
async fn read(
    mut sender: Sender,
    requests: &[ReadRequest],
    first: usize,
    start: Instant,
    end: Instant,
) -> anyhow::Result<Latencies> {
    let mut latencies = Latencies::default();
    for request in requests.iter().cycle().skip(first) {
        let started = Instant::now();
        if started >= end {
            break;
        }
        let body = sender.read(request).await?;
        latencies.add(started.elapsed(), body.len(), started >= start);
    }
    Ok(latencies)
}

async fn list(server: &ApiServer, seconds: u64) -> anyhow::Result<report::List> {
    let tls = server.tls()?;
    let request = server.read_request("")?;
    let lists = server.with_connection(&tls, async |mut sender| {
        sender.read(&request).await?;
        let mut latencies = Latencies::default();
        let end = Instant::now() + Duration::from_secs(seconds);
        while latencies.count() < 2 || Instant::now() < end {
            let started = Instant::now();
            let body = sender.read(&request).await?;
            latencies.add(started.elapsed(), body.len(), true);
        }
        Ok(latencies)
    });
    let latencies =
        timeout_at(Instant::now() + Duration::from_secs(seconds) + ANSWER_TIMEOUT * 2, lists).await??;
    Ok(report::List::new(latencies))
}
