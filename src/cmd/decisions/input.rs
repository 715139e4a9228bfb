//! Reads the inputs of a decision from a file: a line of a recording, a snapshot alone, or `{snapshot, memory, policy}`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::Path;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use wva_core::{Decision, Memory, Policy, Snapshot, VariantId};

use crate::cmd::output::CommandError;
use crate::cmd::terminal::note;
use crate::config::PolicyFile;
use crate::record::{Entry, Lines};

/// All inputs of one decision.
#[derive(Debug)]
pub(super) struct DecisionInput {
    /// The file and line, or the server, for people.
    pub(super) origin: String,
    pub(super) snapshot: Snapshot,
    pub(super) memory: Memory,
    pub(super) policy: Policy,
    /// The decisions of the time, if the input is a line of a recording.
    pub(super) recorded: Option<RecordedDecisions>,
}

/// The decisions in a line of a recording.
#[derive(Debug)]
pub(super) struct RecordedDecisions {
    /// The version of wva that made them.
    pub(super) wva: String,
    pub(super) decisions: BTreeMap<VariantId, Decision>,
}

/// `{snapshot, memory, policy}`, as the golden decisions of `tests/scenarios` have it.
#[derive(Deserialize)]
struct InputFile {
    snapshot: Snapshot,
    memory: Option<Memory>,
    policy: Option<Policy>,
}

/// The keys that distinguish the kinds of files: a snapshot alone has `groups` at its top level.
#[derive(Deserialize)]
struct FileKeys {
    snapshot: Option<IgnoredAny>,
    groups: Option<IgnoredAny>,
}

/// The file name that stands for standard input.
const STDIN: &str = "-";

/// Opens a file, or standard input.
pub(super) fn open(path: &Path) -> Result<Box<dyn BufRead>, CommandError> {
    if path == Path::new(STDIN) {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let name = path.display();
    let hint = "give a file that exists and that you may read, or - for standard input";
    let file = File::open(path).map_err(|error| format!("{name}: {error}; {hint}"))?;
    if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
        return Err(format!("{name}: is a directory; name the files in it, as DIR/*.jsonl").into());
    }
    Ok(Box::new(BufReader::with_capacity(1 << 20, file)))
}

fn read_all(path: &Path, mut input: impl BufRead) -> Result<Vec<u8>, CommandError> {
    let mut content = Vec::new();
    input.read_to_end(&mut content).map_err(|error| read_error(path, &error))?;
    Ok(content)
}

/// The error of a file that was opened but cannot be read to its end.
pub(super) fn read_error(path: &Path, error: &io::Error) -> CommandError {
    CommandError::Input(format!("{}: reading failed: {error}; copy the file again", path.display()))
}

impl DecisionInput {
    /// Reads `path`. Of a recording, it takes the evaluation at `at`, or the last one.
    pub(super) fn read(path: &Path, at: Option<Timestamp>) -> Result<Self, CommandError> {
        let mut input = open(path)?;
        let start = input.fill_buf().map_err(|error| read_error(path, &error))?;
        if start.trim_ascii_start().starts_with(b"{\"entry\"") {
            return Self::from_recording(input, path, at);
        }
        let input = Self::from_json(&read_all(path, input)?, path)?;
        if at.is_none_or(|at| at == input.snapshot.now) {
            return Ok(input);
        }
        let (name, now) = (path.display(), input.snapshot.now);
        Err(format!("{name}: contains only the snapshot of {now}; omit --at").into())
    }

    /// Reads the lines of a recording. Unusable lines are named and skipped.
    pub(super) fn from_recording(
        input: impl BufRead,
        path: &Path,
        at: Option<Timestamp>,
    ) -> Result<Self, CommandError> {
        let mut chosen = None;
        let mut readable = 0_u64;
        for line in Lines::new(input, path) {
            let line = line.map_err(|error| read_error(path, &error))?;
            match line.entry {
                Ok(entry) => {
                    readable += 1;
                    if at.is_none_or(|at| at == entry.at) {
                        chosen = Some((line.location, entry));
                    }
                }
                Err(cause) => note(&format!("{}: {cause}; skipped", line.location)),
            }
        }
        let name = path.display();
        match (chosen, at.filter(|_| readable > 0)) {
            (Some((location, entry)), _) => Ok(Self::from_entry(*entry, location.to_string())),
            (None, Some(at)) => Err(CommandError::Input(format!(
                "{name}: none of its {readable} evaluations is of {at}; `jq .entry.at` lists their times"
            ))),
            (None, None) => {
                let hint = "make a new recording with --record-dir or /debug/snapshots";
                Err(format!("{name}: no line can be used; {hint}").into())
            }
        }
    }

    fn from_entry(entry: Entry, origin: String) -> Self {
        let Entry { wva, snapshot, memory, policy, decisions, .. } = entry;
        Self { origin, snapshot, memory, policy, recorded: Some(RecordedDecisions { wva, decisions }) }
    }

    fn from_json(text: &[u8], path: &Path) -> Result<Self, CommandError> {
        let name = path.display();
        let invalid = |error: serde_json::Error| {
            let (line, column) = (error.line(), error.column());
            let hint =
                "give a snapshot or a line of a recording, from /debug/snapshots/latest or --record-dir";
            CommandError::Input(format!("{name}:{line}:{column}: {error}; {hint}"))
        };
        let keys: FileKeys = serde_json::from_slice(text).map_err(invalid)?;
        let file = match (keys.snapshot, keys.groups) {
            (None, Some(_)) => InputFile {
                snapshot: serde_json::from_slice(text).map_err(invalid)?,
                memory: None,
                policy: None,
            },
            _ => serde_json::from_slice(text).map_err(invalid)?,
        };
        Ok(Self {
            origin: name.to_string(),
            snapshot: file.snapshot,
            memory: file.memory.unwrap_or_default(),
            policy: file.policy.unwrap_or_default(),
            recorded: None,
        })
    }

    /// Replaces the settings that the policy file has, if there is one.
    pub(super) fn with_policy(mut self, file: Option<&Path>) -> Result<Self, CommandError> {
        if let Some(file) = file {
            self.policy =
                read_policy_file(file)?.apply_to(&self.policy).map_err(|error| error.to_string())?;
        }
        Ok(self)
    }

    /// Replaces the memory by that of a file, if there is one.
    pub(super) fn with_memory(mut self, file: Option<&Path>) -> Result<Self, CommandError> {
        let Some(path) = file else { return Ok(self) };
        let memory: Memory = serde_json::from_slice(&read_all(path, open(path)?)?).map_err(|error| {
            let hint = "give a memory as JSON, such as `.memory` of `wva decide --output json`";
            format!("{}:{}:{}: {error}; {hint}", path.display(), error.line(), error.column())
        })?;
        if memory.version != Memory::VERSION {
            let (name, version, own) = (path.display(), memory.version, Memory::VERSION);
            let message =
                format!("{name}: memory of version {version}; this program reads version {own} only");
            return Err(message.into());
        }
        self.memory = memory;
        Ok(self)
    }
}

/// Reads a policy file.
pub(super) fn read_policy_file(path: &Path) -> Result<PolicyFile, CommandError> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text).map_err(|error| read_error(path, &error))?;
    PolicyFile::parse(path, &text).map_err(|error| CommandError::Input(error.to_string()))
}
