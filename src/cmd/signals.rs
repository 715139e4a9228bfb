//! `wva signals`: which series each analyzer needs, generated from what it reads.

use std::process::ExitCode;

use crate::collect::signals_page;

/// Print which signals each analyzer needs, and under which names each engine shows them, as Markdown.
#[derive(Debug, clap::Args)]
pub(super) struct Args {}

#[expect(clippy::print_stdout, reason = "this is what the command is for")]
pub(super) fn main(_: &Args) -> ExitCode {
    print!("{}", signals_page());
    ExitCode::SUCCESS
}
