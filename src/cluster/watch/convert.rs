//! Kubernetes objects → the core's types. Pure: what a field means is decided here and nowhere else.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use smol_str::SmolStr;
use wva_core::model::{Bounds, InvalidVariant, Role, TargetRef, Variant, VariantId};
use wva_core::snapshot::{Scale, Template};
use wva_core::units::{Cost, Replicas};

use super::accelerator::short_name;
use super::partial_objects::{PartialDeployment, PodTemplate};
use super::template::parse_template;
use crate::cluster::crd::{
    ACCELERATOR_LABEL, CONDITIONS, MAX_COST_CHARS, MAX_MODEL_ID_CHARS, MAX_REPLICAS, MAX_TARGET_NAME_CHARS,
    ScaleTargetRef, VariantAutoscaling, VariantAutoscalingStatus,
};
use crate::cluster::objects::ACCELERATOR_KEYS;
use crate::cluster::text::{is_plain, plain, quoted};

/// Label of a pod template: which part of a request its pods serve.
const ROLE_LABEL: &str = "llm-d.ai/role";
/// Longest message about an invalid object: a name of 256 characters, another one, and what to do.
const MAX_PROBLEM_BYTES: usize = 1024;
/// Longest name of an accelerator: that of a label's value, which it nearly always is.
const MAX_ACCELERATOR_CHARS: usize = 63;

impl TryFrom<&VariantAutoscaling> for Variant {
    type Error = InvalidVariant;

    /// The accelerator is that of the object's label; the scale target's own replaces it once that is known.
    fn try_from(object: &VariantAutoscaling) -> Result<Self, InvalidVariant> {
        let id = variant_id(&object.metadata);
        let spec = &object.spec;
        let invalid = |problem: String| invalid_variant(id.clone(), &problem);
        Ok(Self {
            target: target_ref(&spec.scale_target_ref).map_err(invalid)?,
            cost: cost(spec.variant_cost.as_deref()).map_err(invalid)?,
            bounds: bounds(spec.min_replicas, spec.max_replicas).map_err(invalid)?,
            model: model(&spec.model_id).map_err(invalid)?,
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

/// An invalid variant and why: on one line of bounded length, whatever its author wrote.
pub(crate) fn invalid_variant(id: VariantId, problem: &str) -> InvalidVariant {
    InvalidVariant { id, problem: plain(problem, MAX_PROBLEM_BYTES) }
}

fn model(id: &str) -> Result<SmolStr, String> {
    let allowed = "must be the model_name of the serving metrics";
    if id.is_empty() {
        return Err("spec.modelID is empty: set it to the model_name of the serving metrics".into());
    }
    let count = id.chars().count();
    if count > MAX_MODEL_ID_CHARS {
        let problem = format!("has {count} characters: {allowed}, and have at most {MAX_MODEL_ID_CHARS}");
        return Err(format!("spec.modelID {} {problem}", quoted(id)));
    }
    if !id.chars().all(is_plain) {
        return Err(format!("spec.modelID {} has control characters: {allowed}", quoted(id)));
    }
    Ok(id.into())
}

fn target_ref(reference: &ScaleTargetRef) -> Result<TargetRef, String> {
    // Earlier controllers never checked the kind, so objects without one exist.
    let kind = if reference.kind.is_empty() { "Deployment" } else { reference.kind.as_str() };
    if kind != "Deployment" {
        return Err(format!(
            "spec.scaleTargetRef.kind {} is not supported: must be Deployment",
            quoted(kind)
        ));
    }
    if reference.name.is_empty() {
        return Err("spec.scaleTargetRef.name is empty: set it to the Deployment's name".into());
    }
    if !is_object_name(&reference.name) {
        return Err(format!(
            "spec.scaleTargetRef.name {} is not a valid Deployment name: must be at most {MAX_TARGET_NAME_CHARS} \
             lowercase letters, digits, '-' and '.', with a letter or digit at both ends",
            quoted(&reference.name)
        ));
    }
    Ok(TargetRef { kind: kind.into(), name: reference.name.as_str().into() })
}

/// True for an RFC 1123 subdomain.
fn is_object_name(name: &str) -> bool {
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        let ends = bytes.first().zip(bytes.last());
        ends.is_some_and(|(first, last)| is_alphanumeric(*first) && is_alphanumeric(*last))
            && bytes.iter().all(|byte| is_alphanumeric(*byte) || *byte == b'-')
    };
    name.len() <= MAX_TARGET_NAME_CHARS && name.split('.').all(is_label)
}

fn cost(text: Option<&str>) -> Result<Cost, String> {
    let value = match text {
        None | Some("") => Ok(Variant::DEFAULT_COST),
        Some(text) if text.len() > MAX_COST_CHARS => {
            Err(format!("it has {} characters and may have {MAX_COST_CHARS}", text.len()))
        }
        Some(text) => text.parse::<f64>().map_err(|error| error.to_string()),
    };
    let cost = value.and_then(|value| Cost::new(value).map_err(|error| error.to_string()));
    cost.map_err(|cause| {
        let text = quoted(text.unwrap_or_default());
        format!("spec.variantCost {text} is not a cost ({cause}): write a decimal number such as \"10.0\"")
    })
}

fn bounds(min: Option<i32>, max: Option<i32>) -> Result<Bounds, String> {
    let default = Bounds::default();
    let too_large = |field: &str, number: i32| {
        format!("spec.{field} {number} is too large: a variant has at most {MAX_REPLICAS} replicas")
    };
    let min = match min {
        None => default.min,
        Some(min) if min > MAX_REPLICAS => return Err(too_large("minReplicas", min)),
        Some(min) => replicas(min).ok_or_else(|| format!("spec.minReplicas {min} is negative"))?,
    };
    let max = match max {
        None => default.max,
        Some(max) if max < 1 => return Err(format!("spec.maxReplicas {max} is below 1")),
        Some(max) if max > MAX_REPLICAS => return Err(too_large("maxReplicas", max)),
        Some(max) => replicas(max),
    };
    Ok(Bounds { min, max })
}

/// The last desired number in a status; `None` for a number that no variant can have, since it was not decided here.
pub(crate) fn stored_replicas(number: i32) -> Option<Replicas> {
    replicas(number).filter(|_| number <= MAX_REPLICAS)
}

/// What is kept of a stored status: our own conditions, because other writers may add any number of others.
pub(crate) fn own_status(mut status: VariantAutoscalingStatus) -> VariantAutoscalingStatus {
    status.conditions.retain(|condition| CONDITIONS.contains(&condition.type_.as_str()));
    status.desired_optimized_alloc = status.desired_optimized_alloc.filter(|alloc| {
        stored_replicas(alloc.num_replicas).is_some() && accelerator_name(&alloc.accelerator).is_some()
    });
    status
}

fn replicas(number: i32) -> Option<Replicas> {
    u32::try_from(number).ok().map(Replicas::new)
}

fn accelerator_label(labels: &BTreeMap<String, String>) -> Option<String> {
    labels.get(ACCELERATOR_LABEL).and_then(|name| accelerator_name(name))
}

/// The short name of an accelerator; `None` for what cannot be the value of a label.
fn accelerator_name(name: &str) -> Option<String> {
    let is_valid =
        !name.is_empty() && name.chars().count() <= MAX_ACCELERATOR_CHARS && name.chars().all(is_plain);
    is_valid.then(|| short_name(name))
}

/// What is kept of a Deployment that may be the scale target of a variant.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScaleTarget {
    pub(crate) uid: Box<str>,
    pub(crate) scale: Scale,
    pub(crate) accelerator: Option<String>,
    pub(crate) role: Role,
    pub(crate) template: Template,
}

impl From<&PartialDeployment> for ScaleTarget {
    fn from(deployment: &PartialDeployment) -> Self {
        // A Deployment may request billions of replicas. The API server stores no negative count.
        let bounded = |number: Option<i32>| {
            number.map(|number| number.min(MAX_REPLICAS)).and_then(replicas).unwrap_or_default()
        };
        let spec = deployment.spec.replicas.map_or(Replicas::ONE, |number| bounded(Some(number)));
        let existing = bounded(deployment.status.replicas);
        let template = &deployment.spec.template;
        Self {
            uid: deployment.metadata.uid.as_deref().unwrap_or_default().into(),
            scale: Scale {
                spec,
                current: if existing == Replicas::ZERO { spec } else { existing },
                ready: bounded(deployment.status.ready_replicas),
            },
            accelerator: requested_accelerator(template),
            role: role(template),
            template: parse_template(&template.spec),
        }
    }
}

/// The accelerator that a pod template requests: by node selector, then required, then preferred node affinity.
fn requested_accelerator(template: &PodTemplate) -> Option<String> {
    let selector = template.spec.node_selector.as_ref();
    let selected = selector.and_then(|labels| ACCELERATOR_KEYS.iter().find_map(|key| labels.get(*key)));
    let by_affinity = || {
        let terms = template.spec.affinity.iter().flat_map(|affinity| affinity.terms());
        let mut expressions = terms.flat_map(|term| term.match_expressions.iter().flatten());
        expressions.find_map(|expression| {
            let is_name = expression.operator == "In" && ACCELERATOR_KEYS.contains(&expression.key.as_str());
            expression.values.as_ref().filter(|_| is_name).and_then(|values| values.first())
        })
    };
    selected.or_else(by_affinity).and_then(|name| accelerator_name(name))
}

fn role(template: &PodTemplate) -> Role {
    match template.metadata.labels.as_ref().and_then(|labels| labels.get(ROLE_LABEL)).map(String::as_str) {
        Some("prefill") => Role::Prefill,
        Some("decode") => Role::Decode,
        _ => Role::Both,
    }
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

    fn deployment(template: Value) -> ScaleTarget {
        let value = json!({ "metadata": { "name": "d", "uid": "d-1" }, "spec": { "template": template } });
        ScaleTarget::from(&serde_json::from_value::<PartialDeployment>(value).unwrap())
    }

    #[test]
    fn absent_fields_get_the_documented_defaults() {
        let variant = Variant::try_from(&object(spec(json!({})))).unwrap();
        assert_eq!(variant.cost, Cost::new(10.0).unwrap());
        assert_eq!(variant.bounds, Bounds { min: Replicas::ONE, max: None });
        assert_eq!(variant.accelerator.as_deref(), Some("H100"));
    }

    #[test]
    fn an_invalid_field_is_named() {
        assert!(problem(json!({ "variantCost": "cheap" })).contains("spec.variantCost \"cheap\""));
        assert!(problem(json!({ "variantCost": "9".repeat(400) })).contains("spec.variantCost"));
        assert!(problem(json!({ "minReplicas": -1 })).contains("spec.minReplicas -1"));
        assert!(problem(json!({ "maxReplicas": 0 })).contains("spec.maxReplicas 0"));
        assert!(problem(json!({ "modelID": "" })).contains("spec.modelID"));
        let stateful_set = json!({ "scaleTargetRef": { "kind": "StatefulSet", "name": "x" } });
        assert!(problem(stateful_set).contains("spec.scaleTargetRef.kind \"StatefulSet\""));
    }

    #[test]
    fn a_minimum_of_zero_is_kept() {
        let variant =
            Variant::try_from(&object(spec(json!({ "minReplicas": 0, "maxReplicas": 4 })))).unwrap();
        assert_eq!(variant.bounds, Bounds { min: Replicas::ZERO, max: Some(Replicas::new(4)) });
    }

    #[test]
    fn the_accelerator_is_that_of_node_selector_or_affinity() {
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
    fn the_role_is_that_of_the_pod_template() {
        let labelled =
            |role: &str| deployment(json!({ "metadata": { "labels": { ROLE_LABEL: role } } })).role;
        assert_eq!(labelled("prefill"), Role::Prefill);
        assert_eq!(labelled("decode"), Role::Decode);
        assert_eq!(labelled("anything"), Role::Both);
    }

    #[test]
    fn current_is_the_existing_count_or_the_spec_while_there_is_none() {
        let scale = |spec: Value, status: Value| {
            let value = json!({ "metadata": {}, "spec": spec, "status": status });
            ScaleTarget::from(&serde_json::from_value::<PartialDeployment>(value).unwrap()).scale
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
    fn bounds_above_the_maximum_of_replicas_are_invalid() {
        for (field, number) in
            [("minReplicas", 100_001), ("minReplicas", i32::MAX), ("maxReplicas", i32::MAX)]
        {
            let problem = problem(json!({ field: number }));
            assert_eq!(
                problem,
                format!("spec.{field} {number} is too large: a variant has at most 100000 replicas")
            );
        }
        let largest = json!({ "minReplicas": 100_000, "maxReplicas": 100_000 });
        assert!(Variant::try_from(&object(spec(largest))).is_ok());
        let scaled = json!({ "metadata": {}, "spec": { "replicas": i32::MAX } });
        let scale = ScaleTarget::from(&serde_json::from_value::<PartialDeployment>(scaled).unwrap()).scale;
        assert_eq!((scale.spec.get(), scale.current.get()), (100_000, 100_000));
    }

    #[test]
    fn a_name_that_forges_a_log_line_is_invalid_and_reported_on_one_line() {
        let forged = "nothere\n2026-01-01T00:00:00Z  INFO wva: FORGED";
        let target = |name: &str| json!({ "scaleTargetRef": { "kind": "Deployment", "name": name } });
        let kind = json!({ "scaleTargetRef": { "kind": forged, "name": "chat" } });
        let long = "m".repeat(257);
        for extra in [
            target(forged),
            target("Chat"),
            target("chat."),
            target(&"c".repeat(254)),
            kind,
            json!({ "modelID": forged }),
            json!({ "modelID": long }),
            json!({ "variantCost": forged }),
            json!({ "variantCost": "1".repeat(1_000_000) }),
        ] {
            let problem = problem(extra);
            assert!(problem.chars().all(is_plain) && problem.len() < 400, "{problem}");
        }
        assert!(Variant::try_from(&object(spec(target("chat.v2-a")))).is_ok());
        assert!(Variant::try_from(&object(spec(json!({ "modelID": "ö".repeat(256) })))).is_ok());
    }

    #[test]
    fn an_accelerator_that_cannot_be_a_label_value_is_ignored() {
        for name in ["H100\nFORGED", &"H".repeat(64), ""] {
            let selector = json!({ "spec": { "nodeSelector": { "nvidia.com/gpu.product": name } } });
            assert_eq!(deployment(selector).accelerator, None, "{name:?}");
        }
    }

    #[test]
    fn only_our_own_parts_of_a_stored_status_are_kept() {
        let condition = |type_: &str| {
            json!({
                "type": type_, "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"
            })
        };
        let status = |number: i32| {
            let alloc = json!({ "accelerator": "H100", "numReplicas": number });
            let conditions = json!([condition("MetricsAvailable"), condition("Somebody/Elses")]);
            let status = json!({ "desiredOptimizedAlloc": alloc, "conditions": conditions });
            own_status(serde_json::from_value(status).unwrap())
        };
        assert_eq!(status(3).conditions.len(), 1);
        for (number, is_valid) in [(100_000, true), (100_001, false), (i32::MAX, false), (-1, false)] {
            assert_eq!(status(number).desired_optimized_alloc.is_some(), is_valid, "{number}");
        }
    }
}
