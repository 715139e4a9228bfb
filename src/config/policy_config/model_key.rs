//! Which model an entry is about: its fields `model_id` and `namespace` say so. Its key is any that a ConfigMap may have; a
//! model's own name can be none, since keys have no `/` and no `#`.

use wva_core::GroupId;

use super::super::document::Diagnostics;
use super::last_good::DEFAULT;
use super::overlay::Text;

/// Where an entry is.
#[derive(Debug, Clone, Copy)]
pub(super) struct ModelKey<'a> {
    /// Its key.
    pub(super) key: &'a str,
    /// The namespace it is in, when it may be about no other.
    pub(super) namespace: Option<&'a str>,
}

impl ModelKey<'_> {
    /// The model of the entry; `None` for the default. It is an error when the entry does not name its model.
    pub(super) fn group(
        self,
        model_id: &Option<Text>,
        namespace: &Option<Text>,
        diagnostics: &mut Diagnostics,
    ) -> Option<GroupId> {
        let model = Text::non_empty(model_id);
        let namespace = Text::non_empty(namespace).map(|namespace| namespace.as_str());
        if self.key == DEFAULT {
            if model.is_some() || namespace.is_some() {
                diagnostics.note(
                    "model_id and namespace have no effect here: the entry default is about every model",
                );
            }
            return None;
        }
        match (model, namespace.or(self.namespace)) {
            (None, _) => diagnostics.error(
                "model_id is missing: must be the modelID of the model's variants, whatever the key is",
            ),
            (_, None) => diagnostics.error("namespace is missing: must be that of the model's variants"),
            (Some(model), Some(namespace)) => match self.namespace.filter(|own| *own != namespace) {
                None => return Some(GroupId::new(namespace, model.clone())),
                Some(own) => diagnostics.error(format!(
                    "namespace {namespace:?} is not that of the ConfigMap: must be {own:?}, or left out"
                )),
            },
        }
        None
    }
}
