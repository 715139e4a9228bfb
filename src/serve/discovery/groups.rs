//! The groups, versions and resources that are served, as the legacy documents and as the aggregated one.
//!
//! Only `get` is advertised, and `list` for explanations: with `watch` and `delete`, the garbage collector would watch and the
//! namespace controller delete.

use prost::Message;
use serde::Serialize;
use serde_json::{Value, json};
use smol_str::SmolStr;

use crate::serve::encoding::{Object, TypedMessage};
use crate::serve::external_metrics::Metric;
use crate::serve::paths::{
    CUSTOM_GROUP, CUSTOM_VERSIONS, DESCRIBED_RESOURCES, EXPLANATIONS, EXPLANATIONS_GROUP,
    EXPLANATIONS_VERSION, EXTERNAL_GROUP, EXTERNAL_VERSION,
};

/// An API group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Api {
    pub(super) group: &'static str,
    /// The preferred one first.
    pub(super) versions: &'static [&'static str],
    /// The kind of the list that every read returns; of explanations, every read without a name.
    pub(super) list_kind: &'static str,
}

/// `external.metrics.k8s.io`
pub(super) const EXTERNAL: Api =
    Api { group: EXTERNAL_GROUP, versions: &[EXTERNAL_VERSION], list_kind: "ExternalMetricValueList" };

/// `custom.metrics.k8s.io`
pub(super) const CUSTOM: Api =
    Api { group: CUSTOM_GROUP, versions: &CUSTOM_VERSIONS, list_kind: "MetricValueList" };

/// `decisions.wva.llmd.ai`
pub(super) const DECISIONS: Api =
    Api { group: EXPLANATIONS_GROUP, versions: &[EXPLANATIONS_VERSION], list_kind: "ExplanationList" };

/// The groups of metrics.
pub(super) const METRICS_APIS: [Api; 2] = [EXTERNAL, CUSTOM];

/// All groups.
pub(super) const APIS: [Api; 3] = [EXTERNAL, CUSTOM, DECISIONS];

/// The kind of an explanation, and the name of its resource in the singular.
pub(super) const EXPLANATION_KIND: &str = "Explanation";
const EXPLANATION: &str = "explanation";

/// What may be done with explanations.
const EXPLANATION_VERBS: [&str; 2] = ["get", "list"];

#[derive(Clone, PartialEq, Message, Serialize)]
struct APIGroupList {
    #[prost(message, repeated, tag = "1")]
    groups: Vec<APIGroup>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct APIGroup {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    versions: Vec<GroupVersion>,
    #[prost(message, optional, tag = "3")]
    preferred_version: Option<GroupVersion>,
}

/// `GroupVersionForDiscovery`
#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct GroupVersion {
    #[prost(string, tag = "1")]
    group_version: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct APIResourceList {
    #[prost(string, tag = "1")]
    group_version: String,
    #[prost(message, repeated, tag = "2")]
    resources: Vec<APIResource>,
}

/// The fields are in the order of Kubernetes' JSON.
#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct APIResource {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "6")]
    singular_name: String,
    #[prost(bool, tag = "2")]
    namespaced: bool,
    #[prost(string, tag = "3")]
    kind: String,
    #[prost(message, optional, tag = "4")]
    verbs: Option<Verbs>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(transparent)]
struct Verbs {
    #[prost(string, repeated, tag = "1")]
    items: Vec<String>,
}

/// The names of the metrics of variants, in the order of discovery.
pub(super) fn metric_names() -> impl Iterator<Item = &'static str> {
    Metric::NAMES.iter().map(|(name, _)| *name)
}

fn group_message(api: Api) -> APIGroup {
    let version = |version: &str| GroupVersion {
        group_version: format!("{}/{version}", api.group),
        version: version.to_owned(),
    };
    APIGroup {
        name: api.group.to_owned(),
        versions: api.versions.iter().copied().map(version).collect(),
        preferred_version: Some(version(api.versions[0])),
    }
}

/// `APIGroupList`
pub(super) fn list() -> impl Object {
    let groups = APIS.map(group_message).into();
    TypedMessage::new("v1", "APIGroupList", APIGroupList { groups })
}

/// `APIGroup`
pub(super) fn group(api: Api) -> impl Object {
    TypedMessage::new("v1", "APIGroup", group_message(api))
}

/// `APIResourceList` of one version. Rules add external metrics of the names `by_rules`.
pub(super) fn resources(api: Api, version: &str, by_rules: &[SmolStr]) -> impl Object + use<> {
    let resource = |name| APIResource {
        name,
        singular_name: String::new(),
        namespaced: true,
        kind: api.list_kind.to_owned(),
        verbs: Some(Verbs { items: vec!["get".to_owned()] }),
    };
    let names: Vec<String> = if api.group == CUSTOM_GROUP {
        let objects = DESCRIBED_RESOURCES.iter();
        objects.flat_map(|object| metric_names().map(move |metric| format!("{object}/{metric}"))).collect()
    } else {
        external_names(by_rules).map(str::to_owned).collect()
    };
    let mut resources: Vec<_> = names.into_iter().map(resource).collect();
    if api.group == EXPLANATIONS_GROUP {
        resources = vec![APIResource {
            singular_name: EXPLANATION.to_owned(),
            kind: EXPLANATION_KIND.to_owned(),
            verbs: Some(Verbs { items: EXPLANATION_VERBS.map(str::to_owned).into() }),
            ..resource(EXPLANATIONS.to_owned())
        }];
    }
    let group_version = format!("{}/{version}", api.group);
    TypedMessage::new("v1", "APIResourceList", APIResourceList { group_version, resources })
}

/// The names of external metrics: those of variants, and those that rules add.
fn external_names<'a>(by_rules: &'a [SmolStr]) -> impl Iterator<Item = &'a str> {
    // A read of a metric of variants is never one of a rule.
    let added = by_rules.iter().map(SmolStr::as_str).filter(|name| Metric::find(name).is_none());
    metric_names().map(|name| -> &'a str { name }).chain(added)
}

/// `APIGroupDiscoveryList`: all groups, versions and resources in one document.
pub(super) fn aggregated(api_version: &str, by_rules: &[SmolStr]) -> Value {
    let item = |api: Api| {
        let versions = api.versions.iter().map(|version| aggregated_version(api, version, by_rules));
        let versions: Vec<_> = versions.collect();
        json!({"metadata": {"name": api.group}, "versions": versions})
    };
    let items = APIS.map(item);
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": api_version, "metadata": {}, "items": items})
}

/// In `custom.metrics.k8s.io` a metric is a subresource of the object that it describes. The parent has a kind, without which
/// old clients fail, and no verbs, since it cannot be read itself.
fn aggregated_version(api: Api, version: &str, by_rules: &[SmolStr]) -> Value {
    let kind = json!({"group": api.group, "version": version, "kind": api.list_kind});
    if api.group == EXPLANATIONS_GROUP {
        let kind = json!({"group": api.group, "version": version, "kind": EXPLANATION_KIND});
        let resource = json!({
            "resource": EXPLANATIONS, "responseKind": kind, "scope": "Namespaced", "singularResource": EXPLANATION,
            "verbs": EXPLANATION_VERBS
        });
        return json!({"version": version, "freshness": "Current", "resources": [resource]});
    }
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
        DESCRIBED_RESOURCES.map(parent).into()
    } else {
        external_names(by_rules).map(|name| resource(name, &["get"])).collect()
    };
    json!({"version": version, "freshness": "Current", "resources": resources})
}
