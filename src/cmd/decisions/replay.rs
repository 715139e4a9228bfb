//! `wva replay`: a recorded stream, decided again.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use wva_core::{Decision, Policy};

use super::super::terminal::{StatusLine, note};
use super::input::{broken, open, policy_file};
use super::{Failure, Output, exit, message, short, structured};
use crate::record::{Change, Difference, LineLocation, Lines, Replay, Summary};

/// Decide a recorded stream again and print what comes out otherwise
///
/// Without --policy the result must be identical to the byte: decisions, reports and memory. That is how a new version is
/// checked against what an old one did. Of recordings in an older format only numbers and reasons are compared.
///
/// With --policy every setting that the file names replaces the recorded one, and what is remembered is that policy's own
/// from the first evaluation on. The recorded world does not answer: pods and load stay as they were, so a replay says what
/// would have been decided, not what would have happened.
///
///   wva replay /var/lib/wva/wva-*.jsonl
///   curl … https://HOST:8443/debug/snapshots/all > last.jsonl; wva replay last.jsonl --policy bold.yaml
///
/// Every line of a recording has a checksum: a damaged or torn one is named and left out, which changes no exit code.
///
/// Exit code: 0 identical, or any result with --policy; 1 something differs; 2 the input cannot be used.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(in crate::cmd) struct Args {
    /// Recordings, in the order of time (their names are in that order); - is standard input.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// YAML or JSON with the settings that are to be other than recorded.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// How to show it.
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

/// The result for programs.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    #[serde(flatten)]
    summary: Summary,
    /// Every decision is the same, and without another policy every byte.
    identical: bool,
    /// Lines that were left out.
    damaged: Vec<DamagedLine>,
    differences: Vec<Difference>,
}

#[derive(Debug, Serialize)]
struct DamagedLine {
    place: String,
    cause: String,
}

pub(in crate::cmd) fn main(args: &Args) -> ExitCode {
    exit(run(args, &mut io::stdout().lock()))
}

fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode, Failure> {
    let file = args.policy.as_deref().map(policy_file).transpose()?;
    let change = file.map(|file| move |policy: &Policy| file.over(policy).map_err(|error| error.to_string()));
    let change = change.as_ref().map(|change| change as &Change<'_>);
    let mut replay = Replay::new(change);
    let is_table = args.output == Output::Table;
    let mut printer =
        Printer { out, is_table, report: Report::default(), rows: 0, status: StatusLine::new() };
    for path in &args.files {
        for line in Lines::new(open(path)?, path) {
            let line = line.map_err(|error| broken(path, &error))?;
            match line.entry {
                Ok(entry) => {
                    let replayed =
                        replay.step(&entry).map_err(|cause| format!("{}: {cause}", line.location))?;
                    if replayed.differences.is_empty() && !replayed.is_identical && change.is_none() {
                        printer.print_other_report(&line.location)?;
                    }
                    printer.add_differences(replayed.differences)?;
                }
                Err(cause) => printer.leave_out(&line.location, cause.to_string()),
            }
            printer.status.show(|| line.location.to_string());
        }
    }
    printer.finish(replay.summary(), change.is_some(), args.output)
}

struct Printer<W> {
    out: W,
    is_table: bool,
    report: Report,
    rows: u64,
    status: StatusLine,
}

impl<W: Write> Printer<W> {
    fn add_differences(&mut self, differences: Vec<Difference>) -> Result<(), Failure> {
        if !self.is_table {
            self.report.differences.extend(differences);
            return Ok(());
        }
        for Difference { at, variant, recorded, replayed } in differences {
            self.status.clear();
            if self.rows == 0 {
                writeln!(self.out, "{:<30}  {:<32}  {:<24}  REPLAYED", "AT", "VARIANT", "RECORDED")?;
            }
            self.rows += 1;
            let shown = |decision: &Option<Decision>| {
                decision.as_ref().map_or_else(|| "not decided".to_owned(), short)
            };
            let reasons = |decision: &Option<Decision>| decision.as_ref().map_or_else(String::new, message);
            let (old, new, why) = (shown(&recorded), shown(&replayed), reasons(&replayed));
            let (at, variant) = (at.to_string(), variant.to_string());
            writeln!(self.out, "{at:<30}  {variant:<32}  {old:<24}  {new}: {why}")?;
            if recorded.is_some() && replayed.is_some() && old == new {
                writeln!(self.out, "{:<30}  {:<32}  it was: {}", "", "", reasons(&recorded))?;
            }
        }
        Ok(())
    }

    fn print_other_report(&mut self, location: &LineLocation) -> Result<(), Failure> {
        self.status.clear();
        if self.is_table {
            writeln!(self.out, "{location}: same decisions, another report or memory")?;
        }
        Ok(())
    }

    /// Names a line that cannot be used, at once: somebody may be waiting for the rest.
    fn leave_out(&mut self, location: &LineLocation, cause: String) {
        self.status.clear();
        note(&format!("{location}: {cause}; left out"));
        self.report.damaged.push(DamagedLine { place: location.to_string(), cause });
    }

    fn finish(mut self, summary: &Summary, is_changed: bool, output: Output) -> Result<ExitCode, Failure> {
        self.status.clear();
        let identical = if is_changed { summary.differing == 0 } else { summary.is_identical() };
        if summary.evaluations == 0 {
            let next = "record with `wva serve --record-dir`, or take /debug/snapshots/all";
            return Err(format!("no evaluation can be replayed; {next}").into());
        }
        if self.is_table {
            write!(self.out, "{}", sum_up(summary, self.report.damaged.len(), is_changed))?;
        } else {
            let report = Report { summary: summary.clone(), identical, ..self.report };
            structured(&mut self.out, &report, output)?;
        }
        Ok(if identical || is_changed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn sum_up(summary: &Summary, damaged: usize, is_changed: bool) -> String {
    let Summary { evaluations, decisions, differing, same_but_for_the_report, of_older_format, after_a_gap } =
        summary;
    let mut text = format!("{evaluations} evaluations, {decisions} decisions: ");
    text += &match (differing, is_changed) {
        (0, true) => "none comes out otherwise\n".into(),
        (0, false) if *of_older_format > 0 && summary.is_identical() => {
            "identical, as far as can be compared\n".into()
        }
        (0, false) if summary.is_identical() => "identical, to the byte\n".into(),
        (0, false) => {
            format!("the same, but {same_but_for_the_report} times with another report or memory\n")
        }
        _ => format!("{differing} come out otherwise\n"),
    };
    if damaged > 0 {
        text += &format!("{damaged} damaged lines were left out\n");
    }
    if *of_older_format > 0 {
        text += &format!(
            "{of_older_format} evaluations were recorded in an older format: only numbers and reasons were compared\n"
        );
    }
    if is_changed && *after_a_gap > 0 {
        text += &format!(
            "{after_a_gap} times evaluations are missing (not recorded, damaged, or of another process): there the other \
             policy's memory was carried on, so what follows is not exact\n"
        );
    }
    text
}
