//! Kubernetes objects → the core's types. Pure: what a field means is decided here and nowhere else.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use smol_str::SmolStr;
use wva_core::model::{Bounds, InvalidVariant, Role, TargetRef, Variant, VariantId};
use wva_core::units::{Cost, Replicas};

use super::accelerator::short_name;
use crate::cluster::crd::{
    ACCELERATOR_LABEL, CONDITIONS, MAX_COST_CHARS, MAX_KIND_CHARS, MAX_MODEL_ID_CHARS, MAX_REPLICAS,
    MAX_TARGET_NAME_CHARS, ScaleTargetRef, VariantAutoscaling, VariantAutoscalingSpec,
    VariantAutoscalingStatus,
};
use crate::cluster::objects::{LEADER_WORKER_SET_GROUP, Notice};
use crate::cluster::text::{is_plain, plain, quoted};

/// Longest message about an invalid object: a name of 256 characters, another one, and what to do.
const MAX_PROBLEM_BYTES: usize = 1024;
/// The kind that is meant where none is written.
const DEPLOYMENT: &str = "Deployment";
/// What the definition of upstream's v0.6 to v0.8 writes where `maxReplicas` is not set. Here there is no default.
const UPSTREAM_MAX_REPLICAS: i32 = 2;
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
            target: target(spec.scale_target_ref.as_ref(), &id).map_err(invalid)?,
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

/// v0.4 had no `scaleTargetRef`: the target was the Deployment of the object's own name.
fn target(reference: Option<&ScaleTargetRef>, id: &VariantId) -> Result<TargetRef, String> {
    reference.map_or_else(|| Ok(TargetRef::deployment(id.name.clone())), target_ref)
}

/// What the owner of an object should know once.
pub(crate) fn notices(spec: &VariantAutoscalingSpec) -> Vec<Notice> {
    let mut notices = Vec::new();
    if spec.max_replicas == Some(UPSTREAM_MAX_REPLICAS) {
        notices.push(Notice {
            reason: "MaximumMayBeDefault",
            note: format!(
                "spec.maxReplicas is {UPSTREAM_MAX_REPLICAS}, which the definition of WVA v0.6 to v0.8 writes where it is not \
                 set: it is the maximum here too; raise or remove it if you did not mean it"
            ),
        });
    }
    if let (Some(min), Some(max)) = (spec.min_replicas, spec.max_replicas)
        && min > max
    {
        notices.push(Notice {
            reason: "MinimumAboveMaximum",
            note: format!(
                "spec.minReplicas {min} is above spec.maxReplicas {max}: the minimum counts; correct one of the two"
            ),
        });
    }
    if let Some(version) = spec.scale_target_ref.as_ref().and_then(ignored_version) {
        notices.push(Notice {
            reason: "ApiVersionIgnored",
            note: format!(
                "spec.scaleTargetRef.apiVersion {} has no Deployment: the one of apps/v1 is scaled; write apps/v1",
                quoted(version)
            ),
        });
    }
    let fields: Vec<_> = spec.fields_without_effect().map(|field| format!("spec.{field}")).collect();
    if !fields.is_empty() {
        notices.push(Notice {
            reason: "FieldsWithoutEffect",
            note: format!("without effect, and kept: {}", fields.join(", ")),
        });
    }
    notices
}

fn target_ref(reference: &ScaleTargetRef) -> Result<TargetRef, String> {
    // Earlier controllers never checked the kind, so objects without one exist.
    let kind = if reference.kind.is_empty() { DEPLOYMENT } else { reference.kind.as_str() };
    let is_kind = kind.len() <= MAX_KIND_CHARS
        && kind.starts_with(|first: char| first.is_ascii_uppercase())
        && kind.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !is_kind {
        return Err(format!(
            "spec.scaleTargetRef.kind {} is not the name of a kind: write one such as Deployment",
            quoted(kind)
        ));
    }
    let version = reference.api_version.as_deref().unwrap_or_default();
    let group = if kind == DEPLOYMENT { deployment_group(version) } else { target_group(version, kind)? };
    if reference.name.is_empty() {
        return Err(format!("spec.scaleTargetRef.name is empty: set it to the {kind}'s name"));
    }
    if !is_object_name(&reference.name) {
        return Err(format!(
            "spec.scaleTargetRef.name {} is not a valid name of a {kind}: must be at most {MAX_TARGET_NAME_CHARS} \
             lowercase letters, digits, '-' and '.', with a letter or digit at both ends",
            quoted(&reference.name)
        ));
    }
    Ok(TargetRef { group: group.into(), kind: kind.into(), name: reference.name.as_str().into() })
}

/// The group of a Deployment. Earlier versions scaled those of apps whatever was written, so that stored objects have no version,
/// or one that never was theirs. Only a group with a dot may have a Deployment of its own.
fn deployment_group(version: &str) -> &str {
    let group = version.split_once('/').map_or("", |(group, _)| group);
    if group.contains('.') && is_object_name(group) { group } else { TargetRef::APPS }
}

/// The API version of a Deployment that means that of apps although it says something else.
fn ignored_version(reference: &ScaleTargetRef) -> Option<&str> {
    let version = reference.api_version.as_deref().filter(|version| !version.is_empty())?;
    let is_deployment = reference.kind.is_empty() || reference.kind == DEPLOYMENT;
    let says_apps = version.split_once('/').is_some_and(|(group, _)| group == TargetRef::APPS);
    (is_deployment && !says_apps && deployment_group(version) == TargetRef::APPS).then_some(version)
}

/// The group of an API version; an empty one is apps/v1. Whether a group that is not known here has the kind, only the API
/// server knows.
fn target_group<'a>(version: &'a str, kind: &str) -> Result<&'a str, String> {
    let (group, number) = match version.split_once('/') {
        Some(parts) => parts,
        None if version.is_empty() => (TargetRef::APPS, "v1"),
        None => ("", version),
    };
    if !(group.is_empty() || is_object_name(group)) || !is_object_name(number) {
        return Err(format!(
            "spec.scaleTargetRef.apiVersion {} is not an API version: write GROUP/VERSION, such as apps/v1",
            quoted(version)
        ));
    }
    let given = if version.is_empty() { "empty, which is apps/v1".to_owned() } else { quoted(version) };
    match kind {
        "LeaderWorkerSet" if group != LEADER_WORKER_SET_GROUP => Err(format!(
            "spec.scaleTargetRef.apiVersion is {given}, and a LeaderWorkerSet is of {LEADER_WORKER_SET_GROUP}/v1: write that"
        )),
        "StatefulSet" | "ReplicaSet" => Ok(group),
        _ if group == TargetRef::APPS => Err(format!(
            "spec.scaleTargetRef.apiVersion is {given}, and apps has no {kind} with replicas: write the API version of the \
             kind, or kind Deployment or StatefulSet"
        )),
        _ => Ok(group),
    }
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

pub(crate) fn replicas(number: i32) -> Option<Replicas> {
    u32::try_from(number).ok().map(Replicas::new)
}

fn accelerator_label(labels: &BTreeMap<String, String>) -> Option<String> {
    labels.get(ACCELERATOR_LABEL).and_then(|name| accelerator_name(name))
}

/// The short name of an accelerator; `None` for what cannot be the value of a label.
pub(crate) fn accelerator_name(name: &str) -> Option<String> {
    let is_valid =
        !name.is_empty() && name.chars().count() <= MAX_ACCELERATOR_CHARS && name.chars().all(is_plain);
    is_valid.then(|| short_name(name))
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
    }

    #[test]
    fn a_deployment_that_was_scaled_whatever_its_api_version_said_still_is() {
        for version in ["v1", "extensions/v1beta1", "Apps/v1", "a/b/c", "apps", "/", "apps/v1\n"] {
            let reference = json!({ "apiVersion": version, "kind": "Deployment", "name": "x" });
            let variant = Variant::try_from(&object(spec(json!({ "scaleTargetRef": reference }))));
            assert_eq!(variant.unwrap().target, TargetRef::deployment("x"), "{version}");
        }
        let reference = json!({ "apiVersion": "example.com/v1", "kind": "Deployment", "name": "x" });
        let honoured = Variant::try_from(&object(spec(json!({ "scaleTargetRef": reference })))).unwrap();
        assert_eq!(honoured.target.group, "example.com", "a kind of that name in another group");
    }

    #[test]
    fn the_group_of_the_scale_target_must_fit_its_kind() {
        let reference = |version: &str, kind: &str| {
            let reference = json!({ "apiVersion": version, "kind": kind, "name": "x" });
            Variant::try_from(&object(spec(json!({ "scaleTargetRef": reference }))))
        };
        for (version, kind, group) in [
            ("", "", "apps"),
            ("", "StatefulSet", "apps"),
            ("apps/v1beta2", "Deployment", "apps"),
            ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkerset.x-k8s.io"),
            ("argoproj.io/v1alpha1", "Rollout", "argoproj.io"),
            ("apps.kruise.io/v1beta1", "StatefulSet", "apps.kruise.io"),
            ("v1", "ReplicationController", ""),
        ] {
            let target = reference(version, kind).unwrap().target;
            assert_eq!(target.group, group, "{version} {kind}");
            assert_eq!(target.kind, if kind.is_empty() { "Deployment" } else { kind });
        }
        for (version, kind, says) in [
            (
                "",
                "LeaderWorkerSet",
                "is empty, which is apps/v1, and a LeaderWorkerSet is of leaderworkerset.x-k8s.io/v1: write that",
            ),
            ("", "Rollout", "has no Rollout with replicas: write the API version of the kind"),
            ("apps/v1", "DaemonSet", "has no DaemonSet with replicas"),
            ("a/b/c", "Rollout", "\"a/b/c\" is not an API version"),
            ("Apps/v1", "StatefulSet", "\"Apps/v1\" is not an API version"),
            ("v1", "pods/exec", "kind \"pods/exec\" is not the name of a kind"),
        ] {
            let problem = reference(version, kind).unwrap_err().problem;
            assert!(problem.contains(says), "{problem}");
        }
    }

    #[test]
    fn an_object_of_v0_4_scales_the_deployment_of_its_own_name_and_is_told_what_has_no_effect() {
        let stored = object(json!({
            "modelID": "org/m", "variantCost": "40.0",
            "modelProfile": { "accelerators": [{ "acc": "A100", "accCount": 1, "perfParms": { "decodeParms": {} } }] },
            "sloClassRef": { "name": "premium", "key": "opt-125m" }, "somethingElse": [1, 2]
        }));
        let variant = Variant::try_from(&stored).unwrap();
        assert_eq!(variant.target, TargetRef::deployment("chat"));
        assert_eq!(
            notices(&stored.spec),
            [Notice {
                reason: "FieldsWithoutEffect",
                note: "without effect, and kept: spec.modelProfile, spec.sloClassRef".into()
            }]
        );
        assert!(notices(&object(spec(json!({ "maxReplicas": 3 }))).spec).is_empty());
    }

    #[test]
    fn what_is_accepted_and_not_meant_as_written_is_a_notice() {
        let notices_of = |extra: Value| -> Vec<_> {
            notices(&object(spec(extra)).spec)
                .into_iter()
                .map(|notice| (notice.reason, notice.note))
                .collect()
        };
        let of_bounds = notices_of(json!({ "minReplicas": 5, "maxReplicas": 3 }));
        let [(reason, note)] = &of_bounds[..] else { panic!("{of_bounds:?}") };
        assert_eq!(*reason, "MinimumAboveMaximum");
        assert!(note.contains("minReplicas 5 is above spec.maxReplicas 3: the minimum counts"), "{note}");
        let target = |version: &str, kind: &str| json!({ "scaleTargetRef": { "apiVersion": version, "kind": kind, "name": "chat" } });
        for (version, kind) in [("v1", "Deployment"), ("extensions/v1beta1", ""), ("\n", "Deployment")] {
            let notices = notices_of(target(version, kind));
            let [(reason, note)] = &notices[..] else { panic!("{version}: {notices:?}") };
            assert_eq!(*reason, "ApiVersionIgnored");
            assert!(note.contains("write apps/v1") && note.chars().all(is_plain), "{note}");
        }
        for (version, kind) in
            [("", "Deployment"), ("apps/v1", ""), ("apps/v1beta2", "Deployment"), ("v1", "X")]
        {
            assert!(notices_of(target(version, kind)).is_empty(), "{version} {kind}");
        }
        assert!(notices_of(target("example.com/v1", "Deployment")).is_empty(), "a kind of another group");
    }

    #[test]
    fn a_stored_maximum_of_two_is_respected_and_may_be_the_default_of_upstream() {
        let stored = object(spec(json!({ "maxReplicas": 2, "saturationThreshold": 0.8 })));
        assert_eq!(Variant::try_from(&stored).unwrap().bounds.max, Some(Replicas::new(2)));
        let reasons: Vec<_> = notices(&stored.spec).into_iter().map(|notice| notice.reason).collect();
        assert_eq!(reasons, ["MaximumMayBeDefault", "FieldsWithoutEffect"]);
    }

    #[test]
    fn a_minimum_of_zero_is_kept() {
        let variant =
            Variant::try_from(&object(spec(json!({ "minReplicas": 0, "maxReplicas": 4 })))).unwrap();
        assert_eq!(variant.bounds, Bounds { min: Replicas::ZERO, max: Some(Replicas::new(4)) });
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
