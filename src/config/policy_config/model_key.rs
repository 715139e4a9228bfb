//! The model that an entry is about. The fields `model_id` and `namespace` name it, not the key: keys of ConfigMaps cannot contain
//! `/` and `#`, which names of models do.

use wva_core::GroupId;

use super::super::document::Diagnostics;
use super::last_good::DEFAULT;
use super::overlay::Text;

/// The key of an entry, and the namespace of its ConfigMap.
#[derive(Debug, Clone, Copy)]
pub(super) struct ModelKey<'a> {
    pub(super) key: &'a str,
    /// The only namespace that it may be about; `None` for any.
    pub(super) namespace: Option<&'a str>,
}

impl ModelKey<'_> {
    /// The model of the entry; `None` for the default, and for an entry that does not name its model, which is an error.
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
