//! Labels as hashes: enough to match a selector, in 8 bytes a label instead of about 80. Pure.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Most labels that are kept of an object, or that a selector may have: pods have about ten.
const MAX_LABELS: usize = 64;

/// The labels of an object, or those that a selector requires. Two labels of one hash could be mistaken for each other only by
/// whoever writes both, in one namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LabelSet(Box<[u64]>);

impl LabelSet {
    /// The labels of an object; of too many, the first ones by name.
    pub(crate) fn of(labels: Option<&BTreeMap<String, String>>) -> Self {
        let hash = |label: (&String, &String)| {
            let mut hasher = DefaultHasher::new();
            label.hash(&mut hasher);
            hasher.finish()
        };
        let mut hashes: Vec<u64> = labels.into_iter().flatten().take(MAX_LABELS).map(hash).collect();
        hashes.sort_unstable();
        Self(hashes.into())
    }

    /// What a selector requires; `None` for one that requires nothing, which selects nothing here, or too much.
    pub(crate) fn of_selector(required: &BTreeMap<String, String>) -> Option<Self> {
        (1..=MAX_LABELS).contains(&required.len()).then(|| Self::of(Some(required)))
    }

    fn has(&self, hash: u64) -> bool {
        self.0.binary_search(&hash).is_ok()
    }
}

/// Selectors, found by the labels of an object without trying each one.
pub(crate) struct SelectorIndex<'a, T> {
    by_label: HashMap<u64, Vec<(&'a LabelSet, T)>>,
}

impl<T> Default for SelectorIndex<'_, T> {
    fn default() -> Self {
        Self { by_label: HashMap::new() }
    }
}

impl<'a, T> SelectorIndex<'a, T> {
    /// Adds a selector.
    pub(crate) fn add(&mut self, selector: &'a LabelSet, value: T) {
        if let Some(first) = selector.0.first() {
            self.by_label.entry(*first).or_default().push((selector, value));
        }
    }

    /// The values of all selectors that select an object with these labels.
    pub(crate) fn selecting<'s>(&'s self, labels: &'s LabelSet) -> impl Iterator<Item = &'s T> {
        let candidates = labels.0.iter().filter_map(|label| self.by_label.get(label)).flatten();
        candidates
            .filter(|(selector, _)| selector.0.iter().all(|hash| labels.has(*hash)))
            .map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_selector_selects_what_has_all_of_its_labels_and_one_that_requires_nothing_selects_nothing() {
        let both = LabelSet::of_selector(&labels(&[("app", "vllm"), ("model", "m")])).unwrap();
        let app = LabelSet::of_selector(&labels(&[("app", "vllm")])).unwrap();
        let mut index = SelectorIndex::default();
        index.add(&both, "both");
        index.add(&app, "app");
        let selecting = |pairs: &[(&str, &str)]| {
            let object = LabelSet::of(Some(&labels(pairs)));
            let mut found: Vec<&str> = index.selecting(&object).copied().collect();
            found.sort_unstable();
            found
        };
        assert_eq!(selecting(&[("app", "vllm"), ("model", "m"), ("x", "y")]), ["app", "both"]);
        assert_eq!(selecting(&[("app", "vllm"), ("model", "n")]), ["app"]);
        assert!(selecting(&[("app", "model"), ("vllm", "m")]).is_empty());
        assert!(selecting(&[]).is_empty());
        assert_eq!(LabelSet::of_selector(&BTreeMap::new()), None);
    }

    #[test]
    fn of_thousands_of_labels_few_are_kept_and_a_selector_of_thousands_selects_nothing() {
        let many: BTreeMap<String, String> = (0..5_000).map(|n| (n.to_string(), n.to_string())).collect();
        assert_eq!(LabelSet::of(Some(&many)).0.len(), MAX_LABELS);
        assert_eq!(LabelSet::of_selector(&many), None);
    }
}
