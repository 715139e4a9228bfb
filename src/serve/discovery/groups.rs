//! The groups, versions and resources that are served, as the legacy documents and as the aggregated one.
//!
//! Only `get` is advertised: with `watch` and `delete`, the garbage collector would watch and the namespace controller delete.

use serde::Serialize;
use serde_json::{Value, json};

use crate::serve::encoding::Object;
use crate::serve::encoding::protobuf::{append_fields, discovery as message};
use crate::serve::external_metrics::Metric;
use crate::serve::paths::{CUSTOM_GROUP, CUSTOM_VERSIONS, EXTERNAL_GROUP, EXTERNAL_VERSION};

/// The objects that custom metrics describe: a variant, and the usual kind of its scale target.
pub(super) const DESCRIBED_OBJECTS: [&str; 2] = ["variantautoscalings.llmd.ai", "deployments.apps"];

/// An API group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Api {
    pub(super) group: &'static str,
    /// The preferred one first.
    pub(super) versions: &'static [&'static str],
    pub(super) preferred: &'static str,
    /// The kind of the list that every read returns.
    pub(super) list_kind: &'static str,
}

/// `external.metrics.k8s.io`
pub(super) const EXTERNAL: Api = Api {
    group: EXTERNAL_GROUP,
    versions: &[EXTERNAL_VERSION],
    preferred: EXTERNAL_VERSION,
    list_kind: "ExternalMetricValueList",
};

/// `custom.metrics.k8s.io`
pub(super) const CUSTOM: Api = Api {
    group: CUSTOM_GROUP,
    versions: &CUSTOM_VERSIONS,
    preferred: CUSTOM_VERSIONS[0],
    list_kind: "MetricValueList",
};

/// The names of the metrics, in the order of discovery.
pub(super) fn metric_names() -> impl Iterator<Item = &'static str> {
    Metric::NAMES.iter().map(|(name, _)| *name)
}

/// An object with its type.
#[derive(Debug, Clone, Serialize)]
struct Typed<T> {
    kind: &'static str,
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    #[serde(flatten)]
    content: T,
}

impl<T> Typed<T> {
    const fn new(kind: &'static str, content: T) -> Self {
        Self { kind, api_version: "v1", content }
    }
}

#[derive(Debug, Clone, Serialize)]
struct GroupList {
    groups: Vec<Group>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    name: &'static str,
    versions: Vec<GroupVersion>,
    preferred_version: GroupVersion,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct GroupVersion {
    group_version: String,
    version: &'static str,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceList {
    group_version: String,
    resources: Vec<Resource>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Resource {
    name: String,
    singular_name: &'static str,
    namespaced: bool,
    kind: &'static str,
    verbs: [&'static str; 1],
}

impl Group {
    fn new(api: Api) -> Self {
        let version = |version| GroupVersion { group_version: format!("{}/{version}", api.group), version };
        let versions = api.versions.iter().copied().map(version).collect();
        Self { name: api.group, versions, preferred_version: version(api.preferred) }
    }

    fn message(&self) -> message::APIGroup {
        let version = |version: &GroupVersion| message::GroupVersion {
            group_version: version.group_version.clone(),
            version: version.version.to_owned(),
        };
        message::APIGroup {
            name: self.name.to_owned(),
            versions: self.versions.iter().map(version).collect(),
            preferred_version: Some(version(&self.preferred_version)),
        }
    }
}

/// `APIGroupList`
pub(super) fn list() -> impl Object {
    Typed::new("APIGroupList", GroupList { groups: vec![Group::new(EXTERNAL), Group::new(CUSTOM)] })
}

/// `APIGroup`
pub(super) fn group(api: Api) -> impl Object {
    Typed::new("APIGroup", Group::new(api))
}

/// `APIResourceList` of one version.
pub(super) fn resources(api: Api, version: &str) -> impl Object {
    let resource =
        |name| Resource { name, singular_name: "", namespaced: true, kind: api.list_kind, verbs: ["get"] };
    let names: Vec<String> = if api.group == CUSTOM_GROUP {
        DESCRIBED_OBJECTS
            .iter()
            .flat_map(|object| metric_names().map(move |metric| format!("{object}/{metric}")))
            .collect()
    } else {
        metric_names().map(str::to_owned).collect()
    };
    let resources = names.into_iter().map(resource).collect();
    let group_version = format!("{}/{version}", api.group);
    Typed::new("APIResourceList", ResourceList { group_version, resources })
}

impl Object for Typed<GroupList> {
    fn type_meta(&self) -> (&'static str, &'static str) {
        (self.api_version, self.kind)
    }

    fn protobuf(&self, to: &mut Vec<u8>) {
        let groups = self.content.groups.iter().map(Group::message).collect();
        append_fields(&message::APIGroupList { groups }, to);
    }
}

impl Object for Typed<Group> {
    fn type_meta(&self) -> (&'static str, &'static str) {
        (self.api_version, self.kind)
    }

    fn protobuf(&self, to: &mut Vec<u8>) {
        append_fields(&self.content.message(), to);
    }
}

impl Object for Typed<ResourceList> {
    fn type_meta(&self) -> (&'static str, &'static str) {
        (self.api_version, self.kind)
    }

    fn protobuf(&self, to: &mut Vec<u8>) {
        let resource = |resource: &Resource| message::APIResource {
            name: resource.name.clone(),
            namespaced: resource.namespaced,
            kind: resource.kind.to_owned(),
            verbs: Some(message::Verbs { items: resource.verbs.map(str::to_owned).to_vec() }),
            singular_name: resource.singular_name.to_owned(),
        };
        let ResourceList { group_version, resources } = &self.content;
        let resources = resources.iter().map(resource).collect();
        append_fields(&message::APIResourceList { group_version: group_version.clone(), resources }, to);
    }
}

/// `APIGroupDiscoveryList`: all groups, versions and resources in one document.
pub(super) fn aggregated(api_version: &str) -> Value {
    let item = |api: Api| {
        let versions: Vec<_> = api.versions.iter().map(|version| aggregated_version(api, version)).collect();
        json!({"metadata": {"name": api.group}, "versions": versions})
    };
    let items = [EXTERNAL, CUSTOM].map(item);
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": api_version, "metadata": {}, "items": items})
}

/// In `custom.metrics.k8s.io` a metric is a subresource of the object that it describes. The parent has a kind, without which
/// old clients fail, and no verbs, since it cannot be read itself.
fn aggregated_version(api: Api, version: &str) -> Value {
    let kind = json!({"group": api.group, "version": version, "kind": api.list_kind});
    let resource = |name: &str, verbs: &[&str]| {
        json!({
            "resource": name, "responseKind": kind, "scope": "Namespaced", "singularResource": "", "verbs": verbs
        })
    };
    let resources: Vec<_> = if api.group == CUSTOM_GROUP {
        let metric = |name| json!({"subresource": name, "responseKind": kind, "verbs": ["get"]});
        let subresources: Vec<_> = metric_names().map(metric).collect();
        let parent = |object: &str| {
            let mut parent = resource(object, &[]);
            parent["subresources"] = subresources.clone().into();
            parent
        };
        DESCRIBED_OBJECTS.map(parent).into()
    } else {
        metric_names().map(|name| resource(name, &["get"])).collect()
    };
    json!({"version": version, "freshness": "Current", "resources": resources})
}
