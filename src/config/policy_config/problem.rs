//! What is wrong with a ConfigMap, for its author.

use std::collections::BTreeMap;
use std::fmt;

use super::super::document::Diagnostics;
use super::super::ranged::shorten;
use super::last_good::DEFAULT;

/// Problems that are reported at a time: whoever may write one ConfigMap may write very many wrong entries, and has no more of
/// these than the author of any other.
const MAX_PROBLEMS: usize = 100;
/// Characters of one entry's report.
const MAX_TEXT_CHARS: usize = 600;

/// Something that is wrong with an entry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Namespace of the ConfigMap.
    pub namespace: String,
    /// Its name.
    pub config_map: String,
    /// The entry; empty for the whole ConfigMap.
    pub key: String,
    /// True when the entry does not count as it is; false for what its author should know.
    pub is_rejected: bool,
    /// What, with field, value and what is allowed; and what counts instead.
    pub text: String,
}

impl Problem {
    /// Namespace and name of its ConfigMap.
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

/// Where an entry is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) namespace: &'a str,
    pub(super) config_map: &'a str,
}

/// All that is wrong, each thing once; at most a hundred, evenly of each ConfigMap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems {
    problems: Vec<Problem>,
    left_out: usize,
}

impl Problems {
    /// The first of each ConfigMap, then the second of each, and so on; of one ConfigMap what is rejected comes first.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.problems.iter()
    }

    /// How many more there are.
    #[must_use]
    pub const fn left_out(&self) -> usize {
        self.left_out
    }

    /// Orders them by turn: the first of each ConfigMap, then the second of each.
    pub(super) fn in_turn(mut self) -> Self {
        self.problems.sort_by_key(|problem| !problem.is_rejected);
        let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        let turn = |problem| {
            let count = counts.entry(Problem::config_map(problem)).or_default();
            *count += 1;
            *count
        };
        let turns: Vec<usize> = self.problems.iter().map(turn).collect();
        let mut by_turn: Vec<(usize, Problem)> = turns.into_iter().zip(self.problems).collect();
        by_turn.sort_by_key(|(turn, _)| *turn);
        let problems = by_turn.into_iter().map(|(_, problem)| problem).collect();
        Self { problems, left_out: self.left_out }
    }

    /// The whole ConfigMap cannot be read.
    pub(super) fn whole_map(&mut self, place: Place<'_>, why: &str) {
        self.add(place, "", true, format!("{why}; what it last said stays in force"));
    }

    /// What is wrong with the texts of a ConfigMap.
    pub(super) fn texts<'a>(
        &mut self,
        place: Place<'_>,
        texts: impl Iterator<Item = (&'a str, &'a Diagnostics, bool)>,
    ) {
        for (key, diagnostics, has_good) in texts {
            if !diagnostics.errors.is_empty() {
                let instead = match (has_good, key) {
                    (true, _) => "its last good text stays in force",
                    (false, DEFAULT) => "the program's defaults are in force",
                    (false, _) => "it is left out",
                };
                self.add(
                    place,
                    key,
                    true,
                    format!("{}; {instead}", shorten(&diagnostics.errors.join("; "), MAX_TEXT_CHARS)),
                );
            }
            self.notes(place, key, diagnostics);
        }
    }

    /// What the author of an entry that counts should know.
    pub(super) fn notes(&mut self, place: Place<'_>, key: &str, diagnostics: &Diagnostics) {
        if !diagnostics.notes.is_empty() {
            self.add(place, key, false, shorten(&diagnostics.notes.join("; "), MAX_TEXT_CHARS));
        }
    }

    pub(super) fn reject(&mut self, place: Place<'_>, key: &str, text: String) {
        self.add(place, key, true, text);
    }

    fn add(&mut self, place: Place<'_>, key: &str, is_rejected: bool, text: String) {
        let problem = Problem {
            namespace: place.namespace.to_owned(),
            config_map: place.config_map.to_owned(),
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

    /// Which one makes room for `new`: the last of the ConfigMap that has the most; where none has more than its own, a note
    /// of its own for something rejected.
    fn surplus(&self, new: &Problem) -> Option<usize> {
        let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for problem in &self.problems {
            *counts.entry(problem.config_map()).or_default() += 1;
        }
        let own = counts.get(&new.config_map()).copied().unwrap_or(0);
        let (largest, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        let from = if count > own + 1 { largest } else { new.config_map() };
        let may_go = |(_, old): &(usize, &Problem)| {
            old.config_map() == from && (from != new.config_map() || new.is_rejected && !old.is_rejected)
        };
        let last =
            self.problems.iter().enumerate().filter(may_go).max_by_key(|(at, old)| (!old.is_rejected, *at));
        last.map(|(at, _)| at)
    }
}
