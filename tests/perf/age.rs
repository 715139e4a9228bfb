//! Measures the age of the evidence behind answers. Every answer has the time of its evidence; Prometheus tells which samples of
//! the same variant's pods existed then. The age of the evidence is the age of the newest scrape plus the time for which newer
//! samples existed that the answer did not use yet: the delay between Prometheus and the caller, which consists of the wait for
//! the next evaluation and the evaluation itself.

use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::connection::{ApiServer, ReadRequest, Sender};
use super::report::{Age, Ages};

/// Time-out of one answer of Prometheus or of the server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Variants are visited with this stride, a prime, because neighbours are scraped together.
const STRIDE: usize = 7919;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    server: ApiServer,
    /// Number of variants.
    #[arg(long, default_value_t = 1)]
    variants: usize,
    /// Seconds to measure: several scrape intervals, to cover all phases of the scrape.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Reads a second: few, so that they do not load the server.
    #[arg(long, default_value_t = 20)]
    rate: u32,
    /// URL of Prometheus, as http://host:port.
    #[arg(long)]
    prometheus: String,
}

/// Reads slowly and compares each answer with Prometheus.
pub(crate) async fn measure(args: Args) -> anyhow::Result<Ages> {
    let Args { server, variants, seconds, rate, prometheus } = args;
    let server = server.with_json();
    let tls = server.tls()?;
    let requests = server.read_requests(variants.max(1))?;
    let prometheus = Prometheus { url: format!("{prometheus}/api/v1/query"), client: reqwest::Client::new() };
    let mut ticks = interval(Duration::from_secs(1) / rate.max(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let end = Instant::now() + Duration::from_secs(seconds);
    let ages = server.with_connection(&tls, async |mut sender| {
        let mut ages = Vec::new();
        while Instant::now() < end {
            ticks.tick().await;
            let variant = ages.len() * STRIDE % requests.len();
            let request = requests.get(variant).context("no variant to read")?;
            ages.push(
                timeout(ANSWER_TIMEOUT, measure_one(&mut sender, request, &prometheus, variant)).await??,
            );
        }
        Ok(ages)
    });
    Ok(Ages::new(&ages.await?))
}

/// Compares one answer with the samples that existed when it arrived.
async fn measure_one(
    sender: &mut Sender,
    request: &ReadRequest,
    prometheus: &Prometheus,
    variant: usize,
) -> anyhow::Result<Age> {
    let body: Value = serde_json::from_slice(&sender.read(request).await?)?;
    let at = body.pointer("/items/0/timestamp").and_then(Value::as_str);
    let evidence = seconds(at.context("an answer without a timestamp")?.parse()?);
    #[expect(clippy::disallowed_methods, reason = "it measures the age by the wall clock")]
    let now = seconds(Timestamp::now());
    let samples = prometheus.samples(variant).await?;
    Age::new(now, evidence, &samples).with_context(|| format!("Prometheus has no sample of v-{variant}"))
}

fn seconds(at: Timestamp) -> f64 {
    at.as_millisecond() as f64 / 1000.0
}

struct Prometheus {
    url: String,
    client: reqwest::Client,
}

impl Prometheus {
    /// The times at which the samples of this variant's pods were scraped, seconds.
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
