//! The files of a recording's directory, whoever wrote them: how many bytes they have together, and which goes first.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

/// Our files are named so; nothing else in the directory is touched.
const PREFIX: &str = "wva-";
const SUFFIX: &str = ".jsonl";

/// The name of the file that begins with the evaluation of `at`. In the order of names is in the order of time.
pub(super) fn name(at: jiff::Timestamp, instance: &str) -> String {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() || letter == '.' { letter } else { '-' };
    let instance: String = instance.chars().take(100).map(plain).collect();
    format!("{PREFIX}{}-{instance}{SUFFIX}", at.strftime("%Y%m%dT%H%M%S.%6fZ"))
}

/// The files that are written no more, the oldest first.
#[derive(Debug)]
pub(super) struct Shelf {
    files: VecDeque<(PathBuf, u64)>,
    total: u64,
    bound: u64,
}

impl Shelf {
    /// Looks at what is in `folder`; together with the file that is being written it may have `bound` bytes.
    pub(super) fn of(folder: &Path, bound: u64) -> io::Result<Self> {
        let mut files = Vec::new();
        for entry in folder.read_dir()? {
            let entry = entry?;
            let name = entry.file_name();
            let ours = name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX));
            let about = entry.metadata()?;
            if ours && about.is_file() {
                files.push((entry.path(), about.len()));
            }
        }
        files.sort();
        let total = files.iter().map(|(_, length)| length).sum();
        Ok(Self { files: files.into(), total, bound })
    }

    /// Adds the file that has just been closed.
    pub(super) fn put(&mut self, file: PathBuf, length: u64) {
        self.total += length;
        self.files.push_back((file, length));
    }

    /// Removes the oldest files until a file may have `length` bytes beside them.
    pub(super) fn make_room(&mut self, length: u64) -> io::Result<()> {
        while self.total.saturating_add(length) > self.bound {
            let Some((file, removed)) = self.files.pop_front() else {
                let why =
                    format!("an evaluation does not fit into {} bytes; raise --record-max-size", self.bound);
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
            };
            match std::fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    self.files.push_front((file, removed));
                    return Err(error);
                }
                _ => self.total -= removed,
            }
        }
        Ok(())
    }

    /// Bytes of all these files.
    pub(super) fn total(&self) -> u64 {
        self.total
    }
}
