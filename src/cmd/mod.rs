//! Subcommands.

mod decisions;
mod demo;
pub mod fleet;
mod serve;
mod simulate;
mod terminal;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use tokio::runtime::Runtime;

use crate::cluster::crd::crd_yaml;
use crate::collect::signals_page;

/// Exit code for an invalid command line (`EX_USAGE` of sysexits.h).
const EXIT_USAGE: u8 = 64;

/// Scales LLM serving on Kubernetes: an external metrics API server that computes desired replicas on read.
#[derive(Debug, Parser)]
#[command(name = "wva", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::Args>),
    Demo(demo::DemoArgs),
    Explain(Box<decisions::explain::Args>),
    Decide(decisions::decide::Args),
    Replay(decisions::replay::Args),
    Simulate(Box<simulate::Args>),
    /// Print the CustomResourceDefinition of VariantAutoscaling as YAML.
    ///
    /// Helm installs it once and never upgrades it. After an upgrade of wva, apply it with `wva crd | kubectl apply -f -`.
    Crd,
    /// Print the signals that each analyzer needs and the names they have in each engine, as Markdown.
    Signals,
}

/// Parses the command line and runs the subcommand it names.
#[must_use]
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => serve::main(*args),
        Command::Demo(args) => run(demo::run(args)),
        Command::Explain(args) => decisions::explain::main(&args),
        Command::Decide(args) => decisions::decide::main(&args),
        Command::Replay(args) => decisions::replay::main(&args),
        Command::Simulate(args) => simulate::main(*args),
        Command::Crd => crd_yaml().map_or_else(|error| fail(1, &error), |yaml| print(&yaml)),
        Command::Signals => print(&signals_page()),
    }
}

/// Prints a page.
#[expect(clippy::print_stdout, reason = "the output of a command")]
fn print(page: &str) -> ExitCode {
    print!("{page}");
    ExitCode::SUCCESS
}

/// Prints an error of a command to standard error.
#[expect(clippy::print_stderr, reason = "must work without logging")]
fn fail(code: u8, error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("wva: {error}");
    ExitCode::from(code)
}

/// How long blocking threads may take to end at exit. A thread that never ends must not keep the process alive.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs `work` to its end and shuts the runtime down.
fn block_on<T>(runtime: Runtime, work: impl Future<Output = T>) -> T {
    let result = runtime.block_on(work);
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    result
}

/// Runs a subcommand with I/O: installs the TLS provider and runs `work` on a new runtime.
fn run<E: Into<anyhow::Error>>(work: impl Future<Output = Result<(), E>>) -> ExitCode {
    if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
        return fail(1, &"a second TLS provider is installed in this process; this is a bug");
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("wva").build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(1, &format!("cannot start: {error}")),
    };
    match block_on(runtime, work) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(1, &format!("{:#}", error.into())),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn a_thread_that_never_ends_does_not_keep_the_process_alive() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let started = Instant::now();
        let result = block_on(runtime, async {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            tokio::task::spawn_blocking(|| {
                let _ = sender.send(());
                loop {
                    std::thread::park();
                }
            });
            receiver.await.is_ok()
        });
        assert!(result && started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    }
}
