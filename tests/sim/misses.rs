//! Gates that are known to be missed: a file with the run that misses it (`ci` or `full`), the subject, by how much, and what was measured. A
//! miss that is not listed is a failure, and so are a gate that is listed and met, and a miss that has become worse.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::gates::Gate;

/// Separates the fields of a line.
const SEPARATOR: &str = " | ";
/// A miss by more than this, as a share of the listed one, is worse: processors round differently.
const MAX_WORSE: f64 = 1.05;

/// What differs between the gates of `run` and the file of known misses: lines to add, and lines to remove. A gate of the file
/// that was not checked is no difference: a part may be run alone.
pub(crate) fn surprises(path: &Path, run: &str, gates: &[&Gate]) -> Result<Vec<String>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let known: BTreeMap<&str, f64> = text.lines().filter_map(|line| miss(line, run)).collect();
    let surprise = |gate: &&Gate| {
        let what = match (gate.holds, known.get(gate.subject.as_str())) {
            (false, None) => "missed, and not listed",
            (false, Some(listed)) if gate.excess > listed * MAX_WORSE => "missed by more than is listed",
            (true, Some(_)) => "listed, but met",
            _ => return None,
        };
        Some(format!("{what}: {}", line(run, gate)))
    };
    Ok(gates.iter().filter_map(surprise).collect())
}

/// Replaces what the file says of the gates that were checked in `run`.
pub(crate) fn record(path: &Path, run: &str, gates: &[&Gate]) -> Result<(), String> {
    let unwritable = |error| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(unwritable)?;
    let checked: BTreeSet<&str> = gates.iter().map(|gate| gate.subject.as_str()).collect();
    let is_kept = |line: &&str| miss(line, run).is_none_or(|(subject, _)| !checked.contains(subject));
    let missed = gates.iter().filter(|gate| !gate.holds).map(|gate| line(run, gate));
    let lines: Vec<String> = text.lines().filter(is_kept).map(String::from).chain(missed).collect();
    std::fs::write(path, lines.join("\n") + "\n").map_err(unwritable)
}

fn line(run: &str, Gate { subject, result, excess, .. }: &Gate) -> String {
    format!("{run}{SEPARATOR}{subject}{SEPARATOR}{excess:.3}{SEPARATOR}{result}")
}

/// The subject of a line about `run`, and by how much it is missed.
fn miss<'a>(line: &'a str, run: &str) -> Option<(&'a str, f64)> {
    let mut fields = line.split(SEPARATOR);
    fields.next().filter(|name| *name == run)?;
    Some((fields.next()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(subject: &str, holds: bool) -> Gate {
        Gate::new(subject.into(), "at most 1", "2".into(), holds).by(2.0)
    }

    #[test]
    fn a_miss_must_be_listed_for_its_run_and_no_worse_and_a_listed_gate_must_be_missed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("known-misses");
        std::fs::write(&path, "# comment\nci | cost | 2.000 | 3\nci | tail | 9.000 | 9\nci | time | 1.500 | 2\nfull | share | 2.000 | 2\n").unwrap();
        let gates = [
            gate("cost", false),
            gate("tail", true),
            gate("share", false),
            gate("time", false),
            gate("flips", true),
        ];
        let gates: Vec<&Gate> = gates.iter().collect();
        let found = surprises(&path, "ci", &gates).unwrap();
        let expected = [
            "listed, but met: ci | tail | 2.000 | 2",
            "missed, and not listed: ci | share | 2.000 | 2",
            "missed by more than is listed: ci | time | 2.000 | 2",
        ];
        assert_eq!(found, expected);
        record(&path, "ci", &gates[1..]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let expected = "# comment\nci | cost | 2.000 | 3\nfull | share | 2.000 | 2\nci | share | 2.000 | 2\nci | time | 2.000 | 2\n";
        assert_eq!(text, expected);
        assert!(surprises(&path, "ci", &gates).unwrap().is_empty());
    }
}
