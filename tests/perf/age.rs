//! How old the evidence behind an answer is. Every answer says when its evidence was measured; Prometheus says how new
//! the newest sample of the same variant's pods is at that moment. The difference is what is added between Prometheus
//! and the caller: waiting for the next evaluation, and its own time.

use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::connection::{Peer, Question, Sender};
use super::report::Ages;

/// For one answer of Prometheus or of the server.
const PATIENCE: Duration = Duration::from_secs(10);
/// Variants are visited with this stride, a prime, so that neighbours, scraped together, are far apart in time.
const STRIDE: usize = 7919;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    peer: Peer,
    /// How many variants there are.
    #[arg(long, default_value_t = 1)]
    variants: usize,
    /// Seconds to measure; several scrapes long, or the moments of the scrape are not all seen.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Reads a second: so few that reading costs the server nothing.
    #[arg(long, default_value_t = 20)]
    rate: u32,
    /// Prometheus, as http://host:port.
    #[arg(long)]
    prometheus: String,
}

/// Reads slowly, for so long, and compares.
pub(crate) async fn measure(args: Args) -> anyhow::Result<Ages> {
    let Args { peer, variants, seconds, rate, prometheus } = args;
    let peer = peer.in_json();
    let (tls, questions) = (peer.tls()?, peer.questions(variants.max(1))?);
    let prometheus = Prometheus { url: format!("{prometheus}/api/v1/query"), client: reqwest::Client::new() };
    let mut ticks = interval(Duration::from_secs(1) / rate.max(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let end = Instant::now() + Duration::from_secs(seconds);
    let seen = peer.with_connection(&tls, async |mut sender| {
        let mut seen = Vec::new();
        while Instant::now() < end {
            ticks.tick().await;
            let variant = seen.len() * STRIDE % questions.len();
            let question = questions.get(variant).context("no variant to ask for")?;
            seen.push(timeout(PATIENCE, one(&mut sender, question, &prometheus, variant)).await??);
        }
        Ok(seen)
    });
    Ok(Ages::of(&seen.await?))
}

/// The age of one answer's evidence, and how much of it is above the scrape's own. Prometheus is asked after the server:
/// a scrape in between counts against the server.
async fn one(
    sender: &mut Sender,
    question: &Question,
    prometheus: &Prometheus,
    variant: usize,
) -> anyhow::Result<(f64, f64)> {
    let body: Value = serde_json::from_slice(&sender.ask(question).await?)?;
    let at = body
        .pointer("/items/0/timestamp")
        .and_then(Value::as_str)
        .context("an answer without a timestamp")?;
    let evidence = seconds(at.parse()?);
    #[expect(clippy::disallowed_methods, reason = "the age on the wall clock is what is measured")]
    let now = seconds(Timestamp::now());
    let newest = prometheus.newest_sample(variant).await?;
    Ok((now - evidence, newest - evidence))
}

fn seconds(at: Timestamp) -> f64 {
    at.as_millisecond() as f64 / 1000.0
}

struct Prometheus {
    url: String,
    client: reqwest::Client,
}

impl Prometheus {
    /// When the newest sample of this variant's pods was scraped.
    async fn newest_sample(&self, variant: usize) -> anyhow::Result<f64> {
        let query = format!("max(timestamp(vllm:num_requests_waiting{{model_name=\"v-{variant}\"}}))");
        let url = reqwest::Url::parse_with_params(&self.url, [("query", query)])?;
        let answer: Value = self.client.get(url).send().await?.error_for_status()?.json().await?;
        let text = answer.pointer("/data/result/0/value/1").and_then(Value::as_str);
        Ok(text.with_context(|| format!("Prometheus has no sample of v-{variant}: {answer}"))?.parse()?)
    }
}
