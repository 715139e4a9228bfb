//! The `VariantAutoscaling` custom resource: its Rust types and its definition as YAML. Field names, validation and defaults are
//! those that installed objects rely on. What a field means for a decision is in `watch`.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, CustomResourceExt};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use wva_core::Variant;

/// Label of a variant: the name of its accelerator.
pub const ACCELERATOR_LABEL: &str = "inference.optimization/acceleratorName";
/// Label of a variant: the installation that is responsible for it.
pub const CONTROLLER_INSTANCE_LABEL: &str = "wva.llmd.ai/controller-instance";
/// Annotation of an object that makes a variant: what starts the variant when a request arrives for its sleeping model, other than
/// the scheduler's queue that is measured here. Any text for people.
pub const WOKEN_BY_ANNOTATION: &str = "wva.llmd.ai/woken-by";
/// [`Replicas::MAX`](wva_core::units::Replicas::MAX), as fields of objects have it.
pub const MAX_REPLICAS: i32 = wva_core::units::Replicas::MAX.get().cast_signed();
/// Condition: whether the scale target exists.
pub(crate) const TARGET_RESOLVED: &str = "TargetResolved";
/// Condition: whether the metrics suffice for a decision.
pub(crate) const METRICS_AVAILABLE: &str = "MetricsAvailable";
/// Condition: whether there is a desired number of replicas.
pub(crate) const OPTIMIZATION_READY: &str = "OptimizationReady";
/// Condition: whether the analyzer has every signal that it reads, of every serving pod.
pub(crate) const SIGNALS_COMPLETE: &str = "SignalsComplete";
/// Condition: a configured limit is not enforced. Absent where it is, or none is configured.
pub(crate) const LIMIT_ENFORCED: &str = "LimitEnforced";
/// Condition: a shared limit, or a lack of room on the nodes, keeps replicas back that are needed.
pub(crate) const CAPACITY_CONSTRAINED: &str = "CapacityConstrained";
/// Condition, and its reason: a ScaledObject with the same scale target is paused. Absent otherwise.
pub(crate) const PAUSED: &str = "Paused";
/// Condition: whether the autoscalers of its target follow the number. Absent where they are not known.
pub(crate) const AUTOSCALER_CONFIGURED: &str = "AutoscalerConfigured";
/// All conditions that `writers` set.
pub(crate) const CONDITIONS: [&str; 8] = [
    TARGET_RESOLVED,
    METRICS_AVAILABLE,
    SIGNALS_COMPLETE,
    OPTIMIZATION_READY,
    CAPACITY_CONSTRAINED,
    LIMIT_ENFORCED,
    AUTOSCALER_CONFIGURED,
    PAUSED,
];
/// Longest `modelID`.
pub(crate) const MAX_MODEL_ID_CHARS: usize = Variant::MAX_MODEL_CHARS;
/// Longest name of an object (RFC 1123 subdomain).
pub(crate) const MAX_TARGET_NAME_CHARS: usize = 253;
/// Longest `variantCost`: more digits than a float can tell apart.
pub(crate) const MAX_COST_CHARS: usize = 32;
/// Longest `kind` and `apiVersion`: labels of 63 characters, and a group of 253.
pub(crate) const MAX_KIND_CHARS: usize = 63;
const MAX_API_VERSION_CHARS: usize = 317;
/// Names of objects: RFC 1123 subdomains. An empty name is reported by a condition.
const OBJECT_NAME: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$";
/// Durations as Go writes them, and 1h 30m.
const IDLE_TIMEOUT: &str = r"^([0-9]+(\.[0-9]+)?(h|m|s|ms)\s?)+$";
/// Text on one line, without control characters.
const ONE_LINE: &str = r"^[^\x00-\x1f\x7f]*$";

/// The scale target of a variant, the model it serves, and the cost of one replica.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq)]
#[kube(
    group = "llmd.ai",
    version = "v1alpha1",
    kind = "VariantAutoscaling",
    plural = "variantautoscalings",
    singular = "variantautoscaling",
    shortname = "va",
    namespaced,
    status = "VariantAutoscalingStatus",
    derive = "PartialEq",
    doc = "A VariantAutoscaling is one way of serving a model (a workload of model servers) that is scaled on its own. \
           Its desired number of replicas is computed from live inference metrics and read by an autoscaler as the \
           external metric wva_desired_replicas.",
    printcolumn = r#"{"name":"Target","type":"string","jsonPath":".spec.scaleTargetRef.name"}"#,
    printcolumn = r#"{"name":"Model","type":"string","jsonPath":".spec.modelID"}"#,
    printcolumn = r#"{"name":"Optimized","type":"string","jsonPath":".status.desiredOptimizedAlloc.numReplicas"}"#,
    printcolumn = r#"{"name":"MetricsReady","type":"string","jsonPath":".status.conditions[?(@.type=='MetricsAvailable')].status"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Min","type":"integer","jsonPath":".spec.minReplicas"}"#,
    printcolumn = r#"{"name":"Max","type":"integer","jsonPath":".spec.maxReplicas"}"#,
    printcolumn = r#"{"name":"Applied","type":"boolean","jsonPath":".status.actuation.applied"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type=='OptimizationReady')].reason"}"#,
    printcolumn = r#"{"name":"Constraint","type":"string","jsonPath":".status.conditions[?(@.type=='CapacityConstrained')].reason"}"#,
    printcolumn = r#"{"name":"Why","type":"string","priority":1,"jsonPath":".status.conditions[?(@.type=='OptimizationReady')].message"}"#,
    printcolumn = r#"{"name":"Limit","type":"string","priority":1,"jsonPath":".status.conditions[?(@.type=='CapacityConstrained')].message"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct VariantAutoscalingSpec {
    /// The workload to scale, in the namespace of this object. Of several VariantAutoscalings with one workload, the oldest
    /// decides. Objects of v0.4 are stored without it, and mean the Deployment of their own name.
    #[schemars(required)]
    pub scale_target_ref: Option<ScaleTargetRef>,

    /// The model that is served: the value of the label model_name on its serving metrics. The variants of one model in one
    /// namespace are scaled together. If unset or empty, it is the one that the metrics of the pods name; while they name none or
    /// several, there is no number.
    #[serde(rename = "modelID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_MODEL_ID_CHARS), regex(pattern = ONE_LINE))]
    pub model_id: Option<String>,

    /// The cost of one replica, in any unit: only the ratio between the variants of a model matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_COST_CHARS), regex(pattern = r"^\d+(\.\d+)?$"), extend("default" = "10.0"))]
    pub variant_cost: Option<String>,

    /// Minimum of the desired replicas; 1 if unset. With 0 an idle model may be scaled to zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = MAX_REPLICAS))]
    pub min_replicas: Option<i32>,

    /// Maximum of the desired replicas; none if unset. If it is below minReplicas, minReplicas wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_REPLICAS))]
    pub max_replicas: Option<i32>,

    /// Of earlier versions: accepted and kept, without effect. Capacity is learned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "unread_schema")]
    pub model_profile: Option<Unread>,

    /// Of earlier versions: the field key names an entry of the ConfigMap of service classes, and its latency objectives for this
    /// model count as sloTtft and sloTpot. The field name has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "unread_schema")]
    pub slo_class_ref: Option<Value>,

    /// A replica of this model is saturated at this KV-cache use, above 0 to 1. Of several variants of a model, the lowest counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "threshold_schema")]
    pub saturation_threshold: Option<Value>,

    /// Whether and when the model is scaled to zero while it is idle: only if all of its variants allow it and have minReplicas 0,
    /// and after the longest of their idle times. With enabled, an unset minReplicas is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "scale_to_zero_schema")]
    pub scale_to_zero: Option<Value>,

    /// Objective for the time between two tokens, milliseconds. Of several variants of a model, the lowest counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "unread_schema")]
    pub slo_tpot: Option<Value>,

    /// Objective for the time to the first token, milliseconds. Of several variants of a model, the lowest counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "unread_schema")]
    pub slo_ttft: Option<Value>,
}

impl VariantAutoscalingSpec {
    /// The fields that are settings of the model.
    pub(crate) fn model_settings(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        let fields = [
            ("saturationThreshold", &self.saturation_threshold),
            ("scaleToZero", &self.scale_to_zero),
            ("sloClassRef", &self.slo_class_ref),
            ("sloTpot", &self.slo_tpot),
            ("sloTtft", &self.slo_ttft),
        ];
        fields.into_iter().filter_map(|(name, field)| Some((name, field.as_ref()?)))
    }
}

/// A field that is not read. The API server keeps it; this program never writes a spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unread;

impl<'de> Deserialize<'de> for Unread {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

impl Serialize for Unread {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

/// The workload to scale.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct ScaleTargetRef {
    /// API version of the workload, of which only the group matters; apps/v1 if empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_API_VERSION_CHARS), regex(pattern = ONE_LINE))]
    pub api_version: Option<String>,
    /// Kind of the workload: Deployment, StatefulSet, LeaderWorkerSet, or any other with a scale subresource.
    #[schemars(length(max = MAX_KIND_CHARS), regex(pattern = ONE_LINE))]
    pub kind: String,
    /// Name of the workload.
    #[schemars(length(max = MAX_TARGET_NAME_CHARS), regex(pattern = OBJECT_NAME))]
    pub name: String,
}

/// The last decision, and the conditions of the variant.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct VariantAutoscalingStatus {
    /// The desired allocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_optimized_alloc: Option<OptimizedAlloc>,
    /// Whether the workload follows the desired allocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actuation: Option<Actuation>,
    /// Conditions such as TargetResolved, MetricsAvailable and CapacityConstrained.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,
}

impl VariantAutoscalingStatus {
    /// When the number was decided.
    pub(crate) fn last_run(&self) -> Option<Timestamp> {
        Some(self.desired_optimized_alloc.as_ref()?.last_run_time.as_ref()?.0)
    }

    /// The condition of this type, if it is set.
    pub(crate) fn condition(&self, type_: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.type_ == type_)
    }
}

/// The desired allocation of a variant.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct OptimizedAlloc {
    /// When the number was last decided; written about once a minute while it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "last_run_schema")]
    pub last_run_time: Option<Time>,
    /// Name of the accelerator; unresolved if it is not known.
    #[schemars(length(min = 2))]
    pub accelerator: String,
    /// The desired number of replicas.
    #[schemars(range(min = 0))]
    pub num_replicas: i32,
}

/// Whether the workload follows the desired allocation.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq)]
pub struct Actuation {
    /// True if the workload has the desired number of replicas.
    pub applied: bool,
}

/// The definition as it is installed. Deterministic: the checked-in file must equal it.
///
/// # Errors
/// When the definition cannot be written as YAML.
pub fn crd_yaml() -> Result<String, CrdError> {
    let mut crd = serde_json::to_value(VariantAutoscaling::crd())?;
    normalize(&mut crd);
    // Objects without a spec were always accepted, and a condition reports them; those of v0.4 have no scaleTargetRef. Before
    // version 1.30 Kubernetes refuses the status of a stored object that the definition would refuse, so none of them is refused.
    // A rule that refuses new ones only needs `optionalOldSelf`, with which earlier versions refuse the whole definition.
    if let Some(schema) =
        crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema").and_then(Value::as_object_mut)
    {
        schema.remove("required");
        let spec = schema.get_mut("properties").and_then(|properties| properties.get_mut("spec"));
        if let Some(spec) = spec.and_then(Value::as_object_mut) {
            spec.remove("required");
        }
    }
    let yaml = serde_saphyr::to_string(&crd).map_err(|error| CrdError::Yaml(error.to_string()))?;
    Ok(format!("# Generated by `wva crd`; do not edit.\n{yaml}"))
}

/// A definition that cannot be rendered.
#[derive(Debug, thiserror::Error)]
pub enum CrdError {
    /// Not JSON.
    #[error("the definition of variantautoscalings.llmd.ai is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// Not YAML.
    #[error("the definition of variantautoscalings.llmd.ai is not YAML: {0}")]
    Yaml(String),
}

/// An optional field may be absent, not `null`, as it always was. Integral limits are written as integers, and descriptions
/// without the line breaks of the source.
fn normalize(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("nullable");
            if let Some(Value::String(text)) = fields.get_mut("description") {
                *text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            }
            for bound in ["minimum", "maximum"] {
                let limit = fields.get(bound).and_then(Value::as_f64);
                if let Some(limit) = limit.filter(|limit| limit.fract().abs() < f64::EPSILON) {
                    fields.insert(bound.into(), (limit as i64).into());
                }
            }
            fields.values_mut().for_each(normalize);
        }
        Value::Array(items) => items.iter_mut().for_each(normalize),
        _ => {}
    }
}

fn unread_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}

fn threshold_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "number", "minimum": 0, "exclusiveMinimum": true, "maximum": 1 })
}

fn scale_to_zero_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            "enabled": { "type": "boolean", "description": "Whether this variant allows it." },
            "idleTimeout": {
                "type": "string", "description": "After which idle time, 1s to 720h, such as 300s or 10m.", "pattern": IDLE_TIMEOUT
            }
        }
    })
}

fn last_run_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "format": "date-time",
        "description": "When the number was last decided; written about once a minute while it stays."
    })
}

/// `metav1.Condition` with the validation that every Kubernetes type has for it.
fn conditions_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "description": "TargetResolved: the workload exists. MetricsAvailable: the metrics suffice for a decision. \
                        SignalsComplete: the analyzer has every signal that it reads, of every serving pod. \
                        OptimizationReady: there is a desired number of replicas.",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "description": "One aspect of the state of the object.",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {
                    "type": "string", "description": "Type of the condition.", "maxLength": 316,
                    "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
                },
                "status": {
                    "type": "string", "description": "True, False or Unknown.", "enum": ["True", "False", "Unknown"]
                },
                "observedGeneration": {
                    "type": "integer", "format": "int64", "minimum": 0,
                    "description": "The metadata.generation that the condition is about."
                },
                "lastTransitionTime": {
                    "type": "string", "format": "date-time", "description": "When the status last changed."
                },
                "reason": {
                    "type": "string", "description": "The reason for the status, in CamelCase.", "minLength": 1, "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
                },
                "message": { "type": "string", "description": "The reason for the status, for people.", "maxLength": 32768 }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checked_in_definition_is_the_generated_one() {
        let file = include_str!("../../crds/llmd.ai_variantautoscalings.yaml");
        assert_eq!(file, crd_yaml().unwrap(), "run `wva crd > crds/llmd.ai_variantautoscalings.yaml`");
    }

    /// Whether an object with `value` in its spec at `path` can be decided about.
    fn is_valid(path: &str, value: Value) -> bool {
        let mut object = serde_json::json!({
            "apiVersion": "llmd.ai/v1alpha1", "kind": "VariantAutoscaling",
            "metadata": { "namespace": "llm", "name": "chat" },
            "spec": {
                "scaleTargetRef": { "kind": "Deployment", "name": "chat" }, "modelID": "m", "variantCost": "1",
                "minReplicas": 1, "maxReplicas": 1
            }
        });
        *object["spec"].pointer_mut(path).unwrap() = value;
        let object: VariantAutoscaling = serde_json::from_value(object).unwrap();
        Variant::try_from(&object).is_ok()
    }

    #[test]
    fn the_schema_rejects_what_the_conversion_rejects() {
        let mut crd = serde_json::to_value(VariantAutoscaling::crd()).unwrap();
        normalize(&mut crd);
        let spec =
            &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        let of = |path: &str, keyword: &str| {
            let schema = spec
                .pointer(&path.replacen('/', "\u{0}", 1).replace('/', "/properties/").replace('\u{0}', "/"));
            schema.unwrap()[keyword].clone()
        };
        for (path, least) in [("/minReplicas", 0), ("/maxReplicas", 1)] {
            assert_eq!(
                [of(path, "minimum"), of(path, "maximum")],
                [Value::from(least), Value::from(100_000)],
                "{path}"
            );
            assert!(is_valid(path, least.into()) && is_valid(path, 100_000.into()), "{path}");
            assert!(!is_valid(path, (least - 1).into()) && !is_valid(path, 100_001.into()), "{path}");
        }
        let letters = |count: u64| Value::from("1".repeat(usize::try_from(count).unwrap()));
        for (path, most) in [("/modelID", 256), ("/scaleTargetRef/name", 253), ("/variantCost", 32)] {
            assert_eq!(of(path, "maxLength"), most, "{path}");
            assert!(is_valid(path, letters(most)) && !is_valid(path, letters(most + 1)), "{path}");
        }
        assert!(is_valid("/modelID", "".into()), "as if it were unset");
        // By pattern: what fits it, and what does not.
        for (path, pattern, good, bad) in [
            ("/modelID", ONE_LINE, &["org/m 1:x", "é"][..], &["a\nb", "a\u{7f}", "\u{1b}[2K"][..]),
            ("/scaleTargetRef/name", OBJECT_NAME, &["a", "a-1.b"], &["A", "a_b", "-a", "a.", "a\n", "a..b"]),
            ("/variantCost", r"^\d+(\.\d+)?$", &["10", "0.5"], &["-1", "x", "1\n", "nan", "inf"]),
        ] {
            assert_eq!(of(path, "pattern"), pattern, "{path}");
            assert!(good.iter().all(|text| is_valid(path, (*text).into())), "{path}");
            assert!(bad.iter().all(|text| !is_valid(path, (*text).into())), "{path}");
        }
        for path in ["/scaleTargetRef/kind", "/scaleTargetRef/apiVersion"] {
            assert_eq!(of(path, "pattern"), ONE_LINE, "{path}");
        }
        assert!(!is_valid("/scaleTargetRef/kind", "Deployment\n".into()));
    }

    #[test]
    fn the_api_server_refuses_an_edit_that_would_leave_a_setting_without_a_valid_value() {
        let crd = serde_json::to_value(VariantAutoscaling::crd()).unwrap();
        let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let threshold = &spec["properties"]["saturationThreshold"];
        assert_eq!((&threshold["minimum"], &threshold["exclusiveMinimum"]), (&0.0.into(), &true.into()));
        let timeout = &spec["properties"]["scaleToZero"]["properties"]["idleTimeout"];
        assert_eq!(timeout["pattern"], IDLE_TIMEOUT);
    }

    #[test]
    fn the_definition_refuses_no_object_that_an_earlier_version_stored() {
        let crd: Value = serde_saphyr::from_str(&crd_yaml().unwrap()).unwrap();
        let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        assert_eq!(spec.get("required"), None);
        for field in ["minReplicas", "modelID"] {
            assert_eq!(spec["properties"][field].get("default"), None, "{field}");
        }
        assert_eq!(spec["x-kubernetes-preserve-unknown-fields"], true);
        assert_eq!(
            spec.get("x-kubernetes-validations"),
            None,
            "an event reports a minimum above the maximum"
        );
        assert_eq!(spec["properties"]["scaleTargetRef"]["type"], "object", "and not null");
        // No version had more fields of these: strict validation refuses a misspelt one, and it is dropped otherwise.
        for object in ["scaleTargetRef", "scaleToZero"] {
            assert_eq!(spec["properties"][object].get("x-kubernetes-preserve-unknown-fields"), None);
        }
        // The other two, saturationThreshold and scaleToZero, were in no definition.
        for earlier in ["modelProfile", "sloClassRef", "sloTpot", "sloTtft"] {
            let mut keywords: Vec<_> = spec["properties"][earlier].as_object().unwrap().keys().collect();
            keywords.sort();
            assert_eq!(keywords, ["description", "x-kubernetes-preserve-unknown-fields"], "{earlier}");
        }
    }

    #[test]
    fn the_printed_columns_keep_their_order_and_then_say_what_limits_a_number() {
        let crd = VariantAutoscaling::crd();
        let columns = crd.spec.versions[0].additional_printer_columns.clone().unwrap();
        let names: Vec<_> = columns.iter().map(|column| column.name.as_str()).collect();
        let upstream = ["Target", "Model", "Optimized", "MetricsReady", "Age"];
        let own = ["Min", "Max", "Applied", "Reason", "Constraint", "Why", "Limit"];
        assert_eq!(names, [&upstream[..], &own].concat());
        let is_wide =
            |name: &str| columns.iter().any(|column| column.name == name && column.priority == Some(1));
        assert!(
            is_wide("Why") && is_wide("Limit") && !is_wide("Constraint"),
            "sentences need a wide terminal"
        );
    }

    #[test]
    fn an_empty_status_is_an_empty_object() {
        assert_eq!(serde_json::to_string(&VariantAutoscalingStatus::default()).unwrap(), "{}");
    }
}
