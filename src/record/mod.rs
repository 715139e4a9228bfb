//! Evaluations, kept to be made again: the last few in memory, all of them in files when asked, and the replay that
//! compares what this build decides with what was decided.
//!
//! A recording is lines of JSON (`line`). Each is one whole evaluation with everything it was made from, and its own
//! checksum: any line can be read, decided and explained without the others, so that a damaged one costs itself only.

mod file;
mod keeper;
mod line;
mod read;
mod recent;
mod replay;
mod shelf;

pub use file::{FileSettings, Recording};
pub use keeper::{Keeper, KeeperMetrics, Queue, keep_files, keep_recent};
pub use line::{Entry, FORMAT, Trouble, write_line};
pub use read::{Found, Lines, Place};
pub use recent::{Listed, Recent};
pub use replay::{Change, Difference, Replay, Replayed, Summary, decided};
pub use shelf::Removed;
