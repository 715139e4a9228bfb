//! Recorded evaluations: the last few in memory, all of them in files if configured, and a replay that compares the decisions of
//! this build with the recorded ones.
//!
//! A recording consists of lines of JSON (`line`). Each line is one evaluation with all its inputs and a checksum of its own. It
//! can be read, decided and explained without the others, so that damage costs only the damaged line.

mod file;
mod line;
mod read;
mod recent;
mod replay;
mod retention;
mod writer;

pub use file::{FileSettings, Recording};
pub use line::{Entry, FORMAT, LineError, write_line};
pub use read::{LineLocation, Lines, RecordedLine};
pub use recent::{Recent, SnapshotInfo};
pub use replay::{Change, Difference, Replay, Replayed, Summary, decide_recorded};
pub use retention::RemovedFiles;
pub use writer::{Queue, QueueRecorder, RecordingMetrics, keep_recent, write_files};
