//! The demo's table: a row at regular intervals and at every change; on a terminal also a last row that is refreshed. It only
//! ever rewrites one line, so that scrolling, resizing and copying work.

use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

use super::output::{Frame, minutes, seconds, utilisation};
use crate::cmd::terminal::{CLEAR_LINE, wrapped};

/// A row at least this often, in virtual time: the sync period of an HPA.
const ROW_INTERVAL: Duration = Duration::from_secs(15);
/// Rows between two headers: about a screen.
const HEADER_INTERVAL: u32 = 20;
/// Cells of the utilisation bar.
const BAR_CELLS: usize = 10;
/// Columns of a sentence without its indent: as wide as the table.
const SENTENCE_WIDTH: usize = 92;

const HEADER: &str =
    "   time   demand  capacity  utilisation          KV  waiting  desired    ready  TTFT p95     cost";

const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

/// Writes frames and sentences.
pub(super) struct Table<W> {
    out: W,
    is_live: bool,
    next_row: Duration,
    rows: u32,
}

impl Table<io::Stdout> {
    /// On standard output, with a refreshed last row if that is a terminal.
    pub(super) fn stdout() -> Self {
        let out = io::stdout();
        let is_live = out.is_terminal();
        Self::new(out, is_live)
    }
}

impl<W: Write> Table<W> {
    pub(super) fn new(out: W, is_live: bool) -> Self {
        Self { out, is_live, next_row: Duration::ZERO, rows: 0 }
    }

    /// Writes a paragraph.
    pub(super) fn write_paragraph(&mut self, text: &str) -> io::Result<()> {
        self.clear()?;
        writeln!(self.out, "{text}")?;
        self.out.flush()
    }

    /// Shows a frame: a row and the sentences of its changes if there are any or a row is due, and the refreshed row.
    pub(super) fn show(&mut self, frame: &Frame, changes: &[String]) -> io::Result<()> {
        self.clear()?;
        if !changes.is_empty() || frame.fleet.at >= self.next_row {
            if self.rows.is_multiple_of(HEADER_INTERVAL) {
                self.write_header()?;
            }
            self.rows += 1;
            self.next_row = frame.fleet.at + ROW_INTERVAL;
            writeln!(self.out, "{}", row(frame))?;
            let (on, off) = self.bold();
            for line in changes.iter().flat_map(|change| wrapped(change, SENTENCE_WIDTH)) {
                writeln!(self.out, "         {on}{line}{off}")?;
            }
        }
        if self.is_live {
            write!(self.out, "{}", row(frame))?;
        }
        self.out.flush()
    }

    fn write_header(&mut self) -> io::Result<()> {
        let (on, off) = self.bold();
        writeln!(self.out, "{on}{HEADER}{off}")
    }

    const fn bold(&self) -> (&'static str, &'static str) {
        if self.is_live { (BOLD, PLAIN) } else { ("", "") }
    }

    fn clear(&mut self) -> io::Result<()> {
        if self.is_live { write!(self.out, "{CLEAR_LINE}") } else { Ok(()) }
    }
}

/// A row with the columns of [`HEADER`].
fn row(frame: &Frame) -> String {
    let summary = &frame.fleet.summary;
    let utilisation = utilisation(&frame.fleet);
    let filled = ((utilisation.unwrap_or(0.0) * BAR_CELLS as f64).round() as usize).min(BAR_CELLS);
    let bar = "█".repeat(filled) + &"░".repeat(BAR_CELLS - filled);
    let percent = utilisation.map_or("-".into(), |share| format!("{:.0} %", 100.0 * share));
    let desired = frame.desired().map_or("?".into(), |desired| desired.to_string());
    let mut ready = summary.ready.to_string();
    if summary.starting > 0 {
        ready = format!("{ready} (+{})", summary.starting);
    }
    format!(
        "  {}  {:>5.1}/s  {:>6.1}/s  {bar} {percent:>5}  {:>3.0} %  {:>7.0}  {desired:>7}  {ready:>7}  {:>8}  {:>7.2}",
        minutes(frame.fleet.at),
        summary.rps,
        summary.capacity_rps,
        100.0 * summary.kv_usage,
        summary.waiting,
        summary.ttft_p95_s.map_or("-".into(), seconds),
        summary.cost,
    )
}

#[cfg(test)]
mod tests {
    use super::super::fleet::FleetState;
    use super::super::output::Answer;
    use super::*;
    use wva_sim::Summary;

    fn frame(at: u64) -> Frame {
        let summary = Summary {
            ready: 2,
            starting: 1,
            kv_usage: 0.614,
            rps: 9.25,
            capacity_rps: 16.2,
            waiting: 3.0,
            ttft_p95_s: Some(0.048),
            cost: 2.345,
            ..Summary::default()
        };
        let fleet = FleetState { at: Duration::from_secs(at), summary, spec_replicas: 3 };
        Frame { fleet, answer: Some(Answer { desired: Some(3), reasons: String::new() }) }
    }

    fn shown(is_live: bool, frames: &[(u64, &[String])]) -> String {
        let mut table = Table::new(Vec::new(), is_live);
        for (at, changes) in frames {
            table.show(&frame(*at), changes).unwrap();
        }
        String::from_utf8(table.out).unwrap()
    }

    #[test]
    fn without_a_terminal_there_is_a_line_every_fifteen_seconds_and_at_every_change() {
        let change = ["wva: desired replicas 3".to_owned()];
        let text = shown(false, &[(0, &[]), (3, &[]), (7, &change), (12, &[]), (22, &[])]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert_eq!(
            lines[1],
            "  00:00    9.2/s    16.2/s  ██████░░░░  57 %   61 %        3        3   2 (+1)     48 ms     2.35"
        );
        assert_eq!(lines[3].trim(), "wva: desired replicas 3");
        assert!(!text.contains('\x1b'), "no control characters in a file");
        let width = |line: &str| line.chars().count();
        assert_eq!(width(lines[0]), width(lines[1]), "the header is as wide as its rows");
    }

    #[test]
    fn on_a_terminal_the_last_row_is_refreshed() {
        let text = shown(true, &[(0, &[]), (1, &[])]);
        assert_eq!(text.matches("61 %").count(), 3, "one row that stays, and the refreshed one twice");
        assert!(text.ends_with("2.35"), "the cursor waits behind the refreshed row");
    }
}
