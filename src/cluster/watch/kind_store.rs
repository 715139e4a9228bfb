//! The watched objects of one kind, as the events of a watch leave them. Pure.

use std::collections::BTreeMap;

use kube::runtime::watcher::Event;

use crate::cluster::objects::ObjectKey;

/// An event of a watch, with the key and what is kept of the object; `None` for an object that is not kept.
pub(crate) type StoreEvent<V> = Event<(ObjectKey, Option<V>)>;

/// The watched objects of one kind.
#[derive(Debug)]
pub(crate) struct ObjectStore<V> {
    live: BTreeMap<ObjectKey, V>,
    staged: BTreeMap<ObjectKey, V>,
    listed: bool,
}

impl<V> Default for ObjectStore<V> {
    fn default() -> Self {
        Self { live: BTreeMap::new(), staged: BTreeMap::new(), listed: false }
    }
}

impl<V: PartialEq> ObjectStore<V> {
    /// Applies an event; true when something visible changed.
    pub(crate) fn apply(&mut self, event: StoreEvent<V>) -> bool {
        match event {
            Event::Init => {
                self.staged.clear();
                false
            }
            Event::InitApply((key, value)) => {
                self.staged.extend(value.map(|value| (key, value)));
                false
            }
            Event::InitDone => {
                // Rebuilt: nodes of a tree that was filled in the order of its keys are half empty.
                let new = std::mem::take(&mut self.staged).into_iter().collect();
                let changed = !self.listed || new != self.live;
                self.live = new;
                self.listed = true;
                changed
            }
            Event::Apply((key, Some(value))) => {
                let changed = self.live.get(&key) != Some(&value);
                self.live.insert(key, value);
                changed
            }
            Event::Apply((key, None)) | Event::Delete((key, _)) => self.live.remove(&key).is_some(),
        }
    }

    /// True when the watch has listed once.
    pub(crate) fn has_listed(&self) -> bool {
        self.listed
    }

    /// Every object.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &V)> {
        self.live.iter()
    }

    /// The objects of a namespace.
    pub(crate) fn of_namespace<'s>(
        &'s self,
        namespace: &'s str,
    ) -> impl Iterator<Item = (&'s ObjectKey, &'s V)> {
        let from = self.live.range(ObjectKey::new(namespace, "")..);
        from.take_while(move |(key, _)| &*key.namespace == namespace)
    }

    /// The object of this name.
    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<&V> {
        self.live.get(&ObjectKey::new(namespace, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("llm", name)
    }

    fn applied(name: &str, value: u32) -> StoreEvent<u32> {
        Event::Apply((key(name), Some(value)))
    }

    #[test]
    fn a_new_list_replaces_the_old_one_and_an_interrupted_one_does_not() {
        let mut table = ObjectStore::default();
        table.apply(applied("old", 1));
        table.apply(Event::Init);
        table.apply(Event::InitApply((key("lost"), Some(2))));
        assert_eq!(table.get("llm", "old"), Some(&1), "still listing");
        table.apply(Event::Init);
        table.apply(Event::InitApply((key("new"), Some(3))));
        assert!(table.apply(Event::InitDone));
        assert_eq!(table.live.keys().collect::<Vec<_>>(), [&key("new")]);
    }

    #[test]
    fn an_update_that_changes_nothing_is_no_change() {
        let mut table = ObjectStore::default();
        assert!(table.apply(applied("a", 1)));
        assert!(!table.apply(applied("a", 1)));
        assert!(table.apply(Event::Apply((key("a"), None))));
        assert!(!table.apply(Event::Delete((key("a"), None))));
    }
}
