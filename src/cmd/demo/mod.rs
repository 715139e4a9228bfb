//! `wva demo`: all of wva on one machine, without a cluster. A simulated fleet runs on a fast clock; everything around it is
//! real: the scrape source, the engine, the HTTPS server, and an HPA with the real controller's arithmetic.

mod clock;
mod fleet;
mod hpa;
mod kubeconfig;
mod output;
mod pki;
mod pods;
mod scenario;
mod table;
mod wiring;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use jiff::SignedDuration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use wva_core::VariantId;

use self::clock::VirtualClock;
use self::fleet::DemoFleet;
use self::output::{Answer, Frame, Narrator};
use self::pki::Pki;
use self::pods::PodServers;
use self::table::Table;
use crate::engine::{Board, Clock as _, SystemClock};
use crate::telemetry::init_logging;

/// How often the table is refreshed, in wall time.
const REFRESH_INTERVAL: Duration = Duration::from_millis(250);
/// How long open requests may take at the end, in wall time.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Watch wva scale a simulated fleet on this machine.
///
/// One process; no cluster, no Prometheus, nothing to install. The fleet and its load are simulated. Everything that reads its
/// metrics, decides and answers the HPA is wva itself.
#[derive(Debug, Clone, clap::Args)]
pub struct DemoArgs {
    /// Address to serve on, loopback only. Port 0 takes any free port.
    #[arg(long, default_value = "127.0.0.1:8443", value_parser = loopback)]
    pub listen: SocketAddr,
    /// Write the kubeconfig to this file and keep it. By default it is a temporary file, deleted at the end.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig_out: Option<PathBuf>,
    /// Stop after this much real time, for example 60s. By default the demo runs until Ctrl-C.
    #[arg(long = "for", value_name = "DURATION")]
    pub run_for: Option<SignedDuration>,
    /// Seed of the random arrivals: the same seed gives the same load.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Virtual seconds per real second. Load, start-up, evaluations and the HPA all run this much faster.
    #[arg(long, default_value_t = 10.0, value_parser = speed, value_name = "N")]
    pub speed: f64,
}

fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr =
        text.parse().map_err(|_| "give an address and a port, as 127.0.0.1:8443".to_owned())?;
    let is_loopback = address.ip().is_loopback();
    is_loopback
        .then_some(address)
        .ok_or_else(|| "the demo answers on loopback only, as 127.0.0.1:8443".into())
}

/// Above 100, an HPA sync period would be shorter than a scrape may take.
fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse().ok().filter(|speed| (0.1..=100.0).contains(speed));
    speed.ok_or_else(|| "give a number from 0.1 to 100".into())
}

/// Why the demo cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The address is taken.
    #[error("--listen {address}: {source}; choose another port, or 0 for any free one")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// No port for a pod.
    #[error("no loopback port for a simulated pod: {0}; check the limit of open files")]
    PodListener(std::io::Error),
    /// The kubeconfig cannot be written.
    #[error("{path}: {source}; choose a writable file with --kubeconfig-out")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Certificates cannot be made.
    #[error("throw-away certificates cannot be made: {0}")]
    Certificate(#[from] rcgen::Error),
    /// The scenario is invalid.
    #[error("the demo's variant is not valid: {0}")]
    Scenario(#[from] wva_core::units::OutOfRange),
    /// The HPA cannot reach the server.
    #[error("the HPA's read failed: {0}")]
    Read(#[from] reqwest::Error),
    /// The HPA cannot use the answer.
    #[error("the HPA cannot use the answer: {0}")]
    Answer(String),
    /// A component of wva cannot start.
    #[error("{0}")]
    Part(String),
    /// Standard output is gone.
    #[error("the table cannot be written: {0}")]
    Output(#[from] std::io::Error),
}

/// Plays until Ctrl-C or the end of `--for`.
///
/// # Errors
/// Names the option or the part that failed.
pub async fn run(args: DemoArgs) -> Result<(), DemoError> {
    // Only warnings, so that the table stays readable. Fails when a logger is set already, which does no harm.
    let _ = init_logging("warn", false);
    let stop = CancellationToken::new();
    let clock = VirtualClock::start(SystemClock.now(), args.speed);
    let fleet = DemoFleet::start(clock, args.seed)?;
    let pki = Pki::generate(&args.listen.ip().to_string())?;
    let mut wva = wiring::WvaInstance::new(&fleet, clock, &pki)?;
    let board = wva.board.clone();
    let server = wva.server(args.listen).await?;
    let address = server.address();
    let client = hpa::HpaClient::new(address, &pki)?;
    let kubeconfig = kubeconfig::write(&address.to_string(), &pki, args.kubeconfig_out.as_deref())?;

    let mut tasks = JoinSet::new();
    let mut pods = PodServers::default();
    pods.sync(&fleet).await?;
    tasks.spawn(pods.follow(fleet.clone(), stop.clone()));
    wva.start(server, &mut tasks, &stop);
    tasks.spawn(hpa::run(fleet.clone(), clock, client, stop.clone()));

    let mut table = Table::stdout();
    let mut narrator = Narrator::default();
    table.write_paragraph(&opening(&args, kubeconfig.path()))?;
    let outcome = tokio::select! {
        ended = watch(&mut table, &mut narrator, &fleet, &board) => ended,
        () = until(args.run_for) => Ok(()),
        Some(ended) = tasks.join_next() => {
            ended.unwrap_or_else(|failure| Err(DemoError::Part(failure.to_string())))
        }
    };
    stop.cancel();
    let _ =
        tokio::time::timeout(SHUTDOWN_TIMEOUT, async { while tasks.join_next().await.is_some() {} }).await;
    outcome.and_then(|()| Ok(table.write_paragraph(&narrator.totals(&fleet.state()))?)).or_else(closed_pipe)
}

/// Shows the fleet until it is cancelled.
async fn watch(
    table: &mut Table<std::io::Stdout>,
    narrator: &mut Narrator,
    fleet: &DemoFleet,
    board: &Board,
) -> Result<(), DemoError> {
    let variant = VariantId::new(scenario::NAMESPACE, scenario::VARIANT);
    loop {
        let answer = board.newest().decisions.get(&variant).map(Answer::new);
        let frame = Frame { fleet: fleet.state(), answer };
        let changes = narrator.changes(&frame);
        table.show(&frame, &changes)?;
        tokio::time::sleep(REFRESH_INTERVAL).await;
    }
}

/// Ctrl-C, or the end of `--for`.
async fn until(run_for: Option<SignedDuration>) {
    let end = async {
        match run_for {
            Some(time) => tokio::time::sleep(time.unsigned_abs()).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = end => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

/// A reader that closes the pipe (`| head`) is no failure.
fn closed_pipe(error: DemoError) -> Result<(), DemoError> {
    match error {
        DemoError::Output(cause) if cause.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        error => Err(error),
    }
}

fn opening(args: &DemoArgs, kubeconfig: &std::path::Path) -> String {
    let start_up = scenario::START_UP.mean.as_secs();
    let variant = scenario::VARIANT;
    let namespace = scenario::NAMESPACE;
    let path = hpa::path();
    format!(
        "\
wva demo: simulated vLLM servers under a load that rises and falls, {speed} times as fast as real time.

One variant, {variant} in namespace {namespace}, has {min} to {max} pods; a pod takes about {start_up} s to start and costs {cost} an hour.
An HPA with the real controller's arithmetic reads wva_desired_replicas from wva every 15 s and scales the fleet.

What to watch: when demand rises, wva asks for more pods before utilisation (demand / capacity of the ready pods) reaches
100 %, so that requests wait and TTFT p95 (of the last minute) rises only briefly, if at all. When demand falls, pods are
removed after a cooldown. Each line that begins with \"wva:\" gives a new number and the reason for it.

Read the same number from another terminal:
  kubectl --kubeconfig {kubeconfig} get --raw '{path}'

Ctrl-C ends it.
",
        speed = args.speed,
        min = scenario::MIN_REPLICAS,
        max = scenario::MAX_REPLICAS,
        cost = scenario::COST,
        kubeconfig = kubeconfig.display(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_and_a_speed_in_range_are_accepted() {
        assert!(loopback("127.0.0.1:0").is_ok() && loopback("[::1]:8443").is_ok());
        assert!(loopback("0.0.0.0:8443").is_err() && loopback("8443").is_err());
        assert!(speed("10").is_ok() && speed("0").is_err() && speed("1e9").is_err() && speed("NaN").is_err());
    }

    #[test]
    fn the_opening_has_the_line_to_type() {
        let args = DemoArgs {
            listen: ([127, 0, 0, 1], 8443).into(),
            kubeconfig_out: None,
            run_for: None,
            seed: 1,
            speed: 10.0,
        };
        let text = opening(&args, std::path::Path::new("/tmp/k"));
        assert!(text.contains(
            "\n  kubectl --kubeconfig /tmp/k get --raw '/apis/external.metrics.k8s.io/v1beta1/namespaces/default/\
             wva_desired_replicas?labelSelector=variant_name%3Dllama-8b'\n"
        ));
    }
}
