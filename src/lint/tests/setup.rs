//! A right set-up, what is found in it once it is made wrong, and whether what each finding says mends it.

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use serde_json::{Value, json};
use wva_core::model::{Analyzer, Bounds, TargetRef};
use wva_core::units::Replicas;
use wva_core::{Variant, VariantId};

use super::super::*;

/// A workload whose parts a case changes.
#[derive(Clone)]
pub(super) struct Setup {
    pub(super) hpas: Vec<Value>,
    pub(super) scaled_objects: Vec<Value>,
    pub(super) vertical: Vec<Value>,
    pub(super) template: Option<Value>,
    pub(super) external: Option<ExternalMetrics>,
    pub(super) variant: VariantFacts,
    /// Further variants: namespace and name.
    pub(super) others: Vec<(&'static str, &'static str)>,
}

pub(super) fn candidate(namespace: &str, name: &str, target: &str) -> Candidate {
    let id = VariantId::new(namespace, name);
    let accelerator = Some("H100".into());
    let variant = Variant { accelerator, ..Variant::new(id, "org/m", TargetRef::deployment(target)) };
    Candidate::new(&variant, &name.into(), None, true)
}

pub(super) fn hpa() -> Value {
    json!({
        "metadata": { "namespace": "llm", "name": "llama" },
        "spec": {
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "llama" },
            "minReplicas": 1, "maxReplicas": 8,
            "behavior": { "scaleDown": { "stabilizationWindowSeconds": 0 } },
            "metrics": [{
                "type": "External",
                "external": {
                    "metric": { "name": "wva_desired_replicas", "selector": { "matchLabels": { "variant_name": "llama" } } },
                    "target": { "type": "AverageValue", "averageValue": "1" }
                }
            }]
        }
    })
}

pub(super) fn scaled_object() -> Value {
    let query = "wva_desired_replicas{variant_name=\"llama\",exported_namespace=\"llm\"}";
    json!({
        "metadata": { "namespace": "llm", "name": "llama" },
        "spec": {
            "scaleTargetRef": { "name": "llama" }, "minReplicaCount": 1, "maxReplicaCount": 8,
            "advanced": {
                "horizontalPodAutoscalerConfig": { "behavior": { "scaleDown": { "stabilizationWindowSeconds": 0 } } }
            },
            "triggers": [{
                "type": "prometheus", "metricType": "AverageValue",
                "metadata": { "query": query, "threshold": "1", "ignoreNullValues": "false" }
            }]
        }
    })
}

impl Setup {
    pub(super) fn new() -> Self {
        let bounds = Bounds { min: Replicas::ONE, max: Some(Replicas::new(8)) };
        let variant = VariantFacts {
            id: VariantId::new("llm", "llama"),
            kind: "VariantAutoscaling",
            bounds,
            analyzer: Analyzer::Rate,
            may_be_zero: false,
            serves_value_targets: false,
            tolerance: 0.1,
        };
        let (hpas, scaled_objects) = (vec![hpa()], Vec::new());
        Self {
            hpas,
            scaled_objects,
            vertical: Vec::new(),
            template: None,
            external: None,
            variant,
            others: Vec::new(),
        }
    }

    pub(super) fn keda() -> Self {
        Self { hpas: Vec::new(), scaled_objects: vec![scaled_object()], ..Self::new() }
    }

    /// What is found: severity and reason.
    pub(super) fn found(&self) -> Vec<String> {
        self.advice().iter().map(|advice| format!("{} {}", advice.severity, advice.reason)).collect()
    }

    pub(super) fn advice(&self) -> Vec<Advice> {
        let hpas: Vec<HorizontalPodAutoscaler> = self.hpas.iter().map(parsed).collect();
        let scaled_objects: Vec<ScaledObject> = self.scaled_objects.iter().map(parsed).collect();
        let vertical: Vec<VerticalPodAutoscaler> = self.vertical.iter().map(parsed).collect();
        let termination = self.template.as_ref().and_then(|template| Termination::of(&parsed(template)));
        let others = self.others.iter().map(|(namespace, name)| candidate(namespace, name, name));
        let candidates = others.chain([candidate("llm", "llama", "llama")]).collect();
        let target = TargetRef::deployment("llama");
        let workload = Workload {
            namespace: "llm",
            target: &target,
            variant: Some(&self.variant),
            hpas: hpas.iter().collect(),
            scaled_objects: scaled_objects.iter().collect(),
            vertical: vertical.iter().collect(),
            is_incomplete: false,
            knows_variants: true,
            termination: termination.as_ref(),
            external: self.external.as_ref(),
            candidates: &candidates,
        };
        lint(&workload).iter().map(Finding::advice).collect()
    }
}

pub(super) fn parsed<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

/// Asserts what is found in a set-up that `change` makes wrong.
pub(super) fn assert_found(base: Setup, change: impl FnOnce(&mut Setup), expected: &[&str]) {
    let mut setup = base;
    change(&mut setup);
    assert_eq!(setup.found(), expected, "{:#?}", setup.advice());
    for advice in setup.advice() {
        let texts = [&advice.object, &advice.set, &advice.effect];
        assert!(texts.iter().all(|text| !text.is_empty() && !text.contains('\n')), "{advice:#?}");
        assert!(!advice.fix.is_empty(), "{advice:#?}");
        assert_fixed(&setup, &advice);
    }
}

/// Asserts that the fix of a finding is YAML, perhaps only a comment, and that the object has no such finding once it is merged into it.
fn assert_fixed(setup: &Setup, advice: &Advice) {
    let fix: Value =
        serde_saphyr::from_str(&advice.fix).unwrap_or_else(|error| panic!("{error} {advice:#?}"));
    let mut fixed = setup.clone();
    let objects = match advice.object.split_once(' ').unwrap().0 {
        "HorizontalPodAutoscaler" => &mut fixed.hpas,
        "ScaledObject" => &mut fixed.scaled_objects,
        "VerticalPodAutoscaler" => &mut fixed.vertical,
        _ => return,
    };
    // What a comment says, and what is for another object, is not merged. Annotations are removed by hand.
    if fix.is_null() || advice.fix.starts_with('#') || advice.reason == "Paused" {
        return;
    }
    merge(&mut objects[0], &fix);
    let is_left = fixed.advice().iter().any(|left| left.reason == advice.reason);
    assert!(
        !is_left,
        "the fix leaves it as it is: {advice:#?}\n{:#}",
        fixed.hpas.first().unwrap_or(&Value::Null)
    );
}

/// Merges as a reader would: the items of a list by their places, a selector as a whole.
fn merge(object: &mut Value, fix: &Value) {
    match (object, fix) {
        (Value::Object(fields), Value::Object(changes)) => {
            // A metric has one source.
            if changes.get("type").is_some_and(|own| *own == "External") {
                fields.retain(|field, _| changes.contains_key(field));
            }
            for (field, change) in changes {
                let own = fields.entry(field).or_insert(Value::Null);
                match field.as_str() {
                    "selector" => *own = change.clone(),
                    _ => merge(own, change),
                }
            }
        }
        (Value::Array(items), Value::Array(changes)) => {
            for (index, change) in changes.iter().enumerate() {
                if index == items.len() {
                    items.push(Value::Null);
                }
                merge(&mut items[index], change);
            }
        }
        (object, fix) => *object = fix.clone(),
    }
}

pub(super) fn wrong_hpa(change: impl FnOnce(&mut Value), expected: &[&str]) {
    assert_found(Setup::new(), |setup| change(&mut setup.hpas[0]["spec"]), expected);
}

pub(super) fn wrong_keda(change: impl FnOnce(&mut Value), expected: &[&str]) {
    assert_found(Setup::keda(), |setup| change(&mut setup.scaled_objects[0]), expected);
}

pub(super) fn external(spec: &mut Value) -> &mut Value {
    &mut spec["metrics"][0]["external"]
}
