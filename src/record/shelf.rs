//! The files of a recording's directory, whoever wrote them: how many bytes they have together, and which goes first.

use std::collections::VecDeque;
use std::fs::{File, TryLockError};
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

/// The files beside the one that is being written, the oldest first: ours of earlier, and those of other instances.
#[derive(Debug)]
pub(super) struct Shelf {
    folder: PathBuf,
    files: VecDeque<(PathBuf, u64)>,
    total: u64,
    bound: u64,
    removed: Removed,
}

/// Files that went to make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Removed {
    /// Because all of them together have a bound.
    pub for_the_bound: u64,
    /// Because the disk was full before that.
    pub for_the_disk: u64,
}

impl Shelf {
    /// Looks at what is in `folder`; together with the file that is being written it may have `bound` bytes.
    pub(super) fn of(folder: &Path, bound: u64) -> io::Result<Self> {
        let (folder, files, removed) = (folder.to_owned(), VecDeque::new(), Removed::default());
        let mut shelf = Self { folder, files, total: 0, bound, removed };
        shelf.look(None)?;
        Ok(shelf)
    }

    /// Looks again, since others may write and remove files too. False when `current` is not there any more.
    pub(super) fn look(&mut self, current: Option<&Path>) -> io::Result<bool> {
        let (mut files, mut found) = (Vec::new(), current.is_none());
        for entry in self.folder.read_dir()? {
            let entry = entry?;
            let name = entry.file_name();
            let ours = name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX));
            // Who is gone by now was removed by somebody else.
            let Some(about) = entry.metadata().ok().filter(|about| ours && about.is_file()) else { continue };
            if current == Some(&*entry.path()) {
                found = true;
            } else {
                files.push((entry.path(), about.len()));
            }
        }
        files.sort();
        self.total = files.iter().map(|(_, length)| length).sum();
        self.files = files.into();
        Ok(found)
    }

    /// Removes the oldest files until a file may have `length` bytes beside them.
    pub(super) fn make_room(&mut self, length: u64) -> io::Result<()> {
        while self.total.saturating_add(length) > self.bound {
            if !self.remove_oldest()? {
                let why =
                    format!("an evaluation does not fit into {} bytes; raise --record-max-size", self.bound);
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
            }
            self.removed.for_the_bound += 1;
        }
        Ok(())
    }

    /// Does `action`, and removes the oldest files for as long as the disk has no room for it.
    pub(super) fn with_space<T>(&mut self, mut action: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        loop {
            match action() {
                Err(error) if matches!(error.kind(), StorageFull | QuotaExceeded) => {
                    if !self.remove_oldest()? {
                        let why = format!("{error}, and no older recording is left to remove");
                        return Err(io::Error::new(error.kind(), why));
                    }
                    self.removed.for_the_disk += 1;
                }
                done => return done,
            }
        }
    }

    /// False when there is none, but those that others are writing.
    fn remove_oldest(&mut self) -> io::Result<bool> {
        let Some(at) = self.files.iter().position(|(file, _)| !is_being_written(file)) else {
            return Ok(false);
        };
        let Some((file, length)) = self.files.remove(at) else { return Ok(false) };
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                self.files.insert(at, (file, length));
                Err(error)
            }
            _ => {
                self.total -= length;
                Ok(true)
            }
        }
    }

    /// Bytes of all these files.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// How many files have gone so far.
    pub(super) fn removed(&self) -> Removed {
        self.removed
    }
}

/// Whoever writes a file has it locked, until the process ends at the latest. Where nothing can be locked nobody knows.
fn is_being_written(file: &Path) -> bool {
    File::open(file).is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three files of 10, 20 and 30 bytes.
    fn three(name: &str) -> (PathBuf, Shelf) {
        let folder = std::env::temp_dir().join(format!("wva-shelf-{}-{name}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        for length in [10, 20, 30] {
            std::fs::write(folder.join(format!("wva-{length}.jsonl")), vec![b'x'; length]).unwrap();
        }
        let shelf = Shelf::of(&folder, 1000).unwrap();
        (folder, shelf)
    }

    #[test]
    fn on_a_full_disk_the_oldest_go_until_there_is_room_and_then_it_is_said_that_none_is_left() {
        let (folder, mut shelf) = three("full");
        let mut tries = 0;
        let done = shelf.with_space(|| {
            tries += 1;
            if tries < 3 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(tries) }
        });
        assert_eq!((done.unwrap(), shelf.total()), (3, 30));
        assert_eq!(shelf.removed(), Removed { for_the_bound: 0, for_the_disk: 2 });
        assert_eq!(folder.read_dir().unwrap().count(), 1);
        let full = shelf.with_space(|| Err::<(), _>(io::ErrorKind::QuotaExceeded.into())).unwrap_err();
        assert!(full.to_string().contains("no older recording is left"), "{full}");
        let other = shelf.with_space(|| Err::<(), _>(io::ErrorKind::PermissionDenied.into())).unwrap_err();
        assert_eq!(other.kind(), io::ErrorKind::PermissionDenied, "no file goes for that");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_somebody_else_writes_stays_and_what_he_adds_counts() {
        let (folder, mut shelf) = three("others");
        let writing = File::open(folder.join("wva-10.jsonl")).unwrap();
        writing.try_lock().unwrap();
        shelf.bound = 60;
        shelf.make_room(5).unwrap();
        assert!(folder.join("wva-10.jsonl").exists() && !folder.join("wva-20.jsonl").exists());
        drop(writing);
        std::fs::write(folder.join("wva-40.jsonl"), [b'x'; 40]).unwrap();
        assert!(shelf.look(Some(&folder.join("wva-30.jsonl"))).unwrap());
        assert_eq!(shelf.total(), 50);
        assert!(!shelf.look(Some(&folder.join("wva-20.jsonl"))).unwrap(), "it went");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
