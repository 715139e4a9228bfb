//! Subcommands.

pub mod fleet;

use std::process::ExitCode;

/// Parses the command line and runs the subcommand it names.
pub fn main() -> ExitCode {
    ExitCode::SUCCESS
}
