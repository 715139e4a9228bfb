//! Kubernetes objects → the core's types. Pure: what a field means is decided here and nowhere else.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;
use smol_str::SmolStr;
use wva_core::model::{Bounds, InvalidVariant, Role, TargetRef, Variant, VariantId};
use wva_core::units::{Cost, Replicas};

use super::accelerator::short_name;
use super::partial_objects::annotation;
use crate::cluster::crd::{
    ACCELERATOR_LABEL, CONDITIONS, MAX_COST_CHARS, MAX_KIND_CHARS, MAX_MODEL_ID_CHARS, MAX_REPLICAS,
    MAX_TARGET_NAME_CHARS, ScaleTargetRef, VariantAutoscaling, VariantAutoscalingSpec,
    VariantAutoscalingStatus, WOKEN_BY_ANNOTATION,
};
use crate::cluster::objects::Notice;
use crate::config::policy_config::VariantSettings;
use wva_core::text::{is_plain, plain, quoted};

/// Longest message about an invalid object: a name of 256 characters, another one, and what to do.
const MAX_PROBLEM_BYTES: usize = 1024;
/// Longest text about what starts a variant.
const MAX_WOKEN_BY_BYTES: usize = 128;
/// The field of the model.
const MODEL_FIELD: &str = "spec.modelID";
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
            cost: cost("spec.variantCost", spec.variant_cost.as_deref()).map_err(invalid)?,
            bounds: bounds(("minReplicas", min_replicas(spec)), ("maxReplicas", spec.max_replicas))
                .map_err(invalid)?,
            model: match named_model(spec) {
                Some(id) => model(MODEL_FIELD, id).map_err(invalid)?,
                None => SmolStr::default(),
            },
            accelerator: object.metadata.labels.as_ref().and_then(accelerator_label).map(SmolStr::from),
            role: Role::default(),
            woken_by: woken_by(&object.metadata),
            id: id.clone(),
        })
    }
}

/// What starts a variant when a request arrives for its sleeping model, if its object says so.
pub(super) fn woken_by(metadata: &ObjectMeta) -> Option<SmolStr> {
    let text = annotation(metadata, WOKEN_BY_ANNOTATION)?.trim();
    (!text.is_empty()).then(|| plain(text, MAX_WOKEN_BY_BYTES).into())
}

/// The namespace and name of a namespaced object.
pub(crate) fn variant_id(metadata: &ObjectMeta) -> VariantId {
    VariantId::new(metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

/// An invalid variant and why: on one line of bounded length, whatever its author wrote.
pub(crate) fn invalid_variant(id: VariantId, problem: &str) -> InvalidVariant {
    InvalidVariant::new(id, plain(problem, MAX_PROBLEM_BYTES))
}

/// The model that an object names; its pods say which one it is where it names none.
fn named_model(spec: &VariantAutoscalingSpec) -> Option<&str> {
    spec.model_id.as_deref().filter(|id| !id.is_empty())
}

/// `field` is where the model is written.
pub(super) fn model(field: &str, id: &str) -> Result<SmolStr, String> {
    let allowed = "must be the model_name of the serving metrics";
    let count = id.chars().count();
    if count > MAX_MODEL_ID_CHARS {
        let problem = format!("has {count} characters: {allowed}, and have at most {MAX_MODEL_ID_CHARS}");
        return Err(format!("{field} {} {problem}", quoted(id)));
    }
    if !id.chars().all(is_plain) {
        return Err(format!("{field} {} has control characters: {allowed}", quoted(id)));
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
    if spec.scale_target_ref.is_none() {
        notices.push(Notice {
            reason: "TargetByName",
            note: "spec.scaleTargetRef is not set: the Deployment of this object's name is scaled; set it to that, or to the \
                   workload that is meant"
                .into(),
        });
    }
    if spec.model_profile.is_some() {
        notices.push(Notice {
            reason: "FieldsWithoutEffect",
            note: "without effect, and kept: spec.modelProfile".into(),
        });
    }
    notices
}

/// The settings of the model in the spec of an object, if there are any.
pub(crate) fn model_settings(object: &VariantAutoscaling) -> Option<Arc<VariantSettings>> {
    let minimum = object.spec.min_replicas.and_then(|minimum| u32::try_from(minimum).ok());
    let uid = object.metadata.uid.clone().unwrap_or_default();
    Some(Arc::new(settings(&object.spec)?.of_object(uid, minimum)))
}

fn settings(spec: &VariantAutoscalingSpec) -> Option<VariantSettings> {
    let fields: serde_json::Map<String, Value> =
        spec.model_settings().map(|(name, value)| (name.to_owned(), value.clone())).collect();
    (!fields.is_empty()).then(|| VariantSettings::read(fields.into()))
}

/// The scale target of an object, also of one that is invalid for another reason.
pub(crate) fn readable_target(object: &VariantAutoscaling) -> Option<TargetRef> {
    target(object.spec.scale_target_ref.as_ref(), &variant_id(&object.metadata)).ok()
}

/// The model that an object names, also of one that is invalid for another reason.
pub(crate) fn readable_model(object: &VariantAutoscaling) -> Option<SmolStr> {
    named_model(&object.spec).and_then(|id| model(MODEL_FIELD, id).ok())
}

/// The minimum; where it is unset, 0 for a variant that allows its model to be scaled to zero.
fn min_replicas(spec: &VariantAutoscalingSpec) -> Option<i32> {
    let allows_zero = || settings(spec).is_some_and(|settings| settings.allows_zero());
    spec.min_replicas.or_else(|| allows_zero().then_some(0))
}

pub(super) fn target_ref(reference: &ScaleTargetRef) -> Result<TargetRef, String> {
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
        "LeaderWorkerSet" if group != TargetRef::LEADER_WORKER_SETS => Err(format!(
            "spec.scaleTargetRef.apiVersion is {given}, and a LeaderWorkerSet is of {}/v1: write that",
            TargetRef::LEADER_WORKER_SETS
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
pub(crate) fn is_object_name(name: &str) -> bool {
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        let ends = bytes.first().zip(bytes.last());
        ends.is_some_and(|(first, last)| is_alphanumeric(*first) && is_alphanumeric(*last))
            && bytes.iter().all(|byte| is_alphanumeric(*byte) || *byte == b'-')
    };
    name.len() <= MAX_TARGET_NAME_CHARS && name.split('.').all(is_label)
}

/// `field` is where the cost is written.
pub(super) fn cost(field: &str, text: Option<&str>) -> Result<Cost, String> {
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
        format!("{field} {text} is not a cost ({cause}): write a decimal number such as \"10.0\"")
    })
}

/// Each number with the field of the spec that it is written in.
pub(super) fn bounds(
    (min_field, min): (&str, Option<i32>),
    (max_field, max): (&str, Option<i32>),
) -> Result<Bounds, String> {
    let default = Bounds::default();
    let too_large = |field: &str, number: i32| {
        format!("spec.{field} {number} is too large: a variant has at most {MAX_REPLICAS} replicas")
    };
    let min = match min {
        None => default.min,
        Some(min) if min > MAX_REPLICAS => return Err(too_large(min_field, min)),
        Some(min) => replicas(min).ok_or_else(|| format!("spec.{min_field} {min} is negative"))?,
    };
    let max = match max {
        None => default.max,
        Some(max) if max < 1 => return Err(format!("spec.{max_field} {max} is below 1")),
        Some(max) if max > MAX_REPLICAS => return Err(too_large(max_field, max)),
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
    status.conditions.shrink_to_fit(); // those of all variants are kept
    status.desired_optimized_alloc = status.desired_optimized_alloc.filter(|alloc| {
        stored_replicas(alloc.num_replicas).is_some() && accelerator_name(&alloc.accelerator).is_some()
    });
    status
}

pub(crate) fn replicas(number: i32) -> Option<Replicas> {
    u32::try_from(number).ok().map(Replicas::new)
}

pub(super) fn accelerator_label(labels: &BTreeMap<String, String>) -> Option<String> {
    labels.get(ACCELERATOR_LABEL).and_then(|name| accelerator_name(name))
}

/// The short name of an accelerator; `None` for what cannot be the value of a label.
pub(crate) fn accelerator_name(name: &str) -> Option<String> {
    let is_valid =
        !name.is_empty() && name.chars().count() <= MAX_ACCELERATOR_CHARS && name.chars().all(is_plain);
    is_valid.then(|| short_name(name))
}

#[cfg(test)]
mod tests;
