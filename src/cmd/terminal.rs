//! What commands share to write for people: a status line, wrapped sentences, and aligned columns.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use tokio::time::Instant;
pub(super) use wva_core::text::wrapped;

/// How often a status line is refreshed.
const REFRESH_INTERVAL: Duration = Duration::from_millis(250);
/// Clears a line of a terminal.
pub(super) const CLEAR_LINE: &str = "\r\x1b[2K";

/// A line on the terminal that is rewritten in place. Nothing is shown where standard error is no terminal.
pub(super) struct StatusLine {
    is_terminal: bool,
    next_refresh: Instant,
    is_shown: bool,
}

impl StatusLine {
    pub(super) fn new() -> Self {
        let next_refresh = Instant::now() + REFRESH_INTERVAL;
        Self { is_terminal: io::stderr().is_terminal(), next_refresh, is_shown: false }
    }

    /// Shows `text` when it is time.
    pub(super) fn show(&mut self, text: impl FnOnce() -> String) {
        if self.is_terminal && Instant::now() >= self.next_refresh {
            let _ = write!(io::stderr(), "{CLEAR_LINE}{}", text());
            self.next_refresh = Instant::now() + REFRESH_INTERVAL;
            self.is_shown = true;
        }
    }

    /// Shows `text` at once.
    pub(super) fn show_now(&mut self, text: &str) {
        self.next_refresh = Instant::now();
        self.show(|| text.to_owned());
    }

    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            let _ = write!(io::stderr(), "{CLEAR_LINE}");
        }
    }
}

/// Writes `text` to standard error, beside the output of a command.
pub(super) fn note(text: &str) {
    // Nothing can be done about a standard error that is closed.
    let _ = writeln!(io::stderr(), "wva: {text}");
}

/// Rows as lines with aligned columns. The first `left` columns begin at the left, the others end at the right.
pub(super) fn aligned(rows: &[Vec<String>], left: usize) -> Vec<String> {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let gap = if column > 0 { "  " } else { "" };
            let _ = match column < left {
                true => write!(line, "{gap}{cell:<width$}"),
                false => write!(line, "{gap}{cell:>width$}"),
            };
        }
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}
