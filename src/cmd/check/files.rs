//! Files that are checked before they are applied: manifests, and policies.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde_json::{Value, json};
use wva_core::Policy;

use super::inputs::{Inputs, Kind};
use super::report::Report;
use super::settings::Settings;
use crate::cluster::watch::ListedKind;
use crate::config::PolicyFile;
use crate::lint::Severity;
use crate::migrate::{manifest_objects, quantities_as_text};

/// The file that stands for standard input.
const STDIN: &str = "-";
/// The endings of files that are read in a directory.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];
/// The namespace of objects that name none, as for kubectl.
const DEFAULT_NAMESPACE: &str = "default";

/// The objects of the files, and what is wrong with the files themselves.
pub(super) fn read(paths: &[PathBuf], settings: &Settings) -> (Inputs, Report) {
    let (mut inputs, mut report) = (Inputs::default(), Report::default());
    for path in paths {
        let files = match files_in(path) {
            Ok(files) => files,
            Err(error) => {
                add_unreadable(path, &error, &mut report);
                continue;
            }
        };
        let before = report.findings.len();
        let mut has_checked = false;
        for file in files {
            match text_of(&file) {
                Ok(text) => {
                    has_checked |= add_text(&file, &text, file == *path, settings, &mut inputs, &mut report);
                }
                Err(error) => add_unreadable(&file, &error, &mut report),
            }
        }
        if !has_checked && report.findings.len() == before {
            report.add_unchecked(
                true,
                name(path),
                "it has nothing that is checked",
                "# give ConfigMaps of wva, VariantAutoscalings, HPAs, ScaledObjects, workloads, or a policy; of a directory, only the files \
                 themselves are read, and not those of its directories",
            );
        }
    }
    (inputs, report)
}

fn name(path: &Path) -> String {
    let kind = if path.is_dir() { "directory" } else { "file" };
    format!("{kind} {}", path.display())
}

fn add_unreadable(path: &Path, error: &io::Error, report: &mut Report) {
    let fix = "# give a file or directory that exists and that you may read, or - for standard input";
    report.add_unchecked(true, name(path), format!("could not read it: {error}"), fix);
}

fn text_of(path: &Path) -> io::Result<String> {
    if path != Path::new(STDIN) {
        return fs::read_to_string(path);
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

/// The file itself, or the manifests in a directory, in the order of their names.
fn files_in(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let ending = |path: &Path| path.extension().and_then(|ending| ending.to_str()).map(str::to_owned);
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        // Reading a pipe may never end.
        if file.is_file() && ending(&file).is_some_and(|ending| ENDINGS.contains(&ending.as_str())) {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// Adds the objects of a file, and says whether there is anything that is checked. A directory may have files of others: only a file
/// that `is_named` on the command line is a policy whatever it contains.
fn add_text(
    file: &Path,
    text: &str,
    is_named: bool,
    settings: &Settings,
    inputs: &mut Inputs,
    report: &mut Report,
) -> bool {
    let origin = name(file);
    let before = inputs.added();
    let mut has_policy = false;
    for (number, document) in manifest_objects(text) {
        match document {
            // All of it: lines are those of the file, in which there is one document.
            Ok(object) if is_rules(&object, is_named) => {
                inputs.add_rules(origin, text.to_owned());
                return true;
            }
            // A template of Helm, which is no manifest yet.
            Err(_) if !is_named && text.contains("{{") => {}
            Err(cause) => report.add(
                (Severity::Error, "Unreadable"),
                format!("{origin}, document {number}"),
                format!("it is neither YAML nor JSON: {cause}"),
                "kubectl refuses it, and nothing in it was checked",
                "# correct the place that the cause names",
            ),
            Ok(object) if object.get("kind").is_none() && object.get("apiVersion").is_none() => {
                if !is_named && !is_policy(&object) {
                    continue;
                }
                has_policy = true;
                if let Err(error) = PolicyFile::parse(file, &object.to_string()) {
                    report.add(
                        (Severity::Error, "InvalidPolicy"),
                        &origin,
                        error.to_string().replace("--policy ", ""),
                        "`wva decide --policy` and `wva replay --policy` refuse it",
                        "# correct the setting that is named",
                    );
                }
            }
            Ok(object) => add_object(object, settings, inputs),
        }
    }
    has_policy || inputs.added() > before
}

/// Whether a document has settings of a policy, and nothing else.
fn is_policy(document: &Value) -> bool {
    let settings = serde_json::to_value(Policy::default()).unwrap_or_default();
    let fields = document.as_object();
    fields
        .is_some_and(|fields| !fields.is_empty() && fields.keys().all(|field| settings.get(field).is_some()))
}

/// Whether a document is a file of rules of prometheus-adapter: it has their fields and no others, or at least some of them where it
/// `is_named` on the command line.
fn is_rules(document: &Value, is_named: bool) -> bool {
    const FIELDS: [&str; 3] = ["rules", "externalRules", "resourceRules"];
    let Some(fields) = document.as_object() else { return false };
    let is_object = fields.contains_key("kind") || fields.contains_key("apiVersion");
    let mut are_known = fields.keys().map(|field| FIELDS.contains(&field.as_str()));
    !is_object
        && !fields.is_empty()
        && if is_named { are_known.any(|known| known) } else { are_known.all(|known| known) }
}

/// Adds the rules of prometheus-adapter in a ConfigMap, and says whether there are some.
fn add_rules(map: &Value, inputs: &mut Inputs) -> bool {
    let texts = map.get("data").and_then(Value::as_object).into_iter().flatten();
    let mut has_rules = false;
    for (key, text) in texts.filter_map(|(key, text)| Some((key, text.as_str()?))) {
        let documents = manifest_objects(text);
        if documents.iter().flat_map(|(_, document)| document).any(|document| is_rules(document, false)) {
            let name = map.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
            inputs.add_rules(format!("ConfigMap {name}, {key}"), text.to_owned());
            has_rules = true;
        }
    }
    has_rules
}

fn add_object(mut object: Value, settings: &Settings, inputs: &mut Inputs) {
    let Some(kind) = kind_of(&object) else { return };
    if kind == Kind::ConfigMap && add_rules(&object, inputs) {
        return;
    }
    if object["apiVersion"] == "autoscaling/v1" {
        with_metrics(&mut object);
    }
    quantities_as_text(&mut object);
    let default = match (&settings.namespace, kind) {
        (Some(namespace), _) => namespace.as_str(),
        (None, Kind::ConfigMap) => settings.service.namespace.as_str(),
        (None, _) => DEFAULT_NAMESPACE,
    };
    let is_namespaced = !matches!(kind, Kind::State(ListedKind::Namespace | ListedKind::Node));
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    if let Some(metadata) = metadata.filter(|_| is_namespaced) {
        metadata.entry("namespace").or_insert_with(|| default.into());
    }
    inputs.add(kind, object, settings);
}

/// An HPA of autoscaling/v1 in the version that is read: it has one metric.
fn with_metrics(hpa: &mut Value) {
    hpa["apiVersion"] = "autoscaling/v2".into();
    let Some(spec) = hpa.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if let Some(utilization) = spec.remove("targetCPUUtilizationPercentage") {
        let target = json!({ "type": "Utilization", "averageUtilization": utilization });
        spec.insert(
            "metrics".into(),
            json!([{ "type": "Resource", "resource": { "name": "cpu", "target": target } }]),
        );
    }
}

/// The kind of an object, if it is checked.
fn kind_of(object: &Value) -> Option<Kind> {
    let text = |field: &str| object.get(field).and_then(Value::as_str);
    let group = text("apiVersion")?.rsplit_once('/').map_or("", |(group, _)| group);
    Some(match (group, text("kind")?) {
        ("", "ConfigMap") => Kind::ConfigMap,
        ("", "Namespace") => Kind::State(ListedKind::Namespace),
        ("llmd.ai", "VariantAutoscaling") => Kind::State(ListedKind::VariantAutoscaling),
        ("autoscaling", "HorizontalPodAutoscaler") => Kind::State(ListedKind::HorizontalPodAutoscaler),
        ("keda.sh", "ScaledObject") => Kind::State(ListedKind::ScaledObject),
        ("autoscaling.k8s.io", "VerticalPodAutoscaler") => Kind::Vertical,
        ("apps", "Deployment") => Kind::State(ListedKind::Deployment),
        ("apps", "StatefulSet") => Kind::State(ListedKind::StatefulSet),
        ("leaderworkerset.x-k8s.io", "LeaderWorkerSet") => Kind::State(ListedKind::LeaderWorkerSet),
        _ => return None,
    })
}
