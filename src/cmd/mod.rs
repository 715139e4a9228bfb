//! Subcommands.

pub mod demo;
pub mod fleet;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Computes the desired replicas of LLM serving variants and answers the external metrics API with them.
#[derive(Debug, Parser)]
#[command(name = "wva", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::DemoArgs),
}

/// Parses the command line and runs the subcommand it names.
pub fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    let Command::Demo(args) = command;
    // The only failure is that a provider is installed already, which is as good.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&format!("no runtime: {error}")),
    };
    match runtime.block_on(demo::run(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error.to_string()),
    }
}

#[expect(clippy::print_stderr, reason = "the last words of a process")]
fn failed(message: &str) -> ExitCode {
    eprintln!("wva: {message}");
    ExitCode::FAILURE
}
