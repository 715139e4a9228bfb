//! `wva replay`: repeats the decisions of recordings and compares them.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use wva_core::{Decision, Policy};

use super::input::{open, read_error, read_policy_file};
use crate::cmd::output::{CommandError, OutputFormat, exit_code, write_structured};
use crate::cmd::terminal::{StatusLine, note};
use crate::explain::{explanation_text, number_and_reason};
use crate::record::{Change, Difference, LineLocation, Lines, Replay, Summary};

/// Repeat the decisions of recordings, and print those that differ
///
/// Without --policy, the results must be byte-identical: decisions, reports and memory. Use this to compare a new version
/// with the one that made the recording. Of recordings in an older format, only numbers and reasons are compared.
///
/// With --policy, each setting in that file replaces the recorded one, and memory is carried from one evaluation to the
/// next. Pods and load stay as recorded: a replay shows what would have been decided, not what would have happened.
///
///   wva replay /var/lib/wva/wva-*.jsonl
///   curl … https://HOST:8443/debug/snapshots/all > last.jsonl; wva replay last.jsonl --policy early.yaml
///
/// Every line of a recording has a checksum. Damaged and truncated lines are named and skipped; they do not change the exit
/// code.
///
/// Exit code: 0 if everything is identical, and always with --policy; 1 if something differs; 2 if the input cannot be used.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// Recordings, in the order of time, which is that of their names; - is standard input.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// YAML or JSON file with settings that replace the recorded ones; - is standard input.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Table)]
    output: OutputFormat,
}

/// The result as JSON or YAML.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    #[serde(flatten)]
    summary: Summary,
    /// No decision differs and, without another policy, no byte.
    identical: bool,
    /// Lines that were skipped.
    damaged: Vec<DamagedLine>,
    differences: Vec<Difference>,
}

#[derive(Debug, Serialize)]
struct DamagedLine {
    /// The file and the line.
    #[serde(rename = "place")]
    location: String,
    cause: String,
}

pub(crate) fn main(args: &Args) -> ExitCode {
    exit_code(run(args, &mut io::stdout().lock()))
}

fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode, CommandError> {
    let file = args.policy.as_deref().map(read_policy_file).transpose()?;
    let change =
        file.map(|file| move |policy: &Policy| file.apply_to(policy).map_err(|error| error.to_string()));
    let change = change.as_ref().map(|change| change as &Change<'_>);
    let mut replay = Replay::new(change);
    let is_table = args.output == OutputFormat::Table;
    let mut printer =
        Printer { out, is_table, report: Report::default(), rows: 0, status: StatusLine::new() };
    for path in &args.files {
        for line in Lines::new(open(path)?, path) {
            let line = line.map_err(|error| read_error(path, &error))?;
            match line.entry {
                Ok(entry) => {
                    let replayed =
                        replay.step(&entry).map_err(|cause| format!("{}: {cause}", line.location))?;
                    if replayed.differences.is_empty() && !replayed.is_identical && change.is_none() {
                        printer.print_different_report(&line.location)?;
                    }
                    printer.add_differences(replayed.differences)?;
                }
                Err(cause) => printer.skip_line(&line.location, cause.to_string()),
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
    fn add_differences(&mut self, differences: Vec<Difference>) -> Result<(), CommandError> {
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
            let number = |decision: &Option<Decision>| {
                decision.as_ref().map_or_else(|| "not decided".to_owned(), number_and_reason)
            };
            let text =
                |decision: &Option<Decision>| decision.as_ref().map_or_else(String::new, explanation_text);
            let (old, new, new_text) = (number(&recorded), number(&replayed), text(&replayed));
            let (at, variant) = (at.to_string(), variant.to_string());
            writeln!(self.out, "{at:<30}  {variant:<32}  {old:<24}  {new}: {new_text}")?;
            if recorded.is_some() && replayed.is_some() && old == new {
                writeln!(self.out, "{:<30}  {:<32}  recorded: {}", "", "", text(&recorded))?;
            }
        }
        Ok(())
    }

    fn print_different_report(&mut self, location: &LineLocation) -> Result<(), CommandError> {
        self.status.clear();
        if self.is_table {
            writeln!(self.out, "{location}: same decisions, different report or memory")?;
        }
        Ok(())
    }

    /// Names a line that cannot be used. At once, because the other lines may take minutes.
    fn skip_line(&mut self, location: &LineLocation, cause: String) {
        self.status.clear();
        note(&format!("{location}: {cause}; skipped"));
        self.report.damaged.push(DamagedLine { location: location.to_string(), cause });
    }

    fn finish(
        mut self,
        summary: &Summary,
        has_policy: bool,
        format: OutputFormat,
    ) -> Result<ExitCode, CommandError> {
        self.status.clear();
        let identical = if has_policy { summary.differing == 0 } else { summary.is_identical() };
        if summary.evaluations == 0 {
            let hint = "record with `wva serve --record-dir`, or save /debug/snapshots/all";
            return Err(format!("no evaluation can be replayed; {hint}").into());
        }
        if self.is_table {
            write!(self.out, "{}", summary_text(summary, self.report.damaged.len(), has_policy))?;
        } else {
            let report = Report { summary: summary.clone(), identical, ..self.report };
            write_structured(&mut self.out, &report, format)?;
        }
        Ok(if identical || has_policy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn summary_text(summary: &Summary, damaged: usize, has_policy: bool) -> String {
    let Summary { evaluations, decisions, differing, same_but_for_the_report, of_older_format, after_a_gap } =
        summary;
    let mut text = format!("{evaluations} evaluations, {decisions} decisions: ");
    text += &match (differing, has_policy) {
        (0, true) => "none differs\n".into(),
        (0, false) if *of_older_format > 0 && summary.is_identical() => {
            "identical as far as they can be compared\n".into()
        }
        (0, false) if summary.is_identical() => "byte-identical\n".into(),
        (0, false) => {
            format!(
                "none differs; evaluations with a different report or memory: {same_but_for_the_report}\n"
            )
        }
        (1, _) => "1 differs\n".into(),
        _ => format!("{differing} differ\n"),
    };
    if damaged > 0 {
        text += &format!("damaged lines skipped: {damaged}\n");
    }
    if *of_older_format > 0 {
        text += &format!(
            "evaluations in an older format, of which only numbers and reasons were compared: {of_older_format}\n"
        );
    }
    if has_policy && *after_a_gap > 0 {
        text += &format!(
            "gaps (evaluations not recorded, damaged, or of another process): {after_a_gap}; the memory of the policy was \
             carried across them, so results after a gap are approximate\n"
        );
    }
    text
}
