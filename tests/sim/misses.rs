//! Gates that are known to be missed: a file with the run that misses it (`ci` or `full`), the subject, and what was measured. A
//! miss that is not listed is a failure, and so is a gate that is listed and met.

use std::collections::BTreeSet;
use std::path::Path;

use super::gates::Gate;

/// Separates the fields of a line.
const SEPARATOR: &str = " | ";

/// What differs between the gates of `run` and the file of known misses: lines to add, and lines to remove. A gate of the file
/// that was not checked is no difference: a part may be run alone.
pub(crate) fn surprises(path: &Path, run: &str, gates: &[&Gate]) -> Result<Vec<String>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let known: BTreeSet<&str> = text.lines().filter_map(|line| subject(line, run)).collect();
    let surprise = |gate: &&Gate| {
        let Gate { subject, result, .. } = gate;
        match (gate.holds, known.contains(subject.as_str())) {
            (false, false) => {
                Some(format!("missed, and not listed: {run}{SEPARATOR}{subject}{SEPARATOR}{result}"))
            }
            (true, true) => Some(format!("listed, but met: {run}{SEPARATOR}{subject}{SEPARATOR}{result}")),
            _ => None,
        }
    };
    Ok(gates.iter().filter_map(surprise).collect())
}

/// Replaces what the file says of the gates that were checked in `run`.
pub(crate) fn record(path: &Path, run: &str, gates: &[&Gate]) -> Result<(), String> {
    let unwritable = |error| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(unwritable)?;
    let checked: BTreeSet<&str> = gates.iter().map(|gate| gate.subject.as_str()).collect();
    let kept =
        text.lines().filter(|line| subject(line, run).is_none_or(|subject| !checked.contains(subject)));
    let missed = gates.iter().filter(|gate| !gate.holds);
    let missed =
        missed.map(|Gate { subject, result, .. }| format!("{run}{SEPARATOR}{subject}{SEPARATOR}{result}"));
    let lines: Vec<String> = kept.map(String::from).chain(missed).collect();
    std::fs::write(path, lines.join("\n") + "\n").map_err(unwritable)
}

/// The subject of a line about `run`.
fn subject<'a>(line: &'a str, run: &str) -> Option<&'a str> {
    let mut fields = line.split(SEPARATOR);
    fields.next().filter(|name| *name == run)?;
    fields.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(subject: &str, holds: bool) -> Gate {
        Gate::new(subject.into(), "at most 1", "2".into(), holds)
    }

    #[test]
    fn a_miss_must_be_listed_for_its_run_and_a_listed_gate_must_be_missed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("known-misses");
        std::fs::write(&path, "# comment\nci | cost | 3\nci | tail | 9\nfull | share | 2\n").unwrap();
        let gates = [gate("cost", false), gate("tail", true), gate("share", false), gate("flips", true)];
        let gates: Vec<&Gate> = gates.iter().collect();
        let found = surprises(&path, "ci", &gates).unwrap();
        assert_eq!(found, ["listed, but met: ci | tail | 2", "missed, and not listed: ci | share | 2"]);
        record(&path, "ci", &gates[1..3]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "# comment\nci | cost | 3\nfull | share | 2\nci | share | 2\n");
        assert!(surprises(&path, "ci", &gates).unwrap().is_empty());
    }
}
