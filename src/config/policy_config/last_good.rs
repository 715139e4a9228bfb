//! Entries of one ConfigMap, each with the last text of it that was right.

use std::collections::BTreeMap;

use super::fields::{Fields, Said};
use super::node::{self, Node};

/// The name of the entry that all others are laid over.
pub(super) const DEFAULT: &str = "default";

/// The entries of one ConfigMap, by key.
#[derive(Debug, Clone)]
pub(super) struct LastGood<E>(BTreeMap<String, One<E>>);

#[derive(Debug, Clone)]
struct One<E> {
    /// As it is written now.
    text: String,
    /// What it says, or last said when it was right.
    good: Option<E>,
    /// What is wrong with the text of now.
    said: Said,
}

impl<E> Default for LastGood<E> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<E> LastGood<E> {
    /// The entries as they are now. An unreadable one keeps what it said before, one that is gone is forgotten.
    pub(super) fn take(
        &mut self,
        entries: &BTreeMap<String, String>,
        parse: impl Fn(&str, &str) -> (Option<E>, Said),
    ) {
        self.0.retain(|key, _| entries.contains_key(key));
        for (key, text) in entries {
            if self.0.get(key).is_some_and(|one| one.text == *text) {
                continue;
            }
            let (good, said) = parse(key, text);
            let good = good.or_else(|| self.0.remove(key).and_then(|one| one.good));
            self.0.insert(key.clone(), One { text: text.clone(), good, said });
        }
    }

    /// What an entry says.
    pub(super) fn get(&self, key: &str) -> Option<&E> {
        self.0.get(key)?.good.as_ref()
    }

    /// All entries that say something, by key.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &E)> {
        self.0.iter().filter_map(|(key, one)| Some((key.as_str(), one.good.as_ref()?)))
    }

    /// The same without the default.
    pub(super) fn others(&self) -> impl Iterator<Item = (&str, &E)> {
        self.all().filter(|(key, _)| *key != DEFAULT)
    }

    /// True when no entry says anything.
    pub(super) fn is_empty(&self) -> bool {
        self.all().next().is_none()
    }

    /// What is wrong with the texts of now, with whether an earlier one counts.
    pub(super) fn said(&self) -> impl Iterator<Item = (&str, &Said, bool)> {
        self.0.iter().map(|(key, one)| (key.as_str(), &one.said, one.good.is_some()))
    }
}

/// What one text says; `None` when it is refused.
pub(super) fn parse<E>(text: &str, read: impl FnOnce(&mut Fields<'_>) -> Option<E>) -> (Option<E>, Said) {
    let mut said = Said::default();
    let node = if text.trim().is_empty() { Ok(Node::Null) } else { node::read(text) };
    let entry = match node {
        Ok(node) => Fields::read(&node, &mut said, read).flatten(),
        Err(problem) => {
            said.refuse(format!("the entry is no YAML document: {problem}"));
            None
        }
    };
    if said.refused.is_empty() {
        return (entry, said);
    }
    // First things first.
    said.notes.clear();
    (None, said)
}
