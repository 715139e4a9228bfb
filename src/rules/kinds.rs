//! The kinds of objects that the API server has, as rules and paths name them. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use smol_str::{SmolStr, format_smolstr};

/// Groups whose resources are metrics and no objects: a label may have the name of a metric.
const METRIC_GROUPS: [&str; 3] = ["custom.metrics.k8s.io", "external.metrics.k8s.io", "metrics.k8s.io"];

/// A kind of objects.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectKind {
    /// Empty for those of the core.
    pub group: SmolStr,
    /// The preferred one.
    pub version: SmolStr,
    /// Such as `Pod`.
    pub kind: SmolStr,
    /// Such as `pods`.
    pub plural: SmolStr,
    /// Such as `pod`.
    pub singular: SmolStr,
    /// Whether its objects are in namespaces.
    pub is_namespaced: bool,
}

impl ObjectKind {
    /// The plural, with a dot and the group if it has one: `pods`, `deployments.apps`.
    #[must_use]
    pub fn resource(&self) -> SmolStr {
        if self.group.is_empty() {
            self.plural.clone()
        } else {
            format_smolstr!("{}.{}", self.plural, self.group)
        }
    }

    /// Such as `v1` or `apps/v1`.
    #[must_use]
    pub fn api_version(&self) -> SmolStr {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format_smolstr!("{}/{}", self.group, self.version)
        }
    }
}

/// All kinds.
#[derive(Debug, Default)]
pub(super) struct KindTable {
    /// By their names in the singular and in the plural, of each name in the order of the API server.
    by_name: HashMap<SmolStr, Vec<Arc<ObjectKind>>>,
}

impl KindTable {
    /// From `kinds` in the order of preference: of several versions of a resource, the first counts.
    pub(super) fn new(kinds: Vec<ObjectKind>) -> Self {
        let mut by_name: HashMap<SmolStr, Vec<Arc<ObjectKind>>> = HashMap::new();
        for kind in kinds {
            if METRIC_GROUPS.contains(&kind.group.as_str()) {
                continue;
            }
            let of_plural = by_name.entry(kind.plural.clone()).or_default();
            if of_plural.iter().any(|known| known.group == kind.group && known.plural == kind.plural) {
                continue;
            }
            let kind = Arc::new(kind);
            of_plural.push(Arc::clone(&kind));
            if kind.singular != kind.plural {
                by_name.entry(kind.singular.clone()).or_default().push(kind);
            }
        }
        Self { by_name }
    }

    /// The kind of that name, in the singular or in the plural. Without a group it is the first of that name, and else that of this group
    /// or of the first one that begins so.
    pub(super) fn find(&self, group: &str, name: &str) -> Option<&Arc<ObjectKind>> {
        let of_name = match self.by_name.get(name) {
            Some(kinds) => kinds,
            None => self.by_name.get(name.to_lowercase().as_str())?,
        };
        let exact = of_name.iter().find(|kind| group.is_empty() || kind.group == group);
        exact.or_else(|| of_name.iter().find(|kind| kind.group.starts_with(group)))
    }

    /// The kind that the resource of a path names: with a dot and its group, or without one.
    pub(super) fn find_resource(&self, resource: &str) -> Option<&Arc<ObjectKind>> {
        let (name, group) = resource.split_once('.').unwrap_or((resource, ""));
        self.find(group, name)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::rules) fn kind(group: &str, kind: &str, plural: &str, is_namespaced: bool) -> ObjectKind {
        ObjectKind {
            group: group.into(),
            version: "v1".into(),
            kind: kind.into(),
            plural: plural.into(),
            singular: kind.to_lowercase().into(),
            is_namespaced,
        }
    }

    /// Those of a small cluster.
    pub(in crate::rules) fn table() -> KindTable {
        KindTable::new(vec![
            kind("", "Pod", "pods", true),
            kind("", "Namespace", "namespaces", false),
            kind("", "Node", "nodes", false),
            kind("", "Service", "services", true),
            kind("", "PersistentVolume", "persistentvolumes", false),
            kind("apps", "Deployment", "deployments", true),
            kind("networking.k8s.io", "Ingress", "ingresses", true),
            kind("kafka.example.com", "Topic", "topics", true),
            kind("other.example.com", "Topic", "topics", true),
            kind("external.metrics.k8s.io", "ExternalMetricValueList", "queue", true),
        ])
    }

    #[test]
    fn a_kind_is_found_as_the_adapter_finds_it() {
        let table = table();
        for (group, name, expected) in [
            ("", "pod", Some("pods")),
            ("", "Pods", Some("pods")),
            ("", "deployment", Some("deployments.apps")),
            ("apps", "deployments", Some("deployments.apps")),
            ("extensions", "deployment", None),
            ("", "topic", Some("topics.kafka.example.com")),
            ("other", "topic", Some("topics.other.example.com")),
            ("networking", "ingress", Some("ingresses.networking.k8s.io")),
            ("", "instance", None),
            // The name of an external metric.
            ("", "queue", None),
        ] {
            let found = table.find(group, name).map(|kind| kind.resource());
            assert_eq!(found.as_deref(), expected, "{group} {name}");
        }
        assert_eq!(table.find_resource("deployments.apps").unwrap().api_version(), "apps/v1");
        assert_eq!(table.find_resource("pods").unwrap().api_version(), "v1");
    }
}
