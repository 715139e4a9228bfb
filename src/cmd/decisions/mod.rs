//! Decisions away from a cluster: one made again (`decide`), one explained (`explain`), a stream of them compared
//! (`replay`). All of them read what `/debug/snapshots` and `--record-dir` give.

pub(super) mod decide;
pub(super) mod explain;
mod explanation;
mod input;
pub(super) mod replay;
mod screen;
mod server;

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;
use wva_core::Decision;
use wva_core::decision::Verdict;

use super::fail;

/// Exit code for input that cannot be used.
const UNUSABLE: u8 = 2;

/// How an answer is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Output {
    /// For people.
    Table,
    /// For programs.
    Json,
    /// For programs and people.
    Yaml,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The input, or the command line, cannot be used: what, where and the next step.
    #[error("{0}")]
    Input(String),
    /// Standard output is gone.
    #[error("the answer cannot be written: {0}")]
    Output(#[from] io::Error),
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self::Input(message)
    }
}

/// The exit code of a command; a reader that has seen enough (`| head`) is no failure.
pub(super) fn exit(result: Result<ExitCode, Failure>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(Failure::Output(cause)) if cause.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error @ Failure::Output(_)) => fail(1, &error),
        Err(error @ Failure::Input(_)) => fail(UNUSABLE, &error),
    }
}

/// Writes `value` as a program reads it.
pub(super) fn structured(out: &mut impl Write, value: &impl Serialize, output: Output) -> io::Result<()> {
    let text = match output {
        Output::Yaml => serde_saphyr::to_string(value).map_err(io::Error::other)?,
        Output::Json | Output::Table => serde_json::to_string_pretty(value)?,
    };
    writeln!(out, "{}", text.trim_end())
}

/// A number with its reason, or why there is none.
fn short(decision: &Decision) -> String {
    match &decision.verdict {
        Verdict::Target(target) => format!("{} ({})", target.desired, target.reason.as_str()),
        Verdict::Unknown(unknown) => format!("no number ({:?})", unknown.cause),
    }
}

/// Why there is this number, or none; the number itself stands beside it.
fn message(decision: &Decision) -> String {
    decision.verdict.explanation().reasons().to_string()
}
