//! A small sorted map from names in one allocation: most models have one variant, and a node of a `BTreeMap` has room for eleven.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smol_str::SmolStr;

/// Values by name, in the order of the names.
#[derive(Debug, Clone, PartialEq)]
pub struct NameMap<V>(Vec<(SmolStr, V)>);

impl<V> Default for NameMap<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<V> NameMap<V> {
    /// Empty, with capacity for `count`: a vector that grows by itself starts with four, which is much for large values.
    #[must_use]
    pub fn with_capacity(count: usize) -> Self {
        Self(Vec::with_capacity(count))
    }

    fn find(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(key, _)| key.as_str().cmp(name))
    }

    /// The value of `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&V> {
        self.find(name).ok().and_then(|at| self.0.get(at)).map(|(_, value)| value)
    }

    /// The value of `name`, mutable.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut V> {
        let at = self.find(name).ok()?;
        self.0.get_mut(at).map(|(_, value)| value)
    }

    /// Inserts a value, replacing an earlier one.
    pub fn insert(&mut self, name: SmolStr, value: V) {
        match self.find(&name) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => self.insert_at(at, name, value),
        }
    }

    fn insert_at(&mut self, at: usize, name: SmolStr, value: V) {
        // Most maps have one entry; see `with_capacity`.
        self.0.reserve_exact(usize::from(self.0.is_empty()));
        self.0.insert(at, (name, value));
    }

    /// Removes the value of `name`.
    pub fn remove(&mut self, name: &str) -> Option<V> {
        self.find(name).ok().map(|at| self.0.remove(at).1)
    }

    /// The value of `name`, inserted first if there is none.
    pub fn or_default(&mut self, name: &str) -> &mut V
    where
        V: Default,
    {
        let at = self.find(name).unwrap_or_else(|at| {
            self.insert_at(at, name.into(), V::default());
            at
        });
        &mut self.0[at].1
    }

    /// Drops the entries for which `keep` is false.
    pub fn retain(&mut self, mut keep: impl FnMut(&SmolStr, &V) -> bool) {
        self.0.retain(|(name, value)| keep(name, value));
    }

    /// Drops the values for which `keep` is false.
    pub(crate) fn retain_values(&mut self, mut keep: impl FnMut(&V) -> bool) {
        self.0.retain(|(_, value)| keep(value));
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&SmolStr, &V)> {
        self.0.iter().map(|(name, value)| (name, value))
    }

    /// The values.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    /// The values, mutable.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }

    /// Number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// There is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Finds items of a list by their names. Lists that belong together mostly have the same order, so an item is first looked for at its
/// expected index, and then by binary search.
pub(crate) struct NameIndex<'a, T> {
    items: &'a [T],
    name: fn(&T) -> &SmolStr,
    /// Indices in the order of names, computed when an item is not at its expected index.
    sorted: OnceCell<Vec<usize>>,
}

impl<'a, T> NameIndex<'a, T> {
    pub(crate) const fn new(items: &'a [T], name: fn(&T) -> &SmolStr) -> Self {
        Self { items, name, sorted: OnceCell::new() }
    }

    /// The item called `name`, which is expected at `index`; of several, that one or else the first.
    pub(crate) fn find(&self, index: usize, name: &SmolStr) -> Option<&'a T> {
        if let Some(item) = self.items.get(index).filter(|item| (self.name)(item) == name) {
            return Some(item);
        }
        let name_at = |index: usize| (self.name)(&self.items[index]);
        let sorted = self.sorted.get_or_init(|| {
            let mut indices: Vec<usize> = (0..self.items.len()).collect();
            indices.sort_by(|left, right| name_at(*left).cmp(name_at(*right)));
            indices
        });
        let first = sorted.partition_point(|index| name_at(*index) < name);
        sorted.get(first).map(|index| &self.items[*index]).filter(|item| (self.name)(item) == name)
    }
}

impl<V> FromIterator<(SmolStr, V)> for NameMap<V> {
    fn from_iter<I: IntoIterator<Item = (SmolStr, V)>>(entries: I) -> Self {
        entries.into_iter().collect::<BTreeMap<_, _>>().into()
    }
}

impl<V> From<BTreeMap<SmolStr, V>> for NameMap<V> {
    fn from(sorted: BTreeMap<SmolStr, V>) -> Self {
        Self(sorted.into_iter().collect())
    }
}

impl<V, const N: usize> From<[(SmolStr, V); N]> for NameMap<V> {
    fn from(entries: [(SmolStr, V); N]) -> Self {
        entries.into_iter().collect()
    }
}

impl<V> IntoIterator for NameMap<V> {
    type Item = (SmolStr, V);
    type IntoIter = std::vec::IntoIter<(SmolStr, V)>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<V: Serialize> Serialize for NameMap<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for NameMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BTreeMap::<SmolStr, V>::deserialize(deserializer).map(Self::from)
    }
}
