//! The few fields of other people's objects that are read. Everything else in them is skipped while parsing, so a
//! large cluster costs little memory and a change of a field that nobody reads breaks nothing.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{NodeAffinity, NodeSelectorTerm, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use serde::Deserialize;

/// A Deployment: counts, and what its pods ask of a node.
#[derive(Resource, Deserialize, Debug, Clone)]
#[resource(inherit = "Deployment")]
pub(crate) struct LeanDeployment {
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: DeploymentSpec,
    #[serde(default)]
    pub(crate) status: DeploymentStatus,
}

#[derive(Deserialize, Debug, Clone, Default)]
pub(crate) struct DeploymentSpec {
    pub(crate) replicas: Option<i32>,
    #[serde(default)]
    pub(crate) template: Template,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeploymentStatus {
    pub(crate) replicas: Option<i32>,
    pub(crate) ready_replicas: Option<i32>,
}

#[derive(Deserialize, Debug, Clone, Default)]
pub(crate) struct Template {
    #[serde(default)]
    pub(crate) metadata: TemplateMeta,
    #[serde(default)]
    pub(crate) spec: TemplateSpec,
}

#[derive(Deserialize, Debug, Clone, Default)]
pub(crate) struct TemplateMeta {
    pub(crate) labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TemplateSpec {
    pub(crate) node_selector: Option<BTreeMap<String, String>>,
    pub(crate) affinity: Option<LeanAffinity>,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LeanAffinity {
    pub(crate) node_affinity: Option<NodeAffinity>,
}

impl LeanAffinity {
    /// The terms a node is chosen by: required ones first, then preferred ones.
    pub(crate) fn terms(&self) -> impl Iterator<Item = &NodeSelectorTerm> {
        let node = self.node_affinity.as_ref();
        let required =
            node.and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
        let preferred =
            node.and_then(|node| node.preferred_during_scheduling_ignored_during_execution.as_ref());
        let required = required.into_iter().flat_map(|selector| &selector.node_selector_terms);
        required.chain(preferred.into_iter().flatten().map(|term| &term.preference))
    }
}

/// A ReplicaSet, of which only the metadata is ever fetched.
pub(crate) type LeanReplicaSet = kube::core::PartialObjectMeta<ReplicaSet>;

/// A pod: where it is in its life, where it answers, who owns it.
#[derive(Resource, Deserialize, Debug, Clone)]
#[resource(inherit = "Pod")]
pub(crate) struct LeanPod {
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: PodSpec,
    #[serde(default)]
    pub(crate) status: PodStatus,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodSpec {
    pub(crate) node_name: Option<String>,
    #[serde(default)]
    pub(crate) containers: Vec<LeanContainer>,
}

#[derive(Deserialize, Debug, Clone, Default)]
pub(crate) struct LeanContainer {
    #[serde(default)]
    pub(crate) ports: Vec<LeanPort>,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LeanPort {
    pub(crate) name: Option<String>,
    #[serde(default)]
    pub(crate) container_port: i32,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodStatus {
    pub(crate) phase: Option<String>,
    #[serde(rename = "podIP")]
    pub(crate) pod_ip: Option<String>,
    #[serde(default)]
    pub(crate) conditions: Vec<PodCondition>,
}

#[derive(Deserialize, Debug, Clone)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodCondition {
    #[serde(rename = "type")]
    pub(crate) type_: String,
    pub(crate) status: String,
    pub(crate) reason: Option<String>,
    pub(crate) last_transition_time: Option<Time>,
}

/// The uid of the owner that manages an object, when that owner is of `kind`.
pub(crate) fn controller_uid(metadata: &ObjectMeta, kind: &str) -> Option<Box<str>> {
    let owners = metadata.owner_references.as_deref().unwrap_or_default();
    let manages = |owner: &&OwnerReference| owner.controller == Some(true) && owner.kind == kind;
    owners.iter().find(manages).map(|owner| owner.uid.as_str().into())
}
