//! `wva decide`: one decision, made here.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use jiff::Timestamp;
use wva_core::{Outcome, Policy};

use super::input::Material;
use super::{Failure, Output, exit, message, short, structured};
use crate::record::decide_recorded;

/// Make one decision here, from a snapshot, and say why
///
/// FILE is a line of a recording (from --record-dir or /debug/snapshots), a snapshot alone, or a JSON object with
/// `snapshot`, `memory` and `policy`. Nothing is asked and nothing is changed: the same input gives the same answer.
///
/// What would be decided with a larger spare of KV cache (`--print-policy` lists every setting):
///
///   echo 'global: {default: {saturation: {kvSpareTrigger: 0.2}}}' | wva decide snapshot.json --policy -
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(in crate::cmd) struct Args {
    /// The snapshot; - is standard input.
    #[arg(value_name = "FILE", required_unless_present = "print_policy")]
    file: Option<PathBuf>,
    /// Of a recording: the evaluation of this moment; by default the last one.
    #[arg(long, value_name = "TIMESTAMP")]
    at: Option<Timestamp>,
    /// YAML or JSON with the settings that are to be other than recorded.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// What is remembered, as JSON; by default what was recorded, else nothing.
    #[arg(long, value_name = "FILE")]
    memory: Option<PathBuf>,
    /// How to show it; json and yaml have the whole outcome with report and next memory.
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Print the default policy, which lists every setting, and do nothing else.
    #[arg(long)]
    print_policy: bool,
}

pub(in crate::cmd) fn main(args: &Args) -> ExitCode {
    exit(run(args, &mut io::stdout().lock()))
}

fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode, Failure> {
    let Some(file) = args.file.as_deref().filter(|_| !args.print_policy) else {
        let output = if args.output == Output::Table { Output::Yaml } else { args.output };
        structured(out, &Policy::default(), output)?;
        return Ok(ExitCode::SUCCESS);
    };
    let material = Material::read(file, args.at)?;
    let material = material.with_policy(args.policy.as_deref())?.with_memory(args.memory.as_deref())?;
    let outcome = decide_recorded(&material.snapshot, &material.memory, &material.policy);
    match args.output {
        Output::Table => table(out, &material, &outcome)?,
        output => structured(out, &outcome, output)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn table(out: &mut impl Write, material: &Material, outcome: &Outcome) -> io::Result<()> {
    let names = outcome.decisions.keys().map(|id| id.to_string().chars().count());
    let width = names.max().unwrap_or_default().max("VARIANT".len());
    writeln!(out, "{:<width$}  {:>7}  DECISION", "VARIANT", "CURRENT")?;
    for (id, decision) in &outcome.decisions {
        let current = decision.current.map_or_else(|| "-".into(), |current| current.to_string());
        writeln!(out, "{:<width$}  {current:>7}  {}", id.to_string(), short(decision))?;
        writeln!(out, "{:<width$}  {:>7}  {}", "", "", message(decision))?;
        let then = material.recorded.as_ref().and_then(|recorded| recorded.decisions.get(id));
        if let Some(then) = then.filter(|then| short(then) != short(decision)) {
            writeln!(out, "{:<width$}  {:>7}  recorded: {}: {}", "", "", short(then), message(then))?;
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
