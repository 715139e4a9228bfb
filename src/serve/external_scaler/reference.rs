//! Which variant a ScaledObject means. Pure.

use tonic::Status;
use wva_core::VariantId;
use wva_core::model::TargetRef;

use super::messages::ScaledObjectRef;
use crate::engine::ClusterView;

/// The metric that is read.
pub(super) const METRIC: &str = "wva_desired_replicas";
/// Metadata of a trigger: the name of the variant, or of an annotated object.
const VARIANT: &str = "variantName";
/// Metadata of a trigger: the model. A call then makes the ScaledObject a variant.
const MODEL: &str = "modelID";
/// Metadata of a trigger: the Deployment that the variant scales.
const TARGET: &str = "scaleTarget";

/// The name of the variant in the namespace of the ScaledObject: by its metadata or, without these, that of the ScaledObject itself, whose
/// annotations make it a variant.
pub(super) fn variant_of(scaled: &ScaledObjectRef, view: &ClusterView) -> Result<String, Status> {
    let ScaledObjectRef { name, namespace, .. } = scaled;
    let found = match (given(scaled, VARIANT), given(scaled, TARGET)) {
        (Some(variant), _) => variant.to_owned(),
        (None, Some(target)) => of_target(namespace, target, view)?,
        (None, None) if is_known(namespace, name, view) => name.clone(),
        (None, None) => {
            return Err(Status::failed_precondition(format!(
                "ScaledObject {namespace}/{name} is no variant itself, and the metadata of its trigger name none: set {VARIANT} to the name of a \
                 VariantAutoscaling, {TARGET} to that of its Deployment or {MODEL} to the model, or annotate the ScaledObject with llm-d.ai/managed: \"true\""
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

/// Whether a ScaledObject is to become a variant by being called for: its trigger names a model, and no variant.
pub(super) fn names_model(scaled: &ScaledObjectRef) -> bool {
    given(scaled, MODEL).is_some() && given(scaled, VARIANT).is_none() && given(scaled, TARGET).is_none()
}

/// Why such a ScaledObject has no number.
pub(super) fn not_yet(ScaledObjectRef { namespace, name, .. }: &ScaledObjectRef, cause: &str) -> Status {
    Status::unavailable(format!(
        "ScaledObject {namespace}/{name}, whose trigger has {MODEL}, has no number as a variant: {cause}"
    ))
}

/// Refuses names that no object has.
pub(super) fn check_names(ScaledObjectRef { namespace, name, .. }: &ScaledObjectRef) -> Result<(), Status> {
    for (text, what) in [(namespace, "namespace"), (name, "ScaledObject")] {
        if !is_name(text) {
            return Err(Status::invalid_argument(format!("{text:?} is not the name of a {what}")));
        }
    }
    Ok(())
}

/// Metadata of the trigger, unless it is empty.
fn given<'a>(scaled: &'a ScaledObjectRef, key: &str) -> Option<&'a str> {
    scaled.metadata.get(key).map(|value| value.trim()).filter(|value| !value.is_empty())
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
