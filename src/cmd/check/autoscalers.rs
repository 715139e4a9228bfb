//! The variants, and the autoscalers of their workloads and of all that read a number.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;
use smol_str::SmolStr;
use wva_core::Policy;
use wva_core::model::{TargetRef, VariantId};
use wva_core::snapshot::VariantState;

use super::inputs::{Inputs, TargetKey};
use super::policy::Loaded;
use super::report::Report;
use super::settings::Settings;
use crate::cluster::ClusterState;
use crate::cluster::watch::{ListedKind, another_scaler, candidates};
use crate::lint::{
    Candidates, Finding, ScaledTarget, Severity, VariantFacts, Workload, is_of_keda, lint, reads_a_number,
};

/// The scale targets that are listed, by API group and kind.
const LISTED_TARGETS: [(&str, ListedKind); 3] = [
    (TargetRef::APPS, ListedKind::Deployment),
    (TargetRef::APPS, ListedKind::StatefulSet),
    (TargetRef::LEADER_WORKER_SETS, ListedKind::LeaderWorkerSet),
];

/// The autoscalers of a scale target: indices into the inputs.
#[derive(Default)]
struct Autoscalers {
    hpas: Vec<usize>,
    scaled_objects: Vec<usize>,
    vertical: Vec<usize>,
    /// Whether one of them reads a number.
    reads: bool,
}

/// Checks the variants and all autoscalers that are about them.
pub(super) fn check(inputs: &Inputs, loaded: &Loaded, settings: &Settings, report: &mut Report) {
    let Loaded { state, policy, .. } = loaded;
    check_variants(inputs, state, report);
    check_scalers(inputs, settings, report);
    let instance = settings.controller_instance.as_deref();
    let candidates: Candidates = candidates(&state.view, instance).collect();
    let facts: BTreeMap<TargetKey, VariantFacts> = facts(state, policy).collect();
    let mut targets = by_target(inputs);
    for key in facts.keys() {
        targets.entry(key.clone()).or_default();
    }
    let kinds = [ListedKind::HorizontalPodAutoscaler, ListedKind::ScaledObject];
    let is_incomplete = !kinds.iter().all(|kind| inputs.has_all(*kind));
    // With a controller instance, HPAs may read variants of another one.
    let knows_all = settings.controller_instance.is_none()
        && !is_incomplete
        && inputs.has_all(ListedKind::VariantAutoscaling);
    // Files that have a variant of a namespace are taken to have all of it.
    let in_files: BTreeSet<&str> = if inputs.is_cluster {
        BTreeSet::new()
    } else {
        state.view.variants.iter().map(|state| state.variant.id.namespace.as_str()).collect()
    };
    for (key, autoscalers) in &targets {
        let variant = facts.get(key);
        if variant.is_none() && !autoscalers.reads {
            continue;
        }
        let pick = |indices: &[usize]| indices.to_vec();
        let workload = Workload {
            namespace: &key.0,
            target: &key.1,
            variant,
            hpas: pick(&autoscalers.hpas).into_iter().filter_map(|index| inputs.hpas.get(index)).collect(),
            scaled_objects: pick(&autoscalers.scaled_objects)
                .into_iter()
                .filter_map(|index| inputs.scaled_objects.get(index))
                .collect(),
            vertical: pick(&autoscalers.vertical)
                .into_iter()
                .filter_map(|index| inputs.vertical.get(index))
                .collect(),
            is_incomplete,
            knows_variants: knows_all || in_files.contains(key.0.as_str()),
            termination: inputs.terminations.get(key),
            // Said once, of the APIService.
            external: None,
            candidates: &candidates,
        };
        report.findings.extend(lint(&workload).iter().map(Finding::advice));
    }
}

fn check_variants(inputs: &Inputs, state: &ClusterState, report: &mut Report) {
    let kind = |id: &VariantId| state.objects.get(id).map(|object| object.kind).unwrap_or_default();
    for invalid in &state.view.invalid {
        report.add(
            (Severity::Error, "InvalidConfiguration"),
            format!("{} {}", kind(&invalid.id), invalid.id),
            &invalid.problem,
            "it has no number",
            "# correct what is named",
        );
    }
    for bystander in &state.bystanders {
        let is_called = bystander.object.is_called;
        let (set, fix) = if is_called {
            ("modelID in its trigger makes no variant", "# the sentence above says what to write")
        } else {
            ("its annotations make no variant", "metadata:\n  annotations: {llm-d.ai/managed: \"false\"}")
        };
        report.add(
            (Severity::Warning, bystander.notice.reason),
            format!("{} {}", bystander.object.kind, bystander.id),
            set,
            &bystander.notice.note,
            fix,
        );
    }
    for VariantState { variant, scale, target_problem, .. } in &state.view.variants {
        let object = format!("{} {}", kind(&variant.id), variant.id);
        let is_known = inputs.is_cluster && target_problem.is_none();
        // Targets of other kinds are read one by one, which a check does not do.
        let is_listed = LISTED_TARGETS.into_iter().any(|(group, listed)| {
            listed.name() == variant.target.kind && group == variant.target.group && inputs.has_all(listed)
        });
        if scale.is_none() && is_known && is_listed {
            report.add(
                (Severity::Error, "TargetNotFound"),
                object,
                format!("its scale target is {}, which does not exist", variant.target),
                "it has no number, and nothing is scaled",
                "spec:\n  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: NAME} # that of the model servers",
            );
        }
    }
}

/// Reports ScaledObjects whose trigger gives a model to another scaler.
fn check_scalers(inputs: &Inputs, settings: &Settings, report: &mut Report) {
    let service = settings.scaler();
    for object in inputs.scaled_values() {
        let Some(address) = object.get("spec").and_then(|spec| another_scaler(spec, &service)) else {
            continue;
        };
        let text = |field: &str| object.pointer(field).and_then(Value::as_str).unwrap_or_default();
        report.add(
            (Severity::Note, "ScalerOfAnother"),
            format!("ScaledObject {}/{}", text("/metadata/namespace"), text("/metadata/name")),
            format!("its trigger with modelID has the scalerAddress {address}"),
            "KEDA asks that scaler, and the object makes no variant here",
            format!(
                "# nothing to mend, if that is meant; else, with the value externalScaler.enabled:\nspec:\n  triggers:\n  - metadata:\n      scalerAddress: {}.{}.svc:9443",
                service.name, service.namespace
            ),
        );
    }
}

/// What decides about each scale target.
fn facts(state: &ClusterState, policy: &Policy) -> impl Iterator<Item = (TargetKey, VariantFacts)> {
    state.view.variants.iter().map(move |VariantState { variant, .. }| {
        let kind = state.objects.get(&variant.id).map(|object| object.kind).unwrap_or_default().as_str();
        let served = state.view.value_targets.as_ref();
        let serves_value_targets = served.is_some_and(|served| served.multipliers.contains_key(&variant.id));
        let facts = VariantFacts::new(variant, kind, policy, serves_value_targets);
        ((variant.id.namespace.clone(), variant.target.clone()), facts)
    })
}

/// The autoscalers by what they scale.
fn by_target(inputs: &Inputs) -> BTreeMap<TargetKey, Autoscalers> {
    let mut targets: BTreeMap<TargetKey, Autoscalers> = BTreeMap::new();
    let namespace = |namespace: &Option<String>| SmolStr::from(namespace.as_deref().unwrap_or_default());
    let stays = |metadata: &ObjectMeta| metadata.deletion_timestamp.is_none();
    for (index, hpa) in inputs.hpas.iter().enumerate().filter(|(_, hpa)| stays(&hpa.metadata)) {
        let Some(target) = hpa.spec.as_ref().map(|spec| &spec.scale_target_ref) else { continue };
        let target = target_ref(target.api_version.as_deref(), Some(&target.kind), &target.name);
        let autoscalers = targets.entry((namespace(&hpa.metadata.namespace), target)).or_default();
        autoscalers.hpas.push(index);
        autoscalers.reads |= reads_a_number(hpa) && !is_of_keda(&hpa.metadata);
    }
    let of_target = |target: &ScaledTarget| {
        target_ref(target.api_version.as_deref(), target.kind.as_deref(), &target.name)
    };
    let scaled_objects = inputs.scaled_objects.iter().enumerate();
    for (index, scaled) in scaled_objects.filter(|(_, scaled)| stays(&scaled.metadata)) {
        let key = (namespace(&scaled.metadata.namespace), of_target(&scaled.spec.scale_target_ref));
        let autoscalers = targets.entry(key).or_default();
        autoscalers.scaled_objects.push(index);
        autoscalers.reads |= scaled.reads_a_number();
    }
    for (index, vertical) in inputs.vertical.iter().enumerate() {
        let Some(target) = &vertical.spec.target_ref else { continue };
        let key = (namespace(&vertical.metadata.namespace), of_target(target));
        targets.entry(key).or_default().vertical.push(index);
    }
    targets
}

/// A scale target as autoscalers name it: a Deployment if no kind is named.
fn target_ref(api_version: Option<&str>, kind: Option<&str>, name: &str) -> TargetRef {
    let kind = kind.filter(|kind| !kind.is_empty()).unwrap_or("Deployment");
    let group = api_version.filter(|version| !version.is_empty()).map(|version| version.split_once('/'));
    let group = match group {
        // As for variants: any group without a dot means the Deployment of apps.
        Some(Some((group, _))) if kind != "Deployment" || group.contains('.') => group,
        Some(None) if kind != "Deployment" => "",
        _ => TargetRef::APPS,
    };
    TargetRef { group: group.into(), kind: kind.into(), name: name.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lint::Candidate;
    use crate::lint::{Label, NUMBERS, Number};
    use wva_core::model::Variant;

    use crate::serve::{Labels, Metric};

    #[test]
    fn the_metrics_that_are_judged_are_those_that_are_served() {
        let number = |metric| match metric {
            Metric::Desired => Number::Desired,
            Metric::Current => Number::Current,
            Metric::Ratio => Number::Ratio,
        };
        assert_eq!(Metric::NAMES.map(|(name, metric)| (name, number(metric))), NUMBERS);
    }

    #[test]
    fn the_labels_that_are_judged_are_those_that_are_served() {
        let variant = Variant {
            accelerator: Some("H100".into()),
            ..Variant::new(VariantId::new("llm", "llama"), "m", TargetRef::deployment("llama"))
        };
        let candidate = Candidate::new(&variant, &"alias".into(), Some("blue"), true);
        let labels =
            Labels::new(&variant.id, variant.accelerator.as_deref(), Some("blue")).with_name("alias");
        assert_eq!(labels.iter().count(), 6);
        for (key, value) in labels.iter() {
            assert_eq!(candidate.label(key), Label::Known(value), "{key}");
        }
        assert_eq!(candidate.label("job"), Label::Absent);
        let unread = Variant { accelerator: None, ..variant };
        let of_any_instance = Candidate::new(&unread, &"alias".into(), None, false);
        for key in ["accelerator_type", "controller_instance"] {
            assert_eq!(of_any_instance.label(key), Label::Unknown, "{key}");
        }
    }

    #[test]
    fn a_target_is_a_deployment_of_apps_unless_its_author_says_otherwise() {
        let of = |version, kind| target_ref(version, kind, "x");
        let deployment = TargetRef::deployment("x");
        for (version, kind) in [
            (None, None),
            (Some("apps/v1"), Some("Deployment")),
            (Some("extensions/v1beta1"), Some("Deployment")),
            (Some("v1"), Some("Deployment")),
            (Some(""), Some("")),
        ] {
            assert_eq!(of(version, kind), deployment, "{version:?} {kind:?}");
        }
        assert_eq!(of(Some("example.com/v1"), Some("Deployment")).group, "example.com");
        assert_eq!(of(Some("argoproj.io/v1alpha1"), Some("Rollout")).group, "argoproj.io");
        assert_eq!(of(Some("v1"), Some("ReplicationController")).group, "");
    }
}
