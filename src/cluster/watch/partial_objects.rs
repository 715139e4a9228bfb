//! The few fields of other people's objects that are read. Everything else in them is skipped while parsing, so a
//! large cluster costs little memory and a change of a field that nobody reads breaks nothing.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Namespace, Node, NodeAffinity, NodeSelectorTerm, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use kube::core::PartialObjectMeta;
use kube::core::error_boundary::InvalidObject;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// An object that may be unreadable: then its metadata is still known, and the list it is in stays readable. Parsed
/// from its own text; kube's `DeserializeGuard` copies every field of it twice first.
#[derive(Debug, Clone)]
pub(crate) struct Guarded<K>(pub(crate) Result<K, InvalidObject>);

impl<'de, K: Resource + DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <&RawValue>::deserialize(deserializer)?.get();
        let object = serde_json::from_str(text).map(Ok).or_else(|error| {
            let PartialObjectMeta { metadata, .. } =
                serde_json::from_str::<PartialObjectMeta<K>>(text).map_err(D::Error::custom)?;
            Ok(Err(InvalidObject { error: error.to_string(), metadata }))
        });
        object.map(Self)
    }
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(kind: &K::DynamicType) -> Cow<'_, str> {
        K::kind(kind)
    }

    fn group(kind: &K::DynamicType) -> Cow<'_, str> {
        K::group(kind)
    }

    fn version(kind: &K::DynamicType) -> Cow<'_, str> {
        K::version(kind)
    }

    fn plural(kind: &K::DynamicType) -> Cow<'_, str> {
        K::plural(kind)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|invalid| &invalid.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.as_mut().map_or_else(|invalid| &mut invalid.metadata, K::meta_mut)
    }
}

/// Of the metadata what is read of pods and Deployments: most of its bytes are the fields' managers.
fn lean_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Lean {
        namespace: Option<String>,
        name: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        creation_timestamp: Option<Time>,
        deletion_timestamp: Option<Time>,
        annotations: Option<BTreeMap<String, String>>,
        owner_references: Option<Vec<OwnerReference>>,
    }
    let lean = Lean::deserialize(deserializer)?;
    Ok(ObjectMeta {
        namespace: lean.namespace,
        name: lean.name,
        uid: lean.uid,
        resource_version: lean.resource_version,
        creation_timestamp: lean.creation_timestamp,
        deletion_timestamp: lean.deletion_timestamp,
        annotations: lean.annotations,
        owner_references: lean.owner_references,
        ..ObjectMeta::default()
    })
}

/// A Deployment: counts, and what its pods ask of a node.
#[derive(Resource, Deserialize, Debug, Clone)]
#[resource(inherit = "Deployment")]
pub(crate) struct LeanDeployment {
    #[serde(deserialize_with = "lean_metadata")]
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
    #[serde(default)]
    pub(crate) containers: Vec<TemplateContainer>,
}

/// A container of a pod template: what it asks for, and what it runs.
#[derive(Deserialize, Debug, Clone, Default)]
#[serde(default)]
pub(crate) struct TemplateContainer {
    pub(crate) image: String,
    pub(crate) command: Vec<String>,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<Variable>,
    pub(crate) resources: Resources,
}

#[derive(Deserialize, Debug, Clone)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) value: Option<String>,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(default)]
pub(crate) struct Resources {
    pub(crate) requests: Quantities,
    pub(crate) limits: Quantities,
}

/// Amounts by resource.
pub(crate) type Quantities = BTreeMap<String, Amount>;

/// An amount of a resource: text, or a number where its author left out the quotes.
#[derive(Debug, Clone)]
pub(crate) struct Amount(pub(crate) String);

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match Value::deserialize(deserializer)? {
            Value::String(text) => text,
            other => other.to_string(),
        }))
    }
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
pub(crate) type LeanReplicaSet = PartialObjectMeta<ReplicaSet>;

/// A namespace, of which only the metadata is read.
pub(crate) type LeanNamespace = PartialObjectMeta<Namespace>;

/// A pod: where it is in its life, where it answers, who owns it, which GPUs it takes.
#[derive(Resource, Deserialize, Debug, Clone)]
#[resource(inherit = "Pod")]
pub(crate) struct LeanPod {
    #[serde(deserialize_with = "lean_metadata")]
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
    #[serde(default)]
    pub(crate) init_containers: Vec<LeanContainer>,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(default)]
pub(crate) struct LeanContainer {
    pub(crate) ports: Vec<LeanPort>,
    pub(crate) resources: Resources,
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
    /// When the kubelet first saw it.
    pub(crate) start_time: Option<Time>,
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

/// A node: its labels, whether it takes pods, and the amounts it has.
#[derive(Resource, Deserialize, Debug, Clone)]
#[resource(inherit = "Node")]
pub(crate) struct LeanNode {
    #[serde(deserialize_with = "labelled_metadata")]
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: NodeSpec,
    #[serde(default)]
    pub(crate) status: NodeStatus,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(default)]
pub(crate) struct NodeSpec {
    pub(crate) unschedulable: bool,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(default)]
pub(crate) struct NodeStatus {
    pub(crate) allocatable: Quantities,
    pub(crate) conditions: Vec<PodCondition>,
}

/// Of the metadata what is read of nodes.
fn labelled_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Lean {
        name: Option<String>,
        resource_version: Option<String>,
        creation_timestamp: Option<Time>,
        labels: Option<BTreeMap<String, String>>,
    }
    let Lean { name, resource_version, creation_timestamp, labels } = Lean::deserialize(deserializer)?;
    Ok(ObjectMeta { name, resource_version, creation_timestamp, labels, ..ObjectMeta::default() })
}

/// The uid of the owner that manages an object, when that owner is of `kind`.
pub(crate) fn controller_uid(metadata: &ObjectMeta, kind: &str) -> Option<Box<str>> {
    let owners = metadata.owner_references.as_deref().unwrap_or_default();
    let manages = |owner: &&OwnerReference| owner.controller == Some(true) && owner.kind == kind;
    owners.iter().find(manages).map(|owner| owner.uid.as_str().into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::crd::VariantAutoscaling;

    #[test]
    fn an_unreadable_object_leaves_its_name_and_the_list_around_it() {
        let pod = |spec| json!({ "metadata": { "name": "p", "resourceVersion": "7" }, "spec": spec });
        let list = json!([pod(json!({ "nodeName": "n" })), pod(json!("none"))]).to_string();
        let pods: Vec<Guarded<LeanPod>> = serde_json::from_str(&list).unwrap();
        let [Guarded(Ok(good)), Guarded(Err(bad))] = &pods[..] else { panic!("{pods:?}") };
        assert_eq!(good.spec.node_name.as_deref(), Some("n"));
        assert_eq!(
            (bad.metadata.name.as_deref(), good.metadata.resource_version.as_deref()),
            (Some("p"), Some("7"))
        );
        assert!(bad.error.contains("invalid type"), "{}", bad.error);
    }

    #[test]
    fn an_unreadable_object_is_known_by_name_in_a_watch_too() {
        let event = r#"{"type":"ADDED","object":{"metadata":{"name":"v"},"spec":{"modelID":7}}}"#;
        let event =
            serde_json::from_str::<kube::core::WatchEvent<Guarded<VariantAutoscaling>>>(event).unwrap();
        let kube::core::WatchEvent::Added(Guarded(Err(bad))) = event else { panic!("{event:?}") };
        assert_eq!(bad.metadata.name.as_deref(), Some("v"));
    }
}
