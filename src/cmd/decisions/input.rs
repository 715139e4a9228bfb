//! What a decision is made of, from a file: a line of a recording, a snapshot alone, or `{snapshot, memory, policy}`.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::Path;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use wva_core::{Decision, Memory, Policy, Snapshot};

use super::super::terminal::note;
use super::Failure;
use crate::config::PolicyFile;
use crate::record::{Entry, Lines};

/// Everything that one decision is made of.
#[derive(Debug)]
pub(super) struct Material {
    /// Where it comes from, for people.
    pub(super) origin: String,
    pub(super) snapshot: Snapshot,
    pub(super) memory: Memory,
    pub(super) policy: Policy,
    /// The recorded line, when it is one.
    pub(super) recorded: Option<Recorded>,
}

/// What was decided at the time.
#[derive(Debug)]
pub(super) struct Recorded {
    /// The program's version.
    pub(super) wva: String,
    pub(super) decisions: std::collections::BTreeMap<wva_core::VariantId, Decision>,
}

/// `{snapshot, memory, policy}`, as the golden decisions of `tests/scenarios` have it.
#[derive(Deserialize)]
struct Bundle {
    snapshot: Snapshot,
    memory: Option<Memory>,
    policy: Option<Policy>,
}

/// Tells the kinds of files apart.
#[derive(Deserialize)]
struct Keys {
    snapshot: Option<IgnoredAny>,
    groups: Option<IgnoredAny>,
}

/// Standard input, as every tool writes it.
const STDIN: &str = "-";

/// A file, or standard input.
pub(super) fn open(path: &Path) -> Result<Box<dyn BufRead>, Failure> {
    if path == Path::new(STDIN) {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let shown = path.display();
    let next = "give a file that exists and that you may read, or - for standard input";
    let file = File::open(path).map_err(|error| format!("{shown}: {error}; {next}"))?;
    if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
        return Err(format!("{shown}: is a directory; name the files in it, as DIR/*.jsonl").into());
    }
    Ok(Box::new(BufReader::with_capacity(1 << 20, file)))
}

fn read_all(path: &Path, mut input: impl BufRead) -> Result<Vec<u8>, Failure> {
    let mut content = Vec::new();
    input.read_to_end(&mut content).map_err(|error| broken(path, &error))?;
    Ok(content)
}

/// A file that broke off while it was read.
pub(super) fn broken(path: &Path, error: &io::Error) -> Failure {
    Failure::Input(format!("{}: cannot be read on: {error}; copy it anew", path.display()))
}

impl Material {
    /// From `path`; of a recording the evaluation of `at`, else its last one.
    pub(super) fn read(path: &Path, at: Option<Timestamp>) -> Result<Self, Failure> {
        let mut input = open(path)?;
        let start = input.fill_buf().map_err(|error| broken(path, &error))?;
        if start.trim_ascii_start().starts_with(b"{\"entry\"") {
            return Self::of_recording(input, path, at);
        }
        let material = Self::of_json(&read_all(path, input)?, path)?;
        match at.filter(|at| *at != material.snapshot.now) {
            None => Ok(material),
            Some(_) => {
                let (shown, now) = (path.display(), material.snapshot.now);
                Err(format!("{shown}: the one snapshot in it is of {now}; leave --at out").into())
            }
        }
    }

    /// From the lines of a recording. Unusable lines are named and skipped.
    pub(super) fn of_recording(
        input: impl BufRead,
        path: &Path,
        at: Option<Timestamp>,
    ) -> Result<Self, Failure> {
        let mut chosen = None;
        let mut readable = 0_u64;
        for line in Lines::new(input, path) {
            let line = line.map_err(|error| broken(path, &error))?;
            match line.entry {
                Ok(entry) => {
                    readable += 1;
                    if at.is_none_or(|at| at == entry.at) {
                        chosen = Some((line.location, entry));
                    }
                }
                Err(cause) => note(&format!("{}: {cause}; passed over", line.location)),
            }
        }
        let shown = path.display();
        match (chosen, at.filter(|_| readable > 0)) {
            (Some((location, entry)), _) => Ok(Self::of_entry(*entry, location.to_string())),
            (None, Some(at)) => Err(Failure::Input(format!(
                "{shown}: none of its {readable} evaluations is of {at}; `wva replay --output json` lists those that differ, \
                 `jq .entry.at` all"
            ))),
            (None, None) => {
                let next = "record anew with --record-dir or /debug/snapshots";
                Err(format!("{shown}: no line can be used; {next}").into())
            }
        }
    }

    fn of_entry(entry: Entry, origin: String) -> Self {
        let Entry { wva, snapshot, memory, policy, decisions, .. } = entry;
        Self { origin, snapshot, memory, policy, recorded: Some(Recorded { wva, decisions }) }
    }

    fn of_json(text: &[u8], path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        let wrong = |error: serde_json::Error| {
            let (line, column) = (error.line(), error.column());
            let next =
                "give a snapshot or a line of a recording, from /debug/snapshots/latest or --record-dir";
            Failure::Input(format!("{shown}:{line}:{column}: {error}; {next}"))
        };
        let keys: Keys = serde_json::from_slice(text).map_err(wrong)?;
        let bundle = match (keys.snapshot, keys.groups) {
            (None, Some(_)) => {
                Bundle { snapshot: serde_json::from_slice(text).map_err(wrong)?, memory: None, policy: None }
            }
            _ => serde_json::from_slice(text).map_err(wrong)?,
        };
        Ok(Self {
            origin: shown.to_string(),
            snapshot: bundle.snapshot,
            memory: bundle.memory.unwrap_or_default(),
            policy: bundle.policy.unwrap_or_default(),
            recorded: None,
        })
    }

    /// The same with what the policy file says, if there is one.
    pub(super) fn with_policy(mut self, file: Option<&Path>) -> Result<Self, Failure> {
        if let Some(file) = file {
            self.policy = policy_file(file)?.over(&self.policy).map_err(|error| error.to_string())?;
        }
        Ok(self)
    }

    /// The same with the memory of a file, if there is one.
    pub(super) fn with_memory(mut self, file: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = file else { return Ok(self) };
        let memory: Memory = serde_json::from_slice(&read_all(path, open(path)?)?).map_err(|error| {
            let next = "give a memory as JSON, such as `.memory` of `wva decide --output json`";
            format!("{}:{}:{}: {error}; {next}", path.display(), error.line(), error.column())
        })?;
        if memory.version != Memory::VERSION {
            let (file, version, own) = (path.display(), memory.version, Memory::VERSION);
            return Err(format!("{file}: a memory of version {version}, and this program reads {own}").into());
        }
        self.memory = memory;
        Ok(self)
    }
}

/// A policy as a file.
pub(super) fn policy_file(path: &Path) -> Result<PolicyFile, Failure> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text).map_err(|error| broken(path, &error))?;
    PolicyFile::parse(path, &text).map_err(|error| Failure::Input(error.to_string()))
}
