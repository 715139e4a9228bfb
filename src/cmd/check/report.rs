//! What was found.

use std::fmt;

use serde::Serialize;
use wva_core::text::plain;

use crate::lint::{Advice, Severity};

/// Longest sentence, in bytes.
const MAX_TEXT_BYTES: usize = 2048;

/// The findings, and what could not be checked.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) findings: Vec<Advice>,
    /// Essential checks that could not be made.
    unchecked: usize,
}

/// The report as JSON.
#[derive(Serialize)]
pub(super) struct Document<'r> {
    summary: Summary,
    findings: &'r [Advice],
}

/// How many findings there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Summary {
    pub(super) errors: usize,
    pub(super) warnings: usize,
    pub(super) notes: usize,
    /// Essential checks that could not be made; each is a warning too.
    pub(super) unchecked: usize,
}

impl Report {
    /// Adds a finding: what is set, what happens because of it, and what mends it.
    pub(super) fn add(
        &mut self,
        (severity, reason): (Severity, &'static str),
        object: impl fmt::Display,
        set: impl fmt::Display,
        effect: impl fmt::Display,
        fix: impl fmt::Display,
    ) {
        self.findings.push(Advice {
            severity,
            reason,
            object: sentence(object),
            set: sentence(set),
            effect: sentence(effect),
            fix: fix.to_string(),
        });
    }

    /// Adds a check that could not be made. An essential one makes the whole result incomplete.
    pub(super) fn add_unchecked(
        &mut self,
        is_essential: bool,
        object: impl fmt::Display,
        cause: impl fmt::Display,
        fix: impl fmt::Display,
    ) {
        self.unchecked += usize::from(is_essential);
        let severity = if is_essential { Severity::Warning } else { Severity::Note };
        self.add((severity, "NotChecked"), object, cause, "this was not checked", fix);
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.findings.extend(other.findings);
        self.unchecked += other.unchecked;
    }

    /// The worst first, then by object. What was found twice is kept once.
    pub(super) fn sort(&mut self) {
        self.findings.sort();
        self.findings.dedup();
    }

    pub(super) fn summary(&self) -> Summary {
        let count = |severity| self.findings.iter().filter(|finding| finding.severity == severity).count();
        Summary {
            errors: count(Severity::Error),
            warnings: count(Severity::Warning),
            notes: count(Severity::Note),
            unchecked: self.unchecked,
        }
    }

    pub(super) fn document(&self) -> Document<'_> {
        Document { summary: self.summary(), findings: &self.findings }
    }

    /// Whether there is an error, or with `strict` a warning.
    pub(super) fn fails(&self, strict: bool) -> bool {
        let Summary { errors, warnings, .. } = self.summary();
        errors > 0 || strict && warnings > 0
    }

    /// Whether something essential was not checked.
    pub(super) fn is_incomplete(&self) -> bool {
        self.unchecked > 0
    }
}

fn sentence(text: impl fmt::Display) -> String {
    plain(text.to_string().trim_end(), MAX_TEXT_BYTES)
}
