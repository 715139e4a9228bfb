//! The last few evaluations in memory, which `/debug/snapshots` shows. Limited by number and bytes: in a fleet so large that a
//! single evaluation exceeds the limit, none is kept.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde::Serialize;

use super::line::{digest, write_line};
use crate::engine::{Evaluation, Term};

/// The last evaluations, the newest last.
#[derive(Debug)]
pub struct Recent {
    max_count: usize,
    max_bytes: u64,
    contents: Mutex<Contents>,
}

#[derive(Debug, Default)]
struct Contents {
    evaluations: VecDeque<(Arc<Evaluation>, u64)>,
    /// The last evaluation that was too large to keep.
    too_large: Option<TooLarge>,
}

#[derive(Debug, Clone, Copy)]
struct TooLarge {
    at: Timestamp,
    variants: usize,
}

/// An evaluation after one that was too large is measured when it has fewer variants, or after this long. Measuring takes
/// seconds, during which the evaluation stays in memory beside the next one.
const REMEASURE_INTERVAL: SignedDuration = SignedDuration::from_mins(10);

/// An evaluation in the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotInfo {
    /// Its time.
    pub at: Timestamp,
    /// Its number in this process.
    pub sequence: u64,
    /// The number of variants with a decision.
    pub variants: usize,
    /// The length of its line, bytes.
    pub bytes: u64,
    /// The term of the lease in which it was made.
    pub term: Option<Term>,
    /// The digest of the outcome: equal for equal outcomes.
    pub outcome: String,
}

impl Recent {
    /// Keeps at most `max_count` evaluations whose lines have at most `max_bytes` in total. A line is about twice as long as its
    /// evaluation is in memory.
    #[must_use]
    pub fn new(max_count: usize, max_bytes: u64) -> Self {
        Self { max_count, max_bytes, contents: Mutex::default() }
    }

    /// Keeps `evaluation` and drops the oldest ones that exceed the limits.
    pub fn keep(&self, evaluation: Arc<Evaluation>) {
        let at = evaluation.published.at;
        let variants = evaluation.published.decisions.len();
        let is_still_too_large =
            self.contents.lock().too_large.is_some_and(|last| {
                variants >= last.variants && at.duration_since(last.at) < REMEASURE_INTERVAL
            });
        if self.max_count == 0 || is_still_too_large {
            return;
        }
        let mut counter = ByteCounter { remaining: self.max_bytes };
        let fits = write_line(&evaluation, &mut counter).is_ok();
        let mut contents = self.contents.lock();
        if !fits {
            *contents = Contents { too_large: Some(TooLarge { at, variants }), ..Contents::default() };
            return;
        }
        contents.too_large = None;
        contents.evaluations.push_back((evaluation, self.max_bytes - counter.remaining));
        let mut total: u64 = contents.evaluations.iter().map(|(_, length)| length).sum();
        while contents.evaluations.len() > self.max_count || total > self.max_bytes {
            total -= contents.evaluations.pop_front().map_or(total, |(_, length)| length);
        }
    }

    /// All evaluations, oldest first.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Evaluation>> {
        self.contents.lock().evaluations.iter().map(|(evaluation, _)| evaluation.clone()).collect()
    }

    /// The newest evaluation.
    #[must_use]
    pub fn latest(&self) -> Option<Arc<Evaluation>> {
        self.contents.lock().evaluations.back().map(|(evaluation, _)| evaluation.clone())
    }

    /// The evaluation of `at`.
    #[must_use]
    pub fn at(&self, at: Timestamp) -> Option<Arc<Evaluation>> {
        self.all().into_iter().find(|evaluation| evaluation.published.at == at)
    }

    /// Lists the evaluations. Takes as long as serializing their outcomes.
    #[must_use]
    pub fn list(&self) -> Vec<SnapshotInfo> {
        let evaluations: Vec<_> = self.contents.lock().evaluations.iter().cloned().collect();
        let infos = evaluations.into_iter().map(|(evaluation, bytes)| {
            let Evaluation { published, after, .. } = &*evaluation;
            SnapshotInfo {
                at: published.at,
                sequence: published.sequence,
                variants: published.decisions.len(),
                bytes,
                term: published.term.clone(),
                outcome: digest(&published.decisions, &published.report, after),
            }
        });
        infos.collect()
    }

    /// Why no evaluation is kept, if there were any.
    #[must_use]
    pub fn reason_for_none(&self) -> Option<String> {
        if self.max_count == 0 {
            return Some("none is kept with --record-snapshots=0".into());
        }
        let TooLarge { at, variants } = self.contents.lock().too_large?;
        let bytes = self.max_bytes;
        Some(format!(
            "an evaluation of {variants} variants ({at}) takes more than the {bytes} bytes of --record-snapshots-size; raise it"
        ))
    }
}

/// Counts written bytes up to a limit.
struct ByteCounter {
    remaining: u64,
}

impl Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.remaining = self.remaining.checked_sub(bytes.len() as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
