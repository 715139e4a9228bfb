//! Reads text files, gzipped or not, line by line with the number of each line.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

/// The longest line of a trace, bytes. A Mooncake request with a million prompt tokens has 2,000 block numbers. A file with longer
/// lines is no trace, and must not fill the memory.
const MAX_LINE_BYTES: u64 = 1 << 20;
/// The first bytes of a gzip file.
const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];

/// A trace or table that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It cannot be read.
    #[error("{path}: {source}; give a file that exists and that you may read")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Its first line belongs to no known format.
    #[error(
        "{path}:1: not a trace: give an Azure LLM CSV (TIMESTAMP,ContextTokens,GeneratedTokens), ServeGen rates (t_s,…), \
         Mooncake JSON lines, or a recording of wva; each may be gzipped"
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// A line is invalid.
    #[error("{path}:{line}: {cause}")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The field, and what is allowed.
        cause: String,
    },
    /// The file as a whole is unusable.
    #[error("{path}: {cause}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: String,
    },
}

/// Opens `path`. A gzipped file is decompressed, whatever its name.
///
/// # Errors
/// The file cannot be opened or read.
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
    pub(super) fn next(&mut self) -> Result<Option<&str>, TraceError> {
        loop {
            self.line += 1;
            self.text.clear();
            let read = (&mut *self.input).take(MAX_LINE_BYTES).read_line(&mut self.text);
            match read.map_err(|source| TraceError::Unreadable { path: self.path.into(), source })? {
                0 => return Ok(None),
                read if read as u64 == MAX_LINE_BYTES => {
                    return Err(self.error(&format!("longer than {MAX_LINE_BYTES} bytes, so not a trace")));
                }
                _ if self.text.trim().is_empty() => {}
                _ => return Ok(Some(self.text.trim())),
            }
        }
    }

    /// An error about the line that was read last.
    pub(super) fn error(&self, cause: &str) -> TraceError {
        TraceError::Line { path: PathBuf::from(self.path), line: self.line, cause: cause.into() }
    }
}
