//! `wva decide`: repeats one decision from a file.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use jiff::Timestamp;
use wva_core::{Outcome, Policy};

use super::input::DecisionInput;
use crate::cmd::output::{CommandError, OutputFormat, exit_code, write_structured};
use crate::explain::{explanation_text, number_and_reason};
use crate::record::decide_recorded;

/// Repeat one decision from a file, and show its reasons
///
/// FILE is a line of a recording (from --record-dir or /debug/snapshots), a snapshot alone, or a JSON object with
/// `snapshot`, `memory` and `policy`. No server is contacted, and the same input always gives the same result.
///
/// To see the decision with a larger reserve of KV cache (`--print-policy` lists every setting):
///
///   echo 'global: {default: {saturation: {kvSpareTrigger: 0.2}}}' | wva decide snapshot.json --policy -
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// The file to read; - is standard input.
    #[arg(value_name = "FILE", required_unless_present = "print_policy")]
    file: Option<PathBuf>,
    /// Time of the evaluation to repeat, for recordings. Default: the last one.
    #[arg(long, value_name = "TIMESTAMP")]
    at: Option<Timestamp>,
    /// YAML or JSON file with settings that replace the recorded ones; - is standard input.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// JSON file with the memory to start from. Default: the recorded one, if any, else none.
    #[arg(long, value_name = "FILE")]
    memory: Option<PathBuf>,
    /// Output format. json and yaml contain the whole outcome, with the report and the next memory.
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Table)]
    output: OutputFormat,
    /// Print the default policy, which lists every setting, and exit.
    #[arg(long)]
    print_policy: bool,
}

pub(crate) fn main(args: &Args) -> ExitCode {
    exit_code(run(args, &mut io::stdout().lock()))
}

fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode, CommandError> {
    let Some(file) = args.file.as_deref().filter(|_| !args.print_policy) else {
        let format = if args.output == OutputFormat::Table { OutputFormat::Yaml } else { args.output };
        write_structured(out, &Policy::default(), format)?;
        return Ok(ExitCode::SUCCESS);
    };
    let input = DecisionInput::read(file, args.at)?;
    let input = input.with_policy(args.policy.as_deref())?.with_memory(args.memory.as_deref())?;
    let outcome = decide_recorded(&input.snapshot, &input.memory, &input.policy);
    match args.output {
        OutputFormat::Table => write_table(out, &input, &outcome)?,
        format => write_structured(out, &outcome, format)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn write_table(out: &mut impl Write, input: &DecisionInput, outcome: &Outcome) -> io::Result<()> {
    let names = outcome.decisions.keys().map(|id| id.to_string().chars().count());
    let width = names.max().unwrap_or_default().max("VARIANT".len());
    writeln!(out, "{:<width$}  {:>7}  DECISION", "VARIANT", "CURRENT")?;
    for (id, decision) in &outcome.decisions {
        let current = decision.current.map_or_else(|| "-".into(), |current| current.to_string());
        let number = number_and_reason(decision);
        writeln!(out, "{:<width$}  {current:>7}  {number}", id.to_string())?;
        writeln!(out, "{:<width$}  {:>7}  {}", "", "", explanation_text(decision))?;
        let recorded = input.recorded.as_ref().and_then(|recorded| recorded.decisions.get(id));
        if let Some(recorded) = recorded.filter(|recorded| number_and_reason(recorded) != number) {
            let (number, text) = (number_and_reason(recorded), explanation_text(recorded));
            writeln!(out, "{:<width$}  {:>7}  recorded: {number}: {text}", "", "")?;
        }
    }
    for dropped in &outcome.report.dropped {
        writeln!(out, "{dropped}")?;
    }
    for violation in &outcome.report.violations {
        writeln!(out, "withheld by the checker: {violation}")?;
    }
    Ok(())
}
