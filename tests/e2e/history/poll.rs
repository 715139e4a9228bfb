//! Polls all instances and records their answers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use http::header::{ACCEPT, WARNING};
use jiff::Timestamp;
use reqwest::{Certificate, Client, Identity, Response, Url};
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncWriteExt as _, BufWriter};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use super::line::{Event, Line, Number, Term};

/// Time-out of a request: longer than a read waits for an evaluation, shorter than the wait for a hanging evaluation.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long evaluations are polled after the last answer. An evaluation is listed up to one second after it is answered.
const FINAL_LISTING_DURATION: Duration = Duration::from_millis(1500);
/// The capacity of the queue of lines to write.
const MAX_QUEUED_LINES: usize = 1024;

/// How to connect to an instance.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PeerArgs {
    /// The name in the instances' certificate; by default the host of each URL.
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,
    /// Their CA, PEM.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The certificate of the front proxy, PEM.
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Its key, PEM.
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// A bearer token, instead of a certificate.
    #[arg(long, value_name = "FILE", conflicts_with = "cert")]
    token_file: Option<PathBuf>,
    /// The user that the front proxy reports.
    #[arg(long, default_value = "history")]
    user: String,
    /// The groups of that user; system:masters may read evaluations without any binding.
    #[arg(long = "group", default_value = "system:masters")]
    groups: Vec<String>,
    /// The path of the metric, optionally with a selector.
    #[arg(long, default_value = "/apis/external.metrics.k8s.io/v1beta1/namespaces/llm/wva_desired_replicas")]
    path: String,
}

/// An instance and the client for it.
struct Instance {
    name: String,
    url: Url,
    /// Its address, if its certificate has another name.
    address: Option<SocketAddr>,
    client: Client,
    peer: PeerArgs,
    started: Instant,
}

/// Polls until `seconds` have passed or a signal arrives, and then only lists the evaluations behind the last answers.
#[expect(clippy::disallowed_methods, reason = "the one clock that evidence is held against")]
pub(crate) async fn record(
    instances: &[String],
    peer: &PeerArgs,
    out: &Path,
    seconds: u64,
    every: u64,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let unix_s = Timestamp::now().as_duration().as_secs_f64();
    let (lines, mut received) = mpsc::channel::<Line>(MAX_QUEUED_LINES);
    let event = Event::Start { unix_s };
    lines.send(Line { instance: String::new(), sent_s: 0.0, received_s: 0.0, event }).await?;
    let mut metric_polls = JoinSet::new();
    let mut evaluation_polls = JoinSet::new();
    for instance in instances {
        let every = Duration::from_millis(every.max(1));
        let instance = || Instance::new(instance, peer, started);
        metric_polls.spawn(instance()?.poll_metric(every, lines.clone()));
        evaluation_polls.spawn(instance()?.poll_evaluations(every, lines.clone()));
    }
    drop(lines);
    let file = tokio::fs::File::create(out).await.with_context(|| out.display().to_string())?;
    let mut file = BufWriter::new(file);
    let mut terminate = signal(SignalKind::terminate())?;
    let end = started + Duration::from_secs(seconds);
    let stop = async {
        tokio::select! {
            () = sleep_until(end) => {}
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    write_lines(&mut file, &mut received, stop).await?;
    metric_polls.abort_all();
    write_lines(&mut file, &mut received, sleep(FINAL_LISTING_DURATION)).await
}

/// Writes lines as they arrive until `stop` completes.
async fn write_lines(
    file: &mut BufWriter<tokio::fs::File>,
    received: &mut mpsc::Receiver<Line>,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    tokio::pin!(stop);
    loop {
        tokio::select! {
            line = received.recv() => {
                let Some(line) = line else { bail!("no instance is polled any more") };
                file.write_all(format!("{}\n", serde_json::to_string(&line)?).as_bytes()).await?;
                file.flush().await?;
            }
            () = &mut stop => return Ok(()),
        }
    }
}

impl Instance {
    /// The instance of `--instance NAME=URL`, or `URL`.
    fn new(argument: &str, peer: &PeerArgs, started: Instant) -> anyhow::Result<Self> {
        let (name, url) = argument.split_once('=').unwrap_or((argument, argument));
        let mut url = Url::parse(url).with_context(|| format!("--instance {argument}"))?;
        let mut address = None;
        if let Some(server_name) = &peer.server_name {
            let host = url.host_str().context("an instance without an address")?;
            let ip =
                host.trim_matches(['[', ']']).parse().with_context(|| format!("--instance {argument}"))?;
            let port = url.port_or_known_default().context("an instance without a port")?;
            address = Some(SocketAddr::new(ip, port));
            url.set_host(Some(server_name))?;
        }
        let client = client(peer, address)?;
        Ok(Self { name: name.into(), url, address, client, peer: peer.clone(), started })
    }

    /// Reads the certificates again, because the instances may have a new CA.
    fn reload_certificates(&mut self) {
        if let Ok(client) = client(&self.peer, self.address) {
            self.client = client;
        }
    }

    /// Reads the metric as the HPA does.
    async fn poll_metric(mut self, every: Duration, lines: mpsc::Sender<Line>) {
        let mut ticks = ticks(every);
        loop {
            ticks.tick().await;
            let sent_s = self.started.elapsed().as_secs_f64();
            let event = match self.get(&self.peer.path).await {
                Ok(response) => parse_answer(response).await,
                Err(error) => {
                    self.reload_certificates();
                    Err(error)
                }
            };
            let event = event.unwrap_or_else(|error| Event::NoAnswer { error: format!("{error:#}") });
            if lines.send(self.line(sent_s, event)).await.is_err() {
                return;
            }
        }
    }

    /// Lists the evaluations since the last poll, and reads each.
    async fn poll_evaluations(mut self, every: Duration, lines: mpsc::Sender<Line>) {
        let mut ticks = ticks(every);
        let mut known = BTreeSet::new();
        let mut since_s = None;
        loop {
            ticks.tick().await;
            let sent_s = self.started.elapsed().as_secs_f64();
            // The instance does not decide, or is gone. Its answers show that too.
            let Ok(list) = self.list_evaluations().await else {
                self.reload_certificates();
                continue;
            };
            let mut missed = false;
            for listed in list.iter().filter(|listed| !known.contains(&listed.key())) {
                let Ok(numbers) = self.numbers(&listed.at).await else {
                    missed = true;
                    continue;
                };
                let ListedEvaluation { at, sequence, term } = listed.clone();
                let event = Event::Evaluation { since_s, at, sequence, term, numbers };
                if lines.send(self.line(sent_s, event)).await.is_err() {
                    return;
                }
            }
            if !missed {
                since_s = Some(sent_s);
                known = list.iter().map(ListedEvaluation::key).collect();
            }
        }
    }

    fn line(&self, sent_s: f64, event: Event) -> Line {
        Line { instance: self.name.clone(), sent_s, received_s: self.started.elapsed().as_secs_f64(), event }
    }

    async fn get(&self, path: &str) -> anyhow::Result<Response> {
        let mut request = self.client.get(self.url.join(path)?).header(ACCEPT, "application/json");
        if let Some(token) = &self.peer.token_file {
            request = request.bearer_auth(String::from_utf8_lossy(&read(token)?).trim());
        } else {
            request = request.header("X-Remote-User", &self.peer.user);
            for group in &self.peer.groups {
                request = request.header("X-Remote-Group", group);
            }
        }
        Ok(request.send().await?)
    }

    async fn list_evaluations(&self) -> anyhow::Result<Vec<ListedEvaluation>> {
        Ok(self.get("/debug/snapshots").await?.error_for_status()?.json().await?)
    }

    /// The decisions of the evaluation at this time.
    async fn numbers(&self, at: &str) -> anyhow::Result<BTreeMap<String, Number>> {
        let response = self.get(&format!("/debug/snapshots?at={at}")).await?.error_for_status()?;
        let line: Value = response.json().await?;
        let decisions = line.pointer("/entry/decisions").and_then(Value::as_object);
        let decisions = decisions.context("an evaluation without decisions")?;
        Ok(decisions
            .iter()
            .filter_map(|(id, decision)| Some((id.clone(), decided_number(decision)?)))
            .collect())
    }
}

/// An evaluation in the list of an instance.
#[derive(Debug, Clone, Deserialize)]
struct ListedEvaluation {
    at: String,
    sequence: u64,
    #[serde(default)]
    term: Option<Term>,
}

impl ListedEvaluation {
    /// The same sequence number may be from another process of this name.
    fn key(&self) -> (String, u64) {
        (self.at.clone(), self.sequence)
    }
}

/// A client with the options of `peer`, which connects to `address` whatever the name of the instance.
fn client(peer: &PeerArgs, address: Option<SocketAddr>) -> anyhow::Result<Client> {
    let mut client = Client::builder().timeout(REQUEST_TIMEOUT).no_proxy();
    if let Some(ca) = &peer.ca {
        for authority in Certificate::from_pem_bundle(&read(ca)?)? {
            client = client.add_root_certificate(authority);
        }
    }
    if let (Some(cert), Some(key)) = (&peer.cert, &peer.key) {
        client = client.identity(Identity::from_pem(&[read(cert)?, read(key)?].concat())?);
    }
    if let Some((server_name, address)) = peer.server_name.as_ref().zip(address) {
        client = client.resolve(server_name, address);
    }
    Ok(client.build()?)
}

fn ticks(every: Duration) -> tokio::time::Interval {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| path.display().to_string())
}

/// Parses the answer to a read of the metric.
async fn parse_answer(response: Response) -> anyhow::Result<Event> {
    let status = response.status();
    let warning =
        response.headers().get(WARNING).map(|value| String::from_utf8_lossy(value.as_bytes()).into());
    let body: Value = response.json().await.unwrap_or_default();
    if !status.is_success() {
        let message = body.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
        return Ok(Event::Refusal { status: status.as_u16(), message });
    }
    let items = body.get("items").and_then(Value::as_array).context("an answer without items")?;
    let numbers = items.iter().map(|item| {
        let label = |name: &str| item.pointer(&format!("/metricLabels/{name}")).and_then(Value::as_str);
        let id = format!("{}/{}", label("namespace")?, label("variant_name")?);
        let value = whole_replicas(item.get("value")?.as_str()?);
        let evidence = item.get("timestamp")?.as_str()?.parse::<Timestamp>().ok()?.as_second();
        Some((id, Number { value, evidence }))
    });
    let numbers = numbers.collect::<Option<_>>().context("an item without labels, value or timestamp")?;
    Ok(Event::Answer { numbers, warning })
}

/// A quantity of whole replicas without its suffix: thousands are written as 2k.
fn whole_replicas(quantity: &str) -> String {
    quantity.strip_suffix('k').map_or_else(|| quantity.to_owned(), |thousands| format!("{thousands}000"))
}

/// The number of a recorded decision, if it has one.
fn decided_number(decision: &Value) -> Option<Number> {
    let target = decision.pointer("/verdict/target")?;
    let value = target.get("desired")?.as_u64()?.to_string();
    let evidence = target.get("evidence")?.as_str()?.parse::<Timestamp>().ok()?.as_second();
    Some(Number { value, evidence })
}
