//! The entries of one ConfigMap, each as its last good text says.

use std::collections::BTreeMap;

use super::super::document::Diagnostics;

/// The key of the entry with the defaults for all others.
pub(super) const DEFAULT: &str = "default";

/// The entries of one ConfigMap, by key.
#[derive(Debug, Clone)]
pub(super) struct LastGood<E>(BTreeMap<String, Versions<E>>);

#[derive(Debug, Clone)]
struct Versions<E> {
    /// The current text.
    text: String,
    /// The entry of the last good text.
    good: Option<E>,
    /// What is wrong with the current text.
    diagnostics: Diagnostics,
}

impl<E> Default for LastGood<E> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<E> LastGood<E> {
    /// Updates the entries to the current texts. An entry whose text is invalid stays as it is; one that was deleted is forgotten.
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

    /// The entry of `key`.
    pub(super) fn get(&self, key: &str) -> Option<&E> {
        self.0.get(key)?.good.as_ref()
    }

    /// All entries with a good text, by key.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &E)> {
        self.0.iter().filter_map(|(key, entry)| Some((key.as_str(), entry.good.as_ref()?)))
    }

    /// The entries except the default.
    pub(super) fn model_entries(&self) -> impl Iterator<Item = (&str, &E)> {
        self.iter().filter(|(key, _)| *key != DEFAULT)
    }

    /// Whether no entry has ever been valid.
    pub(super) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// What is wrong with the current texts, and whether an earlier one is in force.
    pub(super) fn diagnostics(&self) -> impl Iterator<Item = (&str, &Diagnostics, bool)> {
        self.0.iter().map(|(key, entry)| (key.as_str(), &entry.diagnostics, entry.good.is_some()))
    }
}
