//! How commands print results and report errors: output formats, errors, and exit codes.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;

/// Exit code of a command that failed for another reason than its input.
pub(super) const EXIT_FAILURE: u8 = 1;
/// Exit code for input that cannot be used.
pub(super) const EXIT_UNUSABLE_INPUT: u8 = 2;
/// Exit code for an invalid configuration of `wva serve` (`EX_USAGE` of sysexits.h).
pub(super) const EXIT_USAGE: u8 = 64;

/// The format of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum OutputFormat {
    /// Text for people.
    Table,
    /// JSON, for programs.
    Json,
    /// YAML, for programs and people.
    Yaml,
}

/// Why a command has no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    /// The input or the command line cannot be used. The message names what, where and the next step.
    #[error("{0}")]
    Input(String),
    /// Standard output cannot be written.
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
}

impl From<String> for CommandError {
    fn from(message: String) -> Self {
        Self::Input(message)
    }
}

/// The exit code of a command, after its error has been reported. A reader that closes the pipe (`| head`) is no error.
pub(super) fn exit_code(result: Result<ExitCode, CommandError>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(CommandError::Output(cause)) if cause.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error @ CommandError::Output(_)) => report_error(EXIT_FAILURE, &error),
        Err(error @ CommandError::Input(_)) => report_error(EXIT_UNUSABLE_INPUT, &error),
    }
}

/// Prints an error to standard error and returns its exit code.
#[expect(clippy::print_stderr, reason = "must work without logging")]
pub(super) fn report_error(code: u8, error: &dyn Display) -> ExitCode {
    eprintln!("wva: {error}");
    ExitCode::from(code)
}

/// Prints a generated page.
#[expect(clippy::print_stdout, reason = "the output of a command")]
pub(super) fn print_page(page: &str) -> ExitCode {
    print!("{page}");
    ExitCode::SUCCESS
}

/// Writes `value` as YAML or JSON. A command writes its table itself.
pub(super) fn write_structured(
    out: &mut impl Write,
    value: &impl Serialize,
    format: OutputFormat,
) -> io::Result<()> {
    let text = match format {
        OutputFormat::Yaml => serde_saphyr::to_string(value).map_err(io::Error::other)?,
        OutputFormat::Json | OutputFormat::Table => serde_json::to_string_pretty(value)?,
    };
    writeln!(out, "{}", text.trim_end())
}
