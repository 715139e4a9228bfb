//! Which model an entry is about: its fields `model_id` and `namespace` say so. Its key is any that a ConfigMap may have; a
//! model's own name can be none, since these have no `/` and no `#`.

use wva_core::GroupId;

use super::fields::Fields;
use super::last_good::DEFAULT;

/// Where an entry is.
#[derive(Debug, Clone, Copy)]
pub(super) struct ModelKey<'a> {
    /// Its key.
    pub(super) key: &'a str,
    /// The namespace it is in, when it may be about no other.
    pub(super) namespace: Option<&'a str>,
}

impl ModelKey<'_> {
    /// The model of the entry; `None` for the default. An entry of a model that cannot be told is refused.
    pub(super) fn group(self, fields: &mut Fields<'_>) -> Option<GroupId> {
        let (model, namespace) = (fields.text("model_id"), fields.text("namespace"));
        if self.key == DEFAULT {
            if model.is_some() || namespace.is_some() {
                fields.note(
                    "model_id",
                    "and namespace have no effect here: the entry default is about every model",
                );
            }
            return None;
        }
        let namespace = namespace.or(self.namespace);
        match (model.filter(|model| !model.is_empty()), namespace.filter(|namespace| !namespace.is_empty())) {
            (None, _) => fields.refuse_all(
                "model_id is missing: must be the modelID of the model's variants, whatever the key is",
            ),
            (_, None) => fields.refuse_all("namespace is missing: must be that of the model's variants"),
            (_, Some(named)) if self.namespace.is_some_and(|own| own != named) => {
                let own = self.namespace.unwrap_or_default();
                fields.refuse_all(&format!(
                    "namespace {named:?} is another's: must be {own:?}, that of the ConfigMap"
                ));
            }
            (Some(model), Some(namespace)) => return Some(GroupId::new(namespace, model)),
        }
        None
    }
}
