//! The groups, versions and resources that are served, as the legacy documents and as the aggregated one.
//!
//! Only `get` is advertised: with more, the garbage collector watches and the namespace controller deletes.

use serde::Serialize;
use serde_json::{Value, json};

use crate::serve::external_metrics::metric::{GROUP, Metric, VERSION};
use crate::serve::represent::Show;
use crate::serve::represent::protobuf::{discovery as wire, fields};

/// The group that gives the same numbers to HPAs of type Object.
pub(crate) const CUSTOM_GROUP: &str = "custom.metrics.k8s.io";

/// Its versions, the preferred one first.
pub(crate) const CUSTOM_VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];

/// The objects that its numbers describe: a variant, and the usual kind of its scale target.
pub(super) const DESCRIBED: [&str; 2] = ["variantautoscalings.llmd.ai", "deployments.apps"];

/// One group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Api {
    pub(super) group: &'static str,
    /// The preferred one first.
    pub(super) versions: &'static [&'static str],
    pub(super) preferred: &'static str,
    /// The kind of every answer.
    pub(super) list: &'static str,
}

/// `external.metrics.k8s.io`
pub(super) const EXTERNAL: Api =
    Api { group: GROUP, versions: &[VERSION], preferred: VERSION, list: "ExternalMetricValueList" };

/// `custom.metrics.k8s.io`
pub(super) const CUSTOM: Api = Api {
    group: CUSTOM_GROUP,
    versions: &CUSTOM_VERSIONS,
    preferred: CUSTOM_VERSIONS[0],
    list: "MetricValueList",
};

/// The metrics' names, in the order of discovery.
pub(super) fn metrics() -> impl Iterator<Item = &'static str> {
    Metric::NAMES.iter().map(|(name, _)| *name)
}

/// An object that says what it is.
#[derive(Debug, Clone, Serialize)]
struct Kinded<T> {
    kind: &'static str,
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    #[serde(flatten)]
    content: T,
}

impl<T> Kinded<T> {
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
    fn of(api: Api) -> Self {
        let version = |version| GroupVersion { group_version: format!("{}/{version}", api.group), version };
        let versions = api.versions.iter().copied().map(version).collect();
        Self { name: api.group, versions, preferred_version: version(api.preferred) }
    }

    fn message(&self) -> wire::APIGroup {
        let version = |own: &GroupVersion| wire::GroupVersion {
            group_version: own.group_version.clone(),
            version: own.version.to_owned(),
        };
        wire::APIGroup {
            name: self.name.to_owned(),
            versions: self.versions.iter().map(version).collect(),
            preferred_version: Some(version(&self.preferred_version)),
        }
    }
}

/// `APIGroupList`
pub(super) fn list() -> impl Show {
    Kinded::new("APIGroupList", GroupList { groups: vec![Group::of(EXTERNAL), Group::of(CUSTOM)] })
}

/// `APIGroup`
pub(super) fn one(api: Api) -> impl Show {
    Kinded::new("APIGroup", Group::of(api))
}

/// `APIResourceList` of one version.
pub(super) fn resources(api: Api, version: &str) -> impl Show {
    let resource =
        |name| Resource { name, singular_name: "", namespaced: true, kind: api.list, verbs: ["get"] };
    let names: Vec<String> = if api.group == CUSTOM_GROUP {
        DESCRIBED
            .iter()
            .flat_map(|object| metrics().map(move |metric| format!("{object}/{metric}")))
            .collect()
    } else {
        metrics().map(str::to_owned).collect()
    };
    let resources = names.into_iter().map(resource).collect();
    let group_version = format!("{}/{version}", api.group);
    Kinded::new("APIResourceList", ResourceList { group_version, resources })
}

impl Show for Kinded<GroupList> {
    fn type_meta(&self) -> (&'static str, &'static str) {
        (self.api_version, self.kind)
    }

    fn protobuf(&self, to: &mut Vec<u8>) {
        let groups = self.content.groups.iter().map(Group::message).collect();
        fields(&wire::APIGroupList { groups }, to);
    }
}

impl Show for Kinded<Group> {
    fn type_meta(&self) -> (&'static str, &'static str) {
        (self.api_version, self.kind)
    }

    fn protobuf(&self, to: &mut Vec<u8>) {
        fields(&self.content.message(), to);
    }
}

impl Show for Kinded<ResourceList> {
    fn type_meta(&self) -> (&'static str, &'static str) {
        (self.api_version, self.kind)
    }

    fn protobuf(&self, to: &mut Vec<u8>) {
        let resource = |own: &Resource| wire::APIResource {
            name: own.name.clone(),
            namespaced: own.namespaced,
            kind: own.kind.to_owned(),
            verbs: Some(wire::Verbs { items: own.verbs.map(str::to_owned).to_vec() }),
            singular_name: own.singular_name.to_owned(),
        };
        let ResourceList { group_version, resources } = &self.content;
        let resources = resources.iter().map(resource).collect();
        fields(&wire::APIResourceList { group_version: group_version.clone(), resources }, to);
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

/// In `custom.metrics.k8s.io` a metric is a subresource of what it describes. That parent has a kind, without which old
/// clients fail, and no verb: nothing can be done with it alone.
fn aggregated_version(api: Api, version: &str) -> Value {
    let kind = json!({"group": api.group, "version": version, "kind": api.list});
    let resource = |name: &str, verbs: &[&str]| {
        json!({
            "resource": name, "responseKind": kind, "scope": "Namespaced", "singularResource": "", "verbs": verbs
        })
    };
    let resources: Vec<_> = if api.group == CUSTOM_GROUP {
        let metric = |name| json!({"subresource": name, "responseKind": kind, "verbs": ["get"]});
        let subresources: Vec<_> = metrics().map(metric).collect();
        let parent = |object: &str| {
            let mut parent = resource(object, &[]);
            parent["subresources"] = subresources.clone().into();
            parent
        };
        DESCRIBED.map(parent).into()
    } else {
        metrics().map(|name| resource(name, &["get"])).collect()
    };
    json!({"version": version, "freshness": "Current", "resources": resources})
}
