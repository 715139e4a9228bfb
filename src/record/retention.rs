//! The files of a recording directory, of all instances: their total size, and the removal of the oldest.

use std::collections::VecDeque;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// Names of recordings. Other files in the directory are never touched.
const PREFIX: &str = "wva-";
const SUFFIX: &str = ".jsonl";

/// The name of the file that begins with the evaluation of `at`. The order of names is the order of time.
pub(super) fn file_name(at: jiff::Timestamp, instance: &str) -> String {
    let escape = |letter: char| if letter.is_ascii_alphanumeric() || letter == '.' { letter } else { '-' };
    let instance: String = instance.chars().take(100).map(escape).collect();
    format!("{PREFIX}{}-{instance}{SUFFIX}", at.strftime("%Y%m%dT%H%M%S.%6fZ"))
}

/// The files besides the current one, oldest first: earlier ones of this instance, and those of other instances.
#[derive(Debug)]
pub(super) struct Retention {
    folder: PathBuf,
    files: VecDeque<(PathBuf, u64)>,
    total: u64,
    max_bytes: u64,
    removed: RemovedFiles,
}

/// The number of files removed to make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemovedFiles {
    /// For the limit on their total size.
    pub for_limit: u64,
    /// Because the disk was full before that.
    pub for_full_disk: u64,
}

impl Retention {
    /// Lists the files in `folder`. With the current file they may have `max_bytes` in total.
    pub(super) fn new(folder: &Path, max_bytes: u64) -> io::Result<Self> {
        let mut retention = Self {
            folder: folder.to_owned(),
            files: VecDeque::new(),
            total: 0,
            max_bytes,
            removed: RemovedFiles::default(),
        };
        retention.refresh(None)?;
        Ok(retention)
    }

    /// Lists the files again, since others may write and remove files, too. Returns false when `current` does not exist any more.
    pub(super) fn refresh(&mut self, current: Option<&Path>) -> io::Result<bool> {
        let mut files = Vec::new();
        let mut exists = current.is_none();
        for entry in self.folder.read_dir()? {
            let entry = entry?;
            let name = entry.file_name();
            let is_recording =
                name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX));
            // A file without metadata was removed by another process in the meantime.
            let metadata = entry.metadata().ok().filter(|metadata| is_recording && metadata.is_file());
            let Some(metadata) = metadata else { continue };
            if current == Some(&*entry.path()) {
                exists = true;
            } else {
                files.push((entry.path(), metadata.len()));
            }
        }
        files.sort();
        self.total = files.iter().map(|(_, length)| length).sum();
        self.files = files.into();
        Ok(exists)
    }

    /// Removes the oldest files until the current file may have `length` bytes.
    pub(super) fn make_room(&mut self, length: u64) -> io::Result<()> {
        while self.total.saturating_add(length) > self.max_bytes {
            if !self.remove_oldest()? {
                let cause = format!(
                    "an evaluation does not fit into {} bytes; raise --record-max-size",
                    self.max_bytes
                );
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, cause));
            }
            self.removed.for_limit += 1;
        }
        Ok(())
    }

    /// Runs `action`, and removes the oldest files as long as it fails because the disk is full.
    pub(super) fn with_space<T>(&mut self, mut action: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        loop {
            match action() {
                Err(error) if matches!(error.kind(), StorageFull | QuotaExceeded) => {
                    if !self.remove_oldest()? {
                        let cause = format!("{error}, and no older recording is left to remove");
                        return Err(io::Error::new(error.kind(), cause));
                    }
                    self.removed.for_full_disk += 1;
                }
                result => return result,
            }
        }
    }

    /// Removes the oldest file. Returns false when all files are being written by other processes.
    fn remove_oldest(&mut self) -> io::Result<bool> {
        let Some(index) = self.files.iter().position(|(file, _)| !is_being_written(file)) else {
            return Ok(false);
        };
        let Some((file, length)) = self.files.remove(index) else { return Ok(false) };
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                self.files.insert(index, (file, length));
                Err(error)
            }
            _ => {
                self.total -= length;
                Ok(true)
            }
        }
    }

    /// Bytes of these files.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// The files removed so far.
    pub(super) fn removed(&self) -> RemovedFiles {
        self.removed
    }
}

/// Whether a process holds the lock of the file, which it keeps until it ends. On file systems without locks the answer is no.
fn is_being_written(file: &Path) -> bool {
    File::open(file).is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three files of 10, 20 and 30 bytes.
    fn three_files(name: &str) -> (PathBuf, Retention) {
        let folder = std::env::temp_dir().join(format!("wva-retention-{}-{name}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        for length in [10, 20, 30] {
            std::fs::write(folder.join(format!("wva-{length}.jsonl")), vec![b'x'; length]).unwrap();
        }
        let retention = Retention::new(&folder, 1000).unwrap();
        (folder, retention)
    }

    #[test]
    fn on_a_full_disk_the_oldest_files_are_removed_until_none_is_left() {
        let (folder, mut retention) = three_files("full");
        let mut tries = 0;
        let result = retention.with_space(|| {
            tries += 1;
            if tries < 3 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(tries) }
        });
        assert_eq!((result.unwrap(), retention.total()), (3, 30));
        assert_eq!(retention.removed(), RemovedFiles { for_limit: 0, for_full_disk: 2 });
        assert_eq!(folder.read_dir().unwrap().count(), 1);
        let full = retention.with_space(|| Err::<(), _>(io::ErrorKind::QuotaExceeded.into())).unwrap_err();
        assert!(full.to_string().contains("no older recording is left"), "{full}");
        let denied =
            retention.with_space(|| Err::<(), _>(io::ErrorKind::PermissionDenied.into())).unwrap_err();
        assert_eq!(denied.kind(), io::ErrorKind::PermissionDenied, "no file is removed for that");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn files_that_others_write_stay_and_count() {
        let (folder, mut retention) = three_files("others");
        let writing = File::open(folder.join("wva-10.jsonl")).unwrap();
        writing.try_lock().unwrap();
        retention.max_bytes = 60;
        retention.make_room(5).unwrap();
        assert!(folder.join("wva-10.jsonl").exists() && !folder.join("wva-20.jsonl").exists());
        drop(writing);
        std::fs::write(folder.join("wva-40.jsonl"), [b'x'; 40]).unwrap();
        assert!(retention.refresh(Some(&folder.join("wva-30.jsonl"))).unwrap());
        assert_eq!(retention.total(), 50);
        assert!(!retention.refresh(Some(&folder.join("wva-20.jsonl"))).unwrap(), "it was removed");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
