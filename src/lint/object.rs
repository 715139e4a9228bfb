//! An object as findings name it.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use smol_str::SmolStr;
use wva_core::VariantId;

/// An object by its kind, namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    /// Its kind.
    pub kind: SmolStr,
    /// Its namespace; empty for an object of the cluster.
    pub namespace: SmolStr,
    /// Its name.
    pub name: SmolStr,
}

impl ObjectRef {
    /// The object of this kind and metadata.
    #[must_use]
    pub fn of(kind: &str, metadata: &ObjectMeta) -> Self {
        let text = |field: &Option<String>| SmolStr::from(field.as_deref().unwrap_or_default());
        Self { kind: kind.into(), namespace: text(&metadata.namespace), name: text(&metadata.name) }
    }

    /// The object of this kind and name.
    #[must_use]
    pub fn named(kind: &str, id: &VariantId) -> Self {
        Self { kind: kind.into(), namespace: id.namespace.clone(), name: id.name.clone() }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, namespace, name } = self;
        if namespace.is_empty() { write!(f, "{kind} {name}") } else { write!(f, "{kind} {namespace}/{name}") }
    }
}
