//! `wva explain`, offline.

use super::material::{Folder, Said, golden, lines, scenarios, stream, wva};

const BUSY: &str = "fresh-busy-goes-up";

fn explain(words: &[&str]) -> Said {
    wva(&[&["explain"], words].concat())
}

#[test]
fn a_number_is_explained_on_one_screen() {
    let file = scenarios().join(BUSY).with_extension("json");
    let output = explain(&["default/llama", "--snapshot", file.to_str().unwrap()]);
    assert_eq!(output.code, 0, "{}", output.err);
    for part in [
        "default/llama: 3 (ScaleUp), 2 now\n",
        "mean spare KV cache 0.05 (trigger 0.10)",
        "2026-11-21T12:00:00Z, evidence 5 s old",
        "\nSteps\n  quality ",
        "\n  analyze ",
        "\nEvidence\n  source         answered in full\n",
        "  pod            a: Ready, newest sample 5 s old\n",
        "\nIf no new metrics arrive and no object changes\n  in 15 s        3 (Transition)",
        "no number (TooOld)",
    ] {
        assert!(output.out.contains(part), "{part:?} is missing in\n{}", output.out);
    }
    assert!(output.out.lines().count() <= 40, "more than a screen:\n{}", output.out);
    assert!(output.out.lines().all(|line| line.chars().count() <= 100), "{}", output.out);
}

#[test]
fn every_scenario_can_be_explained_for_people_and_for_programs() {
    for file in golden() {
        let scenario: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let id = scenario["expected"].as_object().unwrap().keys().next().unwrap().clone();
        let words = [id.as_str(), "--snapshot", file.to_str().unwrap()];
        let people = explain(&words);
        assert_eq!(people.code, 0, "{}: {}", file.display(), people.err);
        let programs = explain(&[&words[..], &["-o", "json"]].concat()).json();
        assert_eq!(programs["variant"], id.as_str());
        assert!(people.out.starts_with(&format!("{id}: ")), "{}", people.out);
        let lines = people.out.lines().count();
        assert!(lines <= 50, "{}: {lines} lines\n{}", file.display(), people.out);
    }
}

#[test]
fn of_a_recording_the_wanted_moment_is_explained_and_damage_is_told() {
    let folder = Folder::new();
    let mut bytes = lines(&stream(BUSY, 4));
    bytes.truncate(bytes.len() - 9);
    let file = folder.file("r.jsonl", &bytes);
    let file = file.to_str().unwrap();
    let last = explain(&["default/llama", "--recording", file]);
    assert!(last.out.contains("2026-11-21T12:00:10Z") && last.out.contains("r.jsonl:3, recorded by wva"));
    assert!(last.err.contains("r.jsonl:4: cut short"), "{}", last.err);
    let first = explain(&["default/llama", "--recording", file, "--at", "2026-11-21T12:00:00Z"]);
    assert!(first.out.contains("r.jsonl:1"), "{}", first.out);
}

#[test]
fn a_variant_that_is_not_there_is_answered_with_those_that_are() {
    let file = scenarios().join(BUSY).with_extension("json");
    let output = explain(&["default/lama", "--snapshot", file.to_str().unwrap()]);
    assert_eq!(output.code, 2);
    assert!(output.err.contains("no variant default/lama; it has default/llama"), "{}", output.err);
    let neither = explain(&["default/llama"]);
    assert_eq!(neither.code, 2);
    assert!(neither.err.contains("--recording <FILE>|--server <URL>"), "{}", neither.err);
}
