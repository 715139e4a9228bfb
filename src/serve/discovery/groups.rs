//! The groups, versions and resources that are served, as the legacy documents and as the aggregated one.
//!
//! Only `get` is advertised, and `list` for explanations: with `watch` and `delete`, the garbage collector would watch and the
//! namespace controller delete.

use std::sync::Arc;

use prost::Message;
use serde::Serialize;
use serde_json::{Value, json};
use smol_str::SmolStr;

use crate::serve::encoding::{Object, TypedMessage};
use crate::serve::external_metrics::Metric;
use crate::serve::paths::{
    CUSTOM_GROUP, CUSTOM_VERSIONS, DESCRIBED_RESOURCES, EXPLANATIONS, EXPLANATIONS_GROUP,
    EXPLANATIONS_VERSION, EXTERNAL_GROUP, EXTERNAL_VERSION, USAGE_GROUP, USAGE_VERSION,
};
use crate::serve::ports::ResourceMetrics;

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

/// `metrics.k8s.io`, where it is served.
pub(super) const USAGE: Api =
    Api { group: USAGE_GROUP, versions: &[USAGE_VERSION], list_kind: "PodMetricsList" };

/// The resources of [`USAGE`], their kinds, and whether they are in namespaces.
const USAGE_RESOURCES: [(&str, &str, bool); 2] =
    [("nodes", "NodeMetrics", false), ("pods", "PodMetrics", true)];

/// The groups of metrics.
pub(super) const METRICS_APIS: [Api; 2] = [EXTERNAL, CUSTOM];

/// All groups.
pub(super) const APIS: [Api; 3] = [EXTERNAL, CUSTOM, DECISIONS];

/// The kind of an explanation, and the name of its resource in the singular.
pub(super) const EXPLANATION_KIND: &str = "Explanation";
const EXPLANATION: &str = "explanation";

/// What may be done with explanations, and with processor time and memory.
const GET_AND_LIST: [&str; 2] = ["get", "list"];

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
pub(super) fn list(apis: &[Api]) -> impl Object + use<> {
    let groups = apis.iter().copied().map(group_message).collect();
    TypedMessage::new("v1", "APIGroupList", APIGroupList { groups })
}

/// `APIGroup`
pub(super) fn group(api: Api) -> impl Object {
    TypedMessage::new("v1", "APIGroup", group_message(api))
}

/// Metrics beside those of variants. Of one name, those of variants win, then those of rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AddedMetrics {
    /// External ones of rules, sorted.
    pub(super) external: Arc<[SmolStr]>,
    /// External ones of the fallback server, sorted.
    pub(super) fallback: Arc<[SmolStr]>,
    /// Those of objects, of rules.
    pub(super) objects: Arc<[ResourceMetrics]>,
}

impl AddedMetrics {
    /// The names of external metrics: those of variants, those of rules, and those of the fallback server.
    fn external_names(&self) -> Vec<&str> {
        let is_of_rule = |name: &&str| self.external.binary_search_by(|own| own.as_str().cmp(name)).is_ok();
        let rest = without_own(&self.fallback).filter(|name| !is_of_rule(name));
        names(&self.external).into_iter().chain(rest).collect()
    }

    /// The resources with metrics of objects, whether they are in namespaces, and the names of their metrics.
    fn objects(&self) -> Vec<(&str, bool, Vec<&str>)> {
        let added = |object: &str| self.objects.iter().find(|own| own.resource == object);
        let described = DESCRIBED_RESOURCES
            .into_iter()
            .map(|object| (object, true, names(added(object).map_or(&[], |own| own.metrics.as_slice()))));
        let others = self.objects.iter().filter(|own| !DESCRIBED_RESOURCES.contains(&own.resource.as_str()));
        let others = others.map(|own| {
            let metrics = without_own(&own.metrics).collect();
            (own.resource.as_str(), own.is_namespaced, metrics)
        });
        described.chain(others).collect()
    }
}

/// The names of the metrics of variants, and of those that are added.
fn names<'a>(added: &'a [SmolStr]) -> Vec<&'a str> {
    metric_names().map(|name| -> &'a str { name }).chain(without_own(added)).collect()
}

/// A read of a metric of variants is about these only.
fn without_own(added: &[SmolStr]) -> impl Iterator<Item = &str> {
    added.iter().map(SmolStr::as_str).filter(|name| Metric::find(name).is_none())
}

/// `APIResourceList` of one version, with what is added to it.
pub(super) fn resources(api: Api, version: &str, added: &AddedMetrics) -> impl Object + use<> {
    let resource = |name: String, namespaced| APIResource {
        name,
        singular_name: String::new(),
        namespaced,
        kind: api.list_kind.to_owned(),
        verbs: Some(Verbs { items: vec!["get".to_owned()] }),
    };
    let resources: Vec<_> = match api.group {
        EXPLANATIONS_GROUP => vec![APIResource {
            singular_name: EXPLANATION.to_owned(),
            kind: EXPLANATION_KIND.to_owned(),
            verbs: Some(Verbs { items: GET_AND_LIST.map(str::to_owned).into() }),
            ..resource(EXPLANATIONS.to_owned(), true)
        }],
        USAGE_GROUP => USAGE_RESOURCES
            .into_iter()
            .map(|(name, kind, namespaced)| APIResource {
                kind: kind.to_owned(),
                verbs: Some(Verbs { items: GET_AND_LIST.map(str::to_owned).into() }),
                ..resource(name.to_owned(), namespaced)
            })
            .collect(),
        CUSTOM_GROUP => {
            let of_object = |(object, namespaced, metrics): (&str, bool, Vec<&str>)| {
                let named = |metric| resource(format!("{object}/{metric}"), namespaced);
                metrics.into_iter().map(named).collect::<Vec<_>>()
            };
            added.objects().into_iter().flat_map(of_object).collect()
        }
        _ => added.external_names().into_iter().map(|name| resource(name.to_owned(), true)).collect(),
    };
    let group_version = format!("{}/{version}", api.group);
    TypedMessage::new("v1", "APIResourceList", APIResourceList { group_version, resources })
}

/// `APIGroupDiscoveryList`: all groups, versions and resources in one document.
pub(super) fn aggregated(api_version: &str, apis: &[Api], added: &AddedMetrics) -> Value {
    let item = |api: Api| {
        let versions = api.versions.iter().map(|version| aggregated_version(api, version, added));
        let versions: Vec<_> = versions.collect();
        json!({"metadata": {"name": api.group}, "versions": versions})
    };
    let items: Vec<_> = apis.iter().copied().map(item).collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": api_version, "metadata": {}, "items": items})
}

/// In `custom.metrics.k8s.io` a metric is a subresource of the object that it describes. The parent has a kind, without which
/// old clients fail, and no verbs, since it cannot be read itself.
fn aggregated_version(api: Api, version: &str, added: &AddedMetrics) -> Value {
    let kind = json!({"group": api.group, "version": version, "kind": api.list_kind});
    if api.group == EXPLANATIONS_GROUP {
        let kind = json!({"group": api.group, "version": version, "kind": EXPLANATION_KIND});
        let resource = json!({
            "resource": EXPLANATIONS, "responseKind": kind, "scope": "Namespaced", "singularResource": EXPLANATION,
            "verbs": GET_AND_LIST
        });
        return json!({"version": version, "freshness": "Current", "resources": [resource]});
    }
    if api.group == USAGE_GROUP {
        let resources = USAGE_RESOURCES.map(|(name, kind, is_namespaced)| {
            let scope = if is_namespaced { "Namespaced" } else { "Cluster" };
            let kind = json!({"group": api.group, "version": version, "kind": kind});
            json!({
                "resource": name, "responseKind": kind, "scope": scope, "singularResource": "",
                "verbs": GET_AND_LIST
            })
        });
        return json!({"version": version, "freshness": "Current", "resources": resources});
    }
    let resource = |name: &str, is_namespaced: bool, verbs: &[&str]| {
        let scope = if is_namespaced { "Namespaced" } else { "Cluster" };
        json!({"resource": name, "responseKind": kind, "scope": scope, "singularResource": "", "verbs": verbs})
    };
    let resources: Vec<_> = if api.group == CUSTOM_GROUP {
        let metric = |name: &str| json!({"subresource": name, "responseKind": kind, "verbs": ["get"]});
        let parent = |(object, is_namespaced, metrics): (&str, bool, Vec<&str>)| {
            let mut parent = resource(object, is_namespaced, &[]);
            parent["subresources"] = metrics.into_iter().map(metric).collect();
            parent
        };
        added.objects().into_iter().map(parent).collect()
    } else {
        added.external_names().into_iter().map(|name| resource(name, true, &["get"])).collect()
    };
    json!({"version": version, "freshness": "Current", "resources": resources})
}
