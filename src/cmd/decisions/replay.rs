//! `wva replay`: a recorded stream, decided again.

use std::io::{self, IsTerminal as _, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;
use wva_core::{Decision, Policy};

use super::input::{broken, open, policy_file};
use super::{Failure, Output, exit, message, note, short, structured};
use crate::record::{Difference, LineLocation, Lines, Replay, Summary};

/// How often a person is told how far it is.
const TOLD_EVERY: Duration = Duration::from_millis(500);

const CLEAR_LINE: &str = "\r\x1b[2K";

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

/// All that a replay has to say, for programs.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Told {
    #[serde(flatten)]
    summary: Summary,
    /// Every decision is the same, and without another policy every byte.
    identical: bool,
    /// Lines that were left out.
    damaged: Vec<Left>,
    differences: Vec<Difference>,
}

/// A line that was left out.
#[derive(Debug, Serialize)]
struct Left {
    place: String,
    cause: String,
}

pub(in crate::cmd) fn main(args: &Args) -> ExitCode {
    exit(run(args, &mut io::stdout().lock()))
}

fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode, Failure> {
    let file = args.policy.as_deref().map(policy_file).transpose()?;
    let change = file.map(|file| move |policy: &Policy| file.over(policy).map_err(|error| error.to_string()));
    let change = change.as_ref();
    let replay = Replay::new(change.map(|change| change as &crate::record::Change<'_>));
    let table = args.output == Output::Table;
    let mut run = Run { out, table, replay, told: Told::default(), rows: 0, progress: Progress::new() };
    for path in &args.files {
        for found in Lines::new(open(path)?, path) {
            let found = found.map_err(|error| broken(path, &error))?;
            match found.entry {
                Ok(entry) => {
                    let replayed =
                        run.replay.step(&entry).map_err(|cause| format!("{}: {cause}", found.location))?;
                    let unsaid = replayed.differences.is_empty() && !replayed.is_identical;
                    if unsaid && change.is_none() {
                        run.say(&format!("{}: same decisions, another report or memory", found.location))?;
                    }
                    run.show(replayed.differences)?;
                }
                Err(trouble) => run.leave_out(&found.location, trouble.to_string())?,
            }
            run.progress.tell(&found.location);
        }
    }
    run.end(change.is_some(), args.output)
}

struct Run<'a, W> {
    out: W,
    table: bool,
    replay: Replay<'a>,
    told: Told,
    rows: u64,
    progress: Progress,
}

impl<W: Write> Run<'_, W> {
    fn show(&mut self, differences: Vec<Difference>) -> Result<(), Failure> {
        if !self.table {
            self.told.differences.extend(differences);
            return Ok(());
        }
        for Difference { at, variant, recorded, replayed } in differences {
            self.progress.clear();
            if self.rows == 0 {
                writeln!(self.out, "{:<30}  {:<32}  {:<24}  REPLAYED", "AT", "VARIANT", "RECORDED")?;
            }
            self.rows += 1;
            let none = || "not decided".to_owned();
            let [then, now] = [&recorded, &replayed].map(|one| one.as_ref().map_or_else(none, short));
            let why = replayed.as_ref().map_or_else(String::new, message);
            let (at, variant) = (at.to_string(), variant.to_string());
            writeln!(self.out, "{at:<30}  {variant:<32}  {then:<24}  {now}: {why}")?;
            let same = |one: &Decision, other: &Decision| short(one) == short(other);
            if recorded.as_ref().zip(replayed.as_ref()).is_some_and(|(then, now)| same(then, now)) {
                writeln!(
                    self.out,
                    "{:<30}  {:<32}  it was: {}",
                    "",
                    "",
                    recorded.as_ref().map_or_else(String::new, message)
                )?;
            }
        }
        Ok(())
    }

    fn say(&mut self, text: &str) -> Result<(), Failure> {
        self.progress.clear();
        if self.table {
            writeln!(self.out, "{text}")?;
        }
        Ok(())
    }

    /// Names a line that cannot be used, at once: somebody may be waiting for the rest.
    fn leave_out(&mut self, place: &LineLocation, cause: String) -> Result<(), Failure> {
        self.progress.clear();
        note(&format!("{place}: {cause}; left out"));
        self.told.damaged.push(Left { place: place.to_string(), cause });
        Ok(())
    }

    fn end(mut self, changed: bool, output: Output) -> Result<ExitCode, Failure> {
        self.progress.clear();
        let summary = self.replay.summary().clone();
        let identical = if changed { summary.differing == 0 } else { summary.is_identical() };
        if summary.evaluations == 0 {
            let next = "record with `wva serve --record-dir`, or take /debug/snapshots/all";
            return Err(format!("no evaluation can be replayed; {next}").into());
        }
        if self.table {
            write!(self.out, "{}", sum_up(&summary, self.told.damaged.len(), changed))?;
        } else {
            self.told = Told { summary, identical, ..self.told };
            structured(&mut self.out, &self.told, output)?;
        }
        Ok(if identical || changed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn sum_up(summary: &Summary, damaged: usize, changed: bool) -> String {
    let Summary { evaluations, decisions, differing, same_but_for_the_report, of_older_format, after_a_gap } =
        summary;
    let mut text = format!("{evaluations} evaluations, {decisions} decisions: ");
    text += &match (differing, changed) {
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
    if changed && *after_a_gap > 0 {
        text += &format!(
            "{after_a_gap} times evaluations are missing (not recorded, damaged, or of another process): there the other \
             policy's memory was carried on, so what follows is not exact\n"
        );
    }
    text
}

/// How far it is, rewritten in one line of a terminal.
struct Progress {
    live: bool,
    next: Instant,
    shown: bool,
}

impl Progress {
    fn new() -> Self {
        Self { live: io::stderr().is_terminal(), next: Instant::now() + TOLD_EVERY, shown: false }
    }

    fn tell(&mut self, place: &LineLocation) {
        if self.live && Instant::now() >= self.next {
            let _ = write!(io::stderr(), "{CLEAR_LINE}{place}");
            (self.next, self.shown) = (Instant::now() + TOLD_EVERY, true);
        }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(io::stderr(), "{CLEAR_LINE}");
        }
    }
}
