//! What is judged: the autoscalers of one scale target, and what is known about the variant that decides about it.

use std::collections::BTreeMap;
use std::ops::Bound;

use k8s_openapi::api::autoscaling::v2::{HorizontalPodAutoscaler, HorizontalPodAutoscalerBehavior};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use smol_str::SmolStr;
use wva_core::model::{Analyzer, Bounds, TargetRef};
use wva_core::units::Replicas;
use wva_core::{Policy, Variant, VariantId};

use super::metric::reads_a_number;
use super::pause::is_paused_whole;
use super::termination::Termination;

/// The kind of KEDA's objects.
const SCALED_OBJECT: &str = "ScaledObject";
/// KEDA's API group, with the separator of a version.
const KEDA_GROUP: &str = "keda.sh/";

/// The annotation by which KEDA takes an HPA over.
pub(crate) const TRANSFER: &str = "scaledobject.keda.sh/transfer-hpa-ownership";

/// A scale target with all that scales it.
#[derive(Debug, Clone)]
pub struct Workload<'a> {
    /// The namespace of everything here.
    pub namespace: &'a str,
    /// The scale target.
    pub target: &'a TargetRef,
    /// The variant that decides about it, if there is one.
    pub variant: Option<&'a VariantFacts>,
    /// The HPAs of the target. Those that KEDA made of a ScaledObject count as part of that.
    pub hpas: Vec<&'a HorizontalPodAutoscaler>,
    /// The ScaledObjects of the target.
    pub scaled_objects: Vec<&'a ScaledObject>,
    /// The VerticalPodAutoscalers of the target.
    pub vertical: Vec<&'a VerticalPodAutoscaler>,
    /// Whether there may be autoscalers that could not be read.
    pub is_incomplete: bool,
    /// Whether all variants of the namespace are known.
    pub knows_variants: bool,
    /// How its pods end, if their template is known.
    pub termination: Option<&'a Termination>,
    /// Who serves external metrics instead of this program, if that is known.
    pub external: Option<&'a ExternalMetrics>,
    /// All variants that a read may find.
    pub candidates: &'a Candidates,
}

impl<'a> Workload<'a> {
    /// The HPAs that KEDA did not make.
    pub(super) fn own_hpas(&self) -> impl Iterator<Item = &'a HorizontalPodAutoscaler> + use<'a, '_> {
        self.hpas.iter().copied().filter(|hpa| !is_of_keda(&hpa.metadata))
    }

    /// Whether one of its autoscalers reads a number, and is not paused.
    pub(crate) fn is_read(&self) -> bool {
        let mut scaled = self.scaled_objects.iter().filter(|scaled| !is_paused_whole(&scaled.metadata));
        self.own_hpas().any(reads_a_number) || scaled.any(|scaled| scaled.reads_a_number())
    }

    /// The most replicas that the number and an autoscaler with this maximum allow.
    pub(super) fn most_replicas(&self, own: i32) -> u32 {
        let own = u32::try_from(own).unwrap_or_default();
        let most = self.variant.and_then(|variant| variant.bounds.max).map_or(own, Replicas::get);
        most.min(own)
    }
}

/// What decides about a workload.
#[derive(Debug, Clone, PartialEq)]
pub struct VariantFacts {
    /// Its namespace and name.
    pub id: VariantId,
    /// The kind of the object that makes it.
    pub kind: &'static str,
    /// The bounds of its number.
    pub bounds: Bounds,
    /// The analyzer that decides.
    pub analyzer: Analyzer,
    /// Whether the policy allows its model to go to zero.
    pub may_be_zero: bool,
    /// Whether the number is served divided to HPAs that multiply it.
    pub serves_value_targets: bool,
    /// The share of the running replicas within which the policy takes an HPA to do nothing, 0 to 1.
    pub tolerance: f64,
}

impl VariantFacts {
    /// Those of a variant that an object of `kind` makes, under a policy.
    #[must_use]
    pub fn new(variant: &Variant, kind: &'static str, policy: &Policy, serves_value_targets: bool) -> Self {
        let group = variant.group();
        let model = policy.of(&group);
        Self {
            id: variant.id.clone(),
            kind,
            bounds: variant.bounds,
            analyzer: model.analyzer,
            may_be_zero: policy.scale_to_zero(&group).enabled,
            serves_value_targets,
            tolerance: model.stability.tolerance,
        }
    }
}

/// Who serves external metrics, where that is no installation of this program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExternalMetrics {
    /// Nobody: the APIService does not exist.
    Nobody,
    /// What the APIService points at.
    Another(String),
}

/// A name by which a read finds a variant.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The variant.
    pub(super) variant: VariantId,
    /// The name; an annotated object is found by that of its target too.
    pub(super) name: SmolStr,
    /// What the variant scales.
    pub(super) target: TargetRef,
    accelerator: Label<SmolStr>,
    controller_instance: Label<SmolStr>,
}

/// The value of a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Label<T> {
    /// It has this value.
    Known(T),
    /// There is no such label.
    Absent,
    /// It may have any value, or none: what decides about it was not read.
    Unknown,
}

impl Candidate {
    /// A variant under one of its names. Without a `controller_instance`, the installation may have any. An accelerator that no object
    /// names is unknown unless `has_target`: the scale target was read.
    #[must_use]
    pub fn new(
        variant: &Variant,
        name: &SmolStr,
        controller_instance: Option<&str>,
        has_target: bool,
    ) -> Self {
        let unnamed = if has_target { Label::Absent } else { Label::Unknown };
        Self {
            variant: variant.id.clone(),
            name: name.clone(),
            target: variant.target.clone(),
            accelerator: variant.accelerator.clone().map_or(unnamed, Label::Known),
            controller_instance: controller_instance.map_or(Label::Unknown, |name| Label::Known(name.into())),
        }
    }

    /// The value of a label of its number under this name; a test holds this against what is served.
    #[must_use]
    pub fn label(&self, key: &str) -> Label<&str> {
        match key {
            "accelerator_type" => self.accelerator.as_text(),
            "controller_instance" => self.controller_instance.as_text(),
            "exported_namespace" | "namespace" => Label::Known(&self.variant.namespace),
            "variant" | "variant_name" => Label::Known(&self.name),
            _ => Label::Absent,
        }
    }
}

impl Label<SmolStr> {
    fn as_text(&self) -> Label<&str> {
        match self {
            Self::Known(value) => Label::Known(value),
            Self::Absent => Label::Absent,
            Self::Unknown => Label::Unknown,
        }
    }
}

/// All variants that a read may find, by namespace and name.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Candidates(BTreeMap<SmolStr, BTreeMap<SmolStr, Candidate>>);

impl Candidates {
    /// Those of a namespace: a read of external metrics is about one.
    pub(super) fn of(&self, namespace: &str) -> impl Iterator<Item = &Candidate> + Clone {
        self.0.get(namespace).into_iter().flat_map(BTreeMap::values)
    }

    /// The one of this name.
    pub(super) fn named(&self, namespace: &str, name: &str) -> Option<&Candidate> {
        self.0.get(namespace)?.get(name)
    }

    /// The variants of a namespace, of a name, or all of them: a query to Prometheus is about all namespaces. In the order of their names.
    pub(super) fn variants(
        &self,
        namespace: Option<&str>,
        name: Option<&str>,
    ) -> impl Iterator<Item = &VariantId> {
        let namespaces = self.0.range::<str, _>(only(namespace));
        let candidates = namespaces.flat_map(move |(_, names)| names.range::<str, _>(only(name)));
        candidates.filter(|(key, own)| **key == own.variant.name).map(|(_, own)| &own.variant)
    }
}

/// The range of one key, or of all.
fn only(key: Option<&str>) -> (Bound<&str>, Bound<&str>) {
    key.map_or((Bound::Unbounded, Bound::Unbounded), |key| (Bound::Included(key), Bound::Included(key)))
}

impl FromIterator<Candidate> for Candidates {
    fn from_iter<I: IntoIterator<Item = Candidate>>(candidates: I) -> Self {
        let mut by_namespace: BTreeMap<SmolStr, BTreeMap<SmolStr, Candidate>> = BTreeMap::new();
        for candidate in candidates {
            let names = by_namespace.entry(candidate.variant.namespace.clone()).or_default();
            names.insert(candidate.name.clone(), candidate);
        }
        Self(by_namespace)
    }
}

/// A ScaledObject of KEDA, as far as it is read.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ScaledObject {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// Its spec.
    pub spec: ScaledObjectSpec,
}

/// The spec of a ScaledObject.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScaledObjectSpec {
    /// The scale target.
    pub scale_target_ref: ScaledTarget,
    /// 0 if unset.
    pub min_replica_count: Option<i32>,
    /// 100 if unset.
    pub max_replica_count: Option<i32>,
    /// The replicas while no trigger is active, in place of the minimum.
    pub idle_replica_count: Option<i32>,
    /// Seconds from the last activity to zero; 300 if unset.
    pub cooldown_period: Option<i64>,
    /// What happens when triggers fail.
    pub fallback: Option<Fallback>,
    /// Settings of the HPA that KEDA makes.
    #[serde(default, deserialize_with = "null_as_default")]
    pub advanced: Advanced,
    /// What is read.
    #[serde(default, deserialize_with = "null_as_default")]
    pub triggers: Vec<Trigger>,
}

impl ScaledObjectSpec {
    /// The most replicas, with KEDA's default.
    pub(super) fn max_replicas(&self) -> i32 {
        self.max_replica_count.unwrap_or(100)
    }

    /// Whether KEDA goes below the minimum that its HPA has, while it takes the triggers for inactive.
    pub(super) fn may_deactivate(&self) -> bool {
        self.min_replica_count.unwrap_or_default() == 0 || self.idle_replica_count.is_some()
    }
}

/// The scale target of a ScaledObject; a Deployment if it names no kind.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScaledTarget {
    /// Of its kind.
    pub api_version: Option<String>,
    /// Its kind.
    pub kind: Option<String>,
    /// Its name.
    pub name: String,
}

/// What KEDA does when triggers fail.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Fallback {
    /// The replicas.
    #[serde(default, deserialize_with = "null_as_default")]
    pub replicas: i32,
    /// `static` if unset.
    pub behavior: Option<String>,
}

/// Further settings of a ScaledObject.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Advanced {
    /// Of the HPA that KEDA makes.
    #[serde(deserialize_with = "null_as_default")]
    pub horizontal_pod_autoscaler_config: HpaConfig,
    /// A formula over the triggers.
    #[serde(deserialize_with = "null_as_default")]
    pub scaling_modifiers: ScalingModifiers,
}

/// Settings of the HPA that KEDA makes.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct HpaConfig {
    /// The name of that HPA.
    pub name: Option<String>,
    /// As in an HPA.
    pub behavior: Option<HorizontalPodAutoscalerBehavior>,
}

/// A formula over the triggers.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ScalingModifiers {
    /// The formula.
    pub formula: Option<String>,
}

/// A trigger of a ScaledObject.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trigger {
    /// Its type, such as `prometheus`.
    #[serde(rename = "type")]
    pub type_: String,
    /// `AverageValue` if unset.
    pub metric_type: Option<String>,
    /// Its settings.
    #[serde(default, deserialize_with = "null_as_default")]
    pub metadata: BTreeMap<String, Value>,
}

/// A VerticalPodAutoscaler, as far as it is read.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct VerticalPodAutoscaler {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// Its spec.
    pub spec: VerticalSpec,
}

/// The spec of a VerticalPodAutoscaler.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VerticalSpec {
    /// What it sizes.
    pub target_ref: Option<ScaledTarget>,
    /// How it applies its recommendation.
    pub update_policy: Option<UpdatePolicy>,
}

/// How a VerticalPodAutoscaler applies its recommendation.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdatePolicy {
    /// `Auto` if unset.
    pub update_mode: Option<String>,
}

/// A field that is written without a value, which means its default, as for the API server.
fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

impl ScaledObject {
    /// Whether KEDA takes an HPA over that it has not made.
    pub(super) fn takes_over(&self, hpa: &ObjectMeta) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        let is_told = annotations.and_then(|all| all.get(TRANSFER)).is_some_and(|value| value == "true");
        let name = self.spec.advanced.horizontal_pod_autoscaler_config.name.as_ref();
        is_told && name.is_some_and(|name| hpa.name.as_ref() == Some(name))
    }
}

/// Whether KEDA made an HPA of a ScaledObject.
#[must_use]
pub fn is_of_keda(metadata: &ObjectMeta) -> bool {
    let mut owners = metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.kind == SCALED_OBJECT && owner.api_version.starts_with(KEDA_GROUP))
}
