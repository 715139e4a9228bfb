//! Reads text files, gzipped or not, line by line, and the fields of CSV lines. Errors name the line and the field.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use wva_sim::RequestSizes;

/// The longest line of a trace, bytes. A Mooncake request with a million prompt tokens has 2,000 block numbers. A file with longer
/// lines is no trace, and must not fill the memory.
const MAX_LINE_BYTES: u64 = 1 << 20;
/// The first bytes of a gzip file.
const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
/// The most tokens of a request: more than any model takes.
pub(super) const MAX_TOKENS: u32 = RequestSizes::MAX_TOKENS as u32;

/// Why an input cannot be used: where it is wrong, what is wrong, and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InputError(String);

impl InputError {
    pub(super) fn new(location: impl Display, cause: impl Display) -> Self {
        Self(format!("{location}: {cause}"))
    }

    /// An error that says where it is.
    pub(super) fn located(error: impl Display) -> Self {
        Self(error.to_string())
    }

    pub(super) fn unreadable(path: &Path, error: &io::Error) -> Self {
        Self::new(path.display(), format!("{error}; give a file that exists and that you may read"))
    }
}

/// Opens `path`. A gzipped file is decompressed, whatever its name.
pub(super) fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    let mut file = BufReader::with_capacity(1 << 18, File::open(path)?);
    if file.get_ref().metadata()?.is_dir() {
        return Err(io::Error::other("is a directory"));
    }
    if file.fill_buf()?.starts_with(GZIP_MAGIC) {
        return Ok(Box::new(BufReader::new(MultiGzDecoder::new(file))));
    }
    Ok(Box::new(file))
}

/// The lines of a file. Empty lines are skipped.
pub(super) struct TextLines<'a> {
    input: Box<dyn BufRead>,
    path: &'a Path,
    line: usize,
    text: String,
}

impl<'a> TextLines<'a> {
    pub(super) fn new(input: Box<dyn BufRead>, path: &'a Path) -> Self {
        Self { input, path, line: 0, text: String::new() }
    }

    /// The next line, trimmed; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<&str>, InputError> {
        loop {
            self.line += 1;
            self.text.clear();
            let read = (&mut *self.input).take(MAX_LINE_BYTES).read_line(&mut self.text);
            match read.map_err(|error| InputError::unreadable(self.path, &error))? {
                0 => return Ok(None),
                read if read as u64 == MAX_LINE_BYTES => {
                    return Err(self.error(format!("longer than {MAX_LINE_BYTES} bytes, so not a trace")));
                }
                _ if self.text.trim().is_empty() => {}
                _ => return Ok(Some(self.text.trim())),
            }
        }
    }

    /// The column names of the first line.
    pub(super) fn header(&mut self) -> Result<Vec<String>, InputError> {
        let names = self.next()?.unwrap_or_default().split(',');
        Ok(names.map(|name| name.trim().to_owned()).collect())
    }

    /// What `parse` makes of each further line; at most `max` of them, called `what`.
    pub(super) fn parse_all<T>(
        &mut self,
        max: usize,
        what: &str,
        mut parse: impl FnMut(&str) -> Result<T, String>,
    ) -> Result<Vec<T>, InputError> {
        let mut all = Vec::new();
        while let Some(line) = self.next()? {
            let parsed = parse(line);
            all.push(parsed.map_err(|cause| self.error(cause))?);
            if all.len() > max {
                return Err(self.error(format!("more than {max} {what}; cut the file")));
            }
        }
        Ok(all)
    }

    /// An error about the line that was read last.
    pub(super) fn error(&self, cause: impl Display) -> InputError {
        InputError::new(format!("{}:{}", self.path.display(), self.line), cause)
    }
}

/// The fields of a line. None of the formats has quotes, so that splitting at commas is enough.
pub(super) struct CsvRow<'a> {
    names: &'a [String],
    values: Vec<&'a str>,
}

impl<'a> CsvRow<'a> {
    /// Splits a line, which must have as many fields as the header.
    pub(super) fn new(names: &'a [String], line: &'a str) -> Result<Self, String> {
        let values: Vec<&str> = line.split(',').map(str::trim).collect();
        if values.len() == names.len() {
            return Ok(Self { names, values });
        }
        Err(format!("{} fields, and the header has {}: {}", values.len(), names.len(), names.join(",")))
    }

    /// The text of a field.
    pub(super) fn text(&self, column: usize) -> &'a str {
        self.values.get(column).copied().unwrap_or_default()
    }

    /// The error of a field that is not `allowed`.
    pub(super) fn out_of_range(&self, column: usize, allowed: &str) -> String {
        let name = self.names.get(column).map_or("?", String::as_str);
        format!("{name} {:?} is out of range: must be {allowed}", self.text(column))
    }

    /// A number of tokens. 0 counts as 1: something was computed.
    pub(super) fn tokens(&self, column: usize) -> Result<u32, String> {
        let tokens = self.text(column).parse::<u32>().ok().filter(|tokens| *tokens <= MAX_TOKENS);
        let tokens = tokens
            .ok_or_else(|| self.out_of_range(column, &format!("a whole number from 0 to {MAX_TOKENS}")))?;
        Ok(tokens.max(1))
    }

    /// A finite number of at least 0.
    pub(super) fn number(&self, column: usize) -> Result<f64, String> {
        let number = self.text(column).parse::<f64>().ok().filter(|number| (0.0..=1e12).contains(number));
        number.ok_or_else(|| self.out_of_range(column, "a number from 0 to 1e12"))
    }
}
