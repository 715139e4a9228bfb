//! Reads recordings line by line. A line that cannot be used is told with its place, and the next one is read.

use std::fmt;
use std::io::{self, BufRead, Read as _};
use std::path::{Path, PathBuf};

use super::line::{Entry, Trouble};

/// No line is longer: a pod takes 4 to 20 KiB, so 100,000 pods are less. What is longer is another kind of file, which must
/// not fill the memory.
const LONGEST: u64 = 2 << 30;

/// Where a line is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file, as it was named.
    pub file: PathBuf,
    /// The line in it, from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// A line: what it holds, or what is wrong with it.
#[derive(Debug)]
pub struct Found {
    /// Where.
    pub place: Place,
    /// What.
    pub entry: Result<Box<Entry>, Trouble>,
}

/// The lines of one file, in order; empty ones are passed over.
pub struct Lines<R> {
    input: R,
    place: Place,
    buffer: Vec<u8>,
    longest: u64,
}

impl<R: BufRead> Lines<R> {
    /// Over `input`, which `file` names.
    pub fn new(input: R, file: &Path) -> Self {
        let place = Place { file: file.to_owned(), line: 0 };
        Self { input, place, buffer: Vec::new(), longest: LONGEST }
    }

    /// The next line's bytes are in the buffer; `None` at the end.
    fn advance(&mut self) -> io::Result<Option<Result<(), Trouble>>> {
        self.buffer.clear();
        let read = self.input.by_ref().take(self.longest).read_until(b'\n', &mut self.buffer)?;
        self.place.line += 1;
        if read == 0 {
            return Ok(None);
        }
        if read as u64 == self.longest && !self.buffer.ends_with(b"\n") {
            self.buffer = Vec::new();
            self.input.skip_until(b'\n')?;
            return Ok(Some(Err(Trouble::TooLong(self.longest))));
        }
        Ok(Some(Ok(())))
    }
}

impl<R: BufRead> Iterator for Lines<R> {
    type Item = io::Result<Found>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let entry = match self.advance() {
                Err(error) => return Some(Err(error)),
                Ok(None) => return None,
                Ok(Some(Err(trouble))) => Err(trouble),
                Ok(Some(Ok(()))) if self.buffer.trim_ascii().is_empty() => continue,
                Ok(Some(Ok(()))) => Entry::parse(&self.buffer).map(Box::new),
            };
            return Some(Ok(Found { place: self.place.clone(), entry }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_recording_is_told_line_by_line_and_fills_no_memory() {
        let mut lines = Lines::new(&b"\n{}\n0123456789abcdef\nx"[..], Path::new("a.jsonl"));
        lines.longest = 8;
        let told: Vec<_> = lines
            .map(|found| found.unwrap())
            .map(|found| format!("{}: {}", found.place, found.entry.unwrap_err()))
            .collect();
        assert_eq!(
            told,
            [
                "a.jsonl:2: cut short, or not a line of a recording",
                "a.jsonl:3: longer than 8 bytes, so not a line of a recording",
                "a.jsonl:4: cut short, or not a line of a recording",
            ]
        );
    }
}
