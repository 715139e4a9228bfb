//! The order of the commands of a migration, and of the way back.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::commands::{
    NAMESPACE, ROLLOUT, SWITCHED, chain, give_back, pause, read_metric, removal, resume, scale, scraping,
    switch,
};
use super::controller::Controller;
use super::metrics_api::Route;
use super::objects::FORGOTTEN;
use super::policies::Policies;
use super::release::{Release, is_name};
use super::report::{ObjectName, Report, Step};
use super::values::{is_of_openshift, values};
use crate::config::Config;

/// The ServiceAccount that compares the numbers.
const READER: &str = "wva-migration";
/// The binding by which OpenShift's Prometheus answers this program.
const OPENSHIFT_BINDING: &str = "wva-cluster-monitoring-view";

/// What the commands depend on.
pub(super) struct Plan<'a> {
    /// The controller that is replaced.
    pub(super) controller: Option<&'a Controller<'a>>,
    /// What Helm stores of its release, if that was read.
    pub(super) stored: Option<&'a Release>,
    pub(super) policies: Option<&'a Policies>,
    pub(super) route: &'a Route,
    /// Whether ScaledObjects or an adapter read the numbers from Prometheus.
    pub(super) is_scraped: bool,
    /// The ScaledObjects to pause meanwhile, by namespace.
    pub(super) scaled_objects: &'a BTreeMap<String, Vec<String>>,
    /// Why nothing may be switched, stopped or removed yet: what was not read.
    pub(super) withheld: Option<String>,
    /// The namespaces with variants.
    pub(super) namespaces: BTreeSet<String>,
    /// Whether HPAs read the external metric of WVA.
    pub(super) has_hpas: bool,
}

impl Plan<'_> {
    /// Adds the commands.
    pub(super) fn write(&self, report: &mut Report) {
        if *self.route != Route::Done {
            report.commands.extend(self.copies());
            report.commands.push(self.values_file());
            report.commands.push(self.installation());
            report.commands.push(self.comparison());
        }
        if let Some(unread) = &self.withheld {
            report.commands.push(Step::new(
                format!(
                    "Read the rest first: these were not read, or not all of them: {unread}. The commands that switch, stop and remove \
                     depend on them and are withheld; run this again once they can be read."
                ),
                Vec::new(),
            ));
            report.back.push(self.uninstallation());
            return;
        }
        if self.is_scraped {
            report.commands.extend(self.controller.map(|controller| self.exclusive_stop(controller)));
            report.commands.push(scraping());
            report.commands.extend(self.resumption("this program"));
        }
        if let Route::Direct(adapter) = self.route {
            report.commands.extend(switch(adapter.as_ref()));
            report.commands.push(self.verification());
        }
        if let Some(controller) = self.controller {
            if !self.is_scraped {
                let stop = [ROLLOUT.into(), SWITCHED.into(), scale(controller, 0)];
                report.commands.push(Step::new("Stop WVA.", vec![chain(stop)]));
            }
            report.commands.push(removal(controller, self.stored));
        }
        report.back.push(self.uninstallation());
        if let Some(controller) = self.controller {
            report.back.push(self.restart(controller));
            report.back.extend(self.resumption("WVA"));
        }
    }

    /// The controller whose settings are taken over.
    fn settings(&self) -> Option<(&Controller<'_>, &Config)> {
        let controller = self.controller?;
        Some((controller, controller.config.as_ref().ok()?))
    }

    /// Copies the ConfigMaps, because those of a release end with it.
    fn copies(&self) -> Option<Step> {
        let (controller, _) = self.settings()?;
        let policies =
            self.policies.iter().flat_map(|policies| policies.own.iter().map(|map| map.name.as_str()));
        let names: BTreeSet<&str> =
            policies.chain(controller.ca.iter().map(|(map, _)| map.as_str())).collect();
        if names.is_empty() || controller.name.namespace == NAMESPACE {
            return None;
        }
        let mut commands = vec![format!(
            "kubectl create namespace {NAMESPACE} --dry-run=client -o yaml | kubectl apply -f -"
        )];
        commands.extend(names.into_iter().filter(|name| is_name(name)).map(|name| {
            format!(
                "kubectl -n {} get configmap {name} -o jsonpath='{{\"{{\"}}\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\
                 \"metadata\":{{\"{{\"}}\"name\":\"{name}\"{{\"}}\"}},\"data\":{{.data}}{{\"}}\"}}' | kubectl -n {NAMESPACE} apply -f -",
                controller.name.namespace
            )
        }));
        Some(Step::new(
            "Copy the ConfigMaps of WVA: this program reads those of its own namespace.",
            commands,
        ))
    }

    fn values_file(&self) -> Step {
        let values = self.settings().map(|(controller, config)| values(controller, config, self.policies));
        let values = serde_saphyr::to_string(&values.unwrap_or_else(|| json!({}))).unwrap_or_default();
        Step::new(
            "Write wva-values.yaml, and edit it now: add what the findings say, above all credentials, and check the rest \
             (charts/wva/values.yaml explains every value). A file that exists is kept; remove it to write it again.",
            vec![format!(
                "[ -s wva-values.yaml ] || cat > wva-values.yaml <<'END_OF_VALUES'\n{}\nEND_OF_VALUES",
                values.trim_end()
            )],
        )
    }

    fn installation(&self) -> Step {
        // Helm never changes a definition that exists.
        let mut commands = vec!["wva crd | kubectl apply --server-side --force-conflicts -f -".into()];
        if self.is_of_openshift() {
            commands.push(format!(
                "kubectl create clusterrolebinding {OPENSHIFT_BINDING} --clusterrole=cluster-monitoring-view \
                 --serviceaccount={NAMESPACE}:wva --dry-run=client -o yaml | kubectl apply -f -"
            ));
        }
        // Later runs keep what later steps switched on.
        commands.push(format!(
            "if helm -n {NAMESPACE} status wva > /dev/null 2>&1; then\n  helm upgrade wva charts/wva --namespace {NAMESPACE} \
             --reset-then-reuse-values -f wva-values.yaml\nelse\n  helm install wva charts/wva --namespace {NAMESPACE} --create-namespace -f \
             wva-values.yaml --set image.repository=\"${{IMAGE_REGISTRY:?set it to the registry with the image wva}}/wva\" --set \
             apiService.enabled=false --set \"metrics.readers[0].name={READER}\" --set \"metrics.readers[0].namespace={NAMESPACE}\"\nfi"
        ));
        commands.push(ROLLOUT.into());
        Step::new(
            "Install this program beside WVA: set IMAGE_REGISTRY first, to where you pushed its image. It decides, but no autoscaler \
             reads it yet. Until WVA is stopped, both write the status of the variants.",
            commands,
        )
    }

    fn is_of_openshift(&self) -> bool {
        self.settings().is_some_and(|(_, config)| is_of_openshift(config))
    }

    fn comparison(&self) -> Step {
        let mut commands = vec![
            format!(
                "kubectl -n {NAMESPACE} create serviceaccount {READER} --dry-run=client -o yaml | kubectl apply -f -"
            ),
            format!(
                "kubectl -n {NAMESPACE} get secret wva-tls -o jsonpath='{{.data.ca\\.crt}}' | base64 -d > wva-ca.crt"
            ),
            format!("kubectl -n {NAMESPACE} port-forward deployment/wva 8443 &"),
            format!(
                "sleep 3; curl --cacert wva-ca.crt --connect-to wva.{NAMESPACE}.svc:8443:localhost:8443 -H \"Authorization: Bearer \
                 $(kubectl -n {NAMESPACE} create token {READER})\" https://wva.{NAMESPACE}.svc:8443/metrics/decisions"
            ),
        ];
        if self.has_hpas {
            commands.extend(self.namespaces.iter().map(|namespace| read_metric(namespace)));
        }
        commands.push("kubectl get hpa --all-namespaces".into());
        Step::new(
            "Compare the numbers of this program with those that the autoscalers read now, and wait until they suit you.",
            commands,
        )
    }

    /// Stops a controller before Prometheus has the series of two programs.
    fn exclusive_stop(&self, controller: &Controller<'_>) -> Step {
        let commands = std::iter::once(ROLLOUT.to_owned())
            .chain(pause(self.scaled_objects))
            .chain([scale(controller, 0)]);
        let paused = if self.scaled_objects.is_empty() {
            "Meanwhile autoscalers keep their replicas."
        } else {
            "Meanwhile KEDA is paused and keeps the replicas: an empty result counts as 0 unless a trigger has ignoreNullValues: \
             \"false\", and it would remove them. If the wait for the pause fails, this KEDA does not know it: do not go on."
        };
        Step::new(
            format!(
                "Stop WVA, and wait until Prometheus has no series wva_desired_replicas any more: with those of two programs, \
                 autoscalers would add both up. {paused}"
            ),
            vec![chain(commands)],
        )
    }

    /// Lets KEDA scale again.
    fn resumption(&self, program: &str) -> Option<Step> {
        let title = format!(
            "Wait until Prometheus has the series wva_desired_replicas of {program}, one for each variant, and then let KEDA scale again."
        );
        (!self.scaled_objects.is_empty()).then(|| Step::new(title, resume(self.scaled_objects)))
    }

    fn verification(&self) -> Step {
        let mut commands: Vec<String> =
            self.namespaces.iter().map(|namespace| read_metric(namespace)).collect();
        commands.push("kubectl get hpa --all-namespaces".into());
        Step::new("Check that every HPA reads its number. If one does not, its conditions say why.", commands)
    }

    /// Removes this program. First, because autoscalers that read Prometheus would add up the series of two programs.
    fn uninstallation(&self) -> Step {
        let mut title =
            "Remove this program. Helm leaves the definition of VariantAutoscaling and all variants."
                .to_owned();
        let mut commands = Vec::new();
        let mut removal = Vec::new();
        if self.withheld.is_none() && !self.scaled_objects.is_empty() {
            title += " Meanwhile KEDA is paused and keeps the replicas.";
            removal.extend(pause(self.scaled_objects));
        }
        removal.push(format!("helm -n {NAMESPACE} uninstall wva"));
        commands.push(chain(removal));
        if self.is_of_openshift() {
            commands
                .push(format!("kubectl delete clusterrolebinding {OPENSHIFT_BINDING} --ignore-not-found"));
        }
        match self.route {
            Route::Direct(adapter) if self.withheld.is_none() => {
                title += " Then give the external metrics back. Meanwhile HPAs keep their replicas.";
                commands.extend(give_back(adapter.as_ref()));
            }
            Route::Done => {
                title += " What owned the external metrics before can no longer be read: give them back by the commands and files that \
                          you kept from before the switch.";
            }
            _ => {}
        }
        Step::new(title, commands)
    }

    fn restart(&self, controller: &Controller<'_>) -> Step {
        let mut title = "Start WVA again.".to_owned();
        if self.is_scraped {
            title += " Wait first until Prometheus has no series wva_desired_replicas any more.";
        }
        if controller.replicas == 0 {
            title += " It is stopped now, so how many instances it had is not known: 1 may be too few.";
        }
        let mut commands = Vec::new();
        if let Some(ObjectName { namespace, name }) = &controller.release {
            title += " Once its controller has been removed, Helm creates it again from the stored revision: set REVISION to it (`helm \
                      history`). Until then, the last command suffices.";
            commands.push(format!(
                "kubectl -n {namespace} label secret -l owner={FORGOTTEN},name={name} owner=helm --overwrite"
            ));
            commands.push(format!(
                "helm -n {namespace} rollback {name} \"${{REVISION:?set it to a revision of helm history}}\""
            ));
        } else {
            title += " Once its controller has been removed, apply its manifests first.";
        }
        commands.push(scale(controller, controller.replicas.max(1)));
        Step::new(title, commands)
    }
}
