//! A load client for metrics API servers: connections that ask for the metric of one variant after another, and the
//! latencies. Works against `wva` and against any other server of the same paths, so that all can be measured in one
//! run by the same client. Not a test: it asserts nothing but that every answer is a success.

mod age;
mod connection;
mod report;

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use clap::{Parser, Subcommand, ValueEnum};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use self::connection::{Peer, Question, Sender};
use self::report::Latencies;

/// A first second is asked and not counted: caches fill, and the client's own code is paged in.
const WARM_UP: Duration = Duration::from_secs(1);
/// A server that stops answering ends the run with an error this long after it should have ended.
const GRACE: Duration = Duration::from_secs(30);

#[derive(Debug, Parser)]
#[command(about = "Ask a metrics API server as fast as it answers, and print the latencies.")]
struct Args {
    #[command(subcommand)]
    what: What,
    /// How to print what was seen.
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
enum What {
    /// One variant after another, as the HPA controller asks.
    Reads {
        #[command(flatten)]
        peer: Peer,
        /// How many variants to go round.
        #[arg(long, default_value_t = 1)]
        variants: usize,
        /// Connections at once, each with one request under way.
        #[arg(long, default_value_t = 1)]
        connections: usize,
        /// Seconds to measure, after one second of warming up.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
    /// Everything at once: one request without a selector, again and again on one connection.
    List {
        #[command(flatten)]
        peer: Peer,
        /// Seconds to measure, after one list that does not count; two lists at least.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
    /// How old the evidence behind the answers is, and how much of that is not the scrape's.
    Age(age::Args),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
        bail!("a second TLS provider is installed");
    }
    match args.what {
        What::Reads { peer, variants, connections, seconds } => {
            let seen = reads(&peer, variants, connections, seconds).await?;
            print(args.output, &seen.text(), &seen);
        }
        What::List { peer, seconds } => {
            let seen = list(&peer, seconds).await?;
            print(args.output, &seen.text(), &seen);
        }
        What::Age(of) => {
            let seen = age::measure(of).await?;
            print(args.output, &seen.text(), &seen);
        }
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the result")]
fn print(output: Output, text: &str, seen: &impl serde::Serialize) {
    match output {
        Output::Text => println!("{text}"),
        Output::Json => println!("{}", serde_json::json!(seen)),
    }
}

async fn reads(
    peer: &Peer,
    variants: usize,
    connections: usize,
    seconds: u64,
) -> anyhow::Result<report::Reads> {
    let (tls, questions) = (peer.tls()?, Arc::new(peer.questions(variants.max(1))?));
    let start = Instant::now() + WARM_UP;
    let end = start + Duration::from_secs(seconds);
    let mut asking = JoinSet::new();
    for number in 0..connections {
        let (peer, tls, questions) = (peer.clone(), tls.clone(), questions.clone());
        // Spread over the variants, so that connections do not ask for the same one at the same time.
        let first = number * questions.len() / connections;
        asking.spawn(async move {
            let run =
                peer.with_connection(&tls, async |sender| ask(sender, &questions, first, start, end).await);
            timeout_at(end + GRACE, run).await?
        });
    }
    let mut all = Latencies::default();
    while let Some(asked) = asking.join_next().await {
        all.extend(asked??);
    }
    Ok(report::Reads::of(variants, connections, seconds as f64, all))
}

/// One connection: asks until `end`; what began after `start` counts.
async fn ask(
    mut sender: Sender,
    questions: &[Question],
    first: usize,
    start: Instant,
    end: Instant,
) -> anyhow::Result<Latencies> {
    let mut seen = Latencies::default();
    for question in questions.iter().cycle().skip(first) {
        let asked = Instant::now();
        if asked >= end {
            break;
        }
        let body = sender.ask(question).await?;
        seen.add(asked.elapsed(), body.len(), asked >= start);
    }
    Ok(seen)
}

async fn list(peer: &Peer, seconds: u64) -> anyhow::Result<report::List> {
    let (tls, question) = (peer.tls()?, peer.question("")?);
    let lists = peer.with_connection(&tls, async |mut sender| {
        sender.ask(&question).await?;
        let (mut seen, end) = (Latencies::default(), Instant::now() + Duration::from_secs(seconds));
        while seen.count() < 2 || Instant::now() < end {
            let asked = Instant::now();
            let body = sender.ask(&question).await?;
            seen.add(asked.elapsed(), body.len(), true);
        }
        Ok(seen)
    });
    let seen = timeout_at(Instant::now() + Duration::from_secs(seconds) + GRACE * 2, lists).await??;
    Ok(report::List::of(seen))
}
