//! Text files, gzipped or not, line by line, with the number of each line.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use super::trace::TraceError;

/// No line is longer: a request of Mooncake's with a million prompt tokens has 2,000 block numbers. What is longer is
/// another kind of file, which must not fill the memory.
const MAX_LINE_BYTES: u64 = 1 << 20;
/// The first bytes of every gzip file.
const GZIP: &[u8] = &[0x1f, 0x8b];

/// Opens `path`; a gzipped file is unpacked, whatever its name.
///
/// # Errors
/// Those of the file system.
pub(super) fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    let mut file = BufReader::with_capacity(1 << 18, File::open(path)?);
    if file.get_ref().metadata()?.is_dir() {
        return Err(io::Error::other("is a directory"));
    }
    if file.fill_buf()?.starts_with(GZIP) {
        return Ok(Box::new(BufReader::new(MultiGzDecoder::new(file))));
    }
    Ok(Box::new(file))
}

/// The lines of one file; empty ones are passed over.
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

    /// The next line without its end.
    pub(super) fn next(&mut self) -> Result<Option<&str>, TraceError> {
        loop {
            self.line += 1;
            self.text.clear();
            let read = (&mut *self.input).take(MAX_LINE_BYTES).read_line(&mut self.text);
            match read.map_err(|source| TraceError::Unreadable { path: self.path.into(), source })? {
                0 => return Ok(None),
                read if read as u64 == MAX_LINE_BYTES => {
                    return Err(self.wrong(&format!("longer than {MAX_LINE_BYTES} bytes, so not a trace")));
                }
                _ if self.text.trim().is_empty() => {}
                _ => return Ok(Some(self.text.trim())),
            }
        }
    }

    /// What is wrong with the line that was read last.
    pub(super) fn wrong(&self, cause: &str) -> TraceError {
        TraceError::Line { path: PathBuf::from(self.path), line: self.line, cause: cause.into() }
    }
}
