//! The definition of VariantAutoscaling in the cluster, against that of this program.

use std::collections::BTreeSet;

use kube::Client;
use kube::api::GetParams;
use kube::core::Request;
use serde_json::Value;

use super::gather::REQUEST_TIMEOUT;
use super::report::Report;
use super::settings::Settings;
use crate::cluster::crd::crd_yaml;
use crate::cmd::api;
use crate::lint::Severity;

const NAME: &str = "variantautoscalings.llmd.ai";
const OBJECT: &str = "CustomResourceDefinition variantautoscalings.llmd.ai";
const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// The version of the API that this program reads.
const VERSION: &str = "v1alpha1";
/// What installs ours.
const FIX: &str = "# wva crd | kubectl apply --server-side -f -";

/// Checks the definition.
pub(super) async fn check(client: &Client, settings: &Settings) -> Report {
    let mut report = Report::default();
    let request = Request::new(PATH).get(NAME, &GetParams::default());
    match api::request::<Value>(client, request, REQUEST_TIMEOUT).await {
        Ok(definition) => judge(&definition, &mut report),
        Err(error) if error.is_not_found() => report.add(
            (Severity::Error, "DefinitionMissing"),
            OBJECT,
            "it does not exist",
            "there are no VariantAutoscalings; only annotated autoscalers can be variants",
            FIX,
        ),
        // Who may read one namespace may rarely read definitions; nor does the program itself.
        Err(error) => report.add_unchecked(
            settings.namespace.is_none() && !settings.is_in_pod,
            OBJECT,
            format!("could not get it: {error}"),
            "# grant the right to get customresourcedefinitions to who runs this",
        ),
    }
    report
}

fn judge(definition: &Value, report: &mut Report) {
    let versions = definition.pointer("/spec/versions").and_then(Value::as_array);
    let name = |version: &Value| version.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let ours = versions.into_iter().flatten().find(|version| name(version) == VERSION);
    let is_served = |version: &&Value| version.get("served").and_then(Value::as_bool) == Some(true);
    let Some(installed) = ours.filter(is_served) else {
        let served: Vec<String> = versions.into_iter().flatten().filter(is_served).map(name).collect();
        report.add(
            (Severity::Error, "DefinitionVersion"),
            OBJECT,
            format!(
                "it serves {}, and not {VERSION}",
                if served.is_empty() { "no version".into() } else { served.join(", ") }
            ),
            "a program that starts reads no VariantAutoscaling, and has no number for any; one that runs keeps those that it knows",
            FIX,
        );
        return;
    };
    let Ok(own) = crd_yaml()
        .map_err(|error| error.to_string())
        .and_then(|yaml| serde_saphyr::from_str::<Value>(&yaml).map_err(|error| error.to_string()))
    else {
        return;
    };
    let schema = "/schema/openAPIV3Schema/properties";
    let own = own.pointer("/spec/versions/0").cloned().unwrap_or_default();
    let (own, installed) = (own.pointer(schema), installed.pointer(schema));
    let missing: Vec<String> = fields(own).difference(&fields(installed)).cloned().collect();
    if !missing.is_empty() {
        let shown: Vec<&str> = missing.iter().take(8).map(String::as_str).collect();
        report.add(
            (Severity::Warning, "DefinitionOutdated"),
            OBJECT,
            format!("it lacks {} fields of this version: {}", missing.len(), shown.join(", ")),
            "the API server drops fields that it does not know, those of spec only where the definition does not keep unknown ones: \
             conditions get lost, and settings may (Helm never upgrades a definition)",
            FIX,
        );
    } else if without_texts(own) != without_texts(installed) {
        report.add(
            (Severity::Note, "DefinitionDiffers"),
            OBJECT,
            "its schema is not that of this version",
            "it has every field, and may validate or default them differently",
            FIX,
        );
    }
}

/// The paths of all fields of a schema's properties.
fn fields(properties: Option<&Value>) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    let mut open = vec![(String::new(), properties)];
    while let Some((path, properties)) = open.pop() {
        for (name, schema) in properties.and_then(Value::as_object).into_iter().flatten() {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            open.push((path.clone(), schema.get("properties")));
            open.push((path.clone(), schema.pointer("/items/properties")));
            paths.insert(path);
        }
    }
    paths
}

/// A schema without what is only for people.
fn without_texts(schema: Option<&Value>) -> Option<Value> {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                if fields.get("description").is_some_and(Value::is_string) {
                    fields.remove("description");
                }
                fields.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let mut schema = schema?.clone();
    strip(&mut schema);
    Some(schema)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(change: impl FnOnce(&mut Value)) -> Vec<&'static str> {
        let mut definition: Value = serde_saphyr::from_str(&crd_yaml().unwrap()).unwrap();
        change(&mut definition);
        let mut report = Report::default();
        judge(&definition, &mut report);
        report.findings.iter().map(|finding| finding.reason).collect()
    }

    #[test]
    fn the_definition_of_this_program_has_no_findings_and_others_are_told_apart() {
        assert_eq!(found(|_| ()), Vec::<&str>::new());
        let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
        let without = |name: &'static str| {
            move |definition: &mut Value| {
                definition.pointer_mut(spec).and_then(Value::as_object_mut).unwrap().remove(name);
            }
        };
        assert_eq!(found(without("minReplicas")), ["DefinitionOutdated"]);
        let text = |definition: &mut Value| {
            definition.pointer_mut(spec).unwrap()["minReplicas"]["description"] = "x".into()
        };
        assert_eq!(found(text), Vec::<&str>::new());
        let bound = |definition: &mut Value| {
            definition.pointer_mut(spec).unwrap()["minReplicas"]["maximum"] = 7.into()
        };
        assert_eq!(found(bound), ["DefinitionDiffers"]);
        assert_eq!(
            found(|definition| definition["spec"]["versions"][0]["name"] = "v1".into()),
            ["DefinitionVersion"]
        );
        assert_eq!(
            found(|definition| definition["spec"]["versions"][0]["served"] = false.into()),
            ["DefinitionVersion"]
        );
    }
}
