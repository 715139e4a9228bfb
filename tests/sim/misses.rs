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
