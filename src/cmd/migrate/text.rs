//! The result as text for people.

use std::fmt::Write as _;

use crate::cmd::terminal::wrapped;
use crate::migrate::{Finding, Readiness, Report, Step};

/// Columns of a line.
const WIDTH: usize = 116;
/// Lines of a section that are shown. A cluster may have thousands of objects.
const MAX_SHOWN: usize = 40;

/// Renders a report.
pub(super) fn render(report: &Report) -> String {
    let mut text = String::new();
    sentences(&mut text, "Found", &report.found);
    sentences(&mut text, "Stays as it is", &report.same);
    findings(&mut text, "Changes", &report.changes);
    findings(&mut text, "Is lost", &report.lost);
    sentences(&mut text, "Could not be read", &report.unread);
    steps(&mut text, "Commands, in this order", &report.commands);
    steps(&mut text, "How to go back (keep this: after the switch it can no longer be read)", &report.back);
    text.push_str(&verdict(report));
    text
}

fn verdict(report: &Report) -> String {
    match report.readiness() {
        Readiness::Ready => "Ready: run the commands, and keep this output for the way back.\n".into(),
        Readiness::NeedsAction(1) => {
            "Not ready: 1 finding has a next step. Take it before the commands.\n".into()
        }
        Readiness::NeedsAction(count) => {
            format!("Not ready: {count} findings have a next step. Take these before the commands.\n")
        }
        Readiness::Incomplete => {
            "Not known: something could not be read, so there may be more to do.\n".into()
        }
    }
}

fn sentences(text: &mut String, title: &str, sentences: &[String]) {
    section(text, title, sentences, |text, sentence| item(text, sentence));
}

/// Findings with a next step first.
fn findings(text: &mut String, title: &str, findings: &[Finding]) {
    let (actions, changes): (Vec<_>, Vec<_>) =
        findings.iter().partition(|finding| finding.next_step.is_some());
    let findings: Vec<_> = actions.into_iter().chain(changes).collect();
    section(text, title, &findings, |text, Finding { object, cause, next_step }| {
        item(text, &format!("{object}: {cause}"));
        if let Some(next_step) = next_step {
            for (index, line) in wrapped(next_step, WIDTH - 10).iter().enumerate() {
                let head = if index == 0 { "→ next:" } else { "       " };
                // Writing to a String does not fail.
                let _ = writeln!(text, "    {head} {line}");
            }
        }
    });
}

fn section<T>(text: &mut String, title: &str, items: &[T], show: impl Fn(&mut String, &T)) {
    if items.is_empty() {
        return;
    }
    let _ = writeln!(text, "{title}");
    for item in items.iter().take(MAX_SHOWN) {
        show(text, item);
    }
    if items.len() > MAX_SHOWN {
        let _ = writeln!(text, "  … and {} more; -o json has all of them", items.len() - MAX_SHOWN);
    }
    text.push('\n');
}

fn item(text: &mut String, sentence: &str) {
    for (index, line) in wrapped(sentence, WIDTH - 4).iter().enumerate() {
        let head = if index == 0 { "-" } else { " " };
        let _ = writeln!(text, "  {head} {line}");
    }
}

/// Commands are never wrapped or cut, so that they can be copied; those of several lines begin each line in the first column.
fn steps(text: &mut String, title: &str, steps: &[Step]) {
    if steps.is_empty() {
        return;
    }
    let _ = writeln!(text, "{title}");
    for (index, Step { title, commands }) in steps.iter().enumerate() {
        for (line_index, line) in wrapped(title, WIDTH - 5).iter().enumerate() {
            let head = if line_index == 0 { format!("{}.", index + 1) } else { String::new() };
            let _ = writeln!(text, "  {head:<2} {line}");
        }
        text.push('\n');
        for command in commands {
            let _ = writeln!(text, "{command}");
        }
        if !commands.is_empty() {
            text.push('\n');
        }
    }
}
