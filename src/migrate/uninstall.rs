//! What `helm uninstall` of a release would delete.

use std::collections::{BTreeMap, BTreeSet};

use super::controller::Controller;
use super::objects::Objects;
use super::release::{Release, ReleaseObject, owner};
use super::report::{ObjectName, Report};
use wva_core::text::first_names;

/// Most objects that a sentence names.
const MAX_NAMED: usize = 8;
/// Kinds whose objects scale, or whose removal removes those that do.
const SCALING_KINDS: [&str; 4] =
    ["VariantAutoscaling", "HorizontalPodAutoscaler", "ScaledObject", "CustomResourceDefinition"];
/// Kinds whose objects lead Prometheus to model servers.
const MONITORING_KINDS: [&str; 4] = ["Service", "ServiceMonitor", "PodMonitor", "Namespace"];

/// Reports the releases of Helm that own objects that must stay.
pub(super) fn report(objects: &Objects, controllers: &[Controller<'_>], report: &mut Report) {
    let mut live: BTreeMap<ObjectName, BTreeSet<String>> = BTreeMap::new();
    for (kind, name, metadata) in objects.owned().filter(|(kind, ..)| SCALING_KINDS.contains(kind)) {
        if let Some(release) = owner(metadata) {
            live.entry(release).or_default().insert(format!("{kind} {name}"));
        }
    }
    let releases: BTreeSet<&ObjectName> =
        live.keys().chain(controllers.iter().filter_map(|controller| controller.release.as_ref())).collect();
    for release in releases {
        let has_controller =
            controllers.iter().any(|controller| controller.release.as_ref() == Some(release));
        let stored = objects.releases.get(release);
        let deleted: BTreeSet<String> = match stored {
            Some(stored) => stored.deleted().filter(|object| must_stay(object)).map(title).collect(),
            None => live.get(release).into_iter().flatten().cloned().collect(),
        };
        let object = format!("Helm release {} in {}", release.name, release.namespace);
        for cause in stored.iter().flat_map(|stored| &stored.unread) {
            report.unread(format!("{object}: {cause}; `helm uninstall` deletes its object as well, so look at it (`helm get manifest`)"));
        }
        if deleted.is_empty() {
            if stored.is_some_and(|stored| stored.unread.is_empty()) {
                report.same(format!("{object}: `helm uninstall` would delete no variant and no autoscaler"));
            }
            continue;
        }
        let names = first_names(deleted.into_iter(), MAX_NAMED, ", ");
        if stored.is_none() && objects.listed_releases.contains(release) {
            if objects.forgotten.contains(release) {
                report
                    .same(format!("{object}: Helm was made to forget it, so `helm uninstall` finds nothing"));
            } else {
                report.act(
                    object,
                    format!(
                        "no Secret stores it, so Helm stores it elsewhere (HELM_DRIVER is configmap, memory or sql), or it is gone; \
                         `helm uninstall` would delete {names} (by their annotations), and the commands do not make Helm forget it"
                    ),
                    "do not uninstall it, or delete its records from where Helm stores them first",
                );
            }
            continue;
        }
        let source =
            if stored.is_some() { "" } else { " (by their annotations: its stored manifest was not read)" };
        let has_deployment =
            |stored: &Release| stored.objects.iter().any(|object| object.kind == "Deployment");
        let next_step = if has_controller {
            "do not uninstall it: the last of the commands remove the controller and leave these objects"
        } else if stored.is_none_or(has_deployment) {
            "do not uninstall it; its controller was not read (run this without -n, with the right to list Deployments)"
        } else {
            "leave it installed: it has no controller"
        };
        report.change(object, format!("`helm uninstall` would delete {names}{source}: {next_step}"));
    }
}

fn must_stay(object: &ReleaseObject) -> bool {
    let kind = object.kind.as_str();
    // Of WVA's chart, the Service of the controller ends so; that of the model servers does not.
    let is_of_controller = ["-metrics", "-metrics-service", "-metrics-monitor"]
        .iter()
        .any(|end| object.name.name.ends_with(end));
    SCALING_KINDS.contains(&kind) || MONITORING_KINDS.contains(&kind) && !is_of_controller
}

fn title(object: &ReleaseObject) -> String {
    let ReleaseObject { kind, name, .. } = object;
    let is_of_cluster = ["CustomResourceDefinition", "Namespace"].contains(&kind.as_str());
    if is_of_cluster { format!("{kind} {}", name.name) } else { format!("{kind} {name}") }
}
