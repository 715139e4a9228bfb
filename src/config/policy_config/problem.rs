//! Problems with ConfigMaps, for their authors.

use std::collections::BTreeMap;
use std::fmt;

use super::super::document::Diagnostics;
use super::super::ranged::shorten;
use super::last_good::DEFAULT;
use super::variants::Findings;

/// Most problems that are reported at a time. An author can write any number of invalid entries, so that the problems are shared
/// equally among ConfigMaps.
const MAX_PROBLEMS: usize = 100;
/// Characters of the text of one entry.
const MAX_TEXT_CHARS: usize = 600;

/// A problem with an entry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The namespace of the ConfigMap.
    pub namespace: String,
    /// The name of the ConfigMap.
    pub config_map: String,
    /// The key of the entry; empty for the whole ConfigMap.
    pub key: String,
    /// True if the entry is not in force; false for a note about an entry that is.
    pub is_rejected: bool,
    /// The field, its value, what is valid, and what is in force instead.
    pub text: String,
}

impl Problem {
    /// Namespace and name of the ConfigMap.
    fn config_map(&self) -> (&str, &str) {
        (&self.namespace, &self.config_map)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, config_map, key, text, .. } = self;
        write!(f, "ConfigMap {namespace}/{config_map}")?;
        if !key.is_empty() {
            write!(f, ", entry {key}")?;
        }
        write!(f, ": {text}")
    }
}

/// A ConfigMap.
#[derive(Debug, Clone, Copy)]
pub(super) struct Location<'a> {
    pub(super) namespace: &'a str,
    pub(super) config_map: &'a str,
}

/// All problems, each once: at most a hundred of ConfigMaps, shared equally among them, and those of VariantAutoscalings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems {
    problems: Vec<Problem>,
    left_out: usize,
    variants: Findings,
}

impl Problems {
    /// The first problem of each ConfigMap, then the second of each, and so on. Within a ConfigMap, rejected entries come first.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.problems.iter()
    }

    /// The number of further problems.
    #[must_use]
    pub const fn left_out(&self) -> usize {
        self.left_out
    }

    /// Sorts the problems: the first of each ConfigMap, then the second of each, and so on.
    pub(super) fn interleaved(mut self) -> Self {
        self.problems.sort_by_key(|problem| !problem.is_rejected);
        let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        let rank = |problem| {
            let count = counts.entry(Problem::config_map(problem)).or_default();
            *count += 1;
            *count
        };
        let ranks: Vec<usize> = self.problems.iter().map(rank).collect();
        let mut ranked: Vec<(usize, Problem)> = ranks.into_iter().zip(self.problems).collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        let problems = ranked.into_iter().map(|(_, problem)| problem).collect();
        Self { problems, ..self }
    }

    /// What the owners of VariantAutoscalings should know of their settings.
    #[must_use]
    pub fn take_variants(&mut self) -> Findings {
        std::mem::take(&mut self.variants)
    }

    pub(super) fn of_variants(&mut self) -> &mut Findings {
        &mut self.variants
    }

    /// Adds a ConfigMap that cannot be read. `has_none`: it has no entry from before, either.
    pub(super) fn add_unreadable(&mut self, location: Location<'_>, cause: &str, has_none: bool) {
        let instead = if has_none {
            "none of its entries is in force"
        } else {
            "what was last in force stays in force"
        };
        self.add(location, "", true, format!("{cause}; {instead}"));
    }

    /// Adds the diagnostics of entries: key, diagnostics, and whether an earlier text is in force.
    pub(super) fn add_entries<'a>(
        &mut self,
        location: Location<'_>,
        entries: impl Iterator<Item = (&'a str, &'a Diagnostics, bool)>,
    ) {
        for (key, diagnostics, has_good) in entries {
            if !diagnostics.errors.is_empty() {
                let instead = match (has_good, key) {
                    (true, _) => "its last good text stays in force",
                    (false, DEFAULT) => "the program's defaults are in force",
                    (false, _) => "it is left out",
                };
                self.add(
                    location,
                    key,
                    true,
                    format!("{}; {instead}", shorten(&diagnostics.errors.join("; "), MAX_TEXT_CHARS)),
                );
            }
            self.add_notes(location, key, diagnostics);
        }
    }

    /// Adds notes about an entry that is in force.
    pub(super) fn add_notes(&mut self, location: Location<'_>, key: &str, diagnostics: &Diagnostics) {
        if !diagnostics.notes.is_empty() {
            self.add(location, key, false, shorten(&diagnostics.notes.join("; "), MAX_TEXT_CHARS));
        }
    }

    pub(super) fn add_rejected(&mut self, location: Location<'_>, key: &str, text: String) {
        self.add(location, key, true, text);
    }

    fn add(&mut self, location: Location<'_>, key: &str, is_rejected: bool, text: String) {
        let problem = Problem {
            namespace: location.namespace.to_owned(),
            config_map: location.config_map.to_owned(),
            key: key.to_owned(),
            is_rejected,
            text,
        };
        if self.problems.contains(&problem) {
            return;
        }
        if self.problems.len() < MAX_PROBLEMS {
            return self.problems.push(problem);
        }
        self.left_out += 1;
        if let Some(surplus) = self.surplus(&problem) {
            self.problems.remove(surplus);
            self.problems.push(problem);
        }
    }

    /// The problem that `new` replaces: the last one of the ConfigMap that has the most. If that is its own ConfigMap, or has only
    /// one more, only a note is replaced, by a rejected entry.
    fn surplus(&self, new: &Problem) -> Option<usize> {
        let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for problem in &self.problems {
            *counts.entry(problem.config_map()).or_default() += 1;
        }
        let own = counts.get(&new.config_map()).copied().unwrap_or(0);
        let (largest, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        let from = if count > own + 1 { largest } else { new.config_map() };
        let is_replaceable = |(_, old): &(usize, &Problem)| {
            old.config_map() == from && (from != new.config_map() || new.is_rejected && !old.is_rejected)
        };
        let replaceable = self.problems.iter().enumerate().filter(is_replaceable);
        replaceable.max_by_key(|(index, old)| (!old.is_rejected, *index)).map(|(index, _)| index)
    }
}
