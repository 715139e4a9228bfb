//! Records the answers of all instances, and checks that they are possible. `--out` polls the metric and the evaluations of every
//! instance several times per second and writes a history; `--check` reports its violations.
//! Part of the end-to-end tests, not of the product.

mod check;
mod line;
mod origin;
mod poll;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Parser;

use self::check::History;

/// Record a history of the answers of all instances, or check one.
///
/// Recording: polls the metric and the evaluations (/debug/snapshots) of every instance each `--every`, until `--seconds` have
/// passed or SIGTERM or SIGINT arrives. Each answer, each new evaluation and each missing answer becomes one JSON line of
/// `--out`, written at once. Exit status 0.
///
///   history --instance wva-0=https://127.0.0.1:20001 --instance wva-1=https://127.0.0.1:20002 \
///     --server-name wva.wva-system.svc --ca wva-ca.crt --cert front-proxy-client.crt --key front-proxy-client.key \
///     --seconds 60 --out history.jsonl
///
/// Checking: prints each violation and one line of counts. Exit status 0 without violations, otherwise 1.
///
///   history --check history.jsonl
///
/// Violations: two instances evaluate in one term; an evaluation in a term follows one of a later term; an answered number comes
/// from no evaluation; a number of an earlier term is answered after one of a later term. The last rule applies to answers with a
/// Warning (an instance that cannot reach the leader answers the last published state) only with `--strict`. All times are
/// of this program's clock; clocks of instances are not compared.
///
/// Some evaluations are never listed. A number without a listed evaluation is accepted in three cases: its evidence lies between
/// those of two listed evaluations and it has the value of one of them; its evidence is older than all of them; or an instance that
/// had decided stopped answering, and the evidence lies between its last evaluation and that time. The rule about terms applies
/// to all of these.
#[derive(Debug, Parser)]
#[command(verbatim_doc_comment)]
struct Args {
    /// An instance, as NAME=https://IP:PORT or https://IP:PORT; repeat for each.
    #[arg(long = "instance", value_name = "URL", required_unless_present = "check")]
    instances: Vec<String>,
    /// How long to poll, seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The polling interval of each instance, milliseconds.
    #[arg(long, default_value_t = 250, value_name = "MILLISECONDS")]
    every: u64,
    /// The file to write.
    #[arg(long, value_name = "FILE", required_unless_present = "check")]
    out: Option<PathBuf>,
    /// How to connect to instances.
    #[command(flatten)]
    peer: poll::PeerArgs,
    /// Check this history instead.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["instances", "out"])]
    check: Option<PathBuf>,
    /// With --check: also require answers with a Warning to be of the newest term.
    #[arg(long, requires = "check")]
    strict: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    if let Some(path) = &args.check {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        return print_check(&text, args.strict);
    }
    if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
        bail!("a second TLS provider is installed");
    }
    let out = args.out.context("--out FILE says where the history goes")?;
    poll::record(&args.instances, &args.peer, &out, args.seconds, args.every).await?;
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::print_stdout, reason = "the result")]
fn print_check(text: &str, strict: bool) -> anyhow::Result<ExitCode> {
    let result = History::read(text)?.check(strict);
    for violation in &result.violations {
        println!("violation: {violation}");
    }
    println!("{result}");
    Ok(if result.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
