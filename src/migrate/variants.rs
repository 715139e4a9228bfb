//! The variants as this program reads them.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use smol_str::SmolStr;
use wva_core::Variant;
use wva_core::model::{InvalidVariant, VariantId};

use super::controller::Controller;
use super::objects::{Kind, Objects};
use super::report::{ObjectName, Report, count};
use crate::cluster::crd::{ACCELERATOR_LABEL, CONTROLLER_INSTANCE_LABEL};
use crate::cluster::objects::{Bystander, VariantObject};
use crate::cluster::watch::{VariantObjects, claims, split_by_validity, variant_object};
use wva_core::text::{first_names, quoted};

/// Most objects that a sentence names.
const MAX_NAMED: usize = 8;

/// What has a number here.
pub(super) struct Variants {
    pub(super) valid: Vec<Variant>,
    /// Further names by which reads find them, with their own.
    aliases: BTreeMap<VariantId, SmolStr>,
}

/// A variant under one of its names.
pub(super) struct Named<'a> {
    pub(super) name: &'a str,
    pub(super) variant: &'a Variant,
}

impl Variants {
    /// The variants of a namespace by each of their names.
    pub(super) fn by_name(&self, namespace: &str) -> impl Iterator<Item = Named<'_>> {
        let own = self.valid.iter().filter(move |variant| variant.id.namespace == namespace);
        let further = self.aliases.iter().filter(move |(alias, _)| alias.namespace == namespace);
        let further = further.filter_map(|(alias, name)| {
            let is_meant =
                |variant: &&Variant| variant.id.namespace == alias.namespace && variant.id.name == *name;
            Some(Named { name: &alias.name, variant: self.valid.iter().find(is_meant)? })
        });
        own.map(|variant| Named { name: &variant.id.name, variant }).chain(further)
    }
}

/// Reads the VariantAutoscalings and the objects that annotations make variants, and reports what changes for them.
pub(super) fn read(objects: &Objects, controllers: &[Controller<'_>], report: &mut Report) -> Variants {
    if !objects.variants.is_empty() || !objects.is_unread(Kind::VariantAutoscaling) {
        report.found(count(objects.variants.len(), "VariantAutoscaling"));
    }
    if !objects.annotated.is_empty() {
        report.found(count(objects.annotated.len(), "annotated autoscaler"));
    }
    let id = |name: &ObjectName| VariantId::new(name.namespace.as_str(), name.name.as_str());
    let variants = objects.variants.iter();
    let variants =
        variants.filter_map(|(name, object)| Some((id(name), variant_object(Ok(object.clone()))?)));
    let annotated = objects.annotated.iter().map(|((name, _), object)| (id(name), object.clone()));
    let VariantObjects { objects: all, aliases, bystanders } =
        VariantObjects::new(variants.collect(), annotated.collect());
    let (valid, invalid) = split_by_validity(&all, &claims(&all));
    for InvalidVariant { id, problem, .. } in invalid {
        let kind = all.get(&id).map(|object| object.kind).unwrap_or_default();
        report.act(format!("{kind} {id}"), format!("it has no number here: {problem}"), "correct it");
    }
    for Bystander { id, object, notice } in bystanders {
        let object = format!("{} {id}", object.kind);
        match notice.reason {
            // It has the number of the other object, as the note says.
            "TargetDecidedElsewhere" => report.change(object, notice.note),
            _ => report.act(object, notice.note, "correct it"),
        }
    }
    let annotated = valid.iter().filter(|(_, object)| object.kind.is_annotated()).count();
    let own = valid.len() - annotated;
    if own > 0 {
        report.same(format!("{}: names, labels, fields and status", count(own, "VariantAutoscaling")));
    }
    if annotated > 0 {
        report.same(format!(
            "{}: annotations, bounds and names, as in WVA 0.9 (earlier versions ignored the annotations)",
            count(annotated, "annotated autoscaler")
        ));
    }
    report_fields(objects, report);
    report_settings(&all, report);
    report_scope(objects, controllers, report);
    let without_label =
        objects.variants.iter().filter(|(_, object)| label(&object.metadata, ACCELERATOR_LABEL).is_none());
    let without_label: Vec<String> = without_label.map(|(name, _)| name.to_string()).collect();
    if !without_label.is_empty() {
        report.change(
            names(&without_label),
            format!("without the label {ACCELERATOR_LABEL} WVA publishes no number, and this program does"),
        );
    }
    Variants { valid: valid.into_iter().map(|(variant, _)| variant.clone()).collect(), aliases }
}

fn label<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a String> {
    metadata.labels.as_ref()?.get(key)
}

fn names(names: &[String]) -> String {
    let plural = if names.len() == 1 { "" } else { "s" };
    format!("VariantAutoscaling{plural} {}", first_names(names.iter().cloned(), MAX_NAMED, ", "))
}

fn report_fields(objects: &Objects, report: &mut Report) {
    let has_profile = |fields: &[String]| fields.iter().any(|name| name == "modelProfile");
    let with_profile = objects.fields.iter().filter(|(_, fields)| has_profile(fields));
    let with_profile: Vec<String> = with_profile.map(|(name, _)| name.to_string()).collect();
    if !with_profile.is_empty() {
        report.change(names(&with_profile), "spec.modelProfile has no effect: capacity is learned");
    }
}

/// Reports the settings of VariantAutoscalings that count here, and did not in the last releases of WVA.
fn report_settings(objects: &BTreeMap<VariantId, Arc<VariantObject>>, report: &mut Report) {
    for (id, settings) in objects.iter().filter_map(|(id, object)| Some((id, object.settings.as_ref()?))) {
        let (object, fields) = (format!("VariantAutoscaling {id}"), settings.fields());
        if !settings.problem().is_empty() {
            report.act(&object, settings.problem(), "correct the field, or remove it");
        }
        if !fields.is_empty() {
            let text = format!("{} of its model, and of no other, from now on", fields.join(", "));
            report.change(object, format!("it sets {text}: WVA from 0.5 ignored it"));
        }
    }
}

/// Reports the variants that WVA does not manage, and would not be managed here either.
fn report_scope(objects: &Objects, controllers: &[Controller<'_>], report: &mut Report) {
    let [Controller { config: Ok(config), .. }] = controllers else { return };
    let is_outside = |name: &ObjectName, metadata: &ObjectMeta| {
        let namespace = config.watch_namespace.as_ref();
        let instance = config.controller_instance.as_ref();
        namespace.is_some_and(|namespace| *namespace != name.namespace)
            || instance.is_some_and(|instance| label(metadata, CONTROLLER_INSTANCE_LABEL) != Some(instance))
    };
    let variants =
        objects.variants.iter().map(|(name, object)| ("VariantAutoscaling", name, &object.metadata));
    let outside = variants.chain(objects.annotated_metadata());
    let outside = outside.filter(|(_, name, metadata)| is_outside(name, metadata));
    let outside: Vec<String> = outside.map(|(kind, name, _)| format!("{kind} {name}")).collect();
    if outside.is_empty() {
        return;
    }
    let namespace = config.watch_namespace.as_ref().map(|name| format!("namespace {}", quoted(name)));
    let instance =
        config.controller_instance.as_ref().map(|name| format!("controller instance {}", quoted(name)));
    let scope: Vec<String> = namespace.into_iter().chain(instance).collect();
    report.act(
        first_names(outside.into_iter(), MAX_NAMED, ", "),
        format!("WVA manages only {}, and so would this program", scope.join(" and ")),
        "to include them, remove watchNamespace or controllerInstance from wva-values.yaml",
    );
}
