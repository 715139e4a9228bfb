//! Which variant a ScaledObject means. Pure.

use tonic::Status;
use wva_core::VariantId;
use wva_core::model::TargetRef;

use super::messages::ScaledObjectRef;
use crate::engine::ClusterView;

/// Metadata of a trigger: the name of the variant, or of an annotated object.
const VARIANT: &str = "variantName";
/// Metadata of a trigger: the Deployment that the variant scales.
const TARGET: &str = "scaleTarget";

/// The name of the variant in the namespace of the ScaledObject: by its metadata or, without these, that of the ScaledObject itself, whose
/// annotations make it a variant.
pub(super) fn variant_of(scaled: &ScaledObjectRef, view: &ClusterView) -> Result<String, Status> {
    let ScaledObjectRef { name, namespace, metadata } = scaled;
    if !is_name(namespace) {
        return Err(Status::invalid_argument(format!("{namespace:?} is not the name of a namespace")));
    }
    let given = |key: &str| metadata.get(key).map(|value| value.trim()).filter(|value| !value.is_empty());
    let found = match (given(VARIANT), given(TARGET)) {
        (Some(variant), _) => variant.to_owned(),
        (None, Some(target)) => of_target(namespace, target, view)?,
        (None, None) if is_known(namespace, name, view) => name.clone(),
        (None, None) => {
            return Err(Status::failed_precondition(format!(
                "ScaledObject {namespace}/{name} is no variant itself, and the metadata of its trigger name none: set {VARIANT} to the name of a \
                 VariantAutoscaling or {TARGET} to that of its Deployment, or annotate the ScaledObject with llm-d.ai/managed: \"true\""
            )));
        }
    };
    if is_name(&found) {
        return Ok(found);
    }
    Err(Status::invalid_argument(format!(
        "{found:?} is not the name of a variant; correct {VARIANT} of the trigger"
    )))
}

fn of_target(namespace: &str, target: &str, view: &ClusterView) -> Result<String, Status> {
    let wanted = TargetRef::deployment(target);
    let mut variants = view.variants.iter().map(|state| &state.variant);
    let found = variants.find(|variant| variant.id.namespace == namespace && variant.target == wanted);
    found.map(|variant| variant.id.name.to_string()).ok_or_else(|| {
        Status::not_found(format!(
            "no variant in namespace {namespace} scales Deployment {target}; correct {TARGET} of the trigger"
        ))
    })
}

/// Whether a variant, or an alias of one, has this name.
fn is_known(namespace: &str, name: &str, view: &ClusterView) -> bool {
    let id = VariantId::new(namespace, name);
    view.variant(&id).is_some() || view.aliases.contains_key(&id)
}

/// Whether a text can be the name of an object.
fn is_name(text: &str) -> bool {
    let is_allowed =
        |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || b"-.".contains(&letter);
    (1..=253).contains(&text.len()) && text.bytes().all(is_allowed)
}
