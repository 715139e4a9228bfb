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

use super::line::{Line, Number, Seen, Term};

/// Time-out of a request: longer than a read waits for an evaluation, shorter than the wait for a hanging evaluation.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long evaluations are polled after the last answer, because an evaluation is listed up to one second after it is answered.
const LAST_LOOK: Duration = Duration::from_millis(1500);
/// The capacity of the queue of lines to write.
const MAX_WAITING_LINES: usize = 1024;

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
    began: Instant,
}

/// Polls until `seconds` have passed or a signal arrives, and then only lists the evaluations behind the last answers.
#[expect(clippy::disallowed_methods, reason = "the one clock that evidence is held against")]
pub(crate) async fn keep(
    instances: &[String],
    peer: &PeerArgs,
    out: &Path,
    seconds: u64,
    every: u64,
) -> anyhow::Result<()> {
    let (began, clock) = (Instant::now(), Timestamp::now().as_duration().as_secs_f64());
    let (lines, mut arrived) = mpsc::channel::<Line>(MAX_WAITING_LINES);
    let (instance, seen) = (String::new(), Seen::Began { clock });
    lines.send(Line { instance, asked: 0.0, answered: 0.0, seen }).await?;
    let (mut reading, mut listing) = (JoinSet::new(), JoinSet::new());
    for named in instances {
        let every = Duration::from_millis(every.max(1));
        reading.spawn(Instance::of(named, peer, began)?.metric(every, lines.clone()));
        listing.spawn(Instance::of(named, peer, began)?.evaluations(every, lines.clone()));
    }
    drop(lines);
    let file = tokio::fs::File::create(out).await.with_context(|| out.display().to_string())?;
    let mut file = BufWriter::new(file);
    let (mut terminate, end) = (signal(SignalKind::terminate())?, began + Duration::from_secs(seconds));
    let over = async {
        tokio::select! {
            () = sleep_until(end) => {}
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    write(&mut file, &mut arrived, over).await?;
    reading.abort_all();
    write(&mut file, &mut arrived, sleep(LAST_LOOK)).await
}

/// Writes lines as they arrive until `over`.
async fn write(
    file: &mut BufWriter<tokio::fs::File>,
    arrived: &mut mpsc::Receiver<Line>,
    over: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    tokio::pin!(over);
    loop {
        tokio::select! {
            line = arrived.recv() => {
                let Some(line) = line else { bail!("nobody asks any more") };
                file.write_all(format!("{}\n", serde_json::to_string(&line)?).as_bytes()).await?;
                file.flush().await?;
            }
            () = &mut over => return Ok(()),
        }
    }
}

impl Instance {
    fn of(named: &str, peer: &PeerArgs, began: Instant) -> anyhow::Result<Self> {
        let (name, url) = named.split_once('=').unwrap_or((named, named));
        let mut url = Url::parse(url).with_context(|| format!("--instance {named}"))?;
        let mut address = None;
        if let Some(server_name) = &peer.server_name {
            let host = url.host_str().context("an instance without an address")?;
            let ip = host.trim_matches(['[', ']']).parse().with_context(|| format!("--instance {named}"))?;
            let port = url.port_or_known_default().context("an instance without a port")?;
            address = Some(SocketAddr::new(ip, port));
            url.set_host(Some(server_name))?;
        }
        let client = client(peer, address)?;
        Ok(Self { name: name.into(), url, address, client, peer: peer.clone(), began })
    }

    /// Reads the certificates again, because the instances may have a new CA.
    fn renew(&mut self) {
        if let Ok(client) = client(&self.peer, self.address) {
            self.client = client;
        }
    }

    /// Reads the metric as the HPA does.
    async fn metric(mut self, every: Duration, lines: mpsc::Sender<Line>) {
        let mut ticks = ticks(every);
        loop {
            ticks.tick().await;
            let asked = self.began.elapsed().as_secs_f64();
            let seen = match self.get(&self.peer.path).await {
                Ok(response) => answer(response).await,
                Err(error) => {
                    self.renew();
                    Err(error)
                }
            };
            let seen = seen.unwrap_or_else(|error| Seen::Silence { error: format!("{error:#}") });
            if lines.send(self.line(asked, seen)).await.is_err() {
                return;
            }
        }
    }

    /// The evaluations since the last poll.
    async fn evaluations(mut self, every: Duration, lines: mpsc::Sender<Line>) {
        let (mut ticks, mut known, mut since) = (ticks(every), BTreeSet::new(), None);
        loop {
            ticks.tick().await;
            let asked = self.began.elapsed().as_secs_f64();
            // An instance that does not decide, not yet decides, or is gone: its answers show that too.
            let Ok(list) = self.listed().await else {
                self.renew();
                continue;
            };
            let mut missed = false;
            for listed in list.iter().filter(|listed| !known.contains(&listed.key())) {
                let Ok(numbers) = self.numbers(&listed.at).await else {
                    missed = true;
                    continue;
                };
                let Listed { at, sequence, term } = listed.clone();
                let seen = Seen::Evaluation { since, at, sequence, term, numbers };
                if lines.send(self.line(asked, seen)).await.is_err() {
                    return;
                }
            }
            if !missed {
                since = Some(asked);
                known = list.iter().map(Listed::key).collect();
            }
        }
    }

    fn line(&self, asked: f64, seen: Seen) -> Line {
        Line { instance: self.name.clone(), asked, answered: self.began.elapsed().as_secs_f64(), seen }
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

    async fn listed(&self) -> anyhow::Result<Vec<Listed>> {
        Ok(self.get("/debug/snapshots").await?.error_for_status()?.json().await?)
    }

    /// The decisions of the evaluation at this time.
    async fn numbers(&self, at: &str) -> anyhow::Result<BTreeMap<String, Number>> {
        let response = self.get(&format!("/debug/snapshots?at={at}")).await?.error_for_status()?;
        let line: Value = response.json().await?;
        let decisions = line.pointer("/entry/decisions").and_then(Value::as_object);
        let decisions = decisions.context("an evaluation without decisions")?;
        Ok(decisions.iter().filter_map(|(id, decision)| Some((id.clone(), decided(decision)?))).collect())
    }
}

/// An evaluation in the list of an instance.
#[derive(Debug, Clone, Deserialize)]
struct Listed {
    at: String,
    sequence: u64,
    #[serde(default)]
    term: Option<Term>,
}

impl Listed {
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
async fn answer(response: Response) -> anyhow::Result<Seen> {
    let status = response.status();
    let warning =
        response.headers().get(WARNING).map(|value| String::from_utf8_lossy(value.as_bytes()).into());
    let body: Value = response.json().await.unwrap_or_default();
    if !status.is_success() {
        let message = body.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
        return Ok(Seen::Refusal { status: status.as_u16(), message });
    }
    let items = body.get("items").and_then(Value::as_array).context("an answer without items")?;
    let numbers = items.iter().map(|item| {
        let label = |name: &str| item.pointer(&format!("/metricLabels/{name}")).and_then(Value::as_str);
        let id = format!("{}/{}", label("namespace")?, label("variant_name")?);
        let value = count(item.get("value")?.as_str()?);
        let evidence = item.get("timestamp")?.as_str()?.parse::<Timestamp>().ok()?.as_second();
        Some((id, Number { value, evidence }))
    });
    let numbers = numbers.collect::<Option<_>>().context("an item without labels, value or timestamp")?;
    Ok(Seen::Answer { numbers, warning })
}

/// A quantity of whole replicas without its suffix: thousands are written as 2k.
fn count(quantity: &str) -> String {
    quantity.strip_suffix('k').map_or_else(|| quantity.to_owned(), |thousands| format!("{thousands}000"))
}

/// The number of a recorded decision, if it has one.
fn decided(decision: &Value) -> Option<Number> {
    let target = decision.pointer("/verdict/target")?;
    let value = target.get("desired")?.as_u64()?.to_string();
    let evidence = target.get("evidence")?.as_str()?.parse::<Timestamp>().ok()?.as_second();
    Some(Number { value, evidence })
}
