//! What is wrong with a ConfigMap, for its author.

use std::collections::BTreeMap;
use std::fmt;

use super::fields::Said;
use super::last_good::DEFAULT;
use super::node::short;

/// Problems told at a time: whoever may write one ConfigMap may write very many wrong entries, and has no more of these
/// than the author of any other.
const MOST: usize = 100;
/// What is told of one entry, in letters.
const TOLD: usize = 600;

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
    pub refused: bool,
    /// What, with field, value and what is allowed; and what counts instead.
    pub text: String,
}

impl Problem {
    /// Namespace and name of its ConfigMap.
    fn place(&self) -> (&str, &str) {
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
pub(super) struct At<'a> {
    pub(super) namespace: &'a str,
    pub(super) config_map: &'a str,
}

/// All that is wrong, each thing once; at most a hundred, evenly of each ConfigMap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems {
    told: Vec<Problem>,
    left_out: usize,
}

impl Problems {
    /// The first of each ConfigMap, then the second of each, and so on; of one ConfigMap what is refused comes first.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.told.iter()
    }

    /// How many more there are.
    #[must_use]
    pub const fn left_out(&self) -> usize {
        self.left_out
    }

    /// Puts them into the order in which they are told.
    pub(super) fn in_turn(mut self) -> Self {
        self.told.sort_by_key(|problem| !problem.refused);
        let mut seen: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        let turn = |problem| {
            let place = seen.entry(Problem::place(problem)).or_default();
            *place += 1;
            *place
        };
        let turns: Vec<usize> = self.told.iter().map(turn).collect();
        let mut told: Vec<(usize, Problem)> = turns.into_iter().zip(self.told).collect();
        told.sort_by_key(|(turn, _)| *turn);
        let told = told.into_iter().map(|(_, problem)| problem).collect();
        Self { told, left_out: self.left_out }
    }

    /// The whole ConfigMap cannot be read.
    pub(super) fn whole_map(&mut self, at: At<'_>, why: &str) {
        self.add(at, "", true, format!("{why}; what it last said stays in force"));
    }

    /// What is wrong with the texts of a ConfigMap.
    pub(super) fn texts<'a>(&mut self, at: At<'_>, texts: impl Iterator<Item = (&'a str, &'a Said, bool)>) {
        for (key, said, has_good) in texts {
            if !said.refused.is_empty() {
                let instead = match (has_good, key) {
                    (true, _) => "its last good text stays in force",
                    (false, DEFAULT) => "the program's defaults are in force",
                    (false, _) => "it is left out",
                };
                self.add(at, key, true, format!("{}; {instead}", short(&said.refused.join("; "), TOLD)));
            }
            self.notes(at, key, said);
        }
    }

    /// What the author of an entry that counts should know.
    pub(super) fn notes(&mut self, at: At<'_>, key: &str, said: &Said) {
        if !said.notes.is_empty() {
            self.add(at, key, false, short(&said.notes.join("; "), TOLD));
        }
    }

    pub(super) fn refuse(&mut self, at: At<'_>, key: &str, text: String) {
        self.add(at, key, true, text);
    }

    fn add(&mut self, at: At<'_>, key: &str, refused: bool, text: String) {
        let At { namespace, config_map } = at;
        let (namespace, config_map) = (namespace.to_owned(), config_map.to_owned());
        let problem = Problem { namespace, config_map, key: key.to_owned(), refused, text };
        if self.told.contains(&problem) {
            return;
        }
        if self.told.len() < MOST {
            return self.told.push(problem);
        }
        self.left_out += 1;
        if let Some(surplus) = self.surplus(&problem) {
            self.told.remove(surplus);
            self.told.push(problem);
        }
    }

    /// Which one makes room for `new`: the last of the ConfigMap that has the most; where none has more than its own, a note
    /// of its own for something refused.
    fn surplus(&self, new: &Problem) -> Option<usize> {
        let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for problem in &self.told {
            *counts.entry(problem.place()).or_default() += 1;
        }
        let own = counts.get(&new.place()).copied().unwrap_or(0);
        let (largest, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        let from = if count > own + 1 { largest } else { new.place() };
        let may_go = |(_, old): &(usize, &Problem)| {
            old.place() == from && (from != new.place() || new.refused && !old.refused)
        };
        let last = self.told.iter().enumerate().filter(may_go).max_by_key(|(at, old)| (!old.refused, *at));
        last.map(|(at, _)| at)
    }
}
