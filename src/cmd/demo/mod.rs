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

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
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
use self::wiring::SHUTDOWN_TIMEOUT;
use crate::engine::{Board, Clock as _, SystemClock};
use crate::telemetry::init_logging;

/// How often the table is refreshed, in wall time.
const REFRESH_INTERVAL: Duration = Duration::from_millis(250);

/// Watch wva scale a simulated fleet on this machine.
///
/// One process; no cluster, no Prometheus, nothing to install. The fleet and its load are simulated. Everything that reads its
/// metrics, decides and answers the HPA is wva itself.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct DemoArgs {
    /// Address to serve on, loopback only. Port 0 takes any free port.
    #[arg(long, default_value = "127.0.0.1:8443", value_parser = loopback)]
    listen: SocketAddr,
    /// Write the kubeconfig to this file and keep it. By default it is a temporary file, deleted at the end.
    #[arg(long, value_name = "FILE")]
    kubeconfig_out: Option<PathBuf>,
    /// Stop after this much real time, for example 60s. By default the demo runs until Ctrl-C.
    #[arg(long = "for", value_name = "DURATION")]
    run_for: Option<SignedDuration>,
    /// Seed of the random arrivals: the same seed gives the same load.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Virtual seconds per real second. Load, start-up, evaluations and the HPA all run this much faster.
    #[arg(long, default_value_t = 10.0, value_parser = speed, value_name = "N")]
    speed: f64,
}

fn loopback(text: &str) -> Result<SocketAddr, String> {
    match text.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Ok(address),
        Ok(_) => Err("the demo answers on loopback only, as 127.0.0.1:8443".into()),
        Err(_) => Err("give an address and a port, as 127.0.0.1:8443".into()),
    }
}

/// Above 100, an HPA sync period would be shorter than a scrape may take.
fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse().ok().filter(|speed| (0.1..=100.0).contains(speed));
    speed.ok_or_else(|| "give a number from 0.1 to 100".into())
}

/// Plays until Ctrl-C or the end of `--for`.
pub(super) async fn run(args: DemoArgs) -> anyhow::Result<()> {
    // Only warnings, so that the table stays readable. Fails when a logger is set already, which does no harm.
    let _ = init_logging("warn", false);
    let stop = CancellationToken::new();
    let clock = VirtualClock::start(SystemClock.now(), args.speed);
    let fleet = DemoFleet::start(clock, args.seed);
    let pki =
        Pki::generate(&args.listen.ip().to_string()).context("throw-away certificates cannot be made")?;
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
    table.write_paragraph(&opening(&args, &kubeconfig))?;
    let outcome: anyhow::Result<()> = tokio::select! {
        ended = watch(&mut table, &mut narrator, &fleet, &board) => ended.map_err(Into::into),
        () = until(args.run_for) => Ok(()),
        Some(ended) = tasks.join_next() => ended.unwrap_or_else(|panicked| Err(panicked.into())),
    };
    stop.cancel();
    let ends = async { while tasks.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, ends).await;
    let written = outcome.and_then(|()| Ok(table.write_paragraph(&narrator.totals(&fleet.state()))?));
    // A reader that closes the pipe (`| head`) is no failure.
    written.or_else(|error| match error.downcast_ref::<io::Error>() {
        Some(cause) if cause.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(error),
    })
}

/// Shows the fleet until it is cancelled.
async fn watch(
    table: &mut Table<io::Stdout>,
    narrator: &mut Narrator,
    fleet: &DemoFleet,
    board: &Board,
) -> io::Result<()> {
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

fn opening(args: &DemoArgs, kubeconfig: &Path) -> String {
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
        let text = opening(&args, Path::new("/tmp/k"));
        assert!(text.contains(
            "\n  kubectl --kubeconfig /tmp/k get --raw '/apis/external.metrics.k8s.io/v1beta1/namespaces/default/\
             wva_desired_replicas?labelSelector=variant_name%3Dllama-8b'\n"
        ));
    }
}
