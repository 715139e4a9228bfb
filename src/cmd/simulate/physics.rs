//! `wva simulate physics`: the presets and their sources.

use std::io::Write;
use std::process::ExitCode;

use super::super::output::{CommandError, OutputFormat, write_structured};
use super::super::terminal::aligned;
use crate::simulate::file::known_physics;

/// List the physics of known servers with their sources
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Yaml)]
    output: OutputFormat,
}

pub(super) fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode, CommandError> {
    if args.output != OutputFormat::Table {
        write_structured(out, known_physics(), args.output)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = vec![vec!["PRESET".to_owned(), "MODEL, ACCELERATOR".to_owned()]];
    rows.extend(
        known_physics()
            .iter()
            .map(|(name, entry)| vec![name.clone(), format!("{}, {}", entry.model, entry.accelerator)]),
    );
    aligned(&rows, 2).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    Ok(ExitCode::SUCCESS)
}
