//! Reads recordings line by line. An unusable line is reported with its location, and reading goes on.

use std::fmt;
use std::io::{self, BufRead, Read as _};
use std::path::{Path, PathBuf};

use super::line::{Entry, LineError};

/// The longest line, bytes. A pod takes 4 to 20 KiB, so that 100,000 pods fit. A file with longer lines is no recording, and must
/// not fill the memory.
const MAX_LINE_BYTES: u64 = 2 << 30;

/// The location of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineLocation {
    /// The file, as it was named.
    pub file: PathBuf,
    /// The line number, from 1.
    pub line: usize,
}

impl fmt::Display for LineLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// A line of a recording.
#[derive(Debug)]
pub struct RecordedLine {
    /// Its location.
    pub location: LineLocation,
    /// The entry, or why it is unusable.
    pub entry: Result<Box<Entry>, LineError>,
}

/// The lines of a file in order. Empty lines are skipped.
pub struct Lines<R> {
    input: R,
    location: LineLocation,
    buffer: Vec<u8>,
    max_bytes: u64,
}

impl<R: BufRead> Lines<R> {
    /// The lines of `input`, which is named `file`.
    pub fn new(input: R, file: &Path) -> Self {
        let location = LineLocation { file: file.to_owned(), line: 0 };
        Self { input, location, buffer: Vec::new(), max_bytes: MAX_LINE_BYTES }
    }

    /// Reads the next line into the buffer; `None` at the end.
    fn read_line(&mut self) -> io::Result<Option<Result<(), LineError>>> {
        self.buffer.clear();
        let read = self.input.by_ref().take(self.max_bytes).read_until(b'\n', &mut self.buffer)?;
        self.location.line += 1;
        if read == 0 {
            return Ok(None);
        }
        if read as u64 == self.max_bytes && !self.buffer.ends_with(b"\n") {
            self.buffer = Vec::new();
            self.input.skip_until(b'\n')?;
            return Ok(Some(Err(LineError::TooLong(self.max_bytes))));
        }
        Ok(Some(Ok(())))
    }
}

impl<R: BufRead> Iterator for Lines<R> {
    type Item = io::Result<RecordedLine>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let entry = match self.read_line() {
                Err(error) => return Some(Err(error)),
                Ok(None) => return None,
                Ok(Some(Err(error))) => Err(error),
                Ok(Some(Ok(()))) if self.buffer.trim_ascii().is_empty() => continue,
                Ok(Some(Ok(()))) => Entry::parse(&self.buffer).map(Box::new),
            };
            return Some(Ok(RecordedLine { location: self.location.clone(), entry }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_lines_are_reported_one_by_one_and_fill_no_memory() {
        let mut lines = Lines::new(&b"\n{}\n0123456789abcdef\nx"[..], Path::new("a.jsonl"));
        lines.max_bytes = 8;
        let errors: Vec<_> = lines
            .map(|line| line.unwrap())
            .map(|line| format!("{}: {}", line.location, line.entry.unwrap_err()))
            .collect();
        assert_eq!(
            errors,
            [
                "a.jsonl:2: cut short, or not a line of a recording",
                "a.jsonl:3: longer than 8 bytes, so not a line of a recording",
                "a.jsonl:4: cut short, or not a line of a recording",
            ]
        );
    }
}
