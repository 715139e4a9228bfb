//! `wva demo`: the whole product on one machine, without a cluster. A simulated fleet on a fast clock, and around it the
//! real parts: the scrape source, the engine, the HTTPS server, and the arithmetic of a real HPA that asks it.

mod clock;
mod hpa;
mod kubeconfig;
mod narrate;
mod pki;
mod pods;
mod stage;
mod story;
mod table;
mod wire;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use jiff::SignedDuration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use wva_core::VariantId;

use self::clock::VirtualClock;
use self::narrate::{Look, Narrator};
use self::pki::Pki;
use self::pods::PodServers;
use self::stage::Stage;
use self::table::Table;
use crate::engine::{Board, Clock as _, SystemClock};
use crate::telemetry::init_logging;

/// How often the table looks, in wall time: smooth to the eye.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Open requests get this long at the end, in wall time.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// See the whole loop on this machine: a simulated fleet under changing load, scaled by an HPA that asks wva.
///
/// One process, no cluster, no Prometheus, nothing to install. The fleet is simulated; everything that reads its metrics,
/// decides and answers is the product itself.
#[derive(Debug, Clone, clap::Args)]
pub struct DemoArgs {
    /// Where to answer, on loopback; port 0 takes any free one.
    #[arg(long, default_value = "127.0.0.1:8443", value_parser = loopback)]
    pub listen: SocketAddr,
    /// Write the kubeconfig here and leave it; by default a temporary file that goes with the demo.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig_out: Option<PathBuf>,
    /// Stop after this much wall time, for example 60s; by default it runs until Ctrl-C.
    #[arg(long = "for", value_name = "DURATION")]
    pub run_for: Option<SignedDuration>,
    /// Chance: the same seed gives the same arrivals.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Virtual seconds in a second: load, start-up, decisions and the HPA all run so much faster.
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

/// Above 100 a cycle of the HPA is shorter than a scrape may take.
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
    /// The story itself is wrong.
    #[error("the demo's variant is not valid: {0}")]
    Story(#[from] wva_core::units::OutOfRange),
    /// The fleet refused a pod.
    #[error(transparent)]
    Fleet(#[from] wva_sim::FleetError),
    /// The HPA's question failed.
    #[error("the HPA's question failed: {0}")]
    Question(#[from] reqwest::Error),
    /// The answer makes no sense to an HPA.
    #[error("the HPA cannot use the answer: {0}")]
    Answer(String),
    /// A part of the product cannot start.
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
    // Only warnings, so that the table stays readable. A second setting-up is refused, which does no harm here.
    let _ = init_logging("warn", false);
    let stop = CancellationToken::new();
    let clock = VirtualClock::start(SystemClock.now(), args.speed);
    let stage = Stage::set(clock, args.seed)?;
    let pki = Pki::generate(&args.listen.ip().to_string())?;
    let mut brain = wire::Brain::new(&stage, clock, &pki)?;
    let board = brain.board.clone();
    let server = brain.server(args.listen).await?;
    let address = server.address();
    let asker = hpa::Asker::new(address, &pki)?;
    let kubeconfig = kubeconfig::write(&address.to_string(), &pki, args.kubeconfig_out.as_deref())?;

    let mut tasks = JoinSet::new();
    let mut pods = PodServers::default();
    pods.sync(&stage).await?;
    tasks.spawn(pods.follow(stage.clone(), stop.clone()));
    brain.start(server, &mut tasks, &stop);
    tasks.spawn(hpa::run(stage.clone(), clock, asker, stop.clone()));

    let (mut table, mut narrator) = (Table::stdout(), Narrator::default());
    table.say(&opening(&args, kubeconfig.path()))?;
    let outcome = tokio::select! {
        ended = watch(&mut table, &mut narrator, &stage, &board) => ended,
        () = until(args.run_for) => Ok(()),
        Some(ended) = tasks.join_next() => {
            ended.unwrap_or_else(|failure| Err(DemoError::Part(failure.to_string())))
        }
    };
    stop.cancel();
    let _ = tokio::time::timeout(LAST_WORDS, async { while tasks.join_next().await.is_some() {} }).await;
    outcome.and_then(|()| Ok(table.say(&narrator.sum_up(&stage.scene()))?)).or_else(closed_pipe)
}

/// Shows what happens, for ever.
async fn watch(
    table: &mut Table<std::io::Stdout>,
    narrator: &mut Narrator,
    stage: &Stage,
    board: &Board,
) -> Result<(), DemoError> {
    let variant = VariantId::new(story::NAMESPACE, story::VARIANT);
    loop {
        let verdict = board.newest().decisions.get(&variant).map(narrate::verdict);
        let look = Look { scene: stage.scene(), replicas: stage.scale().spec.get(), verdict };
        let changes = narrator.notice(&look);
        table.show(&look, &changes)?;
        tokio::time::sleep(LOOK_EVERY).await;
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

/// A reader that has seen enough (`| head`) is no failure.
fn closed_pipe(error: DemoError) -> Result<(), DemoError> {
    match error {
        DemoError::Output(cause) if cause.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Err(other),
    }
}

fn opening(args: &DemoArgs, kubeconfig: &std::path::Path) -> String {
    let start = story::START_UP.mean.as_secs();
    let (variant, namespace, path) = (story::VARIANT, story::NAMESPACE, hpa::path());
    format!(
        "\
wva demo: a simulated fleet of vLLM servers under load that rises and falls, {speed} times as fast as real time.
One variant, {variant} in namespace {namespace}, {min} to {max} pods, each of which takes {start} s to start. An HPA with the real
controller's arithmetic asks the real server for wva_desired_replicas every 15 s and resizes the fleet. A pod costs
{cost} an hour; TTFT p95 is of the last minute, everything else in the table of this moment.

Ask the same number from another terminal:
  kubectl --kubeconfig {kubeconfig} get --raw '{path}'

Ctrl-C ends it.
",
        speed = args.speed,
        min = story::MIN,
        max = story::MAX,
        cost = story::COST,
        kubeconfig = kubeconfig.display(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_and_a_sane_speed_are_accepted() {
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
