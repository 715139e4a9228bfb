//! Evaluations to keep, folders to keep them in, and the commands that read them.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::Deserialize;
use wva::engine::{Evaluation, Origin, Published};
use wva::record::{decide_recorded, write_line};
use wva_core::{Memory, Policy, Snapshot};

#[derive(Deserialize)]
struct Scenario {
    policy: Policy,
    memory: Memory,
    snapshot: Snapshot,
}

/// Where the golden decisions are.
pub(crate) fn scenarios() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios")
}

/// All of them.
pub(crate) fn golden() -> Vec<PathBuf> {
    let entries = scenarios().read_dir().unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_file()).collect()
}

/// `count` evaluations of one scenario, five seconds apart, each from the memory of the one before it.
pub(crate) fn stream(scenario: &str, count: u64) -> Vec<Arc<Evaluation>> {
    stream_of(&std::fs::read_to_string(scenarios().join(scenario).with_extension("json")).unwrap(), count)
}

/// The same of a scenario's text.
pub(crate) fn stream_of(text: &str, count: u64) -> Vec<Arc<Evaluation>> {
    let Scenario { policy, memory, mut snapshot } = serde_json::from_str(text).unwrap();
    let (policy, mut before) = (Arc::new(policy), Arc::new(memory));
    let evaluations = (1..=count).map(|sequence| {
        let outcome = decide_recorded(&snapshot, &before, &policy);
        let published = Arc::new(Published {
            sequence,
            at: snapshot.now,
            origin: Origin::Computed,
            decisions: outcome.decisions,
            report: outcome.report,
            policy: policy.clone(),
            ..Published::empty()
        });
        let after = Arc::new(outcome.memory);
        let (snapshot_now, before_now) = (snapshot.clone(), std::mem::replace(&mut before, after.clone()));
        snapshot.now += Duration::from_secs(5);
        Arc::new(Evaluation { snapshot: snapshot_now, before: before_now, published, after })
    });
    evaluations.collect()
}

/// Their lines.
pub(crate) fn lines(evaluations: &[Arc<Evaluation>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    evaluations.iter().for_each(|evaluation| write_line(evaluation, &mut bytes).unwrap());
    bytes
}

/// A folder of its own, which goes with the test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("wva-record-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// The recordings in it, in the order of their names.
    pub(crate) fn recordings(&self) -> Vec<PathBuf> {
        let all = self.0.read_dir().unwrap().map(|entry| entry.unwrap().path());
        let mut ours: Vec<_> =
            all.filter(|path| path.extension().is_some_and(|end| end == "jsonl")).collect();
        ours.sort();
        ours
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a command said.
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}{}", self.out, self.err))
    }
}

/// `wva` with these words and this input.
pub(crate) fn wva_with(words: &[&str], input: &str) -> Said {
    let mut child = Command::new(env!("CARGO_BIN_EXE_wva"))
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Said { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

pub(crate) fn wva(words: &[&str]) -> Said {
    wva_with(words, "")
}
