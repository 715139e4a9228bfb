//! Kubernetes objects → the core's types. Pure: what a field means is decided here and nowhere else.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use smol_str::SmolStr;
use wva_core::model::{Bounds, InvalidVariant, Role, TargetRef, Variant, VariantId};
use wva_core::snapshot::{Phase, Scale, Template};
use wva_core::units::{Cost, Replicas};

use super::accelerator::short;
use super::crd::{ACCELERATOR_LABEL, ScaleTargetRef, VariantAutoscaling};
use super::deletion_cost::{ANNOTATION, Mark};
use super::inventory::Used;
use super::template::template;
use super::wire::{self, LeanDeployment, LeanPod, PodCondition, controller_uid};

/// Node labels that name an accelerator, in the order they are looked for.
pub(crate) const ACCELERATOR_KEYS: [&str; 5] = [
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "amd.com/gpu.product",
    "intel.com/gpu.product",
    "cloud.google.com/gke-accelerator",
];
/// Label of a pod template: which part of a request its pods serve.
const ROLE_LABEL: &str = "llm-d.ai/role";
/// Annotation of a pod: the port of its metrics.
const PORT_ANNOTATION: &str = "prometheus.io/port";
/// Names of a container port that has metrics, the better one first.
const PORT_NAMES: [&str; 2] = ["metrics", "http"];
/// The port vLLM listens on when told nothing.
const DEFAULT_PORT: u16 = 8000;

impl TryFrom<&VariantAutoscaling> for Variant {
    type Error = InvalidVariant;

    /// The accelerator is the one of the object's label; the target knows better, once it is known.
    fn try_from(object: &VariantAutoscaling) -> Result<Self, InvalidVariant> {
        let id = variant_id(&object.metadata);
        let spec = &object.spec;
        let invalid = |problem: String| InvalidVariant { id: id.clone(), problem };
        if spec.model_id.is_empty() {
            return Err(invalid(
                "spec.modelID is empty: set it to the model_name of the serving metrics".into(),
            ));
        }
        Ok(Self {
            target: target(&spec.scale_target_ref).map_err(invalid)?,
            cost: cost(spec.variant_cost.as_deref()).map_err(invalid)?,
            bounds: bounds(spec.min_replicas, spec.max_replicas).map_err(invalid)?,
            model: spec.model_id.as_str().into(),
            accelerator: object.metadata.labels.as_ref().and_then(accelerator_label).map(SmolStr::from),
            role: Role::default(),
            id: id.clone(),
        })
    }
}

/// The namespace and name of a namespaced object.
pub(crate) fn variant_id(metadata: &ObjectMeta) -> VariantId {
    VariantId::new(metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

fn target(reference: &ScaleTargetRef) -> Result<TargetRef, String> {
    // The kind was never looked at by the controllers before this one, so an empty one exists in the field.
    let kind = if reference.kind.is_empty() { "Deployment" } else { reference.kind.as_str() };
    if kind != "Deployment" {
        return Err(format!("spec.scaleTargetRef.kind {kind:?} is not supported: must be Deployment"));
    }
    if reference.name.is_empty() {
        return Err("spec.scaleTargetRef.name is empty: set it to the Deployment's name".into());
    }
    Ok(TargetRef { kind: kind.into(), name: reference.name.as_str().into() })
}

fn cost(text: Option<&str>) -> Result<Cost, String> {
    let value = match text {
        None => Ok(Variant::DEFAULT_COST),
        Some("") => Ok(Variant::DEFAULT_COST),
        Some(text) => text.parse::<f64>().map_err(|error| error.to_string()),
    };
    let cost = value.and_then(|value| Cost::new(value).map_err(|error| error.to_string()));
    cost.map_err(|cause| {
        let text = text.unwrap_or_default();
        format!("spec.variantCost {text:?} is not a cost ({cause}): write a decimal number such as \"10.0\"")
    })
}

fn bounds(min: Option<i32>, max: Option<i32>) -> Result<Bounds, String> {
    let default = Bounds::default();
    let min = match min {
        None => default.min,
        Some(min) => count(min).ok_or_else(|| format!("spec.minReplicas {min} is negative"))?,
    };
    let max = match max {
        None => default.max,
        Some(max) if max < 1 => return Err(format!("spec.maxReplicas {max} is below 1")),
        Some(max) => count(max),
    };
    Ok(Bounds { min, max })
}

fn count(number: i32) -> Option<Replicas> {
    u32::try_from(number).ok().map(Replicas::new)
}

fn accelerator_label(labels: &BTreeMap<String, String>) -> Option<String> {
    labels.get(ACCELERATOR_LABEL).filter(|name| !name.is_empty()).map(|name| short(name))
}

/// What a Deployment says of the variant that has it as a target.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Target {
    pub(crate) uid: Box<str>,
    pub(crate) scale: Scale,
    pub(crate) accelerator: Option<String>,
    pub(crate) role: Role,
    pub(crate) template: Template,
}

impl From<&LeanDeployment> for Target {
    fn from(deployment: &LeanDeployment) -> Self {
        // A negative count cannot be stored by an API server; zero is what nothing running looks like.
        let replicas = |number: Option<i32>| number.and_then(count).unwrap_or_default();
        let spec = deployment.spec.replicas.map_or(Replicas::ONE, |number| replicas(Some(number)));
        let running = replicas(deployment.status.replicas);
        let pods = &deployment.spec.template;
        Self {
            uid: deployment.metadata.uid.as_deref().unwrap_or_default().into(),
            scale: Scale {
                spec,
                current: if running == Replicas::ZERO { spec } else { running },
                ready: replicas(deployment.status.ready_replicas),
            },
            accelerator: accelerator(pods),
            role: role(pods),
            template: template(&pods.spec),
        }
    }
}

/// The accelerator that a pod template asks of its node: by node selector, then required, then preferred affinity.
fn accelerator(template: &wire::Template) -> Option<String> {
    let selector = template.spec.node_selector.as_ref();
    let selected = selector.and_then(|labels| ACCELERATOR_KEYS.iter().find_map(|key| labels.get(*key)));
    let affine = || {
        let terms = template.spec.affinity.iter().flat_map(|affinity| affinity.terms());
        let mut wanted = terms.flat_map(|term| term.match_expressions.iter().flatten());
        wanted.find_map(|expression| {
            let known = expression.operator == "In" && ACCELERATOR_KEYS.contains(&expression.key.as_str());
            expression.values.as_ref().filter(|_| known).and_then(|values| values.first())
        })
    };
    selected.or_else(affine).filter(|name| !name.is_empty()).map(|name| short(name))
}

fn role(template: &wire::Template) -> Role {
    match template.metadata.labels.as_ref().and_then(|labels| labels.get(ROLE_LABEL)).map(String::as_str) {
        Some("prefill") => Role::Prefill,
        Some("decode") => Role::Decode,
        _ => Role::Both,
    }
}

/// A pod that a ReplicaSet manages, or that uses GPUs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SeenPod {
    /// The uid of its ReplicaSet.
    pub(crate) owner: Option<Box<str>>,
    pub(crate) phase: Phase,
    pub(crate) created: Timestamp,
    pub(crate) ready_since: Option<Timestamp>,
    pub(crate) address: Option<(IpAddr, u16)>,
    pub(crate) used: Option<Used>,
    /// For who writes its annotation, if anybody does.
    pub(crate) mark: Option<Box<Mark>>,
}

impl SeenPod {
    /// `None` for any other pod, or one that has ended.
    pub(crate) fn of(pod: &LeanPod) -> Option<Self> {
        if matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed")) {
            return None;
        }
        let (owner, used) = (controller_uid(&pod.metadata, "ReplicaSet"), Used::of(pod));
        if owner.is_none() && used.is_none() {
            return None;
        }
        let ready = condition(pod, "Ready").filter(|condition| condition.status == "True");
        Some(Self {
            owner,
            phase: phase(pod),
            created: pod.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            ready_since: ready
                .and_then(|condition| condition.last_transition_time.as_ref())
                .map(|time| time.0),
            address: pod.status.pod_ip.as_deref().and_then(|ip| ip.parse().ok()).map(|ip| (ip, port(pod))),
            used,
            mark: None,
        })
    }

    /// With what it takes to write its annotation. What is no number counts as none, as it does for a ReplicaSet.
    pub(crate) fn marked(self, metadata: &ObjectMeta) -> Self {
        let annotation = metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION));
        let cost = annotation.and_then(|text| text.parse().ok());
        let uid = metadata.uid.as_deref().unwrap_or_default().into();
        Self { mark: Some(Box::new(Mark { uid, cost })), ..self }
    }
}

fn condition<'a>(pod: &'a LeanPod, type_: &str) -> Option<&'a PodCondition> {
    pod.status.conditions.iter().find(|condition| condition.type_ == type_)
}

fn phase(pod: &LeanPod) -> Phase {
    let scheduled = condition(pod, "PodScheduled");
    let refused = |condition: &PodCondition| {
        condition.status == "False" && condition.reason.as_deref() == Some("Unschedulable")
    };
    if pod.metadata.deletion_timestamp.is_some() {
        Phase::Terminating
    } else if condition(pod, "Ready").is_some_and(|ready| ready.status == "True") {
        Phase::Ready
    } else if pod.spec.node_name.is_some() {
        Phase::Starting
    } else if scheduled.is_some_and(refused) {
        Phase::Unschedulable
    } else {
        Phase::Pending
    }
}

/// The port of a pod's metrics: annotated, else named, else vLLM's own.
fn port(pod: &LeanPod) -> u16 {
    let annotations = pod.metadata.annotations.as_ref();
    let annotated =
        annotations.and_then(|all| all.get(PORT_ANNOTATION)).and_then(|text| text.trim().parse().ok());
    let named = || {
        PORT_NAMES.iter().find_map(|name| {
            let mut ports = pod.spec.containers.iter().flat_map(|container| &container.ports);
            let port = ports.find(|port| port.name.as_deref() == Some(*name))?;
            u16::try_from(port.container_port).ok()
        })
    };
    annotated.filter(|port| *port != 0).or_else(named).unwrap_or(DEFAULT_PORT)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object(spec: Value) -> VariantAutoscaling {
        let labels = json!({ ACCELERATOR_LABEL: "H100" });
        let metadata = json!({ "namespace": "llm", "name": "chat", "labels": labels });
        serde_json::from_value(json!({
            "apiVersion": "llmd.ai/v1alpha1", "kind": "VariantAutoscaling", "metadata": metadata, "spec": spec
        }))
        .unwrap()
    }

    fn spec(extra: Value) -> Value {
        let mut spec =
            json!({ "scaleTargetRef": { "kind": "Deployment", "name": "chat" }, "modelID": "org/m" });
        for (key, value) in extra.as_object().unwrap() {
            spec[key] = value.clone();
        }
        spec
    }

    fn problem(extra: Value) -> String {
        Variant::try_from(&object(spec(extra))).unwrap_err().problem
    }

    fn pod(extra: Value) -> LeanPod {
        let owners = json!([{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "rs-1", "controller": true
        }]);
        let mut pod = json!({
            "metadata": { "name": "p", "ownerReferences": owners, "creationTimestamp": "2026-01-01T00:00:00Z" }
        });
        for (pointer, value) in extra.as_object().unwrap() {
            let (section, field) = pointer.split_once('.').unwrap();
            pod[section][field] = value.clone();
        }
        serde_json::from_value(pod).unwrap()
    }

    fn deployment(template: Value) -> Target {
        let value = json!({ "metadata": { "name": "d", "uid": "d-1" }, "spec": { "template": template } });
        Target::from(&serde_json::from_value::<LeanDeployment>(value).unwrap())
    }

    #[test]
    fn what_is_absent_gets_the_documented_default() {
        let variant = Variant::try_from(&object(spec(json!({})))).unwrap();
        assert_eq!(variant.cost, Cost::new(10.0).unwrap());
        assert_eq!(variant.bounds, Bounds { min: Replicas::ONE, max: None });
        assert_eq!(variant.accelerator.as_deref(), Some("H100"));
    }

    #[test]
    fn a_field_that_cannot_be_used_is_named() {
        assert!(problem(json!({ "variantCost": "cheap" })).contains("spec.variantCost \"cheap\""));
        assert!(problem(json!({ "variantCost": "9".repeat(400) })).contains("spec.variantCost"));
        assert!(problem(json!({ "minReplicas": -1 })).contains("spec.minReplicas -1"));
        assert!(problem(json!({ "maxReplicas": 0 })).contains("spec.maxReplicas 0"));
        assert!(problem(json!({ "modelID": "" })).contains("spec.modelID"));
        let other = json!({ "scaleTargetRef": { "kind": "StatefulSet", "name": "x" } });
        assert!(problem(other).contains("spec.scaleTargetRef.kind \"StatefulSet\""));
    }

    #[test]
    fn a_minimum_of_zero_is_kept() {
        let variant =
            Variant::try_from(&object(spec(json!({ "minReplicas": 0, "maxReplicas": 4 })))).unwrap();
        assert_eq!(variant.bounds, Bounds { min: Replicas::ZERO, max: Some(Replicas::new(4)) });
    }

    #[test]
    fn the_accelerator_is_what_the_pods_ask_of_their_node() {
        let selector =
            json!({ "spec": { "nodeSelector": { "nvidia.com/gpu.product": "NVIDIA-A100-PCIE-80GB" } } });
        assert_eq!(deployment(selector).accelerator.as_deref(), Some("A100"));
        let expression =
            json!({ "key": "cloud.google.com/gke-accelerator", "operator": "In", "values": ["l4"] });
        let terms = json!({ "nodeSelectorTerms": [{ "matchExpressions": [expression] }] });
        let affinity = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": terms } });
        let required = json!({ "spec": { "affinity": affinity } });
        assert_eq!(deployment(required).accelerator.as_deref(), Some("l4"));
        assert_eq!(deployment(json!({})).accelerator, None);
    }

    #[test]
    fn the_gpus_of_a_replica_are_those_its_template_asks_for() {
        let container = json!({ "name": "vllm", "resources": { "limits": { "nvidia.com/gpu": "4" } } });
        let template =
            deployment(json!({ "spec": { "containers": [container], "initContainers": [container] } }))
                .template;
        assert_eq!((template.gpus, template.engine.is_some()), (4, true));
    }

    #[test]
    fn the_role_is_that_of_the_pod_template() {
        let labelled =
            |role: &str| deployment(json!({ "metadata": { "labels": { ROLE_LABEL: role } } })).role;
        assert_eq!(labelled("prefill"), Role::Prefill);
        assert_eq!(labelled("decode"), Role::Decode);
        assert_eq!(labelled("anything"), Role::Both);
    }

    #[test]
    fn current_is_what_runs_and_what_is_wanted_while_nothing_runs() {
        let scale = |spec: Value, status: Value| {
            let value = json!({ "metadata": {}, "spec": spec, "status": status });
            Target::from(&serde_json::from_value::<LeanDeployment>(value).unwrap()).scale
        };
        let counts = |scale: Scale| (scale.spec.get(), scale.current.get(), scale.ready.get());
        assert_eq!(counts(scale(json!({}), json!({}))), (1, 1, 0));
        assert_eq!(counts(scale(json!({ "replicas": 0 }), json!({}))), (0, 0, 0));
        assert_eq!(
            counts(scale(json!({ "replicas": 3 }), json!({ "replicas": 2, "readyReplicas": 1 }))),
            (3, 2, 1)
        );
    }

    #[test]
    fn a_pod_goes_through_its_phases() {
        let phase_of = |extra: Value| SeenPod::of(&pod(extra)).map(|pod| pod.phase);
        let refused = json!([{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }]);
        let ready =
            json!([{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z" }]);
        assert_eq!(phase_of(json!({})), Some(Phase::Pending));
        assert_eq!(phase_of(json!({ "status.conditions": refused })), Some(Phase::Unschedulable));
        assert_eq!(phase_of(json!({ "spec.nodeName": "n" })), Some(Phase::Starting));
        assert_eq!(phase_of(json!({ "spec.nodeName": "n", "status.conditions": ready })), Some(Phase::Ready));
        let deleted =
            json!({ "metadata.deletionTimestamp": "2026-01-01T00:00:00Z", "status.conditions": ready });
        assert_eq!(phase_of(deleted), Some(Phase::Terminating));
        assert_eq!(phase_of(json!({ "status.phase": "Failed" })), None);
    }

    #[test]
    fn a_pod_is_marked_with_its_uid_and_its_cost_and_what_is_no_number_is_none() {
        let mark = |text: &str| {
            let pod = pod(json!({ "metadata.annotations": { ANNOTATION: text }, "metadata.uid": "p-1" }));
            let mark = *SeenPod::of(&pod).unwrap().marked(&pod.metadata).mark.unwrap();
            (mark.uid.to_string(), mark.cost)
        };
        assert_eq!(mark("-1000"), ("p-1".into(), Some(-1000)));
        assert_eq!(mark("cheap"), ("p-1".into(), None));
    }

    #[test]
    fn the_port_of_metrics_is_annotated_or_named_or_vllms_own() {
        let port_of = |extra: Value| SeenPod::of(&pod(extra)).unwrap().address.unwrap().1;
        let ip = json!("10.0.0.1");
        let ports = |names: &[(&str, u16)]| {
            let ports: Vec<_> =
                names.iter().map(|(name, port)| json!({ "name": name, "containerPort": port })).collect();
            json!([{ "ports": ports }])
        };
        let named = ports(&[("http", 1), ("metrics", 2)]);
        let annotations = json!({ "prometheus.io/port": "9" });
        let annotated = json!({
            "status.podIP": ip, "spec.containers": named, "metadata.annotations": annotations
        });
        assert_eq!(port_of(annotated), 9);
        assert_eq!(port_of(json!({ "status.podIP": ip, "spec.containers": named })), 2);
        let http = ports(&[("other", 7), ("http", 1)]);
        assert_eq!(port_of(json!({ "status.podIP": ip, "spec.containers": http })), 1);
        let nonsense = json!({ "prometheus.io/port": "0" });
        assert_eq!(port_of(json!({ "status.podIP": ip, "metadata.annotations": nonsense })), 8000);
    }
}
