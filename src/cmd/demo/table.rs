//! The demo's table: a row now and then and at every change; on a terminal also a last row that lives. No cursor
//! arithmetic beyond rewriting one line, so that scrolling, resizing and copying work.

use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

use super::narrate::{Look, minutes, seconds};

/// A row at least this often, in virtual time: the cycle of the default analyzer and of an HPA.
const ROW_EVERY: Duration = Duration::from_secs(15);
/// The header again after so many rows: about a screen.
const HEADER_EVERY: u32 = 20;
/// Cells of the bar.
const BAR: usize = 10;

/// Columns of a sentence: with its indent, as wide as a table of 100.
const WIDTH: usize = 90;

const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";
const CLEAR_LINE: &str = "\r\x1b[2K";

/// Writes looks and sentences.
pub(super) struct Table<W> {
    out: W,
    live: bool,
    next_row: Duration,
    rows: u32,
}

impl Table<io::Stdout> {
    /// On standard output: living when that is a terminal.
    pub(super) fn stdout() -> Self {
        let out = io::stdout();
        let live = out.is_terminal();
        Self::new(out, live)
    }
}

impl<W: Write> Table<W> {
    pub(super) fn new(out: W, live: bool) -> Self {
        Self { out, live, next_row: Duration::ZERO, rows: 0 }
    }

    /// A paragraph.
    pub(super) fn say(&mut self, text: &str) -> io::Result<()> {
        self.clear()?;
        writeln!(self.out, "{text}")?;
        self.out.flush()
    }

    /// One look: its sentences, a row when one is due, and the living row.
    pub(super) fn show(&mut self, look: &Look, changes: &[String]) -> io::Result<()> {
        self.clear()?;
        if !changes.is_empty() || look.scene.at >= self.next_row {
            if self.rows.is_multiple_of(HEADER_EVERY) {
                self.header()?;
            }
            self.rows += 1;
            self.next_row = look.scene.at + ROW_EVERY;
            writeln!(self.out, "{}", row(look))?;
            for change in changes {
                let (on, off) = if self.live { (BOLD, PLAIN) } else { ("", "") };
                for line in wrapped(change) {
                    writeln!(self.out, "         {on}{line}{off}")?;
                }
            }
        }
        if self.live {
            write!(self.out, "{}", row(look))?;
        }
        self.out.flush()
    }

    fn header(&mut self) -> io::Result<()> {
        let (on, off) = if self.live { (BOLD, PLAIN) } else { ("", "") };
        writeln!(
            self.out,
            "{on}   time     load  waiting  KV use           desired  running  TTFT p95      cost{off}"
        )
    }

    fn clear(&mut self) -> io::Result<()> {
        if self.live { write!(self.out, "{CLEAR_LINE}") } else { Ok(()) }
    }
}

/// A sentence in lines of at most [`WIDTH`]; one long word stays whole.
fn wrapped(sentence: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in sentence.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// One row; the columns are those of the header.
fn row(look: &Look) -> String {
    let fleet = &look.scene.fleet;
    let filled = (fleet.kv_usage * BAR as f64).round() as usize;
    let bar = format!("{}{}", "█".repeat(filled.min(BAR)), "░".repeat(BAR - filled.min(BAR)));
    let desired = look.desired().map_or("?".into(), |desired| desired.to_string());
    let mut running = fleet.ready.to_string();
    if fleet.starting > 0 {
        running = format!("{running} (+{})", fleet.starting);
    }
    format!(
        "  {}  {:>5.1}/s  {:>7.0}  {bar} {:>3.0} %  {desired:>7}  {running:>7}  {:>8}  {:>7.2}",
        minutes(look.scene.at),
        fleet.rps,
        fleet.waiting,
        fleet.kv_usage * 100.0,
        fleet.ttft_p95_s.map_or("-".into(), seconds),
        look.scene.cost,
    )
}

#[cfg(test)]
mod tests {
    use super::super::stage::Scene;
    use super::*;
    use wva_sim::Summary;

    fn look(at: u64) -> Look {
        let fleet = Summary {
            ready: 2,
            starting: 1,
            kv_usage: 0.614,
            rps: 9.25,
            waiting: 3.0,
            ttft_p95_s: Some(0.048),
            ..Summary::default()
        };
        let scene = Scene { at: Duration::from_secs(at), fleet, cost: 2.345 };
        Look { scene, replicas: 3, verdict: Some((Ok(3), String::new())) }
    }

    fn shown(live: bool, looks: &[(u64, &[String])]) -> String {
        let mut table = Table::new(Vec::new(), live);
        for (at, changes) in looks {
            table.show(&look(*at), changes).unwrap();
        }
        String::from_utf8(table.out).unwrap()
    }

    #[test]
    fn without_a_terminal_there_is_a_line_every_fifteen_seconds_and_at_every_change() {
        let change = ["wva wants 3".to_owned()];
        let text = shown(false, &[(0, &[]), (3, &[]), (7, &change), (12, &[]), (22, &[])]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert_eq!(
            lines[1],
            "  00:00    9.2/s        3  ██████░░░░  61 %        3   2 (+1)     48 ms     2.35"
        );
        assert_eq!(lines[3].trim(), "wva wants 3");
        assert!(!text.contains('\x1b'), "no control characters in a file");
        let width = |line: &str| line.chars().count();
        assert_eq!(width(lines[0]), width(lines[1]), "the header is as wide as its rows");
    }

    #[test]
    fn on_a_terminal_the_last_row_lives() {
        let text = shown(true, &[(0, &[]), (1, &[])]);
        assert_eq!(text.matches("61 %").count(), 3, "one row that stays, and the living one twice");
        assert!(text.ends_with("2.35"), "the cursor waits behind the living row");
    }
}
