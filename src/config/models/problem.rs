//! What is wrong with a ConfigMap, for its author.

use std::fmt;

use super::fields::Said;
use super::keep::DEFAULT;
use super::node::short;

/// Problems told at a time: whoever may write one ConfigMap may write very many wrong entries.
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

/// All that is wrong, each thing once; the first hundred of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// In the order of their ConfigMaps.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
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
        if self.0.len() < MOST && !self.0.contains(&problem) {
            self.0.push(problem);
        }
    }
}
