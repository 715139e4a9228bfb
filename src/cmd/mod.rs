//! The command line of `wva`: its subcommands, one module each.

mod api;
mod check;
mod decisions;
mod demo;
pub mod fleet;
mod give_back;
mod kubectl;
mod migrate;
mod output;
mod runtime;
mod serve;
mod simulate;
mod terminal;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use self::output::{EXIT_FAILURE, print_page, report_error};
use crate::cluster::crd::crd_yaml;
use crate::collect::signals_page;
use crate::config::CommandLine;

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
    Migrate(migrate::Args),
    Check(Box<check::Args>),
    GiveBack(give_back::Args),
    Kubectl(kubectl::Args),
    /// Print the CustomResourceDefinition of VariantAutoscaling as YAML
    ///
    /// Helm installs it once and never upgrades it. After an upgrade of wva, apply it with `wva crd | kubectl apply -f -`.
    Crd,
    /// Print the signals that each analyzer needs and the names they have in each engine, as Markdown
    Signals,
}

/// Parses the command line and runs the subcommand it names.
#[must_use]
pub fn main() -> ExitCode {
    let line = CommandLine::new(Cli::command(), kubectl::words(std::env::args_os()));
    match Cli::parse_from(line.words()).command {
        Command::Serve(args) => serve::main(*args, line),
        Command::Demo(args) => runtime::run(demo::run(args)),
        Command::Explain(args) => decisions::explain::main(&args),
        Command::Decide(args) => decisions::decide::main(&args),
        Command::Replay(args) => decisions::replay::main(&args),
        Command::Simulate(args) => simulate::main(*args),
        Command::Migrate(args) => migrate::main(&args),
        Command::Check(args) => check::main(*args),
        Command::GiveBack(args) => runtime::run(give_back::run(args)),
        Command::Kubectl(args) => kubectl::main(args),
        Command::Crd => {
            crd_yaml().map_or_else(|error| report_error(EXIT_FAILURE, &error), |yaml| print_page(&yaml))
        }
        Command::Signals => print_page(&signals_page()),
    }
}
