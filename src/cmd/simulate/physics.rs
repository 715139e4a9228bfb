//! `wva simulate physics`: the presets and their sources.

use std::io::Write;
use std::process::ExitCode;

use super::super::decisions::{Failure, Output, structured};
use crate::simulate::file::known_physics;

/// List the physics of known servers with their sources
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = Output::Yaml)]
    output: Output,
}

pub(super) fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode, Failure> {
    if args.output != Output::Table {
        structured(out, known_physics(), args.output)?;
        return Ok(ExitCode::SUCCESS);
    }
    let width = known_physics().keys().map(String::len).max().unwrap_or(0);
    writeln!(out, "{:<width$}  MODEL, ACCELERATOR", "PRESET")?;
    for (name, entry) in known_physics() {
        writeln!(out, "{name:<width$}  {}, {}", entry.model, entry.accelerator)?;
    }
    Ok(ExitCode::SUCCESS)
}
