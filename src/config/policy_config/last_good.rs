//! Entries of one ConfigMap, each with the last text of it that was right.

use std::collections::BTreeMap;

use super::super::document::Diagnostics;

/// The name of the entry that all others are laid over.
pub(super) const DEFAULT: &str = "default";

/// The entries of one ConfigMap, by key.
#[derive(Debug, Clone)]
pub(super) struct LastGood<E>(BTreeMap<String, Versions<E>>);

#[derive(Debug, Clone)]
struct Versions<E> {
    /// As it is written now.
    text: String,
    /// What it says, or last said when it was right.
    good: Option<E>,
    /// What is wrong with the text of now.
    diagnostics: Diagnostics,
}

impl<E> Default for LastGood<E> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<E> LastGood<E> {
    /// Replaces the entries by those of now. An unreadable one keeps what it said before, one that is gone is forgotten.
    pub(super) fn update(
        &mut self,
        entries: &BTreeMap<String, String>,
        parse: impl Fn(&str, &str) -> (Option<E>, Diagnostics),
    ) {
        self.0.retain(|key, _| entries.contains_key(key));
        for (key, text) in entries {
            if self.0.get(key).is_some_and(|entry| entry.text == *text) {
                continue;
            }
            let (good, diagnostics) = parse(key, text);
            let good = good.or_else(|| self.0.remove(key).and_then(|entry| entry.good));
            self.0.insert(key.clone(), Versions { text: text.clone(), good, diagnostics });
        }
    }

    /// What an entry says.
    pub(super) fn get(&self, key: &str) -> Option<&E> {
        self.0.get(key)?.good.as_ref()
    }

    /// All entries that say something, by key.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &E)> {
        self.0.iter().filter_map(|(key, entry)| Some((key.as_str(), entry.good.as_ref()?)))
    }

    /// The same without the default.
    pub(super) fn of_models(&self) -> impl Iterator<Item = (&str, &E)> {
        self.iter().filter(|(key, _)| *key != DEFAULT)
    }

    /// True when no entry says anything.
    pub(super) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// What is wrong with the texts of now, with whether an earlier one counts.
    pub(super) fn diagnostics(&self) -> impl Iterator<Item = (&str, &Diagnostics, bool)> {
        self.0.iter().map(|(key, entry)| (key.as_str(), &entry.diagnostics, entry.good.is_some()))
    }
}
