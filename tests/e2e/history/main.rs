//! A history of what all instances answered, and whether it can be true. `--out` writes one while it asks every instance
//! the same question several times a second and reads which evaluations it has made; `--check` says what in it is wrong.
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

/// Keep a history of what all instances answer, or check one.
///
/// Keeping: every instance is asked for the metric and for its evaluations (/debug/snapshots), each `--every`, until
/// `--seconds` have passed or SIGTERM or SIGINT comes; each answer and each new evaluation becomes one JSON line of `--out`,
/// written at once. An instance that does not answer is a line too. Exit status 0.
///
///   history --instance wva-0=https://127.0.0.1:20001 --instance wva-1=https://127.0.0.1:20002 \
///     --server-name wva.wva-system.svc --ca wva-ca.crt --cert front-proxy-client.crt --key front-proxy-client.key \
///     --seconds 60 --out history.jsonl
///
/// Checking: prints each violation and one line of figures. Exit status 0 when there is no violation, 1 when there is.
///
///   history --check history.jsonl
///
/// Violations: two instances evaluate in one term; an evaluation of a term after one of a later term; a number that no
/// evaluation made; a number of an earlier term after one of a later term was answered. Answers with a Warning (an instance that
/// cannot reach the holder gives the last published state) are held to the last rule only with `--strict`. Moments are
/// those of this program: clocks of instances are not compared.
///
/// Of evaluations that were not listed a number is excused when its evidence lies between those of two that were, and it is the
/// value of either; when it is older than all of them; and when an instance that had decided went silent: what rests on evidence
/// between its last evaluation and its silence may be of its last second. The rule of terms holds for all of these.
#[derive(Debug, Parser)]
#[command(verbatim_doc_comment)]
struct Args {
    /// An instance, as NAME=https://IP:PORT or https://IP:PORT; once for each.
    #[arg(long = "instance", value_name = "URL", required_unless_present = "check")]
    instances: Vec<String>,
    /// How long to ask.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// How often each instance is asked, in milliseconds.
    #[arg(long, default_value_t = 250, value_name = "MILLISECONDS")]
    every: u64,
    /// Where the history goes.
    #[arg(long, value_name = "FILE", required_unless_present = "check")]
    out: Option<PathBuf>,
    /// How to ask.
    #[command(flatten)]
    peer: poll::PeerArgs,
    /// Check this history instead.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["instances", "out"])]
    check: Option<PathBuf>,
    /// With --check: answers with a Warning must be of the newest term too.
    #[arg(long, requires = "check")]
    strict: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    if let Some(path) = &args.check {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        return checked(&text, args.strict);
    }
    if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
        bail!("a second TLS provider is installed");
    }
    let out = args.out.context("--out FILE says where the history goes")?;
    poll::keep(&args.instances, &args.peer, &out, args.seconds, args.every).await?;
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::print_stdout, reason = "the result")]
fn checked(text: &str, strict: bool) -> anyhow::Result<ExitCode> {
    let found = History::read(text)?.check(strict);
    for violation in &found.violations {
        println!("violation: {violation}");
    }
    println!("{found}");
    Ok(if found.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
