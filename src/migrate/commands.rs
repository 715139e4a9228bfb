//! The commands, for a POSIX shell. Every name in them is that of an object. Each may be run again, and one that takes something away
//! runs only if what precedes it in its chain succeeded, also where the lines are pasted.

use std::collections::BTreeMap;

use super::controller::Controller;
use super::keda::{PAUSED, PAUSED_HERE};
use super::metrics_api::Adapter;
use super::objects::{FORGOTTEN, WVA};
use super::release::{Release, ReleaseObject, is_name};
use super::report::{ObjectName, Step};
use crate::cluster::pki::apiservice::NAME as EXTERNAL_METRICS;

/// Where this program is installed, as in the README.
pub(super) const NAMESPACE: &str = "wva-system";
/// Waits until this program runs.
pub(super) const ROLLOUT: &str = "kubectl -n wva-system rollout status deployment/wva --timeout=5m";
/// Fails unless this program owns the external metrics.
pub(super) const SWITCHED: &str = "kubectl get apiservice v1beta1.external.metrics.k8s.io -o jsonpath='{.spec.service.namespace}' | grep -qx wva-system";
/// The copy of an APIService that no release of Helm owns.
const SAVED_API_SERVICE: &str = "external-metrics-apiservice.yaml";
/// Most names of a kind in a command; WVA's chart has ten.
const MAX_NAMES: usize = 50;

/// Commands of which each runs only if the one before it succeeded.
pub(super) fn chain(commands: impl IntoIterator<Item = String>) -> String {
    commands.into_iter().collect::<Vec<_>>().join(" &&\n")
}

/// Writes `file` by `command` unless it exists, whole or not at all.
fn saved(file: &str, command: &str) -> String {
    format!("[ -s {file} ] || {{ {command} > {file}.new && mv {file}.new {file}; }}")
}

pub(super) fn read_metric(namespace: &str) -> String {
    format!(
        "kubectl get --raw /apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/wva_desired_replicas"
    )
}

pub(super) fn scale(controller: &Controller<'_>, replicas: i32) -> String {
    let ObjectName { namespace, name } = controller.name;
    format!("kubectl -n {namespace} scale deployment {name} --replicas={replicas}")
}

/// Pauses ScaledObjects, and waits until KEDA has done it.
pub(super) fn pause(scaled_objects: &BTreeMap<String, Vec<String>>) -> impl Iterator<Item = String> {
    scaled_objects.iter().flat_map(|(namespace, names)| {
        let names = names.join(" ");
        [
            format!("kubectl -n {namespace} annotate scaledobject {names} {PAUSED}=true {PAUSED_HERE}=paused --overwrite"),
            format!("kubectl -n {namespace} wait scaledobject {names} --for=condition=Paused --timeout=2m"),
        ]
    })
}

/// Lets KEDA scale again what [`pause`] paused.
pub(super) fn resume(scaled_objects: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let commands = scaled_objects.iter().map(|(namespace, names)| {
        format!("kubectl -n {namespace} annotate scaledobject {} {PAUSED}- {PAUSED_HERE}-", names.join(" "))
    });
    commands.collect()
}

/// Lets Prometheus scrape this program.
pub(super) fn scraping() -> Step {
    let ask = |variable: &str, what: &str| format!("${{{variable}:?set it to the {what}}}");
    let command = format!(
        "helm upgrade wva charts/wva --namespace {NAMESPACE} --reset-then-reuse-values --set metrics.serviceMonitor.enabled=true --set \
         \"metrics.readers[0].name={}\" --set \"metrics.readers[0].namespace={}\"",
        ask("PROMETHEUS_SERVICE_ACCOUNT", "ServiceAccount of Prometheus"),
        ask("PROMETHEUS_NAMESPACE", "namespace of that ServiceAccount"),
    );
    Step::new(
        "Let Prometheus scrape this program (docs/keda.md): set PROMETHEUS_SERVICE_ACCOUNT and PROMETHEUS_NAMESPACE first. The \
         autoscalers then read its series as they read WVA's.",
        vec![command],
    )
}

/// The repository of prometheus-adapter's chart.
fn add_repository() -> String {
    "helm repo add prometheus-community https://prometheus-community.github.io/helm-charts".into()
}

fn upgrade_adapter(release: &ObjectName, version: &str, values: &str) -> String {
    let ObjectName { namespace, name } = release;
    format!(
        "helm -n {namespace} upgrade --install {name} prometheus-community/prometheus-adapter --version {version} --reset-values -f \
         {values}"
    )
}

/// The files with the settings of a release: as they are, and for the time after.
fn values_files(release: &ObjectName) -> (String, String) {
    (format!("{}-values.yaml", release.name), format!("{}-values-after.yaml", release.name))
}

/// Lets this program own the API.
pub(super) fn switch(adapter: Option<&Adapter>) -> Vec<Step> {
    let own = format!(
        "helm upgrade wva charts/wva --namespace {NAMESPACE} --reset-then-reuse-values --set apiService.enabled=true"
    );
    let mut steps = Vec::new();
    let mut commands = vec![ROLLOUT.to_owned()];
    match adapter {
        None => {}
        Some(Adapter::Other) => steps.push(Step::new(
            "Take the APIService from prometheus-adapter by hand, as its finding says. Without that, the next step is refused.",
            Vec::new(),
        )),
        Some(Adapter::Manifests) => {
            let read = format!("kubectl get apiservice {EXTERNAL_METRICS} -o yaml");
            steps.push(save(vec![saved(SAVED_API_SERVICE, &read)]));
            commands.push(format!("[ -s {SAVED_API_SERVICE} ]"));
            commands.push(format!("kubectl delete apiservice {EXTERNAL_METRICS} --ignore-not-found"));
        }
        Some(Adapter::Chart { release, version, serves_more }) => {
            let ObjectName { namespace, name } = release;
            let (before, after) = values_files(release);
            let read = format!("helm -n {namespace} get values {name} -o yaml");
            steps.push(save(vec![saved(&before, &read)]));
            if *serves_more {
                steps.push(Step::new(
                    format!(
                        "Edit {after} now: delete rules.external with everything below it. Helm would keep a list that is set to null \
                         beside reused values."
                    ),
                    vec![add_repository(), format!("[ -s {after} ] || cp {before} {after}")],
                ));
                // Only an edited file.
                commands.push(format!("[ -s {after} ] && ! cmp -s {before} {after}"));
                commands.push(upgrade_adapter(release, version, &after));
            } else {
                commands.push(format!("[ -s {before} ]"));
                commands.push(format!("helm -n {namespace} uninstall {name}"));
            }
        }
    }
    commands.push(own);
    let title = match adapter {
        None => "Let this program own the external metrics.",
        Some(_) => {
            "Let this program own the external metrics instead of prometheus-adapter. In between, HPAs report that they cannot read the \
             metric, and keep their replicas. If WVA's install.sh set up the adapter, end its loop first: it points the APIService back \
             every 10 s."
        }
    };
    steps.push(Step::new(title, vec![chain(commands)]));
    steps
}

fn save(commands: Vec<String>) -> Step {
    Step::new(
        "Save what the way back needs. A file that exists is kept: it is from before the switch.",
        commands,
    )
}

/// Gives the API back to an adapter.
pub(super) fn give_back(adapter: Option<&Adapter>) -> Vec<String> {
    match adapter {
        None | Some(Adapter::Other) => Vec::new(),
        Some(Adapter::Manifests) => {
            vec![chain([
                format!("[ -s {SAVED_API_SERVICE} ]"),
                format!("kubectl apply -f {SAVED_API_SERVICE}"),
            ])]
        }
        Some(Adapter::Chart { release, version, .. }) => {
            let (before, _) = values_files(release);
            let upgrade = upgrade_adapter(release, version, &before);
            vec![add_repository(), chain([format!("[ -s {before} ]"), upgrade])]
        }
    }
}

/// Removes a controller, and leaves the variants, the autoscalers and what leads Prometheus to model servers.
pub(super) fn removal(controller: &Controller<'_>, stored: Option<&Release>) -> Step {
    let ObjectName { namespace, name } = controller.name;
    let is_stopped = format!(
        "[ \"$(kubectl -n {namespace} get deployment {name} -o jsonpath='{{.spec.replicas}}')\" = 0 ]"
    );
    let delete = format!("kubectl -n {namespace} delete deployment {name}");
    let Some(release) = &controller.release else {
        return Step::new(
            format!(
                "Remove Deployment {namespace}/{name}. Do not delete WVA's manifests as a whole (`kubectl delete -k`, `make undeploy`): \
                 they contain the definition of VariantAutoscaling, with which every variant goes."
            ),
            vec![chain([is_stopped, delete])],
        );
    };
    let rest = if stored.is_some() {
        "Then delete the controller and the rights that its stored manifest lists."
    } else {
        "Then delete the controller. Its ServiceAccount and rights stay, because its stored manifest was not read, which names them."
    };
    let mut commands = vec![
        is_stopped,
        format!(
            "kubectl -n {} label secret -l owner=helm,name={} owner={FORGOTTEN} --overwrite",
            release.namespace, release.name
        ),
    ];
    commands.extend(stored.into_iter().flat_map(|stored| deletions(stored, namespace)));
    // Last, so that the others can be run again.
    commands.push(delete);
    Step::new(
        format!(
            "Remove the controller of release {} without `helm uninstall`: Helm forgets the release, because it no longer finds its \
             Secrets by their label, and deletes nothing. {rest}",
            release.name
        ),
        vec![chain(commands)],
    )
}

/// Deletes the ServiceAccount and the rights that a release lists: by their names, because other installations have the same labels.
fn deletions(stored: &Release, namespace: &str) -> Vec<String> {
    let names = |kind: &str, is_ours: &dyn Fn(&ReleaseObject) -> bool| {
        let objects = stored.deleted().filter(|object| object.kind == kind && is_name(&object.name.name));
        let names = objects.filter(|object| is_ours(object)).map(|object| object.name.name.as_str());
        names.take(MAX_NAMES).collect::<Vec<_>>().join(" ")
    };
    let mut commands = Vec::new();
    for kind in ["ServiceAccount", "Role", "RoleBinding"] {
        let names = names(kind, &|object| object.name.namespace == namespace);
        if !names.is_empty() {
            let kind = kind.to_lowercase();
            commands.push(format!("kubectl -n {namespace} delete {kind} {names} --ignore-not-found"));
        }
    }
    for kind in ["ClusterRole", "ClusterRoleBinding"] {
        // Whoever may write Secrets in this namespace could list the roles of the cluster here.
        let names = names(kind, &|object| object.name.name.contains(WVA));
        if !names.is_empty() {
            commands.push(format!("kubectl delete {} {names} --ignore-not-found", kind.to_lowercase()));
        }
    }
    commands
}
