//! The ScaledObjects that KEDA's calls make variants, as their reads leave them. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use smol_str::SmolStr;
use wva_core::VariantId;

use crate::cluster::objects::{ObjectKey, VariantObject};

/// Why nothing is known of a ScaledObject before its first read.
const UNREAD: SmolStr = SmolStr::new_static("it has not been read yet; wait a few seconds");

/// The ScaledObjects that are noted.
#[derive(Debug, Default)]
pub(crate) struct CalledStore {
    /// `None` before it is known which ones there are.
    objects: Option<BTreeMap<ObjectKey, Called>>,
}

/// What the reads of a ScaledObject have shown.
#[derive(Debug, Clone, PartialEq)]
enum Called {
    /// It makes a variant.
    Variant(Arc<VariantObject>),
    /// Why it makes none.
    Problem { cause: SmolStr, is_read: bool },
}

/// The answer to a read: what the object makes, or why it makes no variant.
pub(super) type CalledAnswer = Result<Arc<VariantObject>, NoVariant>;

/// Why a ScaledObject makes no variant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NoVariant {
    pub(super) cause: SmolStr,
    /// The API server has not said so: what was read before stays known.
    pub(super) is_unanswered: bool,
}

impl CalledStore {
    /// These are noted from now on, and no others; true when something visible changed.
    pub(super) fn follow(&mut self, wanted: &BTreeSet<ObjectKey>) -> bool {
        let is_first = self.objects.is_none();
        let objects = self.objects.get_or_insert_default();
        let before = objects.len();
        objects.retain(|key, _| wanted.contains(key));
        let mut is_changed = is_first || objects.len() != before;
        for key in wanted {
            objects.entry(key.clone()).or_insert_with(|| {
                is_changed = true;
                Called::Problem { cause: UNREAD, is_read: false }
            });
        }
        is_changed
    }

    /// Takes in an answer; true when something visible changed.
    pub(super) fn apply(&mut self, key: &ObjectKey, answer: CalledAnswer) -> bool {
        let Some(called) = self.objects.as_mut().and_then(|objects| objects.get_mut(key)) else {
            return false;
        };
        let after = match (answer, &*called) {
            (Ok(object), _) => Called::Variant(object),
            (Err(NoVariant { is_unanswered: true, .. }), Called::Variant(_)) => return false,
            (Err(NoVariant { cause, is_unanswered }), before) => {
                let was_read = matches!(before, Called::Problem { is_read: true, .. });
                Called::Problem { cause, is_read: was_read || !is_unanswered }
            }
        };
        let is_new = *called != after;
        *called = after;
        is_new
    }

    /// True once it is known which ScaledObjects there are, and the API server has answered about each.
    pub(super) fn is_known(&self) -> bool {
        let is_read = |called: &Called| !matches!(called, Called::Problem { is_read: false, .. });
        self.objects.as_ref().is_some_and(|objects| objects.values().all(is_read))
    }

    /// Those that make variants.
    pub(super) fn variants(&self) -> impl Iterator<Item = (&ObjectKey, &Arc<VariantObject>)> {
        self.objects.iter().flatten().filter_map(|(key, called)| match called {
            Called::Variant(object) => Some((key, object)),
            Called::Problem { .. } => None,
        })
    }

    /// Each with why it makes no variant, if it makes none.
    pub(super) fn verdicts(&self) -> BTreeMap<VariantId, Result<(), SmolStr>> {
        let verdict = |(key, called): (&ObjectKey, &Called)| {
            let verdict = match called {
                Called::Variant(_) => Ok(()),
                Called::Problem { cause, .. } => Err(cause.clone()),
            };
            (VariantId::new(&*key.namespace, &*key.name), verdict)
        };
        self.objects.iter().flatten().map(verdict).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::watch::claims::tests::object;

    fn keys(names: &[&str]) -> BTreeSet<ObjectKey> {
        names.iter().map(|name| ObjectKey::new("llm", name)).collect()
    }

    fn names(called: &CalledStore) -> Vec<&str> {
        called.variants().map(|(key, _)| &*key.name).collect()
    }

    fn no_variant(is_unanswered: bool) -> CalledAnswer {
        Err(NoVariant { cause: "gone".into(), is_unanswered })
    }

    #[test]
    fn objects_are_known_once_each_was_read() {
        let mut called = CalledStore::default();
        assert!(!called.is_known(), "nobody has said yet which ones there are");
        assert!(called.follow(&keys(&["a", "b"])) && !called.is_known());
        assert!(!called.follow(&keys(&["a", "b"])));
        let read =
            |called: &mut CalledStore, name, answer| called.apply(&ObjectKey::new("llm", name), answer);
        let chat = Arc::new(object("llm", "a", "chat"));
        assert!(read(&mut called, "a", Ok(chat.clone())) && !called.is_known());
        assert!(!read(&mut called, "a", Ok(chat.clone())));
        assert!(
            read(&mut called, "b", no_variant(true)) && !called.is_known(),
            "a read that failed says nothing"
        );
        assert!(read(&mut called, "b", no_variant(false)) && called.is_known());
        assert_eq!((names(&called), called.verdicts().len()), (vec!["a"], 2));
        assert!(!read(&mut called, "c", Ok(chat)), "nobody calls for it");
        assert!(called.follow(&keys(&["b"])) && names(&called).is_empty());
    }

    #[test]
    fn a_variant_that_cannot_be_read_for_a_while_stays_one_and_a_deleted_one_does_not() {
        let mut called = CalledStore::default();
        called.follow(&keys(&["a"]));
        let key = ObjectKey::new("llm", "a");
        called.apply(&key, Ok(Arc::new(object("llm", "a", "chat"))));
        assert!(!called.apply(&key, no_variant(true)) && names(&called) == ["a"]);
        assert!(called.apply(&key, no_variant(false)) && names(&called).is_empty());
    }
}
