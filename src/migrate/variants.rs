//! The VariantAutoscalings as this program reads them.

use std::collections::BTreeMap;

use wva_core::Variant;

use super::controller::Controller;
use super::objects::{Kind, Objects};
use super::report::{ObjectName, Report, count};
use crate::cluster::crd::{ACCELERATOR_LABEL, CONTROLLER_INSTANCE_LABEL, VariantAutoscaling};
use crate::cluster::text::{first_names, quoted};

/// Fields of the specs of other releases, and where their purpose is set here.
const FIELDS_WITHOUT_EFFECT: [(&str, &str); 6] = [
    ("modelProfile", "capacity is learned"),
    ("sloClassRef", "objectives are set per model in ConfigMaps"),
    ("sloTpot", "objectives are set per model in ConfigMaps"),
    ("sloTtft", "objectives are set per model in ConfigMaps"),
    ("saturationThreshold", "thresholds are set per model in the saturation ConfigMap"),
    ("scaleToZero", "scaling to zero is set per model in its ConfigMap"),
];
/// Most objects that a sentence names.
const MAX_NAMED: usize = 8;

/// Reads the VariantAutoscalings, and reports what changes for them. The valid ones are the result.
pub(super) fn read(objects: &Objects, controllers: &[Controller<'_>], report: &mut Report) -> Vec<Variant> {
    if !objects.variants.is_empty() || !objects.is_unread(Kind::VariantAutoscaling) {
        report.found(count(objects.variants.len(), "VariantAutoscaling"));
    }
    let mut valid = Vec::new();
    for (name, object) in &objects.variants {
        match Variant::try_from(object) {
            Ok(variant) => valid.push(variant),
            Err(invalid) => report.act(
                format!("VariantAutoscaling {name}"),
                format!("it has no number here: {}", invalid.problem),
                "correct the field",
            ),
        }
    }
    if !valid.is_empty() {
        report
            .same(format!("{}: names, labels, fields and status", count(valid.len(), "VariantAutoscaling")));
    }
    report_fields(objects, report);
    report_shared_targets(&valid, report);
    report_scope(objects, controllers, report);
    let without_label =
        objects.variants.iter().filter(|(_, object)| label(object, ACCELERATOR_LABEL).is_none());
    let without_label: Vec<String> = without_label.map(|(name, _)| name.to_string()).collect();
    if !without_label.is_empty() {
        report.change(
            names(&without_label),
            format!("without the label {ACCELERATOR_LABEL} WVA publishes no number, and this program does"),
        );
    }
    valid
}

fn label<'a>(object: &'a VariantAutoscaling, key: &str) -> Option<&'a String> {
    object.metadata.labels.as_ref()?.get(key)
}

fn names(names: &[String]) -> String {
    let plural = if names.len() == 1 { "" } else { "s" };
    format!("VariantAutoscaling{plural} {}", first_names(names.iter().cloned(), MAX_NAMED, ", "))
}

fn report_fields(objects: &Objects, report: &mut Report) {
    for (field, instead) in FIELDS_WITHOUT_EFFECT {
        let with_field = objects.fields.iter().filter(|(_, fields)| fields.iter().any(|name| name == field));
        let with_field: Vec<String> = with_field.map(|(name, _)| name.to_string()).collect();
        if !with_field.is_empty() {
            report.change(names(&with_field), format!("spec.{field} has no effect: {instead}"));
        }
    }
}

fn report_shared_targets(variants: &[Variant], report: &mut Report) {
    let mut targets: BTreeMap<(&str, &str, &str), Vec<String>> = BTreeMap::new();
    for variant in variants {
        let target =
            (variant.id.namespace.as_str(), variant.target.kind.as_str(), variant.target.name.as_str());
        targets.entry(target).or_default().push(variant.id.to_string());
    }
    for ((namespace, kind, target), variants) in targets.iter().filter(|(_, variants)| variants.len() > 1) {
        report.act(
            names(variants),
            format!("they have one scale target, {kind} {namespace}/{target}, which would be scaled by another's number"),
            "keep one of them, or give each its own workload",
        );
    }
}

/// Reports the variants that WVA does not manage, and would not be managed here either.
fn report_scope(objects: &Objects, controllers: &[Controller<'_>], report: &mut Report) {
    let [Controller { config: Ok(config), .. }] = controllers else { return };
    let is_outside = |name: &ObjectName, object: &VariantAutoscaling| {
        let namespace = config.watch_namespace.as_ref();
        let instance = config.controller_instance.as_ref();
        namespace.is_some_and(|namespace| *namespace != name.namespace)
            || instance.is_some_and(|instance| label(object, CONTROLLER_INSTANCE_LABEL) != Some(instance))
    };
    let outside = objects.variants.iter().filter(|(name, object)| is_outside(name, object));
    let outside: Vec<String> = outside.map(|(name, _)| name.to_string()).collect();
    if outside.is_empty() {
        return;
    }
    let scope = |setting: &Option<String>| setting.as_deref().map_or_else(|| "any".into(), quoted);
    report.act(
        names(&outside),
        format!(
            "WVA manages only namespace {} and controller instance {}, and so would this program",
            scope(&config.watch_namespace),
            scope(&config.controller_instance)
        ),
        "to include them, remove watchNamespace or controllerInstance from wva-values.yaml",
    );
}
