//! An evaluation as a line: `{"entry":{…},"crc32":"…"}`, with the checksum of the bytes of the entry. Lines are streamed, because
//! the line of a fleet of thousands of variants is too large to hold in memory twice.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};

use crc32fast::Hasher;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use wva_core::{Decision, Memory, Outcome, Policy, Report, Snapshot, VariantId};

use crate::engine::Evaluation;

/// The format that this build writes. In format 1, decisions and memories have only the text of their reasons, so that numbers and
/// reasons of an outcome can be compared, and its bytes cannot.
pub const FORMAT: u32 = 2;
/// The oldest format that this build reads.
const OLDEST_FORMAT: u32 = 1;

const HEAD: &[u8] = br#"{"entry":"#;
const MIDDLE: &[u8] = br#","crc32":""#;
const TAIL: &[u8] = br#""}"#;
/// Bytes that are checksummed and written at once.
const BUFFER_BYTES: usize = 64 * 1024;
/// Bytes after an entry. The checksum has eight digits.
const SUFFIX_BYTES: usize = MIDDLE.len() + 8 + TAIL.len();

/// An evaluation as it was recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The format of the line.
    pub format: u32,
    /// The version of wva that decided.
    pub wva: String,
    /// The time of the evaluation.
    pub at: Timestamp,
    /// Its number in the process. A jump is a gap.
    pub sequence: u64,
    /// The snapshot.
    pub snapshot: Snapshot,
    /// The memory before it.
    pub memory: Memory,
    /// The policy.
    pub policy: Policy,
    /// The decisions.
    pub decisions: BTreeMap<VariantId, Decision>,
    /// A digest of the outcome: decisions, report and next memory.
    pub outcome: String,
}

/// [`Entry`] with borrowed fields in the same order.
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

/// What a digest covers.
#[derive(Serialize)]
struct OutcomeRef<'a> {
    decisions: &'a BTreeMap<VariantId, Decision>,
    report: &'a Report,
    memory: &'a Memory,
}

/// Why a line is unusable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// It does not end like a line.
    #[error("cut short, or not a line of a recording")]
    Torn,
    /// Its bytes were changed.
    #[error("its checksum is {found} and should be {expected}: bytes were changed")]
    Damaged {
        /// The checksum in the line.
        expected: String,
        /// The checksum of its bytes.
        found: String,
    },
    /// It is too long.
    #[error("longer than {0} bytes, so not a line of a recording")]
    TooLong(u64),
    /// It is complete, but of another format.
    #[error("written by wva {wva} in format {format}, and this is wva {own} with format {FORMAT}; use that version",
            own = env!("CARGO_PKG_VERSION"))]
    OtherFormat {
        /// The version that wrote it.
        wva: String,
        /// Its format.
        format: u32,
    },
    /// It is complete, but this build cannot read it.
    #[error("written by wva {wva} and not understood by wva {own}: {cause}", own = env!("CARGO_PKG_VERSION"))]
    NotUnderstood {
        /// The version that wrote it.
        wva: String,
        /// The error.
        cause: String,
    },
}

/// Writes `evaluation` with a newline.
///
/// # Errors
/// When `out` fails.
pub fn write_line(evaluation: &Evaluation, out: &mut impl Write) -> io::Result<()> {
    let Evaluation { snapshot, before, published, after } = evaluation;
    let entry = EntryRef {
        format: FORMAT,
        wva: env!("CARGO_PKG_VERSION"),
        at: published.at,
        sequence: published.sequence,
        snapshot,
        memory: before,
        policy: &published.policy,
        decisions: &published.decisions,
        outcome: digest(&published.decisions, &published.report, after),
    };
    out.write_all(HEAD)?;
    let checksum = write_checksummed(&mut *out, &entry)?;
    out.write_all(MIDDLE)?;
    out.write_all(checksum.as_bytes())?;
    out.write_all(TAIL)?;
    out.write_all(b"\n")
}

/// The checksum of an outcome's JSON.
#[must_use]
pub(super) fn digest(decisions: &BTreeMap<VariantId, Decision>, report: &Report, memory: &Memory) -> String {
    let outcome = OutcomeRef { decisions, report, memory };
    // It can only fail for maps with keys that are not strings, of which there are none.
    write_checksummed(&mut io::sink(), &outcome).unwrap_or_else(|error| error.to_string())
}

/// Writes `value` as JSON and returns its checksum.
fn write_checksummed(out: &mut impl Write, value: &impl Serialize) -> io::Result<String> {
    // Buffered, because JSON is written in small pieces, and checksums of small pieces are slow.
    let mut json = BufWriter::with_capacity(BUFFER_BYTES, ChecksumWriter { out, hasher: Hasher::new() });
    let written =
        serde_json::to_writer(&mut json, value).map_err(io::Error::from).and_then(|()| json.flush());
    // Otherwise its drop would try again to write what has failed.
    let (writer, _) = json.into_parts();
    written.map(|()| hex(writer.hasher.finalize()))
}

fn hex(checksum: u32) -> String {
    format!("{checksum:08x}")
}

impl Entry {
    /// Reads a line, with or without its end.
    ///
    /// # Errors
    /// Why the line is unusable.
    pub fn parse(line: &[u8]) -> Result<Self, LineError> {
        let bytes = entry_bytes(line.trim_ascii_end())?;
        let header: Header = serde_json::from_slice(bytes).map_err(|error| LineError::NotUnderstood {
            wva: "(unknown)".into(),
            cause: error.to_string(),
        })?;
        let Header { format, wva } = header;
        if !(OLDEST_FORMAT..=FORMAT).contains(&format) {
            return Err(LineError::OtherFormat { wva, format });
        }
        serde_json::from_slice(bytes)
            .map_err(|error| LineError::NotUnderstood { wva, cause: error.to_string() })
    }

    /// Only numbers and reasons of this entry can be compared.
    #[must_use]
    pub fn has_older_format(&self) -> bool {
        self.format < FORMAT
    }

    /// Whether `outcome` equals the recorded one, to the byte.
    #[must_use]
    pub fn matches(&self, outcome: &Outcome) -> bool {
        self.outcome == digest(&outcome.decisions, &outcome.report, &outcome.memory)
    }
}

/// The fields that every format begins with.
#[derive(Deserialize)]
struct Header {
    format: u32,
    wva: String,
}

/// The bytes of the entry, if their checksum is right.
fn entry_bytes(line: &[u8]) -> Result<&[u8], LineError> {
    let (inside, rest) = line
        .strip_prefix(HEAD)
        .and_then(|inside| inside.split_at_checked(inside.len().checked_sub(SUFFIX_BYTES)?))
        .ok_or(LineError::Torn)?;
    let written = rest.strip_prefix(MIDDLE).and_then(|rest| rest.strip_suffix(TAIL));
    let written = written.and_then(|digits| std::str::from_utf8(digits).ok()).ok_or(LineError::Torn)?;
    let found = hex(crc32fast::hash(inside));
    if found == written {
        return Ok(inside);
    }
    Err(LineError::Damaged { expected: written.into(), found })
}

/// Writes bytes and computes their checksum.
struct ChecksumWriter<W> {
    out: W,
    hasher: Hasher,
}

impl<W: Write> Write for ChecksumWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hasher.update(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    /// Does nothing: the owner of `out` flushes it at the end of the line.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
