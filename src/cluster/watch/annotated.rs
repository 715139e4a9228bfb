//! HorizontalPodAutoscalers and ScaledObjects that annotations make variants, without a VariantAutoscaling: as WVA 0.8 and 0.9
//! read them and KServe writes them. Pure: what an annotation means is decided here.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::core::error_boundary::InvalidObject;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use smol_str::SmolStr;
use wva_core::model::{Bounds, Role, TargetRef, Variant};

use super::autoscalers::Scaler;
use super::called_trigger::{ScalerService, Settings, called_settings};
use super::convert::{accelerator_label, bounds, invalid_variant, target_ref, variant_id, woken_by};
use super::partial_objects::{PartialObject, annotation};
use super::pause::Pause;
use super::value_targets::NumberRead;
use crate::cluster::crd::{PAUSED, ScaleTargetRef};
use crate::cluster::objects::{Notice, VariantKind, VariantObject};
use crate::lint::{Number, is_of_keda, number_named, paused};

/// Annotation that makes an object a variant, with the value `true`.
const MANAGED_ANNOTATION: &str = "llm-d.ai/managed";
/// Annotation: the model.
const MODEL_ANNOTATION: &str = "llm-d.ai/model-id";
/// Annotation: the cost of a replica.
const COST_ANNOTATION: &str = "llm-d.ai/variant-cost";
/// The same, for people.
const MODEL_FIELD: &str = "the annotation llm-d.ai/model-id";
const COST_FIELD: &str = "the annotation llm-d.ai/variant-cost";
/// What a ScaledObject means by leaving out `minReplicaCount`.
const KEDA_MIN_REPLICAS: i32 = 0;
/// What a ScaledObject means by leaving out `maxReplicaCount`.
const KEDA_MAX_REPLICAS: i32 = 100;

/// An HPA or a ScaledObject, of which only this is read.
pub(super) type Autoscaler = PartialObject<AutoscalerSpec, IgnoredAny>;

/// The spec of an object of either kind.
#[derive(Deserialize, Debug, Clone, Default)]
#[serde(try_from = "Value")]
pub(super) struct AutoscalerSpec {
    fields: AutoscalerFields,
    whole: Value,
}

impl TryFrom<Value> for AutoscalerSpec {
    type Error = serde_json::Error;

    fn try_from(spec: Value) -> Result<Self, serde_json::Error> {
        let fields = AutoscalerFields::deserialize(&spec)?;
        Ok(Self { fields, whole: spec })
    }
}

/// The fields of both kinds. No kind has those of the other.
#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase", default)]
struct AutoscalerFields {
    scale_target_ref: Option<TargetReference>,
    #[serde(alias = "minReplicaCount")]
    min_replicas: Option<i32>,
    #[serde(alias = "maxReplicaCount")]
    max_replicas: Option<i32>,
    /// Of an HPA.
    metrics: Vec<HpaMetric>,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase", default)]
struct TargetReference {
    api_version: Option<String>,
    kind: String,
    name: String,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(default)]
struct HpaMetric {
    external: Option<ExternalMetric>,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(default)]
struct ExternalMetric {
    metric: MetricName,
    target: MetricTarget,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(default)]
struct MetricName {
    name: String,
    selector: Option<LabelSelector>,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(default)]
struct MetricTarget {
    #[serde(rename = "type")]
    type_: String,
}

/// What is kept of an HPA or a ScaledObject.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WatchedAutoscaler {
    /// Where annotations make it a variant.
    pub(super) variant: Option<Arc<VariantObject>>,
    /// Where annotations pause it.
    pub(super) pause: Option<Box<Pause>>,
    /// How it reads the desired replicas; empty unless that is asked for.
    pub(super) reads: Box<[NumberRead]>,
    /// How it scales its target; `None` for the HPA that KEDA makes.
    pub(super) scaler: Option<Arc<Scaler>>,
}

/// What is kept of an object of this kind, with its reads if these are asked for; `None` for one of which nothing is.
pub(super) fn watched_autoscaler(
    kind: VariantKind,
    with_reads: bool,
    object: Result<Autoscaler, InvalidObject>,
) -> Option<WatchedAutoscaler> {
    let parsed = object.as_ref().ok();
    let pause = parsed.filter(|_| kind == VariantKind::ScaledObject).and_then(pause).map(Box::new);
    let reads = parsed.filter(|_| with_reads).map(number_reads).unwrap_or_default();
    let scaler = parsed.and_then(|object| {
        Scaler::new(kind, &object.metadata, target(&object.spec.fields).ok()?, &object.spec.whole)
    });
    let variant = annotated_object(kind, object);
    let watched = WatchedAutoscaler { variant, pause, reads, scaler: scaler.map(Arc::new) };
    let is_empty = watched.variant.is_none()
        && watched.pause.is_none()
        && watched.reads.is_empty()
        && watched.scaler.is_none();
    (!is_empty).then_some(watched)
}

/// How an HPA reads the desired replicas.
fn number_reads(object: &Autoscaler) -> Box<[NumberRead]> {
    let externals = object.spec.fields.metrics.iter().filter_map(|metric| metric.external.as_ref());
    let desired = externals.filter(|external| number_named(&external.metric.name) == Some(Number::Desired));
    let Ok(scaled) = target(&object.spec.fields) else { return Box::default() };
    desired
        .map(|external| NumberRead::new(external.metric.selector.as_ref(), &external.target.type_, &scaled))
        .collect()
}

fn pause(object: &Autoscaler) -> Option<Pause> {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let note = format!("ScaledObject {name}: {}", paused(&object.metadata)?);
    Some(Pause { target: target(&object.spec.fields).ok()?, note: note.into() })
}

/// The variant that an object of this kind makes; `None` without the annotation for that, and for the HPA that KEDA makes of a
/// ScaledObject and copies its annotations to.
fn annotated_object(
    kind: VariantKind,
    object: Result<Autoscaler, InvalidObject>,
) -> Option<Arc<VariantObject>> {
    let metadata = object.as_ref().map_or_else(|invalid| &invalid.metadata, |object| &object.metadata);
    if annotation(metadata, MANAGED_ANNOTATION) != Some("true") || is_of_keda(metadata) {
        return None;
    }
    let settings = Settings {
        model: (MODEL_FIELD.into(), annotation(metadata, MODEL_ANNOTATION).map(str::to_owned)),
        cost: (COST_FIELD.into(), annotation(metadata, COST_ANNOTATION).map(str::to_owned)),
    };
    Some(Arc::new(variant_object(kind, object, Ok(settings))))
}

/// The variant that a ScaledObject makes for which KEDA calls: its model and cost are in the metadata of its trigger.
///
/// # Errors
/// Says why no trigger makes it one.
pub(super) fn called_object(
    object: Result<Autoscaler, InvalidObject>,
    service: Option<&ScalerService>,
) -> Result<VariantObject, SmolStr> {
    let settings = match &object {
        Ok(object) => called_settings(&object.spec.whole, service)?,
        // What is wrong is said where it is parsed.
        Err(_) => Ok(Settings::default()),
    };
    Ok(VariantObject { is_called: true, ..variant_object(VariantKind::ScaledObject, object, settings) })
}

fn variant_object(
    kind: VariantKind,
    object: Result<Autoscaler, InvalidObject>,
    settings: Result<Settings, String>,
) -> VariantObject {
    let (metadata, spec) = match object {
        Ok(object) => (object.metadata, Ok(object.spec.fields)),
        Err(invalid) => (invalid.metadata, Err(invalid.error)),
    };
    let id = variant_id(&metadata);
    let model = settings.as_ref().ok().and_then(|settings| settings.model().ok().flatten());
    let notices = notices(kind, &metadata);
    let target = spec.as_ref().ok().and_then(|spec| target(spec).ok());
    let variant = spec
        .map_err(|error| format!("the object cannot be parsed ({error}): correct the field it names"))
        .and_then(|spec| variant(kind, &metadata, spec, &settings?))
        .map_err(|problem| invalid_variant(id, &problem));
    VariantObject {
        kind,
        is_called: false,
        uid: metadata.uid.unwrap_or_default(),
        created: metadata.creation_timestamp.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        generation: metadata.generation.unwrap_or_default(),
        notices,
        settings: None,
        model,
        target,
        variant,
        status: None,
    }
}

/// The same of an object that was read whole and has this metadata.
pub(crate) fn annotated_manifest(
    kind: VariantKind,
    metadata: &ObjectMeta,
    object: &Value,
) -> Option<Arc<VariantObject>> {
    let read = serde_json::from_str(&object.to_string());
    let invalid =
        |error: serde_json::Error| InvalidObject { error: error.to_string(), metadata: metadata.clone() };
    annotated_object(kind, read.map_err(invalid))
}

fn variant(
    kind: VariantKind,
    metadata: &ObjectMeta,
    spec: AutoscalerFields,
    settings: &Settings,
) -> Result<Variant, String> {
    Ok(Variant {
        id: variant_id(metadata),
        target: target(&spec)?,
        model: settings.model()?.unwrap_or_default(),
        cost: settings.cost()?,
        bounds: spec_bounds(kind, spec.min_replicas, spec.max_replicas)?,
        accelerator: metadata.labels.as_ref().and_then(accelerator_label).map(SmolStr::from),
        role: Role::default(),
        woken_by: woken_by(metadata),
    })
}

fn target(spec: &AutoscalerFields) -> Result<TargetRef, String> {
    let Some(reference) = &spec.scale_target_ref else {
        return Err("spec.scaleTargetRef is missing: set it to the workload to scale".into());
    };
    let TargetReference { api_version, kind, name } = reference.clone();
    target_ref(&ScaleTargetRef { api_version, kind, name })
}

fn spec_bounds(kind: VariantKind, min: Option<i32>, max: Option<i32>) -> Result<Bounds, String> {
    if kind == VariantKind::ScaledObject {
        let (min, max) = (min.unwrap_or(KEDA_MIN_REPLICAS), max.unwrap_or(KEDA_MAX_REPLICAS));
        return bounds(("minReplicaCount", Some(min)), ("maxReplicaCount", Some(max)));
    }
    bounds(("minReplicas", min), ("maxReplicas", max))
}

/// What the owner of an object should know: that KEDA does not follow the number.
fn notices(kind: VariantKind, metadata: &ObjectMeta) -> Vec<Notice> {
    let is_scaled = kind == VariantKind::ScaledObject;
    let paused = is_scaled.then(|| paused(metadata)).flatten();
    paused.map(|note| Notice { reason: PAUSED, note }).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wva_core::model::{TargetRef, VariantId};
    use wva_core::units::{Cost, Replicas};

    use super::*;
    use crate::cluster::watch::partial_objects::ParseGuard;
    use crate::engine::ClusterView;

    const HPA: VariantKind = VariantKind::HorizontalPodAutoscaler;
    const SCALED_OBJECT: VariantKind = VariantKind::ScaledObject;

    fn kept(kind: VariantKind, metadata: Value, spec: Value) -> Option<Arc<VariantObject>> {
        let text = json!({
            "apiVersion": kind.api_version(), "kind": kind.as_str(), "metadata": metadata, "spec": spec,
            "status": { "currentReplicas": 3 },
        });
        let ParseGuard(object) = serde_json::from_str(&text.to_string()).unwrap();
        annotated_object(kind, object)
    }

    /// An object with these annotations besides the one that makes it a variant.
    fn annotated(kind: VariantKind, annotations: Value, spec: Value) -> Arc<VariantObject> {
        let mut all = json!({ MANAGED_ANNOTATION: "true", MODEL_ANNOTATION: "org/m" });
        all.as_object_mut().unwrap().extend(annotations.as_object().unwrap().clone());
        all.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        let labels = json!({ "inference.optimization/acceleratorName": "H100" });
        let metadata = json!({ "namespace": "llm", "name": "my-hpa", "uid": "u-1", "labels": labels, "annotations": all });
        kept(kind, metadata, spec).unwrap()
    }

    fn spec() -> Value {
        let target = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "chat" });
        json!({ "scaleTargetRef": target, "maxReplicas": 8 })
    }

    fn problem(kind: VariantKind, annotations: Value, spec: Value) -> String {
        annotated(kind, annotations, spec).variant.as_ref().unwrap_err().problem.clone()
    }

    #[test]
    fn an_annotated_hpa_is_a_variant_of_its_own_name() {
        let object = annotated(HPA, json!({ "llm-d.ai/synthetic": "true" }), spec());
        let variant = object.variant.as_ref().unwrap();
        assert_eq!(variant.id, VariantId::new("llm", "my-hpa"));
        assert_eq!((variant.model.as_str(), &variant.target), ("org/m", &TargetRef::deployment("chat")));
        assert_eq!(variant.cost, Cost::new(10.0).unwrap());
        assert_eq!(variant.bounds, Bounds { min: Replicas::ONE, max: Some(Replicas::new(8)) });
        assert_eq!(variant.accelerator.as_deref(), Some("H100"));
        assert!(object.notices.is_empty() && object.status.is_none(), "{object:?}");
    }

    #[test]
    fn an_hpa_without_a_model_was_invalid_instead_of_learning_it_from_its_pods() {
        for unnamed in [Value::Null, json!("")] {
            let object = annotated(HPA, json!({ MODEL_ANNOTATION: unnamed }), spec());
            assert!(!object.variant.as_ref().unwrap().names_model(), "{object:?}");
            assert_eq!(object.model, None);
        }
        let id = VariantId::new("llm", "my-hpa");
        let view = ClusterView { annotated: [id.clone()].into(), ..ClusterView::default() };
        assert_eq!(view.model_field(&id), format!("the annotation {MODEL_ANNOTATION}"));
    }

    #[test]
    fn a_scaled_object_has_the_defaults_of_keda() {
        let variant = |spec| annotated(SCALED_OBJECT, json!({}), spec).variant.clone().unwrap();
        let minimal = variant(json!({ "scaleTargetRef": { "name": "chat" }, "triggers": [] }));
        assert_eq!(minimal.target, TargetRef::deployment("chat"));
        assert_eq!(minimal.bounds, Bounds { min: Replicas::ZERO, max: Some(Replicas::new(100)) });
        let target =
            json!({ "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": "crew" });
        let bounded =
            variant(json!({ "scaleTargetRef": target, "minReplicaCount": 2, "maxReplicaCount": 5 }));
        assert_eq!(bounded.target.kind, "LeaderWorkerSet");
        assert_eq!(bounded.bounds, Bounds { min: Replicas::new(2), max: Some(Replicas::new(5)) });
    }

    #[test]
    fn any_other_value_than_true_is_no() {
        for value in ["True", "TRUE", "1", "yes", "", "false"] {
            let metadata = json!({ "name": "x", "annotations": { MANAGED_ANNOTATION: value } });
            assert_eq!(kept(HPA, metadata, spec()), None, "{value:?}");
        }
        assert_eq!(kept(HPA, json!({ "name": "x" }), spec()), None);
        assert_eq!(kept(HPA, json!({ "name": "x" }), json!("unreadable")), None);
    }

    #[test]
    fn the_hpa_of_a_scaled_object_with_its_copied_annotations_is_no_second_variant() {
        let of = |version: &str, kind: &str| {
            let owners = json!([{ "apiVersion": version, "kind": kind, "name": "chat", "uid": "s-1", "controller": true }]);
            let annotations = json!({ MANAGED_ANNOTATION: "true", MODEL_ANNOTATION: "org/m" });
            let name = "keda-hpa-chat";
            kept(HPA, json!({ "name": name, "annotations": annotations, "ownerReferences": owners }), spec())
        };
        assert_eq!(of("keda.sh/v1alpha1", "ScaledObject"), None);
        assert!(of("serving.kserve.io/v1alpha2", "LLMInferenceService").is_some());
    }

    #[test]
    fn an_invalid_object_is_named_with_its_cause_and_the_next_step() {
        let at = |key: &str, value: Value| problem(HPA, json!({ key: value }), spec());
        assert!(
            at(MODEL_ANNOTATION, json!("a\nb"))
                .contains("llm-d.ai/model-id \"a\\nb\" has control characters")
        );
        assert!(
            at(COST_ANNOTATION, json!("cheap"))
                .starts_with("the annotation llm-d.ai/variant-cost \"cheap\" is not")
        );
        for cost in ["-1", "NaN", "inf", &"9".repeat(400)] {
            assert!(at(COST_ANNOTATION, json!(cost)).contains("llm-d.ai/variant-cost"), "{cost}");
        }
        assert_eq!(
            problem(SCALED_OBJECT, json!({}), json!({ "triggers": [] })),
            "spec.scaleTargetRef is missing: set it to the workload to scale"
        );
        let target = json!({ "name": "chat" });
        let negative = json!({ "scaleTargetRef": target, "minReplicaCount": -1 });
        assert_eq!(problem(SCALED_OBJECT, json!({}), negative), "spec.minReplicaCount -1 is negative");
        let without = json!({ "scaleTargetRef": target, "maxReplicaCount": 0 });
        assert_eq!(problem(SCALED_OBJECT, json!({}), without), "spec.maxReplicaCount 0 is below 1");
        assert!(
            problem(SCALED_OBJECT, json!({}), json!({ "maxReplicaCount": [] }))
                .starts_with("the object cannot be parsed (")
        );
    }

    fn reasons(object: &VariantObject) -> Vec<&str> {
        object.notices.iter().map(|notice| notice.reason).collect()
    }

    #[test]
    fn a_paused_scaled_object_is_told_that_the_number_is_not_applied() {
        let paused = |key: &str, value: &str| {
            annotated(SCALED_OBJECT, json!({ key: value }), json!({ "scaleTargetRef": { "name": "chat" } }))
        };
        let object = paused("autoscaling.keda.sh/paused", "soon");
        assert!(object.variant.is_ok(), "the number is still computed");
        assert_eq!(reasons(&object), ["Paused"]);
        assert!(object.notices[0].note.contains("the annotation autoscaling.keda.sh/paused is \"soon\""));
        assert!(paused("autoscaling.keda.sh/paused", "false").notices.is_empty());
    }

    #[test]
    fn of_an_autoscaler_without_annotations_of_ours_it_is_kept_what_it_scales_and_what_pauses_it() {
        let watched = |kind: VariantKind, annotations: Value| {
            let metadata = json!({ "namespace": "llm", "name": "scaler", "annotations": annotations });
            let text = json!({ "metadata": metadata, "spec": { "scaleTargetRef": { "name": "chat" } } });
            let ParseGuard(object) = serde_json::from_str(&text.to_string()).unwrap();
            watched_autoscaler(kind, false, object)
        };
        let annotations = json!({ "autoscaling.keda.sh/paused": "true" });
        let kept = watched(SCALED_OBJECT, annotations.clone()).unwrap();
        let pause = kept.pause.unwrap();
        assert_eq!((kept.variant, &pause.target), (None, &TargetRef::deployment("chat")));
        assert!(
            pause.note.starts_with("ScaledObject scaler: KEDA does not apply the number"),
            "{}",
            pause.note
        );
        assert!(kept.scaler.is_some());
        for (kind, annotations) in [(HPA, annotations), (SCALED_OBJECT, json!({}))] {
            let kept = watched(kind, annotations).unwrap();
            assert!(kept.scaler.is_some() && kept.pause.is_none() && kept.variant.is_none());
        }
    }
}
