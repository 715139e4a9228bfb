//! Partial types of Kubernetes objects: only the fields that are read. Everything else is skipped while parsing, so a large
//! cluster costs little memory and a change of an unread field breaks nothing.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Lifecycle, Namespace, Node, NodeAffinity, NodeSelectorTerm, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use kube::core::error_boundary::InvalidObject;
use kube::core::{ApiResource, DynamicResourceScope, PartialObjectMeta};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// An object that may fail to parse: its metadata is still known then, and the list it is in stays readable. Parsed from its
/// own text, whereas kube's `DeserializeGuard` copies every field twice first.
#[derive(Debug, Clone)]
pub(crate) struct ParseGuard<K>(pub(crate) Result<K, InvalidObject>);

impl<'de, K: Resource + DeserializeOwned> Deserialize<'de> for ParseGuard<K> {
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

impl<K: Resource> Resource for ParseGuard<K> {
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

/// The metadata that is read: most of its bytes are managedFields.
fn partial_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct PartialMeta {
        namespace: Option<String>,
        name: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        generation: Option<i64>,
        creation_timestamp: Option<Time>,
        deletion_timestamp: Option<Time>,
        labels: Option<BTreeMap<String, String>>,
        annotations: Option<BTreeMap<String, String>>,
        owner_references: Option<Vec<OwnerReference>>,
    }
    let read = PartialMeta::deserialize(deserializer)?;
    Ok(ObjectMeta {
        namespace: read.namespace,
        name: read.name,
        uid: read.uid,
        resource_version: read.resource_version,
        generation: read.generation,
        creation_timestamp: read.creation_timestamp,
        deletion_timestamp: read.deletion_timestamp,
        labels: read.labels,
        annotations: read.annotations,
        owner_references: read.owner_references,
        ..ObjectMeta::default()
    })
}

/// A scale target of any kind: its counts, and what its pod template requests. A field that the kind does not have is absent.
pub(crate) type PartialTarget = PartialObject<TargetSpec, TargetStatus>;

/// An object of one of several kinds, of whose spec and status only some fields are read.
#[derive(Deserialize, Debug, Clone)]
pub(crate) struct PartialObject<S, T> {
    #[serde(deserialize_with = "partial_metadata")]
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: S,
    #[serde(default)]
    pub(crate) status: T,
}

impl<S, T> Resource for PartialObject<S, T> {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct TargetSpec {
    pub(crate) replicas: Option<i32>,
    /// Some kinds have none.
    pub(crate) template: Option<PodTemplate>,
    /// Of a LeaderWorkerSet, in place of `template`.
    pub(crate) leader_worker_template: Option<LeaderWorkerTemplate>,
}

/// A group of pods that are one replica: a leader and `size` - 1 workers.
#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LeaderWorkerTemplate {
    /// 1 when absent.
    pub(crate) size: Option<i32>,
    /// That of the workers when absent.
    pub(crate) leader_template: Option<PodTemplate>,
    pub(crate) worker_template: PodTemplate,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TargetStatus {
    pub(crate) replicas: Option<i32>,
    pub(crate) ready_replicas: Option<i32>,
}

#[derive(Deserialize, Debug, Clone, Default)]
pub(crate) struct PodTemplate {
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
    pub(crate) affinity: Option<PartialAffinity>,
    #[serde(default)]
    pub(crate) tolerations: Vec<PartialToleration>,
    pub(crate) termination_grace_period_seconds: Option<i64>,
    #[serde(default)]
    pub(crate) containers: Vec<TemplateContainer>,
    #[serde(default)]
    pub(crate) resource_claims: Vec<PodClaim>,
}

/// A claim of a pod, made from a template or shared with other pods.
#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodClaim {
    pub(crate) resource_claim_template_name: Option<String>,
}

/// A container of a pod template: what it requests and what it runs.
#[derive(Deserialize, Debug, Clone, Default)]
#[serde(default)]
pub(crate) struct TemplateContainer {
    pub(crate) name: String,
    pub(crate) image: String,
    pub(crate) command: Vec<String>,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<Variable>,
    pub(crate) resources: Resources,
    pub(crate) lifecycle: Option<Lifecycle>,
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

/// Quantities by resource.
pub(crate) type Quantities = BTreeMap<String, Quantity>;

/// A quantity of a resource: text, or a number where its author left out the quotes.
#[derive(Debug, Clone)]
pub(crate) struct Quantity(pub(crate) String);

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match Value::deserialize(deserializer)? {
            Value::String(text) => text,
            number => number.to_string(),
        }))
    }
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PartialAffinity {
    pub(crate) node_affinity: Option<NodeAffinity>,
}

impl PartialAffinity {
    /// The terms of node affinity: required ones first, then preferred ones.
    pub(crate) fn terms(&self) -> impl Iterator<Item = &NodeSelectorTerm> {
        let node = self.node_affinity.as_ref();
        let preferred =
            node.and_then(|node| node.preferred_during_scheduling_ignored_during_execution.as_ref());
        self.required().chain(preferred.into_iter().flatten().map(|term| &term.preference))
    }

    /// The terms of required node affinity.
    pub(crate) fn required(&self) -> impl Iterator<Item = &NodeSelectorTerm> {
        let node = self.node_affinity.as_ref();
        let required =
            node.and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
        required.into_iter().flat_map(|selector| &selector.node_selector_terms)
    }
}

/// A toleration of a pod template.
#[derive(Deserialize, Debug, Clone, Default)]
#[serde(default)]
pub(crate) struct PartialToleration {
    pub(crate) key: Option<String>,
    pub(crate) operator: Option<String>,
    pub(crate) value: Option<String>,
    pub(crate) effect: Option<String>,
}

/// A ReplicaSet, of which only the metadata is fetched.
pub(crate) type PartialReplicaSet = PartialObjectMeta<ReplicaSet>;

/// A namespace, of which only the metadata is read.
pub(crate) type PartialNamespace = PartialObjectMeta<Namespace>;

/// A pod: its phase, address, owner and GPUs.
#[derive(Resource, Deserialize, Debug, Clone)]
#[resource(inherit = "Pod")]
pub(crate) struct PartialPod {
    #[serde(deserialize_with = "partial_metadata")]
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
    /// Whether it shares the network of its node.
    #[serde(default)]
    pub(crate) host_network: bool,
    #[serde(default)]
    pub(crate) containers: Vec<PartialContainer>,
    #[serde(default)]
    pub(crate) init_containers: Vec<PartialContainer>,
    #[serde(default)]
    pub(crate) resource_claims: Vec<PodClaim>,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(default)]
pub(crate) struct PartialContainer {
    pub(crate) image: String,
    pub(crate) command: Vec<String>,
    pub(crate) args: Vec<String>,
    pub(crate) ports: Vec<PartialPort>,
    pub(crate) resources: Resources,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PartialPort {
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
    /// When the kubelet accepted it.
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
    pub(crate) message: Option<String>,
    pub(crate) last_transition_time: Option<Time>,
}

/// A node: its labels, whether and which pods it accepts, and its allocatable resources.
#[derive(Resource, Deserialize, Debug, Clone)]
#[resource(inherit = "Node")]
pub(crate) struct PartialNode {
    #[serde(deserialize_with = "partial_metadata")]
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
    pub(crate) taints: Vec<PartialTaint>,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(default)]
pub(crate) struct PartialTaint {
    pub(crate) key: String,
    pub(crate) value: Option<String>,
    pub(crate) effect: String,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(default)]
pub(crate) struct NodeStatus {
    pub(crate) allocatable: Quantities,
    pub(crate) conditions: Vec<PodCondition>,
}

/// The value of an annotation.
pub(crate) fn annotation<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The controller of an object.
pub(crate) fn controller(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    let owners = metadata.owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::crd::VariantAutoscaling;

    #[test]
    fn an_unreadable_object_keeps_its_name_and_the_list_readable() {
        let pod = |spec| json!({ "metadata": { "name": "p", "resourceVersion": "7" }, "spec": spec });
        let list = json!([pod(json!({ "nodeName": "n" })), pod(json!("none"))]).to_string();
        let pods: Vec<ParseGuard<PartialPod>> = serde_json::from_str(&list).unwrap();
        let [ParseGuard(Ok(good)), ParseGuard(Err(bad))] = &pods[..] else { panic!("{pods:?}") };
        assert_eq!(good.spec.node_name.as_deref(), Some("n"));
        assert_eq!(
            (bad.metadata.name.as_deref(), good.metadata.resource_version.as_deref()),
            (Some("p"), Some("7"))
        );
        assert!(bad.error.contains("invalid type"), "{}", bad.error);
    }

    #[test]
    fn an_unreadable_object_keeps_its_name_in_a_watch() {
        let event = r#"{"type":"ADDED","object":{"metadata":{"name":"v"},"spec":{"modelID":7}}}"#;
        let event =
            serde_json::from_str::<kube::core::WatchEvent<ParseGuard<VariantAutoscaling>>>(event).unwrap();
        let kube::core::WatchEvent::Added(ParseGuard(Err(bad))) = event else { panic!("{event:?}") };
        assert_eq!(bad.metadata.name.as_deref(), Some("v"));
    }
}
