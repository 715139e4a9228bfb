//! `wva decide` and `wva replay` as a person types them.

use std::sync::Arc;

use serde_json::Value;
use wva::engine::Evaluation;
use wva_core::decision::Verdict;
use wva_core::units::Replicas;

use super::material::{Folder, Said, golden, lines, scenarios, stream, wva, wva_with};

const BUSY: &str = "fresh-busy-goes-up";

fn path(path: &std::path::Path) -> &str {
    path.to_str().unwrap()
}

fn replay(words: &[&str]) -> Said {
    wva(&[&["replay"], words].concat())
}

#[test]
fn every_golden_decision_is_decided_by_hand_as_promised() {
    let mut count = 0;
    for file in golden() {
        let scenario: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let output = wva(&["decide", path(&file), "--output", "json"]);
        assert_eq!(output.code, 0, "{}: {}", file.display(), output.err);
        let decisions = &output.json()["decisions"];
        for (id, expected) in scenario["expected"].as_object().unwrap() {
            let verdict = &decisions[id]["verdict"];
            let found =
                [&verdict["target"]["desired"], &verdict["target"]["reason"], &verdict["unknown"]["cause"]];
            let wanted = [&expected["desired"], &expected["reason"], &expected["cause"]];
            assert_eq!(found, wanted, "{}: {id}", file.display());
        }
        count += 1;
    }
    assert!(count >= 20, "{count}");
}

#[test]
fn a_snapshot_alone_is_decided_with_the_policy_and_the_memory_that_are_given() {
    let folder = Folder::new();
    let evaluation = &stream(BUSY, 1)[0];
    let snapshot = folder.file("s.json", &serde_json::to_vec(&evaluation.snapshot).unwrap());
    let memory = folder.file("m.json", &serde_json::to_vec(&*evaluation.before).unwrap());
    let percent = "global: {default: {analyzer: saturation-percent}}";
    let decided = |policy: &str| {
        let words = ["decide", path(&snapshot), "--memory", path(&memory), "--policy", "-"];
        wva_with(&words, policy).out
    };
    assert!(decided("").contains("rate has too little data"), "{}", decided(""));
    assert!(decided(percent).contains("3 (ScaleUp)"), "{}", decided(percent));
    let calm = decided(
        "global: {default: {analyzer: saturation-percent, saturation: {kvSpareTrigger: 0.01, queueSpareTrigger: 0.5}}}",
    );
    assert!(calm.contains("2 (Steady)"), "{calm}");
    let without_memory = wva(&["decide", path(&snapshot), "--output", "yaml"]);
    assert!(without_memory.out.starts_with("decisions:\n  default/llama:"), "{}", without_memory.out);
}

#[test]
fn what_cannot_be_used_is_named_with_the_next_step() {
    let folder = Folder::new();
    let broken = folder.file("s.json", b"{\n \"now\": 7,\n \"groups\": {}}");
    let recording = folder.file("r.jsonl", &lines(&stream(BUSY, 1)));
    let snapshot = folder.file("one.json", &serde_json::to_vec(&stream(BUSY, 1)[0].snapshot).unwrap());
    let torn = folder.file("t.jsonl", &lines(&stream(BUSY, 1))[..500]);
    let policy = folder.file("p.yaml", b"global: {default: {saturation: {kvSpareTigger: 1}}}");
    for (words, says) in [
        (&["decide", path(&broken)][..], "s.json:2:9: "),
        (&["decide", "no-such-file"], "no-such-file: No such file"),
        (&["decide", path(folder.path())], "is a directory; name the files in it"),
        (
            &["decide", path(&recording), "--at", "2020-01-01T00:00:00Z"],
            "none of its 1 evaluations is of 2020",
        ),
        (
            &["decide", path(&snapshot), "--at", "2020-01-01T00:00:00Z"],
            "contains only the snapshot of 2026-11-21T12:00:00Z; omit --at",
        ),
        (&["decide", path(&torn)], "no line can be used; make a new recording"),
        (
            &["decide", path(&recording), "--policy", path(&policy)],
            "p.yaml: global.default.saturation.kvSpareTigger is not a field",
        ),
        (&["decide", path(&recording), "--memory", path(&broken)], "s.json:"),
        (&["replay", path(&torn)], "t.jsonl:1: cut short"),
        (&["replay", path(&torn)], "no evaluation can be replayed; record with"),
        (&["replay", path(&recording), "no-such-file"], "no-such-file: No such file"),
        (&["replay", path(&recording), "--policy", path(&policy)], "--print-policy"),
    ] {
        let output = wva(words);
        assert_eq!(output.code, 2, "{words:?}: {}", output.err);
        assert!(output.err.contains(says), "{words:?} says {}", output.err);
    }
}

#[test]
fn the_policy_that_is_printed_is_a_policy_file() {
    let printed = wva(&["decide", "--print-policy"]).out;
    assert!(printed.contains("analyzer: rate"), "{printed}");
    let printed = printed.replace("analyzer: rate", "analyzer: saturation-percent");
    let output =
        wva_with(&["decide", path(&scenarios().join("fresh-busy-goes-up.json")), "--policy", "-"], &printed);
    assert!(output.out.contains("3 (ScaleUp)"), "{}{}", output.out, output.err);
}

/// As if another version had decided `desired` in the evaluation at `index`.
fn decided_otherwise(evaluations: &mut [Arc<Evaluation>], index: usize, desired: u32) {
    let mut evaluation = Evaluation::clone(&evaluations[index]);
    let mut published = evaluation.published.as_ref().clone();
    for decision in published.decisions.values_mut() {
        let Verdict::Target(target) = &mut decision.verdict else { continue };
        target.desired = Replicas::new(desired);
    }
    evaluation.published = Arc::new(published);
    evaluations[index] = Arc::new(evaluation);
}

#[test]
fn a_replay_of_what_this_version_did_is_identical() {
    let folder = Folder::new();
    let evaluations = stream(BUSY, 40);
    let first = folder.file("1.jsonl", &lines(&evaluations[..20]));
    let second = folder.file("2.jsonl", &lines(&evaluations[20..]));
    let output = replay(&[path(&first), path(&second)]);
    assert_eq!((output.code, output.err.as_str()), (0, ""));
    assert_eq!(output.out, "40 evaluations, 40 decisions: byte-identical\n");
    let told = replay(&[path(&first), path(&second), "-o", "json"]).json();
    assert_eq!((&told["identical"], &told["evaluations"]), (&Value::Bool(true), &Value::from(40)));
    let piped = wva_with(&["replay", "-"], std::str::from_utf8(&lines(&evaluations)).unwrap());
    assert_eq!(piped.code, 0, "{}", piped.err);
}

/// The same lines as an earlier version wrote them: format 1, in which reasons are texts without data.
fn in_format_1(lines: &[u8]) -> Vec<u8> {
    fn without_data(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.remove("explanation");
                fields.values_mut().for_each(without_data);
            }
            Value::Array(items) => items.iter_mut().for_each(without_data),
            _ => {}
        }
    }
    let line = |line: &str| {
        let mut entry: Value = serde_json::from_str(line).unwrap();
        let entry = &mut entry["entry"];
        without_data(entry);
        entry["format"] = 1.into();
        let sum = crc32fast::hash(entry.to_string().as_bytes());
        format!("{{\"entry\":{entry},\"crc32\":\"{sum:08x}\"}}\n")
    };
    std::str::from_utf8(lines).unwrap().lines().map(line).collect::<String>().into_bytes()
}

#[test]
fn a_recording_in_the_older_format_is_compared_by_numbers_and_reasons() {
    let folder = Folder::new();
    let mut evaluations = stream(BUSY, 5);
    let file = folder.file("same.jsonl", &in_format_1(&lines(&evaluations)));
    let output = replay(&[path(&file)]);
    assert_eq!(output.code, 0, "{}{}", output.out, output.err);
    let expected = "5 evaluations, 5 decisions: identical as far as they can be compared\n\
                    evaluations in an older format, of which only numbers and reasons were compared: 5\n";
    assert_eq!(output.out, expected);
    decided_otherwise(&mut evaluations, 1, 9);
    let file = folder.file("other.jsonl", &in_format_1(&lines(&evaluations)));
    let output = replay(&[path(&file)]);
    assert_eq!(output.code, 1);
    assert!(output.out.contains("9 (ScaleUp)") && output.out.contains("1 differs"), "{}", output.out);
}

#[test]
fn a_decision_that_comes_out_otherwise_is_shown_and_fails() {
    let folder = Folder::new();
    let mut evaluations = stream(BUSY, 5);
    decided_otherwise(&mut evaluations, 1, 9);
    let file = folder.file("r.jsonl", &lines(&evaluations));
    let output = replay(&[path(&file)]);
    assert_eq!(output.code, 1);
    for part in ["2026-11-21T12:00:05Z", "default/llama", "9 (ScaleUp)", "3 (ScaleUp)", "1 differs"] {
        assert!(output.out.contains(part), "{part}: {}", output.out);
    }
    let told = replay(&[path(&file), "-o", "json"]);
    assert_eq!(told.code, 1);
    let one = &told.json()["differences"][0];
    assert_eq!(one["variant"], "default/llama");
    assert_eq!(one["recorded"]["verdict"]["target"]["desired"], 9);
    assert_eq!(one["replayed"]["verdict"]["target"]["desired"], 3);
}

#[test]
fn another_report_with_the_same_decisions_is_not_identical() {
    let folder = Folder::new();
    let mut evaluation = Evaluation::clone(&stream(BUSY, 1)[0]);
    let mut published = evaluation.published.as_ref().clone();
    published.report.groups.clear();
    evaluation.published = Arc::new(published);
    let file = folder.file("r.jsonl", &lines(&[Arc::new(evaluation)]));
    let output = replay(&[path(&file)]);
    assert_eq!(output.code, 1);
    assert!(output.out.contains("r.jsonl:1: same decisions, different report or memory"), "{}", output.out);
}

#[test]
fn a_damaged_line_is_left_out_and_the_others_stay_identical() {
    let folder = Folder::new();
    let mut bytes = lines(&stream(BUSY, 5));
    let second = lines(&stream(BUSY, 1)).len();
    bytes[second + 300] ^= 1;
    bytes.truncate(bytes.len() - 40);
    let file = folder.file("r.jsonl", &bytes);
    let output = replay(&[path(&file)]);
    assert_eq!(output.code, 0);
    assert!(
        output.err.contains("r.jsonl:2: its checksum is ") && output.err.contains("r.jsonl:5: cut short")
    );
    let expected = "3 evaluations, 3 decisions: byte-identical\ndamaged lines skipped: 2\n";
    assert_eq!(output.out, expected);
    let told = replay(&[path(&file), "-o", "json"]).json();
    assert!(told["damaged"][1]["place"].as_str().unwrap().ends_with("r.jsonl:5"), "{told}");
}

#[test]
fn another_policy_shows_what_it_would_have_decided_and_remembers_for_itself() {
    let folder = Folder::new();
    let evaluations = stream(BUSY, 6);
    let file = folder.file("r.jsonl", &lines(&evaluations));
    let calm = folder.file(
        "calm.yaml",
        b"global: {default: {saturation: {kvSpareTrigger: 0.01, queueSpareTrigger: 0.5}}}\n",
    );
    let output = replay(&[path(&file), "--policy", path(&calm)]);
    assert_eq!(output.code, 0, "{}", output.err);
    let row = output.out.lines().nth(1).unwrap();
    assert!(row.contains("3 (ScaleUp)") && row.contains("2 (Steady): mean spare"), "{}", output.out);
    assert!(output.out.contains("6 differ"), "its own memory has no step up: {}", output.out);
    let same = folder.file("same.yaml", b"cycle: 15\n");
    let output = replay(&[path(&file), "--policy", path(&same)]);
    assert_eq!(output.out, "6 evaluations, 6 decisions: none differs\n");
    let gap = [lines(&evaluations[..2]), lines(&evaluations[4..])].concat();
    let gap = folder.file("gap.jsonl", &gap);
    let output = replay(&[path(&gap), "--policy", path(&same)]);
    assert!(output.out.contains("of another process): 1;"), "{}", output.out);
}
