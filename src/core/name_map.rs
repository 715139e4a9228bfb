//! A small map from names, in one piece of memory: most models have one variant, and a node of a tree is made for eleven.

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
    /// Empty, with room for `count`: of large values a list that grows by itself makes room for four.
    #[must_use]
    pub fn with_capacity(count: usize) -> Self {
        Self(Vec::with_capacity(count))
    }

    fn place(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(own, _)| own.as_str().cmp(name))
    }

    /// The value of a name that most often is the very same text: then no letter of it is looked at.
    #[must_use]
    pub fn get_shared(&self, name: &SmolStr) -> Option<&V> {
        match self.0.as_slice() {
            [(own, value)] if own == name => Some(value),
            _ => self.get(name),
        }
    }

    /// The value of `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&V> {
        self.place(name).ok().and_then(|at| self.0.get(at)).map(|(_, value)| value)
    }

    /// The value of `name`, to be changed.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut V> {
        let at = self.place(name).ok()?;
        self.0.get_mut(at).map(|(_, value)| value)
    }

    /// Puts a value in; the one before is lost.
    pub fn insert(&mut self, name: SmolStr, value: V) {
        match self.place(&name) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => {
                // Most are alone, and of large values a list that grows by itself makes room for four.
                self.0.reserve_exact(usize::from(self.0.is_empty()));
                self.0.insert(at, (name, value));
            }
        }
    }

    /// Takes the value of `name` out.
    pub fn remove(&mut self, name: &str) -> Option<V> {
        self.place(name).ok().map(|at| self.0.remove(at).1)
    }

    /// The value of `name`, made first when there is none.
    pub fn or_default(&mut self, name: &str) -> &mut V
    where
        V: Default,
    {
        let at = self.place(name).unwrap_or_else(|at| {
            self.0.insert(at, (name.into(), V::default()));
            at
        });
        &mut self.0[at].1
    }

    /// Keeps what `keep` wants.
    pub fn retain(&mut self, mut keep: impl FnMut(&SmolStr, &V) -> bool) {
        self.0.retain(|(name, value)| keep(name, value));
    }

    /// Keeps the values that `keep` wants.
    pub fn retain_values(&mut self, mut keep: impl FnMut(&V) -> bool) {
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

    /// The values, to be changed.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }

    /// How many there are.
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

/// Finds items of a list by their names. Most lists that belong together have one order, so that an item is at the place where
/// it is expected; the others are searched by halving.
pub(crate) struct NameIndex<'a, T> {
    items: &'a [T],
    name: fn(&T) -> &SmolStr,
    /// Places by name, made when an item is elsewhere.
    sorted: OnceCell<Vec<usize>>,
}

impl<'a, T> NameIndex<'a, T> {
    pub(crate) const fn new(items: &'a [T], name: fn(&T) -> &SmolStr) -> Self {
        Self { items, name, sorted: OnceCell::new() }
    }

    /// The item called `name`, which is expected at the place `at`; of several, that one or else the first.
    pub(crate) fn find(&self, at: usize, name: &SmolStr) -> Option<&'a T> {
        if let Some(item) = self.items.get(at).filter(|item| (self.name)(item) == name) {
            return Some(item);
        }
        let of = |place: usize| (self.name)(&self.items[place]);
        let sorted = self.sorted.get_or_init(|| {
            let mut places: Vec<usize> = (0..self.items.len()).collect();
            places.sort_by(|one, next| of(*one).cmp(of(*next)));
            places
        });
        let first = sorted.partition_point(|place| of(*place) < name);
        sorted.get(first).map(|place| &self.items[*place]).filter(|item| (self.name)(item) == name)
    }
}

impl<V> FromIterator<(SmolStr, V)> for NameMap<V> {
    fn from_iter<I: IntoIterator<Item = (SmolStr, V)>>(all: I) -> Self {
        all.into_iter().collect::<BTreeMap<_, _>>().into()
    }
}

impl<V> From<BTreeMap<SmolStr, V>> for NameMap<V> {
    fn from(sorted: BTreeMap<SmolStr, V>) -> Self {
        Self(sorted.into_iter().collect())
    }
}

impl<V, const N: usize> From<[(SmolStr, V); N]> for NameMap<V> {
    fn from(all: [(SmolStr, V); N]) -> Self {
        all.into_iter().collect()
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
