//! Evaluations in files, one after the other: appended and flushed line by line, a new file from a size on and at every
//! start, the oldest file removed before the bound is passed, or when the disk is full. A line that could not be written
//! whole is taken back. Instances may share a directory: each has files of its own name, and locks the one it writes.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use super::line::write_line;
use super::shelf::{Removed, Shelf, name};
use crate::engine::Evaluation;

/// Bytes that are handed to the system at once.
const CHUNK: usize = 128 * 1024;

/// Where to record and how much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSettings {
    /// The directory; made when it does not exist.
    pub folder: PathBuf,
    /// Bytes of all recordings in it together.
    pub total: u64,
    /// Bytes from which a new file is begun.
    pub file: u64,
    /// Who records: part of the files' names, for a directory that instances share.
    pub instance: String,
}

/// A recording being written.
#[derive(Debug)]
pub struct Recording {
    settings: FileSettings,
    shelf: Shelf,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    file: File,
    path: PathBuf,
    /// Bytes of whole lines.
    length: u64,
}

impl Recording {
    /// A recording that begins a new file with its first evaluation.
    ///
    /// # Errors
    /// When the directory cannot be made or read.
    pub fn open(settings: FileSettings) -> io::Result<Self> {
        std::fs::create_dir_all(&settings.folder)?;
        let shelf = Shelf::of(&settings.folder, settings.total)?;
        Ok(Self { settings, shelf, current: None })
    }

    /// Adds `evaluation`.
    ///
    /// # Errors
    /// When it could not be written; then no part of it is left, and the next one can be tried.
    pub fn write(&mut self, evaluation: &Evaluation) -> io::Result<()> {
        if self.current.as_ref().is_some_and(|current| current.length >= self.settings.file) {
            self.close()?;
        }
        if !self.shelf.look(self.current.as_ref().map(|current| &*current.path))? {
            // Somebody has removed it: what is written there nobody would find.
            self.current = None;
        }
        let mut current = match self.current.take() {
            Some(current) => current,
            None => self.begin(evaluation)?,
        };
        let shelf = &mut self.shelf;
        let before = current.length;
        let mut out = BufWriter::with_capacity(CHUNK, Bounded { current: &mut current, shelf });
        let written = write_line(evaluation, &mut out).and_then(|()| out.flush());
        // What is left in the buffer of a failed line is not to be written by its drop.
        let _ = out.into_parts();
        match written {
            Ok(()) => self.current = Some(current),
            Err(_) => self.take_back(current, before),
        }
        written
    }

    /// What is in the files is on the disk when this returns.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn close(&mut self) -> io::Result<()> {
        self.current.take().map_or(Ok(()), |current| current.file.sync_all())
    }

    /// Bytes of all recordings in the directory.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.shelf.total() + self.current.as_ref().map_or(0, |current| current.length)
    }

    /// Files that went to make room.
    #[must_use]
    pub fn removed(&self) -> Removed {
        self.shelf.removed()
    }

    fn begin(&mut self, evaluation: &Evaluation) -> io::Result<Current> {
        let path = self.settings.folder.join(name(evaluation.published.at, &self.settings.instance));
        let create = || OpenOptions::new().append(true).create_new(true).open(&path);
        let file = self.shelf.with_space(create)?;
        // Where nothing can be locked, another instance may take it for an old one.
        let _ = file.try_lock();
        Ok(Current { file, path, length: 0 })
    }

    /// Cuts a line off that was not written whole. An empty file goes, so that a full disk does not fill with names.
    fn take_back(&mut self, current: Current, length: u64) {
        if length == 0 {
            // If it stays it is a torn line, which readers pass over.
            let _ = std::fs::remove_file(&current.path);
        } else if current.file.set_len(length).is_ok() {
            self.current = Some(Current { length, ..current });
        }
        // Else it stays as it is, with a torn line at its end, and the next one goes to a new file.
    }
}

/// Writes to the current file what there is room for.
struct Bounded<'a> {
    current: &'a mut Current,
    shelf: &'a mut Shelf,
}

impl Write for Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.shelf.make_room(self.current.length + bytes.len() as u64)?;
        let file = &mut self.current.file;
        let written = self.shelf.with_space(|| file.write(bytes))?;
        self.current.length += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.current.file.flush()
    }
}
