//! `wva simulate physics`: the presets and where their numbers come from.

use std::io::Write;
use std::process::ExitCode;

use super::super::decisions::{Failure, Output, structured};
use crate::simulate::file::known_physics;

/// List how fast known servers are, with the sources
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// How to show it.
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
