//! How old the evidence behind an answer is. Every answer says when its evidence was measured; Prometheus says which
//! samples of the same variant's pods there were at that moment. An age is the scrape's own, plus the time for which
//! newer samples had been there and the answer did not rest on them yet: that is what is added between Prometheus
//! and the caller, by waiting for the next evaluation and by its own time.

use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::connection::{Peer, Question, Sender};
use super::report::{Age, Ages};

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

/// One answer compared with the samples that were there when it came.
async fn one(
    sender: &mut Sender,
    question: &Question,
    prometheus: &Prometheus,
    variant: usize,
) -> anyhow::Result<Age> {
    let body: Value = serde_json::from_slice(&sender.ask(question).await?)?;
    let at = body.pointer("/items/0/timestamp").and_then(Value::as_str);
    let evidence = seconds(at.context("an answer without a timestamp")?.parse()?);
    #[expect(clippy::disallowed_methods, reason = "the age on the wall clock is what is measured")]
    let now = seconds(Timestamp::now());
    let samples = prometheus.samples(variant).await?;
    Age::of(now, evidence, &samples).with_context(|| format!("Prometheus has no sample of v-{variant}"))
}

fn seconds(at: Timestamp) -> f64 {
    at.as_millisecond() as f64 / 1000.0
}

struct Prometheus {
    url: String,
    client: reqwest::Client,
}

impl Prometheus {
    /// When the samples of this variant's pods were scraped.
    async fn samples(&self, variant: usize) -> anyhow::Result<Vec<f64>> {
        let query = format!("vllm:num_requests_waiting{{model_name=\"v-{variant}\"}}[5m]");
        let url = reqwest::Url::parse_with_params(&self.url, [("query", query)])?;
        let answer: Answer = self.client.get(url).send().await?.error_for_status()?.json().await?;
        Ok(answer.data.result.into_iter().flat_map(|series| series.values).map(|(at, _)| at).collect())
    }
}

/// The answer to a range selector; times in seconds.
#[derive(Deserialize)]
struct Answer {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    result: Vec<Series>,
}

#[derive(Deserialize)]
struct Series {
    values: Vec<(f64, String)>,
}
