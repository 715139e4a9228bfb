//! `wva signals`: the series that each analyzer needs, generated from its declaration.

use std::process::ExitCode;

use crate::collect::signals_page;

/// Print the signals that each analyzer needs and the names they have in each engine, as Markdown.
#[derive(Debug, clap::Args)]
pub(super) struct Args {}

#[expect(clippy::print_stdout, reason = "the output of the command")]
pub(super) fn main(_: &Args) -> ExitCode {
    print!("{}", signals_page());
    ExitCode::SUCCESS
}
