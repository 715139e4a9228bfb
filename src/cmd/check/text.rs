//! The result as text for people: by object, the worst first.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::report::{Report, Summary};
use crate::cmd::terminal::wrapped;
use crate::lint::{Advice, Severity};

/// Columns of a line.
const WIDTH: usize = 116;
/// Objects that are shown. A cluster may have thousands.
const MAX_OBJECTS: usize = 100;

/// Renders a sorted report. Writing to a String does not fail.
pub(super) fn render(report: &Report) -> String {
    let mut by_object: BTreeMap<&str, Vec<&Advice>> = BTreeMap::new();
    for finding in &report.findings {
        by_object.entry(&finding.object).or_default().push(finding);
    }
    let mut objects: Vec<_> = by_object.into_iter().collect();
    let worst = |findings: &[&Advice]| findings.iter().map(|finding| finding.severity).min();
    objects.sort_by_key(|(object, findings)| (worst(findings), *object));
    let mut text = String::new();
    for (object, findings) in objects.iter().take(MAX_OBJECTS) {
        let _ = writeln!(text, "{object}");
        for finding in findings {
            finding_lines(&mut text, finding);
        }
        text.push('\n');
    }
    if objects.len() > MAX_OBJECTS {
        let _ = writeln!(
            text,
            "… and {} more objects; --output json has all of them\n",
            objects.len() - MAX_OBJECTS
        );
    }
    text.push_str(&summary(report.summary()));
    text
}

fn finding_lines(text: &mut String, finding: &Advice) {
    let Advice { severity, reason, set, effect, fix, .. } = finding;
    sentence(text, &format!("  {severity:<7} "), &format!("{set} ({reason})"));
    sentence(text, "          → ", effect);
    // Never wrapped, so that it can be copied.
    for (index, line) in fix.lines().enumerate() {
        let head = if index == 0 { "    fix:  " } else { "          " };
        let _ = writeln!(text, "{head}{line}");
    }
}

fn sentence(text: &mut String, head: &str, sentence: &str) {
    let indent = head.chars().count();
    for (index, line) in wrapped(sentence, WIDTH - indent).iter().enumerate() {
        let _ =
            if index == 0 { writeln!(text, "{head}{line}") } else { writeln!(text, "{:indent$}{line}", "") };
    }
}

fn summary(summary: Summary) -> String {
    let Summary { errors, warnings, notes, unchecked } = summary;
    let count =
        |number: usize, thing: Severity| format!("{number} {thing}{}", if number == 1 { "" } else { "s" });
    let mut text =
        [count(errors, Severity::Error), count(warnings, Severity::Warning), count(notes, Severity::Note)]
            .join(", ");
    if unchecked > 0 {
        let _ = write!(text, "; {unchecked} essential checks could not be made (NotChecked)");
    }
    text.push('\n');
    text
}
