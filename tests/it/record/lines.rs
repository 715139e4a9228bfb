//! Lines of a recording: exact, independent of each other, and found when they are damaged.

use std::path::Path;

use wva::record::{Entry, LineError, Lines, RecordedLine, Replay};

use super::material::{golden, lines, stream};

/// A small one, so that every byte can be tried.
const SMALL: &str = "an-invalid-object-is-an-error";

fn read(bytes: &[u8]) -> Vec<RecordedLine> {
    Lines::new(bytes, Path::new("r.jsonl")).map(Result::unwrap).collect()
}

fn readable(bytes: &[u8]) -> Vec<u64> {
    read(bytes).into_iter().filter_map(|found| found.entry.ok()).map(|entry| entry.sequence).collect()
}

#[test]
fn every_scenario_survives_being_written_and_read_to_the_byte() {
    for path in golden() {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let evaluations = stream(&name, 4);
        let mut replay = Replay::new(None);
        for found in read(&lines(&evaluations)) {
            let entry = found.entry.unwrap_or_else(|trouble| panic!("{name}: {trouble}"));
            let now = replay.step(&entry).unwrap();
            assert!(now.is_identical && now.differences.is_empty(), "{name}: {:?}", now.differences);
        }
        assert_eq!((replay.summary().evaluations, replay.summary().after_a_gap), (4, 0), "{name}");
        assert!(replay.summary().is_identical());
    }
}

#[test]
fn a_recording_cut_at_any_byte_of_its_last_line_loses_at_most_that_line_and_says_so() {
    let evaluations = stream(SMALL, 3);
    let (all, without_last) = (lines(&evaluations), lines(&evaluations[..2]).len());
    for cut in without_last..=all.len() {
        let found = read(&all[..cut]);
        let whole = cut + 1 >= all.len();
        let expected: &[u64] = if whole { &[1, 2, 3] } else { &[1, 2] };
        assert_eq!(readable(&all[..cut]), expected, "cut at {cut}");
        let errors = found.iter().filter_map(|found| found.entry.as_ref().err()).collect::<Vec<_>>();
        let silent = whole || cut == without_last;
        assert_eq!(errors.len(), usize::from(!silent), "cut at {cut}: {errors:?}");
        assert!(errors.iter().all(|trouble| **trouble == LineError::Torn), "cut at {cut}: {errors:?}");
    }
}

#[test]
fn a_changed_byte_anywhere_in_a_line_costs_that_line_only() {
    let evaluations = stream(SMALL, 3);
    let all = lines(&evaluations);
    let (start, end) = (lines(&evaluations[..1]).len(), lines(&evaluations[..2]).len());
    for at in start..end - 1 {
        for bit in [0x01, 0x10, 0x80] {
            let mut damaged = all.clone();
            damaged[at] ^= bit;
            assert_eq!(readable(&damaged), [1, 3], "byte {at}, bit {bit:#x}");
        }
    }
    let mut joined = all.clone();
    joined[end - 1] = b' ';
    assert_eq!(readable(&joined), [1], "two lines that became one cannot be told apart");
}

#[test]
fn a_line_of_another_format_or_with_another_content_names_who_wrote_it() {
    let line = lines(&stream(SMALL, 1));
    let text = String::from_utf8(line).unwrap();
    let rewritten = |from: &str, to: &str| {
        let inside = text.split_once("{\"entry\":").unwrap().1.rsplit_once(",\"crc32\"").unwrap().0;
        let inside = inside.replacen(from, to, 1);
        let sum = crc32fast::hash(inside.as_bytes());
        Entry::parse(format!("{{\"entry\":{inside},\"crc32\":\"{sum:08x}\"}}\n").as_bytes()).map(|_| ())
    };
    assert_eq!(rewritten("", ""), Ok(()));
    let newer = rewritten("\"format\":2", "\"format\":3").unwrap_err().to_string();
    assert!(newer.starts_with("written by wva ") && newer.contains("in format 3"), "{newer}");
    let other = rewritten("\"memory\":", "\"remembered\":").unwrap_err().to_string();
    assert!(other.contains("not understood") && other.contains("memory"), "{other}");
}
