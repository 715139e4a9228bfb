//! The last few evaluations, in memory: what `/debug/snapshots` shows. Bounded by count and by bytes; in a fleet so large
//! that one of them is above the bound, none is kept.

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
    count: usize,
    bytes: u64,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    evaluations: VecDeque<(Arc<Evaluation>, u64)>,
    /// The last one that was too large to keep.
    too_large: Option<TooLarge>,
}

#[derive(Debug, Clone, Copy)]
struct TooLarge {
    at: Timestamp,
    variants: usize,
}

/// A fleet that was too large is measured again when it has shrunk, or after this long.
const MEASURED_AGAIN: SignedDuration = SignedDuration::from_mins(1);

/// An evaluation in the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Listed {
    /// When it was.
    pub at: Timestamp,
    /// Its number in this process.
    pub sequence: u64,
    /// How many variants were decided about.
    pub variants: usize,
    /// The length of its line.
    pub bytes: u64,
    /// The holding of the lease that it was made in.
    pub term: Option<Term>,
    /// The digest of what came out: equal for equal outcomes.
    pub outcome: String,
}

impl Recent {
    /// Room for `count` evaluations whose lines have `bytes` together. A line is about twice as long as what it is made from
    /// is in memory.
    #[must_use]
    pub fn new(count: usize, bytes: u64) -> Self {
        Self { count, bytes, kept: Mutex::default() }
    }

    /// Keeps `evaluation`, and lets go of what is too much now.
    pub fn keep(&self, evaluation: Arc<Evaluation>) {
        let (at, variants) = (evaluation.published.at, evaluation.published.decisions.len());
        let known = self.kept.lock().too_large;
        let still =
            |known: TooLarge| variants >= known.variants && at.duration_since(known.at) < MEASURED_AGAIN;
        if self.count == 0 || known.is_some_and(still) {
            return;
        }
        let mut measure = Measure { left: self.bytes };
        let fits = write_line(&evaluation, &mut measure).is_ok();
        let mut kept = self.kept.lock();
        if !fits {
            *kept = Kept { too_large: Some(TooLarge { at, variants }), ..Kept::default() };
            return;
        }
        kept.too_large = None;
        kept.evaluations.push_back((evaluation, self.bytes - measure.left));
        let mut total: u64 = kept.evaluations.iter().map(|(_, length)| length).sum();
        while kept.evaluations.len() > self.count || total > self.bytes {
            total -= kept.evaluations.pop_front().map_or(total, |(_, length)| length);
        }
    }

    /// All of them, the oldest first.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Evaluation>> {
        self.kept.lock().evaluations.iter().map(|(evaluation, _)| evaluation.clone()).collect()
    }

    /// The newest.
    #[must_use]
    pub fn latest(&self) -> Option<Arc<Evaluation>> {
        self.kept.lock().evaluations.back().map(|(evaluation, _)| evaluation.clone())
    }

    /// The one of this moment.
    #[must_use]
    pub fn at(&self, at: Timestamp) -> Option<Arc<Evaluation>> {
        self.all().into_iter().find(|evaluation| evaluation.published.at == at)
    }

    /// What there is. Takes as long as writing the outcomes down.
    #[must_use]
    pub fn list(&self) -> Vec<Listed> {
        let kept: Vec<_> = self.kept.lock().evaluations.iter().cloned().collect();
        let listed = kept.into_iter().map(|(evaluation, bytes)| {
            let Evaluation { published, after, .. } = &*evaluation;
            Listed {
                at: published.at,
                sequence: published.sequence,
                variants: published.decisions.len(),
                bytes,
                term: published.term.clone(),
                outcome: digest(&published.decisions, &published.report, after),
            }
        });
        listed.collect()
    }

    /// Why there is none, when there is none although there were evaluations.
    #[must_use]
    pub fn why_none(&self) -> Option<String> {
        if self.count == 0 {
            return Some("none is kept with --record-snapshots=0".into());
        }
        let TooLarge { at, variants } = self.kept.lock().too_large?;
        let bytes = self.bytes;
        Some(format!(
            "an evaluation of {variants} variants ({at}) takes more than the {bytes} bytes of --record-snapshots-size; raise it"
        ))
    }
}

/// Counts what is written, up to a limit.
struct Measure {
    left: u64,
}

impl Write for Measure {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self.left.checked_sub(bytes.len() as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
