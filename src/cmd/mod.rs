//! Subcommands.

mod crd;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Exit code for a command line that cannot be carried out (`EX_USAGE`).
const USAGE: u8 = 64;

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
    Crd(crd::Args),
}

/// Parses the command line and runs the subcommand it names.
#[must_use]
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => serve::main(*args),
        Command::Crd(args) => crd::main(&args),
    }
}

/// Says on standard error what went wrong and why.
#[expect(clippy::print_stderr, reason = "the last word of a failing command, whether or not logging works")]
fn fail(code: u8, error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("wva: {error}");
    ExitCode::from(code)
}

/// The runtime that every subcommand with I/O uses.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("wva").build()
}

/// Installs the one TLS provider of the process.
///
/// # Errors
/// When another one is installed: two would make rustls panic later.
fn install_crypto_provider() -> Result<(), &'static str> {
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .map_err(|_| "a second TLS provider is installed in this process; this is a bug")
}
