//! One evaluation as one line: `{"entry":{…},"crc32":"…"}`, the checksum over the bytes of the entry. Written as a stream,
//! because the line of a fleet of thousands is too large to be held in memory twice.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};

use crc32fast::Hasher;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use wva_core::{Decision, Memory, Outcome, Policy, Report, Snapshot, VariantId};

use crate::engine::Evaluation;

/// The layout that this build writes and reads.
pub const FORMAT: u32 = 1;

const HEAD: &[u8] = br#"{"entry":"#;
const MIDDLE: &[u8] = br#","crc32":""#;
const TAIL: &[u8] = br#""}"#;
/// Bytes that are summed up and passed on at once.
const CHUNK: usize = 64 * 1024;
/// What follows an entry: the checksum has eight digits.
const REST: usize = MIDDLE.len() + 8 + TAIL.len();

/// An evaluation as it was recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The layout of the line.
    pub format: u32,
    /// The version of the program that decided.
    pub wva: String,
    /// When.
    pub at: Timestamp,
    /// Counts the evaluations of one process: a jump is a gap.
    pub sequence: u64,
    /// What was seen.
    pub snapshot: Snapshot,
    /// What was remembered before it.
    pub memory: Memory,
    /// What was wanted.
    pub policy: Policy,
    /// What was decided.
    pub decisions: BTreeMap<VariantId, Decision>,
    /// A digest of all that came out: decisions, report and the next memory.
    pub outcome: String,
}

/// The same, borrowed, in the same order.
#[derive(Serialize)]
struct EntryRef<'a> {
    format: u32,
    wva: &'a str,
    at: Timestamp,
    sequence: u64,
    snapshot: &'a Snapshot,
    memory: &'a Memory,
    policy: &'a Policy,
    decisions: &'a BTreeMap<VariantId, Decision>,
    outcome: String,
}

/// What a digest is of.
#[derive(Serialize)]
struct OutcomeRef<'a> {
    decisions: &'a BTreeMap<VariantId, Decision>,
    report: &'a Report,
    memory: &'a Memory,
}

/// Why a line cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// It does not end as a line does.
    #[error("cut short, or not a line of a recording")]
    Torn,
    /// Its bytes are not those that were written.
    #[error("its checksum is {found} and should be {expected}: bytes were changed")]
    Damaged {
        /// What the line says.
        expected: String,
        /// What its bytes give.
        found: String,
    },
    /// It is longer than any line.
    #[error("longer than {0} bytes, so not a line of a recording")]
    TooLong(u64),
    /// It is whole, and of another layout.
    #[error("written by wva {wva} in format {format}, and this is wva {own} with format {FORMAT}; use that version",
            own = env!("CARGO_PKG_VERSION"))]
    Foreign {
        /// The program that wrote it.
        wva: String,
        /// Its layout.
        format: u32,
    },
    /// It is whole, and does not say what this build understands.
    #[error("written by wva {wva} and not understood by wva {own}: {cause}", own = env!("CARGO_PKG_VERSION"))]
    NotUnderstood {
        /// The program that wrote it.
        wva: String,
        /// What is not understood.
        cause: String,
    },
}

/// Writes `evaluation` with its end of line.
///
/// # Errors
/// Those of `out`.
pub fn write_line(evaluation: &Evaluation, out: &mut impl Write) -> io::Result<()> {
    let Evaluation { snapshot, before, policy, published, after } = evaluation;
    let entry = EntryRef {
        format: FORMAT,
        wva: env!("CARGO_PKG_VERSION"),
        at: published.at,
        sequence: published.sequence,
        snapshot,
        memory: before,
        policy,
        decisions: &published.decisions,
        outcome: digest(&published.decisions, &published.report, after),
    };
    out.write_all(HEAD)?;
    let checksum = checked(&mut *out, &entry)?;
    out.write_all(MIDDLE)?;
    out.write_all(checksum.as_bytes())?;
    out.write_all(TAIL)?;
    out.write_all(b"\n")
}

/// The checksum of an outcome's JSON: equal for equal bytes.
#[must_use]
pub(super) fn digest(decisions: &BTreeMap<VariantId, Decision>, report: &Report, memory: &Memory) -> String {
    let outcome = OutcomeRef { decisions, report, memory };
    // It can only fail over maps with keys that are no strings, of which there are none.
    checked(&mut io::sink(), &outcome).unwrap_or_else(|error| error.to_string())
}

/// Writes `value` as JSON and returns the checksum of that.
fn checked(out: &mut impl Write, value: &impl Serialize) -> io::Result<String> {
    // In large pieces, because JSON is written in small ones, and sums are slow over those.
    let mut json = BufWriter::with_capacity(CHUNK, Checked { out, hasher: Hasher::new() });
    let written =
        serde_json::to_writer(&mut json, value).map_err(io::Error::from).and_then(|()| json.flush());
    // Not by its drop, which would try again to write what has failed.
    let (checked, _) = json.into_parts();
    written.map(|()| hex(checked.hasher.finalize()))
}

fn hex(checksum: u32) -> String {
    format!("{checksum:08x}")
}

impl Entry {
    /// Reads a line, with or without its end.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn parse(line: &[u8]) -> Result<Self, Trouble> {
        let bytes = entry_of(line.trim_ascii_end())?;
        let header: Header = serde_json::from_slice(bytes)
            .map_err(|error| Trouble::NotUnderstood { wva: "(unknown)".into(), cause: error.to_string() })?;
        let Header { format, wva } = header;
        if format != FORMAT {
            return Err(Trouble::Foreign { wva, format });
        }
        serde_json::from_slice(bytes)
            .map_err(|error| Trouble::NotUnderstood { wva, cause: error.to_string() })
    }

    /// True when `outcome` is what came out, to the byte.
    #[must_use]
    pub fn came_to(&self, outcome: &Outcome) -> bool {
        self.outcome == digest(&outcome.decisions, &outcome.report, &outcome.memory)
    }
}

/// What every layout begins with.
#[derive(Deserialize)]
struct Header {
    format: u32,
    wva: String,
}

/// The bytes of the entry, if they are those that were written.
fn entry_of(line: &[u8]) -> Result<&[u8], Trouble> {
    let (inside, rest) = line
        .strip_prefix(HEAD)
        .and_then(|inside| inside.split_at_checked(inside.len().checked_sub(REST)?))
        .ok_or(Trouble::Torn)?;
    let written = rest.strip_prefix(MIDDLE).and_then(|rest| rest.strip_suffix(TAIL));
    let written = written.and_then(|digits| std::str::from_utf8(digits).ok()).ok_or(Trouble::Torn)?;
    let found = hex(crc32fast::hash(inside));
    if found == written {
        return Ok(inside);
    }
    Err(Trouble::Damaged { expected: written.into(), found })
}

/// Passes bytes on and sums them up.
struct Checked<W> {
    out: W,
    hasher: Hasher,
}

impl<W: Write> Write for Checked<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hasher.update(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    /// Whoever gave `out` flushes it, at the end of the line.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
