//! A TCP proxy that injects network faults: it holds back, delays or corrupts traffic as ordered over HTTP. It runs between wva and
//! the API server (any bytes) or Prometheus (plain HTTP). Part of the end-to-end tests, not of the product.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use clap::Parser;
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// The maximum size of the head of a request or response, bytes.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// The size of the copy buffer, bytes.
const CHUNK_BYTES: usize = 64 * 1024;
/// How long a slow answer takes: longer than any client's time-out.
const SLOW_ANSWER_DELAY: Duration = Duration::from_secs(120);

#[derive(Parser)]
struct Args {
    /// The address on which to accept connections.
    #[arg(long)]
    listen: SocketAddr,
    /// The address to which they are forwarded.
    #[arg(long)]
    to: SocketAddr,
    /// The control address: `POST /faults?up=hold` sets the faults. Parameters that are not given are reset.
    #[arg(long)]
    control: SocketAddr,
}

/// The current faults of the network.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Faults {
    /// From clients to the server.
    up: Traffic,
    /// From the server to clients.
    down: Traffic,
    /// Delay of every chunk in both directions, milliseconds.
    delay: u64,
    /// Faults of complete HTTP responses.
    answers: AnswerFault,
}

/// What happens to the bytes of one direction of all connections. Bytes that are held arrive late, as after packet loss.
#[derive(Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Traffic {
    #[default]
    Pass,
    Hold,
}

#[derive(Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum AnswerFault {
    #[default]
    #[serde(rename = "whole")]
    None,
    /// No response for two minutes.
    Slow,
    /// Status 500.
    Failed,
    /// Truncated in the middle of the body.
    Truncated,
    /// A success with the series of only half of the pods, without a warning.
    Partial,
    /// Connections are closed at once.
    Closed,
}

type Network = watch::Receiver<Faults>;

/// Returns when the fault of responses is no longer `current`. Open connections then end.
async fn fault_changed(network: &mut Network, current: AnswerFault) {
    if network.wait_for(|faults| faults.answers != current).await.is_err() {
        std::future::pending().await
    }
}

async fn connection(client: TcpStream, to: SocketAddr, mut network: Network) -> anyhow::Result<()> {
    let answers = network.borrow_and_update().answers;
    let served = async {
        match answers {
            AnswerFault::Closed => Ok(()),
            AnswerFault::None => forward(client, to, network.clone()).await,
            fault => respond_with_fault(client, to, fault).await,
        }
    };
    let mut changed = network.clone();
    tokio::select! {
        served = served => served,
        () = fault_changed(&mut changed, answers) => Ok(()),
    }
}

/// Copies bytes in both directions, until both have ended.
async fn forward(client: TcpStream, to: SocketAddr, network: Network) -> anyhow::Result<()> {
    let server = TcpStream::connect(to).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let up = copy(from_client, to_server, network.clone(), |faults| faults.up);
    let down = copy(from_server, to_client, network, |faults| faults.down);
    tokio::try_join!(up, down)?;
    Ok(())
}

/// Copies bytes from `from` to `to`, until `from` ends.
async fn copy(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut network: Network,
    traffic: fn(&Faults) -> Traffic,
) -> anyhow::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let length = from.read(&mut chunk).await?;
        let delay = network.wait_for(|faults| traffic(faults) == Traffic::Pass).await?.delay;
        sleep(Duration::from_millis(delay)).await;
        if length == 0 {
            return Ok(to.shutdown().await?);
        }
        to.write_all(chunk.get(..length).unwrap_or_default()).await?;
    }
}

/// Responds to one request with `fault`.
async fn respond_with_fault(mut client: TcpStream, to: SocketAddr, fault: AnswerFault) -> anyhow::Result<()> {
    let (head, body) = read_request(&mut client).await?;
    match fault {
        AnswerFault::Slow => sleep(SLOW_ANSWER_DELAY).await,
        AnswerFault::Failed => {
            client.write_all(&render_answer("500 Internal Server Error", b"out of order\n")).await?
        }
        AnswerFault::Truncated => {
            let whole = render_answer("200 OK", &fetch(to, &head, &body).await?);
            client.write_all(whole.get(..whole.len() / 2).unwrap_or_default()).await?;
        }
        _ => client.write_all(&render_answer("200 OK", &halved(&fetch(to, &head, &body).await?)?)).await?,
    }
    Ok(client.shutdown().await?)
}

fn render_answer(status: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// Reads a request: its head and its body.
async fn read_request(client: &mut TcpStream) -> anyhow::Result<(String, Vec<u8>)> {
    let mut read = Vec::new();
    let end = loop {
        if let Some(at) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if read.len() > MAX_HEAD_BYTES || client.read_buf(&mut read).await? == 0 {
            bail!("no request");
        }
    };
    let mut body = read.split_off(end);
    let head = String::from_utf8(read).context("the head of a request")?;
    let length = head.lines().filter_map(|line| line.split_once(':'));
    let mut length = length.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length = length.next().map_or(Ok(0), |(_, value)| value.trim().parse::<usize>())?;
    while body.len() < length {
        if client.read_buf(&mut body).await? == 0 {
            bail!("half a request");
        }
    }
    Ok((head, body))
}

/// The body of the real response. Requested with HTTP/1.0, so that it is not chunked and ends with the connection.
async fn fetch(to: SocketAddr, head: &str, body: &[u8]) -> anyhow::Result<Vec<u8>> {
    let is_forwarded = |line: &&str| {
        let name = line.split(':').next().unwrap_or_default().to_ascii_lowercase();
        !line.is_empty() && name != "accept-encoding" && name != "connection"
    };
    let lines: Vec<&str> = head.lines().filter(is_forwarded).collect();
    let head = lines.join("\r\n").replacen("HTTP/1.1", "HTTP/1.0", 1) + "\r\n\r\n";
    let mut server = TcpStream::connect(to).await?;
    server.write_all(&[head.as_bytes(), body].concat()).await?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer).await?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").context("no answer")?;
    Ok(answer.split_off(end + 4))
}

/// The response of a query without the series of the first half of the pods.
fn halved(body: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut answer: Value = serde_json::from_slice(body)?;
    let pod = |series: &Value| series.pointer("/metric/pod").and_then(Value::as_str).map(str::to_owned);
    if let Some(result) = answer.pointer_mut("/data/result").and_then(Value::as_array_mut) {
        let pods: BTreeSet<String> = result.iter().filter_map(pod).collect();
        let lost: BTreeSet<String> = pods.iter().take(pods.len().div_ceil(2)).cloned().collect();
        result.retain(|series| pod(series).is_none_or(|pod| !lost.contains(&pod)));
    }
    Ok(serde_json::to_vec(&answer)?)
}

async fn accept(listener: TcpListener, to: SocketAddr, network: Network) -> anyhow::Result<()> {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                connections.spawn(connection(accepted?.0, to, network.clone()));
            }
            Some(ended) = connections.join_next() => {
                if let Err(error) = ended? {
                    tracing::debug!(%error, "a connection ended");
                }
            }
        }
    }
}

async fn set_faults(
    State(network): State<watch::Sender<Faults>>,
    Query(faults): Query<Faults>,
) -> StatusCode {
    network.send_replace(faults);
    StatusCode::NO_CONTENT
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let (orders, network) = watch::channel(Faults::default());
    let control =
        Router::new().route("/", get(|| async {})).route("/faults", post(set_faults)).with_state(orders);
    let listening = |address| async move {
        TcpListener::bind(address).await.with_context(|| format!("{address}: choose a free port"))
    };
    let (listener, orders) = (listening(args.listen).await?, listening(args.control).await?);
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        served = accept(listener, args.to, network) => served?,
        served = axum::serve(orders, control) => served?,
        _ = terminate.recv() => {}
    }
    Ok(())
}
