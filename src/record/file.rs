//! Recordings in files. Lines are appended and flushed one by one; a new file begins at a certain size and at every start; the
//! oldest file is removed before the size limit is exceeded, or when the disk is full. A line that could not be written
//! completely is cut off. Instances may share a directory: file names contain the instance, and each locks the file it writes.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use super::line::write_line;
use super::retention::{RemovedFiles, Retention, file_name};
use crate::engine::Evaluation;

/// Bytes written at once.
const BUFFER_BYTES: usize = 128 * 1024;

/// Where to record and how much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSettings {
    /// The directory. It is created if it does not exist.
    pub folder: PathBuf,
    /// Maximum bytes of all recordings in it.
    pub total: u64,
    /// Bytes from which a new file begins.
    pub file: u64,
    /// The instance: part of the file names, for a directory that instances share.
    pub instance: String,
}

/// A recording being written.
#[derive(Debug)]
pub struct Recording {
    settings: FileSettings,
    retention: Retention,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    file: File,
    path: PathBuf,
    /// Bytes of complete lines.
    length: u64,
}

impl Recording {
    /// A recording that begins a new file with its first evaluation.
    ///
    /// # Errors
    /// When the directory cannot be created or read.
    pub fn open(settings: FileSettings) -> io::Result<Self> {
        std::fs::create_dir_all(&settings.folder)?;
        let retention = Retention::new(&settings.folder, settings.total)?;
        Ok(Self { settings, retention, current: None })
    }

    /// Appends `evaluation`.
    ///
    /// # Errors
    /// When it could not be written. No part of it is left, and the next one can be written.
    pub fn write(&mut self, evaluation: &Evaluation) -> io::Result<()> {
        if self.current.as_ref().is_some_and(|current| current.length >= self.settings.file) {
            self.close()?;
        }
        if !self.retention.refresh(self.current.as_ref().map(|current| &*current.path))? {
            // Another process has removed it: lines written there would be lost.
            self.current = None;
        }
        let mut current = match self.current.take() {
            Some(current) => current,
            None => self.begin(evaluation)?,
        };
        let retention = &mut self.retention;
        let before = current.length;
        let mut out =
            BufWriter::with_capacity(BUFFER_BYTES, BoundedFile { current: &mut current, retention });
        let written = write_line(evaluation, &mut out).and_then(|()| out.flush());
        // Otherwise dropping the buffer would write the rest of a failed line.
        let _ = out.into_parts();
        match written {
            Ok(()) => self.current = Some(current),
            Err(_) => self.cut_off(current, before),
        }
        written
    }

    /// Closes the current file after its lines have reached the disk.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn close(&mut self) -> io::Result<()> {
        self.current.take().map_or(Ok(()), |current| current.file.sync_all())
    }

    /// Bytes of all recordings in the directory.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.retention.total() + self.current.as_ref().map_or(0, |current| current.length)
    }

    /// The files removed to make room.
    #[must_use]
    pub fn removed(&self) -> RemovedFiles {
        self.retention.removed()
    }

    fn begin(&mut self, evaluation: &Evaluation) -> io::Result<Current> {
        let path = self.settings.folder.join(file_name(evaluation.published.at, &self.settings.instance));
        let create = || OpenOptions::new().append(true).create_new(true).open(&path);
        let file = self.retention.with_space(create)?;
        // On a file system without locks, another instance may remove it as an old one.
        let _ = file.try_lock();
        Ok(Current { file, path, length: 0 })
    }

    /// Cuts off a line that was not written completely. An empty file is removed, so that a full disk does not fill with file
    /// names.
    fn cut_off(&mut self, current: Current, length: u64) {
        if length == 0 {
            // If that fails, the file has a torn line, which readers skip.
            let _ = std::fs::remove_file(&current.path);
        } else if current.file.set_len(length).is_ok() {
            self.current = Some(Current { length, ..current });
        }
        // Otherwise the torn line stays at the end of the file, and the next line goes to a new file.
    }
}

/// Writes to the current file within the size limit.
struct BoundedFile<'a> {
    current: &'a mut Current,
    retention: &'a mut Retention,
}

impl Write for BoundedFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.retention.make_room(self.current.length + bytes.len() as u64)?;
        let file = &mut self.current.file;
        let written = self.retention.with_space(|| file.write(bytes))?;
        self.current.length += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.current.file.flush()
    }
}
