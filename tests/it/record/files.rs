//! Recordings in files: bounded, rotated, and whole whatever happens.

use std::path::Path;

use wva::record::{Entry, FileSettings, Lines, Recording};

use super::material::{Folder, lines, stream};

const SCENARIO: &str = "fresh-busy-goes-up";

fn settings(folder: &Path, total: u64, file: u64) -> FileSettings {
    FileSettings { folder: folder.into(), total, file, instance: "wva-0".into() }
}

fn bytes_in(folder: &Folder) -> u64 {
    folder.recordings().iter().map(|path| path.metadata().unwrap().len()).sum()
}

/// The numbers of the evaluations in the folder, in the order of the files; every line is whole.
fn sequences(folder: &Folder) -> Vec<u64> {
    let files = folder.recordings();
    let read = |path: &std::path::PathBuf| {
        let content = std::fs::read(path).unwrap();
        let entries = Lines::new(&content[..], path).map(|found| found.unwrap().entry.unwrap().sequence);
        entries.collect::<Vec<_>>()
    };
    files.iter().flat_map(read).collect()
}

#[test]
fn files_are_rotated_and_the_oldest_go_so_that_the_bound_is_never_passed() {
    let evaluations = stream(SCENARIO, 60);
    let line = lines(&evaluations[..1]).len() as u64;
    let (total, file) = (line * 12, line * 5 / 2);
    let folder = Folder::new();
    folder.file("notes.txt", &vec![b'x'; 100_000]);
    let mut recording = Recording::open(settings(folder.path(), total, file)).unwrap();
    for (index, evaluation) in evaluations.iter().enumerate() {
        recording.write(evaluation).unwrap();
        assert!(bytes_in(&folder) <= total, "{} bytes after {index}", bytes_in(&folder));
        assert_eq!(recording.total(), bytes_in(&folder));
        assert_eq!(sequences(&folder).last(), Some(&(index as u64 + 1)), "the newest is there at once");
    }
    let kept = sequences(&folder);
    assert!(kept.len() >= 6 && kept.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{kept:?}");
    assert!(folder.recordings().len() >= 3);
    assert!(folder.path().join("notes.txt").exists(), "what is not ours is left alone");
}

#[test]
fn a_restart_begins_a_new_file_passes_a_torn_line_on_and_counts_what_was_there() {
    let evaluations = stream(SCENARIO, 8);
    let line = lines(&evaluations[..1]).len() as u64;
    let folder = Folder::new();
    let open = || Recording::open(settings(folder.path(), line * 6, line * 10)).unwrap();
    let mut first = open();
    evaluations[..3].iter().for_each(|evaluation| first.write(evaluation).unwrap());
    drop(first);
    let torn = &folder.recordings()[0];
    let content = std::fs::read(torn).unwrap();
    std::fs::write(torn, &content[..content.len() - 100]).unwrap();

    let mut second = open();
    assert_eq!(second.total(), bytes_in(&folder));
    second.write(&evaluations[3]).unwrap();
    let files = folder.recordings();
    assert_eq!(files.len(), 2);
    let found: Vec<_> =
        std::fs::read(&files[0]).unwrap().split(|byte| *byte == b'\n').map(Entry::parse).collect();
    assert!(found[0].is_ok() && found[1].is_ok() && found[2].is_err());
    evaluations[4..].iter().for_each(|evaluation| second.write(evaluation).unwrap());
    assert!(bytes_in(&folder) <= line * 6);
    assert_eq!(sequences(&folder), [4, 5, 6, 7, 8], "the file of the first run went as the oldest");
}

#[test]
fn an_evaluation_that_does_not_fit_leaves_nothing_behind_and_the_next_one_is_tried() {
    let large = stream("rate-keeps-what-the-peak-needed", 1);
    let small = stream("an-invalid-object-is-an-error", 2);
    let bound = lines(&large).len() as u64 - 1;
    assert!(lines(&small).len() as u64 <= bound);
    let folder = Folder::new();
    let mut recording = Recording::open(settings(folder.path(), bound, bound)).unwrap();
    let refused = recording.write(&large[0]).unwrap_err().to_string();
    assert!(refused.contains("--record-max-size"), "{refused}");
    assert_eq!(folder.recordings().len(), 0, "no empty file");
    recording.write(&small[0]).unwrap();
    recording.write(&large[0]).unwrap_err();
    assert_eq!(sequences(&folder), [1], "cut off to the last whole line");
    recording.write(&small[1]).unwrap();
    assert_eq!((sequences(&folder), folder.recordings().len()), (vec![1, 2], 1));
}

#[test]
fn two_instances_in_one_directory_leave_each_others_open_file_and_keep_one_bound() {
    let evaluations = stream(SCENARIO, 40);
    let line = lines(&evaluations[..1]).len() as u64;
    let folder = Folder::new();
    let open = |instance: &str| {
        let settings = settings(folder.path(), line * 12, line * 5 / 2);
        Recording::open(FileSettings { instance: instance.into(), ..settings }).unwrap()
    };
    let (mut first, mut second) = (open("wva-0"), open("wva-1"));
    second.write(&evaluations[0]).unwrap();
    for (index, evaluation) in evaluations[1..].iter().enumerate() {
        first.write(evaluation).unwrap();
        assert!(bytes_in(&folder) <= line * 12, "{} bytes after {index}", bytes_in(&folder));
        assert_eq!(first.total(), bytes_in(&folder));
    }
    assert_eq!(sequences(&folder)[0], 1, "the other one's file is the oldest and still open");
    assert!(first.removed().for_limit > 5 && first.removed().for_full_disk == 0, "{:?}", first.removed());
    drop(first);
    let later = stream(SCENARIO, 60);
    later[40..].iter().for_each(|evaluation| second.write(evaluation).unwrap());
    assert!(bytes_in(&folder) <= line * 12);
    let names: Vec<_> = folder.recordings().iter().map(|path| path.display().to_string()).collect();
    assert!(
        names.iter().all(|name| name.ends_with("-wva-1.jsonl")),
        "who is gone is locked no more: {names:?}"
    );
}

#[test]
fn a_directory_that_goes_and_comes_back_costs_what_was_evaluated_meanwhile() {
    let evaluations = stream(SCENARIO, 3);
    let folder = Folder::new();
    let inside = folder.path().join("r");
    let mut recording = Recording::open(settings(&inside, 1 << 20, 1)).unwrap();
    recording.write(&evaluations[0]).unwrap();
    std::fs::remove_dir_all(&inside).unwrap();
    recording.write(&evaluations[1]).unwrap_err();
    std::fs::create_dir(&inside).unwrap();
    recording.write(&evaluations[2]).unwrap();
    assert_eq!(inside.read_dir().unwrap().count(), 1);
}

#[test]
fn a_file_that_somebody_removes_is_not_written_on() {
    let evaluations = stream(SCENARIO, 3);
    let folder = Folder::new();
    let mut recording = Recording::open(settings(folder.path(), 1 << 20, 1 << 18)).unwrap();
    recording.write(&evaluations[0]).unwrap();
    std::fs::remove_file(&folder.recordings()[0]).unwrap();
    recording.write(&evaluations[1]).unwrap();
    recording.write(&evaluations[2]).unwrap();
    assert_eq!((sequences(&folder), folder.recordings().len()), (vec![2, 3], 1));
}

#[test]
fn a_directory_that_cannot_be_made_is_said_at_the_start() {
    let folder = Folder::new();
    let file = folder.file("taken", b"");
    Recording::open(settings(&file.join("r"), 1 << 20, 1 << 18)).unwrap_err();
}
